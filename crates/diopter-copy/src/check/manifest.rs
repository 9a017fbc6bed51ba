//! Lists of sums in the format of `b3sum` and `sha256sum`: a line for each file, with 64
//! hexadecimal digits, two spaces, and the name. A line whose name has a backslash or a line feed
//! begins with a backslash, and has `\\` and `\n` in their places. Other bytes of a name are in the
//! list as they are, whatever their encoding.

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// Bytes of a line at most: some times what a path can have.
pub const LINE_BYTES_MAX: usize = 64 << 10;

/// Digits of a sum.
const DIGITS: usize = 2 * blake3::OUT_LEN;

/// A line of a list of sums.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ManifestLine {
    /// The file.
    pub path: PathBuf,
    /// BLAKE3 of its content.
    pub hash: blake3::Hash,
}

/// Why a line is not one of a list of sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ParseLineError(&'static str);

impl fmt::Display for ParseLineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for ParseLineError {}

impl ManifestLine {
    /// Returns the line, with a line feed at its end.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let (is_escaped, name) = escaped(&self.path);
        let mut line = Vec::with_capacity(DIGITS + name.len() + 4);
        line.extend(is_escaped.then_some(b'\\'));
        line.extend(self.hash.to_hex().as_bytes());
        line.extend(b"  ");
        line.extend(name);
        line.push(b'\n');
        line
    }

    /// Returns the name as it is in the line, with the backslash that says that it is escaped.
    #[must_use]
    pub fn name_bytes(&self) -> Vec<u8> {
        let (is_escaped, name) = escaped(&self.path);
        is_escaped.then_some(b'\\').into_iter().chain(name).collect()
    }

    /// Parses a line without the line feed at its end.
    ///
    /// # Errors
    /// It has another form, or a null byte.
    pub fn parse(line: &[u8]) -> Result<ManifestLine, ParseLineError> {
        let (is_escaped, line) = match line.strip_prefix(b"\\") {
            Some(rest) => (true, rest),
            None => (false, line),
        };
        let malformed = ParseLineError("it is not a BLAKE3 sum, two spaces and a name");
        let (digits, rest) = line.split_at_checked(DIGITS).ok_or(malformed)?;
        let hash = blake3::Hash::from_hex(digits).map_err(|_| malformed)?;
        // An asterisk says that md5sum read a file as binary, which means nothing on Linux.
        let name = rest.strip_prefix(b"  ").or_else(|| rest.strip_prefix(b" *"));
        let name = name.filter(|name| !name.is_empty()).ok_or(malformed)?;
        if name.contains(&0) {
            return Err(ParseLineError("the name has a null byte"));
        }
        let name = if is_escaped { unescaped(name)? } else { name.to_vec() };
        Ok(ManifestLine { path: OsString::from_vec(name).into(), hash })
    }
}

/// Returns the name of a path as it is in a line, and whether it has escapes.
fn escaped(path: &Path) -> (bool, Vec<u8>) {
    let plain = path.as_os_str().as_bytes();
    let mut name = Vec::with_capacity(plain.len());
    for byte in plain {
        match byte {
            b'\\' => name.extend(b"\\\\"),
            b'\n' => name.extend(b"\\n"),
            other => name.push(*other),
        }
    }
    (name.len() > plain.len(), name)
}

fn unescaped(name: &[u8]) -> Result<Vec<u8>, ParseLineError> {
    let mut bytes = name.iter();
    let mut plain = Vec::with_capacity(name.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'\\' => match bytes.next() {
                Some(b'\\') => b'\\',
                Some(b'n') => b'\n',
                // As sha256sum writes it.
                Some(b'r') => b'\r',
                _ => return Err(ParseLineError("a backslash of the name has no meaning")),
            },
            other => *other,
        });
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of an empty file.
    const EMPTY: &str = "af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262";

    fn line(name: &[u8]) -> ManifestLine {
        let path = OsString::from_vec(name.to_vec()).into();
        ManifestLine { path, hash: blake3::hash(b"") }
    }

    #[test]
    fn lines_are_those_of_b3sum() {
        let text = |name: &[u8]| String::from_utf8(line(name).to_bytes()).unwrap();
        assert_eq!(text(b"a b"), format!("{EMPTY}  a b\n"));
        assert_eq!(text(b"x\nx"), format!("\\{EMPTY}  x\\nx\n"));
        assert_eq!(text(b"x\\n\rx"), format!("\\{EMPTY}  x\\\\n\rx\n"));
        let other = ManifestLine::parse(format!("\\{EMPTY}  x\\rx").as_bytes());
        assert_eq!(other, Ok(line(b"x\rx")), "sha256sum escapes it");
    }

    #[test]
    fn every_name_comes_back() {
        let all: Vec<u8> = (1..=255).collect();
        for name in [&all[..], b" leading and trailing ", b"*", b"\\", b"\\n", b"\xff\xfe"] {
            let written = line(name).to_bytes();
            let read = ManifestLine::parse(written.strip_suffix(b"\n").unwrap());
            assert_eq!(read, Ok(line(name)));
        }
    }

    #[test]
    fn the_line_of_a_program_that_reads_binary_has_an_asterisk() {
        let parsed = ManifestLine::parse(format!("{EMPTY} *name").as_bytes());
        assert_eq!(parsed, Ok(line(b"name")));
        let literal = ManifestLine::parse(format!("{EMPTY}  a\\nb").as_bytes());
        assert_eq!(literal, Ok(line(b"a\\nb")), "only a marked line has escapes");
    }

    #[test]
    fn other_lines_are_refused() {
        let long = format!("{EMPTY}00  name");
        let null = format!("{EMPTY}  a\0b");
        let escape = format!("\\{EMPTY}  a\\tb");
        let ending = format!("\\{EMPTY}  a\\");
        let unnamed = format!("{EMPTY}  ");
        let once = format!("{EMPTY} name");
        let digits = format!("{}zz  name", &EMPTY[..62]);
        for text in ["", "\\", &EMPTY[..63], EMPTY, &unnamed, &once, &long, &digits] {
            assert!(ManifestLine::parse(text.as_bytes()).is_err(), "{text}");
        }
        let cause = |text: &str| ManifestLine::parse(text.as_bytes()).unwrap_err().to_string();
        assert_eq!(cause(&null), "the name has a null byte");
        assert_eq!(cause(&escape), cause(&ending));
    }
}
