//! pjdfstest: what POSIX asks of the calls on names, modes, owners and times.

use super::session::{Outcome, Results, Session, Verdict};

/// Accounts that Debian always has; a short nap is longer than the granularity of timestamps.
const CONFIGURATION: &str = "\
[features]
posix_fallocate = {}
utimensat = {}
utime_now = {}
rename_ctime = {}
[settings]
naptime = 0.02
[dummy_auth]
entries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]
";

/// The parts of the quick variant.
const QUICK: [&str; 4] = ["open", "truncate", "ftruncate", "posix_fallocate"];

pub fn run(session: &Session) -> Result<Results, String> {
    let configuration = session.write("pjdfstest.toml", CONFIGURATION)?;
    let (tool, dir) = (session.tool(), session.path(""));
    let mut words = vec![tool.as_str(), "-c", &configuration, "-p", &dir];
    if session.is_quick {
        words.extend(QUICK);
    }
    let ran = session.run(&words)?;
    let results = parse(&ran.text);
    if results.is_empty() { Err(ran.tail()) } else { Ok(results) }
}

fn parse(text: &str) -> Results {
    let mut results = Results::new();
    for line in text.lines().filter(|line| !line.starts_with(char::is_whitespace)) {
        let mut words = line.split_whitespace();
        let (Some(name), Some(word), None) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let verdict = match word {
            "ok" => Verdict::Passed,
            "FAILED" => Verdict::Failed,
            "skipped" => Verdict::Skipped,
            _ => continue,
        };
        results.insert(name.to_owned(), Outcome { verdict, detail: String::new() });
    }
    results
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_from_the_lines_of_tests() {
        let text = "chmod::a   ok\nchmod::b  FAILED\n\tassertion failed: ok\nlink::c   skipped\n\t\
                    requires features: x\n\nSummary: 1 failed, 1 skipped, 1 passed, 3 total\n";
        let results = parse(text);
        let verdicts: Vec<_> = results.values().map(|outcome| outcome.verdict).collect();
        assert_eq!(verdicts, [Verdict::Passed, Verdict::Failed, Verdict::Skipped]);
    }
}
