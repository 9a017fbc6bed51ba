//! The file beside the target that a copy grows in: its name, its lock, and how it becomes the
//! target or goes away. What is written into it is decided elsewhere.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use diopter::sys::space;
use diopter::{Errno, File};

use super::failure::Failure;
use super::record::{Record, SourceIdentity, session_of};

const SUFFIX: &str = ".dio-part";

/// Longest name of a file in bytes: 143 on eCryptfs, the least of the common file systems; most
/// have 255.
const NAME_BYTES_MAX: usize = 143;

/// Hex digits of a hash that keep two long names apart.
const HASH_DIGITS: usize = 16;

/// Rounds of opening and locking. One suffices but when other copies end or begin at the same
/// moment.
const ATTEMPTS_MAX: u32 = 16;

/// How long a lock is waited for. Of a process that was killed, the kernel keeps the files of its
/// io_uring open until what was in flight has ended (a few ms, on Linux 6.18, after the process is
/// gone), and with them the lock: so whoever has the lock also knows that no late write of another
/// process will come.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(3);
const LOCK_WAIT_SLICE: Duration = Duration::from_millis(10);

/// A target that is being written. It stays where it is when dropped.
pub struct Temporary {
    /// Open for reading and writing, and locked.
    pub file: File,
    /// Every byte before this one is there already, from an earlier run.
    pub start: u64,
    path: PathBuf,
}

/// Which temporary may be gone on with.
pub struct Wanted<'a> {
    /// A part of this content.
    pub source: &'a SourceIdentity,
    /// In this boot.
    pub boot: &'a str,
}

/// One try at having the temporary.
enum Attempt {
    Taken(Temporary),
    /// Somebody else moved or made it meanwhile.
    Again,
}

impl Temporary {
    /// Makes the temporary of `target`, or goes on with the one that is `wanted`; any other one
    /// that an earlier run left is removed. `source` is what will be copied, which it may not be
    /// itself.
    pub fn take(
        target: &Path,
        wanted: Option<&Wanted<'_>>,
        source: &Metadata,
    ) -> Result<Temporary, Failure> {
        let path = path_of(target)?;
        for _ in 0..ATTEMPTS_MAX {
            let attempt = match std::fs::symlink_metadata(&path) {
                Ok(found) => take_over(&path, &found, wanted, source)?,
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => make(&path)?,
                Err(error) => return Err(Failure::of_io("looking up", &path, &error)),
            };
            if let Attempt::Taken(temporary) = attempt {
                return Ok(temporary);
            }
        }
        Err(is_busy(&path))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Gives it the name of the target, which it replaces.
    pub fn publish(self, target: &Path) -> Result<(), Failure> {
        let renamed = std::fs::rename(&self.path, target);
        renamed.map_err(|error| {
            let failure = Failure::of_io("renaming the finished copy", target, &error);
            // A copy that cannot have its name is of no use to a later run either.
            self.discard();
            failure
        })
    }

    /// Removes it.
    pub fn discard(self) {
        if is_still(&self.path, &self.file) {
            // There is nobody to tell beside the reason for which it is discarded; the name is
            // fixed, so the next copy to this target finds it.
            std::fs::remove_file(&self.path).unwrap_or(());
        }
    }
}

/// The name of the temporary of `target`: always the same, so that a later run finds it.
pub fn path_of(target: &Path) -> Result<PathBuf, Failure> {
    let name = target.file_name().ok_or_else(|| {
        let cause = "the path has no last part";
        Failure::of_rule("naming a temporary", target, cause, "name the file to be written")
    })?;
    Ok(target.with_file_name(name_of(name)))
}

fn name_of(name: &OsStr) -> OsString {
    let whole = [b".", name.as_bytes(), SUFFIX.as_bytes()].concat();
    if whole.len() <= NAME_BYTES_MAX {
        return OsString::from_vec(whole);
    }
    let hash = blake3::hash(name.as_bytes()).to_hex();
    let kept = NAME_BYTES_MAX - 2 - HASH_DIGITS - SUFFIX.len();
    // Cut between characters where the name is text: some file systems take no other names.
    let kept = match name.to_str() {
        Some(text) => (0..=kept).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0),
        None => kept,
    };
    let (start, hash) = (&name.as_bytes()[..kept], &hash.as_bytes()[..HASH_DIGITS]);
    OsString::from_vec([b".", start, b"~", hash, SUFFIX.as_bytes()].concat())
}

