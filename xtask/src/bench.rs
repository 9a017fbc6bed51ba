//! `cargo xtask bench`: builds `dio` and the bench `numbers`, and becomes it. What is measured, and
//! how, is in `crates/diopter/benches/numbers`.

use crate::repo::{self, Outcome};
use crate::run;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The variable that holds the path of the built `dio` for the bench.
const DIO: &str = "DIOPTER_DIO";

/// Builds, then runs the numbers in this process's place, so that Ctrl-C is theirs alone.
pub fn run(arguments: &[String]) -> Outcome {
    build_dio()?;
    let numbers = build_numbers()?;
    let mut command = Command::new(&numbers);
    command.args(arguments).env(DIO, repo::target_dir().join("release/dio"));
    // On success this does not return: the process is the bench from here on.
    Err(format!("{}: {}", numbers.display(), command.exec()))
}

fn build_dio() -> Result<(), String> {
    let mut command = repo::cargo();
    command.args(["build", "--release", "--quiet", "-p", "diopter-cli"]);
    match command.status() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{}: {status}", run::shown(&command))),
        Err(error) => Err(format!("cargo does not start: {error}")),
    }
}

fn build_numbers() -> Result<PathBuf, String> {
    let mut command = repo::cargo();
    command.args(["bench", "--quiet", "-p", "diopter", "--bench", "numbers", "--no-run"]);
    command.args(["--features", "tokio"]);
    command.arg("--message-format=json").stdin(Stdio::null()).stderr(Stdio::inherit());
    let output = command.output().map_err(|error| format!("cargo does not start: {error}"))?;
    if !output.status.success() {
        return Err(format!("{}: {}", run::shown(&command), output.status));
    }
    let reply = String::from_utf8_lossy(&output.stdout);
    reply.lines().find_map(executable).ok_or_else(|| "cargo names no executable".to_owned())
}

/// The program that a line of cargo's messages says it has built; without a JSON parser, which
/// this crate has no need of otherwise.
fn executable(line: &str) -> Option<PathBuf> {
    let (_, rest) = line.split_once(r#""executable":""#)?;
    let (path, _) = rest.split_once('"')?;
    Some(PathBuf::from(path)).filter(|_| line.contains(r#""name":"numbers""#))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_executable_is_read_from_cargos_messages() {
        let line = r#"{"target":{"name":"numbers"},"executable":"/a/numbers-1","fresh":true}"#;
        assert_eq!(executable(line), Some(PathBuf::from("/a/numbers-1")));
        assert_eq!(executable(&line.replace("\"numbers\"", "\"other\"")), None);
        assert_eq!(executable(r#"{"target":{"name":"numbers"},"executable":null}"#), None);
    }
}
