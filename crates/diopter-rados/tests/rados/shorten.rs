//! Truncation and removal: what is left, whom the lock keeps out, and an end in the middle.

use std::cell::Cell;
use std::ffi::OsStr;
use std::process::{Command, Stdio};

use diopter_rados::striper::{Access, File, Layout, Open, object_name};
use diopter_rados::{Cluster, Connect, ErrorKind, Library, Pool};

use crate::cluster::{Ceph, ceph, content};
use crate::locks::{break_lock, first, lock_of, until, values};

const KIB: u64 = 1 << 10;

/// In the process that is killed: the configuration of the cluster.
const TRUNCATE: &str = "DIOPTER_RADOS_TRUNCATE";

/// The file that it truncates: its bytes, and the bytes of a set of objects.
const LONG: usize = 100 << 20;
const SET: u64 = 128 * KIB;

fn open(pool: &Pool, name: &str, access: Access) -> File {
    File::open(pool, name.as_bytes(), &Open::new(access)).unwrap()
}

fn create(pool: &Pool, name: &str, layout: &Layout) -> File {
    let lease = Open::new(Access::Write).lease;
    File::create(pool, name.as_bytes(), layout.clone(), lease).unwrap()
}

/// Bytes of each object; 0 for a missing one.
fn object_sizes(pool: &Pool, name: &str) -> Vec<u64> {
    let size = |object| pool.stat(&object_name(name.as_bytes(), object)).map_or(0, |it| it.size);
    (0..30).map(size).collect()
}

/// The attributes of the striper, by name.
fn attributes(pool: &Pool, name: &str) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut all = Vec::new();
    let first = object_name(name.as_bytes(), 0);
    pool.attributes(&first, |name, value| all.push((name.to_vec(), value.to_vec()))).unwrap();
    all.retain(|(name, _)| name.starts_with(b"striper."));
    all.sort();
    all
}

fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0xee; usize::try_from(file.size().unwrap()).unwrap()];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    bytes
}

/// Runs the tool; true if it succeeded, false if it found the object locked.
fn is_done(ceph: &Ceph, arguments: &[&str]) -> bool {
    let output = ceph.rados(arguments);
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() || text.contains("resource busy"), "{output:?}");
    output.status.success()
}

#[test]
fn a_file_is_truncated_as_the_tool_does_it() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    for (number, layout) in
        [Layout::new(64 * KIB, 1, 128 * KIB).unwrap(), Layout::new(64 * KIB, 3, 128 * KIB).unwrap()]
            .iter()
            .enumerate()
    {
        let (ours, theirs) = (format!("cut-ours-{number}"), format!("cut-theirs-{number}"));
        let mut bytes = content(1_500_000, 3);
        let mut file = create(&pool, &ours, layout);
        file.write_at(0, &bytes).unwrap();
        create(&pool, &theirs, layout).write_at(0, &bytes).unwrap();
        for size in [1_500_000, 1_400_001, 786_432, 786_431, 400_000, 65_536, 5, 1, 0, 200_000] {
            file.set_len(size, &|| true).unwrap();
            ceph.must(&["--striper", "truncate", &theirs, &size.to_string()]);
            bytes.resize(usize::try_from(size).unwrap(), 0);
            assert!(read_all(&file) == bytes, "{number} {size}");
            assert_eq!(attributes(&pool, &ours), attributes(&pool, &theirs), "{number} {size}");
            let (left, expected) = (object_sizes(&pool, &ours), object_sizes(&pool, &theirs));
            assert!(size > 100_000 || left == expected, "{size}: {left:?} {expected:?}");
            assert!(left.iter().sum::<u64>() <= size, "{left:?}");
        }
        // Nothing of what was removed comes back.
        file.write_at(1_499_999, b"x").unwrap();
        bytes.resize(1_500_000, 0);
        bytes[1_499_999] = b'x';
        assert!(read_all(&file) == bytes);
    }
}

#[test]
fn a_file_that_another_has_open_is_neither_truncated_nor_removed() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let mut file = create(&pool, "busy", &Layout::default());
    file.write_at(0, b"a text").unwrap();
    let reader = open(&pool, "busy", Access::Read);
    assert_eq!(file.set_len(2, &|| true).unwrap_err().errno(), Some(libc::EBUSY));
    // It was not changed, and can be.
    assert_eq!(file.size().unwrap(), 6);
    file.write_at(6, b" more").unwrap();
    file.set_len(20, &|| true).unwrap();
    let error = open(&pool, "busy", Access::Write).remove(&|| true).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EBUSY));
    assert_eq!(read_all(&reader), b"a text more\0\0\0\0\0\0\0\0\0");
    drop(reader);
    file.set_len(2, &|| true).unwrap();
    // Shared again, with the tag of the tool.
    let info = lock_of(ceph, "busy");
    assert_eq!((values(&info, "type"), values(&info, "tag")), (vec!["shared"], vec!["Tag"]));
    assert_eq!(ceph.must(&["--striper", "get", "busy", "-"]), b"a ");
    let read_only = open(&pool, "busy", Access::Read);
    assert!(read_only.remove(&|| true).is_err());
    drop(file);
    open(&pool, "busy", Access::Write).remove(&|| true).unwrap();
    let error = File::open(&pool, b"busy", &Open::new(Access::Read)).err().unwrap();
    assert_eq!(error.errno(), Some(libc::ENOENT));
}