fn make(path: &Path) -> Result<Attempt, Failure> {
    // Nobody else may look into it before it has the permissions of the source.
    let options = File::options().read(true).write(true).create_new(true).no_follow(true);
    match options.mode(0o600).open(path) {
        Ok(file) => lock(path, file, 0),
        Err(error) if error.errno() == Errno::EEXIST => Ok(Attempt::Again),
        Err(error) => Err(Failure::of_engine("creating a temporary", path, &error)),
    }
}

/// Locks an open temporary; the lock says that somebody is writing it.
fn lock(path: &Path, file: File, start: u64) -> Result<Attempt, Failure> {
    let deadline = Instant::now() + LOCK_WAIT_MAX;
    let mut locked = space::lock_range(file.as_fd(), true, 0, 0, false);
    while locked == Ok(false) && Instant::now() < deadline {
        // The kernel has no way to wait for a lock that ends after some time.
        std::thread::park_timeout(LOCK_WAIT_SLICE);
        locked = space::lock_range(file.as_fd(), true, 0, 0, false);
    }
    match locked {
        Ok(true) => {}
        Ok(false) => return Err(is_busy(path)),
        // A file system without locks (some FUSE, NFS without lockd): two copies to one target at
        // the same time are not noticed there.
        Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::ENOLCK | Errno::EINVAL) => {}
        Err(errno) => return Err(Failure::of_errno("locking", path, errno)),
    }
    if !is_still(path, &file) {
        // Another copy published or removed it between our open and our lock.
        return Ok(Attempt::Again);
    }
    Ok(Attempt::Taken(Temporary { file, start, path: path.to_owned() }))
}

/// Goes on with a temporary that is there, or removes it.
fn take_over(
    path: &Path,
    found: &Metadata,
    wanted: Option<&Wanted<'_>>,
    source: &Metadata,
) -> Result<Attempt, Failure> {
    if !found.is_file() {
        let cause = "something that is no file has the name of the temporary";
        return Err(Failure::of_rule("making a temporary", path, cause, "move it away"));
    }
    if (found.dev(), found.ino()) == (source.dev(), source.ino()) {
        let cause = "the source has the name of the target's temporary";
        return Err(Failure::of_rule("making a temporary", path, cause, "rename the source"));
    }
    let options = File::options().read(true).write(true).no_follow(true);
    let file = match options.open(path) {
        Ok(file) => file,
        Err(error) if error.errno() == Errno::ENOENT => return Ok(Attempt::Again),
        Err(error) if error.errno() == Errno::EACCES && found.mode() & 0o600 != 0o600 => {
            // It was about to become a target that its owner may not write.
            let readable = std::fs::Permissions::from_mode(0o600);
            let changed = std::fs::set_permissions(path, readable);
            changed.map_err(|error| Failure::of_io("opening a temporary", path, &error))?;
            return Ok(Attempt::Again);
        }
        Err(error) => return Err(Failure::of_engine("opening a temporary", path, &error)),
    };
    let start = wanted.and_then(|wanted| start_of(&file, wanted));
    match (lock(path, file, start.unwrap_or(0))?, start) {
        (Attempt::Taken(temporary), Some(_)) => Ok(Attempt::Taken(temporary)),
        (Attempt::Taken(temporary), None) => {
            // A new file has no blocks, attributes or permissions of the old one.
            let removed = std::fs::remove_file(temporary.path());
            removed.map_err(|error| Failure::of_io("removing an old temporary", path, &error))?;
            Ok(Attempt::Again)
        }
        (Attempt::Again, _) => Ok(Attempt::Again),
    }
}

/// Where the copy goes on, if the temporary is ours and the right one.
fn start_of(file: &File, wanted: &Wanted<'_>) -> Option<u64> {
    let metadata = file.metadata().ok()?;
    // In a folder that others may write to, somebody could have laid it out for us.
    let is_ours = metadata.uid() == rustix::process::geteuid().as_raw();
    if !is_ours || metadata.nlink() != 1 {
        return None;
    }
    let session = session_of(wanted.boot, file.as_fd());
    Record::read(file.as_fd())?.start_for(wanted.source, &session)
}

