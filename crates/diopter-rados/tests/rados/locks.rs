//! The lock of an open file: who is kept out, and for how long.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use diopter_rados::striper::{Access, File, Layout, Open, object_name};
use diopter_rados::{Cluster, Connect, ErrorKind, Library, Pool, Queue};

use crate::cluster::{Ceph, SOON, ceph, content, crashed_at_its_end};

/// The shortest lease.
pub const SHORT: Duration = Duration::from_secs(3);

/// The bound of operations that fits it.
const QUICK: Duration = Duration::from_secs(2);

/// In the process that is killed: the configuration of the cluster.
const HOLD: &str = "DIOPTER_RADOS_HOLD";

/// The name of the first object, for the tool.
pub fn first(name: &str) -> String {
    String::from_utf8(object_name(name.as_bytes(), 0)).unwrap()
}

/// The description of the lock, in JSON.
pub fn lock_of(ceph: &Ceph, name: &str) -> String {
    let info = ceph.must(&["lock", "info", &first(name), "striper.lock"]);
    String::from_utf8(info).unwrap()
}

/// The values of a key in JSON that the tool printed, in order.
pub fn values<'a>(json: &'a str, key: &str) -> Vec<&'a str> {
    let key = format!("\"{key}\":\"");
    json.split(&key).skip(1).map(|rest| rest.split('"').next().unwrap()).collect()
}

/// Tries until it succeeds; each try asks the cluster, which takes its time.
pub fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(began.elapsed() < SOON, "{what}: not within {SOON:?}");
    }
}

/// True if the tool removes it, false if the tool finds it locked.
fn is_removed(ceph: &Ceph, name: &str) -> bool {
    let output = ceph.rados(&["--striper", "rm", name]);
    if crashed_at_its_end(&output) {
        return true;
    }
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || text.contains("Device or resource busy"), "{output:?}");
    output.status.success()
}

#[test]
fn an_open_file_is_not_removed_and_a_closed_one_is() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let file = File::create(&pool, b"held", Layout::default(), SHORT * 10).unwrap();
    file.write_at(0, b"text").unwrap();
    let reader = File::open(&pool, b"held", &Open::new(Access::Read)).unwrap();
    let info = lock_of(ceph, "held");
    assert_eq!((values(&info, "type"), values(&info, "tag")), (vec!["shared"], vec!["Tag"]));
    assert_eq!(values(&info, "cookie").len(), 2, "{info}");
    assert!(!is_removed(ceph, "held"));
    drop(file);
    assert!(!is_removed(ceph, "held"), "one holder is left");
    drop(reader);
    assert!(is_removed(ceph, "held"));
    assert!(pool.stat(&object_name(b"held", 0)).is_err());
}

#[test]
fn the_tool_reads_and_writes_while_a_file_is_open() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let file = File::create(&pool, b"shared", Layout::default(), SHORT * 10).unwrap();
    file.write_at(0, b"text").unwrap();
    assert_eq!(ceph.must(&["--striper", "get", "shared", "-"]), b"text");
    // Its put truncates, which takes the lock exclusively.
    let output = ceph.rados(&["--striper", "put", "shared", env!("CARGO_MANIFEST_PATH")]);
    assert!(!output.status.success());
    drop(file);
    ceph.must(&["--striper", "put", "shared", env!("CARGO_MANIFEST_PATH")]);
}

#[test]
fn a_lock_that_another_client_holds_is_an_error() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    drop(File::create(&pool, b"taken", Layout::default(), SHORT).unwrap());
    let exclusive = ["--lock-type", "exclusive", "--lock-cookie", "mine", "--lock-duration", "60"];
    ceph.must(&[&["lock", "get", &first("taken"), "striper.lock"], &exclusive[..]].concat());
    let error = File::open(&pool, b"taken", &Open::new(Access::Read)).err().unwrap();
    assert_eq!(error.errno(), Some(libc::EBUSY), "{error}");
}

#[test]
fn a_lease_is_renewed_while_the_file_is_open() {
    let Some(ceph) = ceph() else { return };
    let file =
        File::create(&ceph.pool_within(QUICK), b"renewed", Layout::default(), SHORT).unwrap();
    let end = || values(&lock_of(ceph, "renewed"), "expiration").concat();
    let began = Instant::now();
    let ends = until("renewals", || {
        end();
        (began.elapsed() > SHORT * 2).then(end)
    });
    assert!(!ends.is_empty(), "no holder");
    file.write_at(0, b"text").unwrap();
    assert!(!is_removed(ceph, "renewed"));
}

/// Takes the lock of a striped object away from its only holder.
pub fn break_lock(ceph: &Ceph, name: &str) {
    let info = lock_of(ceph, name);
    let (cookies, holders) = (values(&info, "cookie"), values(&info, "name"));
    let holder = holders.iter().find(|name| name.starts_with("client.")).expect(&info);
    let cookie = ["--lock-cookie", cookies[0]];
    ceph.must(&[&["lock", "break", &first(name), "striper.lock", holder], &cookie[..]].concat());
}

