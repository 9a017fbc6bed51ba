//! Standard output: colours, the width of the terminal, and the exit status
//! of a command whose output is lost.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use clap::ColorChoice;
use clap::builder::styling::{AnsiColor, Style};
use diopter_text::{Lines, Table, untrusted};
use serde::Serialize;

use crate::terminal;

/// Success.
pub const DONE: u8 = 0;
/// There is a difference: a regression.
pub const DIFFERENT: u8 = 1;
/// A usage or I/O error.
pub const TROUBLE: u8 = 2;
/// The result is inconclusive.
pub const INCONCLUSIVE: u8 = 3;
/// `dio trace` itself failed, as env(1) reports it.
pub const TRACE_FAILED: u8 = 125;
/// `dio run` itself failed, as env(1) reports it.
pub const RUN_FAILED: u8 = 125;
/// The program of `dio run` cannot be run.
pub const NOT_RUN: u8 = 126;
/// The program of `dio run` was not found.
pub const UNKNOWN: u8 = 127;
/// `dio lab check` has no verdict: git bisect skips the revision.
pub const UNKNOWN_VERDICT: u8 = 125;
/// `dio lab check` itself failed: git bisect stops.
pub const STOPS_BISECTION: u8 = 128;
/// The reader went away (`dio probe | head`): the status of a program that SIGPIPE ended.
const READER_GONE: u8 = 128 + 13;

/// Width of wrapped text without a terminal.
const WIDTH_DEFAULT: usize = 80;
/// Limits of the width of wrapped text; a narrower terminal wraps the lines.
const WIDTH_MIN: usize = 20;
const WIDTH_MAX: usize = 100;
/// A space at which no line is wrapped, until it is printed.
pub const NO_BREAK: &str = "\u{a0}";
/// Columns that text needs next to its label; with fewer it is below the label.
const ENTRY_MIN: usize = 28;
/// Column of text below its label.
const ENTRY_INDENT: usize = 2;
/// Columns that names keep while a narrow table loses columns.
const NAME_MIN: usize = 16;
/// Width of figures and verdicts without a terminal: they fit into an e-mail.
const FIGURES_DEFAULT: usize = 72;
/// Least width of figures and verdicts.
const FIGURES_MIN: usize = 40;

/// The style of standard output.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    pub is_coloured: bool,
    /// Columns of wrapped text.
    pub width: usize,
    /// Columns of tables; `None` for as many as they need.
    pub table_width: Option<usize>,
}

/// The meaning of a piece of text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tone {
    /// A title or the head of a table.
    Head,
    /// Something bad.
    Severe,
    /// Something to look at.
    Warning,
    /// Something good.
    Good,
}

impl Look {
    /// Returns the style of standard output.
    pub fn of_stdout(is_coloured: bool) -> Look {
        Look::of_columns(is_coloured, terminal::columns())
    }

    /// Returns the style of output with so many columns; `None` without a terminal.
    pub fn of_columns(is_coloured: bool, columns: Option<usize>) -> Look {
        let width = columns.unwrap_or(WIDTH_DEFAULT).clamp(WIDTH_MIN, WIDTH_MAX);
        Look { is_coloured, width, table_width: columns.map(|columns| columns.max(WIDTH_MIN)) }
    }

    /// Returns the style of figures and verdicts: as wide as the terminal, however narrow or wide.
    pub fn of_figures(&self, columns: Option<usize>) -> Look {
        let width = columns.unwrap_or(FIGURES_DEFAULT).max(FIGURES_MIN);
        Look { width, table_width: Some(width), ..*self }
    }

    /// Returns the style with texts and tables that fit a pipe, where there is no terminal.
    pub fn of_pipe(&self) -> Look {
        if self.table_width.is_some() { *self } else { self.of_figures(None) }
    }

    /// Returns `text` in a tone.
    pub fn paint(&self, tone: Tone, text: &str) -> String {
        if !self.is_coloured || text.is_empty() {
            return text.to_owned();
        }
        let style = match tone {
            Tone::Head => Style::new().bold(),
            Tone::Severe => AnsiColor::Red.on_default().bold(),
            Tone::Warning => AnsiColor::Yellow.on_default().bold(),
            Tone::Good => AnsiColor::Green.on_default(),
        };
        format!("{style}{text}{style:#}")
    }

