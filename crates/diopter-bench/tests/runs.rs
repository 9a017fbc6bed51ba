//! Runs of a matrix on a simulated machine: what is kept after an interruption at any moment, how
//! the run resumes, and how much memory a large one takes. The figures are a pure function of row,
//! column and round, so that two runs can be compared exactly.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use diopter_bench::bench::assemble;
use diopter_bench::bench::campaign::{Campaign, Ending, Event, Runner, Trouble};
use diopter_bench::bench::histogram::LatencyTimes;
use diopter_bench::bench::journal::{Begin, Journal, Reached, SCHEMA};
use diopter_bench::bench::plan::{Axes, Plan, PlannedColumn, jobs};
use diopter_bench::bench::result::{ResultFile, journal_of};
use diopter_bench::bench::round::RoundResult;
use diopter_bench::document::{
    Bench, DirectionSample, Environment, Job, ReadWrite, Sample, SeriesPoint, Span,
};
use diopter_core::prng::Prng;

/// A machine whose figures follow from row, column and round; it is interrupted after `patience`
/// rounds.
struct MadeUp {
    patience: u64,
    rounds: Rc<Cell<u64>>,
    broken: &'static str,
}

impl MadeUp {
    fn new(patience: u64) -> MadeUp {
        MadeUp { patience, rounds: Rc::default(), broken: "" }
    }
}

impl Runner for MadeUp {
    fn begin(&mut self, _row: usize, _job: &Job) -> Result<(), Trouble> {
        Ok(())
    }

    fn round(
        &mut self,
        job: &Job,
        column: &PlannedColumn,
        round: u32,
    ) -> Result<RoundResult, Trouble> {
        if self.rounds.get() == self.patience {
            return Err(Trouble::Interrupted);
        }
        self.rounds.set(self.rounds.get() + 1);
        if column.label == self.broken {
            return Err(Trouble::Cell("it is broken".to_owned()));
        }
        let mut prng = Prng::new(7).fork(&format!("{} {} {round}", job.name, column.label));
        let mut times = LatencyTimes::default();
        for _ in 0..100 {
            times.lat.record(50_000 + prng.below(100_000));
            times.clat.record(40_000 + prng.below(100_000));
            times.slat.record(1000 + prng.below(1000));
        }
        let ios = 100_000 + prng.below(1000);
        let read = DirectionSample {
            ios,
            bytes: ios * 4096,
            iops: f64::from(u32::try_from(ios).unwrap()),
            latencies: Some(times.to_latencies()),
            ..DirectionSample::default()
        };
        let point = |at: u64| SeriesPoint { at_ns: at * 10_000_000, ios: 1000, bytes: 4_096_000 };
        let sample = Sample {
            elapsed_ns: 1_000_000_000,
            read: Some(read),
            series: (1..=100).map(point).collect(),
            ..Sample::default()
        };
        Ok(RoundResult { sample, ..RoundResult::default() })
    }

    fn environment(&self) -> Environment {
        Environment { host: "made up".to_owned(), ..Environment::default() }
    }

    fn end(&mut self, _job: &Job) {}
}

fn plan(rows: u32, rounds: u32) -> Plan {
    let axes = Axes {
        rw: vec![ReadWrite::RandRead],
        block_bytes: vec![4096],
        iodepth: vec![1],
        numjobs: (1..=rows).collect(),
        size: vec![1 << 30],
        span: vec![Span::RuntimeNs(1_000_000_000)],
        file_system: vec![None],
    };
    let columns = ["diopter", "linux-5.5"].map(|name| PlannedColumn::engine(name, "auto"));
    let jobs = jobs(&axes, &Job::default());
    Plan { jobs, columns: columns.to_vec(), rounds, ..Plan::default() }
}

fn begin(plan: &Plan) -> Begin {
    let schema = SCHEMA.to_owned();
    Begin { schema, made_by: "a test".to_owned(), started_unix_ns: 7, plan: plan.clone() }
}

