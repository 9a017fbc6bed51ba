//! A row of the table: one ground (file system or raw device) under one backend. Sets the ground up
//! once, runs checks on it one after the other, takes it down and has it checked.

use diopter_testkit::env::Capability;
use std::cell::Cell;
use std::fs;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Instant;

use diopter::{BackendKind, Engine, EngineOptions, File, OpenOptions, use_for_this_thread};
use diopter_os::space::advise_dont_need;

use super::env;
use super::machine::{self, FileSystem, Loop, Mount};

const MIB: u64 = 1 << 20;

/// Options of mkfs.xfs for blocks larger than a page of 4 KiB (Linux 6.12 mounts them).
const XFS_16K: &[&str] = &["-b", "size=16384"];

/// The storage below files or blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ground {
    Ext4In1kBlocks,
    Ext4In4kBlocks,
    Xfs,
    XfsIn16kBlocks,
    RawIn512,
    RawIn4096,
    Tmpfs,
}

impl Ground {
    pub fn name(self) -> &'static str {
        match self {
            Ground::Ext4In1kBlocks => "ext4-1k",
            Ground::Ext4In4kBlocks => "ext4-4k",
            Ground::Xfs => "xfs",
            Ground::XfsIn16kBlocks => "xfs-16k",
            Ground::RawIn512 => "raw-512",
            Ground::RawIn4096 => "raw-4096",
            Ground::Tmpfs => "tmpfs",
        }
    }

    fn file_system(self) -> Option<FileSystem> {
        match self {
            Ground::Ext4In1kBlocks => Some(FileSystem::Ext4 { block: 1024, extra: &[] }),
            Ground::Ext4In4kBlocks => Some(FileSystem::Ext4 { block: 4096, extra: &[] }),
            Ground::Xfs => Some(FileSystem::Xfs { extra: &[] }),
            Ground::XfsIn16kBlocks => Some(FileSystem::Xfs { extra: XFS_16K }),
            _ => None,
        }
    }

    /// Returns true if everything it needs is here; prints a skip for what is not.
    fn is_possible(self) -> bool {
        if let Some(why) = machine::loop_missing() {
            env::skip(Capability::Loop, why);
            return false;
        }
        if let Some((capability, why)) = self.file_system().and_then(FileSystem::missing) {
            env::skip(capability, why);
            return false;
        }
        if self == Ground::XfsIn16kBlocks
            && let Err(why) = Mount::new(self.file_system().unwrap(), 512 * MIB, "defaults")
        {
            env::skip(Capability::Xfs16k, why);
            return false;
        }
        true
    }
}

