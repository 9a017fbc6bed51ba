//! Events as a kernel would send them, and what they are joined to.

mod btrfs;
mod durable;
mod many;
mod flush;

use super::complete::EAGAIN;
use super::*;
use crate::event::{Begin, Device, FLAG_HARD_IRQ, Flow, IOCB_NOWAIT, IOCB_WRITE};
use crate::model::{Context, Door, Trace};
use crate::totals::Collector;

const ROOT: u32 = 10;
const WORKER: u32 = 11;
/// A thread of the kernel.
const KERNEL: u32 = 5;
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
        self.join.take(Event { time: self.now, thread, cpu: 0, flags: 0, what });
        self
    }

    /// In an interrupt of a CPU.
    fn interrupt(&mut self, cpu: u32, thread: u32, what: What) -> &mut Script {
        self.now += 1000;
        let flags = FLAG_HARD_IRQ;
        self.join.take(Event { time: self.now, cpu, thread, flags, what });
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
        self.at(thread, What::Begin(Begin { flags, ..begin() }))
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

/// A read of a file.
fn begin() -> Begin {
    Begin {
        inode: inode(),
        file_size: 1 << 20,
        position: 0,
        count: u64::from(LENGTH),
        done_before: 0,
        flags: 0,
        is_async: true,
        is_write: false,
        has_cached_pages: None,
        block: 0,
    }
}

fn sectors(error: i64) -> Sectors {
    let count = LENGTH / 512;
    Sectors { device: device(), start: 2048, count, flow: Flow::Read, is_durable: false, error }
}

/// The event of a bio shows the whole disk, and the program's record the partition.
#[test]
fn bios_of_a_file_on_a_partition_are_of_its_request_and_of_the_disk() {
    let partition = Device::new(4000, 1);
    for of_bio in [device(), partition] {
        let mut script = Script::new();
        script.join.files.disks.insert(partition, device());
        let begin = Begin { inode: Inode { device: partition, number: 12 }, ..begin() };
        script.at(ROOT, What::Begin(begin));
        script.at(ROOT, What::BioQueued(Sectors { device: of_bio, ..sectors(0) }));
        let trace = script.at(ROOT, What::BioDone(sectors(0))).end();
        assert_eq!(trace.requests[0].bios, [0]);
        assert_eq!(trace.bios[0].device, device().numbers());
        assert!(trace.bios[0].done.is_some());
    }
}

#[test]
fn the_time_of_a_trace_is_that_of_its_requests_and_not_of_other_events() {
    let mut script = Script::new();
    script.at(KERNEL, What::LogSlept);
    script.now += 3_000_000_000;
    script.begin(ROOT, 0).bio(ROOT).at(ROOT, What::BioDone(sectors(0))).complete(ROOT);
    script.now += 5_000_000_000;
    script.at(KERNEL, What::LogSlept).begin(KERNEL, 0).at(ROOT, What::TaskEnded(ROOT));
    let trace = script.end();
    assert_eq!((trace.requests.len(), trace.elapsed_ns), (1, 3000));
    assert_eq!(Script::new().at(KERNEL, What::LogSlept).end().elapsed_ns, 0);
}

/// The kernel ends the leader, and gives its number to the thread that executes.
#[test]
fn a_program_that_a_thread_executes_is_traced_on() {
    for (is_traced, requests) in [(true, 1), (false, 0)] {
        let mut script = Script::new();
        let (leader, thread) = if is_traced { (ROOT, WORKER) } else { (KERNEL, KERNEL + 1) };
        let name = "a".to_owned();
        script.at(leader, What::TaskMade { task: thread, name, is_thread: true });
        script.at(leader, What::TaskEnded(leader));
        script.at(leader, What::TaskNamed { task: leader, name: "dd".to_owned() });
        script.at(leader, What::Executed { before: thread });
        script.begin(leader, 0).bio(leader).at(leader, What::BioDone(sectors(0))).complete(leader);
        script.begin(thread, 0).bio(thread);
        let trace = script.end();
        assert_eq!(trace.requests.len(), requests);
        assert!(trace.requests.iter().all(|request| request.thread_name == "dd"));
    }
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
    script.at(WORKER, What::UringCompleted { entry: ENTRY, result: 0 });
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
        has_cached_pages: None,
        block: 0,
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

/// A read that is not waited for, as a probe shows it.
fn probed(position: u64, block: u64) -> What {
    let What::Begin(begin) = read_at(position) else { unreachable!("a begin") };
    let flags = if block == ENTRY { IOCB_NOWAIT } else { 0 };
    What::Begin(Begin { is_async: true, flags, has_cached_pages: Some(false), block, ..begin })
}

fn completing(position: u64) -> What {
    What::Completing { inode: inode(), position }
}

fn completed(length: u32) -> What {
    What::Completed { result: i64::from(length) }
}

/// Where the requests of a trace completed, and with what result.
fn ends(trace: &Trace) -> Vec<(u64, Option<Context>, Option<i64>)> {
    let end =
        |request: &crate::model::TracedRequest| (request.offset, request.context, request.result);
    trace.requests.iter().map(end).collect()
}

#[test]
fn a_completion_inside_another_is_that_of_the_interrupt() {
    let mut script = Script::new();
    script.at(ROOT, probed(0, 1)).at(ROOT, probed(4096, 2));
    // The worker completes the first, and is interrupted by the second.
    script.at(KERNEL, completing(0)).interrupt(1, KERNEL, completing(4096));
    script.interrupt(1, KERNEL, completed(512)).at(KERNEL, completed(4096));
    let expected =
        [(0, Some(Context::Kworker), Some(4096)), (4096, Some(Context::HardIrq), Some(512))];
    assert_eq!(ends(&script.end()), expected);
}

#[test]
fn the_idle_threads_of_two_cpus_are_two() {
    let mut script = Script::new();
    script.at(ROOT, probed(0, 1)).at(ROOT, probed(4096, 2));
    script.interrupt(0, 0, completing(0)).interrupt(1, 0, completing(4096));
    script.interrupt(0, 0, completed(4096)).interrupt(1, 0, completed(512));
    let expected =
        [(0, Some(Context::HardIrq), Some(4096)), (4096, Some(Context::HardIrq), Some(512))];
    assert_eq!(ends(&script.end()), expected);
}

#[test]
fn a_completion_that_a_probe_missed_was_where_the_last_bio_ended() {
    let read = |error, context: &dyn Fn(&mut Script, What)| {
        let mut script = Script::new();
        script.at(ROOT, probed(0, 1)).bio(ROOT);
        context(&mut script, What::BioDone(sectors(error)));
        ends(&script.end())[0]
    };
    let in_interrupt = |script: &mut Script, what| _ = script.interrupt(0, ROOT, what);
    assert_eq!(read(0, &in_interrupt), (0, Some(Context::HardIrq), Some(4096)));
    assert_eq!(read(-5, &in_interrupt), (0, Some(Context::HardIrq), Some(-5)));
    // In a task nothing is missed: it has not completed.
    let in_task = |script: &mut Script, what| _ = script.at(ROOT, what);
    assert_eq!(read(0, &in_task), (0, None, None));
    // Nor is a request whose bios do not show all of it.
    let mut script = Script::new();
    script.at(ROOT, probed(0, 0)).bio(ROOT);
    script.interrupt(0, ROOT, What::BioDone(sectors(0)));
    assert_eq!(ends(&script.end()), [(0, None, None)]);
}

#[test]
fn a_thread_of_the_kernel_that_works_for_a_ring_makes_its_requests() {
    let mut script = Script::new();
    script.join.has_probes = true;
    script.ring().at(ROOT, probed(0, ENTRY)).at(ROOT, What::UringPunted(ENTRY));
    script.at(KERNEL, probed(0, ENTRY)).bio(KERNEL).at(KERNEL, What::BioDone(sectors(0)));
    script.at(KERNEL, completing(0)).at(KERNEL, completed(4096));
    // What it does for another process is not theirs.
    script.at(KERNEL, probed(8192, 0xdef0)).bio(KERNEL);
    // Of this one nothing is seen.
    script.at(ROOT, What::UringPunted(0x1230));
    let trace = script.end();
    assert_eq!(ends(&trace), [(0, Some(Context::Task), Some(4096))]);
    assert!(trace.requests[0].is_punted && trace.requests[0].door == Door::Uring);
    assert_eq!(trace.unknown, ["1 entry of rings that workers of the kernel took"]);
}

#[test]
fn threads_that_the_command_did_not_start_are_not_reported() {
    let mut script = Script::new();
    script.begin(99, 0).bio(99).complete(99);
    assert!(script.end().requests.is_empty());
}

/// Requests that leave while others come are the same as those that leave at the end.
#[test]
fn requests_that_retire_early_are_those_of_a_trace_that_is_joined_at_once() {
    let run = |is_early: bool| {
        let mut script = Script::new();
        let mut collector = Collector::default();
        script.ring().worker();
        for number in 0..200 {
            // Some attempts are refused, and a worker repeats them.
            let is_refused = number % 10 == 0;
            let thread = if is_refused { WORKER } else { ROOT };
            script.at(ROOT, What::UringSubmitted(ENTRY));
            if is_refused {
                script.begin(ROOT, IOCB_NOWAIT).at(ROOT, What::UringPunted(ENTRY));
            }
            let retire = |script: &mut Script, collector: &mut Collector| {
                if is_early {
                    script.join.retire(true, collector);
                    // The last one may still change, its attempt, and the one before.
                    assert!(script.join.held() <= 3, "{}", script.join.held());
                }
            };
            if is_refused {
                retire(&mut script, &mut collector);
            }
            script.begin(thread, 0).bio(thread).at(thread, What::Issued(sectors(0)));
            retire(&mut script, &mut collector);
            // It completes in a thread of the kernel.
            script.at(KERNEL, What::BioDone(sectors(0))).complete(KERNEL);
            retire(&mut script, &mut collector);
            script.at(thread, What::UringCompleted { entry: ENTRY, result: 0 });
            script.now += 20_000_000;
        }
        script.join.finish(&mut collector);
        collector.trace
    };
    let (whole, early) = (run(false), run(true));
    assert_eq!(whole.requests.len(), 200);
    assert_eq!(format!("{:?}", whole.requests), format!("{:?}", early.requests));
    assert_eq!(format!("{:?}", whole.bios), format!("{:?}", early.bios));
    assert_eq!(whole.unknown, [""; 0]);
    assert_eq!(early.unknown, [""; 0]);
}

/// A request whose end is lost leaves after a minute, and one in flight stays.
#[test]
fn a_request_without_an_end_leaves_after_a_minute() {
    let mut script = Script::new();
    let mut collector = Collector::default();
    script.begin(ROOT, 0).bio(ROOT);
    script.now += 59_000_000_000;
    script.at(ROOT, What::LogSlept).join.retire(true, &mut collector);
    assert_eq!((script.join.held(), collector.trace.requests.len()), (1, 0));
    script.now += 2_000_000_000;
    script.at(ROOT, What::LogSlept).join.retire(true, &mut collector);
    assert_eq!((script.join.held(), collector.trace.requests.len()), (0, 1));
    assert_eq!(collector.trace.requests[0].result, None);
    script.join.finish(&mut collector);
    assert_eq!(collector.trace.unknown, ["how 1 request ended: no event showed it"]);
}

fn scope(thread: u32, cgroup: u64) -> Scope {
    let member = Member { thread, process: thread, name: "sh".to_owned() };
    Scope { members: vec![member], cgroups: HashSet::from([cgroup]), ..Scope::default() }
}

/// The requests of a thread that begins one every microsecond, with other events between.
fn requests_of(mut join: Join, thread: u32, between: &[(usize, What)]) -> usize {
    let begin = |position: u64| Begin {
        inode: inode(),
        file_size: 1 << 30,
        position,
        count: 4096,
        done_before: 0,
        flags: 0,
        is_async: false,
        is_write: false,
        has_cached_pages: None,
        block: 0,
    };
    for number in 0..10_u64 {
        for (_, what) in between.iter().filter(|(at, _)| u64::try_from(*at) == Ok(number)) {
            let time = 1000 + number * 1000 - 1;
            join.take(Event { time, thread: 1, cpu: 0, flags: 0, what: what.clone() });
        }
        let (time, what) = (1000 + number * 1000, What::Begin(begin(number * 4096)));
        join.take(Event { time, thread, cpu: 0, flags: 0, what });
        let (position, result) = ((number + 1) * 4096, 4096);
        let what = What::Complete { inode: inode(), position, result };
        join.take(Event { time: time + 1, thread, cpu: 0, flags: 0, what });
    }
    let mut collector = Collector::default();
    join.finish(&mut collector);
    collector.trace.requests.len()
}

#[test]
fn a_process_counts_while_it_is_in_a_traced_control_group() {
    const GROUP: u64 = 77;
    let join = |scope| Join::new(scope, Files::default(), true);
    let moved = |cgroup| What::Moved { process: 20, cgroup };
    assert_eq!(requests_of(join(scope(20, GROUP)), 20, &[]), 10);
    assert_eq!(requests_of(join(scope(20, GROUP)), 20, &[(4, moved(5))]), 4);
    assert_eq!(requests_of(join(scope(9, GROUP)), 20, &[(4, moved(GROUP))]), 6);
    let twice = [(2, moved(GROUP)), (5, moved(5))];
    assert_eq!(requests_of(join(scope(9, GROUP)), 20, &twice), 3);
    assert_eq!(requests_of(join(scope(9, GROUP)), 20, &[(2, What::MovedElsewhere)]), 0);
}

#[test]
fn a_thread_that_is_found_late_counts_from_its_start_or_else_from_then_on() {
    let late = |time| {
        let mut join = Join::new(scope(9, 77), Files::default(), true);
        join.find_late(scope(20, 77), time);
        join
    };
    // Found before the request at 5000.
    assert_eq!(requests_of(late(4_500), 20, &[]), 6);
    assert_eq!(requests_of(late(u64::MAX), 20, &[]), 0);
    // No traced thread starts it: it was put into the group as it was made.
    let made = What::TaskMade { task: 20, name: "sh".to_owned(), is_thread: false };
    assert_eq!(requests_of(late(u64::MAX), 20, &[(3, made)]), 7);
    // Its number is used again, by a process that is not traced.
    let made = What::TaskMade { task: 20, name: "sh".to_owned(), is_thread: false };
    let scope = scope(20, 77);
    let join = Join::new(scope, Files::default(), true);
    assert_eq!(requests_of(join, 20, &[(3, What::TaskEnded(20)), (4, made)]), 3);
}

/// A write whose worker marks its blocks as written, with what was allocated for it.
fn written(allocated: Option<bool>) -> TracedRequest {
    let mut script = Script::new();
    script.begin(ROOT, IOCB_WRITE);
    if let Some(is_data) = allocated {
        script.at(ROOT, What::Allocated { inode: inode(), is_data });
    }
    script.at(ROOT, What::BioQueued(Sectors { flow: Flow::Write, ..sectors(0) }));
    script.at(KERNEL, What::UnwrittenConverted(inode())).complete(KERNEL);
    script.end().requests.remove(0)
}

#[test]
fn a_write_into_a_hole_is_into_unwritten_blocks_that_were_allocated_for_it() {
    let facts = |allocated| {
        let request = written(allocated);
        (request.is_unwritten, request.has_allocated)
    };
    assert_eq!(facts(Some(true)), (Some(true), true));
    assert_eq!(facts(None), (Some(true), false));
    assert_eq!(facts(Some(false)), (Some(true), false), "blocks of the tree of extents only");
}
