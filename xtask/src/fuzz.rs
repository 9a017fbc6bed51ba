//! Fuzz targets under libFuzzer, built by a stable compiler. A soak runs each and keeps the inputs
//! that it finds, and `cargo xtask fuzz` runs one target or replays an input. The lane checks that
//! they compile.

use std::fs::{self, File};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::repo::{self, Outcome};
use crate::run;

/// The flags of cargo-fuzz for libFuzzer's coverage; none of them needs a nightly compiler. No
/// AddressSanitizer: it does, and the parsers have no unsafe code that it could check.
const COVERAGE: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters \
    -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Lines of a failed run's log that are printed.
const LINES_SHOWN: usize = 40;

/// Figures of a run, from libFuzzer's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Log {
    executions: u64,
    /// Coverage after the start inputs, and at the end.
    coverage: (u64, u64),
    peak_mib: u64,
    /// The file with the input that failed.
    failed_input: Option<String>,
}

/// Builds all targets and runs each for `seconds`. Returns whether none failed, and the executions.
pub fn run_all(seconds: u64, seed: u64) -> Result<(bool, u64), String> {
    let targets = targets()?;
    let build = &mut build(&[]);
    println!("   {}", run::shown(build));
    if !run::to_the_end(build)?.0 {
        return Ok((false, 0));
    }
    println!("   {:<14} {:>10} {:>9} {:>14} {:>5}", "target", "runs", "/second", "coverage", "MiB");
    let (mut passed, mut executions) = (true, 0);
    // One for each processor at once: a target is one thread.
    let at_once = std::thread::available_parallelism().map_or(1, NonZero::get);
    for targets in targets.chunks(at_once) {
        for ran in together(targets, |target| run_one(target, seconds, seed)) {
            let (succeeded, log) = ran?;
            executions += log.executions;
            passed &= succeeded;
        }
    }
    Ok((passed, executions))
}

/// `cargo xtask fuzz TARGET [INPUT...|FLAG...]`: replays the inputs, or fuzzes with these flags of
/// libFuzzer from all inputs that were kept.
pub fn run(arguments: &[String]) -> Outcome {
    let targets = targets()?;
    let Some((target, rest)) = arguments.split_first().filter(|(one, _)| targets.contains(one))
    else {
        return Err(format!("name a target first; there are {}", targets.join(" ")));
    };
    if !run::to_the_end(&mut build(&["--bin", target]))?.0 {
        return Ok(false);
    }
    let mut command = Command::new(program(target));
    command.current_dir(repo::root()).args(limits(target)?).args(rest);
    if rest.iter().all(|argument| argument.starts_with('-')) {
        command.args(directories(target)?);
    }
    run::to_the_end(&mut command).map(|(succeeded, _)| succeeded)
}

