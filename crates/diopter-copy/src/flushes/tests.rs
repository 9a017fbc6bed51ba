//! Tests of flushes whose files need no disk, but where one is flushed for real.

use std::sync::mpsc::Receiver;

use super::*;
use crate::stop::Signal;

/// Flushes that succeed, and a message for each.
fn noted() -> (Flushes<u32>, Receiver<()>) {
    let (begun, has_begun) = std::sync::mpsc::channel();
    let flush = move |_: &OwnedFd| {
        begun.send(()).unwrap();
        Ok(())
    };
    (Flushes::new(flush, StopFlag::default()), has_begun)
}

fn file() -> Item<u32> {
    Item::File(Box::new(|_| Ok(7)))
}

fn null() -> Arc<OwnedFd> {
    Arc::new(std::fs::File::open("/dev/null").unwrap().into())
}

fn all(flushes: &mut Flushes<u32>) -> Vec<Flushed<u32>> {
    let mut done = Vec::new();
    while flushes.in_flight() > 0 {
        done.extend(flushes.wait(usize::MAX));
    }
    done.sort_by_key(|flushed| flushed.id);
    done
}

#[test]
fn every_file_has_one_result_under_its_number() {
    let directory = tempfile::tempdir().unwrap();
    let mut flushes = Flushes::new(flush, StopFlag::default());
    let (reader, _writer) = std::io::pipe().unwrap();
    flushes.start(0, file(), Arc::new(reader.into()));
    for id in 1..300 {
        let new = std::fs::File::create(directory.path().join(id.to_string())).unwrap();
        flushes.start(id, file(), Arc::new(new.into()));
    }
    let mut done = Vec::new();
    while done.len() < 100 {
        done.extend(flushes.wait(100 - done.len()));
    }
    assert_eq!(flushes.in_flight(), 300 - done.len());
    done.extend(all(&mut flushes));
    done.sort_by_key(|flushed| flushed.id);
    assert!(done.iter().map(|flushed| flushed.id).eq(0..300));
    // A pipe cannot be flushed.
    assert_eq!(done[0].flushed, Err(Errno::EINVAL));
    assert!(done[1..].iter().all(|flushed| flushed.flushed.is_ok()));
    assert!(done.iter().all(|flushed| flushed.written == Some(Ok(7))));
    assert!(flushes.threads.len() <= THREADS_MAX);
    assert!(flushes.wait(1).is_empty(), "it does not wait for what was not started");
}

#[test]
fn a_group_begins_when_it_is_complete_or_is_waited_for() {
    let (mut flushes, has_begun) = noted();
    for id in 0..GROUP - 1 {
        flushes.start(id, file(), null());
    }
    assert!(flushes.wait(0).is_empty());
    assert!(flushes.threads.is_empty(), "nothing could have begun");
    flushes.start(GROUP - 1, file(), null());
    has_begun.iter().take(GROUP).for_each(drop);
    flushes.start(GROUP, file(), null());
    assert_eq!((all(&mut flushes).len(), flushes.in_flight()), (GROUP + 1, 0));
}

#[test]
fn what_is_copied_alone_is_not_flushed() {
    let (mut flushes, has_begun) = noted();
    flushes.start(0, Item::File(Box::new(|_| Err(Alone::Simply))), null());
    flushes.start(1, file(), null());
    flushes.start(2, Item::Dir, null());
    let done = all(&mut flushes);
    let written: Vec<_> = done.into_iter().map(|flushed| flushed.written).collect();
    assert_eq!(written, [Some(Err(Alone::Simply)), Some(Ok(7)), None]);
    assert_eq!(has_begun.try_iter().count(), 2);
}

