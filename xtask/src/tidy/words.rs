//! The rule about words: comments, messages and Markdown use the field's terms. The words and
//! their replacements are in `words.txt`, and `words-exceptions.txt` lists where one may occur.

use super::{Finding, Source, mask};
use std::sync::LazyLock;

const WORDS: &str = include_str!("words.txt");
const EXCEPTIONS: &str = include_str!("words-exceptions.txt");

/// The parsed lists.
struct Rules {
    /// A phrase in lower case, and what to write instead.
    phrases: Vec<(&'static str, &'static str)>,
    allowed: Vec<&'static str>,
    openings: Vec<(&'static str, &'static str)>,
    exceptions: Vec<(&'static str, &'static str)>,
}

static RULES: LazyLock<Rules> = LazyLock::new(|| Rules::parse(WORDS, EXCEPTIONS));

impl Rules {
    fn parse(words: &'static str, exceptions: &'static str) -> Rules {
        let mut rules = Rules {
            phrases: Vec::new(),
            allowed: Vec::new(),
            openings: Vec::new(),
            exceptions: entries(exceptions).filter_map(|line| line.split_once(": ")).collect(),
        };
        for line in entries(words) {
            if let Some(phrase) = line.strip_prefix("ok: ") {
                rules.allowed.push(phrase);
                continue;
            }
            let opening = line.strip_prefix("opening: ");
            let (phrases, instead) =
                opening.unwrap_or(line).split_once(" -> ").expect("`a, b -> c` in words.txt");
            let list = if opening.is_some() { &mut rules.openings } else { &mut rules.phrases };
            list.extend(phrases.split(", ").map(|phrase| (phrase, instead)));
        }
        rules
    }
}

