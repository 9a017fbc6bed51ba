//! Durability: when data are durable, and that a failed flush is reported, and reported again.

use diopter_testkit::env::Capability;
use std::fs;
use std::os::fd::AsFd;

use diopter::{Error, File, IoBuf, IoErrorKind, Request, RwFlags};
use diopter_os::space::sync_file_range_wait;

use super::env;
use super::machine::{self, FileSystem, Loop, Mount};
use super::memory::Skewed;
use super::row::{Check, Row, both_ways, each_backend};

pub const ON_DEVICES_BELOW: &[Check] = &[
    ("a durable write flushes the device", a_durable_write_flushes_the_device),
    ("a sync flushes the device", a_sync_flushes_the_device),
];

/// Opened with `dsync` or `sync`, or with the flag of the request alone; whatever the alignment.
fn a_durable_write_flushes_the_device(row: &Row) {
    let path = row.path();
    let plain = both_ways().open(&path).unwrap();
    plain.write_all_at(&[1; 100_000], 0).unwrap();
    plain.sync_all().unwrap();
    let flushes = |what: &str, write: &dyn Fn()| {
        let before = row.device().flushes();
        write();
        assert!(row.device().flushes() > before, "{what}: the device was not flushed");
    };
    for (offset, length) in [(4096, 8192), (5001, 777), (1, 70_000)] {
        let dsync = both_ways().dsync(true).open(&path).unwrap();
        let sync = both_ways().sync(true).open(&path).unwrap();
        let memory = vec![2; length];
        let what = format!("{offset}+{length}");
        flushes(&what, &|| dsync.write_all_at(&memory, offset).unwrap());
        flushes(&what, &|| sync.write_all_at(&memory, offset).unwrap());
        for flags in [RwFlags::DSYNC, RwFlags::SYNC] {
            flushes(&what, &|| {
                let mut request = Request::write(offset, IoBuf::new(length).unwrap());
                request.flags = flags;
                plain.request(request).unwrap().wait().check_whole().unwrap();
            });
        }
    }
    if !row.is_raw() {
        // The end of the file, through the page cache.
        let file = both_ways().dsync(true).open(&path).unwrap();
        flushes("tail", &|| file.write_all_at(&[3; 777], 100_000).unwrap());
        let append = File::options().append(true).dsync(true).open(&path).unwrap();
        flushes("append", &|| append.write_all_at(&[4; 777], 0).unwrap());
    }
}

fn a_sync_flushes_the_device(row: &Row) {
    let file = both_ways().open(row.path()).unwrap();
    for length in [4096, 777] {
        file.write_all_at(&vec![1; length], 0).unwrap();
        let before = row.device().flushes();
        file.sync_data().unwrap();
        assert!(row.device().flushes() > before);
        file.write_all_at(&vec![1; length], 8192).unwrap();
        let before = row.device().flushes();
        file.sync_all().unwrap();
        assert!(row.device().flushes() > before);
        file.write_all_at(&vec![1; length], 16_384).unwrap();
        let before = row.device().flushes();
        file.request(Request::sync_data()).unwrap().wait().check_whole().unwrap();
        assert!(row.device().flushes() > before);
    }
}

/// An ext4 on a device whose own file lies, sparse, on a small ext4: when that is full, blocks that
/// were never written can't be. Dropped from the inside out.
struct Thin {
    inner: Mount,
    outer: Mount,
}

impl Thin {
    fn new() -> Thin {
        let ext4 = FileSystem::Ext4 { block: 4096, extra: &["-O", "^has_journal", "-m", "0"] };
        let outer = Mount::new(ext4, 48 << 20, "defaults").unwrap();
        let device = Loop::over(&outer.path().join("inner"), 256 << 20, 512).unwrap();
        let inner = Mount::on(device, ext4, "errors=continue").unwrap();
        Thin { inner, outer }
    }

