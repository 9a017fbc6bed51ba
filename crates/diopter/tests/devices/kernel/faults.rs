//! Separate grounds: an unreadable device, a full file system, files that lie in their inode,
//! atomic writes.

use std::fs;
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use diopter::{
    AdmitErrorKind, BackendKind, Errno, Error, File, FileRange, IoBuf, IoErrorKind, RangeState,
    Request,
};
use diopter_os::file::{BufferedReason, DirectSupport};

use super::machine::{self, FileSystem, Loop, Mount};
use super::memory::{Skewed, difference};
use super::row::{both_ways, each_backend, has, uncache};

const MIB: u64 = 1 << 20;

const EXT4: FileSystem = FileSystem::Ext4 { block: 4096, extra: &["-m", "0"] };
const EXT4_INLINE: FileSystem =
    FileSystem::Ext4 { block: 4096, extra: &["-O", "inline_data", "-I", "256"] };

fn byte_at(offset: u64) -> u8 {
    u8::try_from(offset / 512 % 253).expect("below 253")
}

/// A device whose sectors from `cut` on can't be read: its file is cut behind its back.
fn cut_device(size: u64, cut: u64) -> Loop {
    let device = Loop::new("cut", size, 512).unwrap();
    let backing = fs::OpenOptions::new().write(true).open(device.backing()).unwrap();
    let bytes: Vec<u8> = (0..size).map(byte_at).collect();
    backing.write_all_at(&bytes, 0).unwrap();
    backing.set_len(cut).unwrap();
    uncache(device.device());
    device
}

#[test]
fn an_unreadable_sector_is_eio_and_the_outcome_names_its_range() {
    let _alone = machine::alone();
    if !has(None) {
        return;
    }
    each_backend(|backend| {
        let cut = 2 * MIB + 512 * 77;
        let device = cut_device(4 * MIB, cut);
        let file = File::open(device.device()).unwrap();
        // Before the cut all is well, at any alignment.
        let mut memory = Skewed::new(100_000, 1);
        file.read_exact_at(memory.as_mut(), cut - 100_000).unwrap();
        assert!(memory.iter().zip(cut - 100_000..).all(|(byte, at)| *byte == byte_at(at)));
        for (offset, length) in
            [(cut - 512, 1024), (cut, 512), (cut + 100, 1), (cut - 300_001, 600_000)]
        {
            let error = file.read_at(&mut vec![0; length], offset).unwrap_err();
            let Error::Io(error) = error else { panic!("{backend} {offset}+{length}: {error}") };
            assert_eq!((error.kind, error.errno), (IoErrorKind::Device, Errno::EIO));
            assert!(error.range.end() > cut, "the range that failed reaches past the cut");
        }
        // From a ragged start in several windows: the first ones are done.
        let (offset, length) = (cut - 3 * MIB / 2 - 100, 2 * MIB);
        let memory = IoBuf::new(usize::try_from(length).unwrap()).unwrap();
        let finished = file.request(Request::read(offset, memory)).unwrap().wait();
        assert_eq!(finished.result.as_ref().map_err(|error| error.errno), Err(Errno::EIO));
        let outcome = finished.outcome();
        let memory = finished.memory.unwrap();
        let (mut at, mut failed) = (offset, FileRange::new(0, 0));
        for part in outcome.ranges() {
            assert_eq!(part.range.start(), at, "the outcome has no gaps");
            at = part.range.end();
            match part.state {
                RangeState::Done => {
                    assert!(at <= cut, "nothing past the cut can be read");
                    let from = usize::try_from(part.range.start() - offset).unwrap();
                    let bytes = memory[from..].iter().zip(part.range.start()..at);
                    assert!(bytes.clone().all(|(byte, at)| *byte == byte_at(at)));
                }
                RangeState::Failed(errno) => {
                    assert_eq!(errno, Errno::EIO);
                    failed = part.range;
                }
                RangeState::NotTried => assert!(part.range.start() >= failed.end()),
                other => panic!("{other:?} cannot be here"),
            }
        }
        assert_eq!(at, offset + length);
        assert!(failed.start() <= cut && cut < failed.end(), "the cut is in what failed");
        assert!(matches!(outcome.ranges()[0].state, RangeState::Done));
    });
}

