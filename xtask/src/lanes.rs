//! The lanes of CI as a table, and the loop that runs them. A lane is data; what a lane does is in
//! its commands, what the machine lacks is in `capability.rs`.

use crate::capability::{self, Capability, Probe};
use crate::repo::Outcome;
use crate::{book, debian, deny, fuzz, interface, repo, run, tidy};
use std::collections::BTreeMap;
use std::fmt::Write;
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
    /// The documentation site.
    Book,
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

const ASYNC_ON_NIGHTLY: &[&str] = &[
    "test",
    "--target",
    repo::TRIPLE,
    "-p",
    "diopter",
    "--features",
    "tokio",
    "--test",
    "async_files",
];

const CONTRACT_ON_NIGHTLY: &[&str] =
    &["test", "--target", repo::TRIPLE, "-p", "diopter", "--test", "all", "--", "contract::"];

const ENGINE: &[&str] = &[
    "test",
    "-p",
    "diopter",
    "--test",
    "all",
    "--",
    "engine::",
    "bounced::",
    "completion::",
    "depth::",
    "route::",
    "reader::",
];

/// Benchmarks must run, not be fast: as the tests are built, which is done already.
const SMOKE: &[&str] = &[
    "bench",
    "--profile",
    "dev",
    "-p",
    "diopter",
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
    "completion",
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
    Lane {
        needs: &[Capability::Book],
        ..plain("book", &[Step { work: Work::Book, ..check(&[]) }])
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
            check(&["run", "-p", "diopter-copy", "--example", "copy_file"]),
            check(&["run", "-p", "diopter-text", "--example", "escape"]),
            Step {
                variables: &[("RUSTDOCFLAGS", "-Dwarnings")],
                ..check(&["doc", "--workspace", "--no-deps", "--all-features"])
            },
        ],
    ),
    plain("plan", &[test(&["test", "-p", "diopter", "--test", "all", "plan::"])]),
    Lane {
        uses: BACKENDS,
        ..plain("contract", &[test(&["test", "-p", "diopter", "--test", "all", "contract::"])])
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
                sanitized(ASYNC_ON_NIGHTLY),
                sanitized(CONTRACT_ON_NIGHTLY),
            ],
        )
    },
    Lane {
        uses: &[Capability::Uring],
        ..plain("polling", &[test(&["test", "-p", "diopter", "--test", "all", "polling::"])])
    },
    plain("engine", &[test(ENGINE)]),
    plain("striped", &[test(&["test", "-p", "diopter", "--test", "all", "striped::"])]),
    plain("lustre", &[test(&["test", "-p", "diopter", "--test", "all", "lustre::"])]),
    plain("model", &[test(&["test", "-p", "diopter", "--test", "all", "model::"])]),
    Lane {
        uses: &[Capability::Loop, Capability::Ext4],
        ..plain("layout", &[test(&["test", "-p", "diopter", "--test", "all", "layout::"])])
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
            ..test(&[
                "test",
                "-p",
                "diopter-core",
                "--profile",
                "ci",
                "--lib",
                "--",
                "handoff",
                "gate",
            ])
        }],
    ),
    plain(
        "shuttle",
        &[Step {
            variables: &[("RUSTFLAGS", "--cfg shuttle")],
            target_below: Some("shuttle"),
            ..test(&["test", "-p", "diopter-core", "--profile", "ci", "--lib", "--", "workers"])
        }],
    ),
    plain("compare", &[test(COMPARE)]),
    Lane {
        uses: &[Capability::Fio],
        ..plain("bench-dio", &[test(BENCH_DIO), check(SMOKE_PARITY)])
    },
    plain("golden", &[test(GOLDEN), test(&["test", "-p", "diopter-copy", "--test", "observer"])]),
    Lane {
        name: "kernel",
        needs: &[Capability::Loop, Capability::Ext4, Capability::Xfs],
        uses: BACKENDS,
        steps: &[test(&[
            "test",
            "-p",
            "diopter",
            "--profile",
            "ci",
            "--test",
            "devices",
            "--",
            "--nocapture",
            "kernel::",
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
            "--profile",
            "ci",
            "--test",
            "devices",
            "--",
            "--nocapture",
            "images_ext::",
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
            "--profile",
            "ci",
            "--test",
            "devices",
            "--",
            "--nocapture",
            "images_xfs::",
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
            "--profile",
            "ci",
            "--test",
            "devices",
            "--",
            "--nocapture",
            "images::",
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

/// The lanes of `make test`: what a change of the library or of a page needs most often. They take
/// less than ten minutes on two cores where dependencies are built.
const QUICK: [&str; 15] = [
    "fmt", "clippy", "tidy", "unit", "doc", "plan", "contract", "async", "polling", "engine",
    "striped", "lustre", "model", "layout", "process",
];

/// The crates that a release would upload, in the order of it. They are not built once more.
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

/// The command's tests, except those with separate lanes.
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
    /// The skips of its tests, and how often each was printed.
    skips: BTreeMap<run::Skip, u32>,
}

/// The arguments of every lane of a run.
struct Context {
    seed: u64,
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
    let (seed, source) = repo::seed()?;
    println!("seed {seed} ({source}); the same again: DIOPTER_SEED={seed} cargo xtask ci");
    let wanted: Vec<Capability> =
        lanes.iter().flat_map(|lane| lane.needs.iter().chain(lane.uses)).copied().collect();
    debian::provide(&wanted);
    if wanted.contains(&Capability::Deny) {
        deny::provide();
    }
    if wanted.contains(&Capability::Book) {
        book::provide();
    }
    let probes = capability::probe_all();
    let have = capability::have(&probes);
    println!("this machine has: {have}");

    let environment = environment(seed, &have);
    let context = Context { seed, environment, required, execute: run::to_the_end };
    let mut rows = Vec::new();
    for lane in lanes {
        let started = Instant::now();
        println!("\n== {}", lane.name);
        let mut skips = BTreeMap::new();
        let verdict = match missing(lane, &probes, &context.required) {
            Some(verdict) => verdict,
            None => run_steps(lane, &context, &mut skips),
        };
        let took = started.elapsed();
        println!("== {} {} in {:.1} s", lane.name, word(&verdict), took.as_secs_f64());
        rows.push(Row { name: lane.name, verdict, took, skips });
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
        println!("{:<10} {:<15} {}", lane.name, needs, commands.join("; "));
    }
    true
}

fn chosen(names: &[String]) -> Result<Vec<&'static Lane>, String> {
    let is_quick = |lane: &&Lane| QUICK.contains(&lane.name);
    let all = LANES.iter().filter(|lane| !lane.is_extra);
    match names {
        [] => return Ok(all.collect()),
        [part] if part == "--quick" => return Ok(all.filter(is_quick).collect()),
        [part] if part == "--rest" => return Ok(all.filter(|lane| !is_quick(lane)).collect()),
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
            Work::Fuzz => {
                let ran = fuzz::run_all(FUZZ_SECONDS, context.seed, fuzz::Start::Seeds);
                ran.map(|(passed, _)| (passed, run::Tally::default()))
            }
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
        Work::Book => "mdbook build, of docs/ and the help of dio".to_owned(),
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

fn summary(rows: &[Row]) -> String {
    let mut lines = format!("\n{:<10} {:<8} {:>8}  why\n", "lane", "result", "seconds");
    for row in rows {
        let why = match &row.verdict {
            Verdict::Passed => "",
            Verdict::Failed(why) | Verdict::Skipped(why) => why.as_str(),
        };
        let (word, seconds) = (word(&row.verdict), row.took.as_secs_f64());
        let line = format!("{:<10} {word:<8} {seconds:>8.1}  {why}", row.name);
        lines = lines + line.trim_end() + "\n";
        for (skip, count) in &row.skips {
            let times = if *count == 1 { "1 skip" } else { &format!("{count} skips") };
            let (capability, why) = (skip.capability, &skip.why);
            writeln!(lines, "{:29}{times} of tests, {capability}: {why}", "").expect("memory");
        }
    }
    let count = |name| rows.iter().filter(|row| word(&row.verdict) == name).count();
    let (passed, failed, skipped) = (count("passed"), count("failed"), count("skipped"));
    let skips: u32 = rows.iter().flat_map(|row| row.skips.values()).sum();
    lines
        + &format!("{passed} passed, {failed} failed, {skipped} skipped; {skips} skips of tests\n")
}

#[cfg(test)]
mod tests;
