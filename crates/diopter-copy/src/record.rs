//! How far a temporary is, in an extended attribute of the temporary, so that a later run can
//! resume. The attribute is also the mark of a temporary: a file without it belongs to another
//! program. What is copied is decided elsewhere.

use std::cmp::Ordering;
use std::ffi::OsStr;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use diopter::Errno;
use rustix::fs::{AtFlags, Mode, StatxFlags, XattrFlags};
use serde::{Deserialize, Serialize};

use crate::dir::FileId;

/// The attribute of a temporary. A finished copy has it only after a crash at that moment, and then
/// it names another file.
pub const RECORD_NAME: &str = "user.diopter.cp";

/// Version of the fields. A record of an earlier one marks a temporary that is not resumed, and one
/// of a later version is ignored.
const VERSION: u32 = 3;

/// A record is written again after so many bytes: `kill -9` costs at most this much.
const BYTES_BETWEEN: u64 = 64 << 20;

/// A record is written again after this long, for slow devices.
const TIME_BETWEEN: Duration = Duration::from_millis(500);

/// Longest record that is read; one has about 300 bytes.
const RECORD_BYTES_MAX: usize = 4096;

/// Identifies the content that a temporary is a part of. A file that was changed has another
/// identity, also if its time of modification was put back: nothing but the clock sets the time of
/// status change (ctime). That one changes with permissions, names and attributes too, so a copy
/// that starts over may have the same content, and [`SourceIdentity::is_content_of`] ignores it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceIdentity {
    device: u64,
    inode: u64,
    size: u64,
    modified_s: i64,
    modified_ns: i64,
    status_changed_s: i64,
    status_changed_ns: i64,
}

/// A record of any version.
#[derive(Deserialize)]
struct AnyRecord {
    version: u32,
    name: String,
}

/// The value of the attribute of a temporary that is never resumed, with a hash of the temporary's
/// name. It is short: ext4 keeps it in the inode, where a record needs a block.
const MARK: &str = "small ";

/// Hexadecimal digits of the hash in such a value.
const MARK_DIGITS: usize = 16;

/// The value of the attribute, as JSON.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    version: u32,
    /// BLAKE3 of the name of the temporary. A file with another name is not a temporary, whatever
    /// its record.
    name: String,
    source: SourceIdentity,
    /// Session in which `written` holds: after a crash of the machine, or when the disk was removed
    /// and put back, only flushed bytes are there.
    session: String,
    /// Every byte before this one is written.
    written: u64,
    /// Every byte before this one is on the device.
    flushed: u64,
}

/// Writes the record of one temporary, seldom enough to be free.
pub struct Recorder {
    record: Record,
    noted: u64,
    noted_at: Instant,
    /// False if the file system has no attributes; then there is no resume.
    works: bool,
}

impl SourceIdentity {
    /// Identifies an open source. `size` is that of the content, which the metadata of a device
    /// lacks.
    pub fn of(metadata: &std::fs::Metadata, size: u64) -> SourceIdentity {
        SourceIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            size,
            modified_s: metadata.mtime(),
            modified_ns: metadata.mtime_nsec(),
            status_changed_s: metadata.ctime(),
            status_changed_ns: metadata.ctime_nsec(),
        }
    }

    /// Identifies no source: no file has the inode number 0.
    pub fn of_none() -> SourceIdentity {
        SourceIdentity {
            device: 0,
            inode: 0,
            size: 0,
            modified_s: 0,
            modified_ns: 0,
            status_changed_s: 0,
            status_changed_ns: 0,
        }
    }

    /// Identifies a part of the content, which has fewer bytes than all of it.
    pub fn of_part(&self, bytes: u64) -> SourceIdentity {
        SourceIdentity { size: bytes, ..self.clone() }
    }

    /// Returns the bytes of the content.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns device and inode number.
    pub fn id(&self) -> FileId {
        (self.device, self.inode)
    }

    /// Returns the same identity, with these times of modification and of status change where they
    /// are later. Both are seconds and nanoseconds.
    pub fn changed_at(self, modified: (i64, i64), status: (i64, i64)) -> SourceIdentity {
        let (modified_s, modified_ns) = (self.modified_s, self.modified_ns).max(modified);
        let (status_changed_s, status_changed_ns) =
            (self.status_changed_s, self.status_changed_ns).max(status);
        SourceIdentity { modified_s, modified_ns, status_changed_s, status_changed_ns, ..self }
    }

    /// Returns true if this is the same file with the same size and time of modification: a change
    /// of its permissions or names in the course of a copy is none of its content.
    pub fn is_content_of(&self, earlier: &SourceIdentity) -> bool {
        let SourceIdentity { status_changed_s, status_changed_ns, .. } = *earlier;
        let now = SourceIdentity { status_changed_s, status_changed_ns, ..self.clone() };
        now == *earlier
    }
}

