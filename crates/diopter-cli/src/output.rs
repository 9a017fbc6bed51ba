//! Standard output and how it looks: colours, the width of the terminal, tables, wrapped text. And
//! what becomes of a command whose output nobody takes. Nothing here knows what is told.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, IsTerminal, Write};

use clap::builder::styling::{AnsiColor, Style};
use diopter_bench::untrusted;

/// Done.
pub const DONE: u8 = 0;
/// There is a difference: a regression.
pub const DIFFERENT: u8 = 1;
/// A usage or I/O error.
pub const TROUBLE: u8 = 2;
/// Nobody can say.
pub const INCONCLUSIVE: u8 = 3;
/// `dio trace` itself failed, as env(1) reports it.
pub const TRACE_FAILED: u8 = 125;
/// The reader went away (`dio probe | head`): the status of a program that SIGPIPE ended.
const READER_GONE: u8 = 128 + 13;

/// Text is wrapped at this width where there is no terminal.
const WIDTH_DEFAULT: usize = 80;
/// Narrower terminals get lines that the terminal wraps; wider ones get no longer lines than this.
const WIDTH_MIN: usize = 60;
const WIDTH_MAX: usize = 100;

/// How text looks.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// With colours.
    pub is_coloured: bool,
    /// Columns.
    pub width: usize,
}

/// What a piece of text is.
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

/// Where a column's text stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Words.
    Left,
    /// Numbers.
    Right,
}

/// Rows under a head, in columns as wide as their widest cell.
#[derive(Clone, Debug)]
pub struct Table {
    columns: Vec<(&'static str, Side)>,
    rows: Vec<Vec<String>>,
}

impl Look {
    /// For standard output as it is.
    pub fn of_stdout(is_coloured: bool) -> Look {
        let stdout = io::stdout();
        let size =
            if stdout.is_terminal() { rustix::termios::tcgetwinsize(&stdout).ok() } else { None };
        let columns = size.map(|size| usize::from(size.ws_col)).filter(|columns| *columns > 0);
        let width = columns.unwrap_or(WIDTH_DEFAULT).clamp(WIDTH_MIN, WIDTH_MAX);
        Look { is_coloured, width }
    }

    /// `text` in a tone.
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

    /// Text for the terminal, of which only styling by this program is passed on.
    pub fn escaped<'a>(&self, text: &'a str) -> Cow<'a, str> {
        if self.is_coloured { untrusted::styled(text) } else { untrusted::text(text) }
    }

    /// As [`print()`], with the styling of [`Look::paint`].
    pub fn print(&self, text: &str, status: u8) -> u8 {
        print_as_is(&self.escaped(text), status)
    }

    /// A label in a column of `indent`, and text beside it, wrapped, that begins in that column.
    pub fn entry(&self, indent: usize, label: &str, text: &str) -> String {
        let mut entry = String::new();
        let room = self.width.saturating_sub(indent);
        for (index, line) in wrapped(text, room).into_iter().enumerate() {
            let label = if index == 0 { label } else { "" };
            let padding = indent.saturating_sub(label.chars().count());
            let label = self.paint(Tone::Head, label);
            let line = format!("{label}{}{line}", " ".repeat(padding));
            put(&mut entry, line.trim_end());
        }
        entry
    }

    /// A table, `indent` columns in.
    pub fn table(&self, indent: usize, table: &Table) -> String {
        let widths: Vec<usize> = (0..table.columns.len())
            .map(|at| {
                let cells = table.rows.iter().map(|row| row[at].chars().count());
                cells.chain([table.columns[at].0.chars().count()]).max().unwrap_or(0)
            })
            .collect();
        let heads: Vec<String> = table.columns.iter().map(|(head, _)| (*head).to_owned()).collect();
        let line = |cells: &[String]| {
            let mut line = " ".repeat(indent);
            for (at, cell) in cells.iter().enumerate() {
                let gap = if at == 0 { "" } else { "  " };
                let fill = " ".repeat(widths[at] - cell.chars().count());
                match table.columns[at].1 {
                    Side::Left => line.extend([gap, cell.as_str(), fill.as_str()]),
                    Side::Right => line.extend([gap, fill.as_str(), cell.as_str()]),
                }
            }
            line.trim_end().to_owned()
        };
        let mut text = String::new();
        put(&mut text, &self.paint(Tone::Head, &line(&heads)));
        for row in &table.rows {
            put(&mut text, &line(row));
        }
        text
    }
}