/// Whether the path leads to this open file.
fn is_still(path: &Path, file: &File) -> bool {
    match (std::fs::symlink_metadata(path), file.metadata()) {
        (Ok(there), Ok(ours)) => (there.dev(), there.ino()) == (ours.dev(), ours.ino()),
        _ => false,
    }
}

fn is_busy(path: &Path) -> Failure {
    let cause = "another `dio cp` is writing this target";
    Failure::of_rule("locking", path, cause, "wait for it to end, or choose another target")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn metadata(path: &Path) -> Metadata {
        std::fs::metadata(path).unwrap()
    }

    /// A folder with a source in it.
    fn folder() -> (tempfile::TempDir, PathBuf, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let (source, target) = (folder.path().join("source"), folder.path().join("target"));
        std::fs::write(&source, b"abc").unwrap();
        (folder, source, target)
    }

    #[test]
    fn a_name_is_hidden_and_tells_its_target() {
        assert_eq!(name_of(OsStr::new("data.bin")), ".data.bin.dio-part");
    }

    #[test]
    fn a_long_name_is_cut_and_stays_apart_from_its_neighbours() {
        for letter in ["a", "\u{20ac}"] {
            let long = letter.repeat(255 / letter.len());
            let (one, other) =
                (name_of(OsStr::new(&(long.clone() + "1"))), name_of(OsStr::new(&long)));
            assert!(one.len() <= NAME_BYTES_MAX && other.len() <= NAME_BYTES_MAX);
            assert!(one.to_str().is_some());
            assert_ne!(one, other);
        }
        let bytes = OsString::from_vec(vec![0xff; 255]);
        assert!(name_of(&bytes).len() <= NAME_BYTES_MAX);
    }

    #[test]
    fn a_second_one_for_the_same_target_is_refused_until_the_first_is_gone() {
        let (_folder, source, target) = folder();
        let first = Temporary::take(&target, None, &metadata(&source)).unwrap();
        let refusal = Temporary::take(&target, None, &metadata(&source)).map(drop).unwrap_err();
        assert!(refusal.cause.contains("another"), "{refusal}");
        first.discard();
        Temporary::take(&target, None, &metadata(&source)).unwrap().discard();
        assert!(!path_of(&target).unwrap().exists());
    }

    #[test]
    fn one_that_was_left_behind_is_replaced_by_a_new_file() {
        let (_folder, source, target) = folder();
        let path = path_of(&target).unwrap();
        std::fs::write(&path, b"old").unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o444)).unwrap();
        let temporary = Temporary::take(&target, None, &metadata(&source)).unwrap();
        assert_eq!(temporary.file.size().unwrap(), 0);
        assert_eq!(metadata(&path).mode() & 0o777, 0o600);
        temporary.publish(&target).unwrap();
        assert!(target.exists() && !path.exists());
    }

    #[test]
    fn the_source_itself_and_what_is_no_file_are_never_taken_for_a_temporary() {
        let (folder, _, target) = folder();
        let source = folder.path().join(".target.dio-part");
        std::fs::write(&source, b"precious").unwrap();
        let refusal = Temporary::take(&target, None, &metadata(&source)).map(drop).unwrap_err();
        assert!(refusal.cause.contains("source"), "{refusal}");
        assert_eq!(std::fs::read(&source).unwrap(), b"precious");
        let other = folder.path().join(".b.dio-part");
        std::os::unix::fs::symlink(&source, &other).unwrap();
        let target = folder.path().join("b");
        assert!(Temporary::take(&target, None, &metadata(&source)).is_err());
        assert_eq!(std::fs::read(&source).unwrap(), b"precious");
    }

    #[test]
    fn discarding_leaves_what_somebody_else_put_there() {
        let (_folder, source, target) = folder();
        let temporary = Temporary::take(&target, None, &metadata(&source)).unwrap();
        let path = temporary.path().to_owned();
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, b"not ours").unwrap();
        temporary.discard();
        assert_eq!(std::fs::read(&path).unwrap(), b"not ours");
    }
}