#[test]
fn a_lock_that_was_broken_is_not_taken_again_and_nothing_is_written() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool_within(QUICK);
    let file = File::create(&pool, b"broken", Layout::default(), SHORT).unwrap();
    file.write_at(0, b"text").unwrap();
    break_lock(ceph, "broken");
    let error = until("the loss", || file.write_at(0, b"text").err());
    assert_eq!(error.kind(), ErrorKind::Lease, "{error}");
    let error = file.write_at(0, b"late, and longer").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lease, "{error}");
    assert_eq!(pool.stat(&object_name(b"broken", 0)).unwrap().size, 4);
    // No lock keeps its objects any more: what is missing would read as zeros.
    assert_eq!(file.read_at(0, &mut [0; 4]).unwrap_err().kind(), ErrorKind::Lease);
    assert!(values(&lock_of(ceph, "broken"), "cookie").is_empty());
    drop(file);
    File::open(&pool, b"broken", &Open::new(Access::Write)).unwrap().write_at(0, b"more").unwrap();
}

/// Holds a file open until it is killed, when the test below starts it as a process.
#[test]
fn holds_a_file_until_it_is_killed() {
    let Some(conf) = std::env::var_os(HOLD) else { return };
    let conf = Some(conf.into());
    let how = Connect { conf, operation_timeout: QUICK, ..Connect::default() };
    let cluster = Cluster::connect(&Library::load(None).unwrap(), &how).unwrap();
    let pool = cluster.pool(b"data", None).unwrap();
    let file = File::create(&pool, b"orphan", Layout::default(), SHORT).unwrap();
    println!("\nHOLDING");
    until("a signal", || {
        file.write_at(0, b"text").unwrap();
        None::<()>
    });
}

#[test]
fn a_file_of_a_process_that_was_killed_is_removed_after_its_lease() {
    let Some(ceph) = ceph() else { return };
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "locks::holds_a_file_until_it_is_killed", "--nocapture"]);
    command.env(HOLD, &ceph.conf).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let held = lines.map_while(Result::ok).any(|line| line == "HOLDING");
    let before = held && !is_removed(ceph, "orphan");
    child.kill().unwrap();
    child.wait().unwrap();
    let killed = Instant::now();
    assert!(before, "it was not locked");
    until("the end of the lease", || is_removed(ceph, "orphan").then_some(()));
    assert!(killed.elapsed() < SHORT * 3, "after {:?}", killed.elapsed());
}

/// Sends a signal to an object store of a cluster, and returns its number.
fn signal(ceph: &Ceph, store: &str, signal: &str) -> String {
    let file = ceph.conf.with_file_name("run").join(format!("osd.{store}.pid"));
    let pid = std::fs::read_to_string(file).unwrap().trim().to_owned();
    let status = Command::new("kill").args([signal, &pid]).status().unwrap();
    assert!(status.success());
    pid
}

/// Stops an object store: when this returns, none of its threads runs.
fn stop(ceph: &Ceph, store: &str) {
    let threads = Path::new("/proc").join(signal(ceph, store, "-STOP")).join("task");
    until("a stopped store", || {
        let is_stopped = |thread: std::io::Result<std::fs::DirEntry>| {
            let stat = std::fs::read_to_string(thread.unwrap().path().join("stat"));
            // A thread that is gone does not run.
            stat.map_or(true, |stat| stat.rsplit(") ").next().unwrap().starts_with('T'))
        };
        std::fs::read_dir(&threads).unwrap().all(is_stopped).then_some(())
    });
}

