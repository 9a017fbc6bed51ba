//! Rust source with what is not code blanked out, so that the rules can search for words without
//! meeting them in a string. Lines and columns stay what they were. It knows no rules.

/// One source text, twice: both have the length and the lines of the original.
pub struct Masked {
    /// Strings, characters and comments blanked.
    pub code: String,
    /// Only strings and characters blanked: what a person wrote as code or as prose.
    pub prose: String,
}

/// Blanks what is not code. Text that does not compile gives some result, never a panic.
pub fn mask(text: &str) -> Masked {
    let bytes = text.as_bytes();
    let (mut code, mut prose) = (bytes.to_vec(), bytes.to_vec());
    let mut at = 0;
    while at < bytes.len() {
        let (end, is_comment) = match bytes[at] {
            b'/' if bytes.get(at + 1) == Some(&b'/') => (line_end(bytes, at), true),
            b'/' if bytes.get(at + 1) == Some(&b'*') => (block_comment_end(bytes, at), true),
            b'"' => (string_end(bytes, at), false),
            b'r' if is_raw_start(bytes, at) => (raw_string_end(bytes, at), false),
            b'\'' => (character_end(bytes, at), false),
            _ => {
                at += 1;
                continue;
            }
        };
        let end = end.min(bytes.len());
        blank(&mut code[at..end]);
        if !is_comment {
            blank(&mut prose[at..end]);
        }
        at = end.max(at + 1);
    }
    Masked { code: into_text(code), prose: into_text(prose) }
}

/// The code with everything that only tests compile blanked: an item under a `cfg` that names
/// `test`, with its attributes.
pub fn without_tests(code: &str) -> String {
    let mut bytes = code.as_bytes().to_vec();
    let mut from = 0;
    while let Some(found) = code[from..].find("#[cfg(") {
        let start = from + found;
        let attribute_end = balanced_end(code.as_bytes(), start + 1);
        let attribute = &code[start..attribute_end];
        from = attribute_end;
        if has_word(attribute, "test") && !attribute.contains("not(test") {
            from = item_end(code.as_bytes(), attribute_end);
            blank(&mut bytes[start..from]);
        }
    }
    into_text(bytes)
}

/// The byte after the bracket that closes the one at `open`; the end of the text if none does.
pub fn balanced_end(bytes: &[u8], open: usize) -> usize {
    let mut depth = 0_u32;
    for (at, byte) in bytes.iter().enumerate().skip(open) {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            _ => {}
        }
    }
    bytes.len()
}

/// Returns the places of `word` in `text` as a whole word.
pub fn words<'a>(text: &'a str, word: &'a str) -> impl Iterator<Item = usize> + 'a {
    text.match_indices(word).map(|(at, _)| at).filter(move |&at| {
        let before = text[..at].bytes().next_back();
        let after = text[at + word.len()..].bytes().next();
        !before.is_some_and(is_word_byte) && !after.is_some_and(is_word_byte)
    })
}

/// Returns true if a byte can be inside an identifier.
pub fn is_word_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

fn has_word(text: &str, word: &str) -> bool {
    words(text, word).next().is_some()
}

/// The end of the item that follows an attribute: its closing brace or its semicolon.
fn item_end(bytes: &[u8], from: usize) -> usize {
    let mut at = from;
    while at < bytes.len() {
        match bytes[at] {
            b';' => return at + 1,
            b'{' => return balanced_end(bytes, at),
            b'(' | b'[' => at = balanced_end(bytes, at),
            _ => at += 1,
        }
    }
    bytes.len()
}

fn blank(bytes: &mut [u8]) {
    for byte in bytes.iter_mut().filter(|byte| **byte != b'\n') {
        *byte = b' ';
    }
}

/// Blanking replaces whole characters, so what is left is text; `lossy` only spares an `expect`.
fn into_text(bytes: Vec<u8>) -> String {
    String::from_utf8_lossy(&bytes).into_owned()
}

