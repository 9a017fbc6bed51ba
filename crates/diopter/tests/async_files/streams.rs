//! The writer that writes behind its caller as tokio's `AsyncWrite`, and the reader that reads
//! ahead as its `AsyncRead`.

use std::io::ErrorKind;
use std::pin::pin;
use std::sync::mpsc::channel;
use std::task::Waker;
use std::time::Duration;

use diopter::engine::WriterOptions;
use diopter::{File, ReaderOptions, Request, SequentialReader, SequentialWriter};
use diopter_core::prng::Prng;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncSeekExt, AsyncWriteExt, copy};

use crate::bytes::{Blocker, EXECUTORS, content, current_thread, file_of, poll_once};
use crate::env;

/// Small enough that every bound is met soon.
fn tight() -> WriterOptions {
    WriterOptions::new().buffer_bytes(32 << 10).in_flight(3)
}

fn finish(writer: SequentialWriter) -> File {
    let (file, outcome) = writer.finish();
    assert!(outcome.is_all_done(), "{outcome:?}");
    file.expect("an exact length")
}

#[test]
fn a_stream_is_the_same_under_every_executor() {
    for (name, run) in EXECUTORS {
        let (file, bytes) = file_of(600_000, env::seed());
        file.set_len(1000).unwrap();
        run(Box::pin(async move {
            let mut prng = Prng::new(env::seed());
            let mut writer = file.writer_with(1000, tight().size_hint(1 << 20));
            let mut rest = &bytes[1000..];
            while !rest.is_empty() {
                let length = 1 + usize::try_from(prng.below(50_000)).unwrap();
                let (piece, after) = rest.split_at(length.min(rest.len()));
                writer.write_all(piece).await.unwrap();
                rest = after;
                if prng.one_in(5) {
                    writer.flush().await.unwrap();
                    assert_eq!(writer.bytes_behind(), 0);
                }
            }
            writer.shutdown().await.unwrap();
            assert_eq!(file.size().unwrap(), 600_000, "{name}");
            let file = finish(writer);
            assert!(content(&file, 0, bytes.len()) == bytes, "{name}");
        }));
    }
}

#[test]
fn what_is_copied_by_tokio_is_whole() {
    let (file, bytes) = file_of(3 << 20, env::seed());
    let source = bytes.clone();
    current_thread().block_on(async {
        let mut writer = file.writer(5);
        let copied = copy(&mut &source[..], &mut writer).await.unwrap();
        assert_eq!(copied, 3 << 20);
        writer.shutdown().await.unwrap();
        finish(writer);
    });
    assert!(content(&file, 5, bytes.len()) == bytes);
}

#[test]
fn a_writer_that_waits_is_pending_and_is_woken() {
    let (file, bytes) = file_of(100_000, env::seed());
    let blocker = Blocker::of(&file);
    current_thread().block_on(async {
        let mut writer = file.writer_with(1, tight());
        writer.write_all(&[7; 90_000]).await.unwrap();
        let mut flush = pin!(writer.flush());
        // The head block is locked by a write that is not reaped.
        assert!(poll_once(&mut flush, Waker::noop()).is_pending());
        blocker.release();
        flush.await.unwrap();
        finish(writer);
    });
    let mut expected = bytes;
    expected[1..90_001].fill(7);
    assert!(content(&file, 0, expected.len()) == expected);
}

#[test]
fn an_error_comes_once_and_then_the_stream_is_refused() {
    let path = tempfile::NamedTempFile::new().unwrap();
    let file = File::open(path.path()).unwrap();
    current_thread().block_on(async {
        let mut writer = file.writer(0);
        writer.write_all(b"any bytes").await.unwrap();
        let error = writer.flush().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PermissionDenied);
        let error = writer.write(b"more").await.unwrap_err();
        assert!(error.to_string().contains("ECANCELED"), "{error}");
        assert!(writer.shutdown().await.is_err());
    });
}

#[test]
fn a_writer_that_is_dropped_inside_of_a_runtime_has_written_what_it_took() {
    let (file, bytes) = file_of(300_000, env::seed());
    file.set_len(0).unwrap();
    current_thread().block_on(async {
        let mut writer = file.writer_with(0, tight().size_hint(1 << 20));
        writer.write_all(&bytes).await.unwrap();
    });
    assert_eq!(file.size().unwrap(), 300_000);
    assert!(content(&file, 0, bytes.len()) == bytes);
}

