//! The writer that writes behind its caller, on files of this machine: any size of pieces, any
//! offset, every kind of file, errors, drops. The model has the faults and crashes.

use std::fs::File as StdFile;
use std::io::{ErrorKind, Write};
use std::os::fd::AsFd;
use std::path::Path;

use diopter::engine::WriterOptions;
use diopter::layouts::StripedFile;
use diopter::{Errno, Error, File, FileRange, Outcome, RangeState, Request, SequentialWriter};
use diopter_core::limits::WRITER_BYTES_MAX;
use diopter_core::prng::Prng;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use diopter_os::file::DirectSupport;
use diopter_os::residency::residency;
use diopter_testkit::env::Capability;
use diopter_testkit::{env, memory};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

fn long(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap()
}

fn short(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap()
}

fn content(bytes: usize, seed: u64) -> Vec<u8> {
    memory::content(bytes, Prng::new(seed))
}

/// Small enough that every bound is met soon.
fn tight() -> WriterOptions {
    WriterOptions::new().buffer_bytes(long(32 * KIB)).in_flight(3)
}

fn striped(dir: &Path) -> diopter::Result<File> {
    let objects = [(); 3].map(|()| ObjectPlace::Dir(dir.to_owned())).into();
    let layout = CreateOptions { objects, stripe_size: 64 << 10, ..CreateOptions::default() };
    Ok(StripedFile::create(dir.join("striped"), &layout)?.into_file())
}

/// Runs a test on a new plain file, and on a striped one where that is possible.
fn each_kind(test: impl Fn(&File)) {
    let dir = tempfile::tempdir().unwrap();
    test(&File::create(dir.path().join("plain")).unwrap());
    match striped(dir.path()) {
        Ok(file) => test(&file),
        Err(error) => env::skip(Capability::Xattr, error),
    }
}

/// Returns the whole content, read past the writer.
fn read_all(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; short(file.size().unwrap())];
    file.read_exact_at(&mut bytes, 0).unwrap();
    bytes
}

fn check(got: &[u8], expected: &[u8]) {
    assert_eq!(memory::difference(got, expected), None);
}

/// Writes in pieces of up to `most` bytes.
fn write_in_pieces(writer: &mut SequentialWriter, mut content: &[u8], most: u64, prng: &mut Prng) {
    while !content.is_empty() {
        let length = content.len().min(1 + short(prng.below(most)));
        writer.write_all(&content[..length]).unwrap();
        content = &content[length..];
    }
}

fn finish(writer: SequentialWriter) -> File {
    let (file, outcome) = writer.finish();
    let file = file.unwrap();
    assert!(outcome.is_all_done(), "{outcome:?}");
    file
}

fn pages_cached(file: &File) -> u64 {
    let pages = file
        .object_descriptors()
        .map(|object| residency(object, 0, 0, u64::MAX >> 1).expect("a regular file").pages_cached);
    pages.sum()
}

#[test]
fn pieces_of_any_size_make_the_bytes_of_the_file() {
    eprintln!("seed {} (DIOPTER_SEED)", env::seed());
    let content = content(3 * MIB + 1234, env::seed());
    each_kind(|file| {
        let mut prng = Prng::new(env::seed()).fork("pieces");
        for options in [tight(), WriterOptions::new(), tight().size_hint(long(content.len()))] {
            for most in [100, 10_000, long(MIB)] {
                file.set_len(0).unwrap();
                let length = if most == 100 { 100_000 } else { content.len() };
                let mut writer = file.writer_with(0, options);
                write_in_pieces(&mut writer, &content[..length], most, &mut prng);
                assert_eq!(writer.position(), long(length));
                finish(writer);
                check(&read_all(file), &content[..length]);
            }
        }
    });
}

