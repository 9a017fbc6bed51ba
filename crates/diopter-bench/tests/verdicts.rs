//! Verdicts on handmade documents: their basis, and what is refused.

use diopter_bench::compare::{
    self, CompareError, ComparedRow, Comparison, Metric, Named, Pairing, Settings, Verdict,
};
use diopter_bench::document::{
    Bench, Cell, Column, Contexts, DirectionSample, Environment, Guest, Job, Latencies, Latency,
    Percentile, Processor, ReadWrite, Row, Sample, Span,
};
use proptest::prelude::*;

fn job(name: &str, block_bytes: u64) -> Job {
    Job {
        name: name.to_owned(),
        rw: ReadWrite::RandRead,
        block_bytes,
        iodepth: 64,
        numjobs: 1,
        size: 1 << 30,
        span: Span::RuntimeNs(1_000_000_000),
        is_direct: true,
        ..Job::default()
    }
}

fn part(iops: f64) -> DirectionSample {
    let latency = Latency {
        mean_ns: 1e9 / iops,
        percentiles: vec![Percentile { percent: 99.0, ns: 1_000_000 }],
        ..Latency::default()
    };
    DirectionSample {
        ios: 1000,
        bytes: 4_096_000,
        iops,
        latencies: Some(Latencies { clat: Some(latency), ..Latencies::default() }),
        ..DirectionSample::default()
    }
}

fn cell(iops: &[f64]) -> Cell {
    let sample = |(round, iops): (u32, &f64)| Sample {
        round,
        elapsed_ns: 1_000_000_000,
        read: Some(part(*iops)),
        processor: Processor { user_ns: 100_000, system_ns: 300_000 },
        ..Sample::default()
    };
    Cell { samples: (0..).zip(iops).map(sample).collect(), ..Cell::default() }
}

fn column(label: &str) -> Column {
    Column {
        label: label.to_owned(),
        program: "diopter".to_owned(),
        preset: Some(label.to_owned()),
        ..Column::default()
    }
}

fn bench(labels: &[&str], rows: Vec<(Job, Vec<Cell>)>) -> Bench {
    Bench {
        schema: "diopter.bench/1".to_owned(),
        columns: labels.iter().map(|label| column(label)).collect(),
        rows: rows.into_iter().map(|(job, cells)| Row { job, cells }).collect(),
        environments: vec![Environment::default()],
        ..Bench::default()
    }
}

/// Rounds near `middle` that differ by about `spread`, as a fraction.
fn rounds(middle: f64, spread: f64, count: u32) -> Vec<f64> {
    let step = |round: u32| f64::from(round * 7 % count) / f64::from(count) - 0.5;
    (0..count).map(|round| middle * (1.0 + 2.0 * spread * step(round))).collect()
}

fn named(name: &str, bench: Bench) -> Named {
    Named { name: name.to_owned(), bench }
}

fn judged(comparison: &Comparison) -> Vec<&ComparedRow> {
    comparison.rows.iter().filter(|row| row.verdict.is_some()).collect()
}

fn pair(base: &[f64], new: &[f64]) -> Bench {
    bench(&["a", "b"], vec![(job("j", 4096), vec![cell(base), cell(new)])])
}

fn one(base: &[f64], new: &[f64]) -> ComparedRow {
    let comparison = compare::columns(&pair(base, new), &Settings::default());
    judged(&comparison)[0].clone()
}

fn refusal(base: Bench, new: Bench) -> String {
    let all = [named("base.json", base), named("new.json", new)];
    let refused: CompareError = compare::documents(&all, &Settings::default()).unwrap_err();
    refused.to_string()
}

#[test]
fn each_verdict_has_its_case() {
    let noise = rounds(100_000.0, 0.02, 20);
    let faster: Vec<f64> = noise.iter().map(|iops| iops * 1.05).collect();
    assert_eq!(one(&noise, &faster).verdict, Some(Verdict::Better), "paired, noise is shared");
    assert_eq!(one(&faster, &noise).verdict, Some(Verdict::Worse));
    assert_eq!(one(&noise, &noise).verdict, Some(Verdict::Same));
    let unlike = rounds(100_000.0, 0.3, 20).into_iter().rev().collect::<Vec<f64>>();
    let row = one(&noise, &unlike);
    assert_eq!(row.verdict, Some(Verdict::Inconclusive));
    assert_eq!(row.reason, "it may be chance; run more rounds");
}

