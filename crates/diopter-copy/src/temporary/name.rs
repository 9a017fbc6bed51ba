//! The names of temporaries: hidden, in the target's directory, with the target's name in them.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use crate::dir::{Entry, RANDOM_DIGITS, random_digits};
use crate::failure::Failure;

const SUFFIX: &str = ".dio-part";

/// Longest name of a file in bytes: 143 on eCryptfs, the least of the common file systems; most
/// have 255.
const NAME_BYTES_MAX: usize = 143;

/// Hex digits of a hash that keep two long names apart.
const HASH_DIGITS: usize = 16;

/// Returns a name in the target's directory that nothing has.
pub fn unused_name(target: &Entry) -> Result<Entry, Failure> {
    let digits = random_digits();
    let digits =
        digits.map_err(|errno| Failure::of_errno("naming a temporary", &target.path(), errno))?;
    let name = [target.name.as_bytes(), b".", digits.as_bytes()].concat();
    Ok(target.sibling(name_of(OsStr::from_bytes(&name))))
}

/// Returns true if [`unused_name`] may have made a name for a target. A name that was cut is not
/// recognised.
pub fn is_unused_name(name: &OsStr, target: &OsStr) -> bool {
    let start = [b".", target.as_bytes(), b"."].concat();
    let rest = name.as_bytes().strip_prefix(&start[..]);
    let digits = rest.and_then(|rest| rest.strip_suffix(SUFFIX.as_bytes()));
    let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    digits.is_some_and(|digits| digits.len() == RANDOM_DIGITS && digits.iter().all(is_digit))
}

/// Returns true if a name is one that temporaries have, be it on a file system that does not
/// distinguish upper and lower case.
pub fn is_usual_name(name: &OsStr) -> bool {
    let (name, suffix) = (name.as_bytes(), SUFFIX.as_bytes());
    name.len() >= suffix.len() && name[name.len() - suffix.len()..].eq_ignore_ascii_case(suffix)
}

/// Returns the usual name of a target's temporary.
pub fn name_of(name: &OsStr) -> OsString {
    let whole = [b".", name.as_bytes(), SUFFIX.as_bytes()].concat();
    if whole.len() <= NAME_BYTES_MAX {
        return OsString::from_vec(whole);
    }
    let hash = blake3::hash(name.as_bytes()).to_hex();
    let kept = NAME_BYTES_MAX - 2 - HASH_DIGITS - SUFFIX.len();
    // Cut between characters where the name is text: some file systems take no other names.
    let kept = match name.to_str() {
        Some(text) => (0..=kept).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0),
        None => kept,
    };
    let (start, hash) = (&name.as_bytes()[..kept], &hash.as_bytes()[..HASH_DIGITS]);
    OsString::from_vec([b".", start, b"~", hash, SUFFIX.as_bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_hidden_and_has_its_targets_in_it() {
        assert_eq!(name_of(OsStr::new("data.bin")), ".data.bin.dio-part");
    }

    #[test]
    fn a_name_that_nothing_had_is_recognised_with_its_target_alone() {
        let dir = tempfile::tempdir().unwrap();
        let target = Entry::of_path(&dir.path().join("data")).unwrap();
        let name = unused_name(&target).unwrap().name;
        assert!(is_unused_name(&name, OsStr::new("data")), "{name:?}");
        for (name, target) in [
            (&*name, "dat"),
            (&*name, "data."),
            (OsStr::new(".data.dio-part"), "data"),
            (OsStr::new(".data.0123.dio-part"), "data"),
            (OsStr::new(".data.0123456789abcdeg.dio-part"), "data"),
            (OsStr::new(".data.0123456789abcdef.dio-parts"), "data"),
        ] {
            assert!(!is_unused_name(name, OsStr::new(target)), "{name:?} {target}");
        }
    }

    #[test]
    fn a_long_name_is_cut_and_stays_apart_from_its_neighbours() {
        for letter in ["a", "\u{20ac}"] {
            let long = letter.repeat(255 / letter.len());
            let (one, other) =
                (name_of(OsStr::new(&(long.clone() + "1"))), name_of(OsStr::new(&long)));
            assert!(one.len() <= NAME_BYTES_MAX && other.len() <= NAME_BYTES_MAX);
            assert!(one.to_str().is_some());
            assert_ne!(one, other);
        }
        let bytes = OsString::from_vec(vec![0xff; 255]);
        assert!(name_of(&bytes).len() <= NAME_BYTES_MAX);
    }
}
