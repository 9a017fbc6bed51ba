//! Paragraphs of a terminal.

use textwrap::{Options, WordSeparator, WordSplitter, WrapAlgorithm};

/// Wraps a paragraph at `columns` columns; a longer word has a separate line. `indents` precede
/// the first line and the others.
#[must_use]
pub fn wrapped(text: &str, columns: usize, indents: [&str; 2]) -> Vec<String> {
    let options = Options::new(columns)
        .initial_indent(indents[0])
        .subsequent_indent(indents[1])
        .break_words(false)
        .word_separator(WordSeparator::AsciiSpace)
        .word_splitter(WordSplitter::NoHyphenation)
        .wrap_algorithm(WrapAlgorithm::FirstFit);
    textwrap::wrap(text, options).into_iter().map(Into::into).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_word_has_a_separate_line_and_lines_are_indented() {
        let lines = wrapped("one two averyverylongword-end x", 10, ["- ", "  "]);
        assert_eq!(lines, ["- one two", "  averyverylongword-end", "  x"]);
    }
}
