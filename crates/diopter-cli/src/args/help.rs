//! The help of the terminal: examples before the options, and the options of every command only in
//! that of `dio` itself. The manual, a reference, has the definitions as they are.

use clap::builder::StyledStr;
use clap::{Arg, Command};

use crate::output::NO_BREAK;

const TEMPLATE: &str =
    "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}";

/// Last line of the help of each command.
const COMMON: &str = "Common options: --backend, --color and --log; see `dio help`";

/// First words of the examples among the paragraphs of a help.
const EXAMPLES: &str = "Examples:";

/// Lines of examples in the short help, with their title.
const SHORT_LINES: usize = 5;

/// Returns the command and its subcommands as the help of the terminal shows them.
pub fn arranged(dio: Command) -> Command {
    let common: Vec<Arg> = dio.get_arguments().filter(|it| it.is_global_set()).cloned().collect();
    let common: Vec<Arg> = common.into_iter().map(|option| option.hide(true)).collect();
    with_examples_first(dio)
        .help_template(TEMPLATE)
        .mut_subcommands(|command| of_command(command, &common))
}

fn of_command(command: Command, common: &[Arg]) -> Command {
    let command = with_examples_first(command);
    let short = with_common(command.get_after_help());
    // A command without it has one help.
    let long = command.get_after_long_help().map(|long| with_common(Some(long)));
    let command = command.after_help(short);
    let command = match long {
        Some(long) => command.after_long_help(long),
        None => command,
    };
    command
        .args(common)
        .help_template(TEMPLATE)
        .mut_subcommands(|command| of_command(command, common))
}

/// Returns the end of a help with the line about the common options.
fn with_common(end: Option<&StyledStr>) -> String {
    match end.map(ToString::to_string) {
        Some(end) if !end.is_empty() => format!("{end}\n\n{COMMON}"),
        _ => COMMON.to_owned(),
    }
}

/// Returns the examples with command lines that are not wrapped: they are to be copied. A line of
/// prose begins with a capital letter.
fn with_whole_commands(examples: &str) -> String {
    let is_prose = |line: &str| line.trim_start().starts_with(|it: char| it.is_ascii_uppercase());
    let whole =
        |line: &str| if is_prose(line) { line.to_owned() } else { line.replace(' ', NO_BREAK) };
    examples.lines().map(whole).collect::<Vec<_>>().join("\n")
}

/// Moves the examples from the end of the long help to the front of both.
fn with_examples_first(command: Command) -> Command {
    let first = command.get_before_long_help().map(|it| with_whole_commands(&it.to_string()));
    let command = match first {
        Some(first) => command.before_long_help(first),
        None => command,
    };
    let Some(end) = command.get_after_long_help() else { return command };
    let end = end.to_string();
    // A paragraph that is indented belongs to the one before it.
    let mut paragraphs: Vec<String> = Vec::new();
    for paragraph in end.split("\n\n") {
        match paragraphs.last_mut() {
            Some(last) if paragraph.starts_with(' ') => *last += &format!("\n\n{paragraph}"),
            _ => paragraphs.push(paragraph.to_owned()),
        }
    }
    let (examples, rest): (Vec<_>, Vec<_>) =
        paragraphs.into_iter().partition(|paragraph| paragraph.starts_with(EXAMPLES));
    let Some(examples) = examples.first() else { return command };
    let examples = &with_whole_commands(examples);
    let short: Vec<&str> = examples.lines().take(SHORT_LINES).collect();
    command
        .before_help(short.join("\n"))
        .before_long_help(examples.clone())
        .after_long_help(rest.join("\n\n"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_come_first_and_the_options_of_every_command_are_in_one_help() {
        let command = Command::new("dio").arg(Arg::new("log").long("log").global(true)).subcommand(
            Command::new("cp").arg(Arg::new("bs").long("bs")).after_long_help(
                "Files:\n  a\n\nExamples:\n  dio cp a b\n\n  More.\n\nSizes:\n  1",
            ),
        );
        let mut command = arranged(command);
        assert!(command.render_help().to_string().contains("--log"));
        let cp = command.find_subcommand_mut("cp").expect("a command");
        let help = cp.render_long_help().to_string().replace(NO_BREAK, " ");
        let places =
            ["Usage:", "Examples:", "  More.", "--bs", "Files:", "Sizes:", "Common options:"]
                .map(|part| help.find(part).unwrap_or_else(|| panic!("{part}: {help}")));
        assert!(places.is_sorted(), "{help}");
        assert!(!help.contains("--log <"), "{help}");
        let matches = command.try_get_matches_from(["dio", "cp", "--bs", "1", "--log", "off"]);
        let matches = matches.expect("a hidden option is one");
        assert_eq!(matches.get_one::<String>("log").map(String::as_str), Some("off"));
    }
}
