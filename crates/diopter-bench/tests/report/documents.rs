//! Handmade documents, the same at every run, with all that a report may have to show. This file
//! has no tests.

#![allow(dead_code, reason = "each test crate uses its part")]

use diopter_bench::compare::{
    ComparedColumn, ComparedRow, Comparison, Interval, Metric, Rule, Verdict,
};
use diopter_bench::document::{
    Bench, Cell, Column, Contexts, DirectionSample, Environment, FileSystemFacts, Guest, Job,
    Latencies, Latency, Method, Percentile, Processor, ReadWrite, Row, SCHEMA, Sample, SeriesPoint,
    Span, Switches, Warning, WarningKind,
};
use diopter_core::prng::Prng;

const MS: u64 = 1_000_000;
const ROUND_NS: u64 = 2_000 * MS;
/// 2026-11-21 12:00 UTC.
const STARTED: u64 = 1_795_262_400_000_000_000;
const PERCENTS: [f64; 14] =
    [1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.5, 99.9, 99.95, 99.99, 99.995];

/// The figures that a cell is made from.
#[derive(Clone, Copy)]
pub struct Recipe {
    /// Requests per second.
    pub iops: f64,
    /// Deviation of the rounds from it, as a fraction.
    pub noise: f64,
    /// Processor time for each request.
    pub processor_ns: f64,
    pub rounds: u32,
    /// Points of throughput in each round.
    pub points: u32,
}

pub const PLAIN: Recipe =
    Recipe { iops: 100_000.0, noise: 0.01, processor_ns: 2_000.0, rounds: 10, points: 20 };

/// Returns a fraction from -1 to 1, denser in the middle.
fn wobble(prng: &mut Prng) -> f64 {
    let draw = |prng: &mut Prng| f64::from(u32::try_from(prng.below(2001)).unwrap()) / 1000.0 - 1.0;
    f64::midpoint(draw(prng), draw(prng))
}

fn whole(value: f64) -> u64 {
    format!("{value:.0}").parse().unwrap()
}

pub fn job(rw: ReadWrite, block_bytes: u64, file_system: &str, iodepth: u32) -> Job {
    Job {
        name: format!("{file_system} {} {} depth {iodepth}", rw.name(), block_bytes),
        rw,
        block_bytes,
        iodepth,
        numjobs: 1,
        size: 2 << 30,
        span: Span::RuntimeNs(ROUND_NS),
        is_direct: true,
        file_system: Some(file_system.to_owned()),
        durability: "none".to_owned(),
        layout: "written".to_owned(),
        ..Job::default()
    }
}

pub fn column(label: &str, preset: Option<&str>) -> Column {
    Column {
        label: label.to_owned(),
        program: if label.starts_with("fio") { "fio" } else { "diopter" }.to_owned(),
        program_version: if label.starts_with("fio") { "3.33" } else { "0.1.0" }.to_owned(),
        preset: preset.map(str::to_owned),
        engine: "uring".to_owned(),
        flags: vec!["fixed-buffers".to_owned()],
        kernel: None,
    }
}

fn latency(prng: &mut Prng, mean_ns: f64, count: u64) -> Latency {
    let tail = 1.0 + wobble(prng) * 0.05;
    let at = |percent: f64| {
        let nines = -(1.0 - percent / 100.0).log10();
        whole(mean_ns * (0.55 + 0.4 * nines * nines * tail + 0.2 * nines))
    };
    let percentiles = PERCENTS.iter().map(|&percent| Percentile { percent, ns: at(percent) });
    Latency {
        count,
        min_ns: whole(mean_ns * 0.4),
        max_ns: whole(mean_ns * 12.0),
        mean_ns,
        stddev_ns: mean_ns * 0.3,
        percentiles: percentiles.collect(),
        hdr: None,
    }
}

fn direction(prng: &mut Prng, job: &Job, iops: f64) -> DirectionSample {
    let ios = whole(iops * 2.0);
    let clat = f64::from(job.iodepth.max(1)) * 1e9 / iops;
    let latencies = Latencies {
        slat: Some(latency(prng, clat * 0.02 + 400.0, ios)),
        clat: Some(latency(prng, clat, ios)),
        lat: Some(latency(prng, clat * 1.02 + 400.0, ios)),
    };
    let bytes = ios * job.block_bytes;
    DirectionSample { ios, bytes, short_ios: 0, iops, latencies: Some(latencies) }
}

