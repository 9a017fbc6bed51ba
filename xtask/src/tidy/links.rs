//! The rules about links in Markdown: a relative link names a file of the repository, its anchor a
//! heading there, and `docs/SUMMARY.md` lists every page of `docs/`. No rule needs a network.

use super::{Finding, Source};
use std::collections::HashMap;

const SUMMARY: &str = "docs/SUMMARY.md";

/// Checks the links of all Markdown files. `exists` reports whether a path of the repository is a
/// file or a directory.
pub fn check(sources: &[Source], exists: impl Fn(&str) -> bool, findings: &mut Vec<Finding>) {
    let pages = || sources.iter().filter(|source| source.path.ends_with(".md"));
    let anchors: HashMap<&str, Vec<String>> =
        pages().map(|page| (page.path.as_str(), anchors(&page.text))).collect();
    for page in pages() {
        for (line, target) in links(&page.text) {
            if let Some(what) = broken(&page.path, target, &exists, &anchors) {
                findings.push(page.finding(line, what));
            }
        }
    }
    if let Some(summary) = pages().find(|page| page.path == SUMMARY) {
        let listed: Vec<String> =
            links(&summary.text).filter_map(|(_, target)| resolve(SUMMARY, target)).collect();
        let in_book = |path: &&str| path.starts_with("docs/") && *path != SUMMARY;
        for path in pages().map(|page| page.path.as_str()).filter(in_book) {
            if !listed.iter().any(|it| it == path) {
                findings.push(summary.finding(1, format!("`{path}` is missing; add its chapter")));
            }
        }
    }
}

/// Returns the fault of a link, if it has one.
fn broken(
    page: &str,
    target: &str,
    exists: &impl Fn(&str) -> bool,
    anchors: &HashMap<&str, Vec<String>>,
) -> Option<String> {
    let (file, anchor) = target.split_once('#').unwrap_or((target, ""));
    if target.contains(':') || target.is_empty() {
        return None;
    }
    let Some(path) = resolve(page, file) else {
        return Some(format!("link `{target}` leaves the repository; write an address"));
    };
    if !exists(&path) {
        return Some(format!("link `{target}`: there is no `{path}`; correct the path"));
    }
    let headings = anchors.get(path.as_str())?;
    if anchor.is_empty() || headings.iter().any(|heading| heading == anchor) {
        return None;
    }
    Some(format!("link `{target}`: `{path}` has no such heading; its anchors are {headings:?}"))
}

/// Returns the path of a link from the root of the repository, or `None` above the root.
fn resolve(page: &str, file: &str) -> Option<String> {
    let mut parts: Vec<&str> = page.split('/').collect();
    if !file.is_empty() {
        parts.pop();
    }
    for part in file.split('/').filter(|part| !part.is_empty() && *part != ".") {
        if part == ".." {
            parts.pop()?;
        } else {
            parts.push(part);
        }
    }
    Some(parts.join("/"))
}

/// Returns the targets of inline links outside code, with their lines.
fn links(text: &str) -> impl Iterator<Item = (usize, &str)> {
    prose(text).flat_map(|(line, text)| {
        let starts = text.match_indices("](").map(|(at, _)| at + 2);
        let is_code = |at: usize| text[..at].matches('`').count() % 2 == 1;
        let targets = starts.filter(move |at| !is_code(*at));
        targets.filter_map(move |at| Some((line, text[at..].split_once(')')?.0)))
    })
}

/// Returns the anchors of the headings, as GitHub and mdBook make them.
fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    for (_, line) in prose(text).filter(|(_, line)| line.starts_with('#')) {
        let title = line.trim_start_matches('#').trim().to_lowercase();
        let kept = title.chars().filter(|c| c.is_alphanumeric() || "-_ ".contains(*c));
        let anchor: String = kept.map(|c| if c == ' ' { '-' } else { c }).collect();
        let same = |it: &&String| **it == anchor || it.starts_with(&format!("{anchor}-"));
        match found.iter().filter(same).count() {
            0 => found.push(anchor),
            count => found.push(format!("{anchor}-{count}")),
        }
    }
    found
}

/// Returns the lines outside fenced code, with their numbers.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        (!is_fence && !is_code).then_some((index + 1, line))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_pages(pages: &[(&str, &str)], expected: &[&str]) {
        let source = |(path, text): &(&str, &str)| Source::new(path, (*text).to_owned());
        let sources: Vec<Source> = pages.iter().map(source).collect();
        let mut findings = Vec::new();
        let exists = |path: &str| pages.iter().any(|(it, _)| *it == path) || path == "docs/a.json";
        check(&sources, exists, &mut findings);
        let found: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{found} has no {expected}");
        }
    }

    #[test]
    fn a_link_names_a_file_and_its_anchor_a_heading() {
        let b = ("docs/b.md", "# B\n\n## What `it` costs\n\n## Twice\n\n## Twice\n");
        let good = "[a](docs/b.md) [b](docs/b.md#what-it-costs) [c](docs/b.md#twice-1) [d](#top)";
        check_pages(&[("a.md", &format!("# Top\n{good}\n")), b], &[]);
        check_pages(&[("a.md", "[a](docs/c.md)\n"), b], &["a.md:1: link `docs/c.md`"]);
        check_pages(&[("a.md", "\n[a](docs/b.md#cost)\n"), b], &["a.md:2: link `docs/b.md#cost`"]);
        check_pages(&[("a.md", "[a](#cost)\n")], &["no such heading"]);
        check_pages(&[("docs/b.md", "[a](../../a.md) [b](a.json)\n")], &["leaves the repository"]);
    }

    #[test]
    fn addresses_and_code_are_not_checked() {
        let text = "[a](https://example.org/x) `[b](c.md)`\n```\n[d](e.md)\n```\n";
        check_pages(&[("a.md", text)], &[]);
    }

    #[test]
    fn the_summary_lists_every_page() {
        let pages = [("docs/SUMMARY.md", "- [A](a.md)\n"), ("docs/a.md", ""), ("docs/b.md", "")];
        check_pages(&pages, &["docs/SUMMARY.md:1: `docs/b.md` is missing"]);
    }
}