#[test]
fn a_change_below_the_floor_is_neither_better_nor_worse() {
    let noise = rounds(100_000.0, 0.002, 20);
    let faster: Vec<f64> = noise.iter().map(|iops| iops * 1.02).collect();
    let with_floor = |floor| {
        let settings = Settings { effect_floor: Some(floor), ..Settings::default() };
        compare::columns(&pair(&noise, &faster), &settings).verdict
    };
    assert_eq!(with_floor(0.01), Verdict::Better);
    assert_eq!(with_floor(0.03), Verdict::Same);
    assert_eq!(with_floor(0.0), Verdict::Better);
}

#[test]
fn one_round_of_each_has_a_ratio_and_no_verdict() {
    let row = one(&[100.0], &[80.6377]);
    assert!((row.ratio.unwrap() - 0.806_377).abs() < 1e-12);
    assert_eq!((row.verdict, row.interval), (Some(Verdict::Inconclusive), None));
    assert!(row.reason.starts_with("1 round: at least"), "{}", row.reason);
}

#[test]
fn rounds_are_paired_by_their_numbers() {
    let mut bench = pair(&rounds(100.0, 0.2, 9), &rounds(110.0, 0.2, 9));
    bench.rows[0].cells[1].samples.reverse();
    bench.rows[0].cells[1].samples.remove(0);
    let comparison = compare::columns(&bench, &Settings::default());
    let row = judged(&comparison)[0];
    assert_eq!((row.rounds, row.base_rounds), (8, 8));
    let interval = row.interval.unwrap();
    assert!((row.ratio.unwrap() - 1.1).abs() < 1e-9);
    assert!((interval.high - interval.low).abs() < 1e-6, "each pair says the same");
}

#[test]
fn less_is_better_for_latency_and_cpu() {
    let slow = rounds(100_000.0, 0.002, 20);
    let fast: Vec<f64> = slow.iter().map(|iops| iops * 1.1).collect();
    let settings = Settings {
        metrics: vec![Metric::Iops, Metric::LatencyMean, Metric::CpuPerIo],
        ..Settings::default()
    };
    let comparison = compare::columns(&pair(&slow, &fast), &settings);
    let message: Vec<_> =
        judged(&comparison).iter().map(|row| (row.metric, row.verdict.unwrap())).collect();
    let expected = [
        (Metric::Iops, Verdict::Better),
        (Metric::LatencyMean, Verdict::Better),
        (Metric::CpuPerIo, Verdict::Same),
    ];
    assert_eq!(message, expected);
    assert_eq!(comparison.verdict, Verdict::Better);
}

#[test]
fn what_two_runs_of_the_same_thing_differ_by_is_not_believed_of_others() {
    let noise = rounds(100_000.0, 0.004, 20);
    let by = |factor: f64| noise.iter().map(|iops| iops * factor).collect::<Vec<f64>>();
    let cells = vec![cell(&noise), cell(&by(1.03)), cell(&by(1.02)), cell(&by(0.9))];
    let mut bench = bench(&["a", "a again", "b", "c"], vec![(job("j", 4096), cells)]);
    bench.columns[1] = Column { label: "a again".to_owned(), ..bench.columns[0].clone() };
    let comparison = compare::columns(&bench, &Settings::default());
    let rows = judged(&comparison);
    assert_eq!(rows[0].verdict, Some(Verdict::Better), "the A/A rounds themselves are judged");
    assert!((rows[1].noise_floor.unwrap() - 0.03).abs() < 1e-9);
    assert_eq!(rows[1].verdict, Some(Verdict::Inconclusive));
    assert!(rows[1].reason.contains("same column differ by 3 %"), "{}", rows[1].reason);
    assert_eq!(rows[2].verdict, Some(Verdict::Worse));
}

#[test]
fn among_many_rows_a_small_chance_is_not_believed() {
    let noise = rounds(100_000.0, 0.02, 20);
    let mirrored: Vec<f64> = noise.iter().rev().map(|iops| iops * 0.975).collect();
    let lucky = |name: String| (job(&name, 4096), vec![cell(&noise), cell(&mirrored)]);
    let same = |name: String| (job(&name, 4096), vec![cell(&noise), cell(&noise)]);
    let verdicts = |count: u32| {
        let mut rows = vec![lucky("0".to_owned())];
        rows.extend((1..count).map(|at| same(at.to_string())));
        let comparison = compare::columns(&bench(&["a", "b"], rows), &Settings::default());
        let first = judged(&comparison)[0].clone();
        (first.p_value.unwrap(), first.verdict.unwrap(), first.reason, comparison.rule.judged)
    };
    let (p, verdict, _, _) = verdicts(1);
    assert!((0.0001..0.01).contains(&p), "{p}: the case is not what it is meant to be");
    assert_eq!(verdict, Verdict::Worse);
    let (_, verdict, reason, judged) = verdicts(600);
    assert_eq!((verdict, judged), (Verdict::Inconclusive, 600));
    assert!(reason.contains("not among 600 rows"), "{reason}");
}

