//! Runs one command, passes its output through, and reads from it what a summary needs: how many
//! tests passed and what they skipped. It decides nothing.

use diopter_skip::Capability;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Command, Stdio};

/// A line `SKIP <capability>: <why>` that a test printed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Skip {
    pub capability: Capability,
    pub why: String,
}

/// A line `TRIED <campaign>: <count> <unit>` that a test printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tried {
    pub campaign: String,
    pub count: u64,
}

/// The lines of a command's output that a summary needs.
#[derive(Default)]
pub struct Tally {
    pub tests_passed: u64,
    pub skips: Vec<Skip>,
    /// The names in lines of skips that are not a capability.
    pub unknown: Vec<String>,
    pub tried: Vec<Tried>,
}

/// The command as a person would type it, with the variables that it is given on purpose.
pub fn shown(command: &Command) -> String {
    let mut words: Vec<String> = Vec::new();
    for (name, value) in command.get_envs() {
        if let Some(value) = value {
            let value = value.to_string_lossy();
            words.push(format!("{}={}", name.to_string_lossy(), quoted(&value)));
        }
    }
    words.push(match std::path::Path::new(command.get_program()).file_name() {
        Some(name) => name.to_string_lossy().into_owned(),
        None => command.get_program().to_string_lossy().into_owned(),
    });
    words.extend(command.get_args().map(|word| quoted(&word.to_string_lossy())));
    words.join(" ")
}

/// Runs the command to its end. Returns true, with the tally, if it succeeded.
pub fn to_the_end(command: &mut Command) -> Result<(bool, Tally), String> {
    tallied(command, std::io::stdout(), std::io::stderr())
}

/// The same without the output, which may hold lines that another tally must not count.
#[cfg(test)]
pub fn in_silence(command: &mut Command) -> Result<(bool, Tally), String> {
    tallied(command, std::io::sink(), std::io::sink())
}

fn tallied(
    command: &mut Command,
    mut to_stdout: impl Write,
    mut to_stderr: impl Write + Send + 'static,
) -> Result<(bool, Tally), String> {
    let mut child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| format!("{} does not start: {error}", shown(command)))?;
    let stdout = child.stdout.take().expect("stdout is piped above");
    let stderr = child.stderr.take().expect("stderr is piped above");
    let errors = std::thread::spawn(move || pass_through(stderr, &mut to_stderr));
    let mut tally = pass_through(stdout, &mut to_stdout);
    let from_errors = errors.join().map_err(|_| "the thread reading stderr panicked".to_owned())?;
    tally.tests_passed += from_errors.tests_passed;
    tally.skips.extend(from_errors.skips);
    tally.unknown.extend(from_errors.unknown);
    tally.tried.extend(from_errors.tried);
    let status = child.wait().map_err(|error| format!("{}: {error}", shown(command)))?;
    Ok((status.success(), tally))
}

fn quoted(word: &str) -> String {
    if word.contains(' ') { format!("\"{word}\"") } else { word.to_owned() }
}

fn pass_through(from: impl Read, to: &mut impl Write) -> Tally {
    let mut tally = Tally::default();
    let mut reader = BufReader::new(from);
    let mut line = Vec::new();
    loop {
        line.clear();
        match reader.read_until(b'\n', &mut line) {
            Ok(0) | Err(_) => return tally,
            Ok(_) => {}
        }
        // A closed terminal must not stop the tally, so a failed write is passed over.
        to.write_all(&line).ok();
        tally.read(&String::from_utf8_lossy(&line));
    }
}

impl Tally {
    fn read(&mut self, line: &str) {
        if let Some(rest) = line.trim_start().strip_prefix("test result: ") {
            self.tests_passed += passed(rest).unwrap_or(0);
        }
        // Libtest may have begun the line. Anywhere else in a line it is source text that a
        // compiler or a formatter shows.
        let line = line.trim_start();
        let after = |word: &str| {
            let begun = format!(" ... {word}");
            line.strip_prefix(word).or_else(|| Some(line.split_once(begun.as_str())?.1))
        };
        if let Some(rest) = after("TRIED ")
            && let Some((campaign, count)) = rest.split_once(": ")
            && let Some(Ok(count)) = count.split_whitespace().next().map(str::parse)
        {
            self.tried.push(Tried { campaign: campaign.to_owned(), count });
        }
        if let Some(rest) = after("SKIP ")
            && let Some((capability, why)) = rest.split_once(": ")
        {
            match Capability::from_name(capability) {
                Some(capability) => {
                    self.skips.push(Skip { capability, why: why.trim().to_owned() })
                }
                None => self.unknown.push(capability.to_owned()),
            }
        }
    }
}

fn passed(result: &str) -> Option<u64> {
    let (before, _) = result.split_once(" passed")?;
    before.rsplit(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tally_counts_passed_tests_and_collects_skips() {
        let mut tally = Tally::default();
        for line in [
            "test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured; 3 filtered out",
            "test a_name ... SKIP xfs: no mkfs.xfs",
            "SKIP uring: the kernel forbids it\n",
            "nothing to SKIP in this line: none",
            "3 |     eprintln!(\"SKIP loop: not as root\");",
            "SKIP ext5: this kernel has none",
        ] {
            tally.read(line);
        }
        tally.read("TRIED model: 250 seeds\n");
        tally.read("test a_name ... TRIED oracle: 7 requests");
        tally.read("nothing was TRIED model: 3 seeds");
        let tried: Vec<_> =
            tally.tried.iter().map(|one| (one.campaign.as_str(), one.count)).collect();
        assert_eq!(tried, [("model", 250), ("oracle", 7)]);
        let skips: Vec<Capability> = tally.skips.iter().map(|skip| skip.capability).collect();
        assert_eq!(tally.tests_passed, 12);
        assert_eq!(skips, [Capability::Xfs, Capability::Uring]);
        assert_eq!(tally.skips[1].why, "the kernel forbids it");
        assert_eq!(tally.unknown, ["ext5"]);
    }

    #[test]
    fn a_command_is_shown_as_it_would_be_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command.arg("test").env("RUSTFLAGS", "--cfg diopter_loom");
        assert_eq!(shown(&command), "RUSTFLAGS=\"--cfg diopter_loom\" cargo test");
    }
}
