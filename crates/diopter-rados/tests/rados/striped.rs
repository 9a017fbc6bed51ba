//! Striped objects next to `rados --striper`: what one writes, the other reads.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use diopter_rados::Pool;
use diopter_rados::striper::{Access, File, Layout, Open, object_name};

use crate::cluster::{Ceph, ceph, content};

const MIB: usize = 1 << 20;

const SIZES: [usize; 6] = [0, 1, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 20 * MIB];

fn layouts() -> [Layout; 4] {
    let layout = |unit, count, object| Layout::new(unit, count, object).unwrap();
    let (kib, mib) = (1 << 10, 1 << 20);
    [
        Layout::default(),
        layout(64 * kib, 3, 256 * kib),
        layout(mib, 4, 4 * mib),
        layout(512 * kib, 1, 3 * mib),
    ]
}

fn open(pool: &Pool, name: &[u8]) -> File {
    File::open(pool, name, &Open::new(Access::Read)).unwrap()
}

fn create(pool: &Pool, name: &[u8], layout: &Layout) -> File {
    File::create(pool, name, layout.clone(), Open::new(Access::Write).lease).unwrap()
}

/// Puts a file with the tool.
fn put(ceph: &Ceph, name: &OsStr, bytes: &[u8]) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), bytes).unwrap();
    ceph.must(&[OsStr::new("--striper"), OsStr::new("put"), name, file.path().as_os_str()]);
}

/// Gets a file with the tool.
fn get(ceph: &Ceph, name: &OsStr) -> Vec<u8> {
    let file = tempfile::NamedTempFile::new().unwrap();
    ceph.must(&[OsStr::new("--striper"), OsStr::new("get"), name, file.path().as_os_str()]);
    std::fs::read(file.path()).unwrap()
}

/// Reads all of it, with room for more.
fn read_all(file: &File) -> Vec<u8> {
    let size = usize::try_from(file.size().unwrap()).unwrap();
    let mut buffer = vec![0xee; size + 100];
    assert_eq!(file.read_at(0, &mut buffer).unwrap(), size);
    buffer.truncate(size);
    buffer
}

/// The attributes of the striper, by name.
fn attributes(pool: &Pool, name: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    let add = |name: &[u8], value: &[u8]| {
        all.push((String::from_utf8(name.to_vec()).unwrap(), value.to_vec()));
    };
    pool.attributes(&object_name(name, 0), add).unwrap();
    all.retain(|(name, _)| name.starts_with("striper."));
    all.sort();
    all
}

#[test]
fn what_the_tool_put_is_read() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    for (number, layout) in layouts().iter().enumerate() {
        for size in SIZES {
            let name = format!("put-{number}-{size}");
            let bytes = content(size, size as u64 + 1);
            // The tool has one layout, and keeps that of an object that exists.
            if number > 0 {
                drop(create(&pool, name.as_bytes(), layout));
            }
            put(ceph, OsStr::new(&name), &bytes);
            let file = open(&pool, name.as_bytes());
            assert_eq!(file.layout(), layout);
            assert!(read_all(&file) == bytes, "{name}");
            for (offset, length) in [(0, 1), (size / 2, 70_000), (size.saturating_sub(5), 100)] {
                let mut buffer = vec![1; length];
                let expected = &bytes[offset.min(size)..(offset + length).min(size)];
                let read = file.read_at(offset as u64, &mut buffer).unwrap();
                assert!(&buffer[..read] == expected, "{name} {offset} {length}");
            }
        }
    }
}

#[test]
fn the_tool_gets_what_was_written() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    for (number, layout) in layouts().iter().enumerate() {
        for size in SIZES {
            let name = format!("written-{number}-{size}");
            let bytes = content(size, size as u64 + 7);
            let file = create(&pool, name.as_bytes(), layout);
            // In pieces that no layout has, the last one first.
            let pieces: Vec<usize> = (0..size).step_by(3_000_001).collect();
            for &at in pieces.iter().rev() {
                let end = (at + 3_000_001).min(size);
                file.write_at(at as u64, &bytes[at..end]).unwrap();
            }
            assert!(read_all(&file) == bytes, "{name}");
            drop(file);
            assert!(get(ceph, OsStr::new(&name)) == bytes, "{name}");
        }
    }
}

#[test]
fn attributes_and_objects_are_those_of_the_tool() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let bytes = content(9 * MIB, 5);
    put(ceph, OsStr::new("twin-a"), &bytes);
    create(&pool, b"twin-b", &Layout::default()).write_at(0, &bytes).unwrap();
    assert_eq!(attributes(&pool, b"twin-a"), attributes(&pool, b"twin-b"));
    for object in 0..3 {
        let stat = |name: &[u8]| pool.stat(&object_name(name, object)).unwrap().size;
        assert_eq!(stat(b"twin-a"), stat(b"twin-b"));
    }
    assert!(pool.stat(&object_name(b"twin-b", 3)).is_err());
}