fn line_end(bytes: &[u8], start: usize) -> usize {
    let length = bytes[start..].iter().position(|byte| *byte == b'\n');
    length.map_or(bytes.len(), |length| start + length)
}

fn block_comment_end(bytes: &[u8], start: usize) -> usize {
    let (mut at, mut depth) = (start, 0_u32);
    while at + 1 < bytes.len() {
        match (bytes[at], bytes[at + 1]) {
            (b'/', b'*') => (depth, at) = (depth + 1, at + 2),
            (b'*', b'/') if depth == 1 => return at + 2,
            (b'*', b'/') => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
    }
    bytes.len()
}

fn string_end(bytes: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// An `r` that opens `r"..."`, `br"..."` or `r#"..."#`, and is not the end of a name.
fn is_raw_start(bytes: &[u8], start: usize) -> bool {
    let after = bytes[start + 1..].iter().find(|byte| **byte != b'#');
    let before = match bytes[..start] {
        [.., before, b'b' | b'c'] => Some(before),
        [b'b' | b'c'] | [] => None,
        [.., before] => Some(before),
    };
    after == Some(&b'"') && !before.is_some_and(is_word_byte)
}

fn raw_string_end(bytes: &[u8], start: usize) -> usize {
    let hashes = bytes[start + 1..].iter().take_while(|byte| **byte == b'#').count();
    let mut at = start + 1 + hashes + 1;
    while at < bytes.len() {
        let closing = &bytes[at + 1..];
        if bytes[at] == b'"' && closing.iter().take_while(|byte| **byte == b'#').count() >= hashes {
            return at + 1 + hashes;
        }
        at += 1;
    }
    bytes.len()
}

/// The end of a character; of a lifetime, only its quote, since the name after it is code.
fn character_end(bytes: &[u8], start: usize) -> usize {
    if bytes.get(start + 1) == Some(&b'\\') {
        // From the byte after the escaped one, which may be a quote itself.
        let closing = bytes.iter().skip(start + 3).position(|byte| *byte == b'\'');
        return closing.map_or(bytes.len(), |length| start + 3 + length + 1);
    }
    let width = match bytes.get(start + 1) {
        Some(0xF0..) => 4,
        Some(0xE0..) => 3,
        Some(0xC0..) => 2,
        _ => 1,
    };
    if bytes.get(start + 1 + width) == Some(&b'\'') { start + width + 2 } else { start + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(mask(text).code.split_whitespace().collect::<Vec<_>>().join(" "), expected);
    }

    #[test]
    fn strings_characters_and_comments_are_blanked_and_code_is_not() {
        check("a(\"x \\\" y\", b) // c", "a( , b)");
        check("a(r#\"x \" y\"#, br\"z\", c\"d\") b", "a( , b , c ) b");
        check("a /* b /* c */ d */ e", "a e");
        check("a('\\'', '\"', b'{', '\\u{1F600}') b", "a( , , b , ) b");
        check("fn a<'b>(c: &'b str, d: r#type) {}", "fn a< b>(c: & b str, d: r#type) {}");
    }

    #[test]
    fn lines_and_lengths_stay_what_they_were() {
        let text = "a \"x\ny\" // c\n'\u{e9}' d\n";
        let masked = mask(text);
        assert_eq!(masked.code.len(), text.len());
        assert_eq!(masked.code.lines().count(), text.lines().count());
        assert!(masked.prose.contains("// c"));
    }

    #[test]
    fn text_that_ends_too_soon_is_no_panic() {
        for text in ["\"a", "r#\"a", "/* a", "'", "'\\", "'\\'", "#[cfg(", "#[cfg(test)] mod t {"] {
            without_tests(&mask(text).code);
        }
    }

    #[test]
    fn what_only_tests_compile_is_blanked() {
        let code =
            "use a; #[cfg(test)] #[path = x] mod t { fn u() { v } } #[cfg(all(test, b))] use c;";
        assert_eq!(without_tests(code).trim_end(), "use a;");
        let kept = "#[cfg(not(test))] use a;";
        assert_eq!(without_tests(kept), kept);
    }
}
