//! Tables for a terminal, or for an e-mail: text columns, folded where they are too wide.

use std::fmt::Write as _;

use diopter_text::{GAP, Side, Table, untrusted, wrapped};
use unicode_width::{UnicodeWidthChar as _, UnicodeWidthStr as _};

use super::absolute::blocks;
use super::summary::Summary;
use super::table::{Block, Shown};
use crate::compare::{Comparison, Verdict};
use crate::document::Bench;

/// Shortest and longest limit of the name of a line, so that figures have room.
const NAME_COLUMNS: (usize, usize) = (12, 30);

/// Precedes a verdict until it is coloured. It has no width, and names lose it.
const MARK: char = '\u{200b}';

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
    put_legend(&mut text, &blocks, style);
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
    let paragraph = &*untrusted::line(paragraph);
    let words = paragraph.trim_start();
    let indent = " ".repeat(paragraph.len() - words.len());
    let hanging = format!("{indent}  ");
    wrapped(words, style.columns, [&indent, &hanging]).iter().for_each(|line| put(text, line));
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

fn put_legend(text: &mut String, blocks: &[Block], style: TextStyle) {
    let mut cells = blocks.iter().flat_map(|block| &block.lines).flat_map(|(_, cells)| cells);
    if cells.any(|cell| cell.verdict == Some(Verdict::Inconclusive)) {
        text.push('\n');
        let legend = "? is inconclusive: noise exceeds the difference; run more rounds";
        put_wrapped(text, legend, style);
    }
}

fn put_block(text: &mut String, block: &Block, style: TextStyle) {
    let most = (style.columns * 3 / 8).clamp(NAME_COLUMNS.0, NAME_COLUMNS.1);
    let names = [block.corner].into_iter().chain(block.lines.iter().map(|(name, _)| name.as_str()));
    let names: Vec<String> = names.map(|name| clipped(name, most)).collect();
    let columns: Vec<Vec<String>> =
        (0..block.heads.len()).map(|at| column(block, at, most)).collect();
    let gap = usize::from(GAP);
    let mut at = 0;
    while at < columns.len() {
        if at > 0 {
            text.push('\n');
        }
        let mut room = style.columns.saturating_sub(width(&names));
        let mut end = at;
        // At least one column, however narrow the terminal.
        while end < columns.len() && (end == at || width(&columns[end]) + gap <= room) {
            room = room.saturating_sub(width(&columns[end]) + gap);
            end += 1;
        }
        let columns = || [&names].into_iter().chain(&columns[at..end]);
        let heads: Vec<_> = columns().map(|one| (one[0].as_str(), Side::Left)).collect();
        let mut table = Table::new(&heads);
        for line in 1..names.len() {
            table.row(columns().map(|one| one[line].clone()).collect());
        }
        text.push_str(&coloured(&table.to_string(), style));
        at = end;
    }
}

fn width(cells: &[String]) -> usize {
    cells.iter().map(|cell| cell.width()).max().unwrap_or(0)
}

/// Returns one column of a block: its heading, and its cells with aligned parts.
fn column(block: &Block, at: usize, most: usize) -> Vec<String> {
    let cells = || block.lines.iter().map(|(_, cells)| &cells[at]);
    let figure = cells().map(|cell| cell.figure.width()).max().unwrap_or(0);
    let beside = cells().map(|cell| cell.beside.width()).max().unwrap_or(0);
    let line = |cell: &Shown| {
        // The figures and intervals are ASCII, one column for each character.
        let mut line = format!("{:>figure$}", cell.figure);
        if beside > 0 {
            line += &format!(" {:beside$}", cell.beside);
        }
        match cell.verdict {
            Some(verdict) => format!("{line} {MARK}{}", word(verdict)),
            None => line,
        }
    };
    [clipped(&block.heads[at], most)].into_iter().chain(cells().map(line)).collect()
}

/// Replaces the marks of verdicts by colours, or removes them.
fn coloured(table: &str, style: TextStyle) -> String {
    if !style.is_coloured {
        return table.replace(MARK, "");
    }
    Verdict::ALL.into_iter().fold(table.to_owned(), |table, verdict| {
        let word = word(verdict);
        table.replace(&format!("{MARK}{word}"), &format!("{}{word}\u{1b}[0m", tone(verdict)))
    })
}

fn word(verdict: Verdict) -> &'static str {
    if verdict == Verdict::Inconclusive { "?" } else { verdict.name() }
}

fn tone(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Better => "\u{1b}[32m",
        Verdict::Worse => "\u{1b}[1;31m",
        Verdict::Inconclusive => "\u{1b}[33m",
        Verdict::Same => "\u{1b}[2m",
    }
}

/// Removes control characters, and shortens to a number of columns: it cuts the middle, since names
/// differ at their ends.
fn clipped(text: &str, columns: usize) -> String {
    let text: String = text.chars().filter(|one| !one.is_control() && *one != MARK).collect();
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
