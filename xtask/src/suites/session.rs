//! One run of a suite: its directory, the mode, and how a program is started in it. It knows no
//! suites.

use crate::repo;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};

/// Seconds after which a program is killed.
const SECONDS_MAX: &str = "1800";
/// Lines at the end of a program's output that a message holds.
const TAIL_LINES: usize = 12;
/// The first line of the report that `dio run` appends to standard error.
const REPORT: &str = "dio run:";
/// The account for programs that refuse to run as root.
const USER: &str = "nobody";

/// How the programs of a suite run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    Plain,
    /// Under `dio run`.
    Run,
    /// Under `dio run --all`, where a file is large from one page on.
    All,
    /// Under `dio run`, with O_DIRECT on each file.
    Direct,
}

impl Mode {
    pub const WITH: [Mode; 3] = [Mode::Run, Mode::All, Mode::Direct];

    /// Returns the mode of an option.
    pub fn named(name: &str) -> Result<Mode, String> {
        match name {
            "run" => Ok(Mode::Run),
            "all" => Ok(Mode::All),
            "direct" => Ok(Mode::Direct),
            _ => Err(format!("--mode is run, all or direct, not `{name}`")),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Mode::Plain => "plain",
            Mode::Run => "dio run",
            Mode::All => "dio run --all",
            Mode::Direct => "dio run, O_DIRECT",
        }
    }
}

/// How a test of a suite ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Passed,
    Failed,
    Skipped,
}

/// The result of a test. Both parts have to be the same with and without the library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    pub verdict: Verdict,
    /// A checksum, or a message.
    pub detail: String,
}

impl Outcome {
    pub fn passed(detail: &str) -> Outcome {
        Outcome { verdict: Verdict::Passed, detail: detail.to_owned() }
    }

    pub fn failed(detail: &str) -> Outcome {
        Outcome { verdict: Verdict::Failed, detail: detail.to_owned() }
    }

    pub fn skipped() -> Outcome {
        Outcome { verdict: Verdict::Skipped, detail: String::new() }
    }

    /// Returns `Passed` if `holds`, else `Failed` with the detail.
    pub fn of(holds: bool, detail: &str) -> Outcome {
        if holds { Outcome::passed("") } else { Outcome::failed(detail) }
    }
}

/// The results of a run by the names of the tests.
pub type Results = BTreeMap<String, Outcome>;

/// The programs under test, where each account can read them.
pub struct Programs {
    pub dio: PathBuf,
    pub library: PathBuf,
    pub open_direct: PathBuf,
}

/// The counters of the library's report.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Requests that the kernel had refused.
    pub requests: u64,
    /// Bytes that left the page cache.
    pub uncached: u64,
}

/// One run of a suite in an empty directory.
pub struct Session<'a> {
    pub programs: &'a Programs,
    pub mode: Mode,
    pub is_quick: bool,
    pub seed: u64,
    /// An empty directory on the file system.
    pub dir: PathBuf,
    /// The program or the directory that the suite fetched or built.
    pub tool: Option<&'a Path>,
    pub work: Mutex<Work>,
}

/// A program that has run.
pub struct Ran {
    /// The exit status; `None` after a signal.
    pub code: Option<i32>,
    /// Standard output, then standard error.
    pub text: String,
}

impl Ran {
    pub fn is_success(&self) -> bool {
        self.code == Some(0)
    }

    /// Returns the last lines of the output, on one.
    pub fn tail(&self) -> String {
        let lines: Vec<&str> = self.text.lines().map(str::trim).collect();
        let last = &lines[lines.len().saturating_sub(TAIL_LINES)..];
        format!("status {:?}: {}", self.code, last.join(" / "))
    }
}

