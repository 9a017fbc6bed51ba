//! Loop devices, file systems and mounts with owners: they go away when the owner does, also in a
//! panic, and those of a killed run go away at the next run. Spawns processes, so the caller has
//! no I/O in flight.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use diopter::{File, IoBuf, Request};
use diopter_skip::Capability;

/// The begin of the name of every directory of a test in the temporary directory; the process's id
/// follows.
pub const PREFIX: &str = "diopter-kernel-";

/// How long an unmount is tried: a ring's last reference to a file goes shortly after the ring.
const UNMOUNT_WAIT_MAX: Duration = Duration::from_secs(20);

/// Attempts to find a free loop device while others look for one too.
const ATTACH_ATTEMPTS_MAX: u32 = 20;

/// With these set, mkfs.xfs makes volumes of less than 300 MiB, with small logs: it takes itself to
/// be under test (validate_supported in xfsprogs' mkfs/xfs_mkfs.c).
pub const XFS_SMALL: [&str; 3] = ["TEST_DEV=1", "TEST_DIR=1", "QA_CHECK_FS=1"];

/// The machine for one test alone: no test spawns a process while another has I/O in flight, and
/// none is disturbed by another's load. The first one cleans up after killed runs.
pub fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    static ONCE: Once = Once::new();
    let guard = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    ONCE.call_once(remove_stale);
    guard
}

/// Runs a program to its end; its output, or everything there is to say of its failure.
pub fn run(program: &str, arguments: &[&str]) -> Result<String, String> {
    let reported = Command::new(program).args(arguments).output();
    let reported = reported.map_err(|error| format!("{program}: {error}"))?;
    if reported.status.success() {
        return Ok(String::from_utf8_lossy(&reported.stdout).into_owned());
    }
    let (out, err) =
        (String::from_utf8_lossy(&reported.stdout), String::from_utf8_lossy(&reported.stderr));
    Err(format!("{program} {}: {}\n{out}{err}", arguments.join(" "), reported.status))
}

/// A directory in the temporary directory, removed with its owner.
pub struct Dir(PathBuf);

impl Dir {
    pub fn new(name: &str) -> Result<Dir, String> {
        Dir::new_in(&temporary(), name)
    }

    /// In another directory, where no later run looks for what a killed one left.
    pub fn new_in(parent: &Path, name: &str) -> Result<Dir, String> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let dir = format!("{PREFIX}{}-{number}-{name}", std::process::id());
        let path = parent.join(dir);
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Dir(path))
    }

    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Dir {
    fn drop(&mut self) {
        // A drop cannot report it; the next run tries again.
        fs::remove_dir_all(&self.0).unwrap_or(());
    }
}

/// A loop device over a sparse file.
pub struct Loop {
    device: PathBuf,
    backing: PathBuf,
    /// Removed after the device is detached.
    _dir: Option<Dir>,
}

impl Loop {
    /// Over a new sparse file of `bytes`, with sectors of `sector` bytes.
    pub fn new(name: &str, bytes: u64, sector: u32) -> Result<Loop, String> {
        let dir = Dir::new(name)?;
        let backing = dir.path().join("backing");
        let mut attached = Loop::over(&backing, bytes, sector)?;
        attached._dir = Some(dir);
        Ok(attached)
    }

    /// As [`Loop::new`], in sectors of 512 bytes, over a file in `parent`.
    pub fn new_in(parent: &Path, name: &str, bytes: u64) -> Result<Loop, String> {
        let dir = Dir::new_in(parent, name)?;
        let mut attached = Loop::over(&dir.path().join("backing"), bytes, 512)?;
        attached._dir = Some(dir);
        Ok(attached)
    }

    /// As [`Loop::new_in`], without the page cache of the file below.
    pub fn direct_in(parent: &Path, name: &str, bytes: u64) -> Result<Loop, String> {
        let dir = Dir::new_in(parent, name)?;
        let how = ["--direct-io=on", "--partscan"];
        let mut attached = Loop::attach(&dir.path().join("backing"), bytes, &how)?;
        attached._dir = Some(dir);
        Ok(attached)
    }

