//! Names that are left out of a tree: patterns as in a `.gitignore`, without negation. Nothing is
//! looked up here.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use globset::{GlobBuilder, GlobMatcher};

/// Bytes of a pattern at most, as of a path. The memory of a pattern grows with them.
const BYTES_MAX: usize = 4096;

/// A pattern of names in a tree that are not copied.
///
/// `*`, `?` and `[...]` match no slash, `**` does, `{a,b}` matches each of the two, and `\` quotes.
/// `?` and `[...]` match one byte.
/// A pattern that ends in a slash matches directories alone. One with another slash is compared
/// with the path below the source, any other with the last part of it.
#[derive(Clone, Debug)]
pub struct Pattern {
    matcher: GlobMatcher,
    /// Compared with the path below the source, not with the last part of it.
    is_path: bool,
    is_of_directories: bool,
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Pattern, String> {
        if text.len() > BYTES_MAX {
            return Err(format!("a pattern has at most {BYTES_MAX} bytes, as a path has"));
        }
        check_classes(text)?;
        let is_of_directories = text.ends_with('/');
        let glob = text.trim_end_matches('/');
        let is_path = glob.contains('/');
        let glob = glob.strip_prefix('/').unwrap_or(glob);
        if glob.is_empty() {
            return Err("the pattern names nothing".to_owned());
        }
        if glob.split('/').any(|part| matches!(part, "" | "." | "..")) {
            return Err("no name in a tree has an empty part, `.` or `..`".to_owned());
        }
        let mut builder = GlobBuilder::new(glob);
        builder.literal_separator(true).backslash_escape(true).empty_alternates(true);
        let built = builder.build().map_err(|error| error.kind().to_string())?;
        // A pattern of these bytes is far below the size that the matcher refuses.
        let matcher = built.compile_matcher();
        Ok(Pattern { matcher, is_path, is_of_directories })
    }
}

impl Pattern {
    fn matches(&self, path: &OsStr, name: &OsStr) -> bool {
        self.matcher.is_match(Path::new(if self.is_path { path } else { name }))
    }
}

/// Fails for a class of characters that a shell knows and the matcher takes for another one.
fn check_classes(text: &str) -> Result<(), String> {
    let mut rest = text;
    while let Some(at) = rest.find(['[', '\\']) {
        let is_quoted = rest[at..].starts_with('\\');
        rest = &rest[at + 1..];
        if is_quoted {
            rest = rest.strip_prefix(|_| true).unwrap_or(rest);
            continue;
        }
        let class = rest.trim_start_matches(['!', '^']);
        // A bracket that comes first is one of the characters.
        let mut others = class.char_indices().skip(1);
        let Some((end, _)) = others.find(|(_, one)| *one == ']') else { return Ok(()) };
        let (inside, after) = class.split_at(end);
        if inside.contains("[:") {
            return Err("classes with a name, such as [:digit:], are not known".to_owned());
        }
        if inside.contains('/') || !inside.is_ascii() {
            let cause = "`[...]` matches one byte and not a slash";
            return Err(format!("{cause}; write other characters as {{a,b}}"));
        }
        rest = after;
    }
    Ok(())
}

/// The position of a walk in a tree, with the patterns of what it leaves out.
#[derive(Debug, Default)]
pub struct Excluded {
    patterns: Vec<Pattern>,
    /// The path below the source of the directory that the walk is in; it ends in a slash, unless
    /// it is empty.
    path: Vec<u8>,
}

/// The treatment of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Match {
    Kept,
    /// Left out if it is a directory.
    IfDirectory,
    Excluded,
}

impl Excluded {
    pub fn new(patterns: &[Pattern]) -> Excluded {
        Excluded { patterns: patterns.to_vec(), path: Vec::new() }
    }

    /// Returns true if nothing is left out.
    pub fn is_empty(&self) -> bool {
        self.patterns.is_empty()
    }

    /// Returns the treatment of a name in the directory.
    pub fn of(&mut self, name: &OsStr) -> Match {
        let mut found = Match::Kept;
        if self.patterns.is_empty() {
            return found;
        }
        let length = self.path.len();
        self.path.extend(name.as_bytes());
        for pattern in &self.patterns {
            if !pattern.matches(OsStr::from_bytes(&self.path), name) {
                continue;
            }
            if !pattern.is_of_directories {
                found = Match::Excluded;
                break;
            }
            found = Match::IfDirectory;
        }
        self.path.truncate(length);
        found
    }

