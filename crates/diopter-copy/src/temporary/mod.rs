//! The temporary that a copy is written to, in the directory of its target: its mark, its lock, and
//! how it becomes the target or is removed. Its content is written elsewhere.
//!
//! A file counts as a temporary only if this user owns it, or root gave it away, and it has a mark
//! that names it. Any other file of that name is left alone, and another name is used.

mod held;
mod name;
mod orphans;
mod unrecorded;

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use diopter::{Errno, File};
use diopter_os::ids::effective_user;
use diopter_os::space;
use rustix::fs::Mode;

use crate::chattr;
use crate::dir::{Entry, FileId, Inode, fd_of, id_of, path_of, unless_proc_is_missing};
use crate::failure::Failure;
use crate::record::{Record, Recorder, SourceIdentity, session_of};
use held::Held;
use name::name_of;

pub use name::{is_usual_name, unused_name};
pub use unrecorded::{Nameless, Unpublished, Unrecorded};

/// Rounds of opening and locking. One is enough unless other copies begin or end at the same
/// moment.
const ATTEMPTS_MAX: u32 = 16;

/// Longest wait for a lock. After a process is killed, the kernel keeps the files of its io_uring
/// open until its requests have completed (a few ms after the process is gone, on Linux 6.18), and
/// with them the lock: a process that gets the lock also knows that no late write of another
/// process follows.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(3);
const LOCK_WAIT_SLICE: Duration = Duration::from_millis(10);

/// Permissions of a temporary until it is complete: no other user may read it before it has the
/// permissions of the copy.
const MODE: u32 = 0o600;

/// A target that is being written. Dropping it removes the file, unless an earlier run made it.
#[derive(Debug)]
pub struct Temporary {
    /// Open for reading and writing, and locked.
    pub file: File,
    /// Every byte before this one is there already, from an earlier run.
    pub start: u64,
    record: Record,
    held: Held,
}

/// The purpose of a temporary.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// The content that it holds a part of.
    pub source: &'a SourceIdentity,
    /// The id of this boot.
    pub boot: &'a str,
    /// True if bytes that an earlier run wrote are used.
    pub is_resumed: bool,
    /// False if a target that exists by the end stays.
    pub replaces: bool,
    /// The user that root gives the copy to; `None` for its own user.
    pub given_to: Option<u32>,
}

/// One attempt to get the temporary.
enum Attempt {
    Taken(Temporary),
    /// Another process moved or made it meanwhile.
    Again,
    /// The usual name cannot be used.
    Elsewhere,
    /// The file system keeps no attributes of users: no temporary has a mark.
    Unmarked,
}

/// The result of waiting for a lock.
enum Locked {
    Ours,
    Busy,
}

impl Temporary {
    /// Makes the temporary of `target`, or uses the one that an earlier run left. One that does not
    /// fit is removed, and a file that is not a temporary of this user is left alone.
    pub fn take(target: &Entry, wanted: &Wanted<'_>) -> Result<Temporary, Failure> {
        chattr::check(target)?;
        let usual = target.sibling(name_of(&target.name));
        for _ in 0..ATTEMPTS_MAX {
            let attempt = match usual.look()? {
                None => make(&usual, wanted)?,
                Some(found) => match record_of(&usual, &found, wanted) {
                    Some(_) if !is_own(found.metadata()) => remove_given_away(&usual, &found)?,
                    Some(record) => take_over(&usual, &found, &record, wanted)?,
                    None => Attempt::Elsewhere,
                },
            };
            match attempt {
                Attempt::Taken(temporary) => return Ok(temporary),
                Attempt::Again => {}
                Attempt::Elsewhere => return make_elsewhere(target, wanted),
                Attempt::Unmarked => {
                    if wanted.is_resumed {
                        // What stays is in the way of nothing.
                        orphans::remove(target).unwrap_or(());
                    }
                    return make_elsewhere(target, wanted);
                }
            }
        }
        Err(is_busy(&usual))
    }

    /// Its path, for messages.
    pub fn path(&self) -> PathBuf {
        self.held.path()
    }

    /// Its name, in the directory of its target.
    pub fn name(&self) -> &OsStr {
        &self.held.name.name
    }