#[test]
fn one_flush_of_the_file_system_serves_a_group_and_directories_are_flushed_too() {
    let (mut flushes, has_begun) = noted();
    let dir = tempfile::tempdir().unwrap();
    let open = || OwnedFd::from(std::fs::File::open(dir.path()).unwrap());
    flushes.open_group(Some(open()));
    for id in 0..TOGETHER_MAX - 1 {
        flushes.start(id, file(), null());
    }
    assert!(flushes.threads.is_empty(), "the group is not complete");
    flushes.start(TOGETHER_MAX - 1, Item::Dir, Arc::new(open()));
    let done = all(&mut flushes);
    assert!(done.iter().map(|flushed| flushed.id).eq(0..TOGETHER_MAX));
    assert!(done.iter().all(|flushed| flushed.flushed.is_ok()));
    assert_eq!((flushes.take_file_systems(), flushes.take_file_systems()), (1, 0));
    assert_eq!(has_begun.try_iter().count(), 1, "the directory alone");
    assert_eq!(flushes.threads.len(), 1);
}

#[test]
fn a_group_whose_flush_fails_is_flushed_one_by_one() {
    let (mut flushes, has_begun) = noted();
    // syncfs(2) refuses a descriptor that is not open for reading or writing.
    let path = rustix::fs::OFlags::PATH;
    let point = rustix::fs::open("/dev/null", path, rustix::fs::Mode::empty()).unwrap();
    flushes.open_group(Some(point));
    flushes.start(0, file(), null());
    flushes.start(1, file(), null());
    assert!(flushes.may_be_together());
    assert!(all(&mut flushes).iter().all(|flushed| flushed.flushed.is_ok()));
    assert_eq!(has_begun.try_iter().count(), 2);
    assert_eq!(flushes.take_file_systems(), 0);
    assert!(!flushes.may_be_together());
}

#[test]
fn after_a_signal_a_directory_is_flushed_and_no_file() {
    let stop = StopFlag::default();
    let mut flushes = Flushes::new(|_: &OwnedFd| Ok(()), stop.clone());
    let dir = tempfile::tempdir().unwrap();
    let point = std::fs::File::open(dir.path()).unwrap();
    flushes.open_group(Some(point.into()));
    let stops: Fill<u32> = Box::new(move |_| {
        stop.set(Signal { number: 2 });
        Ok(7)
    });
    flushes.start(0, Item::File(stops), null());
    flushes.start(1, Item::Dir, null());
    flushes.start(2, Item::File(Box::new(|_| panic!("nothing more is written"))), null());
    let flushed = all(&mut flushes).into_iter().map(|flushed| flushed.flushed);
    let cancelled = Err(Errno::ECANCELED);
    assert_eq!(flushed.collect::<Vec<_>>(), [cancelled, Ok(()), cancelled]);
    assert_eq!(flushes.take_file_systems(), 0);
    assert!(flushes.may_be_together());
}

#[test]
fn a_panic_of_a_thread_is_one_of_its_caller() {
    let (mut flushes, _begun) = noted();
    flushes.start(0, Item::File(Box::new(|_| panic!("of a test"))), null());
    let waited = catch_unwind(AssertUnwindSafe(|| all(&mut flushes)));
    assert_eq!(*waited.unwrap_err().downcast::<&str>().unwrap(), "of a test");
}

#[test]
fn what_has_not_begun_is_taken_back() {
    let (begun, has_begun) = std::sync::mpsc::channel();
    let gate = Arc::new(std::sync::RwLock::new(()));
    let closed = gate.write().unwrap();
    let opens = Arc::clone(&gate);
    let flush = move |_: &OwnedFd| {
        begun.send(()).unwrap();
        drop(opens.read());
        Ok(())
    };
    let mut flushes = Flushes::new(flush, StopFlag::default());
    let count = 2 * THREADS_MAX;
    for id in 0..count {
        flushes.start(id, file(), null());
    }
    // Each thread has one, and waits.
    let threads = flushes.threads.len();
    assert!((1..=THREADS_MAX).contains(&threads));
    has_begun.iter().take(threads).for_each(drop);
    assert!(flushes.wait(1).is_empty(), "a wait has an end");
    let mut ids = flushes.cancel();
    assert_eq!(ids.len(), count - threads);
    assert_eq!(flushes.in_flight(), threads);
    drop(closed);
    ids.extend(all(&mut flushes).into_iter().map(|flushed| flushed.id));
    ids.sort_unstable();
    assert!(ids.into_iter().eq(0..count));
    assert!(has_begun.try_recv().is_err(), "none of them starts later");
}
