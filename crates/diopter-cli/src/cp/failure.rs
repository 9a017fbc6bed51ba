//! What goes wrong in a copy, and how it is told: what failed, on what, why, and what to do.
//! Nothing is printed here.

use std::fmt;
use std::path::{Path, PathBuf};

use diopter::Errno;
use diopter::layouts::LayoutError;
use diopter_bench::untrusted;

use super::signals::Signal;

/// Why one file, directory or link was not copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// What failed: "reading".
    pub what: &'static str,
    /// On what.
    pub on: PathBuf,
    /// Why: the system's error, or the rule that was broken.
    pub cause: String,
    /// What to do about it.
    pub remedy: String,
    /// Where, if a request failed.
    pub place: Option<Box<FailedPlace>>,
}

/// The bytes on which a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedPlace {
    /// Where they begin in the file.
    pub offset: u64,
    /// How many there are.
    pub length: u64,
    /// Of a striped file: the object that has them, and where they begin in it.
    pub object: Option<(PathBuf, u64)>,
}

/// Content that differs after it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// Where the copy was to be.
    pub target: PathBuf,
    /// BLAKE3 of what was read from the source.
    pub source_hash: blake3::Hash,
    /// BLAKE3 of what was read back.
    pub target_hash: blake3::Hash,
    /// Whether what was read back is there to stay, on a device.
    pub is_in_place: bool,
}

/// How the copy of one thing ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It failed.
    Failed(Failure),
    /// What was written is not what was read.
    Differs(Mismatch),
    /// A signal asked for the end.
    Signal(Signal),
}

/// A result of a step of the copy.
pub type Step<T> = Result<T, Stop>;

impl Failure {
    /// From the system's error.
    pub fn of_errno(what: &'static str, on: &Path, errno: Errno) -> Failure {
        let remedy = remedy_of(errno).to_owned();
        Failure { what, on: on.to_owned(), cause: errno.to_string(), remedy, place: None }
    }

    /// From an error of the standard library.
    pub fn of_io(what: &'static str, on: &Path, error: &std::io::Error) -> Failure {
        match error.raw_os_error() {
            Some(number) if number > 0 => Failure::of_errno(what, on, Errno::from_raw(number)),
            _ => Failure::of_rule(what, on, &error.to_string(), "look at the path, and try again"),
        }
    }

    /// From an error of the engine.
    pub fn of_engine(what: &'static str, on: &Path, error: &diopter::Error) -> Failure {
        if let diopter::Error::Layout(error) = error {
            return Failure::of_layout(what, error);
        }
        let mut failure = Failure::of_errno(what, on, error.errno());
        if let diopter::Error::Io(error) = error
            && !error.range.is_empty()
        {
            failure.cause = format!("{} at bytes {}", error.errno, error.range);
            let object = error.object().and_then(|it| Some((it.path.clone()?, it.offset)));
            if let Some((path, offset)) = &object {
                let cause = format!(", byte {offset} of its object {}", shown(path));
                failure.cause.push_str(&cause);
            }
            let (offset, length) = (error.range.start(), error.range.length());
            failure.place = Some(Box::new(FailedPlace { offset, length, object }));
        }
        failure
    }

    /// From what is wrong with a striped file, on what of it that is.
    pub fn of_layout(what: &'static str, error: &LayoutError) -> Failure {
        let remedy = match error.remedy() {
            "" => remedy_of(error.errno()),
            known => known,
        };
        Failure::of_rule(what, &error.path, &error.kind.to_string(), remedy)
    }

    /// From a rule of the command.
    pub fn of_rule(what: &'static str, on: &Path, cause: &str, remedy: &str) -> Failure {
        let (cause, remedy) = (cause.to_owned(), remedy.to_owned());
        Failure { what, on: on.to_owned(), cause, remedy, place: None }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { what, on, cause, remedy, .. } = self;
        write!(f, "{what} failed on {}: {cause}; {remedy}", shown(on))
    }
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (source, target) = (self.source_hash.to_hex(), self.target_hash.to_hex());
        let now =
            if self.is_in_place { "the device keeps that" } else { "the target is as it was" };
        write!(
            f,
            "verify failed on {}: the source has BLAKE3 {source}, what was read back has {target}; \
             {now}: look for a failing disk or memory, and copy again",
            shown(&self.target)
        )
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
}

/// A path for a message: as it is, or quoted where it holds what a terminal would act on.
pub fn shown(path: &Path) -> String {
    let text = path.display().to_string();
    if !text.contains(untrusted::is_unsafe) {
        return text;
    }
    untrusted::text(&format!("{path:?}")).into_owned()
}

fn remedy_of(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT => "check the path",
        Errno::EACCES | Errno::EPERM => {
            "check the permissions of the file and its directory, or run as its owner"
        }
        Errno::ENOSPC => "free space on the target's file system",
        Errno::EDQUOT => "free space or have the quota raised",
        Errno::EFBIG => {
            "the file is too large for the target's file system or for `ulimit -f`: choose another"
        }
        Errno::EROFS => "the file system is mounted read-only: choose another target",
        Errno::EIO | Errno::ENODATA | Errno::EREMOTEIO | Errno::EILSEQ => {
            "the device cannot read or write there: the kernel's log names the sector"
        }
        Errno::EISDIR => "name a file, or copy the directory with -r",
        Errno::ENOTDIR => "a part of the path is no directory: check the path",
        Errno::ELOOP => "the symbolic links go round in circles: name the file itself",
        Errno::ENAMETOOLONG => "choose a shorter name",
        Errno::ETXTBSY => "the file is being executed: end the program first",
        Errno::EBUSY => "it is mounted or in use: unmount it, or end what uses it",
        Errno::ENOMEM => "lower --bs or --iodepth, or raise the memory limit",
        Errno::EMFILE | Errno::ENFILE => "raise `ulimit -n`",
        Errno::ESTALE => "the server forgot the file: copy again",
        Errno::EXDEV => "the directory is a mount point: name a path within one file system",
        _ => "errno(3) has the words; `dio probe` says what the file system allows",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_says_what_failed_on_what_why_and_what_to_do() {
        let failure = Failure::of_errno("opening", Path::new("a/b"), Errno::ENOENT);
        assert_eq!(
            failure.to_string(),
            "opening failed on a/b: No such file or directory (ENOENT); check the path"
        );
    }

    #[test]
    fn a_name_that_a_terminal_would_act_on_is_quoted() {
        assert_eq!(shown(Path::new("plain name")), "plain name");
        assert_eq!(shown(Path::new("bad\u{1b}[2Jname")), "\"bad\\u{1b}[2Jname\"");
    }

    #[test]
    fn a_mismatch_names_both_hashes() {
        let mismatch = Mismatch {
            target: PathBuf::from("t"),
            source_hash: blake3::hash(b"a"),
            target_hash: blake3::hash(b"b"),
            is_in_place: false,
        };
        let text = mismatch.to_string();
        assert!(text.contains(&*mismatch.source_hash.to_hex()), "{text}");
        assert!(text.contains(&*mismatch.target_hash.to_hex()), "{text}");
    }
}
