//! Tables for a terminal, or for an e-mail: text columns, folded where they are too wide.

use std::fmt::Write as _;

use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::summary::Summary;
use super::table::{Block, Shown, blocks};
use crate::compare::{Comparison, Verdict};
use crate::document::Bench;

/// Longest name of a line, so that figures have room.
const NAME_COLUMNS_MAX: usize = 30;
const GAP: &str = "  ";

#[derive(Clone, Copy, Debug)]
pub struct TextStyle {
    /// Columns of the terminal; wider tables are folded.
    pub columns: usize,
    /// True if verdicts are coloured.
    pub is_coloured: bool,
}

pub(super) fn text(bench: &Bench, comparison: Option<&Comparison>, style: TextStyle) -> String {
    let summary = Summary::of(bench, comparison);
    let mut text = String::new();
    put_wrapped(&mut text, &summary.title, style);
    put_wrapped(&mut text, &summary.run, style);
    if !summary.result.is_empty() {
        text.push('\n');
        put_wrapped(&mut text, &summary.result, style);
    }
    for note in &summary.notes {
        put_wrapped(&mut text, &format!("note: {note}"), style);
    }
    let blocks = blocks(bench, comparison);
    for block in &blocks {
        text.push('\n');
        put_wrapped(&mut text, &block.title, style);
        put_block(&mut text, block, style);
    }
    put_legend(&mut text, &blocks);
    put_list(&mut text, "Warnings, with remedies", &summary.warnings, style);
    put_list(&mut text, "Environments differ", &summary.differences, style);
    text
}

fn put(text: &mut String, line: &str) {
    // A name from an untrusted file must not move the cursor.
    let safe: String = line.chars().filter(|one| !one.is_control() || *one == '\n').collect();
    writeln!(text, "{}", safe.trim_end()).expect("a string takes every line");
}

/// Writes a paragraph in lines of the terminal's width; all but the first are indented.
fn put_wrapped(text: &mut String, paragraph: &str, style: TextStyle) {
    let indent = paragraph.len() - paragraph.trim_start().len();
    let mut line = " ".repeat(indent);
    let mut is_begun = false;
    for word in paragraph.split_whitespace() {
        if is_begun && line.width() + 1 + word.width() > style.columns {
            put(text, &line);
            line = " ".repeat(indent + 2);
            is_begun = false;
        }
        if is_begun {
            line.push(' ');
        }
        line.push_str(word);
        is_begun = true;
    }
    put(text, &line);
}

fn put_list(text: &mut String, title: &str, lines: &[String], style: TextStyle) {
    if lines.is_empty() {
        return;
    }
    put(text, &format!("\n{title}"));
    for line in lines {
        put_wrapped(text, &format!("  {line}"), style);
    }
}

fn put_legend(text: &mut String, blocks: &[Block]) {
    let mut cells = blocks.iter().flat_map(|block| &block.lines).flat_map(|(_, cells)| cells);
    if cells.any(|cell| cell.verdict == Some(Verdict::Inconclusive)) {
        put(text, "\n? is inconclusive: the rounds do not decide; run more rounds");
    }
}

fn put_block(text: &mut String, block: &Block, style: TextStyle) {
    let names = block.lines.iter().map(|(name, _)| name.as_str()).chain([block.corner]);
    let name_width = names.map(|name| name.width().min(NAME_COLUMNS_MAX)).max().unwrap_or(0);
    let columns: Vec<Column> = (0..block.heads.len()).map(|at| Column::of(block, at)).collect();
    let mut at = 0;
    while at < columns.len() {
        if at > 0 {
            text.push('\n');
        }
        let mut room = style.columns.saturating_sub(name_width);
        let mut end = at;
        // At least one column, however narrow the terminal.
        while end < columns.len() && (end == at || columns[end].width + GAP.len() <= room) {
            room = room.saturating_sub(columns[end].width + GAP.len());
            end += 1;
        }
        let heads = columns[at..end].iter().map(|column| column.head.clone()).collect();
        put_line(text, (block.corner, name_width), heads);
        for (name, cells) in &block.lines {
            let cells_shown = (at..end).map(|at| columns[at].cell(&cells[at], style.is_coloured));
            put_line(text, (name, name_width), cells_shown.collect());
        }
        at = end;
    }
}

fn put_line(text: &mut String, (name, width): (&str, usize), cells: Vec<String>) {
    let mut line = padded(&clipped(name, width), width);
    for cell in cells {
        line.push_str(GAP);
        line.push_str(&cell);
    }
    writeln!(text, "{}", line.trim_end()).expect("a string takes every line");
}

/// One column of a block: the widths of the parts of its cells.
struct Column {
    head: String,
    figure: usize,
    beside: usize,
    width: usize,
}

impl Column {
    fn of(block: &Block, at: usize) -> Column {
        let cells = || block.lines.iter().map(|(_, cells)| &cells[at]);
        let figure = cells().map(|cell| cell.figure.width()).max().unwrap_or(0);
        let beside = cells().map(|cell| cell.beside.width()).max().unwrap_or(0);
        let word = cells().map(|cell| word(cell.verdict).width()).max().unwrap_or(0);
        let gaps = usize::from(beside > 0) + usize::from(word > 0);
        let head = clipped(&block.heads[at], NAME_COLUMNS_MAX);
        let width = (figure + beside + word + gaps).max(head.width());
        Column { head: padded(&head, width), figure, beside, width }
    }

    fn cell(&self, cell: &Shown, is_coloured: bool) -> String {
        let figure = format!("{}{}", " ".repeat(self.figure - cell.figure.width()), cell.figure);
        let shown = format!("{figure} {}", padded(&cell.beside, self.beside));
        let word = word(cell.verdict);
        let shown = if self.beside == 0 { figure } else { shown };
        let shown = if word.is_empty() { shown } else { format!("{shown} {word}") };
        let padded = padded(&shown, self.width);
        match cell.verdict {
            Some(verdict) if is_coloured => {
                padded.replace(word, &format!("{}{word}\u{1b}[0m", tone(verdict)))
            }
            _ => padded,
        }
    }
}

fn word(verdict: Option<Verdict>) -> &'static str {
    match verdict {
        Some(Verdict::Inconclusive) => "?",
        Some(verdict) => verdict.name(),
        None => "",
    }
}

fn tone(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "\u{1b}[32m",
        Verdict::Worse => "\u{1b}[1;31m",
        Verdict::Inconclusive => "\u{1b}[33m",
        Verdict::Same => "\u{1b}[2m",
    }
}

fn padded(text: &str, width: usize) -> String {
    format!("{text}{}", " ".repeat(width.saturating_sub(text.width())))
}

/// Removes control characters, and shortens to a number of columns: it cuts the middle, since names
/// differ at their ends.
fn clipped(text: &str, columns: usize) -> String {
    let text: String = text.chars().filter(|one| !one.is_control()).collect();
    if text.width() <= columns {
        return text;
    }
    let room = columns.saturating_sub(2);
    let tail = taken(text.chars().rev(), room / 3);
    let head = taken(text.chars(), room - tail.width());
    format!("{head}..{}", tail.chars().rev().collect::<String>())
}

/// Returns as many of the first characters as fit into a number of columns.
fn taken(characters: impl Iterator<Item = char>, columns: usize) -> String {
    let mut room = columns;
    let fits = characters.take_while(|character| {
        let width = character.width().unwrap_or(0);
        let fits = width <= room;
        room = room.saturating_sub(width);
        fits
    });
    fits.collect()
}
