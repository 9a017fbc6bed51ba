//! Results of futures under each executor.

use std::future::Future;
use std::sync::Arc;

use diopter::engine::use_for_futures;
use diopter::{EngineOptions, Errno, Error, File, Request, use_for_this_thread};
use diopter_core::prng::Prng;
use diopter_os::testing::{Limit, set_limit};
use futures::future::join_all;

use crate::bytes::{
    EXECUTORS, Executor, content, current_thread, file_of, memory, memory_of, multi_thread,
};
use crate::env::{self, Capability, skip};

const MIB: usize = 1 << 20;

fn on_each(check: impl Fn(Executor)) {
    for executor in EXECUTORS {
        eprintln!("under {}", executor.0);
        check(executor);
    }
}

/// Random reads and writes of any alignment, compared with a model in memory.
async fn wander(file: File, mut model: Vec<u8>, seed: u64) {
    let mut prng = Prng::new(seed);
    for _ in 0..60 {
        let offset = prng.below(u64::try_from(model.len() + 5000).unwrap());
        let length = usize::try_from(prng.below(40_000)).unwrap();
        let (offset, length) =
            if prng.one_in(3) { (offset & !4095, length & !4095) } else { (offset, length) };
        let start = usize::try_from(offset).unwrap();
        if prng.one_in(2) {
            let mut bytes = vec![0; length];
            prng.fill(&mut bytes);
            let (result, buffer) = file.write_at_async(memory_of(&bytes), offset).await;
            assert_eq!(result.unwrap(), length);
            assert_eq!(&buffer[..], &bytes[..]);
            if length > 0 {
                model.resize(model.len().max(start + length), 0);
                model[start..start + length].copy_from_slice(&bytes);
            }
        } else {
            let (result, buffer) = file.read_at_async(memory(length), offset).await;
            let expected = &model[start.min(model.len())..(start + length).min(model.len())];
            assert_eq!(result.unwrap(), expected.len());
            assert_eq!(buffer.len(), length);
            assert!(buffer[..expected.len()] == *expected, "{offset} {length}");
        }
    }
    file.sync_data_async().await.unwrap();
    file.sync_all_async().await.unwrap();
    assert!(content(&file, 0, model.len()) == model);
    assert_eq!(file.take_abandoned().finished.len(), 0);
}

#[test]
fn reads_and_writes_are_those_of_a_plain_file() {
    on_each(|(_, run)| {
        let (file, bytes) = file_of(100_000, env::seed());
        run(Box::pin(wander(file, bytes, env::seed() + 1)));
    });
}

#[test]
fn a_thousand_futures_wait_their_turn() {
    on_each(|(_, run)| {
        let (file, bytes) = file_of(4 * MIB, env::seed());
        run(Box::pin(async move {
            let reads = (0..1000u64).map(|n| file.read_at_async(memory(4096), n * 4096));
            let read = join_all(reads).await;
            for (n, (result, buffer)) in read.into_iter().enumerate() {
                assert_eq!(result.unwrap(), 4096);
                assert!(buffer[..] == bytes[n * 4096..][..4096]);
            }
            // Misaligned: neighbours share blocks, and wait for each other besides.
            let writes = (0..1000usize).map(|n| {
                let piece = &bytes[n * 4096..][..1000];
                file.write_at_async(memory_of(piece), u64::try_from(n).unwrap() * 1000)
            });
            for (result, _) in join_all(writes).await {
                assert_eq!(result.unwrap(), 1000);
            }
            file.sync_data_async().await.unwrap();
            let written = content(&file, 0, 1_000_000);
            for (n, piece) in written.chunks_exact(1000).enumerate() {
                assert!(*piece == bytes[n * 4096..][..1000], "piece {n}");
            }
        }));
    });
}

#[test]
fn a_request_reports_all_that_is_known_of_it() {
    on_each(|(_, run)| {
        let (file, bytes) = file_of(10_000, env::seed());
        run(Box::pin(async move {
            let done = file.request_async(Request::read(8192, memory(4096))).await.unwrap();
            let route = done.route();
            assert_eq!(route.direct + route.bounced + route.buffered, 1808);
            assert!(done.timing().is_none(), "it was not asked for");
            assert_eq!(done.result.unwrap().get(), 1808);
            assert!(done.memory.unwrap()[..1808] == bytes[8192..]);
        }));
    });
}

#[test]
fn what_is_refused_comes_back() {
    on_each(|(_, run)| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, [7; 100]).unwrap();
        let file = File::open(&path).unwrap();
        run(Box::pin(async move {
            let (result, buffer) = file.write_at_async(memory_of(&[1, 2, 3]), 0).await;
            assert!(matches!(result, Err(Error::Admit(_))), "{result:?}");
            assert_eq!(buffer[..], [1, 2, 3]);
        }));
        assert_eq!(std::fs::read(&path).unwrap(), [7; 100]);
    });
}

