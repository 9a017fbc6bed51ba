//! Opening and inspecting files on this machine.

use super::*;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};

fn refusal(path: &Path, options: &OpenOptions) -> (Errno, &'static str) {
    let failure = open(path, options).unwrap_err();
    (failure.errno, failure.what)
}

fn both_ways() -> OpenOptions {
    OpenOptions { write: true, ..OpenOptions::default() }
}

fn flags_in(opened: &OpenedFile) -> OFlags {
    rustix::fs::fcntl_getfl(&opened.fd).unwrap()
}

#[test]
fn a_regular_file_opens_and_reports_a_usable_alignment() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let opened = open(file.path(), &both_ways()).unwrap();
    let metadata = file.as_file().metadata().unwrap();
    assert_eq!(opened.kind, FileKind::Regular);
    assert_eq!((opened.device, opened.inode), (metadata.dev(), metadata.ino()));
    let Alignment { memory, offset_read, offset_write, .. } = opened.alignment;
    for bytes in [memory, offset_read, offset_write] {
        assert!(bytes.is_power_of_two() && bytes <= 1 << 20);
    }
    assert!(!flags_in(&opened).contains(OFlags::NONBLOCK));
    let is_direct = flags_in(&opened).contains(OFlags::DIRECT);
    assert!(is_direct || matches!(opened.direct, DirectSupport::None(_)));
    let on_exec = rustix::io::fcntl_getfd(&opened.fd).unwrap();
    assert!(on_exec.contains(rustix::io::FdFlags::CLOEXEC));
}

#[test]
fn a_file_in_memory_has_no_direct_io() {
    let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else {
        // This container has no /dev/shm.
        return;
    };
    let opened = open(file.path(), &both_ways()).unwrap();
    assert_eq!(opened.direct, DirectSupport::None(BufferedReason::MemoryFileSystem));
}

#[test]
fn a_file_that_refuses_o_direct_opens_without_it() {
    let opened = open(Path::new("/proc/self/status"), &OpenOptions::default()).unwrap();
    assert_eq!(opened.direct, DirectSupport::None(BufferedReason::RefusedByOpen));
    assert!(!flags_in(&opened).contains(OFlags::DIRECT));
}

#[test]
fn a_new_file_is_made_once_and_is_as_direct_as_an_old_one() {
    for directory in [std::env::temp_dir(), "/dev/shm".into()] {
        let directory = tempfile::tempdir_in(directory).unwrap();
        let path = directory.path().join("new");
        let options = OpenOptions { create_new: true, ..both_ways() };
        let made = open(&path, &options).unwrap();
        assert_eq!(refusal(&path, &options), (Errno::EEXIST, "open"));
        let old = open(&path, &both_ways()).unwrap();
        assert_eq!(made.direct, old.direct);
        assert_eq!(flags_in(&made), flags_in(&old));
        assert_eq!(made.inode, old.inode);
    }
}

#[test]
fn create_makes_a_missing_file_and_truncate_cuts_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    assert_eq!(refusal(&path, &both_ways()), (Errno::ENOENT, "open"));
    let options = OpenOptions { create: true, exclusive: true, mode: 0o600, ..both_ways() };
    let made = open(&path, &options).unwrap();
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
    let buffered = std::fs::File::from(reopen_buffered(made.fd.as_fd(), true, true).unwrap());
    buffered.write_all_at(b"abc", 0).unwrap();
    let again = open(&path, &options).unwrap();
    assert_eq!(stat_size(again.fd.as_fd(), again.kind), Ok(3));
    let cut = open(&path, &OpenOptions { truncate: true, ..both_ways() }).unwrap();
    assert_eq!(stat_size(cut.fd.as_fd(), cut.kind), Ok(0));
}

#[test]
fn options_that_contradict_each_other_are_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), b"abc").unwrap();
    let cut = OpenOptions { truncate: true, ..OpenOptions::default() };
    assert_eq!(refusal(file.path(), &cut), (Errno::EINVAL, "truncate without write"));
    assert_eq!(file.as_file().metadata().unwrap().len(), 3);
    let blind = OpenOptions { read: false, ..OpenOptions::default() };
    let expected = (Errno::EINVAL, "neither read nor write asked for");
    assert_eq!(refusal(file.path(), &blind), expected);
}

#[test]
fn nothing_but_a_file_or_a_block_device_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_raw_mode(0o600), 0).unwrap();
    let socket = directory.path().join("socket");
    let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    let other = (Errno::EINVAL, "not a regular file or block device");
    let write = OpenOptions { read: false, ..both_ways() };
    for options in [OpenOptions::default(), both_ways(), write] {
        let is_directory = (Errno::EISDIR, "is a directory");
        assert_eq!(refusal(directory.path(), &options), is_directory);
        for path in [fifo.as_path(), &socket, Path::new("/dev/null")] {
            assert_eq!(refusal(path, &options), other, "{}", path.display());
        }
    }
}

#[test]
fn a_symbolic_link_is_followed_unless_forbidden() {
    let directory = tempfile::tempdir().unwrap();
    let (target, link) = (directory.path().join("target"), directory.path().join("link"));
    std::fs::write(&target, b"abc").unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    assert!(open(&link, &OpenOptions::default()).is_ok());
    let options = OpenOptions { no_follow: true, ..OpenOptions::default() };
    assert_eq!(refusal(&link, &options), (Errno::ELOOP, "open"));
}

#[test]
fn inspect_knows_a_descriptor_without_o_direct() {
    let opened = inspect(OwnedFd::from(tempfile::tempfile().unwrap())).unwrap();
    let reasons = [BufferedReason::RefusedByOpen, BufferedReason::MemoryFileSystem];
    assert!(reasons.into_iter().any(|reason| opened.direct == DirectSupport::None(reason)));
    let (reader, _writer) = std::io::pipe().unwrap();
    assert_eq!(inspect(OwnedFd::from(reader)).unwrap_err().errno, Errno::EINVAL);
    let path = rustix::fs::open("/proc/self/exe", OFlags::PATH, Mode::empty()).unwrap();
    assert_eq!(inspect(path).unwrap_err().errno, Errno::EBADF);
}

#[test]
fn a_buffered_reopen_is_the_same_file_without_o_direct() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let opened = open(file.path(), &both_ways()).unwrap();
    file.close().unwrap();
    let again = inspect(reopen_buffered(opened.fd.as_fd(), true, false).unwrap()).unwrap();
    assert_eq!(again.inode, opened.inode);
    assert!(!flags_in(&again).contains(OFlags::DIRECT));
    let neither = reopen_buffered(opened.fd.as_fd(), false, false);
    assert_eq!(neither.unwrap_err(), Errno::EINVAL);
}

#[test]
fn the_size_of_a_device_is_not_asked_of_a_file() {
    let file = tempfile::tempfile().unwrap();
    file.set_len(12_345).unwrap();
    assert_eq!(stat_size(file.as_fd(), FileKind::Regular), Ok(12_345));
    assert_eq!(stat_size(file.as_fd(), FileKind::BlockDevice), Err(Errno::ENOTTY));
}