#[test]
fn a_wait_that_is_too_short_returns_the_request_and_a_later_one_its_result() {
    let (file, _) = file_of(8192, env::seed());
    let (held, is_held) = channel();
    let (release, is_released) = channel();
    let of_other = file.clone();
    // An engine of this thread would be reaped by the wait.
    let other = std::thread::spawn(move || {
        let blocker = Blocker::of(&of_other);
        held.send(()).unwrap();
        is_released.recv().unwrap();
        blocker.release();
    });
    is_held.recv().unwrap();
    let request = file.request(Request::write(5, vec![7; 100])).unwrap();
    let request = request.wait_timeout(Duration::ZERO).expect_err("the block is held");
    let request = request.wait_timeout(Duration::from_millis(10)).expect_err("still");
    release.send(()).unwrap();
    other.join().unwrap();
    let finished = request.wait_timeout(Duration::from_secs(60)).expect("long enough");
    assert_eq!(finished.into_parts::<Vec<u8>>().1, Some(vec![7; 100]));
    // Without a wait, round after round, a request comes to an end.
    let mut request = file.request(Request::read(5, vec![0; 100])).unwrap();
    let finished = loop {
        match request.wait_timeout(Duration::ZERO) {
            Ok(finished) => break finished,
            Err(again) => request = again,
        }
    };
    assert_eq!(finished.into_parts::<Vec<u8>>().1, Some(vec![7; 100]));
}

/// Small enough that every bound is met soon.
fn tight_reader(file: &File, offset: u64) -> SequentialReader {
    file.reader_with(offset, ReaderOptions::new().buffer_bytes(32 << 10).in_flight(3))
}

#[test]
fn a_reader_gives_the_same_bytes_under_every_executor() {
    for (name, run) in EXECUTORS {
        let (file, bytes) = file_of(600_000, env::seed());
        run(Box::pin(async move {
            let mut prng = Prng::new(env::seed());
            let mut reader = tight_reader(&file, 0);
            for _ in 0..30 {
                let start = usize::try_from(prng.below(700_000)).unwrap();
                let to = std::io::SeekFrom::Start(start.try_into().unwrap());
                assert_eq!(reader.seek(to).await.unwrap(), reader.position());
                let mut read = vec![0; usize::try_from(prng.below(200_000)).unwrap()];
                let mut done = 0;
                loop {
                    match reader.read(&mut read[done..]).await.unwrap() {
                        0 => break,
                        n => done += n,
                    }
                }
                let start = start.min(bytes.len());
                let expected = &bytes[start..bytes.len().min(start + read.len())];
                assert!(read[..done] == *expected, "{name}");
            }
        }));
    }
}

#[test]
fn lines_are_read_by_tokio() {
    let (file, _) = file_of(0, env::seed());
    let lines: Vec<String> = (0..20_000).map(|at| format!("line {at}")).collect();
    file.write_all_at(lines.join("\n").as_bytes(), 0).unwrap();
    current_thread().block_on(async {
        let mut read = tight_reader(&file, 0).lines();
        for line in lines {
            assert_eq!(read.next_line().await.unwrap(), Some(line));
        }
        assert_eq!(read.next_line().await.unwrap(), None);
    });
}

#[test]
fn a_reader_moves_between_threads_with_requests_in_flight_and_between_blocking_and_async() {
    let (file, bytes) = file_of(3 << 20, env::seed());
    let mut reader = tight_reader(&file, 0);
    let mut read = vec![0; bytes.len()];
    for (number, piece) in read.chunks_mut(70_000).enumerate() {
        reader = std::thread::scope(|scope| {
            let here = scope.spawn(move || {
                if number % 2 == 0 {
                    std::io::Read::read_exact(&mut reader, piece).unwrap();
                } else {
                    let all = AsyncReadExt::read_exact(&mut reader, piece);
                    current_thread().block_on(all).unwrap();
                }
                reader
            });
            here.join().unwrap()
        });
    }
    assert!(read == bytes);
    drop(tight_reader(&file, 0));
}