#[test]
fn pieces_of_64_mib_are_taken_with_little_memory() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("plain")).unwrap();
    let content = content(64 * MIB + 77, 3);
    let mut writer = file.writer(0);
    let mut rest = &content[..];
    while !rest.is_empty() {
        let n = writer.write(rest).unwrap();
        assert!(writer.bytes_behind() <= WRITER_BYTES_MAX, "{}", writer.bytes_behind());
        rest = &rest[n..];
    }
    writer.sync().unwrap();
    check(&read_all(&finish(writer)), &content);
}

#[test]
fn a_stream_of_no_bytes_changes_nothing() {
    each_kind(|file| {
        for options in [WriterOptions::new(), tight().size_hint(1 << 20).preallocate(1 << 20)] {
            let mut writer = file.writer_with(12_345, options);
            assert_eq!(writer.write(&[]).unwrap(), 0);
            writer.sync().unwrap();
            let (file, outcome) = writer.finish();
            assert_eq!(file.unwrap().size().unwrap(), 0);
            assert_eq!(outcome.ranges().iter().map(|part| part.range.length()).sum::<u64>(), 0);
        }
    });
}

#[test]
fn an_offset_that_is_not_aligned_keeps_the_bytes_around_the_stream() {
    let (old, new) = (content(300_000, 4), content(200_000, 5));
    each_kind(|file| {
        for (offset, length) in [(1, 1), (511, 2), (4095, 200_000), (99_999, 100_000), (299_999, 9)]
        {
            file.set_len(0).unwrap();
            file.write_all_at(&old, 0).unwrap();
            let mut writer = file.writer_with(long(offset), tight());
            writer.write_all(&new[..length]).unwrap();
            finish(writer);
            let mut expected = old.clone();
            expected.resize(old.len().max(offset + length), 0);
            expected[offset..offset + length].copy_from_slice(&new[..length]);
            check(&read_all(file), &expected);
        }
    });
}

#[test]
fn flushes_write_what_was_taken_and_the_stream_continues_from_there() {
    let content = content(200_000, 6);
    each_kind(|file| {
        let mut writer = file.writer_with(0, tight());
        let mut prng = Prng::new(7);
        let mut at = 0;
        while at < content.len() {
            let end = content.len().min(at + 1 + short(prng.below(9000)));
            writer.write_all(&content[at..end]).unwrap();
            at = end;
            if prng.one_in(3) {
                writer.flush().unwrap();
                assert_eq!(writer.bytes_behind(), 0);
                check(&read_all(file), &content[..at]);
            }
        }
        check(&read_all(&finish(writer)), &content);
    });
}

#[test]
fn the_size_follows_the_data_unless_it_may_be_first() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("plain")).unwrap();
    let piece = vec![7; 50_000];
    let sizes = |options: WriterOptions| {
        file.set_len(0).unwrap();
        let mut writer = file.writer_with(0, options);
        let mut most_ahead = 0;
        for _ in 0..100 {
            writer.write_all(&piece).unwrap();
            most_ahead = most_ahead.max(file.size().unwrap().saturating_sub(writer.position()));
        }
        let during = file.size().unwrap();
        assert_eq!(finish(writer).size().unwrap(), 5_000_000, "{options:?}");
        let blocks = std::os::unix::fs::MetadataExt::blocks(&file.metadata().unwrap());
        assert!(blocks * 512 < 5_000_000 + 200_000, "{blocks} blocks: nothing stays allocated");
        (during, most_ahead)
    };
    let (during, most_ahead) = sizes(tight());
    assert!(during <= 5_000_000 && most_ahead == 0, "{during}, {most_ahead} ahead");
    assert_eq!(sizes(tight().size_hint(9_000_001)).0, 9_000_001);
    assert_eq!(sizes(tight().size_hint(5_000_000)).0, 5_000_000);
    let (during, most_ahead) = sizes(tight().preallocate(1 << 20));
    assert!(during >= 4_900_000 && most_ahead > 0 && most_ahead <= 1 << 20, "{most_ahead}");
    assert!(sizes(tight().size_hint(1_000_000)).1 > 0, "a stream longer than its hint");
}

