//! Operations that an image refuses: each with its own message, and without a change to the image.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;

use diopter::engine::RoutePolicy;
use diopter::images::{Image, ImageErrorKind};
use diopter::{Errno, Error, File, IoErrorKind, OpenOptions, Result};
use rustix::fs::{FallocateFlags, fallocate};

use super::agreement::BOUNDARIES;
use super::ground::{self, EXT4, Format, MIB, Volume, XFS};
use super::machine;

const BLOCK: u64 = 4096;

/// A small volume, so that all of it can be compared.
const SMALL: Format = Format { bytes: 32 * MIB, ..EXT4 };

fn writable() -> OpenOptions {
    OpenOptions::new().read(true).write(true).clone()
}

/// A volume with a file of each kind.
fn filled(format: Format) -> Volume {
    let fill = |root: &Path| {
        fs::write(root.join("plain"), vec![7; 20_000]).unwrap();
        fs::write(root.join("tiny"), b"tiny").unwrap();
        fs::create_dir(root.join("directory")).unwrap();
        let sparse = fs::File::create(root.join("sparse")).unwrap();
        for block in [0, 4] {
            sparse.write_all_at(&[block + 1; 4096], u64::from(block) * BLOCK).unwrap();
        }
        let flags = FallocateFlags::KEEP_SIZE;
        fallocate(&sparse, flags, 2 * BLOCK, BLOCK).unwrap();
        for file in ["plain", "sparse"] {
            fs::File::open(root.join(file)).unwrap().sync_all().unwrap();
        }
    };
    Volume::new(format, |mount| fill(mount.path())).0
}

#[track_caller]
fn must_say<T>(result: Result<T>, errno: Errno, words: &str) -> Error {
    let error = result.err().unwrap_or_else(|| panic!("allowed, and not: {words}"));
    assert!(error.errno() == errno && error.to_string().contains(words), "{error}, not: {words}");
    error
}

#[track_caller]
fn must_be_kind(error: &Error, kind: IoErrorKind) {
    let Error::Io(error) = error else { panic!("{error}") };
    assert_eq!(error.kind, kind);
}

#[test]
fn what_is_not_written_yet_is_read_as_zeros_and_not_written_through_an_image() {
    let _machine = machine::alone();
    if !ground::is_possible(SMALL.kind) {
        return;
    }
    let volume = filled(SMALL);
    let before = fs::read(volume.image()).unwrap();
    let image = Image::open_with(volume.image(), &writable()).unwrap();
    let file = image.file(b"/sparse").unwrap();
    let write = |at: u64, length: usize| file.write_at(&vec![9; length], at);
    for boundary in BOUNDARIES {
        let policies = diopter::Policies { history: boundary.into(), ..Default::default() };
        diopter::use_for_this_thread(diopter::EngineOptions { policies, ..Default::default() });
        for (at, length) in
            [(BLOCK, 4096), (BLOCK + 7, 100), (3 * BLOCK, 4096), (3 * BLOCK + 512, 9)]
        {
            let error = must_say(write(at, length), Errno::EOPNOTSUPP, "has a hole there");
            must_be_kind(&error, IoErrorKind::IntoHole);
        }
        for (at, length) in [(2 * BLOCK, 4096), (2 * BLOCK + 1, 511)] {
            let error =
                must_say(write(at, length), Errno::EOPNOTSUPP, "nothing was written there yet");
            must_be_kind(&error, IoErrorKind::IntoUnwritten);
        }
    }
    let mut read = vec![1; 4 * 4096];
    file.read_exact_at(&mut read, BLOCK).unwrap();
    assert!(read[..3 * 4096].iter().all(|byte| *byte == 0) && read[3 * 4096] == 5);
    assert!(fs::read(volume.image()).unwrap() == before, "refused, and the image is another");
    // What comes before a hole may be written; the error's range says which bytes were.
    let error = must_say(write(0, 3 * 4096), Errno::EOPNOTSUPP, "[4096, 8192)");
    must_be_kind(&error, IoErrorKind::IntoHole);
    volume.check(|_| ());
}

