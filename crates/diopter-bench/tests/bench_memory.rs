//! A matrix of 4 000 cells is measured and written in constant memory. This test is alone in its
//! process, because it looks at the process's peak memory.

#[path = "bench_memory/made_up.rs"]
mod made_up;

use diopter_bench::bench::assemble;
use diopter_bench::bench::campaign::{Campaign, Ending};
use diopter_bench::bench::journal::{Begin, Journal, Reached, SCHEMA};
use diopter_bench::bench::result::{ResultFile, journal_of};
use made_up::{Steady, plan};

/// More than a run takes, and far less than its result.
const GROWTH_BYTES_MAX: u64 = 24 << 20;

fn memory_peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

#[test]
fn four_thousand_cells_are_measured_and_written_in_bounded_memory() {
    let dir = tempfile::tempdir().unwrap();
    let result = dir.path().join("result.json");
    let plan = plan(1000, 4, 2);
    let begin = Begin { schema: SCHEMA.to_owned(), plan: plan.clone(), ..Begin::default() };
    let journal = Journal::create(&journal_of(&result), begin).unwrap();
    let mut file = ResultFile::new(&result).unwrap();
    let before = memory_peak_bytes();
    let mut runner = Steady::default();
    let mut campaign = Campaign::new(&plan, &mut runner, (journal, Reached::default()));
    let ending = campaign.run(&mut |_| file.refresh().unwrap());
    assert_eq!(ending, Ok(Ending::Whole));
    file.write().unwrap();
    let grown = memory_peak_bytes() - before;
    let written = result.metadata().unwrap().len();
    assert!(written > 2 * GROWTH_BYTES_MAX, "the result has {written} bytes");
    assert!(grown < GROWTH_BYTES_MAX, "{grown} bytes more, for a result of {written}");
    // Reports omit the histograms.
    let bench = assemble::read(&journal_of(&result)).unwrap();
    assert_eq!(bench.rows.len(), 1000);
    let grown = memory_peak_bytes() - before;
    assert!(grown < written, "{grown} bytes more, for a result of {written}");
}
