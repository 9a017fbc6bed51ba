//! The lanes of CI as a table, and the loop that runs them. A lane is data; what a lane does is in
//! its commands, what the machine lacks is in `capability.rs`.

use crate::Outcome;
use crate::capability::{self, Capability, Probe};
use crate::{debian, deny, fuzz, interface, repo, run, tidy};
use std::process::Command;
use std::time::{Duration, Instant};

/// One named check. `needs`: without them the lane is skipped. `uses`: without them some of its
/// tests skip themselves. In both, one that is required and missing fails the lane.
struct Lane {
    name: &'static str,
    needs: &'static [Capability],
    uses: &'static [Capability],
    steps: &'static [Step],
    /// Only run when it is named.
    is_extra: bool,
}

/// One command of a lane.
struct Step {
    work: Work,
    /// Fails if no test ran: a filter that matches nothing must not look like success.
    must_test: bool,
    /// Variables that this command alone gets.
    variables: &'static [(&'static str, &'static str)],
    /// Directory below cargo's target directory, so that other flags do not rebuild everything
    /// twice.
    target_below: Option<&'static str>,
}

enum Work {
    Tidy,
    Cargo(&'static [&'static str]),
    Nightly(&'static [&'static str]),
    /// Licenses, sources and advisories of what is built.
    Deny,
    /// Every fuzz target, from its seeds.
    Fuzz,
    /// Each combination of the features of `diopter`.
    Features,
    /// The published crates with the oldest compiler.
    OldestCompiler,
    /// The public interface against its snapshot.
    Interface,
}

const BACKENDS: &[Capability] = &[Capability::Uring, Capability::Aio, Capability::Threads];

const CLIPPY_WITH_TOKIO: &[&str] =
    &["clippy", "-p", "diopter", "--all-targets", "--features", "tokio", "--", "-D", "warnings"];

const ASYNC_AND_CONTRACT: &[&str] = &[
    "test",
    "--target",
    repo::TRIPLE,
    "-p",
    "diopter",
    "--features",
    "tokio",
    "--test",
    "async_files",
    "--test",
    "contract",
];

const ENGINE: &[&str] = &[
    "test",
    "-p",
    "diopter",
    "--test",
    "engine",
    "--test",
    "completion",
    "--test",
    "depth",
    "--test",
    "route",
    "--test",
    "reader",
];

/// Benchmarks must run, not be fast: as the tests are built, which is done already.
const SMOKE: &[&str] = &[
    "bench",
    "--profile",
    "dev",
    "-p",
    "diopter",
    "--bench",
    "engine",
    "--bench",
    "completion",
    "--bench",
    "backends",
    "--bench",
    "stripes",
    "--bench",
    "readers",
    "--bench",
    "images",
    "--",
    "--smoke",
];

const SMOKE_NUMBERS: &[&str] = &[
    "bench",
    "--profile",
    "dev",
    "-p",
    "diopter",
    "--bench",
    "numbers",
    "--",
    "--smoke",
    "striped",
    "bios",
    "null",
];

const COMPARE: &[&str] = &[
    "test",
    "-p",
    "diopter-bench",
    "--test",
    "campaign",
    "--test",
    "fio_files",
    "--test",
    "verdicts",
];
const BENCH_DIO: &[&str] =
    &["test", "-p", "diopter-bench", "--test", "bench", "--test", "bench_memory"];

const SMOKE_PARITY: &[&str] =
    &["bench", "--profile", "dev", "-p", "diopter-bench", "--bench", "parity", "--", "--smoke"];

