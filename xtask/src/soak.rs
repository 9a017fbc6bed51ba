//! `cargo xtask soak`: everything seeded or random, as campaigns with goals. Each piece of work is
//! bounded, has a fresh seed and is recorded in a ledger, so that a soak can stop at any time and
//! the next one adds to it. What a variable means to a test is the test's to say.

mod ledger;

use std::io::Read;
use std::time::{Duration, Instant};

use crate::capability::{Capability, PACKAGE_NEEDS};
use crate::repo::Outcome;
use crate::{capability, debian, fuzz, package, repo, run, tools};
use ledger::{Entry, Ledger, Sources};

/// How long a soak takes without `--seconds`.
const SECONDS: u64 = 1800;

/// Seconds of each fuzz target in one piece.
const FUZZ_SECONDS: u64 = 30;

/// Something to do many times, with another seed each time.
pub struct Campaign {
    pub name: &'static str,
    /// The unit of its totals.
    pub unit: &'static str,
    /// How many there should be in total.
    pub goal: u64,
    /// The sources that it tries: a change elsewhere does not make it start again.
    pub tries: Sources,
    work: Work,
}

enum Work {
    /// `cargo test` with these arguments and variables.
    Test(&'static [&'static str], &'static [(&'static str, &'static str)]),
    /// Every fuzz target.
    Fuzz,
    /// Every way of installing, as root, where there is what the lane of this name needs.
    Packages,
}

const SOAK: (&str, &str) = ("DIOPTER_SOAK", "1");

/// Tests that print no count are one run each time.
pub const CAMPAIGNS: &[Campaign] = &[
    Campaign {
        name: "model",
        unit: "seeds",
        goal: 200_000,
        tries: Sources::Engine,
        work: Work::Test(
            &["--profile=ci", "-p", "diopter", "--test=all", "--", "--nocapture", "model::random"],
            &[("DIOPTER_SEEDS", "2500")],
        ),
    },
    Campaign {
        name: "oracle",
        unit: "requests",
        goal: 1_000_000,
        tries: Sources::Engine,
        work: Work::Test(
            &["--profile=ci", "-p", "diopter", "--test=devices", "--", "--nocapture", "kernel::"],
            &[("DIOPTER_CHECK", "no difference"), ("DIOPTER_ORACLE_COUNT", "4000")],
        ),
    },
    Campaign {
        name: "writer-kills",
        unit: "kills",
        goal: 1_000,
        tries: Sources::Engine,
        work: Work::Test(
            &["--profile=ci", "-p", "diopter", "--test=devices", "--", "--nocapture", "kernel::"],
            &[("DIOPTER_CHECK", "killed writer")],
        ),
    },
    Campaign {
        name: "cp-kills",
        unit: "kills",
        goal: 1_000,
        tries: Sources::Copy,
        work: Work::Test(
            &["-p", "diopter-cli", "--test", "cp_interrupt", "--", "--nocapture", "kill_9"],
            &[],
        ),
    },
    Campaign {
        name: "power-cut",
        unit: "states",
        goal: 2_000,
        tries: Sources::Copy,
        work: Work::Test(
            &["-p", "diopter-cli", "--test", "power_cut", "--", "--nocapture"],
            &[SOAK],
        ),
    },
    Campaign {
        name: "guest",
        unit: "kernels",
        goal: 4,
        tries: Sources::Copy,
        work: Work::Test(&["-p", "diopter-cli", "--test", "guest", "--", "--nocapture"], &[SOAK]),
    },
    Campaign {
        name: "refused",
        unit: "cells",
        goal: 10_000,
        tries: Sources::Doors,
        work: Work::Test(
            &["-p", "diopter-testkit", "--test", "nets", "--", "--nocapture", "refused::with"],
            &[SOAK],
        ),
    },
    Campaign {
        name: "full",
        unit: "cells",
        goal: 5_000,
        tries: Sources::Doors,
        work: Work::Test(
            &["-p", "diopter-testkit", "--test", "nets", "--", "--nocapture", "full::on"],
            &[SOAK],
        ),
    },
    Campaign {
        name: "fuzz",
        unit: "executions",
        goal: 5_000_000,
        tries: Sources::Parsers,
        work: Work::Fuzz,
    },
    Campaign {
        name: "contract",
        unit: "runs",
        goal: 20,
        tries: Sources::Engine,
        work: Work::Test(&["--profile=ci", "-p", "diopter", "--test=all", "contract::"], &[]),
    },
    Campaign {
        name: "storms",
        unit: "runs",
        goal: 20,
        tries: Sources::Engine,
        work: Work::Test(&["-p", "diopter-os", "--lib", "--", "storm", "life"], &[]),
    },
    Campaign {
        name: "fork",
        unit: "runs",
        goal: 20,
        tries: Sources::Engine,
        work: Work::Test(&["-p", "diopter", "--test", "process"], &[]),
    },
    Campaign {
        name: "images",
        unit: "files",
        goal: 10_000,
        tries: Sources::Library,
        work: Work::Test(
            &[
                "--profile=ci",
                "-p",
                "diopter",
                "--test=devices",
                "--",
                "--nocapture",
                "images::agreement",
            ],
            &[],
        ),
    },
    Campaign {
        name: "damaged-images",
        unit: "images",
        goal: 100_000,
        tries: Sources::Parsers,
        work: Work::Test(
            &[
                "--profile=ci",
                "-p",
                "diopter",
                "--test=devices",
                "--",
                "--nocapture",
                "images_ext::wrong",
            ],
            &[],
        ),
    },
    Campaign {
        name: "damaged-xfs",
        unit: "images",
        goal: 10_000,
        tries: Sources::Parsers,
        work: Work::Test(
            &[
                "--profile=ci",
                "-p",
                "diopter",
                "--test=devices",
                "--",
                "--nocapture",
                "images_xfs::mutat",
            ],
            &[],
        ),
    },
    Campaign {
        name: "statistics",
        unit: "runs",
        goal: 3,
        tries: Sources::Judge,
        work: Work::Test(&["--release", "-p", "diopter-bench", "--test", "campaign"], &[SOAK]),
    },
    Campaign {
        name: "packages",
        unit: "runs",
        goal: 1,
        tries: Sources::Packages,
        work: Work::Packages,
    },
];

