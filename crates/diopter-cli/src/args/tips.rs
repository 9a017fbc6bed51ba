//! Tips for options that people know from other programs and `dio` does not have.

use std::ffi::OsString;
use std::path::Path;

use clap::Command;
use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The options that people type, by command, and a tip for each. The most similar name, which clap
/// proposes, is another option.
const TIPS: [(&str, &[&str], &str); 35] = [
    ("cp", &["-f", "--force", "-i", "--interactive"], OVERWRITE),
    ("cp", &["--direct", "--odirect", "--iflag", "--oflag"], DIRECT),
    ("cp", &["-j", "--jobs", "--threads", "--parallel", "--depth"], IODEPTH),
    ("cp", &["--block-size", "--blocksize", "--chunk"], BS),
    ("cp", &["-c", "--checksum", "--check"], "'--verify' reads the copy back and compares it"),
    ("cp", &["--delete"], "files that are only in the target stay; remove them with rsync or rm"),
    ("cp", &["-l", "-s", "--link", "--symbolic-link"], "'ln' makes links; '-a' keeps them"),
    ("cp", &["--hard-links"], "'-a' keeps hard links"),
    ("cp", &["-A", "-X", "--acls", "--xattrs"], "'-a' keeps access lists and attributes"),
    ("cp", &["--numeric-ids"], "'-a' keeps owners by their numbers, never by name"),
    ("cp", &["--include"], "'--exclude' leaves names out; all others are copied"),
    ("cp", &["-b", "--backup", "--suffix"], "no backup is made; '-n' keeps the file that is there"),
    ("cp", &["--inplace"], "a file gets its new content when the copy of it is complete"),
    ("cp", &["--compare-dest", "--copy-dest", "--link-dest"], NO_THIRD),
    ("cp", &["--parents"], "a copy has the last part of its source's name, never the path"),
    ("cp", &["--stats"], "'-v' prints how many files and bytes were copied"),
    ("cp", &["--remove-source-files"], "no source is removed; 'rm' does that after the copy"),
    ("cp", &["--skip", "--seek", "--count"], "a file is copied whole, from its first byte"),
    ("cp", &["--partial", "--partial-dir"], PARTIAL),
    ("cp", &["--fsync", "--fdatasync", "--conv"], "every copy is flushed to the device"),
    ("cp", &["--info", "--status"], "'--progress' prints how far the copy is"),
    ("cp", &["-z", "--compress"], "nothing is compressed; a copy has the bytes of its source"),
    ("verify", &["-j", "--jobs", "--threads", "--depth"], IODEPTH),
    ("verify", &["-r", "-R", "--recursive", "-a"], RECURSIVE),
    ("sum", &["-j", "--jobs", "--num-threads", "--threads", "--depth"], IODEPTH),
    ("sum", &["-r", "-R", "--recursive", "-a"], RECURSIVE),
    ("explain", &["--bs", "--size"], "'--length' sets the bytes of the request"),
    ("bench", &["--depth", "-d", "--queue-depth", "--qd"], IODEPTH),
    ("bench", &["--direct", "--odirect"], "every job uses direct I/O"),
    (
        "bench",
        &["--ioengine"],
        "'--backend' selects those of diopter, '--with fio:NAME' one of fio",
    ),
    ("bench", &["--fsync", "--fdatasync", "--sync"], SYNCS),
    ("bench", &["--filename", "--directory"], "name the file or directory without an option"),
    ("bench", &["-o", "--output"], "'--json-out FILE' and '--html FILE' write the result"),
    ("bench", &["--time", "-t", "--duration"], "'--runtime' sets the time of each round"),
    ("trace", &["-e", "-f", "-c"], "children are followed, and every event counts; see '--format'"),
];

/// The commands that people type, and what there is instead. A similar name is another command.
const COMMANDS: [(&[&str], &str); 3] = [
    (&["dd", "sync", "rsync", "copy"], "'dio cp' copies files, trees and devices"),
    (&["mv", "move"], "'dio cp' copies, and 'rm' removes the source after that"),
    (&["version"], VERSION),
];
const VERSION: &str = "'dio --version' prints the version";
const NO_THIRD: &str = "the target alone is looked at: '-u' copies only what is newer than there";
const PARTIAL: &str = "'--resume' keeps what an interrupted copy has, and continues from it";
const OVERWRITE: &str = "files are replaced without it; '--overwrite' allows a device, an image or \
                         an object as the target, and '-n' keeps what is there";
const DIRECT: &str = "every copy uses direct I/O; 'dio run --report' does for other programs";
const IODEPTH: &str = "'--iodepth' sets the requests in flight";
const BS: &str = "'--bs' sets the bytes per request";
const SYNCS: &str = "a job file has it: 'dio bench JOB.fio' with fsync=1 or fdatasync=1";
const RECURSIVE: &str = "directories are read with all that is below them";