#[test]
fn what_another_writer_has_added_stays_when_the_size_was_first() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("plain")).unwrap();
    let mut writer = file.writer_with(0, tight().size_hint(1 << 20));
    writer.write_all(&[1; 100_000]).unwrap();
    file.write_all_at(&[2; 10], 2 << 20).unwrap();
    let file = finish(writer);
    assert_eq!(file.size().unwrap(), (2 << 20) + 10);
    check(&read_all(&file)[2 << 20..], &[2; 10]);
}

#[test]
fn after_a_sync_no_page_is_cached() {
    each_kind(|file| {
        if file.direct_support() != DirectSupport::Full {
            return env::skip(Capability::Direct, "the temporary directory has no direct I/O");
        }
        for (start, end) in [(0, 1_000_001), (1_000_001, 1_000_003), (1_000_003, 1_100_000)] {
            let mut writer = file.writer_with(start, tight());
            writer.write_all(&vec![3; short(end - start)]).unwrap();
            writer.sync().unwrap();
            finish(writer);
            assert_eq!(pages_cached(file), 0, "{start} to {end}");
        }
    });
}

#[test]
fn appends_stay_in_order_after_what_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plain");
    let content = content(300_000, 8);
    for start in [0, 5, 4096] {
        std::fs::write(&path, &content[..start]).unwrap();
        let file = File::options().append(true).open(&path).unwrap();
        let mut writer = file.writer_with(0, tight().size_hint(1 << 20).preallocate(1 << 20));
        for piece in content[start..].chunks(10_000) {
            writer.write_all(piece).unwrap();
            assert!(writer.bytes_behind() <= long(64 * KIB), "one in flight, one being filled");
        }
        writer.sync().unwrap();
        let (file, outcome) = writer.finish();
        assert_eq!(file.unwrap().size().unwrap(), 300_000);
        let range = FileRange::new(0, long(content.len() - start));
        assert_eq!(outcome, Outcome::whole(range, RangeState::Done));
        check(&std::fs::read(&path).unwrap(), &content);
    }
}

/// A file in memory, which has no direct I/O.
fn in_memory() -> (StdFile, File) {
    let flags = MemfdFlags::ALLOW_SEALING | MemfdFlags::CLOEXEC;
    let fd = StdFile::from(memfd_create("stream", flags).unwrap());
    let file = File::try_from(fd.try_clone().unwrap()).unwrap();
    (fd, file)
}

/// One that cannot grow past `size` bytes.
fn limited(size: u64) -> File {
    let (fd, file) = in_memory();
    fd.set_len(size).unwrap();
    fcntl_add_seals(fd.as_fd(), SealFlags::GROW).unwrap();
    file
}

#[test]
fn a_file_without_direct_io_is_written_through_the_page_cache() {
    let (_, file) = in_memory();
    assert!(matches!(file.direct_support(), DirectSupport::None(_)), "it is in memory");
    let content = content(500_000, 10);
    for options in [tight(), tight().size_hint(600_000), tight().preallocate(8192)] {
        file.set_len(0).unwrap();
        let mut writer = file.writer_with(0, options);
        write_in_pieces(&mut writer, &content, 10_000, &mut Prng::new(1));
        writer.sync().unwrap();
        check(&read_all(&finish(writer)), &content);
    }
}

fn errno_of(error: &std::io::Error) -> Errno {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<Error>());
    inner.expect("an error of diopter").errno()
}

