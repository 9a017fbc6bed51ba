//! The counters of `dio run --report`, in a file that all processes of the program map: what a
//! process counted stays when a signal ends it.
//!
//! The file is one page of 64-bit values. The first is a mark, then come the counters; their names
//! are in the second half. Nothing is written by a call: a limit on the size of files would end the
//! program.

use std::fs::File;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use diopter_os::dir::paths_in;
use diopter_os::ids::effective_user;
use rustix::fs::{FileType, Mode, OFlags};

use crate::real;

/// The counters. The names in the file are those of [`NAMES`], in this order.
#[derive(Clone, Copy, Debug)]
pub enum Counter {
    /// Requests that the kernel had refused with `EINVAL`, and that were served.
    EinvalsAvoided,
    /// Requests that the kernel had refused with `EINVAL`, and that could not be served.
    EinvalsLeft,
    /// Bytes of aligned requests on descriptors with O_DIRECT, passed on.
    Aligned,
    /// Bytes of served requests between the program's memory and the device.
    Direct,
    /// Bytes of served requests through an aligned buffer.
    Bounced,
    /// Bytes of served requests through the page cache.
    Buffered,
    /// Bytes of files whose pages were written back and dropped behind the program's writes.
    WrittenBehind,
    /// Bytes of files whose pages were dropped behind the program's reads.
    ReadBehind,
    /// Bytes of copies that the kernel had refused.
    Copied,
    /// Processes that used io_uring by themselves.
    UsesUring,
    /// Processes that loaded libaio.
    UsesAio,
    /// Processes with a seccomp filter, under which no advice was given.
    Filtered,
}

/// The names of the counters, in the order of [`Counter`].
const NAMES: [&str; 12] = [
    "einvals_avoided",
    "einvals_left",
    "aligned_bytes",
    "direct_bytes",
    "bounced_bytes",
    "buffered_bytes",
    "written_behind_bytes",
    "read_behind_bytes",
    "copied_bytes",
    "processes_with_uring",
    "processes_with_aio",
    "processes_with_seccomp",
];

static COUNTERS: OnceLock<&'static [AtomicU64]> = OnceLock::new();

/// Maps the file, and writes the names into it.
pub fn start(path: &Path) {
    let Some(page) = open(path).and_then(|file| real::map_page(&file)) else { return };
    let (values, names) = page.split_at(page.len() / 2);
    let Some(mark) = values.first().filter(|_| values.len() > NAMES.len()) else { return };
    // Each process writes the names until one has written them all: a signal may end any of them.
    if mark.load(Ordering::Acquire) == 0 {
        let text = NAMES.join("\n") + "\n";
        for (place, piece) in names.iter().zip(text.as_bytes().chunks(size_of::<u64>())) {
            let mut bytes = [0; size_of::<u64>()];
            bytes[..piece.len()].copy_from_slice(piece);
            place.store(u64::from_ne_bytes(bytes), Ordering::Relaxed);
        }
        mark.store(1, Ordering::Release);
    }
    COUNTERS.set(values).unwrap_or(());
}

/// Opens the file as `dio run` made it. A process may outlive `dio run`, whose file is gone then,
/// and another user may have put something else under its name.
fn open(path: &Path) -> Option<File> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let flags = flags | OFlags::NONBLOCK | OFlags::NOCTTY;
    let file = rustix::fs::open(path, flags, Mode::empty()).ok()?;
    let stat = rustix::fs::fstat(&file).ok()?;
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    let is_private = stat.st_mode & 0o077 == 0 && stat.st_uid == effective_user();
    (is_regular && is_private && stat.st_nlink == 1).then(|| File::from(file))
}

/// Returns true if anything is counted.
pub fn is_on() -> bool {
    COUNTERS.get().is_some()
}

/// Adds to a counter.
pub fn add(counter: Counter, value: u64) {
    if let Some(place) = COUNTERS.get().and_then(|all| all.get(1 + counter as usize)) {
        place.fetch_add(value, Ordering::Relaxed);
    }
}

/// Counts what this process used without this library. Called when it exits.
pub fn note_foreign() {
    if !is_on() {
        return;
    }
    let links = paths_in(Path::new("/proc/self/fd"));
    let mut targets = links.filter_map(|link| std::fs::read_link(link).ok());
    if targets.any(|target| target.as_os_str() == "anon_inode:[io_uring]") {
        add(Counter::UsesUring, 1);
    }
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
    if maps.contains("/libaio.so") {
        add(Counter::UsesAio, 1);
    }
}
