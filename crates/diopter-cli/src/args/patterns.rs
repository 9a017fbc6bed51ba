//! Patterns of names that are left out of a copy: on the command line, and in a file.

use std::ffi::OsStr;
use std::io::Read;

use clap::builder::{OsStringValueParser, TypedValueParser};
use diopter_copy::Pattern;

/// Parses a pattern of names.
pub fn parse(text: &str) -> Result<Pattern, String> {
    text.parse().map_err(|why| format!("{why}; quote `*`, `?`, `[` and `{{` with a backslash"))
}

/// Bytes of a file of patterns at most.
const PATTERNS_BYTES_MAX: u64 = 1 << 20;

/// The patterns of a file.
#[derive(Clone, Debug)]
pub struct Patterns(pub Vec<Pattern>);

/// Takes the name of a file and reads its patterns, one a line; `-` is standard input.
pub fn in_file() -> impl TypedValueParser<Value = Patterns> {
    OsStringValueParser::new().try_map(|name| read(&name))
}

fn read(name: &OsStr) -> Result<Patterns, String> {
    let mut text = Vec::new();
    let read = if name == "-" {
        std::io::stdin().lock().take(PATTERNS_BYTES_MAX + 1).read_to_end(&mut text)
    } else {
        let file = std::fs::File::open(name);
        file.and_then(|file| file.take(PATTERNS_BYTES_MAX + 1).read_to_end(&mut text))
    };
    let length = read.map_err(|error| format!("it cannot be read: {error}"))?;
    if u64::try_from(length).is_ok_and(|length| length > PATTERNS_BYTES_MAX) {
        return Err("a file of patterns has at most 1 MiB".to_owned());
    }
    parse_lines(&text).map(Patterns)
}

fn parse_lines(text: &[u8]) -> Result<Vec<Pattern>, String> {
    // As editors of Windows write text.
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(text);
    let lines = text.split(|byte| *byte == b'\n').enumerate();
    let lines = lines.map(|(index, line)| (index, line.strip_suffix(b"\r").unwrap_or(line)));
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with(b"#"));
    let parse_line = |(index, line): (usize, &[u8])| {
        let failed = |why: String| format!("line {}: {why}", index + 1);
        let text = std::str::from_utf8(line);
        let text = text.map_err(|_| failed("it is not UTF-8".to_owned()))?;
        parse(text).map_err(failed)
    };
    lines.map(parse_line).collect()
}
