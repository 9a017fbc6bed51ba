//! The state of direct I/O on a file: what the file system offers, and what a trial on it has
//! shown. The kernel falls back to the page cache without a word, so an open with O_DIRECT and the
//! alignment that statx reports prove nothing. No version of the kernel is looked at.

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;

use diopter_core::engine::target::Access;
use diopter_core::sync::ForkMutex;
use diopter_os::fiemap::fiemap;
use diopter_os::file::{
    self, AlignmentSource, BufferedReason, DirectSupport, FileKind, OpenedFile,
};
use diopter_os::file_system::FileSystem;
use diopter_os::trial::{self, Like, Observed, Passed, Storage};

use crate::mounts;

/// Trials that are remembered. Beyond that, the oldest is forgotten, and made again when it is
/// needed: each is a few system calls and two transfers of a block.
const REMEMBERED_MAX: usize = 64;

/// Extents of a file that are looked at for compressed ones. Of a file with more extents it is not
/// known.
const EXTENTS_MAX: usize = 100_000;

/// How much is known of direct reads, or of direct writes, of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectState {
    /// The kernel takes O_DIRECT and reports an alignment for it. Nothing was tried.
    Offered,
    /// A trial on the same file system, on a file of the same kind, went past the page cache.
    Proved,
    /// They go through the page cache.
    Buffered,
    /// No trial was possible, or none would say anything about this file.
    Unknown,
}

impl DirectState {
    /// Returns its name in JSON.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            DirectState::Offered => "offered",
            DirectState::Proved => "proved",
            DirectState::Buffered => "buffered",
            DirectState::Unknown => "unknown",
        }
    }

    fn of(observed: Option<Passed>) -> DirectState {
        match observed {
            Some(Passed::Direct) => DirectState::Proved,
            Some(Passed::Buffered) => DirectState::Buffered,
            None => DirectState::Unknown,
        }
    }

    /// Returns the state of several objects together: the least that is known of one.
    pub(crate) fn least(self, other: DirectState) -> DirectState {
        let rank = |state| match state {
            DirectState::Buffered => 0,
            DirectState::Unknown => 1,
            DirectState::Offered => 2,
            DirectState::Proved => 3,
        };
        if rank(self) <= rank(other) { self } else { other }
    }
}

impl fmt::Display for DirectState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// How much is known of direct I/O on a file: a file system may buffer reads or writes alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DirectStates {
    /// The state of reads.
    pub reads: DirectState,
    /// The state of writes.
    pub writes: DirectState,
}

impl DirectStates {
    pub(crate) const fn both(state: DirectState) -> DirectStates {
        DirectStates { reads: state, writes: state }
    }

    /// Returns the states that an open shows, without a trial.
    pub(crate) fn offered<F>(opened: &OpenedFile<F>) -> DirectStates {
        DirectStates::both(match opened.direct {
            DirectSupport::None(_) => DirectState::Buffered,
            _ if opened.alignment.source == AlignmentSource::PageSize => DirectState::Unknown,
            _ => DirectState::Offered,
        })
    }

    /// Returns the states of several objects together.
    pub(crate) fn least(self, other: DirectStates) -> DirectStates {
        DirectStates {
            reads: self.reads.least(other.reads),
            writes: self.writes.least(other.writes),
        }
    }

    /// Returns the transfers that are direct where an open has shown `offered`.
    #[must_use]
    pub fn support(self, offered: DirectSupport) -> DirectSupport {
        let is_buffered = |state| state == DirectState::Buffered;
        match (offered, is_buffered(self.reads), is_buffered(self.writes)) {
            (DirectSupport::None(_), ..) | (_, false, false) => offered,
            (_, true, true) => DirectSupport::None(BufferedReason::SeenInTrial),
            (_, false, true) => DirectSupport::ReadsOnly,
            (_, true, false) => DirectSupport::WritesOnly,
        }
    }
}

