//! The width of the terminal, and lines that fit it.

use std::fmt::Write as _;
use std::io::{self, IsTerminal};
use std::os::fd::AsFd;

/// Least width that lines are wrapped at.
const COLUMNS_MIN: usize = 20;

/// Returns the columns of standard output; `None` without a terminal. `COLUMNS` overrides those of
/// a terminal.
pub fn columns() -> Option<usize> {
    columns_of(&io::stdout())
}

/// Returns the columns of a stream as [`columns`] does.
fn columns_of(stream: &(impl IsTerminal + AsFd)) -> Option<usize> {
    let variable = std::env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let terminal = || {
        let size = stream.is_terminal().then(|| rustix::termios::tcgetwinsize(stream));
        Some(usize::from(size?.ok()?.ws_col))
    };
    variable.or_else(terminal).filter(|columns| *columns > 0)
}

/// Returns the columns of the messages on standard error; `None` without a terminal: a message in a
/// file is one line, whatever `COLUMNS` is.
pub fn message_columns() -> Option<usize> {
    let stderr = io::stderr();
    stderr.is_terminal().then(|| columns_of(&stderr)).flatten()
}

/// Wraps each line of `text` that is longer than `columns`; the lines that follow are indented.
/// Lines of a usage are commands to copy and remain.
pub fn fitted(text: &str, columns: Option<usize>) -> String {
    let Some(columns) = columns.map(|columns| columns.max(COLUMNS_MIN)) else {
        return text.to_owned();
    };
    let mut fitted = String::new();
    let mut is_usage = false;
    for line in text.lines() {
        is_usage = line.contains("Usage:") || is_usage && line.starts_with(' ');
        if is_usage || line.chars().count() <= columns {
            writeln!(fitted, "{line}").expect("a string takes every line");
            continue;
        }
        let indent = " ".repeat(line.len() - line.trim_start().len());
        let rest = format!("{indent}  ");
        for line in diopter_text::wrapped(line.trim_start(), columns, [&indent, &rest]) {
            writeln!(fitted, "{line}").expect("a string takes every line");
        }
    }
    fitted
}

/// Wraps the lines of the usage in a help, which clap leaves as long as they are.
pub fn with_usage_wrapped(help: &str, columns: usize) -> String {
    const INDENT: &str = "           ";
    let mut wrapped = String::new();
    let mut is_usage = false;
    for line in help.lines() {
        is_usage = line.contains("Usage:") || is_usage && line.starts_with(' ');
        let lines = match is_usage {
            true => {
                let indent = " ".repeat(line.len() - line.trim_start().len());
                diopter_text::wrapped(line.trim_start(), columns, [&indent, INDENT])
            }
            false => vec![line.to_owned()],
        };
        for line in lines {
            writeln!(wrapped, "{line}").expect("a string takes every line");
        }
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lines_are_wrapped_and_those_of_a_usage_remain() {
        let text = "error: a message of many words\n\n  tip: try another one of them\n\n\
                    Usage: dio explain --offset <SIZE>\n       dio explain --length <SIZE>\n";
        let wrapped = "error: a message of\n  many words\n\n  tip: try another\n    one of them\n\n\
                       Usage: dio explain --offset <SIZE>\n       dio explain --length <SIZE>\n";
        assert_eq!(fitted(text, Some(20)), wrapped);
        assert_eq!(fitted(text, Some(100)), text);
        assert_eq!(fitted(text, None), text);
    }

    #[test]
    fn the_usage_of_a_help_is_wrapped_and_nothing_else() {
        let text = "A long line that is not a usage\n\nUsage: dio a <SRC>... <DST>\n       dio b \
                    <SRC>... <DST>\n\nOptions:\n";
        let wrapped = "A long line that is not a usage\n\nUsage: dio a\n           <SRC>...\n\
                      \u{20}          <DST>\n       dio b\n           <SRC>...\n\
                      \u{20}          <DST>\n\nOptions:\n";
        assert_eq!(with_usage_wrapped(text, 20), wrapped);
        assert_eq!(with_usage_wrapped(text, 80), text);
    }
}