/// The other targets of a command that clap requires.
const TRACED: &str = "'-p PID', '--cgroup PATH' and '--all' trace running processes";

/// Corrects an error about an unknown option: the tip for an option of another program, no tip that
/// cannot be meant, and the usage of the command, of which clap makes one with a similar option.
/// Adds a tip where the command that is traced is missing.
///
/// `of` is the command that refused the line, and `next` the subcommand of it that follows.
pub fn improved(mut error: clap::Error, of: &mut Command, next: Option<&str>) -> clap::Error {
    if error.kind() == ErrorKind::MissingRequiredArgument && of.get_name() == "trace" {
        add(&mut error, TRACED);
        return error;
    }
    if error.kind() == ErrorKind::InvalidSubcommand {
        return improved_command(error);
    }
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let option = option.clone();
    // The word that follows may be a value of the option.
    let next = next.filter(|name| of.find_subcommand(name).is_some());
    let version = ContextValue::String("--version".to_owned());
    if next.is_some() && error.get(ContextKind::SuggestedArg) == Some(&version) {
        // It is never meant together with a command.
        error.remove(ContextKind::SuggestedArg);
    }
    error.insert(ContextKind::Usage, ContextValue::StyledStr(of.render_usage()));
    let command = if of.has_subcommands() { next } else { Some(of.get_name()) };
    let known = |(of, options, _): &&(&str, &[&str], &str)| {
        Some(*of) == command && options.contains(&option.as_str())
    };
    let tip = TIPS.iter().find(known).map(|(_, _, tip)| *tip);
    let is_version = option == "--version" && command.is_some();
    let tip = tip.or(is_version.then_some(VERSION)).map(str::to_owned);
    if let Some(tip) = tip.or_else(|| of_subcommand(of, &option, next)) {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        add(&mut error, tip);
    } else if Path::new(&option).symlink_metadata().is_err() {
        // That it may be a value, the name of a file.
        error.remove(ContextKind::Suggested);
    }
    error
}

/// Adds the tip for a command of another program, and removes that for a similar name.
fn improved_command(mut error: clap::Error) -> clap::Error {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand) else {
        return error;
    };
    let known = |(names, _): &&(&[&str], &str)| names.contains(&typed.as_str());
    if let Some((_, tip)) = COMMANDS.iter().find(known) {
        error.remove(ContextKind::SuggestedSubcommand);
        add(&mut error, *tip);
    }
    error
}

/// Returns the command and the message, if an `h` among other short options asked for help: with
/// cp and rsync, from where these options come, it is about sizes, and a script would take the help
/// for a copy that succeeded.
pub fn help_by_accident(error: &clap::Error, words: &[OsString]) -> Option<(&'static str, String)> {
    let command =
        words.get(1).and_then(|word| ["cp", "verify", "sum"].into_iter().find(|it| word == it));
    let is_asked = words.iter().any(|word| word == "-h" || word == "--help");
    if error.kind() != ErrorKind::DisplayHelp || is_asked {
        return None;
    }
    let is_cluster = |word: &&str| {
        word.len() > 2 && word.starts_with('-') && !word.starts_with("--") && word.contains('h')
    };
    let cluster = words.iter().filter_map(|word| word.to_str()).find(is_cluster)?;
    let message = format!(
        "'h' in '{cluster}' asks for help, and nothing would be done; leave it out: sizes have \
         units without it"
    );
    Some((command?, message))
}

fn add(error: &mut clap::Error, tip: impl Into<StyledStr>) {
    let tip = ContextValue::StyledStrs(vec![tip.into()]);
    error.insert(ContextKind::Suggested, tip);
}

/// Returns the tip for an option that comes before the subcommand that has it.
fn of_subcommand(of: &Command, option: &str, next: Option<&str>) -> Option<String> {
    let is_next = |it: &&Command| next.is_none_or(|name| name == it.get_name());
    let mut subcommands = of.get_subcommands().filter(is_next);
    let has_it = subcommands.find(|it| has_option(it, option))?;
    let (of, name) = (of.get_bin_name().unwrap_or(of.get_name()), has_it.get_name());
    Some(format!("options of a command come after its name, as in '{of} {name} {option}'"))
}