/// Finds out whether direct I/O on an open file is direct, as far as its use needs it. A strict
/// file must not use what is seen to be buffered. On btrfs it depends on the kind of the file
/// whether writes are buffered, and the route of a write must say so.
pub(crate) fn examine(opened: &OpenedFile, access: Access, truncates: bool) -> DirectStates {
    let writes = access.write || access.append;
    match opened.file_system {
        // What is cut off is not read.
        _ if access.strict && (truncates || !access.read) => tried(opened),
        _ if access.strict => tried_on_content(opened, WriteBack::First),
        FileSystem::Btrfs if writes => tried(opened),
        _ => DirectStates::offered(opened),
    }
}

/// Makes the trial for an open file, or takes the result of an earlier one on the same file system.
pub(crate) fn tried<F: AsFd>(opened: &OpenedFile<F>) -> DirectStates {
    let offered = DirectStates::offered(opened);
    // A device has no kinds of files, and a server's cache is not seen from here.
    let is_tried = opened.kind == FileKind::Regular && opened.file_system.is_local();
    if offered.reads == DirectState::Buffered || !is_tried {
        return offered;
    }
    let fd = opened.fd.as_fd();
    let Ok(storage) = Storage::of(fd) else { return DirectStates::both(DirectState::Unknown) };
    let is_btrfs = opened.file_system == FileSystem::Btrfs;
    let is_without_checksums = is_btrfs && is_mounted_without_checksums(fd);
    let OpenedFile { device, mount, .. } = *opened;
    let key = Key { device, mount, storage, is_without_checksums };
    let unit = opened.cache_unit.max(opened.alignment.offset_write);
    let observed = remembered(key, || {
        let like = Like { device, storage, unit };
        directories(fd).iter().find_map(|dir| trial::run(dir, like))
    });
    let Some(observed) = observed else { return DirectStates::both(DirectState::Unknown) };
    let mut states = DirectStates {
        reads: DirectState::of(observed.read),
        writes: DirectState::of(observed.write),
    };
    // The options of the mount count for files that are made now. An older file keeps its
    // checksums, and no call reports that.
    let may_be_older = is_without_checksums && !storage.has_no_cow();
    if may_be_older && states.writes == DirectState::Proved {
        states.writes = DirectState::Unknown;
    }
    states
}

/// The fate of dirty pages of a file before its extents are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteBack {
    /// They are written back: the file will be read directly, which does that anyway.
    First,
    /// They stay. Nothing is known of data without extents.
    Not,
}

/// As [`tried`], for reads of the content that the file has now: btrfs reads compressed extents,
/// and those inside metadata, through the page cache.
pub(crate) fn tried_on_content<F: AsFd>(
    opened: &OpenedFile<F>,
    write_back: WriteBack,
) -> DirectStates {
    let mut states = tried(opened);
    if opened.file_system == FileSystem::Btrfs {
        states.reads = states.reads.least(state_of_extents(opened, write_back));
    }
    states
}

fn state_of_extents<F: AsFd>(opened: &OpenedFile<F>, write_back: WriteBack) -> DirectState {
    let fd = opened.fd.as_fd();
    let size = file::stat_size(fd, opened.kind).unwrap_or(u64::MAX);
    if size == 0 {
        return DirectState::Proved;
    }
    match fiemap(fd, 0, size, write_back == WriteBack::First, EXTENTS_MAX) {
        Ok(extents) if extents.iter().any(|it| it.is_encoded() || it.is_inline()) => {
            DirectState::Buffered
        }
        Ok(extents)
            if extents.len() < EXTENTS_MAX && !extents.iter().any(|it| it.is_delalloc()) =>
        {
            DirectState::Proved
        }
        _ => DirectState::Unknown,
    }
}

/// The files that one trial is good for: those of one kind on one file system. A number of a device
/// goes to another file system once it is free; that of a mount does not (Linux 6.8).
#[derive(Clone, Copy, PartialEq, Eq)]
struct Key {
    device: u64,
    mount: Option<u64>,
    storage: Storage,
    is_without_checksums: bool,
}