impl Table {
    /// With these columns.
    pub fn new(columns: &[(&'static str, Side)]) -> Table {
        Table { columns: columns.to_vec(), rows: Vec::new() }
    }

    /// Adds a row of as many cells as there are columns.
    pub fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a cell for every column");
        self.rows.push(cells);
    }

    /// Takes out the columns for which `is_dull` says so of their head.
    pub fn without(mut self, is_dull: impl Fn(&str) -> bool) -> Table {
        let kept: Vec<bool> = self.columns.iter().map(|(head, _)| !is_dull(head)).collect();
        let keep = |at: usize| kept[at];
        for row in &mut self.rows {
            let mut at = 0..;
            row.retain(|_| at.next().is_some_and(keep));
        }
        let mut at = 0..;
        self.columns.retain(|_| at.next().is_some_and(keep));
        self
    }
}

/// A name for the terminal: as it is, or quoted where it holds what a terminal would act on.
pub fn shown(name: &str) -> String {
    if !name.contains(untrusted::is_unsafe) {
        return name.to_owned();
    }
    // Debug output leaves some characters that reorder text.
    untrusted::text(&format!("{name:?}")).into_owned()
}

/// Reports if standard error, or standard output, is a terminal that shows colours.
pub fn takes_colour(is_error: bool) -> bool {
    let is_terminal =
        if is_error { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
    let forbids = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    is_terminal && !forbids("NO_COLOR") && std::env::var_os("TERM").is_none_or(|it| it != "dumb")
}

/// Adds a line to a text.
pub fn put(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("a string takes every line");
}

/// Prints text without styling; returns `status`, or the exit status for lost output. What a
/// terminal would act on is written out.
pub fn print(text: &str, status: u8) -> u8 {
    print_as_is(&untrusted::text(text), status)
}

/// Prints one JSON document; returns as [`print()`].
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

/// The exit status when standard output could not be written; says so unless the reader went away.
pub fn status_of_lost_output(error: &io::Error) -> u8 {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return READER_GONE;
    }
    crate::log::say(&format!("write to standard output: {error}; look at where it leads"));
    TROUBLE
}

/// Words in lines of at most `width` columns; a longer word has a line of its own. A size stays on
/// one line with its unit.
fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match words.last_mut() {
            Some(last) if belongs_to_number(last, word) => last.extend([" ", word]),
            _ => words.push(word.to_owned()),
        }
    }
    let mut lines = vec![String::new()];
    for word in words {
        let line = lines.last_mut().expect("never empty");
        if line.is_empty() {
            line.push_str(&word);
        } else if line.chars().count() + 1 + word.chars().count() <= width {
            line.extend([" ", &word]);
        } else {
            lines.push(word);
        }
    }
    lines
}

/// Whether `word` is the unit, or the bytes in brackets, of the number before it.
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

    const PLAIN: Look = Look { is_coloured: false, width: 20 };

    #[test]
    fn text_is_wrapped_beside_its_label() {
        let told = PLAIN.entry(6, "why", "one two three x averyveryverylongword end");
        let expected = "why   one two three\n      x\n      averyveryverylongword\n      end\n";
        assert_eq!(told, expected);
    }

    #[test]
    fn a_size_is_not_torn_apart() {
        let told = PLAIN.entry(0, "", "10 to 4 KiB (4096 B), then more");
        assert_eq!(told, "10 to\n4 KiB (4096 B), then\nmore\n");
        let told = PLAIN.entry(0, "", "twenty columns in 5 B; more");
        assert_eq!(told, "twenty columns in\n5 B; more\n");
    }

    #[test]
    fn numbers_stand_right_and_words_left() {
        let mut table = Table::new(&[("n", Side::Right), ("word", Side::Left), ("m", Side::Right)]);
        table.row(vec!["1".to_owned(), "a".to_owned(), "22".to_owned()]);
        table.row(vec!["333".to_owned(), "longer".to_owned(), "4".to_owned()]);
        let expected = "    n  word     m\n    1  a       22\n  333  longer   4\n";
        assert_eq!(PLAIN.table(2, &table), expected);
        let narrow = table.without(|head| head == "word");
        assert_eq!(PLAIN.table(0, &narrow), "  n   m\n  1  22\n333   4\n");
    }

    #[test]
    fn a_name_that_a_terminal_would_act_on_is_quoted() {
        assert_eq!(shown("a b"), "a b");
        assert_eq!(shown("a\u{1b}[2J"), "\"a\\u{1b}[2J\"");
    }

    #[test]
    fn colours_go_round_the_text_and_only_where_they_are_wanted() {
        let coloured = Look { is_coloured: true, ..PLAIN };
        assert_eq!(coloured.paint(Tone::Head, "a"), "\u{1b}[1ma\u{1b}[0m");
        assert_eq!(PLAIN.paint(Tone::Head, "a"), "a");
        assert_eq!(coloured.paint(Tone::Severe, ""), "");
    }
}