fn sample(prng: &mut Prng, job: &Job, recipe: &Recipe, (round, turn): (u32, u32)) -> Sample {
    let iops = recipe.iops * (1.0 + wobble(prng) * recipe.noise);
    let share = if job.rw.is_mixed() { 0.5 } else { 1.0 };
    let reads = job.rw.is_mixed() || !job.rw.has_writes();
    let read = reads.then(|| direction(prng, job, iops * share));
    let write = job.rw.has_writes().then(|| direction(prng, job, iops * share));
    let ios = [&read, &write].into_iter().flatten().map(|one| one.ios).sum::<u64>();
    let slice = ROUND_NS / u64::from(recipe.points.max(1));
    let series = (1..=recipe.points).map(|at| {
        let ios = whole(iops * 2.0 / f64::from(recipe.points) * (1.0 + wobble(prng) * 0.06));
        SeriesPoint { at_ns: u64::from(at) * slice, ios, bytes: ios * job.block_bytes }
    });
    Sample {
        round,
        turn,
        started_unix_ns: STARTED + u64::from(turn) * (ROUND_NS + 300 * MS),
        elapsed_ns: ROUND_NS,
        series: series.collect(),
        read,
        write,
        processor: Processor {
            user_ns: whole(recipe.processor_ns * 0.3) * ios,
            system_ns: whole(recipe.processor_ns * 0.7) * ios,
        },
        switches: Switches { voluntary: ios / 3, involuntary: 40 },
        memory_peak_bytes: Some(24 << 20),
        bios: Some(ios),
        depth_mean: Some(f64::from(job.iodepth) * 0.97),
        ..Sample::default()
    }
}

pub fn cell(prng: &mut Prng, job: &Job, recipe: &Recipe, place: (u32, u32)) -> Cell {
    let (column, columns) = place;
    // Every other round the columns take their turns in reverse order.
    let turn = |round: u32| {
        let within = if round.is_multiple_of(2) { column } else { columns - 1 - column };
        round * columns + within
    };
    let rounds = (0..recipe.rounds).map(|round| sample(prng, job, recipe, (round, turn(round))));
    Cell { samples: rounds.collect(), ..Cell::default() }
}

pub fn environment() -> Environment {
    let mut one = Environment {
        kernel_release: "6.18.44".to_owned(),
        kernel_version: "#1 SMP PREEMPT_DYNAMIC 2026-10-02".to_owned(),
        kernel_command_line: "root=/dev/vda1 mitigations=auto quiet".to_owned(),
        host: "bench-07".to_owned(),
        memory_bytes: 32 << 30,
        ..Environment::default()
    };
    one.cpu.model = "Example 9 3950X 16-Core Processor".to_owned();
    one.cpu.online = 16;
    one.cpu.governor = "performance".to_owned();
    one.cpu.smt = "on".to_owned();
    one.device.name = "nvme0n1".to_owned();
    one.device.model = "SSD 970 EVO Plus 250GB".to_owned();
    one.device.size = 250_059_350_016;
    one.device.is_rotational = Some(false);
    for (name, value) in [("scheduler", "none"), ("nr_requests", "1023"), ("write_cache", "back")] {
        one.device.queue.0.insert(name.to_owned(), value.to_owned());
    }
    one.file_system = Some(FileSystemFacts {
        kind: "ext4".to_owned(),
        mount_options: "rw,noatime".to_owned(),
        alignment_memory: 4,
        alignment_offset: 512,
    });
    one
}

fn bench(title: &str, columns: Vec<Column>) -> Bench {
    Bench {
        schema: SCHEMA.to_owned(),
        made_by: "dio 0.1.0".to_owned(),
        title: title.to_owned(),
        started_unix_ns: STARTED,
        method: Method {
            rounds: 10,
            warmup_ns: 500 * MS,
            order: "abba".to_owned(),
            seed: u64::MAX - 7,
            effect_floor: 0.01,
            is_virtual: false,
        },
        environments: vec![environment()],
        columns,
        rows: Vec::new(),
        is_interrupted: false,
    }
}

/// Adds a job with a cell for each column: a share of the base's throughput each.
fn add(bench: &mut Bench, prng: &mut Prng, job: Job, recipe: &Recipe, factors: &[f64]) {
    let columns = u32::try_from(factors.len()).unwrap();
    let cells = (0..columns).zip(factors).map(|(at, factor)| {
        let processor_ns = recipe.processor_ns / factor;
        let own = Recipe { iops: recipe.iops * factor, processor_ns, ..*recipe };
        cell(prng, &job, &own, (at, columns))
    });
    let cells = cells.collect();
    bench.rows.push(Row { job, cells });
}