    /// Takes all that is left on the outer file system.
    fn fill(&self) {
        let filler = fs::File::create(self.outer.path().join("filler")).unwrap();
        let mut length = 64 << 20;
        while length >= 4096 {
            let (at, space) = (filler.metadata().unwrap().len(), filler.as_fd());
            if diopter_os::space::fallocate_extend(space, at, length).is_err() {
                length /= 2;
            }
        }
        filler.sync_all().unwrap();
    }
}

impl Drop for Thin {
    fn drop(&mut self) {
        // So that the inner one can be unmounted without errors.
        fs::remove_file(self.outer.path().join("filler")).unwrap_or(());
    }
}

/// Writes pieces through the page cache, more than the full device can take.
fn write_pieces(file: &File) {
    for n in 0..64 {
        file.write_all_at(&[1; 100], n * 65_536).unwrap();
    }
}

fn is_device_error(result: diopter::Result<()>) -> bool {
    matches!(result, Err(Error::Io(error))
        if matches!(error.kind, IoErrorKind::Device | IoErrorKind::NoSpace))
}

#[test]
fn a_write_back_that_fails_makes_every_later_flush_fail() {
    let _alone = machine::alone();
    if !has_ext4() {
        return;
    }
    each_backend(|backend| {
        let thin = Thin::new();
        let path = thin.inner.path().join("file");
        let file = both_ways().open(&path).unwrap();
        let other = both_ways().open(thin.inner.path().join("other")).unwrap();
        // Through the page cache: an end that is on no block.
        thin.fill();
        write_pieces(&file);
        assert!(is_device_error(file.sync_data()), "{backend}: the data are nowhere");
        assert!(is_device_error(file.sync_data()), "{backend}: and still are");
        assert!(is_device_error(file.sync_all()));
        assert!(is_device_error(file.clone().sync_all()), "a clone is the same open file");
        let queued = file.request(Request::sync_data()).unwrap().wait();
        assert!(queued.result.is_err());
        // Another file is another matter.
        other.sync_data().unwrap();
    });
}

#[test]
fn a_flush_reports_what_another_descriptor_s_write_back_met() {
    let _alone = machine::alone();
    if !has_ext4() {
        return;
    }
    each_backend(|backend| {
        let thin = Thin::new();
        let path = thin.inner.path().join("file");
        let file = both_ways().open(&path).unwrap();
        let plain = fs::File::open(&path).unwrap();
        thin.fill();
        write_pieces(&file);
        // Another descriptor writes the pages back, and gets the error.
        assert!(sync_file_range_wait(plain.as_fd(), 0, 0).is_err());
        assert!(is_device_error(file.sync_data()), "{backend}");
        assert!(is_device_error(file.sync_data()), "{backend}");
    });
}

#[test]
fn a_direct_write_that_finds_no_room_below_fails_at_once() {
    let _alone = machine::alone();
    if !has_ext4() {
        return;
    }
    each_backend(|backend| {
        let thin = Thin::new();
        let path = thin.inner.path().join("file");
        let file = both_ways().open(&path).unwrap();
        file.write_all_at(&Skewed::new(65_536, 0), 0).unwrap();
        file.sync_all().unwrap();
        thin.fill();
        let written = (0..64_u64).map(|n| {
            let memory = Skewed::new(65_536, 0);
            file.write_all_at(&memory, (1 << 20) + n * 65_536)
        });
        let failed: Vec<_> = written.filter_map(Result::err).collect();
        assert!(!failed.is_empty(), "{backend}: there is no room");
        assert!(failed.iter().all(|error| matches!(error, Error::Io(_))));
        // What was there can still be read and written.
        file.write_all_at(&Skewed::new(4096, 0), 4096).unwrap();
        let mut memory = Skewed::new(65_536, 0);
        file.read_exact_at(memory.as_mut(), 0).unwrap();
    });
}

fn has_ext4() -> bool {
    let missing = machine::loop_missing().map(|why| (Capability::Loop, why));
    let ext4 = FileSystem::Ext4 { block: 4096, extra: &[] };
    match missing.or_else(|| ext4.missing()) {
        Some((capability, why)) => {
            env::skip(capability, why);
            false
        }
        None => true,
    }
}