impl Record {
    /// Returns the record of a copy that begins.
    pub fn new(name: &OsStr, source: SourceIdentity, session: String) -> Record {
        let name = hash_of(name);
        Record { version: VERSION, name, source, session, written: 0, flushed: 0 }
    }

    /// Reads the record of a file with a name; `None` if it has none, a later version, or that of
    /// another name. One that cannot be resumed is of no source. `path` leads to the file; it may
    /// be that of a descriptor.
    pub fn read(path: &Path, name: &OsStr) -> Option<Record> {
        let mut bytes = vec![0; RECORD_BYTES_MAX];
        let length = rustix::fs::getxattr(path, RECORD_NAME, &mut bytes[..]).ok()?;
        let bytes = &bytes[..length];
        let mark = || Record::new(name, SourceIdentity::of_none(), String::new());
        if *bytes == *mark_of(name).as_bytes() {
            return Some(mark());
        }
        let any: AnyRecord = serde_json::from_slice(bytes).ok()?;
        match any.version.cmp(&VERSION) {
            _ if any.name != hash_of(name) => None,
            Ordering::Less => Some(mark()),
            Ordering::Equal => serde_json::from_slice(bytes).ok(),
            Ordering::Greater => None,
        }
    }

    /// Writes the record to a file; returns true if it is there now.
    pub fn write(&self, fd: BorrowedFd<'_>) -> bool {
        let text = serde_json::to_vec(self).expect("numbers and strings are JSON");
        rustix::fs::fsetxattr(fd, RECORD_NAME, &text, XattrFlags::empty()).is_ok()
    }

    /// Returns where a copy of `source` resumes, if this is a part of it.
    pub fn start_for(&self, source: &SourceIdentity, session: &str) -> Option<u64> {
        if self.source != *source {
            return None;
        }
        let is_same_session = !session.is_empty() && self.session == session;
        let start = if is_same_session { self.written } else { self.flushed };
        (start <= source.size).then_some(start)
    }

    /// Removes the record of a file for the room that it takes, and returns its bytes; `None` if it
    /// has none.
    pub fn set_aside(fd: BorrowedFd<'_>) -> Option<Vec<u8>> {
        let mut bytes = vec![0; RECORD_BYTES_MAX];
        let length = rustix::fs::fgetxattr(fd, RECORD_NAME, &mut bytes[..]).ok()?;
        bytes.truncate(length);
        Record::remove(fd).ok()?;
        Some(bytes)
    }

    /// Gives a file the record that was set aside, if there is room for it again.
    pub fn put_back(fd: BorrowedFd<'_>, record: &[u8]) {
        rustix::fs::fsetxattr(fd, RECORD_NAME, record, XattrFlags::empty()).unwrap_or(());
    }

    /// Removes the record of a file, if it has one.
    pub fn remove(fd: BorrowedFd<'_>) -> Result<(), Errno> {
        let remove = || rustix::fs::fremovexattr(fd, RECORD_NAME).map_err(Errno::from);
        let removed = match remove() {
            // Even its owner cannot change attributes of a file that is read-only, however it was
            // opened.
            Err(Errno::EACCES) => {
                let mode = Mode::from_raw_mode(rustix::fs::fstat(fd)?.st_mode);
                rustix::fs::fchmod(fd, mode | Mode::WUSR)?;
                let removed = remove();
                rustix::fs::fchmod(fd, mode)?;
                removed
            }
            removed => removed,
        };
        match removed {
            Err(errno) if !matches!(errno, Errno::ENODATA | Errno::EOPNOTSUPP) => Err(errno),
            _ => Ok(()),
        }
    }
}