#[test]
fn a_reader_that_reads_ahead_fails_at_the_first_byte_that_can_t_be_read() {
    let _alone = machine::alone();
    if !has(None) {
        return;
    }
    each_backend(|backend| {
        let cut = 2 * MIB + 512 * 77;
        let device = cut_device(4 * MIB, cut);
        let file = File::open(device.device()).unwrap();
        for (start, step) in [(0, 1000), (cut - 5000, 4096), (cut - 512, 1), (cut, 512)] {
            let mut reader = file.reader(start);
            let (mut buf, mut at) = (vec![0; step], start);
            let error = loop {
                match reader.read(&mut buf) {
                    Ok(n) => {
                        assert!(buf[..n].iter().zip(at..).all(|(byte, at)| *byte == byte_at(at)));
                        at += u64::try_from(n).unwrap();
                    }
                    Err(error) => break error,
                }
                assert!(at <= cut, "{backend}: nothing past the cut can be read");
            };
            assert_eq!(at, cut, "{backend}: everything before it can, from {start}");
            assert_eq!(Error::errno(error.get_ref().unwrap().downcast_ref().unwrap()), Errno::EIO);
            assert!(reader.read(&mut buf).is_err(), "{backend}: and again at the same byte");
            assert_eq!(reader.seek(SeekFrom::Start(100)).unwrap(), 100);
            assert!(reader.read(&mut buf).is_ok_and(|n| n == step), "{backend}: a seek passes it");
        }
    });
}

#[test]
fn a_write_whose_edge_can_t_be_read_changes_nothing() {
    let _alone = machine::alone();
    if !has(None) {
        return;
    }
    each_backend(|backend| {
        let cut = 2 * MIB;
        let device = cut_device(4 * MIB, cut);
        let file = both_ways().open(device.device()).unwrap();
        let error = file.write_at(&[7; 100], cut + 10).unwrap_err();
        assert_eq!(error.errno(), Errno::EIO, "{backend}");
        let backing = fs::metadata(device.backing()).unwrap().len();
        assert_eq!(backing, cut, "nothing was written");
        // The edge before the cut is whole afterwards too.
        let across = file.write_at(&vec![7; 2000], cut - 1000);
        assert!(across.is_err());
        let mut memory = Skewed::new(4096, 0);
        file.read_exact_at(memory.as_mut(), cut - 4096).unwrap();
        for (byte, at) in memory.iter().zip(cut - 4096..) {
            assert!(*byte == byte_at(at) || (*byte == 7 && at >= cut - 1000), "{at}");
        }
    });
}

#[test]
fn a_full_file_system_is_an_error_and_loses_nothing_else() {
    let _alone = machine::alone();
    if !has(Some(EXT4)) {
        return;
    }
    let mount = Mount::new(EXT4, 24 * MIB, "defaults").unwrap();
    each_backend(|_| fill_and_free(mount.path()));
    mount.finish().unwrap();
}