fn has_option(command: &Command, option: &str) -> bool {
    command.get_arguments().any(|known| {
        let short = known.get_short_and_visible_aliases().unwrap_or_default();
        let is_short = short.iter().any(|it| option == format!("-{it}"));
        is_short || known.get_long().is_some_and(|it| option == format!("--{it}"))
    })
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use clap::CommandFactory;

    use super::*;
    use crate::args::{Cli, parse};

    #[test]
    fn no_tip_is_for_an_option_of_dio_and_each_names_options_that_it_has() {
        let dio = Cli::command();
        for name in COMMANDS.iter().flat_map(|(names, _)| *names) {
            assert!(dio.find_subcommand(name).is_none(), "{name}");
        }
        for (command, options, tip) in TIPS.into_iter().chain([("trace", &[][..], TRACED)]) {
            let command = dio.find_subcommand(command).expect("a command");
            let has = |name: &str| has_option(command, name) || has_option(&dio, name);
            for option in options {
                assert!(!has(option), "{option}");
            }
            for quoted in tip.split('\'').skip(1).step_by(2) {
                let option = quoted.split(' ').next().expect("a word");
                assert!(!option.starts_with('-') || has(option), "{tip}");
            }
        }
    }

    #[test]
    fn an_option_of_another_program_has_its_tip() {
        let of = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(OsString::from).collect();
            parse(&words).expect_err("it is unknown").to_string()
        };
        assert!(of(&["dio", "cp", "--direct=1", "a", "b"]).contains("tip: every copy uses direct"));
        let block = of(&["dio", "cp", "--block-size", "1M", "a", "b"]);
        assert!(block.contains("tip: '--bs' sets") && !block.contains("similar"), "{block}");
        assert!(of(&["dio", "cp", "-f", "a", "b"]).contains("'-n' keeps"));
        for words in [&["dio", "trace"][..], &["dio", "trace", "--duration", "1s"]] {
            assert!(of(words).contains("tip: '-p PID', '--cgroup PATH' and '--all'"));
        }
        for words in [&["dio", "cp", "-avh", "a", "b"][..], &["dio", "cp", "-hr", "a", "b"]] {
            let text = of(words);
            assert!(text.contains("asks for help, and nothing would be done"), "{text}");
        }
        for words in [&["dio", "cp", "-av", "-h"][..], &["dio", "cp", "-h"]] {
            assert!(of(words).contains("Usage: dio cp"));
        }
        // clap's own remain for similar names.
        assert!(of(&["dio", "cp", "--verbos", "a", "b"]).contains("'--verbose'"));
    }

    #[test]
    fn a_word_of_another_program_has_its_tip_and_none_of_a_similar_one() {
        let of = |line: &str| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            parse(&words).expect_err("it is unknown").to_string()
        };
        for (line, tip) in [
            ("dio cp --backup f g", "no backup is made"),
            ("dio cp -b f g", "no backup is made"),
            ("dio cp --hard-links f g", "'-a' keeps hard links"),
            ("dio cp -aHAX f g", "'-a' keeps access lists"),
            ("dio cp --info=progress2 f g", "'--progress' prints"),
            ("dio cp -az f g", "nothing is compressed"),
            ("dio cp --link-dest=h f g", "the target alone is looked at"),
            ("dio cp --version", "'dio --version' prints"),
            ("dio verify --version", "'dio --version' prints"),
            ("dio version", "'dio --version' prints"),
            ("dio dd if=f", "'dio cp' copies"),
            ("dio mv f g", "'dio cp' copies, and"),
            ("dio sync", "'dio cp' copies files"),
        ] {
            let text = of(line);
            assert!(text.contains(&format!("tip: {tip}")), "{line}: {text}");
            assert!(!text.contains("similar"), "{line}: {text}");
        }
        assert!(of("dio verfy f g").contains("'verify'"));
    }

    #[test]
    fn an_unknown_option_has_no_misleading_tip_and_the_usage_of_its_command() {
        let of = |line: &str| {
            let words: Vec<_> = line.split(' ').map(OsString::from).collect();
            parse(&words).expect_err("it is unknown").to_string()
        };
        for line in ["cp --direct=1 f g", "bench --direct=1", "cp --delete f g"] {
            let (message, name) = (of(&format!("dio {line}")), line.split(' ').next());
            let usage = format!("Usage: dio {} [OPTIONS] ", name.expect("a word"));
            assert!(message.contains(&usage), "{message}");
        }
        for line in ["bench -v", "compare --verbose a b", "lab run --verbose", "run -x -- true"] {
            assert!(!of(&format!("dio {line}")).contains("tip"), "{}", of(&format!("dio {line}")));
        }
        let before = of("dio --verbose cp a b");
        assert!(before.contains("tip: options of a command come after its name, as in 'dio cp"));
        assert!(before.contains("Usage: dio [OPTIONS] <COMMAND>") && !before.contains("similar"));
        assert!(of("dio lab --repeat 2 run").contains("as in 'dio lab run --repeat'"));
        assert!(!of("dio --verbose bench").contains("'--version'"));
    }
}
