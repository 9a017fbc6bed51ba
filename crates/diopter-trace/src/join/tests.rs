//! Events as a kernel would send them, and what they are joined to.

use super::complete::EAGAIN;
use super::*;
use crate::event::{Begin, Device, Flow, IOCB_NOWAIT};
use crate::model::Trace;
use crate::totals::Collector;

const ROOT: u32 = 10;
const WORKER: u32 = 11;
const ENTRY: u64 = 0xabc0;
const LENGTH: u32 = 4096;

/// No machine has it.
fn device() -> Device {
    Device::new(4000, 0)
}

fn inode() -> Inode {
    Inode { device: device(), number: 12 }
}

/// Events that come in turn, a microsecond apart.
struct Script {
    join: Join,
    now: u64,
}

impl Script {
    fn new() -> Script {
        let mut join = Join::new(Scope::default(), Files::default(), true);
        join.set_root(ROOT);
        Script { join, now: 0 }
    }

    fn at(&mut self, thread: u32, what: What) -> &mut Script {
        self.now += 1000;
        self.join.take(Event { time: self.now, thread, flags: 0, what });
        self
    }

    fn ring(&mut self) -> &mut Script {
        self.at(ROOT, What::QueueMade { is_ring: true, entries: 32 })
    }

    fn worker(&mut self) -> &mut Script {
        let name = "iou-wrk-10".to_owned();
        self.at(ROOT, What::TaskMade { task: WORKER, name, is_thread: true })
    }

    fn begin(&mut self, thread: u32, flags: u32) -> &mut Script {
        self.at(
            thread,
            What::Begin(Begin {
                inode: inode(),
                file_size: 1 << 20,
                position: 0,
                count: u64::from(LENGTH),
                done_before: 0,
                flags,
                is_async: true,
                is_write: false,
            }),
        )
    }

    fn bio(&mut self, thread: u32) -> &mut Script {
        self.at(thread, What::BioQueued(sectors(0)))
    }

    fn raw_bio(&mut self, thread: u32, bio: u64) -> &mut Script {
        self.bio(thread)
            .at(thread, What::RawBio { request: bio, is_first: true, is_waited_for: Some(false) })
    }

    fn complete(&mut self, thread: u32) -> &mut Script {
        let result = i64::from(LENGTH);
        self.at(thread, What::Complete { inode: inode(), position: u64::from(LENGTH), result })
    }

    fn end(&mut self) -> Trace {
        let mut collector = Collector::default();
        std::mem::replace(self, Script::new()).join.finish(&mut collector);
        collector.trace
    }
}

fn sectors(error: i64) -> Sectors {
    let count = LENGTH / 512;
    Sectors { device: device(), start: 2048, count, flow: Flow::Read, is_durable: false, error }
}

#[test]
fn a_request_of_a_ring_is_reported_as_such_also_when_its_entry_is_not_seen() {
    let mut script = Script::new();
    script.ring().begin(ROOT, 0).bio(ROOT).at(ROOT, What::BioDone(sectors(0))).complete(ROOT);
    let trace = script.end();
    assert_eq!(trace.requests[0].door, Door::Uring);
    assert_eq!(trace.requests[0].bios.len(), 1);
    assert_eq!(trace.requests[0].times.woken, None);
}

#[test]
fn without_a_ring_who_does_not_wait_came_by_linux_aio() {
    let mut script = Script::new();
    script.begin(ROOT, 0).bio(ROOT).at(ROOT, What::BioDone(sectors(0))).complete(ROOT);
    assert_eq!(script.end().requests[0].door, Door::Aio);
    // With both, only an entry shows it.
    let mut script = Script::new();
    script.ring().at(ROOT, What::QueueMade { is_ring: false, entries: 32 });
    script.begin(ROOT, 0).complete(ROOT);
    assert_eq!(script.end().requests[0].door, Door::Aio);
    let mut script = Script::new();
    script.ring().at(ROOT, What::QueueMade { is_ring: false, entries: 32 });
    script.at(ROOT, What::UringSubmitted(ENTRY)).begin(ROOT, 0).complete(ROOT);
    assert_eq!(script.end().requests[0].door, Door::Uring);
}