impl Recorder {
    /// Records a copy that starts at `start`: everything before it is there already. Without a mark
    /// nothing is written, because no later run would find it.
    pub fn new(record: Record, start: u64, is_marked: bool) -> Recorder {
        let record = Record { written: start, flushed: 0, ..record };
        Recorder { record, noted: start, noted_at: Instant::now(), works: is_marked }
    }

    /// Notes how far the copy is; writes the record if enough has changed.
    pub fn note(&mut self, fd: BorrowedFd<'_>, written: u64) {
        // Never backwards: a range that an earlier run wrote is only read again for its hash.
        self.record.written = self.record.written.max(written);
        let bytes = written.saturating_sub(self.noted);
        if bytes >= BYTES_BETWEEN || (bytes > 0 && self.noted_at.elapsed() >= TIME_BETWEEN) {
            self.write(fd);
        }
    }

    /// As [`note`](Recorder::note), and writes the record in any case.
    pub fn note_now(&mut self, fd: BorrowedFd<'_>, written: u64) {
        self.record.written = self.record.written.max(written);
        self.write(fd);
    }

    /// Notes that everything before `flushed` is on the device.
    pub fn note_flushed(&mut self, fd: BorrowedFd<'_>, flushed: u64) {
        self.record.flushed = flushed;
        self.write(fd);
    }

    /// Notes that every byte that was written is on the device.
    pub fn note_all_flushed(&mut self) {
        self.record.flushed = self.record.written;
    }

    /// Returns true if a later run could resume.
    pub fn has_progress(&self) -> bool {
        self.record.written > 0
    }

    /// Writes the record now; returns true if a later run can resume.
    pub fn write(&mut self, fd: BorrowedFd<'_>) -> bool {
        if !self.works {
            return false;
        }
        // EOPNOTSUPP on file systems without attributes, ENOSPC if there is no room for one: such a
        // copy starts from the beginning when it was interrupted.
        self.works = self.record.write(fd);
        self.noted = self.record.written;
        self.noted_at = Instant::now();
        self.works
    }
}

/// Marks a temporary with this name that is never resumed; returns true if the mark is there now.
pub fn mark(fd: BorrowedFd<'_>, name: &OsStr) -> bool {
    let mark = mark_of(name);
    rustix::fs::fsetxattr(fd, RECORD_NAME, mark.as_bytes(), XattrFlags::empty()).is_ok()
}

fn mark_of(name: &OsStr) -> String {
    format!("{MARK}{}", &hash_of(name)[..MARK_DIGITS])
}

fn hash_of(name: &OsStr) -> String {
    blake3::hash(name.as_bytes()).to_string()
}

/// Returns a name for the time in which written bytes last without a flush: this boot, and this
/// mount. Empty if the kernel does not report it, and then no two sessions are the same.
pub fn session_of(boot: &str, fd: BorrowedFd<'_>) -> String {
    // STATX_MNT_ID_UNIQUE of linux/stat.h (Linux 6.8) is never used again; the older STATX_MNT_ID
    // (5.8) may be, though hardly for the same disk.
    let unique = StatxFlags::from_bits_retain(0x4000);
    let mount = [unique, StatxFlags::MNT_ID].into_iter().find_map(|flag| {
        let stat = rustix::fs::statx(fd, "", AtFlags::EMPTY_PATH, flag).ok()?;
        (stat.stx_mask & flag.bits() != 0).then_some(stat.stx_mnt_id)
    });
    match mount {
        Some(mount) if !boot.is_empty() => format!("{boot}/{mount}"),
        _ => String::new(),
    }
}

