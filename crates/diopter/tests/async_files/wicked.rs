//! Executors that do what executors may do, and some that do what they should not.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::task::{Poll, Wake, Waker};
use std::thread;

use diopter::engine::AsyncDriver;

use crate::bytes::{Blocker, LONG, bell, drive, file_of, memory, memory_of, poll_once};
use crate::env;

#[test]
fn a_future_may_be_polled_on_one_thread_and_then_on_another() {
    let (file, bytes) = file_of(8192, env::seed());
    let blocker = Blocker::of(&file);
    let mut write = file.write_at_async(memory_of(&[1; 100]), 7);
    assert!(poll_once(&mut write, Waker::noop()).is_pending());
    let mut read = file.read_at_async(memory(4096), 4096);
    drop(poll_once(&mut read, Waker::noop()));
    let elsewhere = thread::spawn(move || {
        let (waker, rings) = bell();
        let pending = poll_once(&mut write, &waker).is_pending();
        (write, pending, rings)
    });
    let (mut write, is_pending, rings) = elsewhere.join().unwrap();
    assert!(is_pending);
    blocker.release();
    // The waker of the latest poll is the one that hears of it.
    rings.recv_timeout(LONG).expect("it is woken");
    let ended = thread::spawn(move || poll_once(&mut write, Waker::noop())).join().unwrap();
    assert!(matches!(ended, Poll::Ready((Ok(100), _))), "{ended:?}");
    drop((file, bytes));
}

struct Panics(Sender<()>);

impl Wake for Panics {
    fn wake(self: Arc<Panics>) {
        self.0.send(()).unwrap_or(());
        panic!("a waker that panics on purpose");
    }
}

#[test]
fn a_waker_that_panics_hurts_no_other_future() {
    let (file, bytes) = file_of(1 << 20, env::seed());
    let (sender, rings) = channel();
    let waker = Waker::from(Arc::new(Panics(sender)));
    let blocker = Blocker::of(&file);
    let mut held = file.write_at_async(memory_of(&bytes[1..100]), 1).on(AsyncDriver::Reaper);
    assert!(poll_once(&mut held, Waker::noop()).is_pending());
    let mut first = file.read_at_async(memory(4096), 0).on(AsyncDriver::Reaper);
    let is_pending = poll_once(&mut first, &waker).is_pending();
    assert!(is_pending);
    rings.recv_timeout(LONG).expect("it is woken");
    for n in 1..20u64 {
        let (result, buffer) = drive(&mut file.read_at_async(memory(4096), n * 4096));
        assert_eq!(result.unwrap(), 4096);
        assert!(buffer[..] == bytes[usize::try_from(n).unwrap() * 4096..][..4096]);
    }
    blocker.release();
    assert_eq!(drive(&mut held).0.unwrap(), 99);
    // Its own result is there, too.
    match poll_once(&mut first, Waker::noop()) {
        Poll::Ready((Ok(4096), buffer)) => assert!(buffer[..] == bytes[..4096]),
        other => panic!("{other:?}"),
    }
}

/// Polls again from within the wake-up.
struct Eager(Sender<()>, diopter::File);

impl Wake for Eager {
    fn wake(self: Arc<Eager>) {
        let mut read = self.1.read_at_async(memory(512), 0);
        drop(poll_once(&mut read, Waker::noop()));
        drop(read);
        self.0.send(()).unwrap_or(());
    }
}

#[test]
fn a_waker_may_start_and_drop_futures() {
    let (file, _) = file_of(8192, env::seed());
    let (sender, rings) = channel();
    let waker = Waker::from(Arc::new(Eager(sender, file.clone())));
    for _ in 0..50 {
        let mut read = file.read_at_async(memory(4096), 0);
        assert!(poll_once(&mut read, &waker).is_pending());
        rings.recv_timeout(LONG).expect("it is woken");
        assert!(matches!(poll_once(&mut read, Waker::noop()), Poll::Ready((Ok(4096), _))));
    }
}

#[test]
fn many_threads_share_a_few_that_serve_them() {
    let (file, bytes) = file_of(1 << 20, env::seed());
    thread::scope(|scope| {
        for seat in 0..8u64 {
            let (file, bytes) = (&file, &bytes);
            scope.spawn(move || {
                for n in 0..64u64 {
                    let offset = (seat * 8 + n) % 256 * 4096;
                    let (result, buffer) = drive(&mut file.read_at_async(memory(4096), offset));
                    assert_eq!(result.unwrap(), 4096);
                    assert!(buffer[..] == bytes[usize::try_from(offset).unwrap()..][..4096]);
                }
            });
        }
    });
    let threads = std::fs::read_dir("/proc/self/task").unwrap().filter_map(|task| {
        let name = std::fs::read_to_string(task.ok()?.path().join("comm")).ok()?;
        name.starts_with("diopter-futures").then_some(())
    });
    assert!(threads.count() <= diopter_core::limits::IO_THREADS_MAX);
}
