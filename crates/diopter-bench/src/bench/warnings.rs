//! Finds reasons to distrust a cell's figures in its rounds. The thresholds are here, each with its
//! reason; the remedies are with [`WarningKind`].

use super::round::Seen;
use crate::document::{Environment, Job, Sample, Span, Warning, WarningKind};
use crate::number::{count, float, total};
use crate::statistics::{median, rank_correlation};

/// With fewer requests than these, or less time, a single slow one moves the mean.
const IOS_MIN: u64 = 1000;
const ELAPSED_NS_MIN: u64 = 200_000_000;

/// Modified z-scores beyond this are outliers (Iglewicz and Hoaglin, "How to Detect and Handle
/// Outliers", 1993) if they differ by at least [`OUTLIER_SHARE`], so that negligible noise of a
/// quiet device is not reported.
const Z_MAX: f64 = 3.5;
const OUTLIER_SHARE: f64 = 0.05;

/// Largest shares of processor time for other programs, and for the host.
const OTHERS_SHARE: f64 = 0.10;
const STOLEN_SHARE: f64 = 0.02;

/// Largest share of a round in which a control group throttles.
const THROTTLED_SHARE: f64 = 0.01;

/// Smallest share of the requested depth.
const DEPTH_SHARE: f64 = 0.90;

/// Largest change between the halves of a round, as the median of the rounds, with three quarters
/// of them in the same direction.
const STEADY_SHARE: f64 = 0.10;
const SLICES_MIN: usize = 10;

/// Smallest rank correlation with time, and smallest change from the first third of the rounds to
/// the last.
const DRIFT_CORRELATION: f64 = 0.8;
const DRIFT_SHARE: f64 = 0.05;
const DRIFT_ROUNDS_MIN: usize = 6;

/// Returns all warnings about a cell. `seen` has one entry for each of `samples`.
#[must_use]
pub fn of(
    job: &Job,
    samples: &[Sample],
    seen: &[Seen],
    environment: Option<&Environment>,
) -> Vec<Warning> {
    if samples.is_empty() {
        return Vec::new();
    }
    let found = [
        short_run(job, samples),
        outliers(samples),
        throttled(samples, seen),
        other_load(seen),
        buffered(job, samples),
        depth(job, samples),
        cache_residue(job, seen),
        governor(environment),
        drift(samples),
        not_steady(samples),
    ];
    found.into_iter().flatten().collect()
}