#[test]
fn without_a_reply_of_the_store_nothing_is_sent_after_the_lease_and_nothing_is_freed() {
    if ceph().is_none() {
        return;
    }
    // A cluster that no other test uses: its store is stopped, for longer than it has leases for.
    let ceph = Ceph::start(&["--grace=600"]);
    let pool_within = |seconds| ceph.pool_within(Duration::from_secs(seconds));
    let (pool, patient) = (pool_within(1), pool_within(600));
    let file = File::create(&pool, b"stopped", Layout::default(), SHORT).unwrap();
    file.write_at(0, b"text").unwrap();
    let mut queue = Queue::new(&patient).unwrap();
    drop(patient);
    stop(&ceph, "0");
    queue.write(1, b"late", 0, content(1 << 20, 1)).unwrap();
    let mut timeouts = 0;
    let error = until("the end of the lease", || {
        let error = file.write_at(0, b"TEXT").expect_err("no store");
        // Of the first kind it is open whether it was stored; of the second, nothing was sent.
        assert_eq!(error.is_unknown(), error.errno() == Some(libc::ETIMEDOUT), "{error}");
        timeouts += u32::from(error.errno() == Some(libc::ETIMEDOUT));
        (error.errno() != Some(libc::ETIMEDOUT)).then_some(error)
    });
    assert_eq!(error.kind(), ErrorKind::Lease, "{error}");
    assert!(timeouts > 0, "the lease ended first");
    // Refused at once: nothing was sent, which would take a second.
    let began = Instant::now();
    for _ in 0..100 {
        assert_eq!(file.write_at(0, b"LATE").unwrap_err().kind(), ErrorKind::Lease);
    }
    assert!(began.elapsed() < Duration::from_secs(1));
    // The pool's last owner: it waits, but not for ten minutes.
    let began = Instant::now();
    drop(queue);
    assert!(began.elapsed() < SOON);
    signal(&ceph, "0", "-CONT");
    // The operation took effect on what it owned.
    let mut buffer = vec![0; 1 << 20];
    until("the late write", || (pool.read(b"late", 0, &mut buffer) == Ok(1 << 20)).then_some(()));
    assert!(buffer == content(1 << 20, 1));
    // The store has just been let go on: a second may not do for each reply.
    let mut text = [0; 4];
    let object = object_name(b"stopped", 0);
    until("the text", || (pool.read(&object, 0, &mut text) == Ok(4)).then_some(()));
    assert!(&text == b"text" || &text == b"TEXT");
}

/// The number of the store that has an object.
fn store_of(ceph: &Ceph, object: &[u8]) -> String {
    let map = ceph.ceph(&["osd", "map", "data", std::str::from_utf8(object).unwrap()]);
    let acting = map.split("acting ([").nth(1).expect(&map);
    acting.chars().take_while(char::is_ascii_digit).collect()
}

#[test]
fn no_write_is_sent_that_may_live_longer_than_the_lease() {
    if ceph().is_none() {
        return;
    }
    // The store of the lock is stopped, and that of the object goes on.
    let ceph = Ceph::start(&["--osds=2"]);
    let pool = ceph.pool_within(QUICK);
    let of = |name: &str, object| store_of(&ceph, &object_name(name.as_bytes(), object));
    let names = (0..64).map(|number| format!("apart-{number}"));
    let name = names.into_iter().find(|name| of(name, 0) != of(name, 1)).expect("two stores");
    let layout = Layout::new(65_536, 1, 65_536).unwrap();
    let file = File::create(&pool, name.as_bytes(), layout, SHORT).unwrap();
    file.write_at(65_536, b"text").unwrap();
    stop(&ceph, &of(&name, 0));
    // The last renewal was before this.
    let stopped = Instant::now();
    let mut latest = None;
    let error = until("the end of the lease", || {
        let began = stopped.elapsed();
        let written = file.write_at(65_536, b"text");
        latest = if written.is_ok() { Some(began) } else { latest };
        written.err()
    });
    let ended = stopped.elapsed();
    signal(&ceph, &of(&name, 0), "-CONT");
    assert_eq!(error.kind(), ErrorKind::Lease, "{error}");
    // Nothing was sent, and it was waited for a renewal while there was hope for one.
    assert!(!error.is_unknown(), "{error}");
    assert!(ended < SHORT + QUICK, "after {ended:?}");
    assert!(latest.is_none_or(|began| began < SHORT - QUICK), "a write began after {latest:?}");
}

#[test]
fn a_lease_to_write_under_fits_the_bound_of_operations() {
    let Some(ceph) = ceph() else { return };
    let create = |pool: Pool, name: &str| {
        let file = File::create(&pool, name.as_bytes(), Layout::default(), SHORT).unwrap();
        let end = values(&lock_of(ceph, name), "expiration").concat();
        assert!(!end.is_empty(), "no holder");
        (file, end)
    };
    // A lease of 30 s ends later than one of 3 s that began after it.
    let longer = create(ceph.pool(), "fits-20");
    let shorter = create(ceph.pool_within(QUICK), "fits-2");
    assert!(longer.1 > shorter.1, "{} {}", longer.1, shorter.1);
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("ceph.conf");
    let text = std::fs::read_to_string(&ceph.conf).unwrap();
    std::fs::write(&conf, format!("{text}\n[client]\nrados_osd_op_timeout = 3600\n")).unwrap();
    let how = Connect { conf: Some(conf), ..Connect::default() };
    let cluster = Cluster::connect(&Library::load(None).unwrap(), &how).unwrap();
    let pool = cluster.pool(b"data", None).unwrap();
    drop(longer);
    let open = |access| File::open(&pool, b"fits-20", &Open::new(access));
    let error = open(Access::Write).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.to_string().contains("rados_osd_op_timeout"), "{error}");
    assert_eq!(open(Access::Read).unwrap().size().unwrap(), 0);
}
