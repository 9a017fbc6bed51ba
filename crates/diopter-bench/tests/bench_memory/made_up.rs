//! A simulated machine whose rounds are all alike, with as much data as a real round, and a plan
//! with a given number of cells for it.

use diopter_bench::bench::campaign::{Runner, Trouble};
use diopter_bench::bench::histogram::LatencyTimes;
use diopter_bench::bench::plan::{Axes, Plan, PlannedColumn, jobs};
use diopter_bench::bench::round::RoundResult;
use diopter_bench::document::{
    DirectionSample, Environment, Job, ReadWrite, Sample, SeriesPoint, Span,
};

#[derive(Default)]
pub struct Steady {
    reply: Option<RoundResult>,
}

impl Runner for Steady {
    fn begin(&mut self, _row: usize, _job: &Job) -> Result<(), Trouble> {
        Ok(())
    }

    fn round(
        &mut self,
        _job: &Job,
        _column: &PlannedColumn,
        _round: u32,
    ) -> Result<RoundResult, Trouble> {
        Ok(self.reply.get_or_insert_with(reply).clone())
    }

    fn environment(&self) -> Environment {
        Environment::default()
    }

    fn end(&mut self, _job: &Job) {}
}

fn reply() -> RoundResult {
    let mut times = LatencyTimes::default();
    for ns in 0..2000 {
        times.lat.record(10_000 + ns * ns);
        times.clat.record(9_000 + ns * ns);
        times.slat.record(1000 + ns);
    }
    let latencies = Some(times.to_latencies());
    let read = DirectionSample { ios: 100_000, iops: 1e5, latencies, ..DirectionSample::default() };
    let point = |at: u64| SeriesPoint { at_ns: at * 10_000_000, ios: 1000, bytes: 4_096_000 };
    let series = (1..=100).map(point).collect();
    let sample =
        Sample { elapsed_ns: 1_000_000_000, read: Some(read), series, ..Sample::default() };
    RoundResult { sample, ..RoundResult::default() }
}

/// Returns a plan with so many rows and columns.
pub fn plan(rows: u32, columns: u32, rounds: u32) -> Plan {
    let axes = Axes {
        rw: vec![ReadWrite::RandRead],
        block_bytes: vec![4096],
        iodepth: vec![1],
        numjobs: (1..=rows).collect(),
        size: vec![1 << 30],
        span: vec![Span::RuntimeNs(1_000_000_000)],
        file_system: vec![None],
    };
    let column = |number| PlannedColumn::fio(&format!("engine{number}"));
    let columns = (0..columns).map(column).collect();
    Plan { jobs: jobs(&axes, &Job::default()), columns, rounds, ..Plan::default() }
}
