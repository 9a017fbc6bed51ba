//! Which kernel is meant: the words of `--kernel`.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use crate::error::LabError;

/// A kernel, as a person names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    /// A series, an upstream version, or a release: the newest that is meant.
    Named(String),
    /// Files of the user: an image, a directory of modules, packages.
    Files(Vec<PathBuf>),
}

impl FromStr for Choice {
    type Err = LabError;

    /// `6.1`, `6.18.15`, `5.10.0-46-amd64`; `./bzImage:./modules`, `linux-image.deb`.
    fn from_str(text: &str) -> Result<Choice, LabError> {
        let refused = |why: &str| {
            Err(LabError::Choice(format!(
                "invalid kernel `{text}`: {why}; name a series (6.1), a release \
                 (6.1.0-56-cloud-amd64), IMAGE:MODULES, or a .deb"
            )))
        };
        if text.is_empty() {
            return refused("it is empty");
        }
        let is_path = text.contains(['/', ':']) || text.ends_with(".deb");
        if is_path {
            let parts: Vec<PathBuf> = text.split(':').map(PathBuf::from).collect();
            if parts.iter().any(|part| part.as_os_str().is_empty()) {
                return refused("a name is missing at a colon");
            }
            return Ok(Choice::Files(parts));
        }
        let mut numbers = text.split(['.', '-', '+', '~']);
        let mut is_number = || numbers.next().is_some_and(|part| part.parse::<u32>().is_ok());
        if text.contains('.') && is_number() && is_number() {
            return Ok(Choice::Named(text.to_owned()));
        }
        refused("a file is named with its directory (./bzImage)")
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Choice::Named(name) => f.write_str(name),
            Choice::Files(files) => {
                let files: Vec<String> =
                    files.iter().map(|file| file.display().to_string()).collect();
                f.write_str(&files.join(":"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn series_versions_and_releases_are_names_and_paths_are_files() {
        for name in ["6.1", "5.10", "6.18.15", "6.1.0-56-cloud-amd64", "7.3~rc7"] {
            assert_eq!(name.parse::<Choice>().unwrap(), Choice::Named(name.to_owned()), "{name}");
        }
        let files = |names: &[&str]| Choice::Files(names.iter().map(PathBuf::from).collect());
        assert_eq!("./bzImage:mods".parse::<Choice>().unwrap(), files(&["./bzImage", "mods"]));
        assert_eq!("linux.deb".parse::<Choice>().unwrap(), files(&["linux.deb"]));
        assert_eq!("./bzImage:mods".parse::<Choice>().unwrap().to_string(), "./bzImage:mods");
    }

    #[test]
    fn what_is_neither_is_refused_with_examples() {
        for text in ["", "newest", "6", "bzImage", ":x", "./a::b"] {
            let message = text.parse::<Choice>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{text}`")) && message.contains("6.1"), "{message}");
        }
    }
}