#[test]
fn an_attempt_that_would_have_waited_and_the_workers_request_are_one() {
    let mut script = Script::new();
    script.ring().worker().at(ROOT, What::UringSubmitted(ENTRY)).begin(ROOT, IOCB_NOWAIT);
    script.at(ROOT, What::UringPunted(ENTRY)).begin(WORKER, 0).bio(WORKER);
    script.at(WORKER, What::BioDone(sectors(0))).complete(WORKER);
    script.at(WORKER, What::UringCompleted(ENTRY));
    let trace = script.end();
    assert_eq!(trace.requests.len(), 1);
    let request = &trace.requests[0];
    assert!(request.is_punted && request.door == Door::Uring);
    // From the first attempt to the completion.
    assert_eq!(request.times.begin, 3000);
    assert_eq!(request.times.woken, Some(9000));
}

#[test]
fn an_entry_whose_place_is_used_again_does_not_change_the_earlier_request() {
    let mut script = Script::new();
    script.ring().worker().at(ROOT, What::UringSubmitted(ENTRY)).begin(ROOT, 0).bio(ROOT);
    script.at(ROOT, What::BioDone(sectors(0))).complete(ROOT);
    // Its completion and the next submission are not recorded.
    script.at(ROOT, What::UringPunted(ENTRY)).begin(WORKER, 0).bio(WORKER);
    script.at(WORKER, What::BioDone(sectors(0))).complete(WORKER);
    let punted: Vec<bool> = script.end().requests.iter().map(|request| request.is_punted).collect();
    assert_eq!(punted, [false, true]);
}

#[test]
fn a_raw_devices_bio_that_a_ring_may_not_cut_is_repeated_and_counts_once() {
    let mut script = Script::new();
    script.ring().worker().at(ROOT, What::UringSubmitted(ENTRY)).raw_bio(ROOT, 1);
    script.at(ROOT, What::BioDone(sectors(EAGAIN))).at(ROOT, What::UringPunted(ENTRY));
    script.raw_bio(WORKER, 1).at(WORKER, What::BioDone(sectors(0)));
    let trace = script.end();
    assert_eq!(trace.requests.len(), 1);
    assert_eq!(trace.bios.len(), 1);
    let request = &trace.requests[0];
    assert_eq!((request.bios.as_slice(), request.result), (&[0][..], Some(i64::from(LENGTH))));
    assert!(request.is_punted);
    assert_eq!(trace.bios[0].queued, 8000);
}

#[test]
fn what_linux_aio_is_refused_is_a_request_with_that_result() {
    let mut script = Script::new();
    script.at(ROOT, What::QueueMade { is_ring: false, entries: 32 }).raw_bio(ROOT, 1);
    script.at(ROOT, What::BioDone(sectors(EAGAIN)));
    let trace = script.end();
    assert_eq!(trace.requests.len(), 1);
    assert_eq!(trace.requests[0].result, Some(EAGAIN));
}

/// A read that is waited for, at an offset of a file of 1 MiB, without any event of its end.
fn read_at(position: u64) -> What {
    What::Begin(Begin {
        inode: inode(),
        file_size: 1 << 20,
        position,
        count: u64::from(LENGTH),
        done_before: 0,
        flags: 0,
        is_async: false,
        is_write: false,
    })
}

#[test]
fn a_read_at_the_end_of_the_file_moves_nothing() {
    let mut script = Script::new();
    script.at(ROOT, read_at(0)).bio(ROOT).at(ROOT, What::BioDone(sectors(0))).complete(ROOT);
    script.at(ROOT, read_at(1 << 20));
    let trace = script.end();
    let moved: u64 = trace.requests.iter().map(crate::summary::bytes_moved).sum();
    assert_eq!(trace.requests[1].result, Some(0));
    assert_eq!((trace.requests.len(), moved), (2, u64::from(LENGTH)));
    assert!(trace.unknown.is_empty(), "{:?}", trace.unknown);
}

#[test]
fn a_read_at_the_end_takes_no_completion_from_a_write_at_the_same_place() {
    let mut script = Script::new();
    script.at(ROOT, read_at(1 << 20));
    let mut write = read_at(1 << 20);
    let What::Begin(begin) = &mut write else { unreachable!("a begin") };
    (begin.is_async, begin.is_write) = (true, true);
    script.at(ROOT, write);
    let result = i64::from(LENGTH);
    let position = (1 << 20) + u64::from(LENGTH);
    script.at(WORKER, What::Complete { inode: inode(), position, result });
    let results: Vec<_> = script.end().requests.iter().map(|request| request.result).collect();
    assert_eq!(results, [Some(0), Some(result)]);
}

#[test]
fn threads_that_the_command_did_not_start_are_not_reported() {
    let mut script = Script::new();
    script.begin(99, 0).bio(99).complete(99);
    assert!(script.end().requests.is_empty());
}