/// The scenario of the reports: three columns, two file systems, reads and writes of 4k and 16k.
pub fn regression() -> Bench {
    let mut prng = Prng::new(1);
    let columns = vec![
        column("diopter", Some("diopter")),
        column("linux-5.5", Some("linux-5.5")),
        column("lustre-2.13", Some("lustre-2.13")),
    ];
    let mut bench = bench("iomap-4k: three ways to do direct I/O", columns);
    for (rw, block, file_system, iops, factors) in [
        (ReadWrite::Read, 4096, "ext4", 412_000.0, [1.0, 1.0115, 0.93]),
        (ReadWrite::Read, 16384, "ext4", 171_000.0, [1.0, 0.9988, 0.97]),
        (ReadWrite::Write, 4096, "ext4", 398_000.0, [1.0, 0.777, 0.81]),
        (ReadWrite::Write, 16384, "ext4", 88_000.0, [1.0, 0.9999, 1.002]),
        (ReadWrite::Read, 4096, "xfs", 405_000.0, [1.0, 1.0001, 0.94]),
        (ReadWrite::Read, 16384, "xfs", 170_000.0, [1.0, 1.002, 0.985]),
        (ReadWrite::Write, 4096, "xfs", 391_000.0, [1.0, 1.045, 0.88]),
        (ReadWrite::Write, 16384, "xfs", 87_000.0, [1.0, 1.0015, 1.0]),
    ] {
        let recipe = Recipe { iops, noise: 0.012, ..PLAIN };
        add(&mut bench, &mut prng, job(rw, block, file_system, 64), &recipe, &factors);
    }
    let outliers = Warning { kind: WarningKind::Outliers, evidence: "2 of 10 rounds".to_owned() };
    bench.rows[1].cells[2].warnings.push(outliers);
    let governor = Warning { kind: WarningKind::Governor, evidence: "schedutil".to_owned() };
    for row in &mut bench.rows {
        row.cells[0].warnings.push(governor.clone());
    }
    bench
}

/// One column, one job, one round.
pub fn one_cell() -> Bench {
    let mut prng = Prng::new(2);
    let mut bench = bench("", vec![column("diopter", None)]);
    let recipe = Recipe { rounds: 1, ..PLAIN };
    add(&mut bench, &mut prng, job(ReadWrite::RandRead, 4096, "raw", 32), &recipe, &[1.0]);
    bench.method.rounds = 1;
    bench
}

/// Two columns on two machines, over depths; the second saturates at 16.
pub fn sweep() -> Bench {
    let mut prng = Prng::new(3);
    let columns = vec![column("6.1 libaio", None), column("6.18 io_uring", None)];
    let mut bench = bench("Depth of random reads", columns);
    for depth in [1_u32, 2, 4, 8, 16, 32, 64, 128] {
        let reached = |most: f64, half: f64| most * (1.0 - (-f64::from(depth) / half).exp());
        let (base, new) = (reached(300_000.0, 20.0), reached(340_000.0, 6.0));
        let recipe = Recipe { iops: base, rounds: 6, ..PLAIN };
        let job = job(ReadWrite::RandRead, 4096, "xfs", depth);
        add(&mut bench, &mut prng, job, &recipe, &[1.0, new / base]);
    }
    let mut other = environment();
    other.kernel_release = "6.1.0-37-amd64".to_owned();
    other.host = "bench-03".to_owned();
    other.cpu.governor = "schedutil".to_owned();
    other.device.queue.0.insert("scheduler".to_owned(), "mq-deadline".to_owned());
    bench.environments.insert(0, other);
    for row in &mut bench.rows {
        row.cells[1].environment = 1;
    }
    bench
}

/// Block sizes and depths in two ways: what a heat map is for. Costs span three decades.
pub fn matrix() -> Bench {
    let mut prng = Prng::new(8);
    let columns = vec![column("diopter", Some("diopter")), column("fio:io_uring", None)];
    let mut bench = bench("Nine sizes, six depths", columns);
    for power in 9..18_u32 {
        let block = 1_u32 << power;
        for depth in [1_u32, 4, 8, 16, 32, 64] {
            let iops = 4e8 / (4_000.0 + f64::from(block)) * f64::from(depth).powf(0.6);
            let job = job(ReadWrite::RandRead, block.into(), "xfs", depth);
            let processor_ns = 2_000.0 + f64::from(block) * 3.0;
            let recipe = Recipe { iops, processor_ns, rounds: 4, points: 5, ..PLAIN };
            let factor = 0.85 + f64::from(power) * 0.012;
            add(&mut bench, &mut prng, job, &recipe, &[1.0, factor]);
        }
    }
    bench
}

