//! Messages on standard error, and their filter: `warn`, `debug`, `cp=debug,off`. Messages are for
//! people; scripts must not rely on them.

use std::io::Write;

use diopter::Errno;
use diopter_text::untrusted;
use log::LevelFilter;

pub use log::Level;

use crate::terminal::{fitted, message_columns};

/// Parts of the command that can be filtered by name.
const TARGETS: [&str; 9] =
    ["args", "bench", "cp", "explain", "lab", "probe", "run", "stripe", "trace"];

/// The levels that are printed: for named targets, and for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Filter {
    rest: LevelFilter,
    by_target: Vec<(&'static str, LevelFilter)>,
}

impl Default for Filter {
    /// Prints warnings and errors.
    fn default() -> Filter {
        Filter { rest: LevelFilter::Warn, by_target: Vec::new() }
    }
}

impl Filter {
    /// Parses `LEVEL` or `TARGET=LEVEL`, several separated by commas; a later one overrides.
    ///
    /// # Errors
    /// An unknown level or target, with the valid ones.
    pub fn parse(text: &str) -> Result<Filter, String> {
        let mut filter = Filter::default();
        for word in text.split(',').map(str::trim) {
            match word.split_once('=') {
                None => filter.rest = level_of(word)?,
                Some((target, level)) => {
                    let target = target_of(target)?;
                    filter.by_target.retain(|(known, _)| *known != target);
                    filter.by_target.push((target, level_of(level)?));
                }
            }
        }
        Ok(filter)
    }

    fn passes(&self, target: &str, level: Level) -> bool {
        let own = self.by_target.iter().find(|(known, _)| *known == target);
        level <= own.map_or(self.rest, |(_, level)| *level)
    }

    /// Prints a message if it passes. `message` is called only then.
    pub fn log(&self, target: &'static str, level: Level, message: impl FnOnce() -> String) {
        if self.passes(target, level) {
            let prefix = if level == Level::Warn { "warning: " } else { "" };
            say(&format!("{prefix}{}", message()));
        }
    }
}

/// Prints a message on standard error. Errors are ignored: there is no better place to report them.
pub fn say(message: &str) {
    line(&format!("dio: {message}"));
}

/// Prints the failure of a command.
pub fn fail(command: &str, message: &str) {
    line(&format!("dio {command}: {message}"));
}

/// Prints one line on standard error, with control characters escaped, wrapped on a terminal. All
/// output on standard error passes this function or [`put`].
pub fn line(text: &str) {
    let text = with_error_names(&untrusted::text(&untrusted::line(text)));
    put(&fitted(&format!("{text}\n"), message_columns()));
}

/// Replaces `os error 2`, as the standard library has it, by the name of the error, ENOENT, which
/// the manual pages have.
fn with_error_names(text: &str) -> String {
    const NUMBERED: &str = "(os error ";
    let mut named = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once(NUMBERED) {
        let (number, after) = after.split_once(')').unwrap_or((after, ""));
        let name = number.parse().map(|number| Errno::from_raw(number).name());
        named.push_str(before);
        match name {
            Ok(name) if name != "errno" => named.push_str(&format!("({name})")),
            _ => named.push_str(&format!("{NUMBERED}{number})")),
        }
        rest = after;
    }
    named + rest
}

/// Prints text that is already escaped on standard error. Errors are ignored: there is no better
/// place to report them.
pub fn put(text: &str) {
    std::io::stderr().lock().write_all(text.as_bytes()).ok();
}

fn level_of(word: &str) -> Result<LevelFilter, String> {
    word.parse().map_err(|_| format!("invalid level `{word}`; use off, error, warn, info or debug"))
}

fn target_of(word: &str) -> Result<&'static str, String> {
    let found = TARGETS.into_iter().find(|target| *target == word);
    found.ok_or_else(|| format!("unknown log target `{word}`; use {}", TARGETS.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(text: &str, target: &str) -> Vec<&'static str> {
        let filter = Filter::parse(text).unwrap();
        let all = [Level::Error, Level::Warn, Level::Info, Level::Debug];
        let passing = all.into_iter().filter(|level| filter.passes(target, *level));
        passing.map(|level| level.as_str()).collect()
    }

    #[test]
    fn errors_have_the_names_of_the_manual() {
        let numbered =
            "a: No such file or directory (os error 2); b: (os error 28), (os error 9999)";
        let named = "a: No such file or directory (ENOENT); b: (ENOSPC), (os error 9999)";
        assert_eq!(with_error_names(numbered), named);
        assert_eq!(with_error_names("nothing of that sort"), "nothing of that sort");
    }

    #[test]
    fn a_level_lets_itself_and_what_is_more_important_pass() {
        assert_eq!(passes("info", "cp"), ["ERROR", "WARN", "INFO"]);
        assert_eq!(passes("off", "cp"), [""; 0]);
        assert_eq!(passes("debug", "cp").len(), 4);
    }

    #[test]
    fn a_part_has_its_own_level_and_the_later_word_counts() {
        assert_eq!(passes("cp=debug,error", "cp").len(), 4);
        assert_eq!(passes("cp=debug,error", "probe"), ["ERROR"]);
        assert_eq!(passes("cp=debug,cp=off", "cp"), [""; 0]);
        assert_eq!(passes("cp=debug", "probe"), ["ERROR", "WARN"]);
    }

    #[test]
    fn a_wrong_word_is_refused_with_the_words_there_are() {
        let error_of = |text| Filter::parse(text).unwrap_err();
        assert_eq!(error_of("loud"), "invalid level `loud`; use off, error, warn, info or debug");
        assert_eq!(error_of("cp=loud"), error_of("loud"));
        let unknown = error_of("disk=debug");
        assert!(unknown.starts_with("unknown log target `disk`; use args, bench, cp"), "{unknown}");
    }
}
