//! `dio lab check`: one kernel against a base, with the exit statuses of `git bisect run`.

use std::panic::{AssertUnwindSafe, catch_unwind};

use diopter_lab::between::Metric;
use diopter_lab::check::{self, Check, Checked, Place, Question, Subject, Verdict};
use diopter_lab::{BootOptions, LabError, Machine, Progress, matrix};

use super::run::fleet;
use super::stop::Stop;
use super::store;
use crate::args::CheckArgs;
use crate::log;
use crate::output::{self, DIFFERENT, DONE, STOPS_BISECTION, UNKNOWN_VERDICT};

pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(Check)
}

/// Runs the command, and returns the exit status. git takes any status below 128 but 125 for a
/// verdict, so a panic, whose status is 101, has to be another one.
pub fn run(args: &CheckArgs, stop: &Stop) -> Result<u8, LabError> {
    let checked = catch_unwind(AssertUnwindSafe(|| checked(args, stop)));
    let Ok(checked) = checked else { return Ok(STOPS_BISECTION) };
    checked.map(|check| print(&check, args.json))
}

/// Returns the exit status that git takes as meant: everything that is not a verdict stops it.
pub fn for_git(status: u8) -> u8 {
    match status {
        DONE | DIFFERENT | UNKNOWN_VERDICT | STOPS_BISECTION.. => status,
        _ => STOPS_BISECTION,
    }
}

fn checked(args: &CheckArgs, stop: &Stop) -> Result<Check, LabError> {
    let jobs = matrix::product(&[args.fs], &[args.rw], &[args.bs], &[args.iodepth]);
    let question = Question {
        metric: args.metric,
        job: jobs.into_iter().next().expect("one of each is one job"),
        engine: args.engine,
        tolerance: args.tolerance,
    };
    let subject = match (&args.subject.kernel, &args.subject.kernel_version) {
        (Some(path), _) => Subject::Path(path.clone()),
        (None, Some(version)) => Subject::Version(version.clone()),
        (None, None) => unreachable!("the parser requires one of the two"),
    };
    let machine = Machine::find().map_err(LabError::Machine)?;
    let fleet = fleet()?;
    let mut store = store::open(&args.store, stop)?;
    let programs = store.programs()?;
    let options = BootOptions { stop: Some(stop.flag()), ..BootOptions::default() };
    let lab = diopter_lab::run::Lab {
        machine: &machine,
        fleet: &fleet,
        programs: &programs.archive,
        options: &options,
    };
    let watch = store.watch().clone();
    let observe = move |kernel: &str| watch.report(Progress::Booting(kernel.to_owned()));
    let place = Place { lab, programs: &programs };
    check::check(place, &mut store, (&subject, &args.base), &question, &observe)
}

fn status_of(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Good => DONE,
        Verdict::Bad => DIFFERENT,
        Verdict::Unknown => UNKNOWN_VERDICT,
    }
}

fn print(check: &Check, is_json: bool) -> u8 {
    let status = status_of(check.verdict);
    let mut lines = check.reason.lines().skip(1).peekable();
    if lines.peek().is_some() {
        log::fail("lab check", &lines.collect::<Vec<_>>().join("\n"));
    }
    if is_json {
        output::print_document(check, status)
    } else {
        output::print_lines(&format!("{}\n", line(check)), status)
    }
}

/// The verdict in one line, with the figures.
fn line(check: &Check) -> String {
    let kernel = name_of(&check.kernel);
    let (Some(base), Some(figure)) = (&check.base, check.kernel.figure) else {
        return unknown(&kernel, check);
    };
    let Some(base_figure) = base.figure else { return unknown(&kernel, check) };
    let word = if check.verdict == Verdict::Good { "good" } else { "bad" };
    let tolerance = check.tolerance * 100.0;
    let (what, unit) = match check.metric {
        Metric::Contexts => ("% of completions deferred", "percentage points"),
        Metric::Iops => ("virtual IOPS", "%"),
        Metric::Instructions => ("instructions per request", "%"),
    };
    let shown = |figure: f64| match check.metric {
        Metric::Contexts => format!("{figure:.1}"),
        Metric::Iops | Metric::Instructions => format!("{figure:.0}"),
    };
    format!(
        "{word}: {kernel}: {} {what}, base {}: {} (tolerance {tolerance} {unit}; {}, {})",
        shown(figure),
        name_of(base),
        shown(base_figure),
        check.job,
        check.engine
    )
}

fn unknown(kernel: &str, check: &Check) -> String {
    let reason = check.reason.lines().next().unwrap_or_default();
    let reason = reason.trim_end_matches("; it said last:");
    format!("unknown: {kernel}: {reason}")
}

/// `7.2 (7.2.13-1)`: as it was named, and the version of its package.
fn name_of(checked: &Checked) -> String {
    let known = if checked.version.is_empty() { &checked.release } else { &checked.version };
    if known.is_empty() || *known == checked.name {
        checked.name.clone()
    } else {
        format!("{} ({known})", checked.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(verdict: Verdict) -> Check {
        let checked = |name: &str, version: &str, figure| Checked {
            name: name.to_owned(),
            release: String::new(),
            version: version.to_owned(),
            figure,
            is_cached: false,
        };
        Check {
            schema: check::SCHEMA.to_owned(),
            verdict,
            metric: Metric::Contexts,
            job: "ext4 randwrite 4k d64".to_owned(),
            engine: "libaio".to_owned(),
            tolerance: 0.05,
            kernel: checked("7.2", "7.2.13-1", Some(0.0)),
            base: Some(checked("6.12", "6.12.117-1", Some(100.0))),
            reason: String::new(),
            boots: 2,
        }
    }

    #[test]
    fn every_status_is_a_verdict_or_stops_git() {
        let verdicts = [Verdict::Good, Verdict::Bad, Verdict::Unknown].map(status_of);
        assert_eq!(verdicts, [0, 1, 125]);
        for status in 0..=u8::MAX {
            let expected =
                if [0, 1, 125].contains(&status) || status >= 128 { status } else { 128 };
            assert_eq!(for_git(status), expected, "{status}");
        }
    }

    #[test]
    fn the_line_has_the_verdict_and_the_figures() {
        let text = line(&check(Verdict::Bad));
        assert_eq!(
            text,
            "bad: 7.2 (7.2.13-1): 0.0 % of completions deferred, base 6.12 (6.12.117-1): 100.0 \
             (tolerance 5 percentage points; ext4 randwrite 4k d64, libaio)"
        );
        let mut rate = check(Verdict::Good);
        rate.metric = Metric::Iops;
        assert!(line(&rate).starts_with("good: 7.2 (7.2.13-1): 0 virtual IOPS, base "));
    }

    #[test]
    fn a_reason_of_many_lines_is_one_line() {
        let mut unknown = check(Verdict::Unknown);
        unknown.kernel.figure = None;
        unknown.reason = "the kernel panicked; it said last:\na\nb".to_owned();
        let text = line(&unknown);
        assert_eq!(text, "unknown: 7.2 (7.2.13-1): the kernel panicked");
    }
}