fn fill_and_free(dir: &Path) {
    let content: Vec<u8> = (0..200_000).map(byte_at).collect();
    let path = dir.join("kept");
    let kept = both_ways().open(&path).unwrap();
    kept.write_all_at(&content, 0).unwrap();
    let full = both_ways().open(dir.join("full")).unwrap();
    let no_space = |result: diopter::Result<()>| match result {
        Ok(()) => false,
        Err(Error::Io(error)) => {
            assert_eq!(error.kind, IoErrorKind::NoSpace, "{error}");
            assert!(error.to_string().contains("free space"), "{error}");
            true
        }
        Err(other) => panic!("{other}"),
    };
    let piece = Skewed::new(1_000_001, 0);
    let mut at = 0;
    while !no_space(full.write_all_at(&piece, at)) {
        at += piece.len() as u64;
        assert!(at < 100 * MIB, "it is a small one");
    }
    // What is left of the space goes too: to whole blocks, and through the page cache.
    while !no_space(full.write_all_at(&Skewed::new(4096, 0), at.next_multiple_of(4096))) {
        at += 4096;
    }
    let queued = full.request(Request::write(at + MIB, IoBuf::new(1 << 20).unwrap()));
    let finished = queued.unwrap().wait();
    assert_eq!(finished.result.clone().map_err(|error| error.kind), Err(IoErrorKind::NoSpace));
    assert!(!finished.outcome().is_all_done());
    assert!(no_space(full.allocate(at, 64 * MIB)));
    // Overwriting needs no space, and nothing else is touched.
    kept.write_all_at(&content[100..5000], 100).unwrap();
    kept.sync_all().unwrap();
    uncache(&path);
    assert_eq!(difference(&fs::read(&path).unwrap(), &content), None);
    full.set_len(0).unwrap();
    full.write_all_at(&piece, 0).unwrap();
    full.sync_all().unwrap();
    drop((kept, full));
    fs::remove_file(dir.join("full")).unwrap();
    fs::remove_file(path).unwrap();
}

#[test]
fn a_file_in_its_inode_is_read_and_written_and_says_buffered() {
    let _alone = machine::alone();
    if !has(Some(EXT4_INLINE)) {
        return;
    }
    let mount = Mount::new(EXT4_INLINE, 32 * MIB, "defaults").unwrap();
    let numbers = std::cell::Cell::new(0);
    each_backend(|_| {
        numbers.set(numbers.get() + 1);
        let path = mount.path().join(format!("small-{}", numbers.get()));
        fs::write(&path, b"sixty bytes or less").unwrap();
        in_the_inode(&path);
    });
    mount.finish().unwrap();
}

fn in_the_inode(path: &PathBuf) {
    let file = both_ways().open(path).unwrap();
    let none = DirectSupport::None(BufferedReason::StatxSaysNo);
    assert_eq!(file.direct_support(), none);
    let mut buf = [0; 100];
    assert_eq!(file.read_at(&mut buf, 6).unwrap(), 13);
    assert_eq!(&buf[..13], b"bytes or less");
    file.write_all_at(b"or MORE", 12).unwrap();
    let finished = file.request(Request::read(0, IoBuf::new(100).unwrap())).unwrap().wait();
    assert_eq!((finished.route().direct, finished.route().buffered), (0, 19));
    assert_eq!(&finished.memory.unwrap()[..19], b"sixty bytes or MORE");
    let strict = both_ways().strict(true).open(path);
    assert!(matches!(strict, Err(Error::Setup(error)) if error.errno == Errno::EOPNOTSUPP));
    // Until it is opened again it stays buffered, also when it has left its inode.
    let large = vec![7; 50_000];
    file.write_all_at(&large, 100).unwrap();
    let mut memory = Skewed::new(60_000, 1);
    assert_eq!(file.read_at(memory.as_mut(), 0).unwrap(), 50_100);
    assert_eq!(difference(&memory[100..50_100], &large), None);
    file.sync_all().unwrap();
    let again = both_ways().open(path).unwrap();
    assert_eq!(again.direct_support(), DirectSupport::Full);
    // Cut back into its inode while it is open for direct I/O, it still reads as it is.
    again.set_len(10).unwrap();
    assert_eq!(again.read_at(memory.as_mut(), 0).unwrap(), 10);
    assert_eq!(&memory[..10], b"sixty byte");
    again.write_all_at(b"!", 10).unwrap();
    assert_eq!(fs::read(path).unwrap(), b"sixty byte!");
}

