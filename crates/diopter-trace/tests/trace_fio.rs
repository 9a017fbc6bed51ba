//! `dio trace` against the kernel and fio: every request is found, with its bios and where its
//! completion ran, and tracing never stays on. Needs root, tracefs, loop devices and fio; without
//! them each test says what it lacks.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use diopter_testkit::env::{Capability, is_root, skip};
use diopter_testkit::machine::{FileSystem, Loop, Mount, run, unmount};
use diopter_trace::document::FlushSummary;
use diopter_trace::model::{Context, Door, Trace, TracedOp};
use diopter_trace::summary::{summary, summary_of};
use diopter_trace::{RecordOptions, TraceError, Watcher, record, record_watched};
use rustix::process::{Pid, Signal, kill_process};

const INSTANCES: &str = "/sys/kernel/tracing/instances";
const EVENT: &str = "/sys/kernel/tracing/events/iomap/iomap_dio_rw_begin";
/// Signals and instances belong to the whole process, so one test at a time has them.
static ALONE: Mutex<()> = Mutex::new(());

/// A loop device with a direct file below, or ext4 or XFS on one.
enum Ground {
    Device(Loop),
    Mounted(Mount),
}

impl Ground {
    /// Makes a device of 512 MiB with `file_system`, or none, and a file of 64 MiB of written
    /// blocks.
    fn new(file_system: Option<FileSystem>) -> Ground {
        let device = Loop::direct_in(&std::env::temp_dir(), "trace", 512 << 20).unwrap();
        let ground = match file_system {
            None => Ground::Device(device),
            Some(kind) => Ground::Mounted(Mount::on(device, kind, "defaults").unwrap()),
        };
        let of = format!("of={}", ground.file().display());
        let how = ["bs=1M", "count=64", "oflag=direct", "status=none"];
        run("dd", &[&["if=/dev/zero", &of], &how[..]].concat()).unwrap();
        ground
    }

    fn file(&self) -> PathBuf {
        match self {
            Ground::Device(device) => device.device().to_owned(),
            Ground::Mounted(mount) => mount.path().join("file"),
        }
    }
}

/// The capability that a program is part of.
fn capability_of(tool: &str) -> Capability {
    match tool {
        "mkfs.ext4" => Capability::Ext4,
        "mkfs.xfs" => Capability::Xfs,
        "losetup" | "mkfs.btrfs" | "btrfs" => Capability::Loop,
        _ => Capability::Fio,
    }
}

/// The turn of one test; `None` if the machine lacks something.
fn alone(needs: &[&str]) -> Option<MutexGuard<'static, ()>> {
    if !is_root() || !Path::new(EVENT).is_dir() {
        skip(Capability::Tracefs, "trace events of direct I/O, and root, are not here");
        return None;
    }
    for tool in needs {
        if Command::new(tool).arg("--version").output().is_err() {
            skip(capability_of(tool), format!("{tool} is not installed"));
            return None;
        }
    }
    Some(ALONE.lock().unwrap_or_else(PoisonError::into_inner))
}

fn options(command: &[&str]) -> RecordOptions {
    RecordOptions::new(command.iter().map(OsString::from).collect())
}

fn own_instances() -> Vec<OsString> {
    let prefix = format!("diopter-{}-", std::process::id());
    let names = fs::read_dir(INSTANCES).unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name.to_string_lossy().starts_with(&prefix)).collect()
}

/// Sizes of requests, and how many.
const SIZES: [(&str, u32); 3] = [("4k", 300), ("128k", 60), ("4M", 8)];

