//! Is direct I/O direct? On separate grounds: what a trial shows on each file system and
//! kind of file, where none is possible, and what strict files then do.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use diopter::{
    AdmitErrorKind, DirectState, DirectStates, Errno, Error, File, IoBuf, OpenOptions, Request,
};
use diopter_os::residency::residency;
use rustix::fs::{IFlags, ioctl_getflags, ioctl_setflags};
use rustix::thread::set_thread_res_uid;

use super::machine::{self, FileSystem, Mount};
use super::memory::Skewed;
use super::row::{both_ways, has, uncache};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;

const EXT4: FileSystem = FileSystem::Ext4 { block: 4096, extra: &[] };
const XFS: FileSystem = FileSystem::Xfs { extra: &[] };

/// mkfs.btrfs makes none that is smaller than 109 MiB.
const BYTES: u64 = 200 * MIB;

const PROVED: DirectStates =
    DirectStates { reads: DirectState::Proved, writes: DirectState::Proved };
const UNKNOWN: DirectStates =
    DirectStates { reads: DirectState::Unknown, writes: DirectState::Unknown };

fn mounted(kind: FileSystem, options: &str) -> Option<Mount> {
    has(Some(kind)).then(|| Mount::new(kind, BYTES, options).unwrap())
}

/// Makes an empty file with these flags of FS_IOC_SETFLAGS.
fn with_flags(path: &Path, flags: IFlags) -> PathBuf {
    let file = fs::File::create(path).unwrap();
    let old = ioctl_getflags(&file).unwrap();
    ioctl_setflags(&file, old | flags).unwrap();
    path.to_owned()
}

/// Not as a striped file: to recognise one, the head of the file is read.
fn strict() -> OpenOptions {
    File::options().read(true).write(true).create(true).strict(true).clone()
}

fn states(path: &Path) -> DirectStates {
    File::open(path).unwrap().try_direct()
}

fn pages(path: &Path) -> u64 {
    let file = fs::File::open(path).unwrap();
    let size = file.metadata().unwrap().len();
    residency(file.as_fd(), 0, 0, size).unwrap().pages_cached
}

fn is_refused(error: &Error) -> bool {
    matches!(error, Error::Admit(error) if error.kind == AdmitErrorKind::WouldBuffer)
}

/// Bytes that no file system compresses.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let words = std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_ne_bytes()
    });
    words.flatten().take(length).collect()
}

#[test]
fn on_ext4_and_xfs_a_trial_proves_it_and_changes_nothing_that_has_a_name() {
    let _alone = machine::alone();
    for kind in [EXT4, XFS] {
        let Some(mount) = mounted(kind, "defaults") else { continue };
        let path = mount.path().join("data");
        fs::write(&path, noise(3 * BLOCK)).unwrap();
        let of = |path: &Path| {
            let found = fs::metadata(path).unwrap();
            (found.mtime_nsec(), found.ctime_nsec(), found.size(), found.blocks())
        };
        let before = [of(&path), of(mount.path())];
        let file = strict().create(false).open(&path).unwrap();
        assert_eq!(file.direct_states(), PROVED);
        assert_eq!([of(&path), of(mount.path())], before);
        let names = fs::read_dir(mount.path()).unwrap();
        let names: Vec<_> = names.map(|entry| entry.unwrap().file_name()).collect();
        assert!(names.iter().all(|name| name == "data" || name == "lost+found"), "{names:?}");
        assert_eq!(fs::read(&path).unwrap(), noise(3 * BLOCK));
        drop(file);
        mount.finish().unwrap();
    }
}