/// The targets of `cargo xtask bless`.
const BLESSED: &[&[&str]] = &[
    &["-p", "diopter", "--test", "all", "plan::"],
    &["-p", "diopter-bench", "--test", "report_text"],
    &["-p", "diopter-images", "--lib", "xfs::"],
    &["-p", "diopter-trace", "--lib", "summary::"],
    &["-p", "diopter-cli", "--tests"],
    &["-p", "diopter-c", "--test", "c", "header::"],
];

/// The command line.
#[derive(Debug, PartialEq, Eq)]
struct Options {
    seed: Option<u64>,
    seconds: u64,
    /// One campaign alone.
    only: Option<String>,
}

/// `cargo xtask soak`: works on the campaign that is furthest from its goal, piece by piece, until
/// the time has passed, and prints the table of everything so far.
pub fn run(arguments: &[String]) -> Outcome {
    if arguments == ["--table"] {
        print!("{}", Ledger::open()?.table());
        return Ok(true);
    }
    let options = parse(arguments)?;
    let mut ledger = Ledger::open()?;
    debian::provide(Capability::ALL);
    let have = capability::have(&capability::probe_all());
    let started = Instant::now();
    let mut stopped: Vec<&str> = Vec::new();
    let mut replays = Vec::new();
    let mut pieces = 0_u64;
    while started.elapsed() < Duration::from_secs(options.seconds) {
        let open = CAMPAIGNS.iter().filter(|one| !stopped.contains(&one.name));
        let open = open.filter(|one| options.only.as_ref().is_none_or(|only| only == one.name));
        let Some(campaign) = open.min_by_key(|one| ledger.per_mille(one)) else { break };
        let seed = match options.seed {
            Some(seed) => seed.wrapping_add(pieces),
            None => fresh_seed()?,
        };
        if let Some(why) = campaign.missing() {
            println!("skipped: {}, {why}", campaign.name);
            stopped.push(campaign.name);
            continue;
        }
        pieces += 1;
        let label = campaign.tries.label()?;
        let entry = piece(campaign, seed, &have)?;
        if entry.tried == 0 || !entry.passed {
            stopped.push(campaign.name);
            let reason = if entry.passed { "tried nothing" } else { "failed" };
            let name = campaign.name;
            replays.push(format!("{name} {reason}: cargo xtask soak --only {name} --seed {seed}"));
        }
        if label.is_none() || label != campaign.tries.label()? {
            println!("not recorded: {} tries sources with uncommitted changes", campaign.name);
            stopped.push(campaign.name);
            continue;
        }
        ledger.add(entry)?;
    }
    print!("{}", ledger.table());
    for replay in &replays {
        println!("{replay}");
    }
    Ok(replays.is_empty())
}

impl Campaign {
    /// Why the machine cannot run it, if so. A test decides for itself what it skips.
    fn missing(&self) -> Option<String> {
        let Work::Packages = self.work else { return None };
        if !repo::is_root() {
            return Some("it makes root directories: run it as root".to_owned());
        }
        tools::provide(PACKAGE_NEEDS);
        lacking(&capability::probe_all())
    }
}