    /// Returns the recorder of its progress.
    pub fn recorder(&self) -> Recorder {
        Recorder::new(self.record.clone(), self.start, self.held.is_marked)
    }

    /// Returns true if a later run would resume it: it has no owner or permissions of its source
    /// yet.
    pub fn is_as_made(&self) -> bool {
        let found = self.file.metadata();
        found.is_ok_and(|now| now.mode() & 0o7777 == MODE && is_own(&now))
    }

    /// Renames it to the target, which it replaces.
    pub fn publish(self, target: &Entry) -> Result<(), Failure> {
        self.held.publish(fd_of(&self.file), target)
    }

    /// Returns true if no later run finds it: its file system keeps no attributes of users, or
    /// something else has its usual name.
    pub fn has_no_mark(&self) -> bool {
        !self.held.is_marked
    }

    /// Returns which inode it is.
    pub fn id(&self) -> FileId {
        self.held.id
    }

    /// Removes it, also if an earlier run made it.
    pub fn discard(self) {
        self.held.discard();
    }

    /// Leaves it for a later run.
    pub fn keep(mut self) {
        self.held.end_guard();
    }

    /// From now on a drop leaves it, for a later run.
    pub fn end_guard(&mut self) {
        self.held.end_guard();
    }
}

/// Returns true if a file belongs to the user of this process.
fn is_own(metadata: &Metadata) -> bool {
    metadata.uid() == effective_user()
}

/// Returns the record of a file, if it is a temporary of this user or was given away by it.
fn record_of(name: &Entry, found: &Inode, wanted: &Wanted<'_>) -> Option<Record> {
    let metadata = found.metadata();
    let is_ours = metadata.is_file()
        && metadata.nlink() == 1
        && (is_own(metadata) || wanted.given_to == Some(metadata.uid()))
        && found.id() != wanted.source.id();
    is_ours.then(|| Record::read(&found.proc_path(), &name.name))?
}

/// Makes a temporary that has its mark and its lock before it has its name, if the file system
/// makes files without names.
fn make(name: &Entry, wanted: &Wanted<'_>) -> Result<Attempt, Failure> {
    if let Ok(fd) = name.dir.create_unnamed() {
        let temporary = Temporary::of_new(&fd, name.clone(), wanted)?.mark();
        if !temporary.held.is_marked {
            return Ok(Attempt::Unmarked);
        }
        lock(fd_of(&temporary.file), name)?;
        match name.link(fd_of(&temporary.file)) {
            Ok(()) => return Ok(Attempt::Taken(temporary)),
            Err(Errno::EEXIST) => return Ok(Attempt::Again),
            // A file system that makes such files, and cannot name them.
            Err(_) => {}
        }
    }
    let fd = match name.create() {
        Ok(fd) => fd,
        Err(Errno::EEXIST) => return Ok(Attempt::Again),
        Err(errno) => return Err(failed_to_create(name, errno)),
    };
    let temporary = Temporary::of_new(&fd, name.clone(), wanted)?.mark();
    if !temporary.held.is_marked {
        return Ok(Attempt::Unmarked);
    }
    match lock(fd_of(&temporary.file), name)? {
        Locked::Ours if temporary.held.is_there() => Ok(Attempt::Taken(temporary)),
        Locked::Ours => Ok(Attempt::Again),
        Locked::Busy => {
            // Another run found it by its name, and has it now.
            temporary.keep();
            Ok(Attempt::Again)
        }
    }
}

/// Makes a temporary that no later run finds: the usual name is taken, or the file system has no
/// attributes.
fn make_elsewhere(target: &Entry, wanted: &Wanted<'_>) -> Result<Temporary, Failure> {
    let name = unused_name(target)?;
    let fd = name.create().map_err(|errno| failed_to_create(&name, errno))?;
    let temporary = Temporary::of_new(&fd, name, wanted)?;
    // It shows that a process is writing it; without locks nothing does.
    lock(fd_of(&temporary.file), &temporary.held.name)?;
    Ok(temporary)
}

