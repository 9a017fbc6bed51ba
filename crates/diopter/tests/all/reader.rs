//! The reader that reads ahead, against the bytes of the file: any size of reads, any seeks, on a
//! plain file and on a striped one.

use diopter_testkit::env::Capability;
use std::io::{BufRead, Read, Seek, SeekFrom};
use std::path::Path;

use diopter::layouts::StripedFile;
use diopter::{
    BackendKind, EngineOptions, File, IoBuf, ReaderOptions, Request, use_for_this_thread,
};
use diopter_core::limits::{READER_BYTES_MAX, REQUESTS_MAX};
use diopter_core::prng::Prng;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use diopter_testkit::{env, memory};

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;
const STRIPE: u64 = 64 << 10;

fn long(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap()
}

fn content(bytes: usize, seed: u64) -> Vec<u8> {
    memory::content(bytes, Prng::new(seed))
}

fn striped(dir: &Path, stripe_size: u64) -> diopter::Result<File> {
    let objects = [(); 3].map(|()| ObjectPlace::Dir(dir.to_owned())).into();
    let layout = CreateOptions { objects, stripe_size, ..CreateOptions::default() };
    let file = StripedFile::create(dir.join("striped"), &layout)?;
    Ok(file.into_file())
}

/// Runs a test on a plain file with `content`, and on a striped one where that is possible, with
/// this thread's calls on each backend, checked.
fn each_kind(content: &[u8], test: impl Fn(&File)) {
    for backend in [BackendKind::Threads, BackendKind::Auto] {
        use_for_this_thread(EngineOptions { backend, checked: true, ..EngineOptions::DEFAULT });
        let dir = tempfile::tempdir().unwrap();
        let file = File::create(dir.path().join("plain")).unwrap();
        file.write_all_at(content, 0).unwrap();
        test(&file);
        match striped(dir.path(), STRIPE) {
            Ok(file) => {
                file.write_all_at(content, 0).unwrap();
                test(&file);
            }
            Err(error) => env::skip(Capability::Xattr, error),
        }
    }
    use_for_this_thread(EngineOptions::DEFAULT);
}

/// Small enough that every bound is met soon.
fn tight() -> ReaderOptions {
    ReaderOptions::new().buffer_bytes(long(32 * KIB)).in_flight(3)
}

/// Panics with the place where the two differ first; a whole dump of either would not help.
fn check(read: &[u8], expected: &[u8], at: u64) {
    let differs = read.iter().zip(expected).position(|(one, other)| one != other);
    assert_eq!((read.len(), differs), (expected.len(), None), "from byte {at} on");
}

#[test]
fn reads_and_seeks_at_random_give_the_bytes_of_the_file() {
    eprintln!("seed {} (DIOPTER_SEED)", env::seed());
    let content = content(3 * MIB + 1234, env::seed());
    each_kind(&content, |file| {
        let mut prng = Prng::new(env::seed()).fork("reads and seeks");
        for options in [tight(), ReaderOptions::new()] {
            let mut reader = file.reader_with(0, options);
            let mut at = 0;
            for _ in 0..400 {
                if prng.one_in(8) {
                    at = prng.below(long(content.len()) + 5000);
                    let to = if prng.one_in(2) {
                        SeekFrom::Start(at)
                    } else {
                        let end = i64::try_from(content.len()).unwrap();
                        SeekFrom::End(i64::try_from(at).unwrap() - end)
                    };
                    assert_eq!(reader.seek(to).unwrap(), at);
                }
                let most = [10, 5000, 300_000][usize::try_from(prng.below(3)).unwrap()];
                let mut buf = vec![0xa5; usize::try_from(prng.below(most)).unwrap()];
                let n = reader.read(&mut buf).unwrap();
                let from = usize::try_from(at).unwrap().min(content.len());
                let expected = &content[from..content.len().min(from + buf.len())];
                check(&buf[..n], expected, at);
                at += long(n);
                assert_eq!(reader.stream_position().unwrap(), at);
            }
        }
    });
}

#[test]
fn a_file_of_any_size_is_read_to_its_end_and_no_further() {
    for bytes in [0, 1, 511, 512, 4095, 4096, 65535, 65536, 65537, 100_000, 300_001, 5 * MIB + 7] {
        let content = content(bytes, 7);
        each_kind(&content, |file| {
            for options in [tight(), ReaderOptions::new()] {
                let mut reader = file.reader_with(0, options);
                let mut read = Vec::new();
                assert_eq!(reader.read_to_end(&mut read).unwrap(), bytes);
                check(&read, &content, 0);
                assert_eq!(reader.read(&mut [0; 10]).unwrap(), 0);
                assert!(reader.fill_buf().unwrap().is_empty());
            }
        });
    }
}

