//! What is told on standard error, and the filter over it: `warn`, `debug`, `cp=debug,off`. A log
//! line is for people; no script may rely on one.

use std::fmt;
use std::io::Write;

use diopter_bench::untrusted;

/// How important a line is, the most important first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// What failed.
    Error,
    /// What is odd, and goes on.
    Warn,
    /// What is done.
    Info,
    /// What was decided, and why.
    Debug,
}

/// Parts of the command that can be filtered by name.
const TARGETS: [&str; 8] = ["args", "bench", "cp", "explain", "lab", "probe", "stripe", "trace"];

/// Which lines are told: per part, and for the rest. `None` is nothing at all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    rest: Option<Level>,
    by_target: Vec<(&'static str, Option<Level>)>,
}

/// Why a text is no filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilterError(String);

impl Level {
    const ALL: [Level; 4] = [Level::Error, Level::Warn, Level::Info, Level::Debug];

    fn name(self) -> &'static str {
        match self {
            Level::Error => "error",
            Level::Warn => "warn",
            Level::Info => "info",
            Level::Debug => "debug",
        }
    }
}

impl Default for Filter {
    /// Warnings and errors.
    fn default() -> Filter {
        Filter { rest: Some(Level::Warn), by_target: Vec::new() }
    }
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for FilterError {}

impl Filter {
    /// Takes `LEVEL` or `PART=LEVEL`, several with commas between, the later one counting.
    ///
    /// # Errors
    /// [`FilterError`] with the levels or parts there are.
    pub fn parse(text: &str) -> Result<Filter, FilterError> {
        let mut filter = Filter::default();
        for word in text.split(',').map(str::trim) {
            match word.split_once('=') {
                None => filter.rest = level_of(word)?,
                Some((part, level)) => {
                    let target = target_of(part)?;
                    filter.by_target.retain(|(known, _)| *known != target);
                    filter.by_target.push((target, level_of(level)?));
                }
            }
        }
        Ok(filter)
    }

    /// Whether a line of this importance is told.
    pub fn passes(&self, target: &str, level: Level) -> bool {
        let own = self.by_target.iter().find(|(known, _)| *known == target);
        let most = own.map_or(self.rest, |(_, level)| *level);
        most.is_some_and(|most| level <= most)
    }

    /// Tells a line, if it passes. `line` is only made then.
    pub fn log(&self, target: &'static str, level: Level, line: impl FnOnce() -> String) {
        if self.passes(target, level) {
            say(&match level {
                Level::Warn => format!("warning: {}", line()),
                Level::Error | Level::Info | Level::Debug => line(),
            });
        }
    }
}

/// One message on standard error. One that nobody can read is lost: there is no better place to
/// tell.
pub fn say(message: &str) {
    line(&format!("dio: {message}"));
}

/// Says that a command failed.
pub fn fail(command: &str, message: &str) {
    line(&format!("dio {command}: {message}"));
}

/// One line on standard error, without what a terminal would act on. All that is printed there goes
/// through this or [`put`].
pub fn line(text: &str) {
    put(&format!("{}\n", untrusted::text(text)));
}

/// Text on standard error that is escaped already. An error is not reported: there is no better
/// place to report it.
pub fn put(text: &str) {
    std::io::stderr().lock().write_all(text.as_bytes()).ok();
}

fn level_of(word: &str) -> Result<Option<Level>, FilterError> {
    if word == "off" {
        return Ok(None);
    }
    let found = Level::ALL.into_iter().find(|level| level.name() == word);
    found.map(Some).ok_or_else(|| {
        let all: Vec<&str> = Level::ALL.into_iter().map(Level::name).collect();
        FilterError(format!("`{word}` is no level; there are off, {}", all.join(", ")))
    })
}

fn target_of(word: &str) -> Result<&'static str, FilterError> {
    TARGETS.into_iter().find(|target| *target == word).ok_or_else(|| {
        FilterError(format!("dio has no part `{word}`; there are {}", TARGETS.join(", ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(text: &str, target: &str) -> Vec<&'static str> {
        let filter = Filter::parse(text).unwrap();
        let all = Level::ALL.into_iter();
        all.filter(|level| filter.passes(target, *level)).map(Level::name).collect()
    }

    #[test]
    fn a_level_lets_itself_and_what_is_more_important_pass() {
        assert_eq!(passes("info", "cp"), ["error", "warn", "info"]);
        assert_eq!(passes("off", "cp"), [""; 0]);
        assert_eq!(passes("debug", "cp").len(), 4);
    }

    #[test]
    fn a_part_has_its_own_level_and_the_later_word_counts() {
        assert_eq!(passes("cp=debug,error", "cp").len(), 4);
        assert_eq!(passes("cp=debug,error", "probe"), ["error"]);
        assert_eq!(passes("cp=debug,cp=off", "cp"), [""; 0]);
        assert_eq!(passes("cp=debug", "probe"), ["error", "warn"]);
    }

    #[test]
    fn a_wrong_word_is_refused_with_the_words_there_are() {
        let told = |text| Filter::parse(text).unwrap_err().to_string();
        assert_eq!(told("loud"), "`loud` is no level; there are off, error, warn, info, debug");
        assert_eq!(told("cp=loud"), told("loud"));
        let told_of_disk = told("disk=debug");
        assert!(told_of_disk.starts_with("dio has no part `disk`; there are args, bench, cp"));
    }
}
