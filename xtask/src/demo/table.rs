//! The demo's one table: medians, rates, and what stayed in the page cache. It measures nothing.

use super::options::Options;
use std::time::Duration;

/// The measurement of one tool.
pub struct Row {
    pub name: &'static str,
    seconds: Vec<f64>,
    pub cached: Vec<Option<u64>>,
    pub failure: Option<String>,
}

impl Row {
    pub fn new(name: &'static str) -> Row {
        Row { name, seconds: Vec::new(), cached: Vec::new(), failure: None }
    }

    /// One more run that succeeded.
    pub fn add(&mut self, took: Duration, cached: Option<u64>) {
        self.seconds.push(took.as_secs_f64());
        self.cached.push(cached);
    }

    /// Seconds of a tool that never failed.
    pub fn median(&self) -> Option<f64> {
        if self.failure.is_some() { None } else { median(&self.seconds) }
    }
}

/// Prints the table; the first row is dio's, and is compared with the best of the others.
pub fn print(rows: &[Row], options: &Options) {
    let mib = options.size >> 20;
    println!("\n{mib} MiB, {} round(s), source cold, target flushed", options.rounds);
    println!("{:<26} {:>8} {:>7}  {:<22} against the best other", "", "seconds", "GB/s", "cached");
    let others = rows.iter().skip(1).filter_map(Row::median);
    let best = others.min_by(f64::total_cmp);
    for (index, row) in rows.iter().enumerate() {
        let Some(seconds) = row.median() else {
            let why = row.failure.as_deref().unwrap_or("it did not run");
            println!("{:<26} failed: {why}", row.name);
            continue;
        };
        let rate = options.size as f64 / 1e9 / seconds;
        let ratio = match best {
            Some(best) if index == 0 => format!("{:.2}x as fast", best / seconds),
            _ => String::new(),
        };
        let cached = cached(&row.cached, options.size);
        let line = format!("{:<26} {seconds:>8.2} {rate:>7.2}  {cached:<22} {ratio}", row.name);
        println!("{}", line.trim_end());
    }
}

/// The most that any run left behind, of source and target together.
fn cached(runs: &[Option<u64>], size: u64) -> String {
    match most(runs).zip(cached_percent(runs, size)) {
        Some((bytes, percent)) => {
            format!("{:.1} MiB, {percent:.1} %", bytes as f64 / f64::from(1 << 20))
        }
        None => "n/a (fincore missing)".to_owned(),
    }
}

/// Returns the same as a percentage of both files.
pub fn cached_percent(runs: &[Option<u64>], size: u64) -> Option<f64> {
    most(runs).map(|bytes| bytes as f64 * 100.0 / (2.0 * size as f64))
}

fn most(runs: &[Option<u64>]) -> Option<u64> {
    runs.iter().copied().collect::<Option<Vec<u64>>>()?.into_iter().max()
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (low, high) = (sorted.len().checked_sub(1)? / 2, sorted.len() / 2);
    Some((sorted[low] + sorted[high]) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_is_the_middle_or_between_the_two_in_the_middle() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(&[4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn the_cache_is_reported_in_bytes_and_as_a_part_of_both_files() {
        assert_eq!(cached(&[Some(0), Some(1 << 20)], 2 << 20), "1.0 MiB, 25.0 %");
        assert_eq!(cached(&[Some(0), None], 1), "n/a (fincore missing)");
    }

    #[test]
    fn a_tool_that_failed_once_has_no_median() {
        let mut row = Row::new("x");
        row.add(Duration::from_secs(1), None);
        row.failure = Some("the second run".to_owned());
        assert_eq!(row.median(), None);
    }
}