/// Reads and writes of these sizes, one after the other, traced; and fio's own count of requests
/// and bytes.
fn traced_fio(ground: &Ground, engine: &str) -> (Trace, u64, u64) {
    let dir = tempfile::tempdir().unwrap();
    let report = dir.path().join("fio.json");
    let mut command = vec![
        "fio".to_owned(),
        format!("--output={}", report.display()),
        "--output-format=json".to_owned(),
        format!("--filename={}", ground.file().display()),
        format!("--ioengine={engine}"),
    ];
    command.extend(["--direct=1", "--size=64M", "--iodepth=16"].map(str::to_owned));
    for (size, count) in SIZES {
        for flow in ["randread", "randwrite"] {
            command.extend([
                format!("--name={flow}-{size}"),
                "--stonewall".to_owned(),
                format!("--rw={flow}"),
                format!("--bs={size}"),
                format!("--number_ios={count}"),
            ]);
        }
    }
    let words: Vec<&str> = command.iter().map(String::as_str).collect();
    let mut options = options(&words);
    // Others use this machine as well.
    options.devices = vec![ground.file()];
    let trace = record(&options, &mut |_| ()).unwrap();
    let text = fs::read_to_string(report).unwrap();
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let (mut requests, mut bytes) = (0, 0);
    for job in document["jobs"].as_array().unwrap() {
        for flow in ["read", "write"] {
            requests += job[flow]["total_ios"].as_u64().unwrap();
            bytes += job[flow]["io_bytes"].as_u64().unwrap();
        }
    }
    (trace, requests, bytes)
}

/// Every request of fio is there, whole, with its bios, and its completion ran somewhere.
fn check(ground: &Ground, (engine, door): (&str, Door)) -> Option<Trace> {
    let (trace, requests, bytes) = traced_fio(ground, engine);
    let which = format!("{engine} on {:?}: {:?}", ground.file(), trace.unknown);
    if trace.unknown.iter().any(|unknown| unknown.contains("raw devices")) {
        skip(Capability::Bpf, format!("{:?}", trace.unknown));
        return None;
    }
    assert_eq!(trace.exit_status, 0, "{which}");
    assert_eq!(trace.lost_events, 0, "{which}");
    assert_eq!(u64::try_from(trace.requests.len()).unwrap(), requests, "{which}");
    assert_eq!(trace.requests.iter().map(|request| request.length).sum::<u64>(), bytes, "{which}");
    assert_eq!(trace.bios.iter().map(|bio| bio.bytes).sum::<u64>(), bytes, "{which}");
    assert!(trace.bios.iter().all(|bio| bio.done.is_some() && bio.issued.is_some()), "{which}");
    for request in &trace.requests {
        assert!(request.context.is_some(), "{which}: {request:?}");
        assert_eq!(request.door, door, "{which}: {request:?}");
        assert_eq!(request.result, i64::try_from(request.length).ok(), "{which}: {request:?}");
        assert!(request.times.device_done.is_some(), "{which}: {request:?}");
    }
    let path = ground.file().to_string_lossy().into_owned();
    assert!(trace.files.iter().all(|file| file.path == path), "{:?}", trace.files);
    assert_eq!(own_instances(), [""; 0]);
    Some(trace)
}

const ENGINES: [(&str, Door); 3] =
    [("libaio", Door::Aio), ("io_uring", Door::Uring), ("psync", Door::Syscall)];

#[test]
fn every_request_of_fio_on_ext4_is_found() {
    let Some(_alone) = alone(&["fio", "losetup", "mkfs.ext4"]) else { return };
    let ground = Ground::new(Some(FileSystem::Ext4 { block: 4096, extra: &[] }));
    for (engine, door) in ENGINES {
        let trace = check(&ground, (engine, door)).unwrap();
        let ran = |op, context| {
            let of_op = trace.requests.iter().filter(move |request| request.op == op);
            of_op.filter(|request| request.context == Some(context)).count()
        };
        match door {
            Door::Syscall => {
                assert_eq!(ran(TracedOp::Read, Context::Task), 368);
                assert_eq!(ran(TracedOp::Write, Context::Task), 368);
            }
            _ => assert_eq!(ran(TracedOp::Read, Context::Kworker), 0),
        }
        // From 6.19 on an overwrite completes where its last bio does.
        if door == Door::Aio && trace.kernel_release.starts_with("6.18.") {
            let put_off = ran(TracedOp::Write, Context::Kworker);
            assert!(put_off > 0);
            assert_eq!(put_off + ran(TracedOp::Write, Context::Task), 368);
        }
    }
}

#[test]
fn every_request_of_fio_on_xfs_is_found() {
    let Some(_alone) = alone(&["fio", "losetup", "mkfs.xfs"]) else { return };
    let ground = Ground::new(Some(FileSystem::Xfs { extra: &[] }));
    for (engine, door) in ENGINES {
        check(&ground, (engine, door)).unwrap();
    }
}