#[test]
fn an_error_in_mid_stream_is_returned_once_and_the_outcome_is_exact() {
    let file = limited(200_000);
    let mut writer = file.writer_with(0, tight());
    let mut errors = Vec::new();
    for _ in 0..100 {
        if let Err(error) = writer.write_all(&[9; 10_000]) {
            errors.push(errno_of(&error));
        }
    }
    assert_eq!(errors[0], Errno::EPERM);
    assert!(errors.len() > 10 && errors[1..].iter().all(|errno| *errno == Errno::ECANCELED));
    assert_eq!(errno_of(&writer.flush().unwrap_err()), Errno::ECANCELED);
    assert_eq!(writer.sync().unwrap_err().errno(), Errno::ECANCELED);
    let (result, outcome) = writer.finish();
    assert_eq!(result.unwrap_err().errno(), Errno::ECANCELED);
    let [done, failed, rest @ ..] = outcome.ranges() else { panic!("{outcome:?}") };
    let written = short(done.range.end());
    assert_eq!((done.range.start(), done.state), (0, RangeState::Done));
    assert_eq!(failed.state, RangeState::Failed(Errno::EPERM));
    assert!(rest.iter().all(|part| part.state != RangeState::Done));
    assert!((150_000..=200_000).contains(&written), "{written}");
    check(&read_all(&file)[..written], &vec![9; written]);
    // The caller has seen it: nothing is left for the next sync.
    file.sync_data().unwrap();
}

#[test]
fn an_error_that_comes_with_finish_is_returned_by_it() {
    let file = limited(200_000);
    let mut writer = file.writer_with(0, tight());
    writer.write_all(&[9; 20_000]).unwrap();
    writer.flush().unwrap();
    writer.write_all(&[9; 190_000]).unwrap_or(());
    let (result, outcome) = writer.finish();
    assert!(!outcome.is_all_done());
    let errno = result.unwrap_err().errno();
    assert!([Errno::EPERM, Errno::ECANCELED].contains(&errno), "{errno}");
}

#[test]
fn a_file_that_is_not_open_for_writing_fails_at_the_first_chance() {
    let path = tempfile::NamedTempFile::new().unwrap();
    let file = File::open(path.path()).unwrap();
    let mut writer = file.writer(0);
    writer.write_all(b"any bytes").unwrap();
    let error = writer.flush().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    let (result, outcome) = writer.finish();
    assert_eq!(result.unwrap_err().errno(), Errno::ECANCELED);
    assert_eq!(outcome, Outcome::whole(FileRange::new(0, 9), RangeState::NotTried));
}

#[test]
fn a_writer_that_is_dropped_has_written_what_it_took() {
    let content = content(300_000, 11);
    each_kind(|file| {
        let mut writer = file.writer_with(0, tight().size_hint(1 << 20));
        writer.write_all(&content).unwrap();
        drop(writer);
        check(&read_all(file), &content);
        file.sync_data().unwrap();
    });
}

#[test]
fn the_error_of_a_writer_that_is_dropped_is_that_of_the_next_sync() {
    let file = limited(10_000);
    let mut writer = file.writer(0);
    writer.write_all(&[9; 10_001]).unwrap();
    drop(writer);
    assert_eq!(file.sync_data().unwrap_err().errno(), Errno::EPERM);
}

#[test]
fn a_writer_moves_between_threads() {
    let content = content(400_000, 12);
    let (_, file) = in_memory();
    let mut writer = file.writer_with(0, tight());
    for piece in content.chunks(100_000) {
        let piece = piece.to_owned();
        let moved = std::thread::spawn(move || {
            writer.write_all(&piece).unwrap();
            writer
        });
        writer = moved.join().unwrap();
    }
    check(&read_all(&finish(writer)), &content);
}

#[test]
fn requests_of_the_thread_on_the_same_blocks_do_not_stop_a_writer() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("plain")).unwrap();
    file.write_all_at(&[1; 100_000], 0).unwrap();
    // Its block is locked until this thread's engine takes the result.
    let other = file.request(Request::write(0, memory::filled(4096, 2))).unwrap();
    let mut writer = file.writer_with(100, tight());
    writer.write_all(&[3; 50_000]).unwrap();
    writer.flush().unwrap();
    other.wait().check_whole().unwrap();
    let bytes = read_all(&finish(writer));
    check(&bytes[..100], &[2; 100]);
    check(&bytes[100..50_100], &[3; 50_000]);
}