/// Returns the id of this boot; empty if /proc has none.
pub fn boot_id() -> String {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    id.trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_testkit::env::{Capability, skip};

    use crate::dir::path_of;
    use std::os::fd::AsFd;

    const NAME: &str = ".name.dio-part";

    fn read(file: &std::fs::File) -> Option<Record> {
        Record::read(&path_of(file.as_fd()), NAME.as_ref())
    }

    fn identity(size: u64) -> SourceIdentity {
        SourceIdentity {
            device: 1,
            inode: 2,
            size,
            modified_s: 3,
            modified_ns: 4,
            status_changed_s: 5,
            status_changed_ns: 6,
        }
    }

    fn record(written: u64, flushed: u64) -> Record {
        let record = Record::new(NAME.as_ref(), identity(100), "here".to_owned());
        Record { written, flushed, ..record }
    }

    #[test]
    fn the_same_session_trusts_what_was_written_and_another_only_what_was_flushed() {
        assert_eq!(record(80, 50).start_for(&identity(100), "here"), Some(80));
        assert_eq!(record(80, 50).start_for(&identity(100), "there"), Some(50));
    }

    #[test]
    fn an_unknown_session_is_never_the_same() {
        let mut unknown = record(80, 50);
        unknown.session = String::new();
        assert_eq!(unknown.start_for(&identity(100), ""), Some(50));
    }

    #[test]
    fn a_session_is_the_same_for_one_mount_and_another_for_another() {
        let file = tempfile::tempfile().unwrap();
        let session = session_of("boot", file.as_fd());
        assert_eq!(session_of("boot", file.as_fd()), session);
        assert_eq!(session_of("", file.as_fd()), "");
        let proc = std::fs::File::open("/proc/self/status").unwrap();
        assert!(session.is_empty() || session_of("boot", proc.as_fd()) != session);
    }

    #[test]
    fn a_source_that_was_changed_starts_over() {
        assert_eq!(record(80, 50).start_for(&identity(101), "here"), None);
        let mut later = identity(100);
        later.modified_ns += 1;
        assert_eq!(record(80, 50).start_for(&later, "here"), None);
        assert!(!later.is_content_of(&identity(100)));
    }

    #[test]
    fn a_later_status_change_starts_over_but_is_no_change_while_it_is_copied() {
        let later = identity(100).changed_at((3, 4), (5, 7));
        assert_eq!(record(80, 50).start_for(&later, "here"), None);
        assert!(later.is_content_of(&identity(100)));
        assert_eq!(identity(100).changed_at((3, 3), (4, 9)), identity(100));
        assert!(!identity(100).changed_at((3, 5), (5, 6)).is_content_of(&identity(100)));
    }

    #[test]
    fn a_start_past_the_end_is_not_believed() {
        assert_eq!(record(101, 0).start_for(&identity(100), "here"), None);
    }

    #[test]
    fn a_record_is_written_read_and_removed() {
        let file = tempfile::tempfile().unwrap();
        let mut recorder = Recorder::new(record(0, 0), 0, true);
        recorder.note(file.as_fd(), 1);
        assert_eq!(read(&file), None, "one byte is not worth a record");
        recorder.record.written = 80;
        if !recorder.write(file.as_fd()) {
            return skip(Capability::Xattr, "the temporary directory keeps no user attributes");
        }
        assert_eq!(read(&file), Some(record(80, 0)));
        recorder.note_flushed(file.as_fd(), 70);
        assert_eq!(read(&file), Some(record(80, 70)));
        recorder.note(file.as_fd(), BYTES_BETWEEN + 80);
        assert_eq!(read(&file), Some(record(BYTES_BETWEEN + 80, 70)));
        Record::remove(file.as_fd()).unwrap();
        Record::remove(file.as_fd()).unwrap();
        assert_eq!(read(&file), None);
    }

    #[test]
    fn a_record_of_another_version_or_no_record_at_all_is_not_understood() {
        let file = tempfile::tempfile().unwrap();
        for text in ["{}", "", "\0\0", "{\"version\":1}"] {
            let set =
                rustix::fs::fsetxattr(&file, RECORD_NAME, text.as_bytes(), XattrFlags::empty());
            if set.is_err() {
                return skip(Capability::Xattr, "the temporary directory keeps no user attributes");
            }
            assert_eq!(read(&file), None, "{text}");
        }
    }

    #[test]
    fn a_record_of_an_earlier_version_marks_a_temporary_that_is_not_resumed() {
        let file = tempfile::tempfile().unwrap();
        let hash = hash_of(NAME.as_ref());
        let of = |version: u32| {
            let text = format!("{{\"version\":{version},\"name\":\"{hash}\",\"written\":80}}");
            let set =
                rustix::fs::fsetxattr(&file, RECORD_NAME, text.as_bytes(), XattrFlags::empty());
            set.is_ok().then(|| read(&file))
        };
        let Some(earlier) = of(VERSION - 1) else {
            return skip(Capability::Xattr, "the temporary directory keeps no user attributes");
        };
        let earlier = earlier.expect("it is a temporary");
        assert_eq!(earlier.start_for(&identity(100), ""), None);
        assert_eq!((of(VERSION), of(VERSION + 1)), (Some(None), Some(None)));
    }
}