#[test]
fn a_file_in_an_image_keeps_its_size() {
    let _machine = machine::alone();
    if !ground::is_possible(SMALL.kind) {
        return;
    }
    let volume = filled(SMALL);
    let before = fs::read(volume.image()).unwrap();
    let image = Image::open_with(volume.image(), &writable()).unwrap();
    let file = image.file(b"plain").unwrap();
    let fixed = "the size of this file is fixed; write inside it";
    for (at, length) in [(19_999, 2), (20_000, 1), (20_480, 512), (16_384, 4096), (1 << 40, 1)] {
        must_say(file.write_at(&vec![9; length], at), Errno::EFBIG, fixed);
    }
    must_say(file.set_len(0), Errno::EOPNOTSUPP, "set_len");
    must_say(file.set_len(40_000), Errno::EOPNOTSUPP, "set_len");
    file.set_len(20_000).unwrap();
    must_say(file.allocate(0, 4096), Errno::EOPNOTSUPP, "allocate");
    must_say(file.allocate(1 << 20, 1 << 20), Errno::EOPNOTSUPP, "allocate");
    assert_eq!(file.write_at(&[], 1 << 40).unwrap(), 0);
    assert_eq!(file.read_at(&mut [0; 10], 20_000).unwrap(), 0);
    assert_eq!(file.kind(), diopter_os::file::FileKind::Regular);
    assert!(fs::read(volume.image()).unwrap() == before, "refused, and the image is another");
    let options = [
        writable().append(true).clone(),
        OpenOptions::new().write(true).clone(),
        OpenOptions::new().append(true).clone(),
    ];
    for options in options {
        let words = "open an image for reading, or for reading and writing";
        must_say(Image::open_with(volume.image(), &options), Errno::EINVAL, words);
    }
    let options = [
        writable().create(true).clone(),
        writable().create_new(true).clone(),
        writable().truncate(true).clone(),
        OpenOptions::new().read(true).create(true).clone(),
    ];
    drop((file, image));
    for options in options {
        let words = "without create, create_new and truncate";
        must_say(Image::open_with(volume.image(), &options), Errno::EINVAL, words);
        must_say(Image::open_with("/nowhere/image", &options), Errno::EINVAL, words);
    }
    assert!(fs::read(volume.image()).unwrap() == before, "refused, and the image is another");
}

#[test]
fn the_unaligned_end_of_a_file_is_written_direct_and_nothing_behind_it() {
    let _machine = machine::alone();
    if !ground::is_possible(SMALL.kind) {
        return;
    }
    let volume = filled(SMALL);
    let before = fs::read(volume.image()).unwrap();
    let image = Image::open_with(volume.image(), writable().strict(true)).unwrap();
    let file = image.file(b"plain").unwrap();
    file.write_at(&[8; 100], 19_900).unwrap();
    file.write_at(&[9; 1000], 18_999).unwrap();
    let mut read = vec![0; 2000];
    assert_eq!(file.read_at(&mut read, 18_500).unwrap(), 1500);
    let expected = [vec![7; 499], vec![9; 1000], vec![8; 1]].concat();
    assert!(read[..1500] == expected);
    let after = fs::read(volume.image()).unwrap();
    let changed: Vec<usize> = (0..before.len()).filter(|at| before[*at] != after[*at]).collect();
    assert_eq!(changed.len(), 1001, "and nothing else");
    assert_eq!(changed.last().unwrap() - changed[0], 1000);
    drop((file, image));
    volume.check(|root| assert_eq!(fs::read(root.join("plain")).unwrap()[18_999], 9));
}

#[test]
fn an_image_opened_for_reading_and_bytes_in_an_inode_are_not_written() {
    let _machine = machine::alone();
    let inline = Format {
        kind: machine::FileSystem::Ext4 { block: 4096, extra: &["-O", "inline_data"] },
        ..SMALL
    };
    if !ground::is_possible(inline.kind) {
        return;
    }
    let volume = filled(inline);
    let before = fs::read(volume.image()).unwrap();
    let image = Image::open(volume.image()).unwrap();
    let closed = "the file is not open for writing";
    must_say(image.file(b"plain").unwrap().write_at(&[1], 0), Errno::EBADF, closed);
    let image = Image::open_with(volume.image(), &writable()).unwrap();
    must_say(image.file(b"tiny"), Errno::EOPNOTSUPP, "mount it and write through the mount");
    let tiny = Image::open(volume.image()).unwrap().file(b"tiny").unwrap();
    let mut read = [0; 9];
    assert_eq!(tiny.read_at(&mut read, 0).unwrap(), 4);
    assert_eq!(&read[..4], b"tiny");
    must_say(tiny.write_at(&[1], 0), Errno::EBADF, closed);
    assert!(fs::read(volume.image()).unwrap() == before, "refused, and the image is another");
}

#[test]
fn what_two_files_share_is_read_and_not_written() {
    let _machine = machine::alone();
    if !ground::is_possible(XFS.kind) {
        return;
    }
    let (volume, name) = Volume::new(XFS, |mount| ground::share(mount.path()));
    let image = Image::open_with(volume.image(), &writable()).unwrap();
    let error = must_say(image.file(name.as_bytes()), Errno::EOPNOTSUPP, "share");
    let Error::Image(error) = error else { panic!("{error}") };
    assert_eq!(error.kind, ImageErrorKind::Refused);
    let mut read = vec![0; 131_072];
    let file = Image::open(volume.image()).unwrap().file(name.as_bytes()).unwrap();
    file.read_exact_at(&mut read, 65_536).unwrap();
    assert!(read[..65_536].iter().all(|byte| *byte == 5) && read[65_536] == 6);
}