const LANES: &[Lane] = &[
    plain("fmt", &[check(&["fmt", "--all", "--check"])]),
    plain("clippy", &[check(&["clippy", "--workspace", "--all-targets", "--", "-D", "warnings"])]),
    plain("tidy", &[Step { work: Work::Tidy, ..check(&[]) }]),
    Lane {
        needs: &[Capability::Deny],
        ..plain("deny", &[Step { work: Work::Deny, ..check(&[]) }])
    },
    plain("features", &[Step { work: Work::Features, ..check(&[]) }]),
    Lane {
        needs: &[Capability::Msrv],
        ..plain("msrv", &[Step { work: Work::OldestCompiler, ..check(&[]) }])
    },
    Lane {
        needs: &[Capability::Nightly, Capability::PublicApi],
        ..plain("api", &[Step { work: Work::Interface, ..check(&[]) }])
    },
    plain("build", &[check(&["build", "--release", "-p", "diopter-cli"])]),
    plain("package", &[check(PACKAGE)]),
    plain("unit", &[test(&["test", "--workspace", "--lib", "--bins"])]),
    plain(
        "doc",
        &[
            check(&["test", "--workspace", "--doc"]),
            check(&["run", "-p", "diopter", "--example", "read_write"]),
            check(&["run", "-p", "diopter", "--example", "many_in_flight"]),
            check(&["run", "-p", "diopter", "--example", "futures"]),
            Step {
                variables: &[("RUSTDOCFLAGS", "-Dwarnings")],
                ..check(&["doc", "--workspace", "--no-deps", "--all-features"])
            },
        ],
    ),
    plain("plan", &[test(&["test", "-p", "diopter", "--test", "plan"])]),
    Lane {
        uses: BACKENDS,
        ..plain("contract", &[test(&["test", "-p", "diopter", "--test", "contract"])])
    },
    Lane {
        uses: BACKENDS,
        ..plain(
            "async",
            &[
                test(&["test", "-p", "diopter", "--test", "async_files"]),
                test(&["test", "-p", "diopter", "--features", "tokio", "--test", "async_files"]),
                check(CLIPPY_WITH_TOKIO),
            ],
        )
    },
    Lane {
        needs: &[Capability::Nightly],
        uses: BACKENDS,
        is_extra: true,
        ..plain(
            "asan",
            &[
                sanitized(&["test", "--target", repo::TRIPLE, "-p", "diopter-os", "--lib"]),
                sanitized(ASYNC_AND_CONTRACT),
            ],
        )
    },
    Lane {
        uses: &[Capability::Uring],
        ..plain("polling", &[test(&["test", "-p", "diopter", "--test", "polling"])])
    },
    plain("engine", &[test(ENGINE)]),
    plain("striped", &[test(&["test", "-p", "diopter", "--test", "striped"])]),
    plain("lustre", &[test(&["test", "-p", "diopter", "--test", "lustre"])]),
    plain("model", &[test(&["test", "-p", "diopter", "--test", "model"])]),
    Lane {
        uses: &[Capability::Loop, Capability::Ext4],
        ..plain("layout", &[test(&["test", "-p", "diopter", "--test", "layout"])])
    },
    Lane {
        uses: BACKENDS,
        ..plain("process", &[test(&["test", "-p", "diopter", "--test", "process"])])
    },
    plain(
        "loom",
        &[Step {
            variables: &[("RUSTFLAGS", "--cfg diopter_loom")],
            target_below: Some("loom"),
            ..test(&["test", "-p", "diopter-core", "--release", "--lib", "--", "handoff", "gate"])
        }],
    ),
    plain(
        "shuttle",
        &[Step {
            variables: &[("RUSTFLAGS", "--cfg shuttle")],
            target_below: Some("shuttle"),
            ..test(&["test", "-p", "diopter-core", "--release", "--lib", "--", "workers"])
        }],
    ),
    plain("compare", &[test(COMPARE)]),
    Lane {
        uses: &[Capability::Fio],
        ..plain("bench-dio", &[test(BENCH_DIO), check(SMOKE_PARITY)])
    },
    plain("golden", &[test(GOLDEN)]),
    Lane {
        name: "kernel",
        needs: &[Capability::Loop, Capability::Ext4, Capability::Xfs],
        uses: BACKENDS,
        steps: &[test(&[
            "test",
            "-p",
            "diopter",
            "--release",
            "--test",
            "kernel",
            "--",
            "--nocapture",
        ])],
        is_extra: false,
    },
    Lane {
        name: "images-ext",
        needs: &[Capability::Loop, Capability::Ext4],
        uses: &[],
        steps: &[test(&[
            "test",
            "-p",
            "diopter",
            "--release",
            "--test",
            "images_ext",
            "--",
            "--nocapture",
        ])],
        is_extra: false,
    },
    Lane {
        name: "images-xfs",
        needs: &[Capability::Loop, Capability::Xfs],
        uses: &[],
        steps: &[test(&[
            "test",
            "-p",
            "diopter",
            "--release",
            "--test",
            "images_xfs",
            "--",
            "--nocapture",
        ])],
        is_extra: false,
    },
    Lane {
        name: "images",
        needs: &[Capability::Loop, Capability::Ext4, Capability::Xfs],
        uses: BACKENDS,
        steps: &[test(&[
            "test",
            "-p",
            "diopter",
            "--release",
            "--test",
            "images",
            "--",
            "--nocapture",
        ])],
        is_extra: false,
    },
    Lane {
        needs: &[
            Capability::Tracefs,
            Capability::Fio,
            Capability::Loop,
            Capability::Ext4,
            Capability::Xfs,
        ],
        uses: &[Capability::Uring, Capability::Aio],
        ..plain(
            "trace",
            &[test(&["test", "-p", "diopter-trace", "--test", "trace", "--", "--nocapture"])],
        )
    },
    Lane {
        needs: &[Capability::Fuse],
        uses: &[Capability::Uring],
        ..plain("slow", &[test(&["test", "-p", "diopter", "--test", "slow", "--", "--nocapture"])])
    },
    plain("report", &[test(&["test", "-p", "diopter-bench", "--test", "report"])]),
    Lane { needs: &[Capability::Chromium], ..plain("report-page", &[test(REPORT_PAGE)]) },
    plain("lab-host", &[test(LAB_HOST)]),
    Lane { needs: &[Capability::Qemu], ..plain("lab", &[test(LAB)]) },
    Lane { needs: &[Capability::Qemu], ..plain("guest", &[test(GUEST)]) },
    Lane {
        needs: &[Capability::Qemu, Capability::Loop, Capability::Ext4, Capability::Xfs],
        ..plain("power-cut", &[test(POWER_CUT)])
    },
    plain("bench", &[check(SMOKE), check(SMOKE_NUMBERS)]),
    Lane { needs: &[Capability::Cxx], ..plain("fuzz", &[Step { work: Work::Fuzz, ..check(&[]) }]) },
];