impl Temporary {
    /// Takes a file that was just made, without a mark. It is guarded from here on.
    fn of_new(fd: &OwnedFd, name: Entry, wanted: &Wanted<'_>) -> Result<Temporary, Failure> {
        let held = Held::of_new(name, fd.as_fd(), wanted.replaces)?;
        let file = reopen(&path_of(fd.as_fd()));
        let file = file.map_err(|error| failed_to_open(&held.name, &error))?;
        Ok(Temporary::of_held(file, held, wanted))
    }

    fn of_held(file: File, held: Held, wanted: &Wanted<'_>) -> Temporary {
        let session = session_of(wanted.boot, fd_of(&file));
        let record = Record::new(&held.name.name, wanted.source.clone(), session);
        Temporary { file, start: 0, record, held }
    }

    /// Marks it, if the file system has attributes.
    fn mark(mut self) -> Temporary {
        self.held.is_marked = self.record.write(fd_of(&self.file));
        self
    }
}

fn reopen(path: &Path) -> Result<File, diopter::Error> {
    File::options().read(true).write(true).open(path)
}

fn failed_to_open(name: &Entry, error: &diopter::Error) -> Failure {
    unless_proc_is_missing(Failure::of_engine("opening a temporary", &name.path(), error))
}

fn failed_to_create(name: &Entry, errno: Errno) -> Failure {
    Failure::of_errno("creating a temporary", &name.path(), errno)
}

/// Locks a temporary; the lock means that a process is writing it.
fn lock(fd: BorrowedFd<'_>, name: &Entry) -> Result<Locked, Failure> {
    let deadline = Instant::now() + LOCK_WAIT_MAX;
    let mut locked = space::lock_range(fd, true, 0, 0, false);
    while locked == Ok(false) && Instant::now() < deadline {
        // The kernel has no call that waits for a lock for a limited time.
        std::thread::park_timeout(LOCK_WAIT_SLICE);
        locked = space::lock_range(fd, true, 0, 0, false);
    }
    match locked {
        Ok(true) => Ok(Locked::Ours),
        Ok(false) => Ok(Locked::Busy),
        // A file system without locks (some FUSE, NFS without lockd): two copies to one target at
        // the same time are not noticed.
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENOLCK | Errno::EINVAL) => Ok(Locked::Ours),
        Err(errno) => Err(Failure::of_errno("locking", &name.path(), errno)),
    }
}

/// Uses an existing temporary, or removes it.
fn take_over(
    name: &Entry,
    found: &Inode,
    record: &Record,
    wanted: &Wanted<'_>,
) -> Result<Attempt, Failure> {
    let file = match reopen(&found.proc_path()) {
        Ok(file) => file,
        Err(error) if error.errno() == Errno::ENOENT => return Ok(Attempt::Again),
        Err(error)
            if error.errno() == Errno::EACCES && found.metadata().mode() & 0o600 != 0o600 =>
        {
            // It was about to become a target that its owner may not write.
            let changed = rustix::fs::chmod(found.proc_path(), Mode::from_bits_truncate(MODE));
            changed.map_err(|errno| {
                Failure::of_errno("opening a temporary", &name.path(), errno.into())
            })?;
            return Ok(Attempt::Again);
        }
        Err(error) => return Err(failed_to_open(name, &error)),
    };
    let session = session_of(wanted.boot, fd_of(&file));
    let start = record.start_for(wanted.source, &session).filter(|_| wanted.is_resumed);
    let id = file.metadata().map_err(|error| failed_to_open(name, &error));
    let held = Held::of_left(name.clone(), id_of(&id?), wanted.replaces);
    let mut temporary = Temporary::of_held(file, held, wanted);
    temporary.start = start.unwrap_or(0);
    match lock(fd_of(&temporary.file), name)? {
        Locked::Ours if !temporary.held.is_there() => return Ok(Attempt::Again),
        Locked::Ours => {}
        // Any process that can open the target may lock one that was about to become the target.
        Locked::Busy if found.metadata().mode() & 0o077 != 0 => return Ok(Attempt::Elsewhere),
        Locked::Busy => return Err(is_busy(name)),
    }
    // Always true of the temporary of an interrupted run.
    let is_as_left = temporary.file.metadata().is_ok_and(|now| {
        now.mode() & 0o7777 == MODE && now.nlink() == 1 && now.len() == wanted.source.size()
    });
    if start.is_some() && is_as_left {
        return Ok(Attempt::Taken(temporary));
    }
    // A new file has no blocks, attributes or permissions of the old one.
    let removed = name.remove();
    removed.map_err(|errno| Failure::of_errno("removing an old temporary", &name.path(), errno))?;
    Ok(Attempt::Again)
}

