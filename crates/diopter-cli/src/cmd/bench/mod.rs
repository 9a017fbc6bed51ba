//! `dio bench`: makes a plan from the arguments, runs it, and prints. diopter-bench measures.

mod plan;
mod progress;

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use diopter::BackendKind;
use diopter_bench::bench::campaign::{Campaign, Ending};
use diopter_bench::bench::journal::{Begin, Journal, Reached, SCHEMA};
use diopter_bench::bench::machine::Machine;
use diopter_bench::bench::plan::Plan;
use diopter_bench::bench::result::{ResultFile, journal_of};
use diopter_bench::bench::target::{BenchTarget, Overwrite, TargetPath, Targets};
use diopter_bench::bench::{assemble, round};
use diopter_bench::compare::{self, Settings};
use diopter_bench::document::Bench;
use diopter_bench::report::{self, TextStyle};
use diopter_bench::whole;
use diopter_text::untrusted;

use crate::args::BenchArgs;
use crate::log;
use crate::output::{self, DONE, Look, TROUBLE};
use crate::signals::Signals;
use plan::Planned;
use progress::Progress;

/// Numbers tried for the name of a result.
const RESULTS_MAX: u32 = 10_000;

/// Limit of an order, which has some kilobytes.
const ORDER_BYTES_MAX: u64 = 1 << 20;

/// Runs the command, and returns the exit status.
pub fn run(args: &BenchArgs, backends: &[BackendKind], look: &Look) -> u8 {
    match bench(args, backends, look) {
        Ok(status) => status,
        Err(error) => {
            log::fail("bench", &error);
            TROUBLE
        }
    }
}

/// Runs one round in this process, for `dio bench-round`.
pub fn run_round() -> u8 {
    let mut order = String::new();
    let read = std::io::stdin().lock().take(ORDER_BYTES_MAX).read_to_string(&mut order);
    if let Err(error) = read {
        log::fail("bench-round", &format!("standard input: {error}"));
        return TROUBLE;
    }
    output::print_json(&round::serve(&order), DONE)
}

pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(Bench)
}

fn bench(args: &BenchArgs, backends: &[BackendKind], look: &Look) -> Result<u8, String> {
    let backends: Vec<&str> = backends.iter().map(|kind| kind.name()).collect();
    let Planned { plan, name, homes, notes } = plan::plan(args, &backends)?;
    if !args.quiet {
        notes.iter().for_each(|note| log::say(&format!("note: {note}")));
    }
    let signals = Signals::listen().map_err(|errno| format!("signals: {errno}"))?;
    let stopped = signals.clone();
    let stop: Arc<dyn Fn() -> bool + Send + Sync> = Arc::new(move || stopped.arrived().is_some());
    let targets = if plan.places.is_empty() {
        let path = TargetPath::of(&name)?;
        let overwrite = if args.overwrite { Overwrite::Allowed } else { Overwrite::NotAllowed };
        Targets::one(BenchTarget::new(path, &plan.jobs, (overwrite, stop))?)
    } else {
        Targets::of_each(&plan.places, &plan.jobs, &homes, &stop)?
    };
    let held = targets.held();
    let path = result_path(args)?;
    let (journal, reached) = journal(args, (&path, &plan))?;
    let mut result = ResultFile::new(&path)?;
    let mut progress = Progress::new(&plan, args.quiet);
    progress.skip(&reached);
    let stopped = signals.clone();
    let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
    let child = (program, vec!["bench-round".to_owned()]);
    let stop = Box::new(move || stopped.arrived().is_some());
    let mut machine = Machine::new(child, targets, &plan, stop);
    let mut lost = None;
    let ended = Campaign::new(&plan, &mut machine, (journal, reached)).run(&mut |event| {
        progress.update(event);
        if matches!(event, diopter_bench::bench::campaign::Event::RowEnds { .. }) {
            lost = lost.take().or(result.refresh().err());
        }
    });
    // Removes scratch files, mounts and loop devices before anything is printed.
    drop(machine);
    progress.finish();
    for file in held.iter().filter(|file| file.is_replaced()) {
        log::say(&format!(
            "warning: {} was replaced during the run; the rounds ran on the file that was named",
            file.shown()
        ));
    }
    let bench = assemble::read(&journal_of(&path))?;
    if let (Err(why), false) = (&ended, has_rounds(&bench)) {
        // There is nothing to keep or to resume.
        remove(&[path.clone(), journal_of(&path)])?;
        return Err(why.clone());
    }
    result.finish(ended == Ok(Ending::Whole))?;
    let ending = ended.map_err(|why| kept(&path, &why))?;
    if let Some(why) = lost {
        return Err(why);
    }
    report(args, (&path, &bench), look)?;
    match (ending, signals.arrived()) {
        (Ending::Interrupted, Some(signal)) => {
            log::say(&kept(&path, &format!("ended by {}", signal.name())));
            Ok(signal.exit_status())
        }
        _ => Ok(progress.status()),
    }
}