#[test]
fn on_btrfs_the_kind_of_the_file_decides() {
    let _alone = machine::alone();
    let Some(mount) = mounted(FileSystem::Btrfs, "defaults") else { return };
    let path = with_flags(&mount.path().join("nocow"), IFlags::NOCOW);
    assert_eq!(states(&path), PROVED);
    let file = strict().open(&path).unwrap();
    file.write_all_at(&IoBuf::new(BLOCK).unwrap(), 0).unwrap();
    assert_eq!(pages(&path), 0);
    drop(file);

    // With checksums it depends on the kernel, and what is said has to be what is done.
    let path = mount.path().join("plain");
    let file = both_ways().open(&path).unwrap();
    let writes = file.direct_states().writes;
    let finished = file.request(Request::write(0, IoBuf::new(BLOCK).unwrap())).unwrap().wait();
    let route = finished.route();
    let strictly = strict().open(&path).unwrap().write_all_at(&IoBuf::new(BLOCK).unwrap(), 0);
    match writes {
        DirectState::Proved => {
            assert_eq!(route.direct, BLOCK as u64);
            strictly.unwrap();
        }
        DirectState::Buffered => {
            assert_eq!(route.buffered, BLOCK as u64);
            assert!(is_refused(&strictly.unwrap_err()));
        }
        other => panic!("{other}"),
    }
    drop(file);
    mount.finish().unwrap();
}

#[test]
fn on_btrfs_without_checksums_an_older_file_may_have_them() {
    let _alone = machine::alone();
    let Some(mount) = mounted(FileSystem::Btrfs, "nodatasum") else { return };
    let path = mount.path().join("plain");
    fs::write(&path, noise(BLOCK)).unwrap();
    assert_eq!(states(&path).reads, DirectState::Unknown, "it has no extents yet");
    uncache(&path);
    assert_eq!(states(&path), DirectStates { writes: DirectState::Unknown, ..PROVED });
    let path = with_flags(&mount.path().join("nocow"), IFlags::NOCOW);
    assert_eq!(states(&path), PROVED);
    // A file that is to be compressed has checksums whatever the options of the mount are.
    let compressed = with_flags(&mount.path().join("compressed"), IFlags::COMPRESSED);
    let checked = mounted(FileSystem::Btrfs, "defaults").unwrap();
    let plain = checked.path().join("plain");
    fs::write(&plain, noise(BLOCK)).unwrap();
    assert_eq!(states(&compressed).writes, states(&plain).writes);
    checked.finish().unwrap();
    mount.finish().unwrap();
}

#[test]
fn compressed_extents_are_not_read_by_a_strict_file() {
    let _alone = machine::alone();
    let Some(mount) = mounted(FileSystem::Btrfs, "compress=zstd") else { return };
    let path = mount.path().join("zeros");
    fs::write(&path, vec![7; 8 * BLOCK]).unwrap();
    uncache(&path);
    assert_eq!(states(&path).reads, DirectState::Buffered);
    // Where writes of such a file are buffered too, the open is refused.
    let strictly = strict().open(&path);
    let read = strictly.and_then(|file| file.read_at(&mut IoBuf::new(BLOCK).unwrap(), 0));
    let error = read.unwrap_err();
    let is_open_refused = matches!(&error, Error::Setup(it) if it.errno == Errno::EOPNOTSUPP);
    assert!(is_refused(&error) || is_open_refused, "{error}");
    assert_eq!(pages(&path), 0);
    // What does not compress is stored as it is.
    let path = mount.path().join("noise");
    fs::write(&path, noise(8 * BLOCK)).unwrap();
    uncache(&path);
    let file = strict().open(&path).unwrap();
    file.read_exact_at(&mut IoBuf::new(BLOCK).unwrap(), 0).unwrap();
    assert_eq!(pages(&path), 0);
    drop(file);
    mount.finish().unwrap();
}

#[test]
fn a_buffer_of_diopter_is_read_into_directly_though_nothing_was_written_to_it() {
    let _alone = machine::alone();
    let Some(mount) = mounted(FileSystem::Btrfs, "defaults") else { return };
    let path = mount.path().join("data");
    fs::write(&path, noise(64 * BLOCK)).unwrap();
    uncache(&path);
    let file = File::open(&path).unwrap();
    let memory = IoBuf::new(64 * BLOCK).unwrap();
    let finished = file.request(Request::read(0, memory)).unwrap().wait();
    assert_eq!(finished.memory.as_deref(), Some(&noise(64 * BLOCK)[..]));
    assert_eq!(pages(&path), 0);
    // Nor are bounce buffers, of both kinds, and of each place in the table.
    let engine = diopter::Engine::new(diopter::EngineOptions::default()).unwrap();
    for length in [100, 3000, 200_000] {
        let mut memory = Skewed::new(length, 1);
        file.read_exact_at(memory.as_mut(), 10).unwrap();
        assert_eq!(&memory[..], &noise(64 * BLOCK)[10..10 + length]);
        let before = engine.start(&file, Request::read(1, IoBuf::new(length).unwrap()));
        assert!(before.is_ok());
        assert_eq!(pages(&path), 0, "{length}");
    }
    while engine.in_flight() > 0 {
        engine.wait(std::time::Duration::from_secs(1)).unwrap();
    }
    drop(engine);
    assert_eq!(pages(&path), 0);
    drop(file);
    mount.finish().unwrap();
}