/// Removes the temporary of a run that was killed after it had given the file to the source's
/// owner. That user may have written to it since, or made it: it is not resumed, and not waited
/// for.
fn remove_given_away(name: &Entry, found: &Inode) -> Result<Attempt, Failure> {
    let Ok(file) = found.open_at_once() else { return Ok(Attempt::Elsewhere) };
    match space::lock_range(file.as_fd(), true, 0, 0, false) {
        Ok(true) if !name.is(found.id()) => return Ok(Attempt::Again),
        Ok(true) => {}
        // Another run is writing it, or its owner has locked it.
        Ok(false) | Err(_) => return Ok(Attempt::Elsewhere),
    }
    match name.remove() {
        Ok(()) | Err(Errno::ENOENT) => Ok(Attempt::Again),
        Err(_) => Ok(Attempt::Elsewhere),
    }
}

fn is_busy(name: &Entry) -> Failure {
    let cause = "another `dio cp` is writing this target";
    Failure::of_rule("locking", &name.path(), cause, "wait for it to end, or choose another target")
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_testkit::env::{Capability, skip};

    use crate::record::RECORD_NAME;
    use std::os::unix::fs::PermissionsExt;
    use tempfile::TempDir;

    fn identity(path: &Path) -> SourceIdentity {
        let metadata = std::fs::metadata(path).unwrap();
        SourceIdentity::of(&metadata, metadata.len())
    }

    /// A directory with a source of three bytes in it.
    fn directory() -> (TempDir, PathBuf, Entry) {
        let dir = tempfile::tempdir().unwrap();
        let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
        std::fs::write(&source, b"abc").unwrap();
        let target = Entry::of_path(&target).unwrap();
        (dir, source, target)
    }

    fn take(source: &Path, target: &Entry, is_resumed: bool) -> Result<Temporary, Failure> {
        let source = &identity(source);
        let wanted = Wanted { source, boot: "boot", is_resumed, replaces: true, given_to: None };
        Temporary::take(target, &wanted)
    }

    fn usual_path(target: &Entry) -> PathBuf {
        target.path().with_file_name(name_of(&target.name))
    }

    /// Leaves a marked temporary as an interrupted run does: `written` of `size` bytes.
    fn leave(source: &Path, target: &Entry, size: u64, flushed: u64) -> bool {
        let temporary = take(source, target, false).unwrap();
        let mut recorder = temporary.recorder();
        temporary.file.set_len(size).unwrap();
        recorder.note(fd_of(&temporary.file), flushed);
        recorder.note_flushed(fd_of(&temporary.file), flushed);
        let is_marked = temporary.held.is_marked;
        temporary.keep();
        is_marked
    }

    fn skip_xattr() {
        skip(Capability::Xattr, "the temporary directory keeps no user attributes");
    }

    #[test]
    fn a_second_one_for_the_same_target_is_refused_until_the_first_is_gone() {
        let (_dir, source, target) = directory();
        let first = take(&source, &target, false).unwrap();
        if !first.held.is_marked {
            return skip_xattr();
        }
        let refusal = take(&source, &target, false).unwrap_err();
        assert!(refusal.cause.contains("another"), "{refusal}");
        first.discard();
        take(&source, &target, false).unwrap().discard();
        assert!(!usual_path(&target).exists());
    }

    #[test]
    fn a_marked_one_that_was_left_behind_is_replaced_by_a_new_file() {
        let (_dir, source, target) = directory();
        if !leave(&source, &target, 3, 3) {
            return skip_xattr();
        }
        let path = usual_path(&target);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        let temporary = take(&source, &target, true).unwrap();
        assert_eq!((temporary.start, temporary.file.size().unwrap()), (0, 0));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        temporary.publish(&target).unwrap();
        assert!(target.path().exists() && !path.exists());
        let left = rustix::fs::getxattr(target.path(), RECORD_NAME, &mut [0u8; 4096][..]);
        assert_eq!(left, Err(rustix::io::Errno::NODATA));
    }

    #[test]
    fn a_record_that_claims_more_than_the_file_has_is_not_believed() {
        let (_dir, source, target) = directory();
        if !leave(&source, &target, 0, 3) {
            return skip_xattr();
        }
        assert_eq!(take(&source, &target, true).unwrap().start, 0);
        assert!(leave(&source, &target, 3, 3));
        assert_eq!(take(&source, &target, true).unwrap().start, 3);
    }

    #[test]
    fn what_is_not_a_temporary_of_ours_stays_and_another_name_is_taken() {
        let (dir, source, target) = directory();
        let usual = usual_path(&target);
        let fifo = |path: &Path| {
            let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::RUSR);
            rustix::fs::mknodat(rustix::fs::CWD, path, kind, mode, 0).unwrap();
        };
        let makers: [&dyn Fn(&Path); 5] = [
            &|path| std::fs::write(path, b"precious").unwrap(),
            &|path| std::os::unix::fs::symlink(dir.path().join("source"), path).unwrap(),
            &|path| std::fs::create_dir(path).unwrap(),
            &|path| std::fs::hard_link(&source, path).unwrap(),
            &fifo,
        ];
        for make in makers {
            make(&usual);
            let before = usual.symlink_metadata().unwrap();
            let temporary = take(&source, &target, true).unwrap();
            assert_ne!(temporary.path(), usual);
            temporary.publish(&target).unwrap();
            let after = usual.symlink_metadata().unwrap();
            assert_eq!(
                (after.ino(), after.len(), after.mode()),
                (before.ino(), before.len(), before.mode())
            );
            std::fs::remove_file(target.path()).unwrap();
            std::fs::remove_file(&usual).or_else(|_| std::fs::remove_dir(&usual)).unwrap();
        }
        assert_eq!(std::fs::read(&source).unwrap(), b"abc");
    }

    #[test]
    fn a_mark_of_another_name_means_nothing() {
        let (dir, source, target) = directory();
        if !leave(&source, &target, 3, 3) {
            return skip_xattr();
        }
        let other = Entry::of_path(&dir.path().join("other")).unwrap();
        std::fs::rename(usual_path(&target), usual_path(&other)).unwrap();
        let temporary = take(&source, &other, true).unwrap();
        assert_ne!(temporary.path(), usual_path(&other));
        assert_eq!(std::fs::metadata(usual_path(&other)).unwrap().len(), 3);
    }

    #[test]
    fn one_that_another_file_has_replaced_does_not_become_the_target() {
        let (_dir, source, target) = directory();
        let temporary = take(&source, &target, false).unwrap();
        let path = temporary.path();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"not ours").unwrap();
        let refusal = temporary.publish(&target).unwrap_err();
        assert!(refusal.cause.contains("replaced"), "{refusal}");
        assert_eq!(std::fs::read(&path).unwrap(), b"not ours");
        assert!(!target.path().exists());
    }

    #[test]
    fn that_of_a_small_file_has_its_name_before_its_content_and_no_run_resumes_it() {
        let (_dir, source, target) = directory();
        let small = Unrecorded::make(&target, true).unwrap().unwrap();
        assert_eq!(
            small
                .as_fd()
                .try_clone_to_owned()
                .map(std::fs::File::from)
                .unwrap()
                .metadata()
                .unwrap()
                .nlink(),
            1
        );
        assert!(Unrecorded::make(&target, true).unwrap().is_none(), "it has the name");
        if usual_path(&target).exists() {
            let refusal = take(&source, &target, false).unwrap_err();
            assert!(refusal.cause.contains("another"), "it is locked: {refusal}");
            drop(small);
            assert_eq!(take(&source, &target, true).unwrap().start, 0);
        } else {
            skip_xattr();
        }
    }

    #[test]
    fn discarding_leaves_what_another_process_put_there() {
        let (_dir, source, target) = directory();
        let temporary = take(&source, &target, false).unwrap();
        let path = temporary.path();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"not ours").unwrap();
        temporary.discard();
        assert_eq!(std::fs::read(&path).unwrap(), b"not ours");
    }
}