    /// Enters a directory by its name; returns what to [`leave`](Excluded::leave) it with.
    pub fn enter(&mut self, name: &OsString) -> usize {
        let length = self.path.len();
        if !self.patterns.is_empty() && !name.is_empty() {
            self.path.extend(name.as_bytes());
            self.path.push(b'/');
        }
        length
    }

    pub fn leave(&mut self, length: usize) {
        self.path.truncate(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the treatment of a name in a directory, by one pattern.
    fn of(pattern: &str, directory: &str, name: &[u8]) -> Match {
        let mut excluded = Excluded::new(&[pattern.parse().unwrap()]);
        directory.split('/').for_each(|part| {
            excluded.enter(&part.into());
        });
        excluded.of(OsStr::from_bytes(name))
    }

    #[test]
    fn a_pattern_without_a_slash_matches_the_last_part_at_any_depth() {
        for directory in ["", "a", "a/b"] {
            assert_eq!(of("*.o", directory, b"x.o"), Match::Excluded);
            assert_eq!(of("*.o", directory, b"x.c"), Match::Kept);
            assert_eq!(of("*.o", directory, b"\xff.o"), Match::Excluded);
        }
        assert_eq!(of("a*b", "", b"a"), Match::Kept);
        assert_eq!(of("{x,y}.[co]", "a", b"y.c"), Match::Excluded);
        assert_eq!(of("file{,.bak}", "", b"file"), Match::Excluded);
        assert_eq!(of("[]x]", "", b"]"), Match::Excluded);
        assert_eq!(of("\\[a", "", b"[a"), Match::Excluded);
        assert_eq!(of("\\*", "", b"x"), Match::Kept);
        assert_eq!(of("\\*", "", b"*"), Match::Excluded);
    }

    #[test]
    fn a_pattern_with_a_slash_matches_the_path_below_the_source() {
        for pattern in ["a/x", "/a/x", "*/x", "**/x", "a/**"] {
            assert_eq!(of(pattern, "a", b"x"), Match::Excluded, "{pattern}");
        }
        assert_eq!(of("/x", "", b"x"), Match::Excluded);
        assert_eq!(of("/x", "a", b"x"), Match::Kept);
        assert_eq!(of("a/x", "b/a", b"x"), Match::Kept);
        assert_eq!(of("a/*", "a/b", b"x"), Match::Kept);
        assert_eq!(of("a/**/x", "a/b/c", b"x"), Match::Excluded);
    }

    #[test]
    fn a_slash_at_the_end_is_of_directories() {
        assert_eq!(of("x/", "a", b"x"), Match::IfDirectory);
        assert_eq!(of("/x/", "a", b"x"), Match::Kept);
        let both = ["x/".parse().unwrap(), "x".parse().unwrap()];
        assert_eq!(Excluded::new(&both).of(OsStr::new("x")), Match::Excluded);
    }

    #[test]
    fn the_path_is_that_of_the_directory_after_others_are_left() {
        let mut excluded = Excluded::new(&["a/x".parse().unwrap()]);
        let root = excluded.enter(&OsString::new());
        let length = excluded.enter(&"b".into());
        assert_eq!(excluded.of(OsStr::new("x")), Match::Kept);
        excluded.leave(length);
        excluded.enter(&"a".into());
        assert_eq!((root, excluded.of(OsStr::new("x"))), (0, Match::Excluded));
    }

    #[test]
    fn a_pattern_that_matches_nothing_or_other_names_than_in_a_shell_is_refused() {
        let refused =
            ["", "/", "[a", "{a", "//a", "./a", "a/../b", "a[/]b", "[\u{e9}]x", "[[:alpha:]]x"];
        let long = "*".repeat(BYTES_MAX + 1);
        for pattern in refused.into_iter().chain([&*long]) {
            assert!(pattern.parse::<Pattern>().is_err(), "{pattern}");
        }
        let longest = "*".repeat(BYTES_MAX);
        assert!(longest.parse::<Pattern>().is_ok());
    }
}