#[test]
fn every_request_of_fio_on_a_raw_device_is_found() {
    let Some(_alone) = alone(&["fio", "losetup"]) else { return };
    let ground = Ground::new(None);
    for (engine, door) in ENGINES {
        let Some(trace) = check(&ground, (engine, door)) else { return };
        let times = summary(&trace).latency_ns;
        assert_eq!(times.submit, None, "no event shows the entry");
        assert_eq!(times.total.map(|total| total.count), Some(736));
    }
}

/// A device with two partitions, the first with a mounted ext4, and nodes for both.
struct Partitions {
    dir: tempfile::TempDir,
    device: Loop,
}

impl Partitions {
    fn new() -> Partitions {
        let device = Loop::direct_in(&std::env::temp_dir(), "partitions", 96 << 20).unwrap();
        let dir = tempfile::tempdir().unwrap();
        // A table of the kind that DOS has: first sectors and their numbers.
        let mut table = [0; 512];
        table[510..].copy_from_slice(&[0x55, 0xaa]);
        for (at, start, sectors) in [(446, 2048_u32, 131_072_u32), (462, 133_120, 61_440)] {
            table[at + 4] = 0x83;
            table[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
            table[at + 12..at + 16].copy_from_slice(&sectors.to_le_bytes());
        }
        fs::write(dir.path().join("table"), table).unwrap();
        let (from, to) = (dir.path().join("table"), device.device());
        let words = [format!("if={}", from.display()), format!("of={}", to.display())];
        run("dd", &[&words[0], &words[1], "status=none", "conv=fsync"]).unwrap();
        // A kernel need not know this kind of table.
        run("partx", &["--update", to.to_str().unwrap()]).unwrap();
        let partitions = Partitions { dir, device };
        for number in [1, 2] {
            let name = partitions.device.device().file_name().unwrap().to_str().unwrap();
            let numbers = format!("/sys/block/{name}/{name}p{number}/dev");
            let numbers = fs::read_to_string(numbers).unwrap();
            let (major, minor) = numbers.trim().split_once(':').unwrap();
            let node = partitions.path(&format!("p{number}"));
            run("mknod", &[node.to_str().unwrap(), "b", major, minor]).unwrap();
        }
        let (node, mount) = (partitions.path("p1"), partitions.path("mount"));
        fs::create_dir(&mount).unwrap();
        run("mkfs.ext4", &["-q", node.to_str().unwrap()]).unwrap();
        run("mount", &[node.to_str().unwrap(), mount.to_str().unwrap()]).unwrap();
        partitions
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
}

impl Drop for Partitions {
    fn drop(&mut self) {
        unmount(&self.path("mount")).unwrap_or_else(|message| eprintln!("{message}"));
    }
}

#[test]
fn requests_on_partitions_have_their_bios_and_are_of_the_device_that_was_named() {
    let Some(_alone) = alone(&["losetup", "mkfs.ext4"]) else { return };
    let parts = Partitions::new();
    let (file, raw) = (parts.path("mount/file"), parts.path("p2"));
    let whole = parts.device.device();
    for (device, counts) in
        [(None, [16, 16]), (Some(whole), [16, 16]), (Some(&raw), [0, 16]), (Some(&file), [16, 0])]
    {
        for (to, count) in [&file, &raw].into_iter().zip(counts) {
            let of = format!("of={}", to.display());
            let how = ["bs=64k", "count=16", "oflag=direct", "conv=notrunc", "status=none"];
            let mut options = options(&[&["dd", "if=/dev/zero", &of][..], &how].concat());
            options.devices.extend(device.map(Path::to_owned));
            let trace = record(&options, &mut |_| {}).unwrap();
            assert_eq!(trace.requests.len(), count, "{to:?} with {device:?}");
            for (at, request) in trace.requests.iter().enumerate() {
                assert_eq!(request.offset, u64::try_from(at).unwrap() << 16);
                assert_eq!(request.bios.len(), 1, "{to:?} with {device:?}");
                assert_eq!(trace.files[request.file].path, to.to_str().unwrap());
            }
        }
    }
}

/// A ring first tries without waiting, and the kernel refuses to cut such a bio: it ends with
/// `EAGAIN`, and a worker asks again. That is one request still.
#[test]
fn a_request_that_a_rings_worker_has_to_repeat_counts_once() {
    let Some(_alone) = alone(&["fio", "losetup"]) else { return };
    let ground = Ground::new(None);
    if let Ground::Device(device) = &ground {
        device.set_max_sectors(64);
    }
    for (engine, door) in ENGINES {
        let Some(trace) = check(&ground, (engine, door)) else { return };
        let of_128k = || trace.requests.iter().filter(|request| request.length == 128 << 10);
        let repeated = of_128k().filter(|request| request.is_punted).count();
        assert_eq!(repeated, if door == Door::Uring { of_128k().count() } else { 0 }, "{engine}");
        let is_cut = |bio: &usize| trace.bios[*bio].pieces == 2;
        assert!(of_128k().all(|request| request.bios.iter().all(is_cut)), "{engine}");
    }
}

#[test]
fn a_request_with_misaligned_memory_fails_and_is_reported() {
    let Some(_alone) = alone(&["losetup", "mkfs.ext4"]) else { return };
    let ground = Ground::new(Some(FileSystem::Ext4 { block: 4096, extra: &[] }));
    let file = ground.file();
    let of = format!("if={}", file.display());
    let trace = traced(&["dd", &of, "of=/dev/null", "bs=100", "iflag=direct"], &file);
    let document = summary(&trace);
    assert_eq!((document.requests, document.failed), (1, 1), "{document:?}");
    assert_eq!(document.failures[0].errno, "EINVAL");
    assert_eq!(document.latency_ns.total, None);
    let finding = &document.findings[0];
    assert_eq!(
        (finding.id.as_str(), finding.reason.as_deref()),
        ("failed-requests", Some("EINVAL"))
    );
    assert!(finding.remedy.contains(&format!("dio probe {}", file.display())), "{finding:?}");
}

/// A trace of a command, on the device of a file: others use this machine as well.
fn traced(command: &[&str], file: &Path) -> Trace {
    let mut options = options(command);
    options.devices = vec![file.to_owned()];
    record(&options, &mut |_| ()).unwrap()
}

/// The causes of deferred completions of random writes to a file of 64 MiB.
fn causes_of_writes(file: &Path) -> BTreeSet<String> {
    let filename = format!("--filename={}", file.display());
    let fixed = ["fio", "--output=/dev/null", "--name=job", "--direct=1", "--ioengine=libaio"];
    let job = ["--iodepth=4", "--rw=randwrite", "--bs=4k", "--size=64M", "--number_ios=300"];
    let command = [&fixed[..], &job, &["--fallocate=none", &filename]].concat();
    let findings = summary(&traced(&command, file)).findings.into_iter();
    let deferred = findings.filter(|finding| finding.id == "deferred-completion");
    deferred.filter_map(|finding| finding.reason).collect()
}

#[test]
fn the_cause_of_a_deferred_write_is_the_state_of_its_blocks() {
    let Some(_alone) = alone(&["fio", "losetup", "mkfs.ext4", "mkfs.xfs"]) else { return };
    let kinds = [FileSystem::Ext4 { block: 4096, extra: &[] }, FileSystem::Xfs { extra: &[] }];
    for kind in kinds {
        let ground = Ground::new(Some(kind));
        let [hole, allocated] =
            ["hole", "allocated"].map(|name| ground.file().with_file_name(name));
        fs::File::create(&hole).unwrap().set_len(64 << 20).unwrap();
        run("fallocate", &["-l", "64M", allocated.to_str().unwrap()]).unwrap();
        let is_6_18 = summary(&traced(&["true"], &hole)).kernel_release.starts_with("6.18.");
        let overwrites = if is_6_18 { vec!["kernel"] } else { vec![] };
        for (file, expected) in [
            (ground.file(), overwrites),
            (hole, vec!["allocation"]),
            (allocated, vec!["unwritten-extents"]),
        ] {
            let expected: BTreeSet<String> = expected.into_iter().map(str::to_owned).collect();
            assert_eq!(causes_of_writes(&file), expected, "{kind:?} {file:?}");
        }
    }
}

/// A mounted btrfs on a loop device, with two subvolumes.
struct Btrfs {
    at: tempfile::TempDir,
    _device: Loop,
}

impl Btrfs {
    fn new() -> Btrfs {
        let device = Loop::direct_in(&std::env::temp_dir(), "trace", 256 << 20).unwrap();
        let name = device.device().to_str().unwrap();
        run("mkfs.btrfs", &["-q", "-f", name]).unwrap();
        let at = tempfile::tempdir().unwrap();
        run("mount", &["-t", "btrfs", name, at.path().to_str().unwrap()]).unwrap();
        let btrfs = Btrfs { at, _device: device };
        for name in ["a", "b"] {
            let subvolume = btrfs.at.path().join(name);
            run("btrfs", &["subvolume", "create", subvolume.to_str().unwrap()]).unwrap();
            fs::write(subvolume.join("file"), vec![7; 1 << 20]).unwrap();
        }
        run("sync", &["-f", btrfs.at.path().to_str().unwrap()]).unwrap();
        btrfs
    }

    fn file(&self, subvolume: &str) -> PathBuf {
        self.at.path().join(subvolume).join("file")
    }
}

impl Drop for Btrfs {
    fn drop(&mut self) {
        if let Err(why) = unmount(self.at.path()) {
            eprintln!("{why}");
        }
    }
}

#[test]
fn files_of_btrfs_have_their_names_and_what_goes_through_the_cache_is_not_denied() {
    let Some(_alone) = alone(&["losetup", "mkfs.btrfs", "btrfs"]) else { return };
    let btrfs = Btrfs::new();
    let [a, b] = ["a", "b"].map(|name| btrfs.file(name).to_str().unwrap().to_owned());
    let inode = |path: &str| fs::metadata(path).unwrap().ino();
    assert_eq!(inode(&a), inode(&b), "a number is unique in its subvolume only");
    let script = "for file; do dd if=$file of=/dev/null bs=64k count=4 iflag=direct; done";
    let trace = traced(&["sh", "-c", script, "sh", &a, &b], Path::new(&a));
    let document = summary(&trace);
    let files = document.by_file.iter().map(|file| (file.path.clone(), file.requests));
    let expected = BTreeMap::from([(a.clone(), 4), (b.clone(), 4)]);
    assert_eq!(files.collect::<BTreeMap<String, u64>>(), expected);
    // The first read of each is into memory that is not there yet: btrfs copies it.
    assert_eq!((document.bios + document.buffered, document.reads_at_end), (8, 0), "{document:?}");
    // Misaligned: btrfs serves it through the page cache, and no event shows the request.
    let of = format!("if={b}");
    let trace = traced(
        &["dd", &of, "of=/dev/null", "bs=100", "count=4", "iflag=direct"],
        &btrfs.at.path().join("b"),
    );
    let document = summary(&trace);
    assert_eq!((document.requests, &document.unseen_files), (0, &vec![b.clone()]));
    assert!(document.unknown.iter().any(|one| one.contains(&format!("dio probe {b}"))));
}

#[test]
fn the_commands_exit_status_is_passed_on() {
    let Some(_alone) = alone(&[]) else { return };
    let status = |command: &[&str]| record(&options(command), &mut |_| ()).unwrap().exit_status;
    assert_eq!(status(&["sh", "-c", "exit 7"]), 7);
    assert_eq!(status(&["sh", "-c", "kill -9 $$"]), 128 + 9);
    assert_eq!(own_instances(), [""; 0]);
}

#[test]
fn a_command_that_cannot_run_is_reported_as_a_shell_would() {
    let Some(_alone) = alone(&[]) else { return };
    let failed = |command: &[&str]| record(&options(command), &mut |_| ()).unwrap_err();
    let error = failed(&["/no/such/command"]);
    assert!(matches!(error, TraceError::CommandNotFound(_)), "{error}");
    assert_eq!(error.exit_status(), 127);
    let error = failed(&["/etc/passwd"]);
    assert!(matches!(error, TraceError::CommandNotExecutable(..)), "{error}");
    assert_eq!(error.exit_status(), 126);
    let mut options = options(&["true"]);
    options.devices = vec![PathBuf::from("/no/such/file")];
    let error = record(&options, &mut |_| ()).unwrap_err();
    assert!(error.to_string().contains("/no/such/file"), "{error}");
    assert_eq!(own_instances(), [""; 0]);
}

#[test]
fn a_killed_command_and_a_signal_to_us_leave_no_tracing_on() {
    let Some(_alone) = alone(&[]) else { return };
    let ended_by = |kill: fn(u32) -> u32, signal| {
        let mut on_child = |process: u32| {
            let killed = i32::try_from(kill(process)).unwrap();
            kill_process(Pid::from_raw(killed).unwrap(), signal).unwrap();
        };
        record(&options(&["sleep", "600"]), &mut on_child).unwrap().exit_status
    };
    assert_eq!(ended_by(|child| child, Signal::KILL), 128 + 9);
    // One that we get is passed on.
    assert_eq!(ended_by(|_| std::process::id(), Signal::TERM), 128 + 15);
    assert_eq!(own_instances(), [""; 0]);
}

#[test]
fn a_panic_leaves_no_tracing_on() {
    let Some(_alone) = alone(&[]) else { return };
    let mut on_child = |_| panic!("on purpose");
    let ended = catch_unwind(AssertUnwindSafe(|| record(&options(&["true"]), &mut on_child)));
    assert!(ended.is_err());
    assert_eq!(own_instances(), [""; 0]);
}

#[test]
fn what_a_killed_run_left_is_removed_by_the_next() {
    let Some(_alone) = alone(&[]) else { return };
    let mut gone = Command::new("true").spawn().unwrap();
    gone.wait().unwrap();
    let orphan = Path::new(INSTANCES).join(format!("diopter-{}-1-0", gone.id()));
    fs::create_dir(&orphan).unwrap();
    record(&options(&["true"]), &mut |_| ()).unwrap();
    assert!(!orphan.exists());
}

/// The flushes of a trace of a shell's script, on the device of `file` if it is traced only.
fn flushes_of(script: &str, files: &[&Path], device: Option<&Path>) -> FlushSummary {
    let mut command = vec!["sh", "-c", script, "sh"];
    command.extend(files.iter().map(|file| file.to_str().unwrap()));
    let mut options = options(&command);
    options.devices = device.into_iter().map(Path::to_owned).collect();
    let mut recorded = record_watched(&options, &mut Unwatched).unwrap();
    let running = recorded.running.take().map(|running| running.wait().unwrap());
    assert!(running.is_none(), "it ended before its trace");
    let document = summary_of(&recorded.trace, &recorded.beyond);
    assert_eq!((document.lost_events, document.requests), (0, 0), "{document:#?}");
    assert!(document.flushes_are_known, "{:?}", document.unknown);
    document.flushes
}

struct Unwatched;

impl Watcher for Unwatched {}

/// Each `sync FILE` is one fsync, and with `-d` one fdatasync.
const FLUSHES: &str = "a() { i=0; while [ $i -lt 100 ]; do sync \"$1\"; i=$((i+1)); done; }; \
                       d() { i=0; while [ $i -lt 50 ]; do sync -d \"$1\"; i=$((i+1)); done; }; \
                       (a \"$1\"; d \"$2\") & (a \"$1\"; d \"$2\") & wait; \
                       sync /dev/null 2>/dev/null; true";

#[test]
fn every_flush_is_counted_with_its_file_and_its_time() {
    let Some(_alone) = alone(&["losetup", "mkfs.ext4", "mkfs.xfs"]) else { return };
    let kinds = [FileSystem::Ext4 { block: 4096, extra: &[] }, FileSystem::Xfs { extra: &[] }];
    for kind in kinds {
        let ground = Ground::new(Some(kind));
        let [log, data] = ["log", "data"].map(|name| ground.file().with_file_name(name));
        for file in [&log, &data] {
            fs::write(file, "written with buffered writes").unwrap();
        }
        let flushes = flushes_of(FLUSHES, &[&log, &data], None);
        assert_eq!((flushes.count, flushes.fsync, flushes.fdatasync), (301, 201, 100));
        assert_eq!((flushes.uring, flushes.unfinished, flushes.threads), (0, 0, 301));
        let failures: Vec<_> =
            flushes.failures.iter().map(|one| (one.errno.as_str(), one.requests)).collect();
        assert_eq!((flushes.failed, failures), (1, vec![("EINVAL", 1)]));
        let file = |path: &Path| {
            let path = path.to_str().unwrap();
            flushes.by_file.iter().find(|file| file.path == path).unwrap()
        };
        assert_eq!((file(&log).count, file(&data).count), (200, 100), "{flushes:#?}");
        assert_eq!(flushes.by_file.len(), 3, "and /dev/null: {flushes:#?}");
        let latency = flushes.latency_ns.unwrap();
        let of_files: u64 = flushes.by_file.iter().map(|file| file.time_ns).sum();
        assert_eq!((latency.count, latency.sum), (300, of_files), "{kind:?}");
        // On the device of a file: /dev/null is on another, and so is this directory.
        let elsewhere = std::env::temp_dir();
        let script = "sync \"$1\"; sync \"$2\"; sync /dev/null 2>/dev/null; true";
        let flushes = flushes_of(script, &[&log, &elsewhere], Some(&log));
        assert_eq!((flushes.count, flushes.by_file.len()), (1, 1), "{flushes:#?}");
        assert_eq!(flushes.by_file[0].path, log.to_str().unwrap());
    }
}

#[test]
fn every_flush_of_fio_is_counted_by_system_call_and_by_ring() {
    let Some(_alone) = alone(&["fio", "losetup", "mkfs.ext4"]) else { return };
    let ground = Ground::new(Some(FileSystem::Ext4 { block: 4096, extra: &[] }));
    let file = ground.file();
    for (engine, flush) in [("psync", "fsync"), ("psync", "fdatasync"), ("io_uring", "fsync")] {
        let dir = tempfile::tempdir().unwrap();
        let report = dir.path().join("fio.json");
        let script = format!(
            "fio --output={} --output-format=json --name=job --filename=$1 --ioengine={engine} \
             --rw=randwrite --bs=4k --size=1M --number_ios=200 --norandommap --{flush}=1",
            report.display()
        );
        let flushes = flushes_of(&script, &[&file], Some(&file));
        let text = fs::read_to_string(report).unwrap();
        let document: serde_json::Value = serde_json::from_str(&text).unwrap();
        let job = &document["jobs"][0];
        // One after each write but the last. fio counts no fdatasync.
        let made = job["write"]["total_ios"].as_u64().unwrap() - 1;
        let counted = job["sync"]["total_ios"].as_u64().unwrap();
        assert_eq!((made, counted), (199, if flush == "fsync" { 199 } else { 0 }));
        let of_kind = match (engine, flush) {
            ("io_uring", _) => flushes.uring,
            (_, "fsync") => flushes.fsync,
            _ => flushes.fdatasync,
        };
        assert_eq!((of_kind, flushes.count), (made, made), "{engine}: {flushes:#?}");
        let files = flushes.by_file.iter().map(|file| (file.path.as_str(), file.count));
        let files: Vec<_> = files.collect();
        assert_eq!(files, [(file.to_str().unwrap(), made)], "{engine}");
        assert_eq!((flushes.failed, flushes.unfinished), (0, 0), "{flushes:#?}");
    }
}

#[test]
fn a_program_that_a_thread_executes_is_traced_on() {
    let Some(_alone) = alone(&["losetup", "mkfs.ext4"]) else { return };
    if Command::new("python3").arg("--version").output().is_err() {
        return;
    }
    let ground = Ground::new(Some(FileSystem::Ext4 { block: 4096, extra: &[] }));
    let from = format!("if={}", ground.file().display());
    let script = "import os, sys, threading, time\n\
                  threading.Thread(target=lambda: os.execvp('dd', sys.argv[1:])).start()\n\
                  time.sleep(600)";
    let dd = ["dd", &from, "of=/dev/null", "bs=4k", "count=8", "iflag=direct", "status=none"];
    let trace = traced(&[&["python3", "-c", script], &dd[..]].concat(), &ground.file());
    assert_eq!((trace.requests.len(), trace.requests[0].thread_name.as_str()), (8, "dd"));
}