fn warning(kind: WarningKind, evidence: String) -> Option<Warning> {
    Some(Warning { kind, evidence })
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn short_run(job: &Job, samples: &[Sample]) -> Option<Warning> {
    let least_ios = samples.iter().map(Sample::ios).min()?;
    let least_ns = samples.iter().map(|sample| sample.elapsed_ns).min()?;
    // There are few large requests; their bytes are measured.
    let is_few = least_ios < IOS_MIN && job.block_bytes < 1 << 20 || least_ios < 10;
    let is_short = least_ns < ELAPSED_NS_MIN && matches!(job.span, Span::RuntimeNs(_));
    if !is_few && !is_short {
        return None;
    }
    let ms = least_ns / 1_000_000;
    warning(
        WarningKind::ShortRun,
        format!("the shortest round had {least_ios} requests in {ms} ms"),
    )
}

fn outliers(samples: &[Sample]) -> Option<Warning> {
    let figures: Vec<f64> = samples.iter().map(Sample::iops).collect();
    let middle = median(figures.iter().copied())?;
    let distances: Vec<f64> = figures.iter().map(|figure| (figure - middle).abs()).collect();
    let spread = median(distances.iter().copied())?;
    let is_far =
        |distance: f64| 0.6745 * distance > Z_MAX * spread && distance > OUTLIER_SHARE * middle;
    let count = distances.iter().filter(|distance| is_far(**distance)).count();
    if count == 0 {
        return None;
    }
    warning(WarningKind::Outliers, format!("{count} of {} rounds", samples.len()))
}

fn throttled(samples: &[Sample], seen: &[Seen]) -> Option<Warning> {
    let shares = samples
        .iter()
        .zip(seen)
        .map(|(sample, seen)| float(seen.throttled_ns) / float(sample.elapsed_ns.max(1)));
    let share = shares.fold(0.0, f64::max);
    if share <= THROTTLED_SHARE {
        return None;
    }
    let evidence = format!("throttled by its control group for {} of a round", percent(share));
    warning(WarningKind::Throttled, evidence)
}

fn other_load(seen: &[Seen]) -> Option<Warning> {
    let share = |of: fn(&Seen) -> u64| {
        let shares = seen
            .iter()
            .filter(|seen| seen.available_ns > 0)
            .map(|seen| float(of(seen)) / float(seen.available_ns));
        median(shares).unwrap_or(0.0)
    };
    let (others, stolen) = (share(|seen| seen.others_ns), share(|seen| seen.stolen_ns));
    if others > OTHERS_SHARE {
        let share = percent(others);
        return warning(
            WarningKind::OtherLoad,
            format!("other programs had {share} of the processors"),
        );
    }
    if stolen > STOLEN_SHARE {
        let share = percent(stolen);
        return warning(
            WarningKind::OtherLoad,
            format!("the host took {share} of the processor time"),
        );
    }
    None
}

fn buffered(job: &Job, samples: &[Sample]) -> Option<Warning> {
    let routes = samples.iter().filter_map(|sample| sample.route);
    let (buffered, all) = routes.fold((0, 0), |(buffered, all), route| {
        (buffered + route.buffered, all + route.direct + route.bounced + route.buffered)
    });
    if buffered == 0 || !job.is_direct {
        return None;
    }
    let share = percent(float(buffered) / float(all));
    warning(WarningKind::BufferedFallback, format!("{share} of the bytes"))
}

fn depth(job: &Job, samples: &[Sample]) -> Option<Warning> {
    if job.is_paced() {
        return None;
    }
    let reached = median(samples.iter().filter_map(|sample| sample.depth_mean))?;
    let asked = f64::from(job.iodepth) * f64::from(job.numjobs);
    if reached >= DEPTH_SHARE * asked {
        return None;
    }
    warning(WarningKind::DepthNotReached, format!("{reached:.1} of {asked:.0} requests in flight"))
}

fn cache_residue(job: &Job, seen: &[Seen]) -> Option<Warning> {
    let pages = seen.iter().map(|seen| seen.pages_cached).max()?;
    if pages == 0 || !job.is_direct {
        return None;
    }
    warning(WarningKind::CacheResidue, format!("{pages} pages after a round"))
}

fn governor(environment: Option<&Environment>) -> Option<Warning> {
    let governor = &environment?.cpu.governor;
    if governor.is_empty() || governor == "performance" {
        return None;
    }
    warning(WarningKind::Governor, format!("the governor is `{governor}`"))
}

fn drift(samples: &[Sample]) -> Option<Warning> {
    if samples.len() < DRIFT_ROUNDS_MIN {
        return None;
    }
    let mut in_time: Vec<&Sample> = samples.iter().collect();
    in_time.sort_by_key(|sample| sample.turn);
    let figures: Vec<f64> = in_time.iter().map(|sample| sample.iops()).collect();
    let third = figures.len() / 3;
    let first = median(figures[..third].iter().copied())?;
    let last = median(figures[figures.len() - third..].iter().copied())?;
    let change = last / first - 1.0;
    let correlation = rank_correlation(&figures);
    if !change.is_finite() || change.abs() < DRIFT_SHARE || correlation.abs() < DRIFT_CORRELATION {
        return None;
    }
    let word = if change > 0.0 { "rose" } else { "fell" };
    warning(
        WarningKind::Drift,
        format!("figures {word} by {} over the rounds", percent(change.abs())),
    )
}

fn not_steady(samples: &[Sample]) -> Option<Warning> {
    let change = |sample: &Sample| {
        // The last slice is incomplete.
        let points = sample.series.split_last()?.1;
        if points.len() < SLICES_MIN {
            return None;
        }
        let (first, second) = points.split_at(points.len() / 2);
        let mean = |half: &[crate::document::SeriesPoint]| {
            let ios = total(half.iter().map(|point| point.ios));
            float(ios) / count(half.len())
        };
        Some(mean(second) / mean(first).max(f64::MIN_POSITIVE) - 1.0)
    };
    let changes: Vec<f64> = samples.iter().filter_map(change).collect();
    let middle = median(changes.iter().copied())?;
    // Rounds that change in both directions are noise, not a device that settles.
    let alike = changes.iter().filter(|change| change.signum() == middle.signum()).count();
    if middle.abs() < STEADY_SHARE || alike * 4 < changes.len() * 3 {
        return None;
    }
    let word = if middle > 0.0 { "faster" } else { "slower" };
    let share = percent(middle.abs());
    warning(WarningKind::NotSteady, format!("the second half of a round was {share} {word}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{Cpu, DirectionSample, RouteSample, SeriesPoint};

    fn job() -> Job {
        Job { block_bytes: 4096, iodepth: 8, numjobs: 2, is_direct: true, ..Job::default() }
    }

    fn sample(turn: u32, iops: f64) -> Sample {
        let read = DirectionSample { ios: 100_000, iops, ..DirectionSample::default() };
        let slice = |at: u64| SeriesPoint { at_ns: at, ios: 100, bytes: 0 };
        Sample {
            turn,
            elapsed_ns: 2_000_000_000,
            read: Some(read),
            depth_mean: Some(15.5),
            series: (0..20).map(slice).collect(),
            ..Sample::default()
        }
    }

    /// Eight rounds without a reason for a warning.
    fn calm() -> Vec<Sample> {
        let figures = [1000.0, 1010.0, 990.0, 1005.0, 995.0, 1002.0, 1008.0, 992.0];
        (0..).zip(figures).map(|(turn, iops)| sample(turn, iops)).collect()
    }

    fn quiet() -> Seen {
        Seen { available_ns: 4_000_000_000, others_ns: 10_000_000, ..Seen::default() }
    }

    fn check(samples: &[Sample], seen: Seen, expected: &[(WarningKind, &str)]) {
        let seen = vec![seen; samples.len()];
        let found = of(&job(), samples, &seen, None);
        let found: Vec<(WarningKind, &str)> =
            found.iter().map(|warning| (warning.kind, warning.evidence.as_str())).collect();
        assert_eq!(found, expected);
    }

    fn each(change: impl Fn(&mut Sample)) -> Vec<Sample> {
        let mut samples = calm();
        samples.iter_mut().for_each(change);
        samples
    }

    #[test]
    fn calm_rounds_are_not_doubted() {
        check(&calm(), quiet(), &[]);
        check(&[], quiet(), &[]);
    }

    #[test]
    fn short_rounds_are() {
        let samples = each(|sample| sample.elapsed_ns = 50_000_000);
        let expected = "the shortest round had 100000 requests in 50 ms";
        check(&samples, quiet(), &[(WarningKind::ShortRun, expected)]);
    }

    #[test]
    fn a_round_far_from_the_others_is_an_outlier() {
        let mut samples = calm();
        samples[3] = sample(3, 700.0);
        check(&samples, quiet(), &[(WarningKind::Outliers, "1 of 8 rounds")]);
    }

    #[test]
    fn what_ran_beside_it_is_reported() {
        let seen = Seen { others_ns: 1_000_000_000, ..quiet() };
        let expected = "other programs had 25.0 % of the processors";
        check(&calm(), seen, &[(WarningKind::OtherLoad, expected)]);
        let seen = Seen { stolen_ns: 400_000_000, ..quiet() };
        let expected = "the host took 10.0 % of the processor time";
        check(&calm(), seen, &[(WarningKind::OtherLoad, expected)]);
        let seen = Seen { throttled_ns: 200_000_000, pages_cached: 3, ..quiet() };
        let expected = [
            (WarningKind::Throttled, "throttled by its control group for 10.0 % of a round"),
            (WarningKind::CacheResidue, "3 pages after a round"),
        ];
        check(&calm(), seen, &expected);
    }

    #[test]
    fn bytes_through_the_cache_and_a_depth_not_reached_are_reported() {
        let route = RouteSample { direct: 3, bounced: 0, buffered: 1 };
        let samples = each(|sample| sample.route = Some(route));
        check(&samples, quiet(), &[(WarningKind::BufferedFallback, "25.0 % of the bytes")]);
        let samples = each(|sample| sample.depth_mean = Some(1.0));
        check(&samples, quiet(), &[(WarningKind::DepthNotReached, "1.0 of 16 requests in flight")]);
    }

    #[test]
    fn figures_that_fall_from_round_to_round_drift() {
        let samples: Vec<Sample> =
            (0..9).map(|turn| sample(turn, 1000.0 - f64::from(turn) * 20.0)).collect();
        let found = of(&job(), &samples, &[], None);
        assert_eq!(found[0].kind, WarningKind::Drift);
        assert!(found[0].evidence.starts_with("figures fell by 12."), "{found:?}");
    }

    #[test]
    fn a_round_that_slows_down_is_not_steady() {
        let samples = each(|sample| {
            sample.series[10..].iter_mut().for_each(|point| point.ios = 70);
        });
        let found = of(&job(), &samples, &[], None);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].kind, WarningKind::NotSteady);
    }

    #[test]
    fn a_governor_that_is_free_is_reported() {
        let cpu = Cpu { governor: "powersave".to_owned(), ..Cpu::default() };
        let environment = Environment { cpu, ..Environment::default() };
        let found = of(&job(), &calm(), &[], Some(&environment));
        assert_eq!(found[0].kind, WarningKind::Governor);
    }
}