/// The targets in `fuzz/fuzz_targets`.
fn targets() -> Result<Vec<String>, String> {
    let directory = repo::root().join("fuzz/fuzz_targets");
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    let mut names = Vec::new();
    for entry in fs::read_dir(&directory).map_err(failed)? {
        let name = entry.map_err(failed)?.file_name().to_string_lossy().into_owned();
        names.extend(name.strip_suffix(".rs").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// A separate directory: its flags would rebuild everything else.
fn build_dir() -> PathBuf {
    repo::target_dir().join("fuzz")
}

fn build(arguments: &[&str]) -> Command {
    let mut command = repo::cargo();
    command.args(["build", "--release", "--manifest-path", "fuzz/Cargo.toml"]);
    // Named, so that the flags are not applied to build scripts and macros.
    command.args(["--target", repo::TRIPLE]).args(arguments);
    command.env("RUSTFLAGS", COVERAGE).env("CARGO_TARGET_DIR", build_dir());
    command
}

fn program(target: &str) -> PathBuf {
    build_dir().join(repo::TRIPLE).join("release").join(target)
}

/// Returns the flags of every run: seconds for one input, memory in MiB, the directory of failed
/// inputs.
fn limits(target: &str) -> Result<[String; 3], String> {
    let found = build_dir().join("found").join(target);
    made(&found)?;
    let prefix = format!("-artifact_prefix={}/", found.display());
    Ok(["-timeout=10".to_owned(), "-rss_limit_mb=1024".to_owned(), prefix])
}

/// Returns the directories that a target reads inputs from: first that of the inputs that earlier
/// runs kept, which it adds new ones to.
fn directories(target: &str) -> Result<[PathBuf; 2], String> {
    let kept = build_dir().join("kept").join(target);
    made(&kept)?;
    Ok([kept, repo::root().join("fuzz/corpus").join(target)])
}

fn made(directory: &Path) -> Result<(), String> {
    fs::create_dir_all(directory).map_err(|error| format!("{}: {error}", directory.display()))
}

/// Calls `run` for each target in a thread, and returns the results in order.
fn together<T: Send>(targets: &[String], run: impl Fn(&str) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            targets.iter().map(|target| scope.spawn(|| run(target.as_str()))).collect();
        threads.into_iter().map(|thread| thread.join().expect("it does not panic")).collect()
    })
}

/// Runs one target that is built, and prints its line of the table.
fn run_one(target: &str, seconds: u64, seed: u64) -> Result<(bool, Log), String> {
    let (limits, directories) = (limits(target)?, directories(target)?);
    let is_first = fs::read_dir(&directories[0]).map_or(true, |mut kept| kept.next().is_none());
    let log_path = build_dir().join("found").join(format!("{target}.log"));
    let failed = |error: std::io::Error| format!("{target}, {}: {error}", log_path.display());
    let log = File::create(&log_path).map_err(failed)?;
    let mut command = Command::new(program(target));
    command.current_dir(repo::root()).args(limits);
    command.arg(format!("-max_total_time={seconds}")).arg("-print_final_stats=1");
    // 0 would be a seed of libFuzzer's choice.
    command.arg(format!("-seed={}", 1 + seed % u64::from(u32::MAX)));
    command.args(directories);
    command.stdout(log.try_clone().map_err(failed)?).stderr(log);
    let ended = command.status().map_err(failed)?;

    let text = fs::read(&log_path).map_err(failed)?;
    let text = String::from_utf8_lossy(&text);
    let log = read(&text);
    let (first, last) = log.coverage;
    println!(
        "   {target:<14} {:>10} {:>9} {:>14} {:>5}",
        log.executions,
        log.executions / seconds.max(1),
        format!("{first} -> {last}"),
        log.peak_mib
    );
    // From the seeds alone a target that does not grow does not reach its parser.
    let has_grown = !is_first || last > first;
    if ended.success() && has_grown {
        return Ok((true, log));
    }
    println!("{}", failure(&text));
    match &log.failed_input {
        Some(input) => println!("{target} failed: cargo xtask fuzz {target} {input}"),
        None if has_grown => println!("{target} failed: {ended}; see {}", log_path.display()),
        None => println!("{target} failed: no input reached more than the seeds did"),
    }
    Ok((false, log))
}

/// Returns the part of a log that begins with the panic or libFuzzer's error, else its end.
fn failure(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    let begins = |line: &&str| line.contains(" panicked at ") || line.contains("ERROR: libFuzzer");
    let tail = lines.len().saturating_sub(LINES_SHOWN);
    let first = lines.iter().position(begins).unwrap_or(tail);
    lines[first..].iter().take(LINES_SHOWN).copied().collect::<Vec<_>>().join("\n")
}

fn read(text: &str) -> Log {
    let mut log = Log::default();
    let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse().ok());
    for line in text.lines() {
        if let Some(statistic) = line.strip_prefix("stat::")
            && let Some((name, value)) = statistic.split_once(':')
        {
            match name {
                "number_of_executed_units" => log.executions = number(value).unwrap_or(0),
                "peak_rss_mb" => log.peak_mib = number(value).unwrap_or(0),
                _ => {}
            }
        } else if let Some((_, path)) = line.split_once("Test unit written to ") {
            log.failed_input = Some(path.to_owned());
        } else if line.starts_with('#')
            && let Some((event, coverage)) = line.split_once(" cov: ")
        {
            log.coverage.1 = number(coverage).unwrap_or(0);
            if event.trim_end().ends_with("INITED") {
                log.coverage.0 = log.coverage.1;
            }
        }
    }
    log
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_of_libfuzzer_is_read() {
        let text = "INFO: Seed: 7\n\
            #3\tINITED cov: 120 ft: 130 corp: 2/4b exec/s: 0 rss: 30Mb\n\
            #9\tNEW    cov: 121 ft: 131 corp: 3/6b lim: 4 exec/s: 0 rss: 30Mb L: 2/2 MS: 1\n\
            thread '<unnamed>' panicked at fuzz_targets/manifest.rs:11:5:\n\
            artifact_prefix='x/'; Test unit written to x/crash-0a\n\
            stat::number_of_executed_units: 812\n\
            stat::peak_rss_mb:              31\n";
        let expected = Log {
            executions: 812,
            coverage: (120, 121),
            peak_mib: 31,
            failed_input: Some("x/crash-0a".to_owned()),
        };
        assert_eq!(read(text), expected);
    }

    #[test]
    fn a_failure_is_shown_from_its_panic_on() {
        let noise = "#1\tNEW    cov: 1\n".repeat(LINES_SHOWN);
        let log = format!("{noise}thread 'x' panicked at a.rs:1:\nwhy\n{noise}");
        let shown = failure(&log);
        assert!(shown.starts_with("thread 'x' panicked at a.rs:1:\nwhy\n"), "{shown}");
        assert_eq!(shown.lines().count(), LINES_SHOWN);
        assert_eq!(failure("one\ntwo"), "one\ntwo");
    }

    #[test]
    fn every_target_is_built_and_has_seeds() {
        let manifest = fs::read_to_string(repo::root().join("fuzz/Cargo.toml")).unwrap();
        let targets = targets().unwrap();
        assert!(targets.len() >= 8, "{targets:?}");
        for target in targets {
            assert!(manifest.contains(&format!("name = \"{target}\"")), "{target} is not built");
            let seeds = fs::read_dir(repo::root().join("fuzz/corpus").join(&target)).unwrap();
            assert!(seeds.count() >= 2, "{target} has no seeds");
        }
    }
}