impl Session<'_> {
    /// Returns a path in the directory.
    pub fn path(&self, name: &str) -> String {
        self.dir.join(name).to_string_lossy().into_owned()
    }

    /// Returns the program that was fetched or built.
    pub fn tool(&self) -> String {
        self.tool.expect("the suite prepares it").to_string_lossy().into_owned()
    }

    /// Runs a program to its end.
    pub fn run(&self, words: &[&str]) -> Result<Ran, String> {
        self.start(&[], words)
    }

    /// The same with another account than root's, to which the directory is given.
    pub fn run_unprivileged(&self, words: &[&str]) -> Result<Ran, String> {
        let account = format!("{USER}:");
        repo::output_of(Command::new("chown").arg(account).arg(&self.dir))?;
        let group = repo::output_of(Command::new("id").args(["-g", USER]))?;
        let by = ["setpriv", "--reuid", USER, "--regid", &group, "--clear-groups"];
        self.start(&by, words)
    }

    fn start(&self, by: &[&str], words: &[&str]) -> Result<Ran, String> {
        let mut command = Command::new("timeout");
        command.args(["--kill-after=10", SECONDS_MAX]).args(by);
        if self.mode != Mode::Plain {
            command.arg(&self.programs.dio).args(["run", "--report", "--preload"]);
            command.arg(&self.programs.library);
            if self.mode == Mode::All {
                command.args(["--all", "--min-size", "4K"]);
            }
            command.arg("--");
        }
        if self.mode == Mode::Direct {
            command.env("SUITES_DIRECT", &self.dir).env("LD_PRELOAD", &self.programs.open_direct);
        }
        command.args(words).current_dir(&self.dir).stdin(Stdio::null());
        command.env("LC_ALL", "C").env("NO_COLOR", "1");
        let output =
            command.output().map_err(|error| format!("timeout does not start: {error}"))?;
        let errors = String::from_utf8_lossy(&output.stderr);
        let (errors, report) = split_report(&errors);
        let more = Work::parse(report);
        let mut work = self.work.lock().unwrap_or_else(PoisonError::into_inner);
        work.requests += more.requests;
        work.uncached += more.uncached;
        drop(work);
        let text = String::from_utf8_lossy(&output.stdout).into_owned() + errors;
        Ok(Ran { code: output.status.code(), text })
    }

    /// Returns the checksum of a file, read past the program and the library.
    pub fn checksum(&self, name: &str) -> Result<String, String> {
        let sum = repo::output_of(Command::new("sha256sum").arg(self.dir.join(name)))?;
        Ok(sum.split(' ').next().unwrap_or_default().to_owned())
    }

    /// Writes a file of the suite's configuration.
    pub fn write(&self, name: &str, text: &str) -> Result<String, String> {
        let path = self.path(name);
        fs::write(&path, text).map_err(|error| format!("{path}: {error}"))?;
        Ok(path)
    }
}

/// Splits standard error into the program's and the report of `dio run`.
fn split_report(text: &str) -> (&str, &str) {
    // A program may leave its last line open.
    let start = text.rfind(&format!("{REPORT}\n")).unwrap_or(text.len());
    text.split_at(start)
}

impl Work {
    fn parse(report: &str) -> Work {
        let mut work = Work::default();
        for line in report.lines() {
            let Some((number, what)) = line.trim().split_once("  ") else { continue };
            let number = number.parse::<u64>().unwrap_or(0);
            if what.starts_with("requests served") {
                work.requests += number;
            }
            let is_uncached = ["bytes written with", "bytes written, ", "bytes read and dropped"];
            if is_uncached.iter().any(|start| what.starts_with(start)) {
                work.uncached += number;
            }
        }
        work
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_no_part_of_the_programs_output() {
        let text = "one\ndio run:\n  12  requests served that the kernel had refused with EINVAL\n \
                    8  bytes written with RWF_DONTCACHE\n 4  bytes read and dropped from the page \
                    cache\n";
        let (errors, report) = split_report(text);
        assert_eq!(errors, "one\n");
        assert_eq!(Work::parse(report), Work { requests: 12, uncached: 12 });
        assert_eq!(split_report("one\n"), ("one\n", ""));
        assert_eq!(split_report("10 %\rdio run:\n  1").0, "10 %\r");
        assert_eq!(split_report("dio run:\n  nothing").0, "");
    }
}