/// Many columns, for the width of tables and the number of hues.
pub fn twelve_columns() -> Bench {
    let mut prng = Prng::new(4);
    let labels = ["libaio", "io_uring", "psync", "sync", "pvsync2", "posixaio"];
    let columns = (0..12).map(|at| column(&format!("fio:{} {}", labels[at % 6], at / 6 + 1), None));
    let mut bench = bench("Twelve ways", columns.collect());
    for rw in [ReadWrite::Read, ReadWrite::RandWrite, ReadWrite::RandRw] {
        let factors: Vec<f64> = (0..12).map(|at| 1.0 + f64::from(at) * 0.03 - 0.12).collect();
        let job = job(rw, 131_072, "ext4", 8);
        add(&mut bench, &mut prng, job, &Recipe { iops: 20_000.0, ..PLAIN }, &factors);
    }
    bench
}

/// The same jobs on kernels, in virtual time.
pub fn kernels() -> Bench {
    let mut prng = Prng::new(5);
    let series = ["4.19", "5.4", "5.10", "5.15", "6.1", "6.6", "6.12", "6.18"];
    let columns = series
        .iter()
        .map(|series| Column { kernel: Some((*series).to_owned()), ..column(series, None) });
    let mut bench = bench("Overwrites on real kernels", columns.collect());
    bench.method = Method { is_virtual: true, rounds: 1, order: "none".to_owned(), ..bench.method };
    let jobs = [
        (ReadWrite::Read, 4096, [1.0, 1.01, 1.03, 1.03, 1.05, 1.08, 1.09, 1.12]),
        (ReadWrite::Write, 4096, [1.0, 1.0, 0.79, 0.80, 0.82, 0.81, 1.06, 1.09]),
        (ReadWrite::Write, 16384, [1.0, 1.0, 0.96, 0.97, 0.97, 0.98, 1.02, 1.03]),
    ];
    for (rw, block, factors) in jobs {
        let recipe = Recipe { iops: 40_000.0, noise: 0.0, rounds: 1, points: 0, ..PLAIN };
        add(&mut bench, &mut prng, job(rw, block, "ext4", 64), &recipe, &factors);
        for (at, cell) in bench.rows.last_mut().unwrap().cells.iter_mut().enumerate() {
            let is_late = rw == ReadWrite::Write && (2..6).contains(&at);
            let deferred_by = vec![("iomap_dio_bio_end_io".to_owned(), 80_000)];
            let sample = &mut cell.samples[0];
            sample.contexts = Some(if is_late {
                Contexts { kworker: 80_000, deferred_by, ..Contexts::default() }
            } else {
                Contexts { hardirq: 80_000, ..Contexts::default() }
            });
            sample.guest = Some(Guest {
                instructions_per_io: 9_000.0 / factors[at],
                switches_per_io: if is_late { 2.0 } else { 0.5 },
                bios_per_io: Some(1.0),
                is_repeatable: Some(true),
            });
        }
    }
    bench
}

/// All exceptional cases: failures, gaps, long and hostile names, an interrupted run.
pub fn awkward() -> Bench {
    let mut prng = Prng::new(6);
    let hostile = "</script><img src=x onerror=\"alert(1)\">|`pipe`";
    let long = "a column whose label is far longer than any table or chart has room for, in words";
    let columns = vec![
        column("basis \u{3b2} \u{4e2d}\u{6587}", None),
        column(hostile, None),
        column(long, None),
    ];
    let mut bench = bench("Awkward: \"quotes\", <tags> & \u{fc}mlauts", columns);
    bench.is_interrupted = true;
    let recipe = Recipe { rounds: 4, ..PLAIN };
    let mixed = Job { read_percent: 50, ..job(ReadWrite::RandRw, 4096, "ext4", 16) };
    add(&mut bench, &mut prng, mixed, &recipe, &[1.0, 1.3, 0.2]);
    let large = job(ReadWrite::Write, 1 << 20, "ext4", 1);
    add(&mut bench, &mut prng, large, &Recipe { iops: 900.0, ..recipe }, &[1.0, 12.5, 1.0]);
    add(&mut bench, &mut prng, job(ReadWrite::Read, 512, "xfs", 1), &recipe, &[1.0, 1.0, 1.0]);
    let failed = "write at 0, 1048576 B: ENOSPC; make room on \"/mnt/<scratch>\", or give --size";
    bench.rows[1].cells[2] = Cell { failure: Some(failed.to_owned()), ..Cell::default() };
    bench.rows[2].cells[0] = Cell::default();
    bench.rows[2].cells.pop();
    let early = &mut bench.rows[0].cells[1];
    early.samples.truncate(2);
    early.failure = Some("ended by SIGINT".to_owned());
    for sample in &mut bench.rows[0].cells[2].samples {
        sample.bios = None;
        sample.memory_peak_bytes = None;
        sample.processor = Processor::default();
        sample.read.as_mut().unwrap().latencies = None;
    }
    let evidence = "load 12.4 on 16 processors, most of it `</details>`".to_owned();
    bench.rows[0].cells[2].warnings.push(Warning { kind: WarningKind::OtherLoad, evidence });
    bench
}