fn entries(list: &'static str) -> impl Iterator<Item = &'static str> {
    list.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

/// The rule, over one file.
pub fn check(source: &Source, findings: &mut Vec<Finding>) {
    let paragraphs = if source.is_rust() {
        rust_paragraphs(&source.text)
    } else if source.path.ends_with(".md") {
        markdown_paragraphs(&source.text)
    } else if source.has_code_form() {
        marked_paragraphs(&source.text, "#")
    } else {
        return;
    };
    for paragraph in &paragraphs {
        check_paragraph(source, paragraph, findings);
    }
}

fn check_paragraph(source: &Source, paragraph: &Paragraph, findings: &mut Vec<Finding>) {
    let text = without_quotes(&paragraph.text).to_ascii_lowercase();
    let excepted = |phrase: &str| {
        let mut exceptions = RULES.exceptions.iter();
        exceptions.any(|(path, it)| source.path.starts_with(path) && (*it == phrase || *it == "*"))
    };
    for (phrase, instead) in RULES.phrases.iter().filter(|(phrase, _)| !excepted(phrase)) {
        for at in mask::words(&text, phrase).filter(|&at| !is_allowed(&text, at)) {
            let what = format!("`{phrase}`; write: {instead}");
            findings.push(source.finding(paragraph.line_at(at), what));
        }
    }
    if paragraph.is_documentation {
        let first = paragraph.text.split_whitespace().next().unwrap_or_default();
        let found = RULES.openings.iter().find(|(opening, _)| *opening == first);
        if let Some((opening, instead)) = found.filter(|(opening, _)| !excepted(opening)) {
            let what = format!("documentation opens with `{opening}`; open with {instead}");
            findings.push(source.finding(paragraph.line_at(0), what));
        }
    }
}

/// True if the word at `at` is part of an allowed phrase.
fn is_allowed(text: &str, at: usize) -> bool {
    RULES.allowed.iter().any(|phrase| {
        mask::words(text, phrase).any(|start| start <= at && at < start + phrase.len())
    })
}

/// Text that reads as one: its lines joined by a space.
#[derive(Default)]
struct Paragraph {
    text: String,
    /// Where each line begins in `text`, and its number in the file.
    lines: Vec<(usize, usize)>,
    is_documentation: bool,
}

impl Paragraph {
    fn push(&mut self, line: usize, text: &str) {
        if !self.text.is_empty() {
            self.text.push(' ');
        }
        self.lines.push((self.text.len(), line));
        self.text.push_str(text);
    }

    fn line_at(&self, at: usize) -> usize {
        self.lines.iter().rev().find(|(start, _)| *start <= at).map_or(1, |(_, line)| *line)
    }
}

/// The comments of a Rust file, a run of lines each, and its strings of several words.
fn rust_paragraphs(text: &str) -> Vec<Paragraph> {
    let masked = mask::mask(text);
    let mut all = Vec::new();
    let mut comment = Paragraph::default();
    let mut marker = "";
    let lines = text.lines().zip(masked.prose.lines()).zip(masked.code.lines());
    for (index, ((line, prose), code)) in lines.enumerate() {
        let trimmed = line.trim_start();
        let found = ["//!", "///", "//"].into_iter().find(|it| trimmed.starts_with(it));
        if found.is_none_or(|found| found != marker) && !comment.text.is_empty() {
            all.push(std::mem::take(&mut comment));
        }
        marker = found.unwrap_or("");
        if let Some(found) = found {
            comment.is_documentation = found != "//";
            comment.push(index + 1, trimmed[found.len()..].trim());
        } else if let Some(at) = trailing_comment(prose, code) {
            let mut trailing = Paragraph::default();
            trailing.push(index + 1, line[at..].trim());
            all.push(trailing);
        }
    }
    all.push(comment);
    all.extend(strings(text, &masked.prose));
    all
}

/// Where a comment behind code begins: the first byte that `prose` keeps and `code` does not.
fn trailing_comment(prose: &str, code: &str) -> Option<usize> {
    let mut pairs = prose.bytes().zip(code.bytes());
    let at = pairs.position(|(prose, code)| prose == b'/' && code == b' ')?;
    prose.is_char_boundary(at).then_some(at)
}

/// The strings that have several words: what is blank in `prose` and not in the text.
fn strings(text: &str, prose: &str) -> Vec<Paragraph> {
    let mut found = Vec::new();
    let mut current = Paragraph::default();
    for (index, (line, prose)) in text.lines().zip(prose.lines()).enumerate() {
        let mut from = None;
        for (at, (byte, kept)) in line.bytes().zip(prose.bytes()).enumerate() {
            let in_string = byte != kept || (from.is_some() && byte == b' ' && kept == b' ');
            match (in_string, from) {
                (true, None) => from = Some(at),
                (false, Some(start)) => {
                    push_string(&mut current, index + 1, line, start, at);
                    found.push(std::mem::take(&mut current));
                    from = None;
                }
                _ => {}
            }
        }
        match from {
            Some(start) if line.ends_with('\\') => {
                push_string(&mut current, index + 1, line, start, line.len() - 1);
            }
            Some(start) => {
                push_string(&mut current, index + 1, line, start, line.len());
                found.push(std::mem::take(&mut current));
            }
            None if !current.text.is_empty() => found.push(std::mem::take(&mut current)),
            None => {}
        }
    }
    found.push(current);
    found.retain(|string| string.text.contains(' '));
    found
}

fn push_string(to: &mut Paragraph, number: usize, line: &str, start: usize, end: usize) {
    if let Some(text) = line.get(start..end) {
        to.push(number, text.trim_matches(|c: char| c == '"' || c.is_whitespace()));
    }
}

/// The paragraphs of a Markdown file, without blocks of code.
fn markdown_paragraphs(text: &str) -> Vec<Paragraph> {
    let mut all = Vec::new();
    let mut current = Paragraph::default();
    let mut is_code = false;
    for (index, line) in text.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        if is_fence || is_code || line.trim().is_empty() {
            all.push(std::mem::take(&mut current));
        } else {
            current.push(index + 1, line.trim());
        }
    }
    all.push(current);
    all
}

/// The runs of lines that begin with `marker`.
fn marked_paragraphs(text: &str, marker: &str) -> Vec<Paragraph> {
    let mut all = Vec::new();
    let mut current = Paragraph::default();
    for (index, line) in text.lines().enumerate() {
        match line.trim_start().strip_prefix(marker) {
            Some(comment) => current.push(index + 1, comment.trim()),
            None => all.push(std::mem::take(&mut current)),
        }
    }
    all.push(current);
    all
}

/// The text with what is between backticks or double quotes blanked, where they come in pairs.
fn without_quotes(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    for quote in [b'`', b'"'] {
        let places: Vec<usize> = (0..bytes.len()).filter(|&at| bytes[at] == quote).collect();
        for pair in places.chunks_exact(2) {
            bytes[pair[0]..=pair[1]].fill(b' ');
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_of;

    #[track_caller]
    fn check(path: &str, text: &str, expected: usize) {
        let found = findings_of(super::check, path, text);
        assert_eq!(found.len(), expected, "{path}: {text:?}: {found:?}");
    }

    #[test]
    fn words_of_the_list_are_found_in_comments_and_messages() {
        check("a.rs", concat!("// A caller is to", "ld so.\n"), 1);
        check(
            "a.rs",
            concat!("fn a() { b(\"no", "body has opened it\"); } // looks ", "after it\n"),
            2,
        );
        check("a.rs", "//! An engine of its\n//! own.\n", 1);
        check("a.rs", "fn a() { b(\"an engine of \\\n    its own\"); }\n", 1);
    }

    #[test]
    fn identifiers_code_and_quotes_are_left_alone() {
        check("a.rs", concat!("fn to", "ld() { fol", "der(\"fol", "der\", be", "side); }\n"), 0);
        check("a.rs", "// The key `folders`, once called \"folder\".\n", 0);
        check("a.md", "```\nfolder\n```\n`folder`\n", 0);
    }

    #[test]
    fn a_phrase_may_be_part_of_an_allowed_one() {
        check("a.md", "There is no such file; it is no longer there.\n", 0);
        check("a.md", concat!("That is ", "no file.\n"), 1);
    }

    #[test]
    fn documentation_opens_with_a_verb_or_a_noun() {
        check("a.rs", "/// Whether it is open.\nfn a() {}\n", 1);
        check("a.rs", "/// Returns true if it is open.\n///\n/// What else.\nfn a() {}\n", 0);
        check("a.rs", "// What a comment opens with is free.\n", 0);
    }
}