#[test]
fn a_mounted_device_is_refused_when_asked_to_be_exclusive() {
    let _alone = machine::alone();
    if !has(Some(EXT4)) {
        return;
    }
    let mount = Mount::new(EXT4, 24 * MIB, "defaults").unwrap();
    let device = mount.device().device();
    let refused = File::options().read(true).exclusive(true).open(device).unwrap_err();
    assert_eq!(refused.errno(), Errno::EBUSY);
    assert!(refused.to_string().contains("unmount"), "{refused}");
    File::options().read(true).open(device).unwrap();
    mount.finish().unwrap();
}

#[test]
fn a_read_only_device_is_read_and_not_written() {
    let _alone = machine::alone();
    if !has(None) {
        return;
    }
    each_backend(|_| {
        let device = Loop::read_only("read-only", MIB).unwrap();
        let file = File::open(device.device()).unwrap();
        file.read_exact_at(&mut [1; 1000], 77).unwrap();
        match both_ways().open(device.device()) {
            Err(Error::Setup(error)) => {
                assert!([Errno::EROFS, Errno::EPERM, Errno::EACCES].contains(&error.errno));
            }
            Err(other) => panic!("{other}"),
            Ok(file) => {
                let error = file.write_at(&[1; 1000], 77).unwrap_err();
                let Error::Io(error) = error else { panic!("{error}") };
                assert_eq!(error.kind, IoErrorKind::Permission, "{error}");
            }
        }
    });
}

#[test]
fn an_atomic_write_is_done_where_offered_and_refused_where_it_breaks_the_rule() {
    let _alone = machine::alone();
    if !has(Some(FileSystem::Xfs { extra: &[] })) {
        return;
    }
    let mount = Mount::new(FileSystem::Xfs { extra: &[] }, 320 * MIB, "defaults").unwrap();
    each_backend(|backend| atomic(backend, mount.path()));
    mount.finish().unwrap();
}

fn atomic(backend: BackendKind, dir: &Path) {
    let path = dir.join(backend.name());
    let file = both_ways().open(&path).unwrap();
    file.write_all_at(&Skewed::new(256 << 10, 0), 0).unwrap();
    file.sync_all().unwrap();
    let is_refused = |result: diopter::Result<()>| match result {
        Err(Error::Admit(error)) => error.kind == AdmitErrorKind::NotAtomic,
        _ => false,
    };
    let Some(units) = file.atomic_write() else {
        eprintln!("  this XFS offers no atomic writes on a loop device");
        assert!(is_refused(file.write_atomic_at(&Skewed::new(4096, 0), 4096)));
        return;
    };
    eprintln!("  atomic writes of {} to {} bytes", units.unit_min, units.unit_max);
    let unit = usize::try_from(units.unit_min).unwrap();
    let mut memory = Skewed::new(2 * unit, 0);
    memory.as_mut().fill(0x42);
    file.write_atomic_at(&memory[..unit], 2 * u64::from(units.unit_min)).unwrap();
    let mut read = vec![0; unit];
    file.read_exact_at(&mut read, 2 * u64::from(units.unit_min)).unwrap();
    assert_eq!(difference(&read, &memory[..unit]), None);
    for (offset, length) in [(1, unit), (0, unit - 1), (0, 3 * unit / 2), (0, 0)] {
        assert!(is_refused(file.write_atomic_at(&memory[..length], offset)));
    }
    let too_large = usize::try_from(units.unit_max).unwrap() * 2;
    assert!(is_refused(file.write_atomic_at(&Skewed::new(too_large, 0), 0)));
    assert!(is_refused(file.write_atomic_at(&Skewed::new(unit, 1), 0)), "a misaligned address");
}

#[test]
fn an_atomic_write_is_refused_where_none_is_offered() {
    let _alone = machine::alone();
    let file = tempfile::NamedTempFile::new().unwrap();
    let file = both_ways().open(file.path()).unwrap();
    if file.atomic_write().is_some() {
        return;
    }
    let refused = file.write_atomic_at(&Skewed::new(4096, 0), 0).unwrap_err();
    assert!(matches!(refused, Error::Admit(error) if error.kind == AdmitErrorKind::NotAtomic));
}
