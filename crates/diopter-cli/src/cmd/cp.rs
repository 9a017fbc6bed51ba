//! `dio cp`: the command around the copy engine of `diopter-copy`. It listens for signals, shows
//! progress, and prints failures and the document.

use std::io::Write;
use std::path::Path;
use std::time::Instant;

use diopter_copy::{Ended, Failure, Left, Report};
use diopter_text::untrusted;

use super::progress::Progress;
use crate::args::CpOptions;
use crate::log;
use crate::signals::Signals;

/// Copies and returns the exit status: 0 done, 1 verify found a difference, 2 something failed,
/// 128+n ended by signal n.
pub fn run(options: &CpOptions, output: &mut dyn Write) -> u8 {
    let started = Instant::now();
    diopter_copy::raise_open_files_limit();
    let signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(errno) => {
            let on = Path::new("this process");
            let failure = Failure::of_errno("listening for signals", on, errno);
            log::line(&format!("dio cp: {failure}"));
            return conclude(options, &Report::of_failure(&failure, started.elapsed()), output);
        }
    };
    let mut progress = Progress::new("cp", options.progress);
    let outcome = diopter_copy::copy(&options.copy, signals.flag(), &mut progress);
    progress.finish();
    if let Some(ended) = &outcome.ended {
        log::line(&format!("dio cp: {}", ending(ended, options.copy.resume)));
    }
    conclude(options, &outcome.report, output)
}

/// The JSON Schema of what `--json` prints.
pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(Report)
}

/// Returns the last line of a run that a signal ended: what it left, and what to do.
fn ending(ended: &Ended, has_resume: bool) -> String {
    let name = ended.signal.name();
    let remedy = match &ended.left {
        Left::PartlyWritten(target) => {
            let target = untrusted::name(target);
            return format!("ended by {name}: {target} is partly written; run the command again");
        }
        Left::Unchanged if has_resume => "run the same command again to continue",
        Left::Unchanged => "pass --resume to continue an interrupted copy",
        _ => "run the command again",
    };
    format!("ended by {name}: the destination is unchanged; {remedy}")
}

/// Prints the document, if it is wanted, and returns the exit status.
fn conclude(options: &CpOptions, report: &Report, output: &mut dyn Write) -> u8 {
    if !options.json {
        return report.exit_status;
    }
    let text = serde_json::to_string_pretty(report).expect("strings and numbers are JSON");
    match writeln!(output, "{}", untrusted::json(&text)).and_then(|()| output.flush()) {
        Ok(()) => report.exit_status,
        Err(error) => {
            let failure = Failure::of_io("writing", Path::new("standard output"), &error);
            log::line(&format!("dio cp: {failure}"));
            report.exit_status.max(2)
        }
    }
}
