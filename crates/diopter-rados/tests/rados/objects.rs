//! Plain objects: each operation once, and the queue of asynchronous ones.

use std::time::Duration;

use diopter_rados::{Completed, Pool, Queue};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::cluster::{SOON, ceph, content};

#[test]
fn an_object_is_written_read_and_removed() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let bytes = content(10_000, 1);
    pool.write(b"plain", 5, &bytes).unwrap();
    assert_eq!(pool.stat(b"plain").unwrap().size, 10_005);
    let mut read = vec![1; 20_000];
    assert_eq!(pool.read(b"plain", 0, &mut read).unwrap(), 10_005);
    assert!(read[..5] == [0; 5] && read[5..10_005] == bytes[..]);
    pool.set_attribute(b"plain", "colour", b"green\0\xff").unwrap();
    pool.set_attribute(b"plain", "empty", b"").unwrap();
    assert_eq!(pool.attribute(b"plain", "colour", 7).unwrap(), b"green\0\xff");
    let error = pool.attribute(b"plain", "colour", 6).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ERANGE));
    let mut all = Vec::new();
    pool.attributes(b"plain", |name, value| all.push((name.to_vec(), value.to_vec()))).unwrap();
    all.sort();
    let expected = [(b"colour".to_vec(), b"green\0\xff".to_vec()), (b"empty".to_vec(), vec![])];
    assert_eq!(all, expected);
    pool.remove(b"plain").unwrap();
    assert_eq!(pool.stat(b"plain").unwrap_err().errno(), Some(libc::ENOENT));
    assert_eq!(pool.remove(b"plain").unwrap_err().errno(), Some(libc::ENOENT));
}

#[test]
fn steps_are_performed_together_or_not_at_all() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let create = || pool.write_op().create_exclusive().set_attribute("a", b"1").unwrap();
    pool.operate("create", b"steps", &create()).unwrap();
    let error = pool.operate("create", b"steps", &create()).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EEXIST));
    let raise = |from: &[u8], to: &[u8]| {
        let steps = pool.write_op().compare_attribute("a", from).unwrap();
        pool.operate("raise", b"steps", &steps.set_attribute("a", to).unwrap())
    };
    raise(b"1", b"2").unwrap();
    assert_eq!(raise(b"1", b"3").unwrap_err().errno(), Some(libc::ECANCELED));
    assert_eq!(pool.attribute(b"steps", "a", 9).unwrap(), b"2");
    let steps = pool.write_op().assert_exists().set_attribute("a", b"").unwrap();
    let error = pool.operate("set an attribute of", b"no-steps", &steps).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENOENT));
    assert!(pool.stat(b"no-steps").is_err());
}

#[test]
fn a_namespace_has_its_own_objects() {
    let Some(ceph) = ceph() else { return };
    let cluster = ceph.connect("admin");
    let [one, other] =
        [None, Some(&b"apart"[..])].map(|namespace| cluster.pool(b"data", namespace).unwrap());
    one.write(b"spaced", 0, b"one").unwrap();
    assert_eq!(other.stat(b"spaced").unwrap_err().errno(), Some(libc::ENOENT));
    other.write(b"spaced", 0, b"other").unwrap();
    assert_eq!(one.stat(b"spaced").unwrap().size, 3);
    ceph.must(&["--namespace", "apart", "stat", "spaced"]);
}