/// What a release would upload, in the order of it. It is not built once more.
const PACKAGE: &[&str] = &["publish", "--workspace", "--dry-run", "--no-verify", "--allow-dirty"];

/// Seconds of each fuzz target.
const FUZZ_SECONDS: u64 = 15;

/// The page of a report in a real browser.
const REPORT_PAGE: &[&str] =
    &["test", "-p", "diopter-bench", "--test", "report_page", "--", "--nocapture"];

const LAB_HOST: &[&str] = &[
    "test",
    "-p",
    "diopter-lab",
    "--test",
    "lab_machine",
    "--test",
    "lab_store",
    "--test",
    "lab_run",
];

/// The command's tests, but for those of lanes of their own.
const GOLDEN: &[&str] = &[
    "test",
    "-p",
    "diopter-cli",
    "--tests",
    "--",
    "--skip",
    "a_power_cut_leaves",
    "--skip",
    "dio_serves_",
];

/// `dio` on another kernel, with disks that this machine does not have.
const GUEST: &[&str] = &["test", "-p", "diopter-cli", "--test", "guest", "--", "--nocapture"];

/// Disks after power cuts, recorded in an emulator.
const POWER_CUT: &[&str] =
    &["test", "-p", "diopter-cli", "--test", "power_cut", "--", "--nocapture"];

/// A real kernel, in an emulator.
const LAB: &[&str] = &["test", "-p", "diopter-lab", "--test", "lab", "--", "--nocapture"];

const fn plain(name: &'static str, steps: &'static [Step]) -> Lane {
    Lane { name, needs: &[], uses: &[], steps, is_extra: false }
}

const fn check(arguments: &'static [&'static str]) -> Step {
    Step { work: Work::Cargo(arguments), must_test: false, variables: &[], target_below: None }
}

