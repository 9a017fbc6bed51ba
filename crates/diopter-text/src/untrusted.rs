//! Escapes text from other people where it leaves the program: job names, file names, manifests. A
//! terminal acts on control characters, a reader is misled by characters that reorder or hide
//! others, and a spreadsheet evaluates fields. Each output is escaped once, as a whole.

use std::borrow::Cow;
use std::fmt::Write as _;
use std::path::Path;

/// Styles of this workspace, which a coloured output keeps.
const STYLES: [&str; 9] = [
    "\u{1b}[0m",
    "\u{1b}[1m",
    "\u{1b}[2m",
    "\u{1b}[4m",
    "\u{1b}[31m",
    "\u{1b}[32m",
    "\u{1b}[33m",
    "\u{1b}[36m",
    "\u{1b}[1;31m",
];

/// Returns true if a character acts on a terminal or changes how its neighbours are read: control
/// characters, and those that set the direction of text, join words or have no width.
#[must_use]
pub fn is_unsafe(character: char) -> bool {
    character.is_control()
        || matches!(
            character,
            '\u{61c}'
                | '\u{180e}'
                | '\u{200b}'..='\u{200f}'
                | '\u{2028}'..='\u{202e}'
                | '\u{2060}'..='\u{206f}'
                | '\u{feff}'
                | '\u{fff9}'..='\u{fffb}'
                | '\u{e0000}'..='\u{e007f}'
        )
}

/// Returns a file name for a message: as it is, or quoted if it has unsafe characters.
#[must_use]
pub fn name(name: impl AsRef<Path>) -> String {
    let name = name.as_ref();
    let plain = name.display().to_string();
    if !plain.contains(is_unsafe) {
        return plain;
    }
    // Debug output leaves some characters that reorder text.
    text(&format!("{name:?}")).into_owned()
}

/// Escapes the line feeds of a text that is part of one line: no name begins a line, which a reader
/// would take for the program's. [`text`] escapes the output as a whole.
#[must_use]
pub fn line(text: &str) -> Cow<'_, str> {
    if text.contains('\n') { Cow::Owned(text.replace('\n', "\\u{a}")) } else { Cow::Borrowed(text) }
}

/// Escapes text for a terminal or a text file: lines and tabs stay, other unsafe characters are
/// written as `\u{1b}`.
#[must_use]
pub fn text(text: &str) -> Cow<'_, str> {
    replaced(text, |escaped, character| {
        write!(escaped, "\\u{{{:x}}}", u32::from(character)).expect("infallible");
    })
}

/// Like [`text`], but keeps the styles of this workspace.
#[must_use]
pub fn styled(painted: &str) -> Cow<'_, str> {
    if !painted.contains(is_replaced) {
        return Cow::Borrowed(painted);
    }
    let mut escaped = String::with_capacity(painted.len());
    let mut rest = painted;
    while let Some(at) = rest.find('\u{1b}') {
        escaped.push_str(&text(&rest[..at]));
        rest = &rest[at..];
        let style = STYLES.iter().find(|style| rest.starts_with(**style));
        let (kept, length) = style.map_or(("\\u{1b}", 1), |style| (*style, style.len()));
        escaped.push_str(kept);
        rest = &rest[length..];
    }
    escaped.push_str(&text(rest));
    Cow::Owned(escaped)
}

/// Escapes a JSON document: the same document, with `\u202e` in place of characters that JSON does
/// not escape in strings.
#[must_use]
pub fn json(document: &str) -> Cow<'_, str> {
    replaced(document, |escaped, character| {
        let mut units = [0; 2];
        for unit in character.encode_utf16(&mut units) {
            write!(escaped, "\\u{unit:04x}").expect("infallible");
        }
    })
}

/// Escapes an HTML page: unsafe characters are replaced, both in text and in the scripts' strings.
#[must_use]
pub fn page(html: &str) -> Cow<'_, str> {
    replaced(html, |escaped, _| escaped.push(char::REPLACEMENT_CHARACTER))
}

/// Escapes a field of a CSV file: an apostrophe precedes one that a spreadsheet would evaluate.
#[must_use]
pub fn csv_field(field: &str) -> String {
    let is_formula = field.starts_with(['=', '+', '-', '@', '\t', '\r']);
    let field = text(&line(field)).into_owned();
    if is_formula { format!("'{field}") } else { field }
}

fn is_replaced(character: char) -> bool {
    is_unsafe(character) && !matches!(character, '\n' | '\t')
}

fn replaced(text: &str, replace: impl Fn(&mut String, char)) -> Cow<'_, str> {
    if !text.contains(is_replaced) {
        return Cow::Borrowed(text);
    }
    let mut escaped = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_replaced(character) {
            replace(&mut escaped, character);
        } else {
            escaped.push(character);
        }
    }
    Cow::Owned(escaped)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOSTILE: &str = "a\u{1b}]0;x\u{7}b\u{9b}2J\u{202e}c\u{2066}d\u{200b}\r\u{7f}";

    #[test]
    fn what_a_terminal_acts_on_is_written_out_and_lines_stay() {
        let expected = "a\\u{1b}]0;x\\u{7}b\\u{9b}2J\\u{202e}c\\u{2066}d\\u{200b}\\u{d}\\u{7f}";
        assert_eq!(text(HOSTILE), expected);
        assert_eq!(styled(HOSTILE), expected);
        assert_eq!(text("a\n\tb \u{e9}\u{4e2d}"), "a\n\tb \u{e9}\u{4e2d}");
    }

    #[test]
    fn a_line_stays_one() {
        assert_eq!(line("a\nb\n\u{1b}[1m"), "a\\u{a}b\\u{a}\u{1b}[1m");
        assert!(matches!(line("a\tb"), Cow::Borrowed("a\tb")));
    }

    #[test]
    fn a_name_is_quoted_for_each_unsafe_character_and_for_no_other() {
        assert_eq!(name("plain 'name'"), "plain 'name'");
        assert_eq!(name("bad\u{1b}[2J\nname"), "\"bad\\u{1b}[2J\\nname\"");
        for character in '\0'..=char::MAX {
            let plain = format!("a{character}b");
            let shown = name(&plain);
            assert_eq!(shown != plain, is_unsafe(character), "{character:?}");
            assert!(!shown.contains(is_unsafe), "{character:?}");
        }
    }

    #[test]
    fn styles_of_this_workspace_stay_and_other_sequences_do_not() {
        let painted = "\u{1b}[1m\u{1b}[31mbad\u{1b}[0m \u{1b}[2Jx\u{1b}[5m\u{1b}";
        let expected = "\u{1b}[1m\u{1b}[31mbad\u{1b}[0m \\u{1b}[2Jx\\u{1b}[5m\\u{1b}";
        assert_eq!(styled(painted), expected);
    }

    #[test]
    fn a_document_means_the_same_after_it_was_escaped() {
        let document = serde_json::to_string(&format!("{HOSTILE}\u{e0041}")).unwrap();
        let escaped = json(&document);
        assert!(!escaped.contains(is_unsafe), "{escaped}");
        let [one, two] =
            [&*document, &*escaped].map(|it| serde_json::from_str::<String>(it).unwrap());
        assert_eq!(one, two);
    }

    #[test]
    fn a_field_that_a_spreadsheet_would_evaluate_is_text() {
        assert_eq!(csv_field("=HYPERLINK(1)"), "'=HYPERLINK(1)");
        assert_eq!(csv_field("@a"), "'@a");
        assert_eq!(csv_field("\r=1"), "'\\u{d}=1");
        assert_eq!(csv_field("4k-read"), "4k-read");
    }
}
