//! The command line of `dio compare`, with its help.

use std::path::PathBuf;

use clap::Args;
use clap::builder::TypedValueParser;
use diopter_bench::compare::Metric;

use super::values::named;

const EXAMPLES: &str = "\
Examples:
  dio compare before.json after.json
  dio compare base1.json,base2.json,base3.json new1.json,new2.json,new3.json
  dio compare --floor 3% --metric iops,clat-p99 runs/6.1 runs/6.12 runs/6.18";

const ABOUT: &str = "\
Exit status:
  0  the same, or better
  1  worse: some job is slower than its base by more than the floor
  2  the runs can't be compared; the message says why, and what to do
  3  inconclusive: run more rounds

docs/compare.md says what the verdicts mean and how often they can be wrong.";

/// Say whether recorded runs are better, the same or worse than a base
///
/// Reads results of `dio bench`, and of fio: JSON, json+ and terse version 3, from any machine.
/// Each name is one run, or several rounds of one: comma-separated files, or a directory of files.
/// Different jobs are refused, and differences between the machines are listed.
///
/// The verdict depends on how much the rounds vary. Alternate the runs, with many rounds: one round
/// of each has a ratio, but no verdict.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES}\n\n{ABOUT}"))]
pub struct CompareArgs {
    /// The base run
    #[arg(value_name = "BASE")]
    pub base: PathBuf,
    /// The runs to compare with it
    #[arg(required = true, value_name = "NEW")]
    pub others: Vec<PathBuf>,
    /// Metrics to judge [default: iops; bandwidth for blocks of 64k or more]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = metric())]
    pub metric: Vec<Metric>,
    /// The smallest change that matters [default: that of the runs, or 1%]
    #[arg(long, value_name = "PERCENT", value_parser = floor)]
    pub floor: Option<f64>,
    /// Compare the jobs that all runs have, even if some have more
    #[arg(long)]
    pub partial: bool,
    /// Also list the figures that are not judged
    #[arg(long)]
    pub all: bool,
    /// Not supported: `dio report` makes the page
    #[arg(long, hide = true, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print one JSON document (docs/schema/compare.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Parses `2%` or `0.5%` into a fraction. A number alone has two readings.
///
/// # Errors
/// Anything else, and a percentage outside 0 to 100.
pub fn floor(text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.strip_suffix('%').and_then(|number| number.trim().parse().ok());
    match (number, text.parse::<f64>()) {
        (Some(percent), _) if (0.0..100.0).contains(&percent) => Ok(percent / 100.0),
        (None, Ok(number)) => Err(format!(
            "`{text}` could mean {number}% or {}%; write the one with %",
            number * 100.0
        )),
        _ => Err(format!("invalid floor `{text}`; write a percentage such as 1%")),
    }
}

fn metric() -> impl TypedValueParser<Value = Metric> {
    named(&Metric::ALL, Metric::name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_floor_is_a_percentage_and_says_so() {
        assert_eq!(floor("2%"), Ok(0.02));
        assert_eq!(floor("0.5 %"), Ok(0.005));
        assert_eq!(floor("0%"), Ok(0.0));
        let message = floor("5").unwrap_err();
        assert_eq!(message, "`5` could mean 5% or 500%; write the one with %");
        for text in ["", "%", "a%", "-1%", "100%", "nan%", "much"] {
            assert!(floor(text).is_err(), "{text}");
        }
    }
}