    /// Escapes text for the terminal, except for styling by this program.
    pub fn escaped<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_coloured { untrusted::styled(text) } else { untrusted::text(text) }
    }

    /// Like [`print()`], with the styling of [`Look::paint`].
    pub fn print(&self, text: &str, status: u8) -> u8 {
        print_as_is(&self.escaped(text), status)
    }

    /// Returns a label, and wrapped text that begins in column `indent`; below the label on a
    /// narrow terminal, or if a long word fits only there.
    pub fn entry(&self, indent: usize, label: &str, text: &str) -> String {
        let mut entry = String::new();
        let (label, text) = (&*untrusted::line(label), &*untrusted::line(text));
        let widest = text.split(' ').map(|word| word.chars().count()).max().unwrap_or(0);
        let fits = |indent| indent + widest.max(ENTRY_MIN) <= self.width;
        let is_narrow = self.width < indent + ENTRY_MIN;
        let is_below = indent > ENTRY_INDENT && (is_narrow || !fits(indent) && fits(ENTRY_INDENT));
        let indent = if is_below { ENTRY_INDENT } else { indent };
        if is_below && !label.is_empty() {
            put(&mut entry, &self.paint(Tone::Head, label));
        }
        let room = self.width.saturating_sub(indent);
        for (index, line) in wrapped(text, room).into_iter().enumerate() {
            let label = if index == 0 && !is_below { label } else { "" };
            let padding = indent.saturating_sub(label.chars().count());
            let label = self.paint(Tone::Head, label);
            let line = format!("{label}{}{line}", " ".repeat(padding));
            put(&mut entry, line.trim_end());
        }
        entry
    }

    /// Returns the first line of a block: a name and what it is, which is below the name if both
    /// do not fit.
    pub fn title(&self, name: &str, what: &str) -> String {
        let (name, what) = (&*untrusted::line(name), &*untrusted::line(what));
        let painted = self.paint(Tone::Head, name);
        let whole = name.chars().count() + 2 + what.chars().count();
        if whole <= self.width {
            return format!("{painted}: {what}\n");
        }
        let indent = " ".repeat(ENTRY_INDENT);
        let mut title = format!("{painted}:\n");
        for line in wrapped(what, self.width.saturating_sub(ENTRY_INDENT)) {
            put(&mut title, &format!("{indent}{line}"));
        }
        title
    }

    /// Returns a table like [`Look::table`] that loses its columns without a head, then `dropped`
    /// one by one, before a number or much of a name is folded.
    pub fn fitted(&self, indent: usize, table: &Table, dropped: &[&str]) -> String {
        let Some(width) = self.table_width else { return self.table(indent, table) };
        let room = width.saturating_sub(indent);
        let bare = table.clone().without(str::is_empty);
        let narrower = (0..=dropped.len())
            .map(|count| bare.clone().without(|head| dropped[..count].contains(&head)));
        let mut all = std::iter::once(table.clone()).chain(narrower);
        let fits = |table: &Table| table.columns_if_folded(NAME_MIN) <= room;
        let narrowest = bare.clone().without(|head| dropped.contains(&head));
        self.table(indent, &all.find(fits).unwrap_or(narrowest))
    }

    /// Returns a table, indented, as wide as the terminal at most.
    pub fn table(&self, indent: usize, table: &Table) -> String {
        let Lines { head, rows } =
            table.lines(self.table_width.map(|width| width.saturating_sub(indent)));
        let head = head.iter().map(|line| self.paint(Tone::Head, &indented(indent, line)));
        let rows = rows.iter().map(|line| indented(indent, line));
        head.chain(rows).map(|line| line + "\n").collect()
    }
}

fn indented(indent: usize, line: &str) -> String {
    format!("{:indent$}{line}", "")
}

/// Returns the bytes of a name in base64 if it is not UTF-8, for a JSON document.
pub fn name_bytes(name: &[u8]) -> Option<String> {
    std::str::from_utf8(name).is_err().then(|| BASE64_STANDARD.encode(name))
}

/// Returns a size without its bytes in brackets: tables are narrow, and the document has them.
pub fn short_size(bytes: u64) -> String {
    diopter::probe::size_text(bytes).split(" (").next().unwrap_or_default().to_owned()
}

/// Reports if standard error, or standard output, is a terminal that shows colours.
fn takes_colour(is_error: bool) -> bool {
    let is_terminal =
        if is_error { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
    let forbids = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    is_terminal && !forbids("NO_COLOR") && std::env::var_os("TERM").is_none_or(|it| it != "dumb")
}

/// Adds a line to a text.
pub fn put(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a string takes every line");
}

/// Prints clap's help, version, or error. Returns the exit status, which is `trouble` for a wrong
/// command line.
pub fn print_instead(instead: &clap::Error, color: ColorChoice, trouble: u8) -> u8 {
    let status = if instead.use_stderr() { trouble } else { DONE };
    let is_coloured = match color {
        ColorChoice::Always => true,
        ColorChoice::Never => false,
        ColorChoice::Auto => takes_colour(instead.use_stderr()),
    };
    let look = Look::of_stdout(is_coloured);
    let text = instead.render();
    let text = if look.is_coloured { text.ansi().to_string() } else { text.to_string() };
    if instead.use_stderr() {
        crate::log::put(&look.escaped(&terminal::fitted(&text, terminal::message_columns())));
        return status;
    }
    // Only help has spaces that do not break; an error may name a file that has.
    let text = text.replace(NO_BREAK, " ");
    let columns = terminal::columns().unwrap_or(WIDTH_MAX).clamp(WIDTH_MIN, WIDTH_MAX);
    look.print(&terminal::with_usage_wrapped(&text, columns), status)
}

/// Prints text without styling, with control characters escaped; returns `status`, or the exit
/// status for lost output.
pub fn print(text: &str, status: u8) -> u8 {
    print_as_is(&untrusted::text(text), status)
}

/// Prints plain lines, wrapped on a terminal; returns as [`print()`].
pub fn print_lines(lines: &str, status: u8) -> u8 {
    print(&terminal::fitted(lines, terminal::columns()), status)
}

/// Prints one JSON document; returns as [`print()`].
pub fn print_document(document: &impl Serialize, status: u8) -> u8 {
    let mut text = serde_json::to_string_pretty(document).expect("strings and numbers are JSON");
    text.push('\n');
    print_json(&text, status)
}

/// Prints the text of a JSON document; returns as [`print()`].
pub fn print_json(document: &str, status: u8) -> u8 {
    print_as_is(&untrusted::json(document), status)
}

fn print_as_is(text: &str, status: u8) -> u8 {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Ok(()) => status,
        Err(error) => status_of_lost_output(&error),
    }
}