/// More cells than a page shows.
pub fn huge() -> Bench {
    let mut prng = Prng::new(7);
    let columns = (0..4).map(|at| column(&format!("way {at}"), None)).collect();
    let mut bench = bench("Four thousand cells", columns);
    for at in 0..1000_u32 {
        let sizes = [512, 4096, 16384, 65536, 131_072];
        let block = sizes[usize::try_from(at % 5).unwrap()];
        let rw = ReadWrite::ALL[usize::try_from(at / 5 % 6).unwrap()];
        let job = Job { numjobs: 1 + at / 30, ..job(rw, block, "ext4", 1 << (at % 7)) };
        let recipe = Recipe { rounds: 3, points: 8, ..PLAIN };
        let factors = [1.0, 0.95 + f64::from(at % 11) * 0.01, 1.0, 1.2];
        add(&mut bench, &mut prng, job, &recipe, &factors);
    }
    bench
}

/// Compares a document's columns with its first in the simplest way: the median of the rounds'
/// ratios between their minimum and their maximum.
pub fn compared(bench: &Bench) -> Comparison {
    let columns = bench.columns.iter().enumerate().map(|(at, column)| ComparedColumn {
        label: column.label.clone(),
        column: column.label.clone(),
        document: String::new(),
        base: (at > 0).then_some(0),
    });
    let mut rows = Vec::new();
    for (at, row) in bench.rows.iter().enumerate() {
        for (column, cell) in row.cells.iter().enumerate().skip(1) {
            rows.push(compared_row((at, column), &row.cells[0], cell));
        }
    }
    let verdicts: Vec<Verdict> = rows.iter().filter_map(|row| row.verdict).collect();
    Comparison {
        schema: "diopter.compare/1".to_owned(),
        rule: Rule {
            effect_floor: bench.method.effect_floor,
            alarm_level: 0.01,
            ..Rule::default()
        },
        columns: columns.collect(),
        jobs: bench.rows.iter().map(|row| row.job.clone()).collect(),
        rows,
        verdict: Verdict::of_all(&verdicts),
        ..Comparison::default()
    }
}

fn iops(sample: &Sample) -> f64 {
    [&sample.read, &sample.write].into_iter().flatten().map(|one| one.iops).sum()
}

fn compared_row((job, column): (usize, usize), base: &Cell, cell: &Cell) -> ComparedRow {
    let pairs = base.samples.iter().zip(&cell.samples);
    let mut ratios: Vec<f64> = pairs.map(|(base, new)| iops(new) / iops(base)).collect();
    ratios.sort_by(f64::total_cmp);
    let rounds = u32::try_from(ratios.len()).unwrap();
    let ratio = ratios.get(ratios.len() / 2).copied();
    let interval =
        (ratios.len() >= 3).then(|| Interval { low: ratios[0], high: ratios[ratios.len() - 1] });
    let verdict = match interval {
        Some(Interval { low, .. }) if low > 1.01 => Verdict::Better,
        Some(Interval { high, .. }) if high < 0.99 => Verdict::Worse,
        Some(Interval { low, high }) if low >= 0.985 && high <= 1.015 => Verdict::Same,
        _ => Verdict::Inconclusive,
    };
    let verdict = ratio.map(|_| verdict);
    let reason = match verdict {
        Some(Verdict::Inconclusive) if interval.is_none() => "too few rounds".to_owned(),
        _ => String::new(),
    };
    ComparedRow {
        job,
        column,
        metric: Metric::Iops,
        rounds,
        base_rounds: rounds,
        ratio,
        interval,
        same_interval: interval.map(|Interval { low, high }| Interval {
            low: low.midpoint(ratios[ratios.len() / 2]),
            high: high.midpoint(ratios[ratios.len() / 2]),
        }),
        verdict,
        reason,
        ..ComparedRow::default()
    }
}
