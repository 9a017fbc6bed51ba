//! Faults on one object, and what they do to a request and to the next; on the simulator.

use diopter::engine::MergePolicy;
use diopter::history::EACH_THEN_WAIT;
use diopter::{Errno, FinishedRequest, Policies, Preset, RangeState, Request};
use diopter_os::Op;

use super::MIB;
use super::scripted::{Bench, memory};

const ROOM: [u64; 2] = [64 * MIB; 2];

fn errno(finished: &FinishedRequest) -> Option<Errno> {
    finished.result.as_ref().err().map(|error| error.errno)
}

fn done(finished: &FinishedRequest) -> Option<u64> {
    finished.result.as_ref().ok().map(|moved| moved.get())
}

/// The outcome in MiB.
fn parts(finished: &FinishedRequest) -> Vec<(u64, RangeState)> {
    let outcome = finished.outcome();
    let parts = outcome.ranges().iter();
    parts.map(|part| (part.range.length() / MIB, part.state)).collect()
}

#[test]
fn sanity_119r_a_failed_copy_is_efault_and_the_next_request_works() {
    let bench = Bench::new(&ROOM, Policies::default());
    bench.run(Request::write(0, memory(8 * MIB, 1)));
    bench.fail(0, Op::Write, Errno::EFAULT);
    let failed = bench.run(Request::write(100, memory(1000, 2)));
    assert_eq!(errno(&failed), Some(Errno::EFAULT));
    assert!(failed.memory.is_some());
    assert_eq!(done(&bench.run(Request::write(0, memory(2 * MIB, 3)))), Some(2 * MIB));
}

#[test]
fn sanity_398f_and_398i_without_memory_one_request_fails_and_no_other() {
    let bench = Bench::new(&ROOM, Policies::default());
    bench.run(Request::write(0, memory(8 * MIB, 1)));
    for op in [Op::Write, Op::Read] {
        bench.fail(1, op, Errno::ENOMEM);
        let request = |n: u64| match op {
            Op::Write => Request::write(2 * n * MIB, memory(2 * MIB, 2)),
            _ => Request::read(2 * n * MIB, memory(2 * MIB, 2)),
        };
        (0..4).for_each(|n| bench.start(request(n)));
        let ended: Vec<FinishedRequest> = (0..4).map(|_| bench.next()).collect();
        let failed: Vec<_> = ended.iter().filter_map(errno).collect();
        assert_eq!(failed, [Errno::ENOMEM], "queued");
        assert!(ended.iter().all(|finished| finished.memory.is_some()));
        bench.fail(0, op, Errno::ENOMEM);
        assert_eq!(errno(&bench.run(request(0))), Some(Errno::ENOMEM), "alone");
        assert_eq!(done(&bench.run(request(0))), Some(2 * MIB), "and again");
    }
}

/// 8 MiB over two objects that are paused, in RPCs of 1 MiB: all eight are in flight; without
/// parallel direct I/O only one ever is.
#[test]
fn sanity_398g_eight_requests_of_a_stripe_each_are_in_flight_at_once() {
    let parallel = Preset::Lustre2_14.policies();
    let serial = Policies { history: EACH_THEN_WAIT, ..parallel };
    for (policies, expected) in [(parallel, [4, 4]), (serial, [1, 1])] {
        assert_eq!(policies.merge, MergePolicy::PerStripe);
        let bench = Bench::new(&ROOM, policies);
        bench.run(Request::write(0, memory(8 * MIB, 1)));
        bench.held_max();
        for request in [Request::write(0, memory(8 * MIB, 2)), Request::read(0, memory(8 * MIB, 0))]
        {
            let finished = bench.run(request);
            assert_eq!(done(&finished), Some(8 * MIB));
            assert_eq!(bench.held_max(), expected, "at once on each object");
            let seconds =
                finished.timing().unwrap().reaped.since(finished.timing().unwrap().submitted)
                    / 1_000_000_000;
            assert_eq!(seconds, if expected == [4, 4] { 1 } else { 8 });
        }
    }
}