#[test]
fn no_file_has_bytes_at_the_largest_offsets() {
    each_kind(&[1; 100], |file| {
        for offset in [101, 1 << 62, u64::MAX / 2 - 1, u64::MAX / 2, u64::MAX - 1, u64::MAX] {
            assert_eq!(file.reader(offset).read(&mut [0; 5000]).unwrap(), 0, "{offset}");
        }
        let mut reader = file.reader(50);
        assert!(reader.seek(SeekFrom::Current(-51)).is_err(), "before byte 0");
        assert_eq!(reader.stream_position().unwrap(), 50);
    });
}

#[test]
fn a_file_that_grows_is_read_on() {
    let content = content(MIB, 9);
    each_kind(&[], |file| {
        let mut reader = file.reader_with(0, tight());
        let mut at = 0;
        for more in [1, 511, 512, 5000, 70_000, 4096, 500_000, 1] {
            let end = at + more;
            file.write_all_at(&content[at..end], long(at)).unwrap();
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            check(&read, &content[at..end], long(at));
            at = end;
        }
    });
}

#[test]
fn a_file_that_grows_behind_what_was_read_ahead_is_read_without_a_gap() {
    let content = content(MIB, 17);
    each_kind(&[], |file| {
        file.write_all_at(&content[..70_001], 0).unwrap();
        let mut reader = file.reader_with(0, tight());
        let mut read = vec![0; 50 * KIB];
        reader.read_exact(&mut read).unwrap();
        assert!(reader.bytes_ahead() > 0, "up to the end, or past it");
        file.write_all_at(&content[70_001..], 70_001).unwrap();
        reader.read_to_end(&mut read).unwrap();
        check(&read, &content, 0);
    });
}

#[test]
fn a_file_that_is_cut_ends_where_it_does_now() {
    let content = content(4 * MIB, 10);
    each_kind(&content, |file| {
        let mut reader = file.reader_with(0, tight());
        reader.read_exact(&mut vec![0; 200 * KIB]).unwrap();
        file.set_len(long(MIB + 5)).unwrap();
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).unwrap();
        check(&rest, &content[200 * KIB..MIB + 5], long(200 * KIB));
        assert_eq!(file.size().unwrap(), long(MIB + 5));
    });
}

#[test]
fn the_window_grows_while_the_reading_goes_on_and_is_small_again_after_a_seek() {
    let content = content(20 * MIB, 11);
    each_kind(&content, |file| {
        let mut reader = file.reader(0);
        let mut buf = vec![0; 4 * KIB];
        reader.read_exact(&mut buf).unwrap();
        assert_eq!(reader.bytes_ahead(), long(60 * KIB), "one small request");
        let mut seen = Vec::new();
        for _ in 0..8 * MIB / buf.len() {
            reader.read_exact(&mut buf).unwrap();
            seen.push(reader.bytes_ahead());
        }
        assert!(seen.iter().any(|ahead| (long(100 * KIB)..long(MIB)).contains(ahead)));
        assert!(seen.iter().any(|ahead| *ahead >= long(8 * MIB)), "{:?}", seen.iter().max());
        assert!(seen.iter().all(|ahead| *ahead <= READER_BYTES_MAX));
        reader.seek(SeekFrom::Current(1)).unwrap();
        assert_eq!(reader.bytes_ahead(), 0);
        reader.read_exact(&mut buf).unwrap();
        assert!(reader.bytes_ahead() <= long(64 * KIB));
        reader.seek(SeekFrom::Start(0)).unwrap();
        let mut most = 0;
        for _ in 0..8 * MIB / buf.len() {
            reader.read_exact(&mut buf).unwrap();
            most = most.max(reader.bytes_ahead());
        }
        assert!(most >= long(8 * MIB), "and grows again: {most}");
    });
}

#[test]
fn no_more_is_read_ahead_than_the_options_say() {
    let content = content(2 * MIB, 12);
    each_kind(&content, |file| {
        let mut reader = file.reader_with(0, tight());
        let mut buf = vec![0; 1000];
        let mut most = 0;
        while reader.read(&mut buf).unwrap() > 0 {
            most = most.max(reader.bytes_ahead());
        }
        let all = long(4 * 32 * KIB);
        assert!((all / 2..=all).contains(&most), "{most}");
    });
}