#[test]
fn missing_objects_read_as_zeros_up_to_the_size() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let layout = Layout::new(64 << 10, 3, 256 << 10).unwrap();
    let file = create(&pool, b"sparse", &layout);
    file.write_at(5_000_000, b"end").unwrap();
    file.write_at(100_000, b"middle").unwrap();
    let mut expected = vec![0; 5_000_003];
    expected[100_000..100_006].copy_from_slice(b"middle");
    expected[5_000_000..].copy_from_slice(b"end");
    assert!(read_all(&file) == expected);
    let mut one = [9; 100];
    assert_eq!(file.read_at(2_000_000, &mut one).unwrap(), 100);
    assert_eq!(one, [0; 100]);
    assert_eq!(file.read_at(5_000_003, &mut one).unwrap(), 0);
    assert_eq!(file.read_at(u64::MAX, &mut one).unwrap(), 0);
    drop(file);
    assert!(get(ceph, OsStr::new("sparse")) == expected);
}

#[test]
fn a_file_whose_first_object_is_gone_does_not_read_as_zeros() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let file = create(&pool, b"beheaded", &Layout::default());
    file.write_at(0, b"text").unwrap();
    // Around the lock, as no tool of the striper does.
    pool.remove(&object_name(b"beheaded", 0)).unwrap();
    assert_eq!(file.read_at(0, &mut [0; 4]).unwrap_err().errno(), Some(libc::ENOENT));
}

#[test]
fn a_file_is_created_once_and_opened_only_if_it_exists() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let first = create(&pool, b"once", &Layout::default());
    let again = File::create(&pool, b"once", Layout::default(), Open::new(Access::Write).lease);
    assert_eq!(again.err().unwrap().errno(), Some(libc::EEXIST));
    drop(first);
    let error = File::open(&pool, b"never", &Open::new(Access::Write)).err().unwrap();
    assert_eq!(error.errno(), Some(libc::ENOENT));
    assert!(pool.stat(&object_name(b"never", 0)).is_err());
}

#[test]
fn the_size_only_grows_however_many_write() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let files: Vec<File> = (0..4)
        .map(|number| match number {
            0 => create(&pool, b"grown", &Layout::new(64 << 10, 2, 128 << 10).unwrap()),
            _ => File::open(&pool, b"grown", &Open::new(Access::Write)).unwrap(),
        })
        .collect();
    const PIECE: usize = 10_007;
    let bytes = content(100 * PIECE, 3);
    std::thread::scope(|scope| {
        for (number, file) in files.iter().enumerate() {
            let bytes = &bytes;
            scope.spawn(move || {
                for piece in (number..100).step_by(4) {
                    let at = piece * PIECE;
                    file.write_at(at as u64, &bytes[at..at + PIECE]).unwrap();
                    assert!(file.size().unwrap() >= (at + PIECE) as u64);
                }
            });
        }
    });
    for file in &files {
        assert!(read_all(file) == bytes);
    }
}

#[test]
fn a_reader_sees_what_another_client_appended() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let writer = create(&pool, b"appended", &Layout::default());
    writer.write_at(0, b"one").unwrap();
    let reader = open(&pool, b"appended");
    writer.write_at(3, b" two").unwrap();
    let mut buffer = [0; 20];
    assert_eq!(reader.read_at(0, &mut buffer).unwrap(), 7);
    assert_eq!(&buffer[..7], b"one two");
}

#[test]
fn odd_names_are_names_like_others() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let mut names: Vec<OsString> =
        ["/a/b", "a!b", "a@b", "100%", "%2F", "..", "../up", "a b\tc", "-", "%d%s%n", "\u{e9}"]
            .map(OsString::from)
            .to_vec();
    names.push(OsStr::from_bytes(b"bytes\xff\xfe").to_owned());
    for name in names {
        let bytes = content(5 * MIB, 11);
        let file = create(&pool, name.as_bytes(), &Layout::new(MIB as u64, 2, MIB as u64).unwrap());
        file.write_at(0, &bytes).unwrap();
        drop(file);
        // Not an option of the tool.
        if name != "-" {
            assert!(get(ceph, &name) == bytes, "{name:?}");
            put(ceph, &name, &bytes[..100]);
            assert!(read_all(&open(&pool, name.as_bytes())) == bytes[..100], "{name:?}");
        }
    }
}