/// Runs a plan to its end or interruption, from the journal if there is one.
fn run(plan: &Plan, result: &Path, runner: &mut MadeUp) -> Ending {
    let path = journal_of(result);
    let (journal, reached) = if path.exists() {
        let (journal, begun, reached) = Journal::resume(&path).unwrap();
        assert_eq!(begun.plan, *plan);
        (journal, reached)
    } else {
        (Journal::create(&path, begin(plan)).unwrap(), Reached::default())
    };
    let mut file = ResultFile::new(result).unwrap();
    let mut campaign = Campaign::new(plan, runner, (journal, reached));
    let ending = campaign.run(&mut |event| {
        if let Event::RowEnds { .. } = event {
            file.refresh().unwrap();
        }
    });
    let ending = ending.unwrap();
    file.write().unwrap();
    ending
}

fn document(result: &Path) -> Bench {
    serde_json::from_slice(&std::fs::read(result).unwrap()).unwrap()
}

fn result_in(dir: &tempfile::TempDir) -> PathBuf {
    dir.path().join("result.json")
}

#[test]
fn a_run_that_is_interrupted_after_any_round_goes_on_to_the_same_document() {
    let plan = plan(3, 4);
    let dir = tempfile::tempdir().unwrap();
    let whole = result_in(&dir);
    assert_eq!(run(&plan, &whole, &mut MadeUp::new(u64::MAX)), Ending::Whole);
    let whole = document(&whole);
    assert!(!whole.is_interrupted);
    assert_eq!(whole.rows.iter().flat_map(|row| &row.cells).count(), 6);
    for patience in 0..24 {
        let dir = tempfile::tempdir().unwrap();
        let result = result_in(&dir);
        assert_eq!(run(&plan, &result, &mut MadeUp::new(patience)), Ending::Interrupted);
        let part = document(&result);
        assert!(part.is_interrupted);
        let rounds = part.rows.iter().flat_map(|row| &row.cells);
        let rounds: usize = rounds.map(|cell| cell.samples.len()).sum();
        assert_eq!(u64::try_from(rounds).unwrap(), patience, "completed rounds are kept");
        let mut rest = MadeUp::new(u64::MAX);
        assert_eq!(run(&plan, &result, &mut rest), Ending::Whole);
        assert_eq!(rest.rounds.get(), 24 - patience, "no round is run twice");
        assert_eq!(document(&result), whole, "interrupted after {patience} rounds");
    }
}

#[test]
fn a_run_that_is_killed_while_it_writes_any_byte_goes_on_to_the_same_document() {
    let plan = plan(2, 2);
    let dir = tempfile::tempdir().unwrap();
    let result = result_in(&dir);
    run(&plan, &result, &mut MadeUp::new(u64::MAX));
    let whole = document(&result);
    let bytes = std::fs::read(journal_of(&result)).unwrap();
    let first = bytes.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    let seed = diopter_testkit::env::number("DIOPTER_SEED").unwrap_or(42);
    eprintln!("DIOPTER_SEED={seed}");
    let mut prng = Prng::new(seed);
    for _ in 0..50 {
        let left = u64::try_from(bytes.len() - first).unwrap();
        let cut = first + usize::try_from(prng.below(left + 1)).unwrap();
        std::fs::write(journal_of(&result), &bytes[..cut]).unwrap();
        assert!(assemble::read(&journal_of(&result)).is_ok(), "cut at {cut}");
        run(&plan, &result, &mut MadeUp::new(u64::MAX));
        assert_eq!(document(&result), whole, "cut at {cut}");
    }
}

#[test]
fn a_cell_that_cannot_be_measured_is_reported_and_the_others_are_measured() {
    let plan = plan(2, 3);
    let dir = tempfile::tempdir().unwrap();
    let result = result_in(&dir);
    let mut runner = MadeUp { broken: "linux-5.5", ..MadeUp::new(u64::MAX) };
    assert_eq!(run(&plan, &result, &mut runner), Ending::Whole);
    for row in document(&result).rows {
        assert_eq!(row.cells[0].samples.len(), 3);
        assert_eq!(row.cells[1].failure.as_deref(), Some("it is broken"));
    }
    assert_eq!(runner.rounds.get(), 2 * (3 + 1), "a broken cell is tried once a row");
}

#[test]
fn what_is_read_from_the_journal_is_what_the_result_has() {
    let plan = plan(2, 2);
    let dir = tempfile::tempdir().unwrap();
    let result = result_in(&dir);
    run(&plan, &result, &mut MadeUp::new(3));
    assert_eq!(assemble::read(&journal_of(&result)).unwrap(), document(&result));
}
