//! `cargo xtask tidy`: the rules of docs/style.md that a machine can check. This file reads the
//! files and prints the findings; the rules are in `text.rs`, `words.rs`, `links.rs`,
//! `code.rs` and `order.rs`.

mod code;
mod doors;
mod links;
mod mask;
mod order;
mod text;
mod words;

use crate::repo::{self, Outcome};
use std::cell::OnceCell;
use std::fmt;
use std::process::Command;

/// One place that breaks a rule.
#[derive(Debug)]
struct Finding {
    path: String,
    line: usize,
    what: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{}:{}: {}", self.path, self.line, self.what)
    }
}

/// One file: its path from the repository's root, its text, and what rules derive from them.
struct Source {
    path: String,
    text: String,
    masked: OnceCell<mask::Masked>,
    without_tests: OnceCell<String>,
    uses: OnceCell<Vec<(usize, String)>>,
}

/// `cargo xtask tidy`: prints each finding; true if there is none.
pub fn run() -> Outcome {
    let findings = findings()?;
    for finding in &findings {
        println!("{finding}");
    }
    match findings.len() {
        0 => println!("tidy: nothing to mend"),
        count => println!("tidy: {count} to mend"),
    }
    Ok(findings.is_empty())
}

fn findings() -> Result<Vec<Finding>, String> {
    let sources = read_all()?;
    let mut findings = Vec::new();
    for source in &sources {
        text::check(source, &mut findings);
        words::check(source, &mut findings);
        if source.is_rust() {
            code::check(source, &mut findings);
            doors::check(source, &mut findings);
        }
    }
    order::check(&sources, &mut findings);
    let paths: Vec<&str> = sources.iter().map(|source| source.path.as_str()).collect();
    code::check_roots(&paths, &mut findings);
    links::check(&sources, |path| repo::root().join(path).exists(), &mut findings);
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok(findings)
}

/// Every text file that is in the repository or would be added to it.
fn read_all() -> Result<Vec<Source>, String> {
    let mut git = Command::new("git");
    git.args(["ls-files", "-z", "--cached", "--others", "--exclude-standard", "--deduplicate"]);
    let list = repo::output_of(git.current_dir(repo::root()))?;
    let mut sources = Vec::new();
    for path in list.split('\0').filter(|path| !path.is_empty()) {
        // Deleted since it was added, or not text: neither is a matter of style.
        let Ok(bytes) = std::fs::read(repo::root().join(path)) else { continue };
        let Ok(text) = String::from_utf8(bytes) else { continue };
        sources.push(Source::new(path, text));
    }
    Ok(sources)
}

impl Source {
    fn new(path: &str, text: String) -> Source {
        Source {
            path: path.to_owned(),
            text,
            masked: OnceCell::new(),
            without_tests: OnceCell::new(),
            uses: OnceCell::new(),
        }
    }

    fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Files whose lines are counted in columns. Markdown is not: its tables and links are long.
    fn has_code_form(&self) -> bool {
        self.is_rust() || self.path == "Makefile" || self.path == ".ci/run"
    }

    fn is_prose_or_code(&self) -> bool {
        self.has_code_form() || self.path.ends_with(".md")
    }

    /// Returns true for a separate file of tests below `src/`.
    fn is_test(&self) -> bool {
        self.path.ends_with("/tests.rs")
            || self.path.ends_with("_tests.rs")
            || self.path.contains("/tests/")
    }

    fn code(&self) -> &str {
        &self.masked.get_or_init(|| mask::mask(&self.text)).code
    }

    fn prose(&self) -> &str {
        &self.masked.get_or_init(|| mask::mask(&self.text)).prose
    }

    fn code_without_tests(&self) -> &str {
        self.without_tests.get_or_init(|| mask::without_tests(self.code()))
    }

    /// Every path that a `use` outside tests brings in, with its place.
    fn uses(&self) -> &[(usize, String)] {
        self.uses.get_or_init(|| flattened_uses(self.code_without_tests()))
    }

    fn line_of(&self, at: usize) -> usize {
        self.text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count() + 1
    }

    fn finding(&self, line: usize, what: String) -> Finding {
        Finding { path: self.path.clone(), line, what }
    }

    fn finding_at(&self, at: usize, what: String) -> Finding {
        self.finding(self.line_of(at), what)
    }
}

/// `use a::{b, c::{d, e}}` as `a::b`, `a::c::d`, `a::c::e`.
fn flattened_uses(code: &str) -> Vec<(usize, String)> {
    let mut paths = Vec::new();
    for start in mask::words(code, "use") {
        let mut prefixes = vec![String::new()];
        let (mut path, mut path_at) = (String::new(), start);
        for (offset, character) in code[start + "use".len()..].char_indices() {
            let at = start + "use".len() + offset;
            match character {
                '{' => prefixes.push(path.clone()),
                '}' | ',' | ';' => {
                    let is_new = prefixes.last().is_some_and(|prefix| *prefix != path);
                    if is_new && !path.is_empty() {
                        paths.push((path_at, path));
                    }
                    if character == '}' && prefixes.len() > 1 {
                        prefixes.pop();
                    }
                    path = prefixes.last().cloned().unwrap_or_default();
                }
                space if space.is_whitespace() => continue,
                other => {
                    if prefixes.last().is_some_and(|prefix| *prefix == path) {
                        path_at = at;
                    }
                    path.push(other);
                }
            }
            if character == ';' {
                break;
            }
        }
    }
    paths
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the findings of one rule in one snippet.
    pub fn findings_of(
        rule: fn(&Source, &mut Vec<Finding>),
        path: &str,
        text: &str,
    ) -> Vec<Finding> {
        let mut findings = Vec::new();
        rule(&Source::new(path, text.to_owned()), &mut findings);
        findings
    }

    /// Returns files with their texts.
    pub fn sources_of(files: &[(&str, &str)]) -> Vec<Source> {
        files.iter().map(|(path, text)| Source::new(path, (*text).to_owned())).collect()
    }

    #[test]
    fn uses_are_flattened() {
        let code = "use a::{b, c::{d, e}};\nuse f;\npub use crate::g::{self, *};";
        let paths: Vec<String> = flattened_uses(code).into_iter().map(|(_, path)| path).collect();
        assert_eq!(paths, ["a::b", "a::c::d", "a::c::e", "f", "crate::g::self", "crate::g::*"]);
    }

    #[test]
    fn the_repository_keeps_its_own_rules() {
        let findings = findings().expect("git lists the files");
        let finding: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert!(finding.is_empty(), "{}", finding.join("\n"));
    }
}