#[test]
fn virtual_rounds_that_repeat_are_judged_from_one() {
    let mut bench = pair(&[100.0], &[97.0]);
    let mut guest = Guest { is_repeatable: Some(true), ..Guest::default() };
    for cell in &mut bench.rows[0].cells {
        cell.samples[0].guest = Some(guest);
    }
    bench.method.is_virtual = true;
    let comparison = compare::columns(&bench, &Settings::default());
    let row = judged(&comparison)[0];
    assert_eq!((row.pairing, row.verdict), (Pairing::Exact, Some(Verdict::Worse)));
    guest.is_repeatable = Some(false);
    bench.rows[0].cells[1].samples[0].guest = Some(guest);
    let comparison = compare::columns(&bench, &Settings::default());
    assert_eq!(comparison.verdict, Verdict::Inconclusive);
}

/// One boot of each: deferred completions of 2000, and bios per request.
fn boots(base: (u64, f64), new: (u64, f64)) -> Bench {
    let mut bench = pair(&[100.0], &[90.0]);
    bench.method.is_virtual = true;
    for (cell, (kworker, bios)) in bench.rows[0].cells.iter_mut().zip([base, new]) {
        let sample = &mut cell.samples[0];
        let hardirq = 2000 - kworker;
        sample.contexts = Some(Contexts { kworker, hardirq, ..Contexts::default() });
        sample.guest = Some(Guest { bios_per_io: Some(bios), ..Guest::default() });
    }
    bench
}

#[test]
fn counts_of_one_boot_are_judged_and_its_rate_is_not() {
    let overall = |base, new| {
        let comparison = compare::columns(&boots(base, new), &Settings::default());
        let verdicts: Vec<_> =
            judged(&comparison).iter().map(|row| (row.metric, row.verdict.unwrap())).collect();
        let rows = judged(&comparison);
        assert!(rows.iter().all(|row| row.pairing == Pairing::Exact), "{rows:?}");
        (verdicts, comparison.verdict)
    };
    let (bios, deferred) = (Metric::BiosPerIo, Metric::DeferredPercent);
    for (base, new, of_bios, of_deferred, of_all) in [
        ((2000, 1.0), (2000, 1.0), Verdict::Same, Verdict::Same, Verdict::Same),
        ((0, 1.0), (0, 1.0), Verdict::Same, Verdict::Same, Verdict::Same),
        ((0, 1.0), (2000, 1.0), Verdict::Same, Verdict::Worse, Verdict::Worse),
        ((2000, 1.0), (0, 1.0), Verdict::Same, Verdict::Better, Verdict::Better),
        ((0, 1.0), (0, 2.0), Verdict::Worse, Verdict::Same, Verdict::Worse),
        ((0, 2.0), (0, 1.0), Verdict::Better, Verdict::Same, Verdict::Better),
        // 19 of 2000 are less than a percentage point, 21 are more.
        ((0, 1.0), (19, 1.0), Verdict::Same, Verdict::Same, Verdict::Same),
        ((0, 1.0), (21, 1.0), Verdict::Same, Verdict::Worse, Verdict::Worse),
    ] {
        let expected = (vec![(bios, of_bios), (deferred, of_deferred)], of_all);
        assert_eq!(overall(base, new), expected, "{base:?} {new:?}");
    }
    let asked = Settings { metrics: vec![Metric::Iops], ..Settings::default() };
    let comparison = compare::columns(&boots((0, 1.0), (0, 1.0)), &asked);
    assert_eq!(comparison.verdict, Verdict::Inconclusive);
    let reason = &judged(&comparison)[0].reason;
    assert!(reason.contains("--repeat 2"), "{reason}");
}