#[test]
fn the_tool_truncates_and_removes_once_the_file_is_closed() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let file = create(&pool, "kept", &Layout::default());
    file.write_at(0, b"a text").unwrap();
    assert!(!is_done(ceph, &["--striper", "truncate", "kept", "2"]));
    assert_eq!(file.size().unwrap(), 6);
    drop(file);
    assert!(is_done(ceph, &["--striper", "truncate", "kept", "2"]));
    assert_eq!(read_all(&open(&pool, "kept", Access::Read)), b"a ");
}

#[test]
fn all_objects_are_removed_holes_or_not() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let layout = Layout::new(64 * KIB, 3, 128 * KIB).unwrap();
    let file = create(&pool, "removed", &layout);
    file.write_at(0, &content(500_000, 1)).unwrap();
    file.write_at(3_000_000, b"end").unwrap();
    file.remove(&|| true).unwrap();
    // Other tests have names that are not UTF-8.
    let all = String::from_utf8_lossy(&ceph.must(&["ls"])).into_owned();
    assert!(all.lines().all(|object| !object.starts_with("removed.")), "{all}");
    // The name is free.
    drop(create(&pool, "removed", &layout));
}

/// Truncates a long file until it is killed, when the test below starts it as a process.
#[test]
fn truncates_until_it_is_killed() {
    let Some(conf) = std::env::var_os(TRUNCATE) else { return };
    let operation_timeout = std::time::Duration::from_secs(2);
    let how = Connect { conf: Some(conf.into()), operation_timeout, ..Connect::default() };
    let cluster = Cluster::connect(&Library::load(None).unwrap(), &how).unwrap();
    let pool = cluster.pool(b"data", None).unwrap();
    let how = Open { access: Access::Write, lease: std::time::Duration::from_secs(3) };
    File::open(&pool, b"halved", &how).unwrap().set_len(1, &|| true).unwrap();
}

#[test]
fn a_truncation_that_is_killed_leaves_a_shorter_file() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let layout = Layout::new(64 * KIB, 2, 64 * KIB).unwrap();
    let bytes = content(LONG, 5);
    create(&pool, "halved", &layout).write_at(0, &bytes).unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "shorten::truncates_until_it_is_killed"]);
    command.env(TRUNCATE, &ceph.conf).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    let size = || {
        let text = pool.attribute(&object_name(b"halved", 0), "striper.size", 30).unwrap();
        String::from_utf8(text).unwrap().parse::<u64>().unwrap()
    };
    until("a shorter file", || (size() < LONG as u64 * 9 / 10).then_some(()));
    child.kill().unwrap();
    child.wait().unwrap();
    let left = size();
    assert!(left > 1, "it was too fast");
    // Locked by the process that is gone, until its lease ends.
    let error = File::open(&pool, b"halved", &Open::new(Access::Read)).err();
    assert!(error.is_none_or(|error| error.errno() == Some(libc::EBUSY)));
    let file = until("the end of the lease", || {
        File::open(&pool, b"halved", &Open::new(Access::Write)).ok()
    });
    let read = read_all(&file);
    let (whole, last) = read.split_at(usize::try_from((left - 1) / SET * SET).unwrap());
    assert!(*whole == bytes[..whole.len()], "{left}");
    for (index, unit) in last.chunks(64 * 1024).enumerate() {
        let at = whole.len() + index * 64 * 1024;
        let is_there = *unit == bytes[at..at + unit.len()];
        assert!(is_there || unit.iter().all(|byte| *byte == 0), "byte {at} of {left}");
    }
    // Other tests have names that are not UTF-8.
    let all = String::from_utf8_lossy(&ceph.must(&["ls"])).into_owned();
    let past = |object: &&str| object > &&*last_object(&layout, left);
    let over: Vec<&str> =
        all.lines().filter(|object| object.starts_with("halved.")).filter(past).collect();
    assert!(over.is_empty(), "{over:?} are past {left}");
    file.remove(&|| true).unwrap();
    assert!(
        ceph.rados(&[OsStr::new("stat"), OsStr::new(&first("halved"))]).status.code() != Some(0)
    );
}

/// The name of the last object of a file of this size.
fn last_object(layout: &Layout, size: u64) -> String {
    String::from_utf8(object_name(b"halved", layout.objects(size) - 1)).unwrap()
}

#[test]
fn a_truncation_stops_within_a_set_of_many_objects() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let layout = Layout::new(64 * KIB, 1 << 20, 64 * KIB).unwrap();
    let mut file = create(&pool, "hostile", &layout);
    file.set_len(64 << 30, &|| true).unwrap();
    let asked = Cell::new(0);
    let goes_on = || {
        asked.set(asked.get() + 1);
        asked.get() <= 100
    };
    let error = file.set_len(1, &goes_on).unwrap_err();
    assert_eq!((error.errno(), asked.get()), (Some(libc::EINTR), 101), "{error}");
    // The lock is shared again.
    let other = open(&pool, "hostile", Access::Read);
    assert_eq!(other.size().unwrap(), 64 << 30);
    drop(other);
    asked.set(0);
    assert_eq!(file.remove(&goes_on).unwrap_err().errno(), Some(libc::EINTR));
}

#[test]
fn the_first_object_is_truncated_only_under_the_lock() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let mut file = create(&pool, "fenced", &Layout::default());
    file.write_at(0, b"a text").unwrap();
    let goes_on = || {
        // Lost, which this client does not know.
        break_lock(ceph, "fenced");
        true
    };
    let error = file.set_len(2, &goes_on).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lease, "{error}");
    assert_eq!(pool.stat(&object_name(b"fenced", 0)).unwrap().size, 6);
}