/// Returns what an earlier trial saw, or makes one. One that was not possible is not remembered: it
/// may be in another directory.
fn remembered(key: Key, run: impl FnOnce() -> Option<Observed>) -> Option<Observed> {
    static TRIALS: ForkMutex<VecDeque<(Key, Observed)>> = ForkMutex::new(VecDeque::new());
    let earlier = TRIALS
        .lock()
        .and_then(|trials| trials.iter().find(|(of, _)| *of == key).map(|(_, observed)| *observed));
    if earlier.is_some() {
        return earlier;
    }
    // Not under the lock: a trial waits for a device.
    let observed = run()?;
    if let Some(mut trials) = TRIALS.lock() {
        trials.truncate(REMEMBERED_MAX - 1);
        trials.push_front((key, observed));
    }
    Some(observed)
}

/// Returns directories that may be on the file system of an open file and may be written: its own,
/// the working directory, and that for temporary files. The trial checks where they are.
fn directories(fd: BorrowedFd<'_>) -> Vec<PathBuf> {
    let own = trial::directory_of(fd);
    own.into_iter().chain(std::env::current_dir().ok()).chain([std::env::temp_dir()]).collect()
}

/// Returns true if files that are made now on this mount of btrfs have no checksums.
fn is_mounted_without_checksums(fd: BorrowedFd<'_>) -> bool {
    let mount = mounts::of_descriptor(&mounts::all(), fd);
    mount.is_some_and(|mount| {
        mount.options.iter().any(|option| option == "nodatasum" || option == "nodatacow")
    })
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    const ALL: [DirectState; 4] =
        [DirectState::Buffered, DirectState::Unknown, DirectState::Offered, DirectState::Proved];

    #[test]
    fn of_several_objects_the_least_that_is_known_counts() {
        for (one, first) in ALL.into_iter().enumerate() {
            for (other, second) in ALL.into_iter().enumerate() {
                assert_eq!(first.least(second), ALL[one.min(other)], "{first} {second}");
            }
        }
    }

    #[test]
    fn what_is_not_seen_to_be_buffered_is_used_as_it_is_offered() {
        let none = DirectSupport::None(BufferedReason::StatxSaysNo);
        for reads in ALL {
            for writes in ALL {
                let states = DirectStates { reads, writes };
                assert_eq!(states.support(none), none);
                let is = |state| state == DirectState::Buffered;
                let expected = match (is(reads), is(writes)) {
                    (false, false) => DirectSupport::Full,
                    (false, true) => DirectSupport::ReadsOnly,
                    (true, false) => DirectSupport::WritesOnly,
                    (true, true) => DirectSupport::None(BufferedReason::SeenInTrial),
                };
                assert_eq!(states.support(DirectSupport::Full), expected, "{states:?}");
            }
        }
    }

    #[test]
    fn a_trial_is_remembered_and_the_oldest_of_too_many_forgotten() {
        let file = tempfile::tempfile().unwrap();
        let storage = Storage::of(file.as_fd()).unwrap();
        let key = |device| Key { device, mount: None, storage, is_without_checksums: false };
        let seen = Observed { write: Some(Passed::Direct), read: None };
        // Numbers that no file system of this test has.
        let base = u64::MAX - 200;
        assert_eq!(remembered(key(base), || None), None);
        assert_eq!(remembered(key(base), || Some(seen)), Some(seen));
        assert_eq!(remembered(key(base), || unreachable!("it is remembered")), Some(seen));
        for device in base + 1..=base + to_u64(REMEMBERED_MAX) {
            remembered(key(device), || Some(seen));
        }
        assert_eq!(remembered(key(base), || None), None);
    }

    fn to_u64(number: usize) -> u64 {
        diopter_core::units::to_u64(number)
    }

    #[test]
    fn a_file_in_memory_is_buffered_without_a_trial() {
        let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else { return };
        let opened = file::open(file.path(), &file::OpenOptions::default()).unwrap();
        assert_eq!(tried(&opened), DirectStates::both(DirectState::Buffered));
    }
}
