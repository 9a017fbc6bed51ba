//! Names of the form `IMAGE::/PATH`. Only this file knows the separator.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Separates an image from a path in it.
const SEPARATOR: &[u8] = b"::/";

/// A path inside an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InsideName {
    /// The image or device.
    pub image: PathBuf,
    /// The path from its root: begins with a slash, and may be any bytes.
    pub path: Vec<u8>,
}

/// Splits a name at the first `::/` after an existing path; `None` for a plain path: one that
/// exists as a whole, or has no image in it.
pub fn split_name(name: &Path) -> Option<InsideName> {
    let bytes = name.as_os_str().as_bytes();
    if !bytes.windows(SEPARATOR.len()).any(|window| window == SEPARATOR) {
        return None;
    }
    // A dangling link exists too.
    if name.symlink_metadata().is_ok() {
        return None;
    }
    let starts = bytes.windows(SEPARATOR.len()).enumerate();
    let mut starts = starts.filter(|(at, window)| *at > 0 && *window == SEPARATOR);
    starts.find_map(|(at, _)| {
        let image = Path::new(OsStr::from_bytes(&bytes[..at]));
        let is_there = image.metadata().is_ok();
        let path = bytes[at + SEPARATOR.len() - 1..].to_vec();
        is_there.then(|| InsideName { image: image.to_owned(), path })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory with these files in it.
    fn dir(names: &[&str]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in names {
            let path = dir.path().join(name);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        dir
    }

    /// How `name` is split in a directory with `names`: image and path.
    fn check(names: &[&str], name: &str, expected: Option<(&str, &str)>) {
        let dir = dir(names);
        let found = split_name(&dir.path().join(name));
        let expected = expected.map(|(image, path)| InsideName {
            image: dir.path().join(image),
            path: path.as_bytes().to_vec(),
        });
        assert_eq!(found, expected, "{name}");
    }

    #[test]
    fn an_image_that_is_there_is_split_from_the_path_behind_it() {
        check(&["a.img"], "a.img::/b/c", Some(("a.img", "/b/c")));
        check(&["a.img"], "a.img::/", Some(("a.img", "/")));
        check(&["a.img"], "a.img::/b::/c", Some(("a.img", "/b::/c")));
    }

    #[test]
    fn a_whole_name_that_exists_is_a_plain_path() {
        check(&["a.img", "a.img::/b"], "a.img::/b", None);
        let dir = dir(&["a"]);
        std::fs::create_dir(dir.path().join("a::")).unwrap();
        let link = dir.path().join("a::/link");
        std::os::unix::fs::symlink("nowhere", &link).unwrap();
        assert_eq!(split_name(&link), None, "a link that leads nowhere");
    }

    #[test]
    fn the_first_separator_with_an_image_before_it_counts() {
        check(&["a::/b.img"], "a::/b.img::/c", Some(("a::/b.img", "/c")));
        check(&["a", "b"], "a::/b::/c", Some(("a", "/b::/c")));
    }

    #[test]
    fn a_name_without_an_image_is_a_plain_path() {
        check(&[], "gone.img::/b", None);
        check(&["a.img"], "a.img", None);
        check(&["a.img"], "a.img::b", None);
        assert_eq!(split_name(Path::new("::/b")), None);
    }
}
