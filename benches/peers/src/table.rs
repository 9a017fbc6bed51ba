//! Tables of at most 80 columns.

use serde_json::{Value, json};

use crate::figures::Ratio;
use crate::job::Figures;
use crate::rounds::{Entry, Runs};

const COLUMNS: usize = 80;

/// The label of the second run of a cell's first side.
pub const AGAIN: &str = ", 2";

/// Median of figures that there are.
pub fn median(runs: &[Figures], figure: fn(&Figures) -> f64) -> f64 {
    diopter_bench::statistics::median(runs.iter().map(figure)).unwrap_or(f64::NAN)
}

/// The ratio of two sides' figures, round by round.
pub fn ratio(upper: &[Figures], lower: &[Figures], figure: fn(&Figures) -> f64) -> Option<Ratio> {
    let figures = |runs: &[Figures]| runs.iter().map(figure).collect::<Vec<f64>>();
    Ratio::of(&figures(upper), &figures(lower))
}

/// The largest difference of the first side to itself, if it ran twice.
pub fn spread(entries: &[Entry], runs: &[Runs], figure: fn(&Figures) -> f64) -> f64 {
    let again = entries.iter().position(|entry| entry.label.ends_with(AGAIN));
    let both = again.and_then(|at| Some((runs.first()?.as_ref().ok()?, runs[at].as_ref().ok()?)));
    both.and_then(|(one, other)| ratio(one, other, figure)).map_or(0.0, |ratio| ratio.spread())
}

/// A cell's table: how many times as fast as each side `base` is, and by how much less its
/// processor time is.
pub fn cell(title: &str, base: usize, entries: &[Entry], runs: &[Runs]) -> Vec<String> {
    let speeds = spread(entries, runs, Figures::per_second);
    let times = spread(entries, runs, Figures::cpu_micros);
    let mut lines = wrapped(title);
    let name = &entries[base].label;
    let columns = ["IOPS", "time / that of", "CPU us", "CPU / that of"];
    lines.push(line("", columns));
    lines.push(line("", ["", name, "", name]));
    let Ok(ours) = &runs[base] else {
        lines.push(format!("{name}: no figures to compare with"));
        return lines;
    };
    for (at, (entry, runs)) in entries.iter().zip(runs).enumerate() {
        let theirs = match runs {
            Ok(theirs) => theirs,
            Err(why) => {
                lines.extend(wrapped(&format!("{:<21} not measured: {why}", entry.label)));
                continue;
            }
        };
        let (mut speed, mut time) = (String::new(), String::new());
        if at != base {
            speed = shown(ratio(ours, theirs, Figures::per_second), speeds);
            time = shown(ratio(theirs, ours, Figures::cpu_micros), times);
        }
        let iops = thousands(median(theirs, Figures::per_second));
        let cpu = median(theirs, Figures::cpu_micros);
        lines.push(line(&entry.label, [&iops, &speed, &format!("{cpu:.2}"), &time]));
    }
    lines.push(format!(
        "{} with itself: time within {:.1} %, CPU within {:.1} %",
        entries[0].label,
        percent(speeds),
        percent(times)
    ));
    lines
}

/// A side's line of a throughput table.
fn line(label: &str, [iops, speed, cpu, time]: [&str; 4]) -> String {
    let line = format!("{label:<21.21}{iops:>8}  {speed:<20.20}{cpu:>7}  {time:.20}");
    line.trim_end().to_owned()
}

/// A cell's percentiles, in microseconds, and how many times those of `base` the median is.
pub fn latencies(title: &str, base: usize, entries: &[Entry], runs: &[Runs]) -> Vec<String> {
    let middle = spread(entries, runs, |run| run.micros("p50"));
    let mut lines = if title.is_empty() { Vec::new() } else { wrapped(title) };
    let name = &entries[base].label;
    let columns = ["p50 us", "p99 us", "p99.9 us"];
    let columns: String = columns.iter().map(|column| format!("{column:>9}")).collect();
    lines.push(format!("{:<21}{columns}{:>8}  p50 / that of", "", "IOPS"));
    lines.push(format!("{:<58}{name}", ""));
    for (at, (entry, theirs)) in entries.iter().zip(runs).enumerate() {
        let theirs = match theirs {
            Ok(theirs) => theirs,
            Err(why) => {
                lines.extend(wrapped(&format!("{:<21} not measured: {why}", entry.label)));
                continue;
            }
        };
        let ours = runs[base].as_ref().ok().filter(|_| at != base);
        let ratio = ours.map(|ours| shown(ratio(theirs, ours, |run| run.micros("p50")), middle));
        let figures: [fn(&Figures) -> f64; 3] =
            [|run| run.micros("p50"), |run| run.micros("p99"), |run| run.micros("p999")];
        let figures: String =
            figures.iter().map(|figure| format!("{:>9.1}", median(theirs, *figure))).collect();
        let iops = thousands(median(theirs, Figures::per_second));
        let line =
            format!("{:<21.21}{figures}{iops:>8}  {}", entry.label, ratio.unwrap_or_default());
        lines.push(line.trim_end().to_owned());
    }
    lines.push(format!("{} with itself: p50 within {:.1} %", entries[0].label, percent(middle)));
    lines
}

/// Every sample of a cell.
pub fn to_json(title: &str, entries: &[Entry], runs: &[Runs]) -> Value {
    let speeds = spread(entries, runs, Figures::per_second);
    let side = |(entry, runs): (&Entry, &Runs)| match runs {
        Err(why) => json!({ "side": entry.label, "error": why }),
        Ok(runs) => json!({
            "side": entry.label, "job": entry.job.to_json(),
            "runs": runs.iter().map(Figures::to_json).collect::<Vec<_>>(),
        }),
    };
    let sides: Vec<Value> = entries.iter().zip(runs).map(side).collect();
    json!({ "title": title, "spread": speeds.exp() - 1.0, "sides": sides })
}

fn percent(spread: f64) -> f64 {
    (spread.exp() - 1.0) * 100.0
}

/// `1.20 (1.15 to 1.25)`, or `1.20 inconclusive`.
pub fn shown(ratio: Option<Ratio>, spread: f64) -> String {
    match ratio {
        None => "no figures".to_owned(),
        Some(found) if !found.is_conclusive(spread) => format!("{:.2} inconclusive", found.ratio),
        Some(Ratio { ratio, interval: Some((low, high)) }) => {
            format!("{ratio:.2} ({low:.2} to {high:.2})")
        }
        Some(Ratio { ratio, .. }) => format!("{ratio:.2}"),
    }
}

fn thousands(rate: f64) -> String {
    if rate >= 1e5 { format!("{:.0} k", rate / 1e3) } else { format!("{:.1} k", rate / 1e3) }
}

/// Words in lines of at most 80 columns; further lines are indented.
pub fn wrapped(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_inclusive(char::is_whitespace) {
        let line = lines.last_mut().expect("there is one");
        if line.chars().count() + word.trim_end().chars().count() > COLUMNS && !line.is_empty() {
            lines.push(format!("  {}", word.replace('\n', " ")));
        } else {
            line.push_str(&word.replace('\n', " "));
        }
    }
    lines.into_iter().map(|line| line.trim_end().to_owned()).collect()
}