/// Tests under AddressSanitizer. What leaks does so on purpose: what the kernel may still write to.
const fn sanitized(arguments: &'static [&'static str]) -> Step {
    Step {
        work: Work::Nightly(arguments),
        variables: &[("RUSTFLAGS", "-Zsanitizer=address"), ("ASAN_OPTIONS", "detect_leaks=0")],
        target_below: Some("asan"),
        ..test(&[])
    }
}

const fn test(arguments: &'static [&'static str]) -> Step {
    Step { work: Work::Cargo(arguments), must_test: true, variables: &[], target_below: None }
}

/// What became of a lane.
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
    skips: Vec<run::Skip>,
}

/// `cargo xtask ci [LANE...]`: runs the lanes and prints the summary.
pub fn run(names: &[String]) -> Outcome {
    let lanes = chosen(names)?;
    let required = capability::required()?;
    let (seed, source) = repo::seed()?;
    println!("seed {seed} ({source}); the same again: DIOPTER_SEED={seed} cargo xtask ci");
    let wanted: Vec<Capability> =
        lanes.iter().flat_map(|lane| lane.needs.iter().chain(lane.uses)).copied().collect();
    debian::provide(&wanted);
    if wanted.contains(&Capability::Deny) {
        deny::provide();
    }
    let probes = capability::probe_all();
    let have = capability::have(&probes);
    println!("this machine has: {have}");

    let mut rows = Vec::new();
    for lane in lanes {
        let started = Instant::now();
        println!("\n== {}", lane.name);
        let mut skips = Vec::new();
        let verdict = match missing(lane, &probes, &required) {
            Some(verdict) => verdict,
            None => run_steps(lane, seed, &environment(seed, &have), &required, &mut skips),
        };
        skips.sort();
        skips.dedup();
        let took = started.elapsed();
        println!("== {} {} in {:.1} s", lane.name, word(&verdict), took.as_secs_f64());
        rows.push(Row { name: lane.name, verdict, took, skips });
    }
    print_summary(&rows);
    Ok(rows.iter().all(|row| !matches!(row.verdict, Verdict::Failed(_))))
}

/// `cargo xtask lanes`: the table, one lane a line.
pub fn list() -> bool {
    for lane in LANES {
        let needs: Vec<&str> = lane.needs.iter().map(|need| need.name()).collect();
        let needs = if needs.is_empty() { String::new() } else { needs.join(", ") };
        let commands: Vec<String> = lane.steps.iter().map(|step| shown(step, &[])).collect();
        println!("{:<10} {:<15} {}", lane.name, needs, commands.join("; "));
    }
    true
}