#[test]
fn the_window_of_a_striped_file_reaches_over_a_full_stripe() {
    let dir = tempfile::tempdir().unwrap();
    let file = match striped(dir.path(), long(4 * MIB)) {
        Ok(file) => file,
        Err(error) => return env::skip(Capability::Xattr, error),
    };
    file.write_all_at(&content(40 * MIB, 13), 0).unwrap();
    let mut reader = file.reader(0);
    let mut buf = vec![0; 64 * KIB];
    let mut most = 0;
    for _ in 0..20 * MIB / buf.len() {
        reader.read_exact(&mut buf).unwrap();
        most = most.max(reader.bytes_ahead());
    }
    assert!(most >= long(12 * MIB), "{most} bytes ahead of 12 MiB in a stripe");
}

#[test]
fn what_was_read_ahead_may_be_old_and_a_seek_forgets_it() {
    each_kind(&vec![1; MIB], |file| {
        let mut reader = file.reader(0);
        let mut buf = [0; 1000];
        reader.read_exact(&mut buf).unwrap();
        file.write_all_at(&[2; MIB], 0).unwrap();
        reader.read_exact(&mut buf).unwrap();
        assert_eq!(buf, [1; 1000], "read before it was written");
        file.read_exact_at(&mut buf, 1000).unwrap();
        assert_eq!(buf, [2; 1000], "a plain read is never old");
        reader.seek(SeekFrom::Start(2000)).unwrap();
        reader.read_exact(&mut buf).unwrap();
        assert_eq!(buf, [2; 1000], "forgotten");
    });
}

#[test]
fn readers_that_are_dropped_leave_no_request_behind() {
    let content = content(4 * MIB, 14);
    each_kind(&content, |file| {
        for _ in 0..REQUESTS_MAX {
            let mut reader = file.reader_with(0, tight());
            reader.read_exact(&mut vec![0; 100 * KIB]).unwrap();
            assert!(reader.bytes_ahead() > long(32 * KIB), "some are on their way");
        }
        // Every place is free: what was left would be in the way, and keep its memory.
        let all = (0..REQUESTS_MAX).map(|_| {
            let memory = IoBuf::new(4096).unwrap();
            file.request(Request::read(0, memory)).unwrap()
        });
        let all: Vec<_> = all.collect();
        for request in all {
            request.wait().check_whole().unwrap();
        }
    });
}

#[test]
fn with_an_engine_full_of_others_requests_a_reader_reads_all_the_same() {
    let content = content(MIB, 15);
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("plain")).unwrap();
    file.write_all_at(&content, 0).unwrap();
    let others: Vec<_> = (0..REQUESTS_MAX)
        .map(|_| file.request(Request::read(0, IoBuf::new(4096).unwrap())).unwrap())
        .collect();
    let mut read = Vec::new();
    file.reader(0).read_to_end(&mut read).unwrap();
    check(&read, &content, 0);
    drop(others);
}

#[test]
fn a_reader_goes_on_when_its_thread_gets_another_engine() {
    let content = content(4 * MIB, 16);
    each_kind(&content, |file| {
        let mut reader = file.reader_with(0, tight());
        let mut read = vec![0; 300 * KIB];
        reader.read_exact(&mut read).unwrap();
        let backend = BackendKind::Threads;
        use_for_this_thread(EngineOptions { backend, checked: true, ..EngineOptions::DEFAULT });
        // Requests of the new engine, which the reader must not take for its own.
        let others: Vec<_> = (0..REQUESTS_MAX / 2)
            .map(|_| file.request(Request::read(0, IoBuf::new(32 * KIB).unwrap())).unwrap())
            .collect();
        reader.read_to_end(&mut read).unwrap();
        check(&read, &content, 0);
        for other in others {
            check(&other.wait().memory.unwrap(), &content[..32 * KIB], 0);
        }
    });
}

#[test]
fn lines_are_read_whole() {
    let lines: Vec<String> =
        (0..20_000).map(|at| format!("line {at} {}", "x".repeat(at % 90))).collect();
    let text = lines.join("\n");
    each_kind(text.as_bytes(), |file| {
        let read: Vec<String> = file.reader_with(0, tight()).lines().map(Result::unwrap).collect();
        assert!(read == lines);
    });
}
