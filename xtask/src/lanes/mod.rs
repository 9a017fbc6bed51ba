//! Runs lanes in order and prints the summary. The table of them is in `table.rs`, what the machine
//! lacks in `capability.rs`.

mod commands;
mod table;

use crate::capability::{self, Capability, Probe};
use crate::repo::Outcome;
use crate::{book, debian, deny, interface, repo, run, tidy, tools};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::process::Command;
use std::time::{Duration, Instant};
use table::{LANES, Lane, QUICK, Step, Work};

/// The variable that makes a lane over its budget a failure.
const BUDGET: &str = "DIOPTER_BUDGET";

/// The result of a lane.
#[derive(Debug, PartialEq, Eq)]
enum Verdict {
    Passed,
    Failed(String),
    Skipped(String),
}

struct Row {
    name: &'static str,
    verdict: Verdict,
    took: Duration,
    budget: Duration,
    /// The skips of its tests, and how often each was printed.
    skips: BTreeMap<run::Skip, u32>,
}

impl Row {
    /// Returns true if the lane ran for longer than its budget.
    fn is_over(&self) -> bool {
        self.took > self.budget && !matches!(self.verdict, Verdict::Skipped(_))
    }

    /// Makes a lane that passed a failed one if it exceeded its budget.
    fn limit(&mut self) {
        if self.is_over() && self.verdict == Verdict::Passed {
            self.verdict = Verdict::Failed(format!("{BUDGET} is set"));
        }
    }
}