fn chosen(names: &[String]) -> Result<Vec<&'static Lane>, String> {
    if names.is_empty() {
        return Ok(LANES.iter().filter(|lane| !lane.is_extra).collect());
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

/// The variables that every command of every lane gets.
fn environment(seed: u64, have: &str) -> [(&'static str, String); 2] {
    [("DIOPTER_SEED", seed.to_string()), ("DIOPTER_HAVE", have.to_owned())]
}

/// Why a lane cannot run or must not count as run, if so.
fn missing(lane: &Lane, probes: &[Probe], required: &[Capability]) -> Option<Verdict> {
    let why = |probe: &Probe| probe.missing.clone().map(|why| (probe.capability, why));
    let absent: Vec<(Capability, String)> = probes.iter().filter_map(why).collect();
    let told = |(capability, why): &(Capability, String)| format!("{}: {why}", capability.name());
    let wanted = |capability| lane.needs.contains(capability) || lane.uses.contains(capability);
    let must = absent.iter().find(|(found, _)| required.contains(found) && wanted(found));
    if let Some(absent) = must {
        return Some(Verdict::Failed(format!("required and missing, {}", told(absent))));
    }
    let needed = absent.iter().find(|(found, _)| lane.needs.contains(found));
    needed.map(|absent| Verdict::Skipped(told(absent)))
}

fn run_steps(
    lane: &Lane,
    seed: u64,
    environment: &[(&'static str, String)],
    required: &[Capability],
    skips: &mut Vec<run::Skip>,
) -> Verdict {
    for step in lane.steps {
        println!("   {}", shown(step, environment));
        let ended = match &step.work {
            Work::Tidy => tidy::run().map(|clean| (clean, run::Tally::default())),
            Work::Deny => deny::check().map(|clean| (clean, run::Tally::default())),
            Work::Fuzz => {
                let ran = fuzz::run_all(FUZZ_SECONDS, seed, fuzz::Start::Seeds);
                ran.map(|(passed, _)| (passed, run::Tally::default()))
            }
            Work::Features => interface::features().map(|clean| (clean, run::Tally::default())),
            Work::OldestCompiler => {
                interface::oldest_compiler().map(|clean| (clean, run::Tally::default()))
            }
            Work::Interface => interface::compare().map(|clean| (clean, run::Tally::default())),
            Work::Cargo(_) | Work::Nightly(_) => run::to_the_end(&mut command(step, environment)),
        };
        let (succeeded, tally) = match ended {
            Ok(ended) => ended,
            Err(message) => return Verdict::Failed(message),
        };
        skips.extend(tally.skips);
        if !succeeded {
            return Verdict::Failed(format!("see above: {}", shown(step, &[])));
        }
        if step.must_test && tally.tests_passed == 0 {
            return Verdict::Failed(format!("no test ran: {}", shown(step, &[])));
        }
    }
    let forbidden = |skip: &&run::Skip| required.iter().any(|must| must.name() == skip.capability);
    match skips.iter().find(forbidden) {
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
        | Work::Fuzz
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
        Work::Deny => "cargo-deny check, of the workspace and of fuzz/".to_owned(),
        Work::Fuzz => format!("every target of fuzz/ for {FUZZ_SECONDS} s"),
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

fn print_summary(rows: &[Row]) {
    println!("\n{:<10} {:<8} {:>8}  why", "lane", "result", "seconds");
    for row in rows {
        let why = match &row.verdict {
            Verdict::Passed => "",
            Verdict::Failed(why) | Verdict::Skipped(why) => why.as_str(),
        };
        let line = format!(
            "{:<10} {:<8} {:>8.1}  {why}",
            row.name,
            word(&row.verdict),
            row.took.as_secs_f64()
        );
        println!("{}", line.trim_end());
        for skip in &row.skips {
            println!(
                "{:<10} {:<8} {:>8}  tests skipped, {}: {}",
                "", "", "", skip.capability, skip.why
            );
        }
    }
    let count = |name| rows.iter().filter(|row| word(&row.verdict) == name).count();
    let (passed, failed, skipped) = (count("passed"), count("failed"), count("skipped"));
    println!("{passed} passed, {failed} failed, {skipped} skipped");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kernel() -> &'static Lane {
        chosen(&["kernel".to_owned()]).expect("the table has it")[0]
    }

    fn without(capability: Capability) -> Vec<Probe> {
        vec![Probe { capability, missing: Some("not here".to_owned()) }]
    }

    #[test]
    fn every_lane_has_a_name_of_its_own_and_something_to_do() {
        for (index, lane) in LANES.iter().enumerate() {
            assert!(!lane.steps.is_empty(), "{}", lane.name);
            assert!(LANES[..index].iter().all(|before| before.name != lane.name), "{}", lane.name);
        }
    }

    #[test]
    fn a_wrong_lane_is_an_error_that_names_the_lanes() {
        let answer = chosen(&["kernal".to_owned()]).map(|_| ());
        assert!(answer.is_err_and(|message| message.contains("kernel")));
    }

    #[test]
    fn a_lane_is_skipped_without_what_it_needs() {
        let verdict = missing(kernel(), &without(Capability::Loop), &[]);
        assert_eq!(verdict, Some(Verdict::Skipped("loop: not here".to_owned())));
    }

    #[test]
    fn a_lane_runs_without_what_only_some_of_its_tests_use() {
        assert_eq!(missing(kernel(), &without(Capability::Uring), &[]), None);
    }

    #[test]
    fn a_lane_fails_without_what_is_required() {
        for capability in [Capability::Xfs, Capability::Uring] {
            let verdict = missing(kernel(), &without(capability), &[capability]);
            assert!(matches!(verdict, Some(Verdict::Failed(_))));
        }
    }
}