/// Returns the exit status after an error of standard output; reports it unless a pipe was closed.
pub fn status_of_lost_output(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return READER_GONE;
    }
    crate::log::say(&format!("write to standard output: {error}; check the redirection"));
    TROUBLE
}

/// Wraps text at `width` columns; a longer word has a separate line. A size stays on one line with
/// its unit.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut joined = String::new();
    for word in text.split(' ') {
        if !joined.is_empty() {
            joined.push_str(if belongs_to_number(&joined, word) { NO_BREAK } else { " " });
        }
        joined.push_str(word);
    }
    let lines = diopter_text::wrapped(&joined, width, ["", ""]).into_iter();
    lines.map(|line| line.replace(NO_BREAK, " ")).collect()
}

/// Returns true if `word` is the unit, or the bytes in brackets, of the number before it.
fn belongs_to_number(before: &str, word: &str) -> bool {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    let is_number = before.ends_with(|last: char| last.is_ascii_digit());
    let is_unit = UNITS.contains(&word.trim_end_matches([')', ',', ';', ':', '.']));
    let is_bracket = word.strip_prefix('(').is_some_and(|rest| rest.parse::<u64>().is_ok());
    is_number && is_unit || before.ends_with("iB") && is_bracket
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_text::Side;

    const PLAIN: Look = Look { is_coloured: false, width: 20, table_width: None };

    #[test]
    fn text_is_wrapped_next_to_its_label() {
        let text = "one two three four five six seven eight nine ten eleven twelve";
        let wide = Look { width: 34, ..PLAIN }.entry(6, "why", text);
        assert_eq!(
            wide,
            "why   one two three four five six\n      seven eight nine ten eleven\n      twelve\n"
        );
        let narrow = PLAIN.entry(6, "why", "one two three four averyveryverylongword end");
        assert_eq!(narrow, "why\n  one two three four\n  averyveryverylongword\n  end\n");
    }

    #[test]
    fn a_title_that_does_not_fit_is_below_its_name() {
        assert_eq!(PLAIN.title("a file", "file, 5 B"), "a file: file, 5 B\n");
        let exact = PLAIN.title("1234567890", "12345678");
        assert_eq!(exact, "1234567890: 12345678\n");
        let narrow = PLAIN.title("1234567890", "striped file, 4 KiB (4096 B)");
        assert_eq!(narrow, "1234567890:\n  striped file,\n  4 KiB (4096 B)\n");
    }

    #[test]
    fn a_size_is_not_torn_apart() {
        let text = PLAIN.entry(0, "", "10 to 4 KiB (4096 B), then more");
        assert_eq!(text, "10 to\n4 KiB (4096 B), then\nmore\n");
        let text = PLAIN.entry(0, "", "twenty columns in 5 B; more");
        assert_eq!(text, "twenty columns in\n5 B; more\n");
    }

    #[test]
    fn a_table_is_indented_and_its_head_is_bold() {
        let mut table = Table::new(&[("n", Side::Right), ("word", Side::Left)]);
        table.row(vec!["333".to_owned(), "a".to_owned()]);
        assert_eq!(PLAIN.table(2, &table), "    n  word\n  333  a\n");
        let coloured = Look::of_columns(true, Some(60)).table(0, &table);
        assert_eq!(coloured, "\u{1b}[1m  n  word\u{1b}[0m\n333  a\n");
    }

    #[test]
    fn only_a_name_that_is_not_utf8_has_its_bytes_in_base64() {
        assert_eq!(name_bytes("\u{e9}".as_bytes()), None);
        assert_eq!(name_bytes(b"n\xff").as_deref(), Some("bv8="));
    }

    #[test]
    fn colours_go_round_the_text_and_only_where_they_are_wanted() {
        let coloured = Look { is_coloured: true, ..PLAIN };
        assert_eq!(coloured.paint(Tone::Head, "a"), "\u{1b}[1ma\u{1b}[0m");
        assert_eq!(PLAIN.paint(Tone::Head, "a"), "a");
        assert_eq!(coloured.paint(Tone::Severe, ""), "");
    }
}