#[test]
fn a_future_that_loses_a_race_is_dropped_and_the_next_one_is_served() {
    on_each(|(_, run)| {
        let (file, bytes) = file_of(MIB, env::seed());
        run(Box::pin(async move {
            for n in 0..50u64 {
                let slow = file.read_at_async(memory(MIB), 0);
                let fast = file.read_at_async(memory(4096), n * 4096);
                match futures::future::select(slow, fast).await {
                    futures::future::Either::Left(((result, buffer), _)) => {
                        assert!(result.unwrap() == MIB && buffer[..] == bytes[..]);
                    }
                    futures::future::Either::Right(((result, buffer), _)) => {
                        assert_eq!(result.unwrap(), 4096);
                        let at = usize::try_from(n).unwrap() * 4096;
                        assert!(buffer[..] == bytes[at..][..4096]);
                    }
                }
            }
        }));
    });
}

#[test]
fn a_file_may_be_dropped_before_its_futures() {
    on_each(|(_, run)| {
        let (file, bytes) = file_of(MIB, env::seed());
        run(Box::pin(async move {
            let reads: Vec<_> =
                (0..200u64).map(|n| file.read_at_async(memory(4096), n * 4096)).collect();
            let write = file.write_at_async(memory_of(&bytes[..5000]), 3);
            drop(file);
            for (n, (result, buffer)) in join_all(reads).await.into_iter().enumerate() {
                assert_eq!(result.unwrap(), 4096);
                assert!(buffer[..] == bytes[n * 4096..][..4096]);
            }
            assert_eq!(write.await.0.unwrap(), 5000);
        }));
    });
}

/// Each buffer comes back as what it was, also with an error.
#[test]
fn buffers_of_every_owner_come_back() {
    on_each(|(_, run)| {
        let (file, bytes) = file_of(10_000, env::seed());
        run(Box::pin(async move {
            let (read, vector) = file.read_at_async(vec![0; 3000], 7).await;
            assert!(read.unwrap() == 3000 && vector == bytes[7..3007]);
            let (read, boxed) = file.read_at_async(vec![0; 5].into_boxed_slice(), 9998).await;
            assert!(read.unwrap() == 2 && boxed[..2] == bytes[9998..] && boxed[2..] == [0; 3]);
            let (written, shared) = file.write_at_async(Arc::<[u8]>::from(*b"shared"), 4096).await;
            assert!(written.unwrap() == 6 && *shared == *b"shared");
            assert_eq!(file.write_at_async(&b"static"[..], 4102).await.0.unwrap(), 6);
            assert_eq!(content(&file, 4096, 12), b"sharedstatic");
            let (refused, vector) = file.write_at_async(vec![7; 10], u64::MAX).await;
            assert!(refused.is_err() && vector == [7; 10]);
        }));
    });
}

/// Runs `count` tasks on a runtime of either flavour. `task` is given its number.
fn on_each_runtime<F>(count: u64, task: impl Fn(u64) -> F)
where
    F: Future<Output = ()> + Send + 'static,
{
    for runtime in [current_thread(), multi_thread()] {
        let guard = runtime.enter();
        let tasks: Vec<_> = (0..count).map(|number| tokio::spawn(task(number))).collect();
        drop(guard);
        runtime.block_on(async {
            for task in tasks {
                task.await.expect("the task does not panic");
            }
        });
    }
}

fn ten_thousand_tasks_read() {
    let (file, bytes) = file_of(4 * MIB, env::seed());
    let (file, bytes) = (Arc::new(file), Arc::new(bytes));
    on_each_runtime(10_000, |number| {
        let (file, bytes) = (Arc::clone(&file), Arc::clone(&bytes));
        async move {
            let at = usize::try_from(number).unwrap() * 400;
            let (result, buffer) = file.read_at_async(vec![0; 500], number * 400).await;
            assert_eq!(result.unwrap(), 500);
            assert!(buffer[..] == bytes[at..at + 500]);
        }
    });
}

#[test]
fn ten_thousand_tasks_share_one_file() {
    ten_thousand_tasks_read();
}

#[test]
fn ten_thousand_tasks_share_one_file_at_depth_1024() {
    let options = EngineOptions::DEFAULT.in_flight(1024);
    use_for_futures(options);
    use_for_this_thread(options);
    ten_thousand_tasks_read();
    use_for_this_thread(EngineOptions::DEFAULT);
    use_for_futures(EngineOptions::DEFAULT);
}

#[test]
fn ten_thousand_open_files_are_read_by_as_many_tasks() {
    const COUNT: u64 = 10_000;
    set_limit(Limit::OpenFiles, 3 * COUNT).expect("setrlimit");
    let dir = tempfile::tempdir().unwrap();
    let open = |number: u64| {
        let path = dir.path().join(number.to_string());
        std::fs::write(&path, number.to_le_bytes()).unwrap();
        File::open(&path).map(Arc::new)
    };
    let files: Vec<_> = match (0..COUNT).map(open).collect() {
        Err(error) if error.errno() == Errno::EMFILE => {
            return skip(Capability::Root, "the hard limit of open files is too low");
        }
        files => files.unwrap(),
    };
    on_each_runtime(COUNT, |number| {
        let file = Arc::clone(&files[usize::try_from(number).unwrap()]);
        async move {
            let (result, buffer) = file.read_at_async(vec![0; 100], 0).await;
            assert_eq!(result.unwrap(), 8);
            assert_eq!(buffer[..8], number.to_le_bytes());
        }
    });
}
