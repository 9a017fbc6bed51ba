//! Tips for options that people know from other programs and `dio` does not have.

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};

/// The options that people type, by command, and a tip for each. The most similar name, which clap
/// proposes, is another option.
const TIPS: [(&str, &[&str], &str); 20] = [
    ("cp", &["-f", "--force", "-i", "--interactive"], OVERWRITE),
    ("cp", &["--direct", "--odirect", "--iflag", "--oflag"], DIRECT),
    ("cp", &["-j", "--jobs", "--threads", "--parallel", "--depth", "-P"], IODEPTH),
    ("cp", &["-b", "--block-size", "--blocksize", "--chunk"], BS),
    ("cp", &["-c", "--checksum", "--check"], "'--verify' reads the copy back and compares it"),
    ("cp", &["--delete"], "files that are only in the target stay; remove them with rsync or rm"),
    ("cp", &["-l", "-s", "--link", "--symbolic-link"], "'ln' makes links; '-a' keeps them"),
    ("cp", &["--exclude", "--include"], "every file is copied; name the ones that you want"),
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
    ("bench", &["--filename", "--directory"], "name the file or directory without an option"),
    ("bench", &["-o", "--output"], "'--json-out FILE' and '--html FILE' write the result"),
    ("bench", &["--time", "-t", "--duration"], "'--runtime' sets the time of each round"),
    ("trace", &["-e", "-f", "-c"], "children are followed, and every event counts; see '--format'"),
];
const OVERWRITE: &str = "files are replaced without it; '--overwrite' allows a device, an image or \
                         an object as the target, and '-n' keeps what is there";
const DIRECT: &str = "every copy uses direct I/O; 'dio run --report' does for other programs";
const IODEPTH: &str = "'--iodepth' sets the requests in flight";
const BS: &str = "'--bs' sets the bytes per request";
const RECURSIVE: &str = "directories are read with all that is below them";

/// The other targets of a command that clap requires.
const TRACED: &str = "'-p PID', '--cgroup PATH' and '--all' trace running processes";

/// Replaces the tip of an error about an unknown option of a command, if there is a better one, and
/// adds one where the command that is traced is missing.
pub fn improved(mut error: clap::Error, command: Option<&str>) -> clap::Error {
    if error.kind() == ErrorKind::MissingRequiredArgument && command == Some("trace") {
        add(&mut error, TRACED);
        return error;
    }
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(option)) = error.get(ContextKind::InvalidArg) else {
        return error;
    };
    let known = |(of, options, _): &&(&str, &[&str], &str)| {
        Some(*of) == command && options.contains(&option.as_str())
    };
    if let Some((_, _, tip)) = TIPS.iter().find(known) {
        error.remove(ContextKind::SuggestedArg);
        error.remove(ContextKind::SuggestedSubcommand);
        add(&mut error, tip);
    }
    error
}

fn add(error: &mut clap::Error, tip: &'static str) {
    let tip = ContextValue::StyledStrs(vec![StyledStr::from(tip)]);
    error.insert(ContextKind::Suggested, tip);
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::args::Cli;

    #[test]
    fn no_tip_is_for_an_option_of_dio_and_each_names_options_that_it_has() {
        let dio = Cli::command();
        for (command, options, tip) in TIPS.into_iter().chain([("trace", &[][..], TRACED)]) {
            let command = dio.find_subcommand(command).expect("a command");
            let has = |name: &str| {
                command.get_arguments().chain(dio.get_arguments()).any(|known| {
                    let short = known.get_short_and_visible_aliases().unwrap_or_default();
                    let is_short = short.iter().any(|it| name == format!("-{it}"));
                    is_short || known.get_long().is_some_and(|it| name == format!("--{it}"))
                })
            };
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
            let error = Cli::command().try_get_matches_from(words).expect_err("it is unknown");
            improved(error, words.get(1).copied()).to_string()
        };
        assert!(of(&["dio", "cp", "--direct=1", "a", "b"]).contains("tip: every copy uses direct"));
        let block = of(&["dio", "cp", "--block-size", "1M", "a", "b"]);
        assert!(block.contains("tip: '--bs' sets") && !block.contains("similar"), "{block}");
        assert!(of(&["dio", "cp", "-f", "a", "b"]).contains("'-n' keeps"));
        for words in [&["dio", "trace"][..], &["dio", "trace", "--duration", "1s"]] {
            assert!(of(words).contains("tip: '-p PID', '--cgroup PATH' and '--all'"));
        }
        // clap's own remain for the rest.
        assert!(of(&["dio", "cp", "--verbos", "a", "b"]).contains("'--verbose'"));
    }
}