#[test]
fn sanity_398m_and_398r_a_failed_stripe_fails_its_request_reading_and_writing() {
    for policies in [Policies::default(), Preset::Lustre2_14.policies()] {
        for bad in [0, 1] {
            let bench = Bench::new(&ROOM, policies);
            bench.run(Request::write(0, memory(8 * MIB, 1)));
            // The second row of the object.
            bench.world.with_disk(bad, |disk| disk.turn_bad(MIB));
            for request in
                [Request::write(0, memory(8 * MIB, 2)), Request::read(0, memory(8 * MIB, 0))]
            {
                let failed = bench.run(request);
                assert_eq!(errno(&failed), Some(Errno::EIO), "object {bad}");
                let is_failed =
                    |part: &&(u64, RangeState)| part.1 == RangeState::Failed(Errno::EIO);
                let lost: u64 = parts(&failed).iter().filter(is_failed).map(|part| part.0).sum();
                let expected = if policies.merge == MergePolicy::PerStripe { 1 } else { 4 };
                assert_eq!(lost, expected, "MiB: the bio that failed and no other");
            }
            bench.world.with_disk(bad, |disk| disk.heal());
            assert_eq!(done(&bench.run(Request::read(0, memory(8 * MIB, 0)))), Some(8 * MIB));
        }
    }
}

/// sanity 27T's rule for direct I/O.
#[test]
fn sanity_27t_a_stripe_is_written_whole_or_not_at_all_when_the_space_ends_within() {
    let bench = Bench::new(&[64 * MIB, MIB + MIB / 2], Policies::default());
    let finished = bench.run(Request::write(0, memory(8 * MIB, 7)));
    assert_eq!(done(&finished), Some(3 * MIB));
    assert_eq!([0, 1].map(|n| bench.size(n)), [2 * MIB, MIB]);
    let not_tried = RangeState::NotTried;
    let failed = RangeState::Failed(Errno::ENOSPC);
    let expected: Vec<_> = (0..8)
        .map(|n| {
            (
                1,
                if n < 3 {
                    RangeState::Done
                } else if n == 3 {
                    failed
                } else {
                    not_tried
                },
            )
        })
        .collect();
    assert_eq!(parts(&finished), expected, "a part for each stripe");
}

/// 398l's rule, when the first stripe was short before the space ended.
#[test]
fn nothing_is_written_behind_a_short_stripe_when_space_is_not_sure() {
    let bench = Bench::new(&[64 * MIB, MIB], Policies::default());
    bench.end(0, Op::Write, Ok(512));
    bench.fail(0, Op::Write, Errno::ENOSPC);
    let finished = bench.run(Request::write(0, memory(4 * MIB, 7)));
    assert_eq!((done(&finished), bench.size(1)), (Some(512), 0));
}

/// Space was promised and is not there: what was written side by side has a gap, and is an error.
#[test]
fn a_write_without_space_in_the_middle_is_short_only_when_nothing_lies_behind() {
    let bench = Bench::new(&ROOM, Policies::default());
    bench.fail(1, Op::Write, Errno::ENOSPC);
    let gap = bench.run(Request::write(0, memory(4 * MIB, 7)));
    assert_eq!(errno(&gap), Some(Errno::ENOSPC));
    let failed = RangeState::Failed(Errno::ENOSPC);
    let expected = [(1, RangeState::Done), (1, failed), (1, RangeState::Done), (1, failed)];
    assert_eq!(parts(&gap), expected);
    bench.fail(1, Op::Write, Errno::ENOSPC);
    assert_eq!(done(&bench.run(Request::write(0, memory(2 * MIB, 7)))), Some(MIB));
}

#[test]
fn a_write_that_is_cancelled_while_it_asks_for_space_is_not_tried() {
    let bench = Bench::new(&ROOM, Policies::default());
    let id = bench.engine.start(&bench.target, Request::write(0, memory(4 * MIB, 7)));
    bench.engine.tick();
    bench.engine.cancel(id.expect("admitted"));
    let finished = bench.next();
    assert_eq!(errno(&finished), Some(Errno::ECANCELED));
    assert!(parts(&finished).iter().all(|part| part.1 == RangeState::NotTried));
    assert_eq!([0, 1].map(|n| bench.size(n)), [0, 0]);
}
