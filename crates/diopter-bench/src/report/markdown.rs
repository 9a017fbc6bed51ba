//! Tables for a page of Markdown, as GitHub reads it.

use super::absolute::blocks;
use super::summary::Summary;
use super::table::{Block, Shown};
use crate::compare::{Comparison, Verdict};
use crate::document::Bench;

pub(super) fn markdown(bench: &Bench, comparison: Option<&Comparison>) -> String {
    let summary = Summary::of(bench, comparison);
    let mut lines = vec![format!("## {}", escaped(&summary.title)), String::new()];
    lines.push(escaped(&summary.run));
    if !summary.result.is_empty() {
        lines.extend([String::new(), format!("**{}**", escaped(&summary.result))]);
    }
    add_list(&mut lines, None, &summary.notes);
    for block in blocks(bench, comparison) {
        add_block(&mut lines, &block);
    }
    add_list(&mut lines, Some("Warnings, with remedies"), &summary.warnings);
    add_list(&mut lines, Some("Environments differ"), &summary.differences);
    lines.push(String::new());
    lines.join("\n")
}

fn add_block(lines: &mut Vec<String>, block: &Block) {
    lines.extend([String::new(), format!("### {}", escaped(&block.title)), String::new()]);
    let heads: Vec<String> = block.heads.iter().map(|head| escaped(head)).collect();
    lines.push(format!("| {} | {} |", block.corner, heads.join(" | ")));
    lines.push(format!("|---|{}", "---:|".repeat(heads.len())));
    for (name, cells) in &block.lines {
        let cells: Vec<String> = cells.iter().map(cell).collect();
        lines.push(format!("| {} | {} |", escaped(name), cells.join(" | ")));
    }
}

fn cell(cell: &Shown) -> String {
    let beside = if cell.beside.is_empty() { "" } else { " " };
    let text = format!("{}{beside}{}", cell.figure, cell.beside);
    match cell.verdict {
        Some(verdict @ (Verdict::Worse | Verdict::Better)) => {
            format!("{text} **{}**", verdict.name())
        }
        Some(verdict) => format!("{text} {}", verdict.name()),
        None => text,
    }
}

fn add_list(lines: &mut Vec<String>, title: Option<&str>, items: &[String]) {
    if items.is_empty() {
        return;
    }
    lines.push(String::new());
    if let Some(title) = title {
        lines.extend([format!("### {title}"), String::new()]);
    }
    lines.extend(items.iter().map(|item| format!("- {}", escaped(item))));
}

/// Escapes text so that Markdown shows it literally, in one line.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        match character {
            '<' => escaped.push_str("&lt;"),
            '&' => escaped.push_str("&amp;"),
            '\\' | '|' | '`' | '*' | '[' | ']' => escaped.extend(['\\', character]),
            control if control.is_control() => escaped.push(' '),
            other => escaped.push(other),
        }
    }
    escaped
}