    /// As [`Loop::new`], in sectors of 512 bytes, and refusing writes.
    pub fn read_only(name: &str, bytes: u64) -> Result<Loop, String> {
        let dir = Dir::new(name)?;
        let backing = dir.path().join("backing");
        let mut attached = Loop::attach(&backing, bytes, &["--read-only"])?;
        attached._dir = Some(dir);
        Ok(attached)
    }

    /// Over a new sparse file `backing` of `bytes`.
    pub fn over(backing: &Path, bytes: u64, sector: u32) -> Result<Loop, String> {
        Loop::attach(backing, bytes, &["--sector-size", &sector.to_string()])
    }

    /// Over a file that is there, in sectors of `sector` bytes.
    pub fn over_image(backing: &Path, sector: u32) -> Result<Loop, String> {
        Loop::attach_to(backing, &["--sector-size", &sector.to_string()])
    }

    fn attach(backing: &Path, bytes: u64, how: &[&str]) -> Result<Loop, String> {
        let file = fs::File::create(backing).map_err(|error| error.to_string())?;
        file.set_len(bytes).map_err(|error| error.to_string())?;
        drop(file);
        Loop::attach_to(backing, how)
    }

    fn attach_to(backing: &Path, how: &[&str]) -> Result<Loop, String> {
        let arguments = [&["--find", "--show"], how, &[text(backing)]].concat();
        let mut attached = run("losetup", &arguments);
        for _ in 1..ATTACH_ATTEMPTS_MAX {
            if attached.is_ok() {
                break;
            }
            attached = run("losetup", &arguments);
        }
        let device = PathBuf::from(attached?.trim());
        Ok(Loop { device, backing: backing.to_owned(), _dir: None })
    }

    pub fn device(&self) -> &Path {
        &self.device
    }

    pub fn backing(&self) -> &Path {
        &self.backing
    }

    /// Sets the most that the device takes as one request.
    pub fn set_max_sectors(&self, kib: u64) {
        let name = self.device.file_name().unwrap().to_str().unwrap();
        fs::write(format!("/sys/block/{name}/queue/max_sectors_kb"), kib.to_string()).unwrap();
    }

    /// Flushes that the device has completed: field 16 of /sys/block/*/stat
    /// (Documentation/block/stat.rst).
    pub fn flushes(&self) -> u64 {
        let name = self.device.file_name().unwrap().to_str().unwrap();
        let stat = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
        stat.split_whitespace().nth(15).map_or(0, |field| field.parse().unwrap())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(message) = run("losetup", &["--detach", text(&self.device)]) {
            eprintln!("{message}");
        }
    }
}

/// A file system to make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystem {
    Ext2,
    Ext4 { block: u32, extra: &'static [&'static str] },
    Xfs { extra: &'static [&'static str] },
    Btrfs,
}

