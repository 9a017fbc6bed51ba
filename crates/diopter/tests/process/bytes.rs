//! Directories, files and bytes for the tests of a process's life.

use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use diopter::{BackendKind, Engine, EngineOptions, File, IoBuf, Request};
use diopter_os::testing::check_in_own_process;
use tempfile::TempDir;

use crate::env;

/// No wait of these tests is longer when the code is right.
pub const LONG: Duration = Duration::from_secs(30);

/// The backends that work here.
pub fn backends() -> Vec<BackendKind> {
    let mut all = vec![BackendKind::Auto, BackendKind::Aio, BackendKind::Threads];
    all.retain(|backend| env::has(*backend));
    all
}

/// Shared by all tests but the one that changes the whole machine.
static MACHINE: RwLock<()> = RwLock::new(());

fn shared_machine() -> RwLockReadGuard<'static, ()> {
    MACHINE.read().unwrap_or_else(PoisonError::into_inner)
}

/// The machine for one test alone, as far as this test binary goes.
pub fn machine_alone() -> RwLockWriteGuard<'static, ()> {
    MACHINE.write().unwrap_or_else(PoisonError::into_inner)
}

/// Runs the test `name` of `module` in a separate process; see [`check_in_own_process`].
pub fn own_process(module: &str, name: &str, body: impl FnOnce()) {
    let _shared = shared_machine();
    check_in_own_process(module, name, body);
}

/// A directory with the file of a test.
pub struct Dir {
    dir: TempDir,
    _shared: RwLockReadGuard<'static, ()>,
}

impl Dir {
    /// The file, to which [`file_of`] gave its bytes.
    pub fn file(&self) -> PathBuf {
        self.dir.path().join("data")
    }
}

/// A directory that goes with its owner, on a disk rather than in memory.
pub fn dir() -> Dir {
    dir_in(Path::new(env!("CARGO_TARGET_TMPDIR")))
}

/// A directory in `parent`.
pub fn dir_in(parent: &Path) -> Dir {
    let dir = tempfile::tempdir_in(parent).expect("a directory");
    Dir { dir, _shared: shared_machine() }
}

/// The byte that a test's file has at `offset`; runs of them differ wherever they are cut.
pub fn byte_at(offset: u64) -> u8 {
    let mixed = (offset / 7 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed.to_le_bytes()[7] ^ offset.to_le_bytes()[0]
}

/// `length` such bytes from `offset` on.
pub fn bytes(offset: u64, length: usize) -> Vec<u8> {
    (offset..).take(length).map(byte_at).collect()
}

/// A new file of `length` such bytes.
pub fn file_of(dir: &Dir, length: usize) -> File {
    let path = dir.file();
    std::fs::write(&path, bytes(0, length)).expect("space");
    let file = File::options().read(true).write(true).open(path).expect("it is there");
    file.sync_all().expect("a flush");
    file
}

/// The file's bytes as anybody else reads them.
pub fn content(dir: &Dir) -> Vec<u8> {
    std::fs::read(dir.file()).expect("it is there")
}

/// Memory with such bytes.
pub fn memory(offset: u64, length: usize) -> IoBuf {
    let mut buf = IoBuf::new(length).expect("memory");
    buf.copy_from_slice(&bytes(offset, length));
    buf
}

/// An engine of this kind.
pub fn engine(backend: BackendKind) -> Engine {
    Engine::new(EngineOptions { backend, ..EngineOptions::DEFAULT }).expect("a backend")
}

/// Starts a read of `length` bytes at each of `offsets`.
pub fn start_reads(engine: &Engine, file: &File, offsets: &[u64], length: usize) {
    for offset in offsets {
        let buf = IoBuf::new(length).expect("memory");
        engine.start(file, Request::read(*offset, buf)).expect("room");
    }
    engine.tick();
}

/// Takes `count` finished requests of a file that still has its first bytes.
pub fn check_reads(engine: &Engine, count: usize) {
    for _ in 0..count {
        let done = engine.wait(LONG).expect("the engine works").expect("one is in flight");
        let (start, length) = (done.range.start(), done.result.expect("a result").get());
        assert_eq!(length, done.range.length());
        let buf = done.memory.expect("the memory comes back");
        assert_eq!(buf[..], bytes(start, buf.len())[..], "at {start}");
    }
    assert_eq!(engine.in_flight(), 0);
}

/// Every kind of blocking call on `[start, start + 65536)`, whose bytes it changes to those of
/// `seed`: one bio and several, aligned and not, and what it wrote read again.
pub fn check_blocking_calls(file: &File, start: u64, seed: u64) {
    let expected = bytes(seed, 65536);
    file.write_all_at(&memory(seed, 65536), start).expect("an aligned write");
    for (at, length) in [(1, 10), (4095, 2), (5000, 20_000), (511, 60_000)] {
        let (from, to) = (start + u64::try_from(at).expect("small"), at + length);
        file.write_all_at(&expected[at..to], from).expect("an unaligned write");
        let mut read = vec![0; length];
        file.read_exact_at(&mut read, from).expect("an unaligned read");
        assert_eq!(read, expected[at..to], "at {from}");
    }
    file.sync_data().expect("a flush");
    let mut read = IoBuf::new(65536).expect("memory");
    assert_eq!(file.read_at(&mut read, start).expect("an aligned read"), 65536);
    assert_eq!(read[..], expected[..]);
}

/// Many requests of one engine on `[start, start + 16 * 4096)`, aligned and not.
pub fn check_engine(engine: &Engine, file: &File, start: u64, seed: u64) {
    for n in 0..16 {
        let (offset, length) = if n % 2 == 0 { (n * 4096, 4096) } else { (n * 4096 + 1, 4000) };
        let request = Request::write(start + offset, memory(seed + offset, length));
        engine.start(file, request).expect("room");
    }
    engine.start(file, Request::sync_data()).expect("room");
    for _ in 0..17 {
        let done = engine.wait(LONG).expect("the engine works").expect("one is in flight");
        assert!(done.result.is_ok() && done.outcome().is_all_done(), "{done:?}");
    }
    let mut read = [0; 4000];
    for n in 0..16 {
        let offset = n * 4096 + n % 2;
        file.read_exact_at(&mut read, start + offset).expect("a read");
        assert_eq!(read[..], bytes(seed + offset, 4000)[..]);
    }
}