#[test]
fn a_read_that_is_seen_to_fall_back_is_counted_and_the_next_memory_populated() {
    let _alone = machine::alone();
    let Some(mount) = mounted(FileSystem::Btrfs, "defaults") else { return };
    let path = mount.path().join("data");
    let bytes = noise(4 << 20);
    fs::write(&path, &bytes).unwrap();
    uncache(&path);
    let file = File::open(&path).unwrap();
    let before = file.direct_states();
    // Memory that was never written: it is mapped for it.
    let mut first = vec![0; 4 << 20];
    file.read_exact_at(&mut first, 0).unwrap();
    if pages(&path) == 0 {
        // This kernel faults memory in.
        assert_eq!((file.buffered_reads_seen(), file.direct_states()), (0, before));
    } else {
        assert_eq!(file.buffered_reads_seen(), 1);
        assert_eq!(file.direct_states().reads, DirectState::Unknown);
        uncache(&path);
        let mut second = vec![0; 4 << 20];
        file.read_exact_at(&mut second, 0).unwrap();
        assert_eq!(pages(&path), 0);
        assert!(second == bytes);
    }
    assert!(first == bytes);
    drop(file);
    mount.finish().unwrap();
}

#[test]
fn data_in_the_journal_is_buffered_and_a_strict_open_refused() {
    let _alone = machine::alone();
    let Some(mount) = mounted(EXT4, "data=journal") else { return };
    let path = mount.path().join("data");
    fs::write(&path, noise(BLOCK)).unwrap();
    assert_eq!(states(&path).writes, DirectState::Buffered);
    let refused = strict().open(&path);
    assert!(matches!(refused, Err(Error::Setup(error)) if error.errno == Errno::EOPNOTSUPP));
    mount.finish().unwrap();
}

#[test]
fn where_no_trial_is_possible_nothing_is_claimed_and_nothing_refused() {
    let _alone = machine::alone();
    let Some(mount) = mounted(EXT4, "defaults") else { return };
    let path = mount.path().join("data");
    fs::write(&path, noise(BLOCK)).unwrap();
    // Another user may not make a file there. The user of this thread alone is set.
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    let as_another = std::thread::scope(|scope| {
        let other = || {
            let user = rustix::fs::Uid::from_raw(65534);
            set_thread_res_uid(user, user, user).unwrap();
            let file = File::options().read(true).strict(true).open(&path).unwrap();
            file.read_exact_at(&mut IoBuf::new(BLOCK).unwrap(), 0).unwrap();
            file.direct_states()
        };
        scope.spawn(other).join().unwrap()
    });
    assert_eq!(as_another, UNKNOWN);
    // Its directory is gone: there is none to make a file in.
    let dir = mount.path().join("gone");
    fs::create_dir(&dir).unwrap();
    let gone = dir.join("data");
    fs::write(&gone, noise(BLOCK)).unwrap();
    let file = File::open(&gone).unwrap();
    fs::remove_dir_all(&dir).unwrap();
    assert_eq!(file.try_direct(), UNKNOWN);
    drop(file);
    // Read-only. The mount is another one, so that no earlier trial counts.
    let device = mount.unmounted().unwrap();
    let mount = Mount::again(device, EXT4, "ro").unwrap();
    let path = mount.path().join("data");
    let file = File::options().read(true).strict(true).open(&path).unwrap();
    assert_eq!(file.direct_states(), UNKNOWN);
    file.read_exact_at(&mut IoBuf::new(BLOCK).unwrap(), 0).unwrap();
    assert_eq!(pages(&path), 0);
    drop(file);
    mount.finish().unwrap();
}