impl FileSystem {
    fn name(self) -> &'static str {
        match self {
            FileSystem::Ext2 => "ext2",
            FileSystem::Ext4 { .. } => "ext4",
            FileSystem::Xfs { .. } => "xfs",
            FileSystem::Btrfs => "btrfs",
        }
    }

    fn capability(self) -> Capability {
        match self {
            FileSystem::Ext2 | FileSystem::Ext4 { .. } => Capability::Ext4,
            FileSystem::Xfs { .. } => Capability::Xfs,
            FileSystem::Btrfs => Capability::Btrfs,
        }
    }

    fn make(self, device: &Path) -> Result<(), String> {
        let device = text(device);
        let made = match self {
            FileSystem::Ext2 => run("mkfs.ext2", &["-q", "-F", "-m", "0", device]),
            FileSystem::Ext4 { block, extra } => {
                let block = block.to_string();
                let lazy = "lazy_itable_init=0,lazy_journal_init=0";
                let mut arguments = vec!["-q", "-F", "-b", &block, "-E", lazy];
                arguments.extend(extra);
                arguments.push(device);
                run("mkfs.ext4", &arguments)
            }
            FileSystem::Xfs { extra } => {
                let made = [&XFS_SMALL, &["mkfs.xfs", "-q", "-f"], extra, &[device]];
                run("env", &made.concat())
            }
            FileSystem::Btrfs => run("mkfs.btrfs", &["-q", "-f", device]),
        };
        made.map(|_| ())
    }

    /// Why the tools or the kernel can't do it, by capability.
    pub fn missing(self) -> Option<(Capability, String)> {
        let (capability, name) = (self.capability(), self.name());
        let kernel = fs::read_to_string("/proc/filesystems").unwrap_or_default();
        if !kernel.lines().any(|line| line.trim() == name) {
            let loaded = run("modprobe", &[name]);
            if let Err(why) = loaded {
                return Some((capability, format!("this kernel has no {name}: {why}")));
            }
        }
        let help = run(&format!("mkfs.{name}"), &["-V"]);
        help.err().map(|why| (capability, format!("mkfs.{name} does not run: {why}")))
    }
}

/// A mounted file system on a private loop device, or a tmpfs.
pub struct Mount {
    at: PathBuf,
    kind: Option<FileSystem>,
    is_mounted: bool,
    // Dropped in this order: the mount is gone by then.
    device: Option<Loop>,
    _dir: Dir,
}

impl Mount {
    /// Makes a file system of `bytes` and mounts it.
    pub fn new(kind: FileSystem, bytes: u64, options: &str) -> Result<Mount, String> {
        Mount::on(Loop::new(kind.name(), bytes, 512)?, kind, options)
    }

    /// Makes a file system on `device` and mounts it.
    pub fn on(device: Loop, kind: FileSystem, options: &str) -> Result<Mount, String> {
        kind.make(device.device())?;
        Mount::again(device, kind, options)
    }

    /// Mounts the file system that is on `device`.
    pub fn again(device: Loop, kind: FileSystem, options: &str) -> Result<Mount, String> {
        let dir = Dir::new("mount")?;
        let at = dir.path().join("mnt");
        fs::create_dir(&at).map_err(|error| error.to_string())?;
        let name = text(device.device());
        run("mount", &["-t", kind.name(), "-o", options, name, text(&at)])?;
        Ok(Mount { at, kind: Some(kind), is_mounted: true, device: Some(device), _dir: dir })
    }

    /// Mounts a tmpfs of `bytes`.
    pub fn tmpfs(bytes: u64) -> Result<Mount, String> {
        let dir = Dir::new("tmpfs")?;
        let at = dir.path().join("mnt");
        fs::create_dir(&at).map_err(|error| error.to_string())?;
        let size = format!("size={bytes}");
        run("mount", &["-t", "tmpfs", "-o", &size, "diopter", text(&at)])?;
        Ok(Mount { at, kind: None, is_mounted: true, device: None, _dir: dir })
    }

    pub fn path(&self) -> &Path {
        &self.at
    }

    pub fn device(&self) -> &Loop {
        self.device.as_ref().expect("a tmpfs has no device")
    }

    /// Unmounts and checks the file system.
    pub fn finish(mut self) -> Result<(), String> {
        self.unmount()?;
        let Some(device) = &self.device else { return Ok(()) };
        let checked = match self.kind {
            Some(FileSystem::Ext2 | FileSystem::Ext4 { .. }) => {
                run("e2fsck", &["-fn", text(device.device())])
            }
            Some(FileSystem::Xfs { .. }) => run("xfs_repair", &["-n", text(device.device())]),
            Some(FileSystem::Btrfs) => {
                run("btrfs", &["check", "--readonly", text(device.device())])
            }
            None => Ok(String::new()),
        };
        checked.map(|_| ())
    }

    /// Unmounts, and keeps the device.
    pub fn unmounted(mut self) -> Result<Loop, String> {
        self.unmount()?;
        Ok(self.device.take().expect("a tmpfs has no device"))
    }