/// One fact, and the function that shows it.
pub type Check = (&'static str, fn(&Row));

/// A ground and a backend.
pub struct Row {
    pub ground: Ground,
    pub backend: BackendKind,
    base: Base,
    files: Cell<u32>,
}

enum Base {
    Mounted(Mount),
    Device(Loop),
}

impl Row {
    /// The options of every engine of the row.
    pub fn options(&self) -> EngineOptions {
        options(self.backend)
    }

    /// Makes this thread's blocking calls run on the row's backend.
    pub fn enter(&self) {
        use_for_this_thread(self.options());
    }

    /// An engine on the row's backend.
    pub fn engine(&self) -> Engine {
        Engine::new(self.options()).unwrap()
    }

    /// A path that no other check uses; on a raw device always the device.
    pub fn path(&self) -> PathBuf {
        match &self.base {
            Base::Device(device) => device.device().to_owned(),
            Base::Mounted(mount) => {
                self.files.set(self.files.get() + 1);
                mount.path().join(format!("file-{}", self.files.get()))
            }
        }
    }

    /// The device below; a tmpfs has none.
    pub fn device(&self) -> &Loop {
        match &self.base {
            Base::Device(device) => device,
            Base::Mounted(mount) => mount.device(),
        }
    }

    pub fn is_raw(&self) -> bool {
        matches!(self.base, Base::Device(_))
    }

    pub fn is_direct(&self) -> bool {
        self.ground != Ground::Tmpfs
    }

    /// Short, for messages.
    pub fn name(&self) -> String {
        format!("{} {}", self.ground.name(), self.backend)
    }
}

/// The backends of every ground.
const BACKENDS: [BackendKind; 3] = [BackendKind::Uring, BackendKind::Aio, BackendKind::Threads];

/// Options of an engine on one backend.
pub fn options(backend: BackendKind) -> EngineOptions {
    EngineOptions { backend, checked: true, ..EngineOptions::DEFAULT }
}

/// Runs a test that has a separate ground under each backend that works here, with this thread's
/// engine on it.
pub fn each_backend(test: impl Fn(BackendKind)) {
    for backend in BACKENDS {
        if env::has(backend) {
            use_for_this_thread(options(backend));
            test(backend);
            use_for_this_thread(EngineOptions::DEFAULT);
        }
    }
}

/// Says what is missing, if anything is.
pub fn has(file_system: Option<FileSystem>) -> bool {
    let missing = machine::loop_missing().map(|why| (Capability::Loop, why));
    match missing.or_else(|| file_system.and_then(FileSystem::missing)) {
        Some((capability, why)) => {
            env::skip(capability, why);
            false
        }
        None => true,
    }
}

/// Options for whatever a subject is: a striped file is opened as such.
pub fn as_it_is() -> OpenOptions {
    File::options().striped(true).clone()
}

/// The row's way to open a file for everything: created when it is a regular one.
pub fn both_ways() -> OpenOptions {
    as_it_is().read(true).write(true).create(true).clone()
}

/// A new file of the row with `content`, written past diopter and not in the page cache.
pub fn file_with(row: &Row, content: &[u8]) -> PathBuf {
    let path = row.path();
    fs::write(&path, content).unwrap();
    uncache(&path);
    path
}

/// Writes back and drops what the page cache has of a file.
pub fn uncache(path: &Path) {
    let file = fs::File::open(path).unwrap();
    file.sync_all().unwrap();
    advise_dont_need(file.as_fd(), 0, 0).unwrap();
}

/// Runs the checks on a ground under each backend that works here.
///
/// `DIOPTER_CHECK` runs only the checks whose name contains it.
pub fn run(ground: Ground, checks: &[Check]) {
    let alone = machine::alone();
    eprintln!("seed {} (DIOPTER_SEED)", env::seed());
    if !ground.is_possible() {
        return;
    }
    let mut failures = Vec::new();
    let mut base = set_up(ground);
    for backend in BACKENDS {
        if !env::has(backend) {
            continue;
        }
        let row = Row { ground, backend, base, files: Cell::new(0) };
        for check in checks {
            failures.extend(run_check(&row, check));
        }
        base = row.base;
        empty(&base);
    }
    if let Base::Mounted(mount) = base {
        failures.extend(mount.finish().err());
    }
    drop(alone);
    assert!(failures.is_empty(), "{}:\n{}", ground.name(), failures.join("\n"));
}

fn set_up(ground: Ground) -> Base {
    match ground {
        // It ends within a page.
        Ground::RawIn512 => {
            Base::Device(Loop::new(ground.name(), 16 * MIB + 3 * 512, 512).unwrap())
        }
        Ground::RawIn4096 => Base::Device(Loop::new(ground.name(), 16 * MIB, 4096).unwrap()),
        Ground::Tmpfs => Base::Mounted(Mount::tmpfs(512 * MIB).unwrap()),
        Ground::Ext4In1kBlocks | Ground::Ext4In4kBlocks | Ground::Xfs | Ground::XfsIn16kBlocks => {
            let kind = ground.file_system().unwrap();
            // In a soak a file of more than 2 GiB is written.
            let is_large = env::is_soak() && ground == Ground::Ext4In4kBlocks;
            let bytes = if is_large { 3 << 30 } else { 512 * MIB };
            Base::Mounted(Mount::new(kind, bytes, "defaults").unwrap())
        }
    }
}

/// Runs one check on a new thread, whose engine ends with it; returns how it failed.
fn run_check(row: &Row, (name, check): &Check) -> Option<String> {
    if std::env::var("DIOPTER_CHECK").is_ok_and(|only| !name.contains(&only)) {
        return None;
    }
    let started = Instant::now();
    let row = AssertUnwindSafe(row);
    let ended = catch_unwind(|| {
        row.enter();
        check(&row);
    });
    use_for_this_thread(EngineOptions::DEFAULT);
    let took = started.elapsed().as_secs_f64();
    let verdict = if ended.is_ok() { "ok" } else { "FAILED" };
    eprintln!("  {}: {name}: {verdict} in {took:.2} s", row.name());
    ended.is_err().then(|| format!("{}: {name}", row.name()))
}

/// Removes what one backend's checks left, for the next.
fn empty(base: &Base) {
    let Base::Mounted(mount) = base else { return };
    for entry in fs::read_dir(mount.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_file() {
            fs::remove_file(path).unwrap();
        }
    }
}
