//! The `diopter.bench/1` document of a benchmark. A row is a direction; the first column is all
//! ranks together, and each rank has a column.

use diopter_bench::document::{
    Bench, Cell, Column, Direction, DirectionSample, Environment, Job, Latencies, Method,
    PhaseTimes, ReadWrite, Row, SCHEMA, Sample, Span, Warning, WarningKind,
};

use super::figures::{Figures, Straggler, Times, float, per_second, stragglers};
use super::run::{Measured, Phase, Plan};
use super::shape::Layout;

/// Returns the document.
#[must_use]
pub fn of(plan: &Plan, measured: &Measured) -> Bench {
    let shape = plan.options.shape;
    let mut environments: Vec<Environment> = Vec::new();
    let of_rank: Vec<usize> = measured
        .environments
        .iter()
        .map(|environment| match environments.iter().position(|one| one == environment) {
            Some(at) => at,
            None => {
                environments.push(environment.clone());
                environments.len() - 1
            }
        })
        .collect();
    let directions = [Direction::Write, Direction::Read];
    let is_on = |direction: &Direction| match direction {
        Direction::Write => plan.writes,
        Direction::Read => plan.reads,
    };
    let rows = directions.iter().filter(|one| is_on(one));
    let rows = rows.map(|direction| row(plan, measured, *direction, &of_rank)).collect();
    let mut columns = vec![column(format!("all {} ranks", shape.ranks))];
    columns.extend(
        measured
            .environments
            .iter()
            .enumerate()
            .map(|(rank, environment)| column(format!("rank {rank} ({})", environment.host))),
    );
    Bench {
        schema: SCHEMA.to_owned(),
        made_by: format!("dio-mpi {}", env!("CARGO_PKG_VERSION")),
        title: shape.name(),
        started_unix_ns: measured.phases.first().map_or(0, |phase| phase.started_unix_ns),
        method: Method { rounds: plan.rounds, order: "none".to_owned(), ..Method::default() },
        environments,
        columns,
        rows,
        is_interrupted: !measured.failures.is_empty(),
    }
}

fn column(label: String) -> Column {
    Column {
        label,
        program: "dio-mpi".to_owned(),
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        ..Column::default()
    }
}

fn row(plan: &Plan, measured: &Measured, direction: Direction, of_rank: &[usize]) -> Row {
    let phases: Vec<&Phase> =
        measured.phases.iter().filter(|phase| phase.direction == direction).collect();
    let failure = measured.failures.first().cloned();
    let cell = |environment: usize, samples: Vec<Sample>, warnings: Vec<Warning>| Cell {
        environment,
        failure: failure.clone(),
        samples,
        warnings,
    };
    let all = phases.iter().map(|phase| sample_of_all(plan, phase)).collect();
    let slow = stragglers_of(&phases);
    let warnings = slow.iter().map(|one| warning(one, phases.len(), measured)).collect();
    let mut cells = vec![cell(0, all, warnings)];
    for (rank, environment) in of_rank.iter().enumerate() {
        let samples = phases.iter().map(|phase| sample_of_rank(plan, phase, rank)).collect();
        cells.push(cell(*environment, samples, Vec::new()));
    }
    Row { job: job(plan, measured, direction), cells }
}

/// Returns the stragglers among the ranks of these phases.
#[must_use]
pub fn stragglers_of(phases: &[&Phase]) -> Vec<Straggler> {
    let times = |phase: &&Phase| phase.ranks.iter().map(|rank| rank.times.access()).collect();
    stragglers(&phases.iter().map(times).collect::<Vec<Vec<u64>>>())
}

/// Describes a straggler.
#[must_use]
pub fn describe(straggler: &Straggler, rounds: usize, measured: &Measured) -> String {
    let Straggler { rank, rounds: slow, factor } = straggler;
    let host = &measured.environments[*rank].host;
    let slower = format!("{factor:.2} times the median of the others");
    format!("rank {rank} ({host}): {slower}, {slow} of {rounds} rounds")
}

fn warning(straggler: &Straggler, rounds: usize, measured: &Measured) -> Warning {
    let evidence = describe(straggler, rounds, measured);
    Warning { kind: WarningKind::Straggler, evidence }
}

fn job(plan: &Plan, measured: &Measured, direction: Direction) -> Job {
    let shape = plan.options.shape;
    let rw = match direction {
        Direction::Read => ReadWrite::Read,
        Direction::Write => ReadWrite::Write,
    };
    let mut reported = measured.phases.iter().flat_map(|phase| &phase.ranks);
    let file_system = measured.environments.first().and_then(|it| it.file_system.as_ref());
    let size = match shape.layout {
        Layout::FilePerProcess => shape.bytes_of_rank(),
        Layout::Segmented | Layout::Strided => shape.bytes(),
    };
    Job {
        name: rw.name().to_owned(),
        rw,
        block_bytes: shape.transfer,
        iodepth: 1,
        numjobs: u32::try_from(shape.ranks).unwrap_or(u32::MAX),
        size,
        span: Span::IoBytes(shape.bytes_of_rank()),
        is_direct: reported.all(|rank| rank.is_direct),
        file_system: file_system.map(|it| it.kind.clone()),
        durability: "none".to_owned(),
        layout: "none".to_owned(),
        target: format!("mpi:{}:b{}:s{}", shape.layout, shape.block, shape.segments),
        fsync_every: if plan.options.fsync && rw == ReadWrite::Write {
            u32::try_from(shape.transfers_of_rank()).unwrap_or(u32::MAX)
        } else {
            0
        },
        ..Job::default()
    }
}

fn sample_of_all(plan: &Plan, phase: &Phase) -> Sample {
    let shape = plan.options.shape;
    let times: Vec<Times> = phase.ranks.iter().map(|rank| rank.times).collect();
    let figures = Figures::of(&times, shape.bytes_of_rank(), shape.transfers_of_rank());
    let one = DirectionSample {
        ios: figures.transfers,
        bytes: figures.bytes,
        iops: figures.iops(),
        ..DirectionSample::default()
    };
    let phases = PhaseTimes {
        open_ns: figures.open_ns,
        access_ns: figures.access_ns,
        close_ns: figures.close_ns,
    };
    sample(phase, (figures.total_ns, phases), one)
}

fn sample_of_rank(plan: &Plan, phase: &Phase, rank: usize) -> Sample {
    let reported = &phase.ranks[rank];
    let times = reported.times;
    let latencies = Latencies { lat: reported.latency.clone(), ..Latencies::default() };
    let one = DirectionSample {
        ios: reported.transfers,
        bytes: reported.transfers * plan.options.shape.transfer,
        iops: per_second(reported.transfers, times.access()),
        latencies: Some(latencies),
        ..DirectionSample::default()
    };
    let phases = PhaseTimes {
        open_ns: times.open_end - times.open_start,
        access_ns: times.access(),
        close_ns: times.close_end - times.close_start,
    };
    sample(phase, (times.total(), phases), one)
}

fn sample(phase: &Phase, times: (u64, PhaseTimes), one: DirectionSample) -> Sample {
    let (read, write) = match phase.direction {
        Direction::Read => (Some(one), None),
        Direction::Write => (None, Some(one)),
    };
    Sample {
        round: phase.round,
        turn: phase.round,
        started_unix_ns: phase.started_unix_ns,
        elapsed_ns: times.0,
        read,
        write,
        phases: Some(times.1),
        depth_mean: Some(float(1)),
        ..Sample::default()
    }
}