#[test]
fn operations_complete_once_with_their_memory_and_signal_the_descriptor() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let mut queue = Queue::new(&pool).unwrap();
    assert!(queue.wait(Some(SOON)).is_none(), "nothing is in flight");
    let name = |token: u64| format!("queued-{token}").into_bytes();
    for token in 0..200 {
        queue.write(token, &name(token), 0, content(5000, token)).unwrap();
    }
    let mut seen = drained(&mut queue);
    seen.sort_unstable();
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
    for token in 0..200 {
        queue.read(token, &name(token), 1, vec![7; 6000]).unwrap();
    }
    queue.read(200, b"queued-never", 0, vec![7; 10]).unwrap();
    let steps = pool.write_op().assert_exists().set_attribute("a", b"1").unwrap();
    queue.operate(201, "set an attribute of", b"queued-0", steps).unwrap();
    assert_eq!(queue.in_flight(), 202);
    while let Some(Completed { token, memory, result }) = queue.wait(Some(SOON)) {
        match token {
            200 => {
                let error = result.unwrap_err();
                assert_eq!(error.errno(), Some(libc::ENOENT));
                assert!(error.to_string().contains("`queued-never` of pool `data`"), "{error}");
            }
            201 => assert_eq!((result, memory.len()), (Ok(0), 0)),
            token => {
                assert_eq!(result, Ok(4999));
                assert!(memory[..4999] == content(5000, token)[1..]);
                assert!(memory[4999..].iter().all(|byte| *byte == 7));
            }
        }
    }
    assert_eq!(queue.in_flight(), 0);
    assert_eq!(pool.attribute(b"queued-0", "a", 1).unwrap(), b"1");
}

fn drained(queue: &mut Queue) -> Vec<u64> {
    let mut seen = Vec::new();
    while let Some(completed) = queue.wait(Some(SOON)) {
        completed.result.unwrap();
        seen.push(completed.token);
    }
    assert_eq!(queue.in_flight(), 0);
    seen
}

#[test]
fn a_completion_makes_the_descriptor_readable_until_nothing_is_left_to_take() {
    let Some(ceph) = ceph() else { return };
    let mut queue = Queue::new(&ceph.pool()).unwrap();
    let is_readable = |queue: &Queue, bound: Duration| {
        let bound = Timespec::try_from(bound).unwrap();
        poll(&mut [PollFd::new(queue, PollFlags::IN)], Some(&bound)).unwrap() == 1
    };
    for round in 0..3 {
        assert!(!is_readable(&queue, Duration::ZERO));
        queue.write(round, b"signalled", 0, vec![1; 10]).unwrap();
        assert!(is_readable(&queue, SOON));
        assert_eq!(queue.take().unwrap().token, round);
        assert!(queue.take().is_none());
    }
}

#[test]
fn what_librados_refuses_does_not_complete() {
    let Some(ceph) = ceph() else { return };
    let mut queue = Queue::new(&ceph.pool()).unwrap();
    assert!(queue.read(1, b"", 0, vec![0; 1]).is_err(), "an empty name");
    assert!(queue.write(1, b"zero\0byte", 0, vec![0; 1]).is_err());
    assert_eq!(queue.in_flight(), 0);
    assert!(queue.wait(Some(SOON)).is_none());
}

#[test]
fn a_queue_and_its_pool_may_be_dropped_with_operations_in_flight() {
    let Some(ceph) = ceph() else { return };
    let names: Vec<Vec<u8>> = (0..50).map(|it| format!("dropped-{it}").into_bytes()).collect();
    let pool: Pool = ceph.pool();
    let mut queue = Queue::new(&pool).unwrap();
    drop(pool);
    for name in &names {
        queue.write(0, name, 0, content(100_000, 9)).unwrap();
    }
    // The last owner of the pool and of the connection: it waits for them.
    drop(queue);
    let pool = ceph.pool();
    for name in &names {
        assert_eq!(pool.stat(name).unwrap().size, 100_000);
    }
}

#[test]
fn a_bounded_wait_ends_before_the_operation() {
    let Some(ceph) = ceph() else { return };
    let mut queue = Queue::new(&ceph.pool()).unwrap();
    queue.write(3, b"bounded", 0, content(4 << 20, 3)).unwrap();
    // Whether it is done by now or not: nothing is lost.
    let early = queue.wait(Some(Duration::from_nanos(1)));
    let late = queue.wait(Some(SOON));
    let tokens: Vec<u64> = early.into_iter().chain(late).map(|it| it.token).collect();
    assert_eq!(tokens, [3]);
}