#[test]
fn what_another_process_uses_is_not_opened_for_writing() {
    let _machine = machine::alone();
    for format in [SMALL, XFS] {
        if !ground::is_possible(format.kind) {
            continue;
        }
        let dir = machine::Dir::new("copy").unwrap();
        let copy = dir.path().join("copy");
        let (volume, ()) = Volume::new(format, |mount| {
            fs::write(mount.path().join("file"), vec![7; 20_000]).unwrap();
            let device = mount.device();
            let words = "unmount it";
            must_say(Image::open_with(device.device(), &writable()), Errno::EBUSY, words);
            let words = "detach the loop device";
            must_say(Image::open_with(device.backing(), &writable()), Errno::EBUSY, words);
            machine::run("sync", &["-f", mount.path().to_str().unwrap()]).unwrap();
            fs::copy(device.backing(), &copy).unwrap();
        });
        // Never unmounted: there is something to replay.
        let error = must_say(Image::open(&copy), Errno::EOPNOTSUPP, "mount");
        assert!(matches!(error, Error::Image(error) if error.kind == ImageErrorKind::Refused));
        let device = volume.device(512);
        let held = Image::open_with(device.device(), &writable()).unwrap();
        let words = "in use";
        must_say(Image::open_with(device.device(), &writable()), Errno::EBUSY, words);
        must_say(Image::open_with(volume.image(), &writable()), Errno::EBUSY, "detach");
        Image::open(device.device()).unwrap().file(b"file").unwrap();
        drop(held);
        Image::open_with(device.device(), &writable()).unwrap();
    }
}

#[test]
fn what_is_no_image_and_what_is_no_file_says_so() {
    let _machine = machine::alone();
    if !ground::is_possible(SMALL.kind) {
        return;
    }
    let volume = filled(SMALL);
    let dir = machine::Dir::new("wrong").unwrap();
    let other = dir.path().join("other");
    let bytes = fs::read(volume.image()).unwrap();
    let (none, cut) = (ImageErrorKind::NotAnImage, ImageErrorKind::Truncated);
    let no_image = "no supported file system: neither ext2, ext3, ext4 nor XFS";
    let missing = "the volume has 8192 blocks of 4096 bytes, and the image ";
    for (content, kind, words) in [
        (&[][..], none, no_image),
        (&[7; 100][..], none, no_image),
        (&[0; 100_000][..], none, no_image),
        (&bytes[..1 << 20], cut, missing),
        (&bytes[..(32 << 20) - 1], cut, missing),
    ] {
        fs::write(&other, content).unwrap();
        let error = Image::open(&other).err().unwrap();
        let is_it = matches!(&error, Error::Image(error) if error.kind == kind);
        let message = error.to_string();
        assert!(is_it && message.contains(words), "{} bytes: {message}", content.len());
    }
    must_say(Image::open("/nowhere/image"), Errno::ENOENT, "/nowhere/image");
    must_say(Image::open(dir.path()), Errno::EISDIR, "wrong");
    let image = Image::open(volume.image()).unwrap();
    must_say(image.file(b"directory"), Errno::EISDIR, "regular file");
    must_say(image.file(b"nowhere"), Errno::ENOENT, "nowhere");
    must_say(image.file(b"plain/below"), Errno::ENOTDIR, "not a directory");
}

#[test]
fn a_strict_image_has_direct_files_only() {
    let _machine = machine::alone();
    let small_blocks = Format {
        kind: machine::FileSystem::Ext4 { block: 1024, extra: &[] },
        block: 1024,
        ..SMALL
    };
    if !ground::is_possible(small_blocks.kind) {
        return;
    }
    let volume = filled(small_blocks);
    let device = volume.device(4096);
    let image = Image::open_with(device.device(), writable().strict(true)).unwrap();
    must_say(image.file(b"plain"), Errno::EOPNOTSUPP, "blocks are smaller than the device's");
    drop((image, device));
    let image = Image::open_with(volume.image(), writable().strict(true)).unwrap();
    let file: File = image.file(b"plain").unwrap();
    file.write_at(&[1; 999], 77).unwrap();
    let buffered = diopter::EngineOptions {
        policies: diopter::Policies { route: RoutePolicy::Buffered, ..Default::default() },
        ..Default::default()
    };
    diopter::use_for_this_thread(buffered);
    must_say(file.write_at(&[1; 999], 77), Errno::EOPNOTSUPP, "strict");
    diopter::use_for_this_thread(diopter::EngineOptions::DEFAULT);
}
