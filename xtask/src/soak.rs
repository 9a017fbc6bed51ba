//! Runs of the tests that are not lanes: `soak` (long, with a fresh seed) and `bless` (golden files
//! rewritten). What the variables mean to a test is the test's to say.

use crate::{Outcome, capability, repo, run};
use std::io::Read;
use std::process::Command;

/// How long each test target goes on without `--seconds`.
const SECONDS: u64 = 600;

const SOAKED: &[&[&str]] = &[
    &["-p", "diopter", "--test", "model"],
    &["-p", "diopter", "--test", "contract"],
    &["-p", "diopter", "--test", "kernel"],
    &["-p", "diopter", "--test", "images_xfs"],
    &["-p", "diopter", "--test", "images_ext"],
    &["-p", "diopter", "--test", "images"],
    &["-p", "diopter-cli", "--test", "cp"],
    &["-p", "diopter-lab", "--test", "campaign"],
];

const BLESSED: &[&[&str]] = &[
    &["-p", "diopter", "--test", "plan"],
    &["-p", "diopter-lab", "--test", "report"],
    &["-p", "diopter-cli", "--tests"],
];

/// `cargo xtask soak`: the seeded tests, long, with a seed that nobody has tried yet.
pub fn run(arguments: &[String]) -> Outcome {
    let (seed, seconds) = parse(arguments)?;
    let seed = match seed {
        Some(seed) => seed,
        None => fresh_seed()?,
    };
    let replay = format!("cargo xtask soak --seed {seed} --seconds {seconds}");
    println!("seed {seed}; the same again: {replay}");
    let have = capability::have(&capability::probe_all());
    let mut failed = Vec::new();
    for target in SOAKED {
        let mut command = repo::cargo();
        command.args(["test", "--release"]).args(*target).args(["--", "--nocapture"]);
        command.env("DIOPTER_SOAK", "1").env("DIOPTER_SEED", seed.to_string());
        command.env("DIOPTER_SOAK_SECONDS", seconds.to_string()).env("DIOPTER_HAVE", &have);
        if !told_and_run(&mut command)? {
            failed.push(target.join(" "));
        }
    }
    if failed.is_empty() {
        println!("soak passed; seed {seed}");
    } else {
        println!("soak failed in {}; replay: {replay}", failed.join(", "));
    }
    Ok(failed.is_empty())
}

/// `cargo xtask bless`: the golden files become what the code prints now; read the diff.
pub fn bless() -> Outcome {
    let mut all_passed = true;
    for target in BLESSED {
        let mut command = repo::cargo();
        command.arg("test").args(*target).env("DIOPTER_BLESS", "1");
        all_passed &= told_and_run(&mut command)?;
    }
    println!("blessed; `git diff` shows what changed, and each change wants a reason");
    Ok(all_passed)
}

fn told_and_run(command: &mut Command) -> Outcome {
    println!("   {}", run::shown(command));
    run::to_the_end(command).map(|(succeeded, _)| succeeded)
}

fn parse(arguments: &[String]) -> Result<(Option<u64>, u64), String> {
    let (mut seed, mut seconds) = (None, SECONDS);
    for pair in arguments.chunks(2) {
        let [name, value] = pair else {
            return Err(format!("`{}` wants a number after it", pair[0]));
        };
        let value = value.parse().map_err(|_| format!("{name} {value}: not a number"))?;
        match name.as_str() {
            "--seed" => seed = Some(value),
            "--seconds" => seconds = value,
            _ => return Err(format!("soak knows --seed and --seconds, not `{name}`")),
        }
    }
    Ok((seed, seconds))
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

    fn parsed(line: &str) -> Result<(Option<u64>, u64), String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn seed_and_seconds_are_read_and_anything_else_is_refused() {
        assert_eq!(parsed("--seed 7 --seconds 60"), Ok((Some(7), 60)));
        assert_eq!(parsed(""), Ok((None, SECONDS)));
        for wrong in ["--seed", "--seed x", "--sead 7"] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