/// The first of what packages need that was not found, with the reason.
fn lacking(probes: &[capability::Probe]) -> Option<String> {
    let mut needed = probes.iter().filter(|probe| PACKAGE_NEEDS.contains(&probe.capability));
    needed.find_map(|probe| {
        let why = probe.missing.as_ref()?;
        Some(format!("{}: {why}", probe.capability.name()))
    })
}

/// One bounded piece of a campaign.
fn piece(campaign: &Campaign, seed: u64, have: &str) -> Result<Entry, String> {
    let started = Instant::now();
    let (passed, tried) = match campaign.work {
        Work::Test(arguments, variables) => {
            let mut command = repo::cargo();
            command.arg("test").args(arguments).envs(variables.iter().copied());
            command.env("DIOPTER_SEED", seed.to_string()).env("DIOPTER_HAVE", have);
            println!("   {}", run::shown(&command));
            let (passed, tally) = run::to_the_end(&mut command)?;
            let counted: u64 = tally.tried.iter().map(|one| one.count).sum();
            let runs = u64::from(tally.tests_passed > 0);
            (passed, if campaign.unit == "runs" { runs } else { counted })
        }
        Work::Fuzz => fuzz::run_all(FUZZ_SECONDS, seed)?,
        Work::Packages => match package::check() {
            Ok(passed) => (passed, 1),
            Err(why) => {
                println!("packages: {why}");
                (false, 1)
            }
        },
    };
    let seconds = started.elapsed().as_secs();
    Ok(Entry { campaign: campaign.name.to_owned(), seed, tried, seconds, passed })
}

/// `cargo xtask bless`: the golden files become what the code prints now; read the diff.
pub fn bless() -> Outcome {
    let mut all_passed = true;
    for target in BLESSED {
        let mut command = repo::cargo();
        command.arg("test").args(*target).env("SNAPSHOTS", "overwrite");
        println!("   {}", run::shown(&command));
        all_passed &= run::to_the_end(&mut command)?.0;
    }
    println!("blessed; `git diff` shows what changed, and each change wants a reason");
    Ok(all_passed)
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options { seed: None, seconds: SECONDS, only: None };
    for pair in arguments.chunks(2) {
        let [name, value] = pair else {
            return Err(format!("`{}` wants a value after it", pair[0]));
        };
        let number = || value.parse().map_err(|_| format!("{name} {value}: not a number"));
        match name.as_str() {
            "--seed" => options.seed = Some(number()?),
            "--seconds" => options.seconds = number()?,
            "--only" if CAMPAIGNS.iter().any(|one| one.name == value) => {
                options.only = Some(value.clone());
            }
            "--only" => {
                let names: Vec<&str> = CAMPAIGNS.iter().map(|one| one.name).collect();
                return Err(format!("no campaign `{value}`; there are {}", names.join(" ")));
            }
            _ => return Err(format!("soak takes --seed, --seconds, --only, not `{name}`")),
        }
    }
    Ok(options)
}

fn fresh_seed() -> Result<u64, String> {
    let mut bytes = [0; 8];
    std::fs::File::open("/dev/urandom")
        .and_then(|mut file| file.read_exact(&mut bytes))
        .map_err(|error| format!("/dev/urandom: {error}; give --seed N"))?;
    Ok(u64::from_le_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_anything_else_is_refused() {
        let some = Options { seed: Some(7), seconds: 60, only: Some("model".to_owned()) };
        assert_eq!(parsed("--seed 7 --seconds 60 --only model"), Ok(some));
        let none = Options { seed: None, seconds: SECONDS, only: None };
        assert_eq!(parsed(""), Ok(none));
        for wrong in ["--seed", "--seed x", "--sead 7", "--only modal"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn packages_are_skipped_by_the_name_of_what_is_missing() {
        let probes = |absent: Option<Capability>| -> Vec<capability::Probe> {
            let probe = |capability: &Capability| {
                let missing = (absent == Some(*capability)).then(|| "not here".to_owned());
                capability::Probe { capability: *capability, missing }
            };
            Capability::ALL.iter().map(probe).collect()
        };
        assert_eq!(lacking(&probes(None)), None);
        assert_eq!(lacking(&probes(Some(Capability::Xfs))), None);
        for needed in PACKAGE_NEEDS {
            let why = format!("{}: not here", needed.name());
            assert_eq!(lacking(&probes(Some(*needed))), Some(why));
        }
    }

    #[test]
    fn every_campaign_has_its_own_name() {
        for (index, campaign) in CAMPAIGNS.iter().enumerate() {
            let before = &CAMPAIGNS[..index];
            assert!(before.iter().all(|other| other.name != campaign.name), "{}", campaign.name);
        }
    }
}
