//! Futures that are dropped: what becomes of their requests, and who hears of it.

use std::task::{Poll, Waker};

use diopter::{Errno, File, FinishedRequest, IoBuf, RangeState};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

use crate::bytes::{Blocker, LONG, bell, content, drive, file_of, memory, memory_of, poll_once};
use crate::env;

fn state_of(finished: &FinishedRequest) -> RangeState {
    match finished.outcome().ranges() {
        [only] => only.state,
        several => panic!("one state for all of it: {several:?}"),
    }
}

/// A file whose writes fail.
fn sealed() -> File {
    let fd = memfd_create("diopter-sealed", MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::io::write(&fd, &[7; 8192]).unwrap();
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let file = File::options().read(true).write(true).open(path).unwrap();
    fcntl_add_seals(&fd, SealFlags::WRITE).unwrap();
    file
}

#[test]
fn before_the_first_poll_nothing_has_happened() {
    let (file, bytes) = file_of(8192, env::seed());
    drop(file.write_at_async(memory_of(&[1; 4096]), 0));
    drive(&mut file.sync_data_async()).unwrap();
    let taken = file.take_abandoned();
    assert_eq!((taken.finished.len(), taken.lost, taken.in_flight), (0, 0, 0));
    assert!(content(&file, 0, 8192) == bytes);
}

#[test]
fn a_write_that_waits_is_given_up_and_reported_as_not_tried() {
    let (file, bytes) = file_of(8192, env::seed());
    let blocker = Blocker::of(&file);
    let mut write = file.write_at_async(memory_of(&[1; 100]), 7);
    assert!(poll_once(&mut write, Waker::noop()).is_pending());
    // Behind it in the same engine, which has taken it in by then.
    drive(&mut file.read_at_async(memory(512), 4096)).0.unwrap();
    drop(write);
    // It ends though what it waited for goes on.
    drive(&mut file.sync_data_async()).unwrap();
    blocker.release();
    let taken = file.take_abandoned();
    assert_eq!((taken.finished.len(), taken.in_flight), (1, 0));
    let finished = &taken.finished[0];
    assert_eq!(finished.result.as_ref().unwrap_err().errno, Errno::ECANCELED);
    assert_eq!((state_of(finished), finished.range.start()), (RangeState::NotTried, 7));
    assert!(content(&file, 0, 8192) == bytes);
}

#[test]
fn a_write_that_is_dropped_at_any_moment_is_reported_and_true() {
    for n in 0..300u64 {
        let (file, bytes) = file_of(20_000, env::seed());
        let mut write = file.write_at_async(memory_of(&[9; 10_000]), 5);
        let (waker, rings) = bell();
        let is_pending = poll_once(&mut write, &waker).is_pending();
        assert!(is_pending);
        if n % 3 == 1 {
            rings.recv_timeout(LONG).expect("it is woken");
        } else if n % 3 == 2 {
            std::thread::yield_now();
        }
        drop(write);
        drive(&mut file.sync_data_async()).unwrap();
        let taken = file.take_abandoned();
        assert_eq!((taken.finished.len(), taken.in_flight), (1, 0));
        let mut expected = bytes;
        match state_of(&taken.finished[0]) {
            RangeState::Done => expected[5..10_005].fill(9),
            RangeState::NotTried => assert_ne!(n % 3, 1, "it had completed"),
            other => panic!("{other:?}"),
        }
        assert!(content(&file, 0, 20_000) == expected, "round {n}: {:?}", taken.finished[0]);
    }
}

#[test]
fn a_write_that_fails_unseen_makes_the_next_sync_fail() {
    for is_over in [false, true] {
        let file = sealed();
        let mut write = file.write_at_async(memory(4096), 0);
        let (waker, rings) = bell();
        assert!(poll_once(&mut write, &waker).is_pending());
        if is_over {
            rings.recv_timeout(LONG).expect("it is woken");
        }
        drop(write);
        let synced = drive(&mut file.sync_all_async());
        let taken = file.take_abandoned();
        assert_eq!(taken.finished.len(), 1);
        let errno = taken.finished[0].result.as_ref().unwrap_err().errno;
        if errno == Errno::ECANCELED && !is_over {
            // It was dropped in time.
            assert!(synced.is_ok());
            continue;
        }
        assert_eq!(errno, Errno::EPERM);
        assert_eq!(synced.unwrap_err().errno(), Errno::EPERM);
        assert_eq!(file.sync_data().unwrap_err().errno(), Errno::EPERM);
    }
}

#[test]
fn a_write_whose_failure_was_seen_leaves_no_trace() {
    let file = sealed();
    let (result, buffer) = drive(&mut file.write_at_async(memory(4096), 0));
    assert_eq!((result.unwrap_err().errno(), buffer.len()), (Errno::EPERM, 4096));
    drive(&mut file.sync_all_async()).unwrap();
    assert_eq!(file.take_abandoned().finished.len(), 0);
}

#[test]
fn reads_that_are_dropped_leave_nothing_behind() {
    let (file, bytes) = file_of(1 << 20, env::seed());
    for n in 0..200u64 {
        let mut reads: Vec<_> =
            (0..16).map(|at| file.read_at_async(memory(65_536), at << 16)).collect();
        for read in &mut reads {
            drop(poll_once(read, Waker::noop()));
        }
        reads.truncate(usize::try_from(n % 16).unwrap());
        for (at, read) in reads.iter_mut().enumerate() {
            let (result, buffer) = drive(read);
            assert_eq!(result.unwrap(), 65_536);
            assert!(buffer[..] == bytes[at << 16..][..65_536]);
        }
    }
    assert_eq!(file.take_abandoned().finished.len(), 0);
}

#[test]
fn dropped_futures_beyond_the_capacity_are_forgotten() {
    let (file, bytes) = file_of(8192, env::seed());
    let blocker = Blocker::of(&file);
    let mut held: Vec<_> = (0..128).map(|_| file.write_at_async(memory_of(&[1; 10]), 1)).collect();
    for write in &mut held {
        assert!(poll_once(write, Waker::noop()).is_pending());
    }
    for _ in 0..5000 {
        let mut read = file.read_at_async(memory(512), 4096);
        drop(poll_once(&mut read, Waker::noop()));
    }
    drop(held);
    blocker.release();
    let (result, buffer) = drive(&mut file.read_at_async(memory(4096), 4096));
    assert_eq!(result.unwrap(), 4096);
    assert!(buffer[..] == bytes[4096..]);
    drive(&mut file.sync_data_async()).unwrap();
    let taken = file.take_abandoned();
    assert_eq!((taken.finished.len() as u64 + taken.lost, taken.in_flight), (128, 0));
}

#[test]
fn a_polled_future_that_is_pending_says_so_until_it_is_over() {
    let (file, _) = file_of(8192, env::seed());
    let blocker = Blocker::of(&file);
    let mut write = file.write_at_async(memory_of(&[1; 100]), 7);
    for _ in 0..10 {
        assert!(poll_once(&mut write, Waker::noop()).is_pending());
    }
    blocker.release();
    let (result, _): (_, IoBuf) = drive(&mut write);
    assert_eq!(result.unwrap(), 100);
    let polled = std::panic::AssertUnwindSafe(|| {
        matches!(poll_once(&mut write, Waker::noop()), Poll::Pending)
    });
    let message = std::panic::catch_unwind(polled).unwrap_err();
    assert!(message.downcast_ref::<&str>().is_some_and(|text| text.contains("polled again")));
}