    fn unmount(&mut self) -> Result<(), String> {
        unmount(&self.at)?;
        self.is_mounted = false;
        Ok(())
    }
}

/// Unmounts what nothing uses any more, or soon does not.
pub fn unmount(at: &Path) -> Result<(), String> {
    let started = Instant::now();
    loop {
        match run("umount", &[text(at)]) {
            Ok(_) => return Ok(()),
            Err(message) if started.elapsed() > UNMOUNT_WAIT_MAX => {
                return Err(format!("{message}{}", users(at)));
            }
            Err(_) => enter_ring(),
        }
    }
}

/// Runs a request on this thread's engine, which enters its ring if it has one. A request that a
/// kernel worker ran may keep its file until then: docs/notes/2026-11-22-io-wq-late-release.md.
/// Without effect when it fails: the unmount tries again, and reports that.
fn enter_ring() {
    let Ok(file) = File::open("/proc/self/exe") else { return };
    let Ok(memory) = IoBuf::new(512) else { return };
    if let Ok(request) = file.request(Request::read(0, memory)) {
        drop(request.wait());
    }
}

/// Descriptors of processes below `at`, a line each. Files that only a ring has are not seen, nor
/// working directories and maps.
fn users(at: &Path) -> String {
    let list = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten();
    let is_process = |name: &str| name.bytes().all(|byte| byte.is_ascii_digit());
    let processes =
        list("/proc".into()).filter(|entry| entry.file_name().to_str().is_some_and(is_process));
    let open = processes.flat_map(|process| list(process.path().join("fd")));
    let line = |entry: fs::DirEntry| {
        let target = fs::read_link(entry.path()).ok().filter(|target| target.starts_with(at))?;
        Some(format!("{} -> {}\n", entry.path().display(), target.display()))
    };
    format!("descriptors below it:\n{}", open.filter_map(line).collect::<String>())
}

impl Drop for Mount {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(message) = self.unmount()
        {
            eprintln!("{message}");
            run("umount", &["--lazy", text(&self.at)]).map_or_else(|why| eprintln!("{why}"), drop);
        }
    }
}

/// Why loop devices can't be had here.
pub fn loop_missing() -> Option<String> {
    let probe = Loop::new("probe", 1 << 20, 512).map(drop);
    probe.err()
}

/// Unmounts, detaches and removes what processes left that are gone.
fn remove_stale() {
    let ours = temporary();
    let is_stale = |path: &str| {
        let name = Path::new(path).strip_prefix(&ours).ok()?.to_str()?.strip_prefix(PREFIX)?;
        let pid = name.split('-').next()?;
        Some(!Path::new("/proc").join(pid).exists())
    };
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    for at in mounts.lines().rev().filter_map(|line| line.split(' ').nth(1)) {
        if is_stale(at) == Some(true) {
            run("umount", &["--lazy", at]).map_or_else(|why| eprintln!("{why}"), drop);
        }
    }
    let loops = run("losetup", &["--list", "--noheadings", "--output", "NAME,BACK-FILE"]);
    for line in loops.unwrap_or_default().lines() {
        let mut fields = line.split_whitespace();
        if let (Some(device), Some(backing)) = (fields.next(), fields.next())
            && is_stale(backing) == Some(true)
        {
            run("losetup", &["--detach", device]).map_or_else(|why| eprintln!("{why}"), drop);
        }
    }
    for entry in fs::read_dir(&ours).into_iter().flatten().flatten() {
        if entry.path().to_str().and_then(is_stale) == Some(true) {
            fs::remove_dir_all(entry.path()).unwrap_or(());
        }
    }
}

/// The temporary directory by the name that the kernel uses.
fn temporary() -> PathBuf {
    let dir = std::env::temp_dir();
    dir.canonicalize().unwrap_or(dir)
}

fn text(path: &Path) -> &str {
    path.to_str().expect("the temporary directory has a name in UTF-8")
}
