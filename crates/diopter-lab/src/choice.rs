//! Which kernels are meant: the words of `--kernel`.

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

/// Kernels, as a person names them: one, or one of each series.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    One(Choice),
    /// The newest of each series that has modules, of a flavour or of any.
    Each(Flavour),
}

/// The configuration that a kernel of Debian was built with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// That for virtual machines, which is smaller, where there is one.
    Any,
    /// `-amd64`: for all machines.
    Full,
}

const EACH: &str = "each";
/// How the releases of [`Flavour::Full`] end.
const FULL: &str = "-amd64";
const CLOUD: &str = "-cloud-amd64";

impl Flavour {
    /// The flavour that a name ends with, and what is before it: `6.1-amd64`.
    #[must_use]
    pub fn split(asked: &str) -> (&str, Flavour) {
        match asked.strip_suffix(FULL) {
            Some(name) => (name, Flavour::Full),
            None => (asked, Flavour::Any),
        }
    }

    /// Returns true if it has a kernel of this release.
    #[must_use]
    pub fn has(self, release: &str) -> bool {
        self == Flavour::Any || !release.ends_with(CLOUD)
    }
}

impl FromStr for Selection {
    type Err = LabError;

    /// `each`, `each-amd64`, or one as [`Choice`] has them.
    fn from_str(text: &str) -> Result<Selection, LabError> {
        let (name, flavour) = Flavour::split(text);
        if name == EACH {
            return Ok(Selection::Each(flavour));
        }
        text.parse().map(Selection::One)
    }
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
    fn each_series_may_be_meant_where_several_kernels_are() {
        assert_eq!("each".parse::<Selection>().unwrap(), Selection::Each(Flavour::Any));
        assert_eq!("each-amd64".parse::<Selection>().unwrap(), Selection::Each(Flavour::Full));
        let one = Choice::Named("6.1-amd64".to_owned());
        assert_eq!("6.1-amd64".parse::<Selection>().unwrap(), Selection::One(one));
        assert!("each".parse::<Choice>().is_err() && "each-6.1".parse::<Selection>().is_err());
    }

    #[test]
    fn what_is_neither_is_refused_with_examples() {
        for text in ["", "newest", "6", "bzImage", ":x", "./a::b"] {
            let message = text.parse::<Choice>().unwrap_err().to_string();
            assert!(message.contains(&format!("`{text}`")) && message.contains("6.1"), "{message}");
        }
    }
}
