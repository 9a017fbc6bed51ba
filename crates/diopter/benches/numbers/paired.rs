//! Comparisons too fine for two processes: both sides of a blocking call in turns within one, and
//! the engine's own work. A child prints all its pairs.

use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use diopter::engine::CompletionPolicy;
use diopter::{EngineOptions, File, IoBuf};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::ground::{BLOCK, pattern_block};
use crate::null_loop::NullLoop;
use crate::own::Job;

/// Calls of one side before the other has its turn.
const CALLS: u32 = 500;

const WARM_UP_TURNS: u32 = 20;

/// How long a piece of work took, and how much of that this thread had the processor: what is left
/// of the first when others want the processor too.
#[derive(Clone, Copy, Default)]
struct Took {
    elapsed: Duration,
    processor: Duration,
}

fn time(work: impl FnOnce()) -> Took {
    let mine = || Duration::try_from(clock_gettime(ClockId::ThreadCPUTime)).unwrap_or_default();
    let (processor, started) = (mine(), Instant::now());
    work();
    Took { elapsed: started.elapsed(), processor: mine() - processor }
}

fn nanos_each(total: Duration, count: u32) -> f64 {
    total.as_secs_f64() * 1e9 / f64::from(count)
}

/// One blocking block against `pread` or `pwrite` on a descriptor of the same open file, in `turns`
/// pairs of short turns, in the order ABBA: so short that few hold another program's time slice.
pub fn blocking(job: &Job) -> Result<Value, String> {
    let path = job.file()?;
    let (turns, slots): (u32, u64) = (job.number("turns")?, job.number("slots")?);
    let is_write = job.text("op")? == "write";
    let failed = |error: diopter::Error| error.to_string();
    let file = File::options().read(true).write(true).open(&path).map_err(failed)?;
    diopter::use_for_this_thread(EngineOptions::default());
    let bare = file
        .local_fd()
        .expect("a local file")
        .try_clone_to_owned()
        .map_err(|error| error.to_string())?;
    let bare = std::fs::File::from(bare);
    let mut memory = IoBuf::new(BLOCK).map_err(|errno| errno.to_string())?;
    memory.copy_from_slice(&pattern_block());
    let offset = |call: u32| (u64::from(call.wrapping_mul(2_654_435_761)) & (slots - 1)) * 4096;
    let mut run = |is_ours: bool, turn: u32| {
        for call in turn * CALLS..(turn + 1) * CALLS {
            let at = offset(call);
            let moved = match (is_ours, is_write) {
                (true, false) => file.read_at(&mut memory, at).expect("a read"),
                (true, true) => file.write_at(&memory, at).expect("a write"),
                (false, false) => bare.read_at(&mut memory, at).expect("a read"),
                (false, true) => bare.write_at(&memory, at).expect("a write"),
            };
            assert_eq!(black_box(moved), BLOCK);
        }
    };
    let (mut pairs, mut processor) = (Vec::new(), Vec::new());
    for turn in 0..turns + WARM_UP_TURNS {
        let (mut ours, mut theirs) = (Took::default(), Took::default());
        let is_first = turn % 2 == 0;
        for is_ours in [is_first, !is_first] {
            *(if is_ours { &mut ours } else { &mut theirs }) = time(|| run(is_ours, turn));
        }
        if turn >= WARM_UP_TURNS {
            let each = |of: fn(Took) -> Duration| {
                (nanos_each(of(ours), CALLS), nanos_each(of(theirs), CALLS))
            };
            pairs.push(each(|took| took.elapsed));
            processor.push(each(|took| took.processor));
        }
    }
    Ok(json!({ "pairs": pairs, "processor": processor }))
}

/// Nanoseconds of the engine for a bio on the null device, allocations once it is warm, and the
/// pairs of [`completed`].
pub fn null(job: &Job) -> Result<Value, String> {
    let (turns, bios): (u32, u32) = (job.number("turns")?, job.number("bios")?);
    let mut engine = NullLoop::new();
    (0..WARM_UP_TURNS).for_each(|_| engine.run(bios));
    let (mut nanos, mut processor) = (Vec::new(), Vec::new());
    for _ in 0..turns {
        let took = time(|| engine.run(bios));
        nanos.push(nanos_each(took.elapsed, bios));
        processor.push(nanos_each(took.processor, bios));
    }
    let allocations = allocation_counter::measure(|| engine.run(bios)).count_total;
    let deferred = completed(turns, bios);
    Ok(json!({
        "nanos": nanos,
        "processor": processor,
        "allocations": allocations,
        "deferred": deferred,
    }))
}

/// Nanoseconds for a bio on the null device, completed inline and in a worker, in turns.
fn completed(turns: u32, bios: u32) -> Vec<(f64, f64)> {
    let mut engines =
        [CompletionPolicy::Inline, CompletionPolicy::Deferred].map(NullLoop::completing);
    engines.iter_mut().for_each(|engine| engine.run(bios));
    let mut pairs = Vec::new();
    for turn in 0..turns {
        let mut nanos = [0.0; 2];
        for at in if turn % 2 == 0 { [0, 1] } else { [1, 0] } {
            nanos[at] = nanos_each(time(|| engines[at].run(bios)).elapsed, bios);
        }
        pairs.push((nanos[0], nanos[1]));
    }
    pairs
}