#[test]
fn counts_that_differ_between_boots_or_that_one_side_lacks_are_not_exact() {
    let mut bench = boots((2000, 1.0), (2000, 1.0));
    let cell = &mut bench.rows[0].cells[1];
    let mut other = Sample { round: 1, ..cell.samples[0].clone() };
    other.contexts = Some(Contexts { kworker: 1000, hardirq: 1000, ..Contexts::default() });
    cell.samples.push(other);
    let deferred = |bench: &Bench| {
        let comparison = compare::columns(bench, &Settings::default());
        let row = judged(&comparison).into_iter().find(|row| row.metric.is_share()).unwrap();
        (row.verdict, row.reason.clone())
    };
    let expected = (Some(Verdict::Inconclusive), "it differs between boots".to_owned());
    assert_eq!(deferred(&bench), expected);
    bench.rows[0].cells[1].samples.clear();
    let expected = (Some(Verdict::Inconclusive), "only one of them has it".to_owned());
    assert_eq!(deferred(&bench), expected);
}

#[test]
fn counts_of_a_real_machine_are_not_judged_by_default() {
    let mut bench = boots((0, 1.0), (2000, 2.0));
    bench.method.is_virtual = false;
    let comparison = compare::columns(&bench, &Settings::default());
    let metrics: Vec<Metric> = judged(&comparison).iter().map(|row| row.metric).collect();
    assert_eq!((metrics, comparison.verdict), (vec![Metric::Iops], Verdict::Inconclusive));
}

#[test]
fn what_failed_is_inconclusive_and_says_why() {
    let failed = Cell { failure: Some("fio is not installed".to_owned()), ..Cell::default() };
    let rows = vec![(job("j", 4096), vec![cell(&rounds(1.0, 0.1, 9)), failed])];
    let comparison = compare::columns(&bench(&["a", "b"], rows), &Settings::default());
    let row = judged(&comparison)[0];
    assert_eq!(row.verdict, Some(Verdict::Inconclusive));
    assert_eq!(row.reason, "not measured: fio is not installed");
}

#[test]
fn large_blocks_are_judged_by_bytes_per_second() {
    let cells = || vec![cell(&rounds(10.0, 0.1, 9)), cell(&rounds(10.0, 0.1, 9))];
    let rows = vec![(job("4k", 4096), cells()), (job("128k", 131_072), cells())];
    let comparison = compare::columns(&bench(&["a", "b"], rows), &Settings::default());
    let metrics: Vec<Metric> = judged(&comparison).iter().map(|row| row.metric).collect();
    assert_eq!(metrics, [Metric::Iops, Metric::Bandwidth]);
}

#[test]
fn documents_are_compared_job_by_job_and_say_that_they_were_apart() {
    let rows = |iops: f64| {
        let cells = || vec![cell(&rounds(iops, 0.001, 20))];
        vec![(job("x", 4096), cells()), (job("y", 8192), cells())]
    };
    let mut new = bench(&["b"], rows(90_000.0));
    new.rows.reverse();
    new.environments[0].kernel_release = "6.2".to_owned();
    let mut base = bench(&["a"], rows(100_000.0));
    base.environments[0].kernel_release = "6.1".to_owned();
    let all = [named("base.json", base), named("new.json", new)];
    let comparison = compare::documents(&all, &Settings::default()).unwrap();
    assert_eq!(comparison.verdict, Verdict::Worse);
    let rows = judged(&comparison);
    assert_eq!(rows.len(), 2);
    assert!(rows.iter().all(|row| row.pairing == Pairing::Apart));
    assert!(comparison.notes.iter().any(|note| note.contains("not interleaved")));
    let fields: Vec<&str> =
        comparison.environment_differences.iter().map(|one| one.field.as_str()).collect();
    assert_eq!(fields, ["kernel_release", "column.preset"]);
}

#[test]
fn documents_whose_rounds_took_turns_are_compared_pair_by_pair() {
    let stamped = |iops: f64, first: u64| {
        let mut cell = cell(&rounds(iops, 0.2, 12));
        for (at, sample) in (0..).zip(&mut cell.samples) {
            sample.started_unix_ns = 1000 + first + 10 * at;
        }
        bench(&["a"], vec![(job("x", 4096), vec![cell])])
    };
    let pairing = |new: Bench| {
        let all = [named("base", stamped(100.0, 0)), named("new", new)];
        let comparison = compare::documents(&all, &Settings::default()).unwrap();
        (judged(&comparison)[0].pairing, comparison.notes.len())
    };
    assert_eq!(pairing(stamped(90.0, 5)), (Pairing::Interleaved, 0));
    assert_eq!(pairing(stamped(90.0, 15)), (Pairing::Apart, 1), "a round later");
    assert_eq!(pairing(stamped(90.0, 500)), (Pairing::Apart, 1), "one after the other");
}