/// The arguments of every lane of a run.
struct Context {
    /// The variables that every command gets.
    environment: [(&'static str, String); 2],
    /// The capabilities that must not be missing.
    required: Vec<Capability>,
    execute: fn(&mut Command) -> Result<(bool, run::Tally), String>,
}

/// `cargo xtask ci [LANE...]`: runs the lanes and prints the summary.
pub fn run(names: &[String]) -> Outcome {
    let lanes = chosen(names)?;
    let required = capability::required()?;
    let is_limited = is_limited(std::env::var(BUDGET).ok().as_deref())?;
    let (seed, source) = repo::seed()?;
    println!("seed {seed} ({source}); the same again: DIOPTER_SEED={seed} cargo xtask ci");
    let wanted: Vec<Capability> =
        lanes.iter().flat_map(|lane| lane.needs.iter().chain(lane.uses)).copied().collect();
    debian::provide(&wanted);
    tools::provide(&wanted);
    let probes = capability::probe_all();
    let have = capability::have(&probes);
    println!("this machine has: {have}");

    let environment = environment(seed, &have);
    let context = Context { environment, required, execute: run::to_the_end };
    let mut rows = Vec::new();
    for lane in lanes {
        let started = Instant::now();
        println!("\n== {}", lane.name);
        let mut skips = BTreeMap::new();
        let verdict = match missing(lane, &probes, &context.required) {
            Some(verdict) => verdict,
            None => run_steps(lane, &context, &mut skips),
        };
        let (took, budget) = (started.elapsed(), Duration::from_secs(lane.budget));
        let mut row = Row { name: lane.name, verdict, took, budget, skips };
        if is_limited {
            row.limit();
        }
        println!("== {} {} in {:.1} s", lane.name, word(&row.verdict), took.as_secs_f64());
        rows.push(row);
    }
    print!("{}", summary(&rows));
    Ok(rows.iter().all(|row| !matches!(row.verdict, Verdict::Failed(_))))
}

/// `cargo xtask lanes`: the table, one lane a line.
pub fn list() -> bool {
    for lane in LANES {
        let needs: Vec<&str> = lane.needs.iter().map(|need| need.name()).collect();
        let needs = if needs.is_empty() { String::new() } else { needs.join(", ") };
        let commands: Vec<String> = lane.steps.iter().map(|step| shown(step, &[])).collect();
        let (name, budget) = (lane.name, lane.budget);
        println!("{name:<11} {budget:>4} s  {needs:<15} {}", commands.join("; "));
    }
    true
}

fn chosen(names: &[String]) -> Result<Vec<&'static Lane>, String> {
    let is_quick = |lane: &&Lane| QUICK.contains(&lane.name);
    let all = LANES.iter().filter(|lane| !lane.is_extra);
    match names {
        [] => return Ok(all.collect()),
        [part] if part == "--quick" => return Ok(all.filter(is_quick).collect()),
        _ => {}
    }
    names
        .iter()
        .map(|name| {
            LANES.iter().find(|lane| lane.name == name).ok_or_else(|| {
                let all: Vec<&str> = LANES.iter().map(|lane| lane.name).collect();
                format!("no lane `{name}`; the lanes are {}", all.join(" "))
            })
        })
        .collect()
}

/// Returns true if this value of `DIOPTER_BUDGET` makes a lane over its budget a failure.
fn is_limited(value: Option<&str>) -> Result<bool, String> {
    match value {
        None | Some("") => Ok(false),
        Some("fail") => Ok(true),
        Some(other) => Err(format!("{BUDGET}: unknown value `{other}`; use fail, or unset it")),
    }
}

/// The variables that every command of every lane gets.
fn environment(seed: u64, have: &str) -> [(&'static str, String); 2] {
    [("DIOPTER_SEED", seed.to_string()), ("DIOPTER_HAVE", have.to_owned())]
}

/// Why a lane cannot run or must not count as run, if so.
fn missing(lane: &Lane, probes: &[Probe], required: &[Capability]) -> Option<Verdict> {
    let why = |probe: &Probe| probe.missing.clone().map(|why| (probe.capability, why));
    let absent: Vec<(Capability, String)> = probes.iter().filter_map(why).collect();
    let text_of =
        |(capability, why): &(Capability, String)| format!("{}: {why}", capability.name());
    let wanted = |capability| lane.needs.contains(capability) || lane.uses.contains(capability);
    let must = absent.iter().find(|(found, _)| required.contains(found) && wanted(found));
    if let Some(absent) = must {
        return Some(Verdict::Failed(format!("required and missing, {}", text_of(absent))));
    }
    let needed = absent.iter().find(|(found, _)| lane.needs.contains(found));
    needed.map(|absent| Verdict::Skipped(text_of(absent)))
}

fn run_steps(lane: &Lane, context: &Context, skips: &mut BTreeMap<run::Skip, u32>) -> Verdict {
    for step in lane.steps {
        println!("   {}", shown(step, &context.environment));
        let ended = match &step.work {
            Work::Tidy => tidy::run().map(|clean| (clean, run::Tally::default())),
            Work::Book => book::build().map(|passed| (passed, run::Tally::default())),
            Work::Deny => deny::check().map(|clean| (clean, run::Tally::default())),
            Work::Features => interface::features().map(|clean| (clean, run::Tally::default())),
            Work::OldestCompiler => {
                interface::oldest_compiler().map(|clean| (clean, run::Tally::default()))
            }
            Work::Interface => interface::compare().map(|clean| (clean, run::Tally::default())),
            Work::Cargo(_) | Work::Nightly(_) => {
                (context.execute)(&mut command(step, &context.environment))
            }
        };
        let (succeeded, tally) = match ended {
            Ok(ended) => ended,
            Err(message) => return Verdict::Failed(message),
        };
        for skip in tally.skips {
            *skips.entry(skip).or_default() += 1;
        }
        if let Some(name) = tally.unknown.first() {
            return Verdict::Failed(format!(
                "a test skipped for `{name}`, which diopter-skip lacks"
            ));
        }
        if !succeeded {
            return Verdict::Failed(format!("see above: {}", shown(step, &[])));
        }
        if step.must_test && tally.tests_passed == 0 {
            return Verdict::Failed(format!("no test ran: {}", shown(step, &[])));
        }
    }
    match skips.keys().find(|skip| context.required.contains(&skip.capability)) {
        Some(skip) => {
            Verdict::Failed(format!("a test skipped what is required, {}", skip.capability))
        }
        None => Verdict::Passed,
    }
}

fn command(step: &Step, environment: &[(&'static str, String)]) -> Command {
    let mut command = match step.work {
        Work::Nightly(arguments) => {
            let mut command = repo::nightly_cargo();
            command.args(arguments);
            command
        }
        Work::Cargo(arguments) => {
            let mut command = repo::cargo();
            command.args(arguments);
            command
        }
        Work::Tidy
        | Work::Deny
        | Work::Book
        | Work::Features
        | Work::OldestCompiler
        | Work::Interface => repo::cargo(),
    };
    command.envs(environment.iter().map(|(name, value)| (*name, value.as_str())));
    command.envs(step.variables.iter().copied());
    if let Some(dir) = step.target_below {
        command.env("CARGO_TARGET_DIR", repo::target_dir().join(dir));
    }
    command
}

fn shown(step: &Step, environment: &[(&'static str, String)]) -> String {
    match &step.work {
        Work::Tidy => "cargo xtask tidy".to_owned(),
        Work::Deny => "cargo-deny check, of every lock file".to_owned(),
        Work::Book => "mdbook build, of docs/ and the help of dio".to_owned(),
        Work::Features => "each combination of the features of diopter".to_owned(),
        Work::OldestCompiler => "the published crates with the oldest compiler".to_owned(),
        Work::Interface => "the public interface against its snapshot".to_owned(),
        Work::Cargo(_) | Work::Nightly(_) => run::shown(&command(step, environment)),
    }
}

fn word(verdict: &Verdict) -> &'static str {
    match verdict {
        Verdict::Passed => "passed",
        Verdict::Failed(_) => "failed",
        Verdict::Skipped(_) => "skipped",
    }
}

fn summary(rows: &[Row]) -> String {
    let mut lines =
        format!("\n{:<11} {:<8} {:>8} {:>7}  why\n", "lane", "result", "seconds", "budget");
    for row in rows {
        let why = match &row.verdict {
            Verdict::Passed => None,
            Verdict::Failed(why) | Verdict::Skipped(why) => Some(why.as_str()),
        };
        let over = row.is_over().then_some("over budget");
        let why: Vec<&str> = over.into_iter().chain(why).collect();
        let (word, seconds, budget) =
            (word(&row.verdict), row.took.as_secs_f64(), row.budget.as_secs());
        let why = why.join("; ");
        let line = format!("{:<11} {word:<8} {seconds:>8.1} {budget:>7}  {why}", row.name);
        lines = lines + line.trim_end() + "\n";
        for (skip, count) in &row.skips {
            let times = if *count == 1 { "1 skip" } else { &format!("{count} skips") };
            let (capability, why) = (skip.capability, &skip.why);
            writeln!(lines, "{:38}{times} of tests, {capability}: {why}", "").expect("memory");
        }
    }
    let count = |name| rows.iter().filter(|row| word(&row.verdict) == name).count();
    let (passed, failed, skipped) = (count("passed"), count("failed"), count("skipped"));
    let over = rows.iter().filter(|row| row.is_over()).count();
    let skips: u32 = rows.iter().flat_map(|row| row.skips.values()).sum();
    let counts = format!("{passed} passed, {failed} failed, {skipped} skipped");
    lines + &format!("{counts}; {over} over budget; {skips} skips of tests\n")
}

#[cfg(test)]
mod tests;
