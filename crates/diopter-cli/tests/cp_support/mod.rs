//! Shared by the tests of `dio cp`: a directory on a real disk, content by seed, the command, and
//! checks of its files. It has no test.

#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use diopter_os::{residency, space};
#[allow(unused_imports, reason = "each test binary uses a part of it")]
pub use diopter_testkit::env::{Capability, skip};

/// Longest wait for anything that should happen.
pub const PATIENCE: Duration = Duration::from_secs(120);

/// Options that make a copy slow enough to meet it on its way: one small request at a time.
pub const SLOWLY: [&str; 3] = ["--bs=4k", "--iodepth=1", "--reflink=never"];

/// Why tests that need the process to be stopped on its way take this long a file, in bytes.
pub const SLOW_BYTES: u64 = 48 << 20;

const MIB: usize = 1 << 20;

/// A directory below cargo's own, which is on a disk where /tmp may not be.
pub fn dir() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Numbers that look random; xorshift64 (Marsaglia, 2003).
pub struct Numbers(u64);

impl Numbers {
    /// The same numbers for the same seed.
    pub fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

/// The seed of a test with random choices, printed so that it can be had again.
pub fn seed() -> u64 {
    let given = std::env::var("DIOPTER_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| u64::from(std::process::id()));
    print_line(&format!("DIOPTER_SEED={seed}"));
    seed
}

/// Prints a line past the capture of the test harness, where xtask looks for it.
pub fn print_line(line: &str) {
    std::io::stderr().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// Bytes of a seed: no block of it is zeros, and no two blocks are the same.
pub fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut numbers = Numbers::new(seed);
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend(numbers.next().to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Writes a file of `content(seed, length)` piece by piece, and leaves none of it in the page
/// cache.
pub fn make_file(path: &Path, seed: u64, length: u64) {
    let file = File::create(path).unwrap();
    let piece = content(seed, 16 * MIB);
    let mut at = 0;
    while at < length {
        let n = usize::try_from(length - at).unwrap().min(piece.len());
        file.write_all_at(&piece[..n], at).unwrap();
        // Pieces differ, so that one in the wrong place is noticed.
        file.write_all_at(&at.to_le_bytes()[..n.min(8)], at).unwrap();
        at += u64::try_from(n).unwrap();
    }
    leave_cache(&file);
}

/// Writes a file out and drops its pages.
pub fn leave_cache(file: &File) {
    file.sync_all().unwrap();
    space::advise_dont_need(file.as_fd(), 0, 0).unwrap();
}

/// Bytes of a file in the page cache.
pub fn cached_bytes(path: &Path) -> u64 {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let found = residency::residency(file.as_fd(), 0, 0, size).unwrap();
    found.pages_cached * u64::from(found.page_size)
}

/// Returns the ranges of data that the file system reports.
pub fn data_of(path: &Path) -> Vec<Range<u64>> {
    let file = File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < size {
        let Some(start) = space::seek_data(file.as_fd(), at).unwrap() else { break };
        at = space::seek_hole(file.as_fd(), start).unwrap();
        found.push(start..at);
    }
    found
}

/// Checks that two files have the same bytes, piece by piece to save memory.
pub fn assert_same(one: &Path, other: &Path) {
    let (first, second) = (File::open(one).unwrap(), File::open(other).unwrap());
    let size = first.metadata().unwrap().len();
    assert_eq!(second.metadata().unwrap().len(), size, "{}", other.display());
    let (mut a, mut b) = (vec![0; 4 * MIB], vec![0; 4 * MIB]);
    let mut at = 0;
    while at < size {
        let n = usize::try_from(size - at).unwrap().min(a.len());
        first.read_exact_at(&mut a[..n], at).unwrap();
        second.read_exact_at(&mut b[..n], at).unwrap();
        assert!(a[..n] == b[..n], "{} differs within {n} bytes at {at}", other.display());
        at += u64::try_from(n).unwrap();
    }
}

/// The names in a directory, sorted.
pub fn names(dir: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(dir).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Where the temporary of a target is.
pub fn temporary_of(target: &Path) -> PathBuf {
    let name = target.file_name().unwrap().to_str().unwrap();
    target.with_file_name(format!(".{name}.dio-part"))
}

/// `dio cp`, with nothing of the caller's environment that would change it.
pub fn dio() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.arg("cp").env_remove("DIOPTER_BACKEND").env_remove("DIOPTER_LOG");
    command.stdin(Stdio::null());
    command
}

/// Runs `dio cp OPTIONS SOURCE TARGET`.
pub fn cp(options: &[&str], source: &Path, target: &Path) -> Output {
    dio().args(options).arg(source).arg(target).output().unwrap()
}

/// Runs it and wants success.
pub fn cp_well(options: &[&str], source: &Path, target: &Path) -> Output {
    let output = cp(options, source, target);
    assert!(output.status.success(), "{options:?}: {}", message(&output));
    output
}

/// Runs it with `--json`, wants success, and reads the document.
pub fn cp_report(options: &[&str], source: &Path, target: &Path) -> serde_json::Value {
    let output = cp_well(&[options, &["--json"]].concat(), source, target);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Wants exit status 2 and one message with every one of `words`.
pub fn assert_refused(output: &Output, words: &[&str]) {
    let text = message(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
    assert!(text.starts_with("dio cp: "), "{text}");
    assert!(
        [" cannot ", " invalid "].iter().any(|word| text.contains(word)) && text.contains("; "),
        "{text}"
    );
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

/// Returns its standard error.
pub fn message(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// Starts a copy that takes a while.
pub fn start_slowly(options: &[&str], source: &Path, target: &Path) -> Child {
    let mut command = dio();
    command.args(SLOWLY).args(options).arg(source).arg(target);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits until something holds; checks often, and fails after a while.
pub fn wait_for(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Waits until a copy is on its way: its temporary has the size of the source.
pub fn wait_for_start(target: &Path, size: u64) {
    let temporary = temporary_of(target);
    wait_for("the temporary", || {
        std::fs::metadata(&temporary).is_ok_and(|found| found.len() == size)
    });
}

/// Waits until a later run could resume from the temporary.
pub fn wait_for_record(target: &Path) {
    let temporary = temporary_of(target);
    wait_for("the record", || {
        let mut bytes = vec![0; 4096];
        let length = rustix::fs::getxattr(&temporary, "user.diopter.cp", &mut bytes[..]);
        let record = length.ok().map(|length| serde_json::from_slice(&bytes[..length]).unwrap());
        record.is_some_and(|record: serde_json::Value| record["written"].as_u64() > Some(0))
    });
}

/// Sends a signal.
pub fn send(child: &Child, signal: rustix::process::Signal) {
    let id = rustix::process::Pid::from_child(child);
    rustix::process::kill_process(id, signal).unwrap();
}

/// Returns true if this process may do what only the administrator may.
pub fn is_root() -> bool {
    diopter_os::ids::is_root()
}

/// Sets the default access list of a directory, with an entry for user 12345 and these permissions
/// of group, mask and others. Returns false if the file system has no access lists.
pub fn set_default_list(dir: &Path, [group, mask, others]: [u16; 3]) -> bool {
    // linux/posix_acl_xattr.h: version 2, then tag, permissions and id of each entry.
    let none = [0xff; 4];
    let entries = [
        (1u16, 7u16, none),
        (2, 7, 12_345u32.to_le_bytes()),
        (4, group, none),
        (16, mask, none),
        (32, others, none),
    ];
    let mut list = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id);
    }
    let name = "system.posix_acl_default";
    rustix::fs::setxattr(dir, name, &list, rustix::fs::XattrFlags::empty()).is_ok()
}