#[test]
fn jobs_that_differ_are_refused_with_their_fields() {
    let with = |job: Job| bench(&["a"], vec![(job, vec![cell(&[1.0])])]);
    let message = refusal(with(job("x", 4096)), with(Job { iodepth: 1, ..job("x", 4096) }));
    let expected = "new.json: the job `x` is not in base.json: iodepth 64 against 1; run the same \
                    job: none is in both";
    assert_eq!(message, expected);
    let message = refusal(Bench::default(), with(job("x", 4096)));
    assert_eq!(message, "base.json: no job was measured; run it again");
}

#[test]
fn a_document_that_lacks_jobs_is_compared_only_when_asked_or_interrupted() {
    let row = |name: &str, block| (job(name, block), vec![cell(&[1.0])]);
    let both = || bench(&["a"], vec![row("x", 4096), row("y", 8192)]);
    let mut less = bench(&["a"], vec![row("x", 4096)]);
    assert!(refusal(both(), less.clone()).contains("base.json has jobs that are not in new.json"));
    let message = refusal(less.clone(), both());
    assert!(
        message.contains("the job `y` is not in base.json") && message.contains("--partial"),
        "{message}"
    );
    let all = [named("base.json", both()), named("new.json", less.clone())];
    let settings = Settings { is_partial: true, ..Settings::default() };
    let comparison = compare::documents(&all, &settings).unwrap();
    assert_eq!(judged(&comparison).len(), 1);
    assert!(comparison.notes.contains(&"1 jobs of base.json are not in new.json".to_owned()));
    less.is_interrupted = true;
    let all = [named("base.json", both()), named("new.json", less)];
    assert!(compare::documents(&all, &Settings::default()).is_ok());
}

#[test]
fn columns_of_documents_belong_together_by_name() {
    let of = |labels: &[&str]| {
        let cells = labels.iter().map(|_| cell(&[1.0])).collect();
        bench(labels, vec![(job("x", 4096), cells)])
    };
    let all = [named("base", of(&["a", "b"])), named("new", of(&["b", "c"]))];
    let comparison = compare::documents(&all, &Settings::default()).unwrap();
    let rows = judged(&comparison);
    assert_eq!(rows.len(), 1);
    let labels = [rows[0].base, rows[0].column].map(|at| comparison.columns[at].label.as_str());
    assert_eq!(labels, ["base b", "new b"]);
    let message = refusal(of(&["a", "b"]), of(&["c"]));
    assert!(message.starts_with("base.json has the columns a, b, new.json has c;"), "{message}");
}

#[test]
fn a_ratio_that_is_not_of_the_figures_next_to_it_has_a_note() {
    let note = |new: &[f64]| {
        let base = [100.0, 110.0, 100.0, 110.0, 100.0, 110.0, 100.0];
        let comparison = compare::columns(&pair(&base, new), &Settings::default());
        let ratio = judged(&comparison)[0].ratio.unwrap();
        (ratio, comparison.notes.iter().any(|note| note.contains("the figures are medians")))
    };
    let (ratio, is_noted) = note(&[120.0, 120.0, 900.0, 120.0, 900.0, 120.0, 900.0]);
    assert!(ratio > 2.0 && is_noted, "the medians are 100 and 120, and the ratio {ratio}");
    let (ratio, is_noted) = note(&[120.0, 132.0, 120.0, 132.0, 120.0, 132.0, 120.0]);
    assert!((ratio - 1.2).abs() < 1e-9 && !is_noted, "{ratio}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Swapping the sides of a comparison inverts its verdict, whatever the rounds are.
    #[test]
    fn a_comparison_turned_round_says_the_opposite(
        base in prop::collection::vec(0.5f64..2.0, 1..24),
        change in 0.8f64..1.25,
        spread in 0.0f64..0.1,
    ) {
        let new: Vec<f64> = base
            .iter()
            .enumerate()
            .map(|(at, one)| one * change * if at % 3 == 0 { 1.0 + spread } else { 1.0 })
            .collect();
        let (there, back) = (one(&base, &new), one(&new, &base));
        let opposite = match there.verdict.unwrap() {
            Verdict::Better => Verdict::Worse,
            Verdict::Worse => Verdict::Better,
            other => other,
        };
        prop_assert_eq!(back.verdict, Some(opposite));
        prop_assert!((there.ratio.unwrap() * back.ratio.unwrap() - 1.0).abs() < 1e-9);
    }
}