fn has_rounds(bench: &Bench) -> bool {
    bench.rows.iter().flat_map(|row| &row.cells).any(|cell| !cell.samples.is_empty())
}

fn remove(paths: &[PathBuf]) -> Result<(), String> {
    paths.iter().try_for_each(|path| {
        fs::remove_file(path).map_err(|error| format!("remove {}: {error}", untrusted::name(path)))
    })
}

fn kept(path: &Path, why: &str) -> String {
    let path = untrusted::name(path);
    format!("{why}; the rounds measured so far are in {path}, and --resume continues")
}

/// Writes the reports, and prints the result and the names of the files.
fn report(args: &BenchArgs, (path, bench): (&Path, &Bench), look: &Look) -> Result<(), String> {
    let comparison = compare::columns(bench, &Settings::default());
    let page = report::html(bench, Some(&comparison));
    let html = match &args.html {
        Some(html) => {
            write(html, &page)?;
            Some(html.clone())
        }
        // The document is what was asked for.
        None if args.json => None,
        None => {
            // The user did not choose this name: an existing file is replaced.
            let html = path.with_extension("html");
            whole::write(&html, |out| out.write_all(page.as_bytes()))
                .map_err(|error| unwritten(&html, &error))?;
            Some(html)
        }
    };
    if let Some(path) = &args.markdown {
        write(path, &untrusted::text(&report::markdown(bench, Some(&comparison))))?;
    }
    if let Some(path) = &args.csv {
        write(path, &report::csv(bench))?;
    }
    if args.json {
        let text = fs::read_to_string(path)
            .map_err(|error| format!("read {}: {error}", untrusted::name(path)))?;
        output::print_json(&text, DONE);
        return Ok(());
    }
    let look = look.of_figures(crate::terminal::columns());
    let style = TextStyle { columns: look.width, is_coloured: look.is_coloured };
    let mut text = report::text(bench, Some(&comparison), style);
    output::put(&mut text, &format!("\nResult: {}", untrusted::name(path)));
    if let Some(html) = html {
        output::put(&mut text, &format!("Report: {}", untrusted::name(html)));
    }
    look.print(&text, DONE);
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    whole::write_named(path, text.as_bytes()).map_err(|error| unwritten(path, &error))
}

fn unwritten(path: &Path, error: &std::io::Error) -> String {
    format!("write {}: {error}; choose another file", untrusted::name(path))
}

fn journal(args: &BenchArgs, (path, plan): (&Path, &Plan)) -> Result<(Journal, Reached), String> {
    let journal = journal_of(path);
    if args.resume {
        let (opened, begin, reached) = Journal::resume(&journal)?;
        if begin.plan != *plan {
            return Err(format!(
                "{} is from a run with another command line; use that command line, or remove the \
                 file",
                untrusted::name(&journal)
            ));
        }
        return Ok((opened, reached));
    }
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let begin = Begin {
        schema: SCHEMA.to_owned(),
        made_by: concat!("dio ", env!("CARGO_PKG_VERSION")).to_owned(),
        started_unix_ns: since.map_or(0, |since| u64::try_from(since.as_nanos()).unwrap_or(0)),
        plan: plan.clone(),
    };
    Ok((Journal::create(&journal, begin)?, Reached::default()))
}

/// Returns the path of the result: that of --json-out, or the first free number here. To resume:
/// the last one that was interrupted.
fn result_path(args: &BenchArgs) -> Result<PathBuf, String> {
    if let Some(path) = &args.json_out {
        return Ok(path.clone());
    }
    let name = |number: u32| match number {
        1 => PathBuf::from("dio-bench.json"),
        more => PathBuf::from(format!("dio-bench-{more}.json")),
    };
    let is_taken = |path: &PathBuf| path.exists() || journal_of(path).exists();
    let free = (1..=RESULTS_MAX).find(|number| !is_taken(&name(*number)));
    let free = free.ok_or("dio-bench.json and all its numbers exist; use --json-out")?;
    if !args.resume {
        return Ok(name(free));
    }
    let left = (1..free).rev().map(name).find(|path| journal_of(path).exists());
    left.ok_or_else(|| {
        "no interrupted run in this directory; omit --resume, or name its result with --json-out"
            .to_owned()
    })
}
