//! The help of the terminal: examples before the options, and the options of every command only in
//! that of `dio` itself. The manual, a reference, has the definitions as they are.

use clap::{Arg, Command};

const TEMPLATE: &str =
    "{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}";

/// Last lines of the help of each command.
const COMMON: &str = "\n\nCommon options: --backend, --color and --log; see `dio help`";

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
    with_examples_first(command)
        .args(common)
        .help_template(format!("{TEMPLATE}{COMMON}"))
        .mut_subcommands(|command| of_command(command, common))
}

/// Moves the examples from the end of the long help to the front of both.
fn with_examples_first(command: Command) -> Command {
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
        let help = cp.render_long_help().to_string();
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
