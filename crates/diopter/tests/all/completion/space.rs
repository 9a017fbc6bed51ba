//! Results of a write that runs out of space after an earlier attempt.

use diopter::engine::CompletionPolicy;
use diopter::{Errno, RangeState, Request, RwFlags};

use super::bench::{Bench, MIB, Shape, memory};

#[test]
fn what_an_earlier_attempt_wrote_behind_a_gap_is_no_short_write() {
    // Bios on both objects: the second is asked to come again. Then it has no space, and the third
    // stripe, written already, is asked to come again.
    let change = Box::new(|number: u32, result: &mut _| match number {
        1 | 3 => *result = Err(Errno::EAGAIN),
        2 => *result = Err(Errno::ENOSPC),
        _ => {}
    });
    let bench = Bench::of(CompletionPolicy::Auto, Shape::Striped(2), RwFlags::NONE, change);
    let whole = vec![0; usize::try_from(2 * MIB).expect("small")];
    (0..2).for_each(|number| bench.world.with_disk(number, |disk| disk.load(&whole)));
    let done = bench.run(Request::write(0, memory(3 * MIB, 7)));
    assert_eq!(done.result.clone().expect_err("a gap").errno, Errno::ENOSPC);
    let states: Vec<_> = done.outcome().ranges().iter().map(|part| part.state).collect();
    let failed = RangeState::Failed(Errno::ENOSPC);
    assert_eq!(states, [RangeState::Done, failed, RangeState::Done]);
}
