//! Failures of a copy, and their messages: what failed, on which path, why, and what to do.

use std::fmt;
use std::path::{Path, PathBuf};

use diopter::Errno;
use diopter::layouts::LayoutError;
use diopter_text::untrusted;

use crate::stop::Signal;

/// The failure to copy one file, directory or link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The operation, such as "reading".
    pub what: &'static str,
    /// The path it was done on.
    pub on: PathBuf,
    /// The reason: the errno, or the rule that applies.
    pub cause: String,
    /// The remedy.
    pub remedy: String,
    /// The bytes, if a request failed.
    pub place: Option<Box<FailedPlace>>,
    /// True if what failed may have taken effect, now or later: a cluster did not reply in time.
    pub is_unknown: bool,
    /// The space that the file needs, if there was too little.
    pub space: Option<Box<LackingSpace>>,
}

/// The space for a file that did not have enough.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LackingSpace {
    /// Bytes of the file without its holes; of a striped file, of the objects on the file system
    /// that lacks most.
    pub needed: u64,
    /// Bytes that the file system had for them.
    pub free: u64,
}

/// The bytes of a failed request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailedPlace {
    /// Their offset in the file.
    pub offset: u64,
    /// Their number.
    pub length: u64,
    /// The object of a striped file that holds them, and their offset in it.
    pub object: Option<(PathBuf, u64)>,
}

/// Content that differs after it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mismatch {
    /// The target of the copy.
    pub target: PathBuf,
    /// BLAKE3 of the bytes that were read from the source, and of those that were read back, with
    /// [`Options::hashes`](crate::Options::hashes).
    pub hashes: Option<[blake3::Hash; 2]>,
    /// True if the target was written in place and keeps these bytes.
    pub is_in_place: bool,
}

/// How the copy of one file, directory or link ends early.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// It failed.
    Failed(Failure),
    /// The bytes that were read back are not those that were written.
    Differs(Mismatch),
    /// A signal asked for the end of the run.
    Signal(Signal),
}

pub type Step<T> = Result<T, Stop>;

impl Failure {
    /// Returns the failure for an errno.
    pub fn of_errno(what: &'static str, on: &Path, errno: Errno) -> Failure {
        let remedy = remedy_of(errno).to_owned();
        Failure {
            what,
            on: on.to_owned(),
            cause: errno.to_string(),
            remedy,
            place: None,
            is_unknown: false,
            space: None,
        }
    }

    /// Returns the failure for an error of the standard library.
    pub fn of_io(what: &'static str, on: &Path, error: &std::io::Error) -> Failure {
        match error.raw_os_error() {
            Some(number) if number > 0 => Failure::of_errno(what, on, Errno::from_raw(number)),
            _ => Failure::of_rule(what, on, &error.to_string(), "check the path, and try again"),
        }
    }

    /// Returns the failure for an error of the engine.
    pub fn of_engine(what: &'static str, on: &Path, error: &diopter::Error) -> Failure {
        if let diopter::Error::Layout(error) = error {
            return Failure::of_layout(what, error);
        }
        if let diopter::Error::Cluster(failed) = error {
            let (offset, length) = (failed.range.start(), failed.range.length());
            let place = Some(Box::new(FailedPlace { offset, length, object: None }));
            return Failure { place, ..Failure::of_cluster(what, on, &failed.error) };
        }
        let mut failure = Failure::of_errno(what, on, error.errno());
        if let diopter::Error::Io(error) = error
            && !error.range.is_empty()
        {
            failure.cause = format!("{} at bytes {}", error.errno, error.range);
            let object = error.object().and_then(|it| Some((it.path.clone()?, it.offset)));
            if let Some((path, offset)) = &object {
                let cause = format!(", byte {offset} of its object {}", untrusted::name(path));
                failure.cause.push_str(&cause);
            }
            let (offset, length) = (error.range.start(), error.range.length());
            failure.place = Some(Box::new(FailedPlace { offset, length, object }));
        }
        failure
    }

    /// Returns the failure of an operation on a striped object of a cluster.
    pub fn of_cluster(what: &'static str, on: &Path, error: &diopter::rados::Error) -> Failure {
        let mut cause = error.cause();
        if let Some(number) = error.errno() {
            // As in every other message of the copy.
            let standard = std::io::Error::from_raw_os_error(number).to_string();
            cause = cause.replace(&standard, &Errno::from_raw(number).to_string());
        }
        let usual = match error.errno() {
            Some(number) if number == Errno::ENOENT.raw() => {
                "check the name, and what is there with `ceph osd pool ls` and `rados ls`"
            }
            _ => "check the cluster with `ceph -s`",
        };
        let remedy = error.advice().unwrap_or(usual);
        Failure { is_unknown: error.is_unknown(), ..Failure::of_rule(what, on, &cause, remedy) }
    }

    /// Returns the failure of a striped file, on the part that is wrong.
    pub fn of_layout(what: &'static str, error: &LayoutError) -> Failure {
        let remedy = match error.remedy() {
            "" => remedy_of(error.errno()),
            known => known,
        };
        Failure::of_rule(what, &error.path, &error.kind.to_string(), remedy)
    }

    /// Returns the failure for a rule of the command.
    pub fn of_rule(what: &'static str, on: &Path, cause: &str, remedy: &str) -> Failure {
        let (cause, remedy) = (cause.to_owned(), remedy.to_owned());
        let on = on.to_owned();
        Failure { what, on, cause, remedy, place: None, is_unknown: false, space: None }
    }

    /// Adds the space that the file needs, and what there was.
    #[must_use]
    pub fn with_space(mut self, space: LackingSpace) -> Failure {
        let LackingSpace { needed, free } = space;
        self.cause.push_str(&format!(": the file needs {needed} bytes, and {free} are free"));
        self.space = Some(Box::new(space));
        self
    }

    /// As [`Failure::with_space`], of the objects of a striped file in `dir`.
    #[must_use]
    pub fn with_space_in(mut self, space: LackingSpace, dir: &Path) -> Failure {
        let LackingSpace { needed, free } = space;
        let dir = untrusted::name(dir);
        let needs = format!(
            ": its objects on the file system of {dir} need {needed} bytes, and {free} are free"
        );
        self.cause.push_str(&needs);
        self.remedy = "free space there; objects that are replaced are removed only when the new \
                       ones are complete"
            .into();
        self.space = Some(Box::new(space));
        self
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { what, on, cause, remedy, .. } = self;
        let on = untrusted::name(on);
        match attempt_of(what) {
            Some(attempt) => write!(f, "{attempt} {on}: {cause}; {remedy}"),
            None => write!(f, "{what} failed on {on}: {cause}; {remedy}"),
        }
    }
}

/// Returns how the message about a failed operation begins. [`Failure::what`], which is in JSON
/// documents, remains as it is.
fn attempt_of(what: &str) -> Option<&'static str> {
    Some(match what {
        "allocating" => "cannot allocate memory for",
        "comparing" => "cannot compare",
        "comparing the metadata of" => "cannot compare the metadata of",
        "copying" => "cannot copy",
        "copying to" => "cannot copy to",
        "creating a temporary" => "cannot create a temporary file",
        "flushing" => "cannot flush",
        "flushing the directory" => "cannot flush the directory",
        "following the link" => "cannot follow the link",
        "keeping the attributes" => "cannot keep all attributes of",
        "linking" => "cannot link",
        "listing the extended attributes of" => "cannot list the extended attributes of",
        "listing the directories of" => "cannot list the directories of",
        "listing the directory" => "cannot list the directory",
        "listening for signals" => "cannot receive signals during the copy of",
        "locking" => "cannot lock",
        "looking at" => "cannot look at",
        "looking for holes" => "cannot find the holes of",
        "looking up" => "cannot look up",
        "making" => "cannot make",
        "making a name in" => "cannot make a name in",
        "making a buffer" => "cannot allocate a buffer for",
        "making a file without a name in" => "cannot make a file without a name in",
        "making the directory" => "cannot make the directory",
        "making the link" => "cannot make the link",
        "measuring" => "cannot get the size of",
        "naming a temporary" => "cannot choose a temporary name for",
        "naming the copy" => "cannot choose a name for the copy of",
        "opening" => "cannot open",
        "opening a temporary" => "cannot open the temporary file",
        "opening the directory" => "cannot open the directory",
        "reading" => "cannot read",
        "reading an extended attribute of" => "cannot read an extended attribute of",
        "reading back" => "cannot read back",
        "reading the directory" => "cannot read the directory",
        "reading the link" => "cannot read the link",
        "reading the options" => "invalid",
        "removing an old object" => "cannot remove the old object",
        "removing an old temporary" => "cannot remove the old temporary file",
        "removing the objects" => "cannot remove all objects of the copy that ended early to",
        "removing the record" => "cannot remove the record of the copy of",
        "renaming" => "cannot rename",
        "listing" => "cannot list",
        "listing the names in" => "cannot list the names in",
        "reserving space" => "cannot reserve space for",
        "sealing" => "cannot seal",
        "setting the permissions" => "cannot set the permissions of",
        "setting the size" => "cannot set the size of",
        "setting up" | "setting up for" => "cannot set up",
        "starting a thread for" => "cannot start a thread for",
        "writing" => "cannot write",
        "reading the device" => "cannot read the device",
        "writing the device" => "cannot write the device",
        "writing the devices of a striped file" => "cannot write the devices of",
        "writing the striped file" => "cannot write the striped file",
        _ => return None,
    })
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let differ = match &self.hashes {
            Some([source, target]) => {
                format!("the source has BLAKE3 {source}, what was read back has {target}")
            }
            None => "what was read back is not what the source has".to_owned(),
        };
        let now = if self.is_in_place {
            "the device keeps these bytes"
        } else {
            "the destination is unchanged"
        };
        write!(
            f,
            "verify failed on {}: {differ}; {now}: look for a failing disk or memory, and copy \
             again",
            untrusted::name(&self.target)
        )
    }
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Stop {
        Stop::Failed(failure)
    }
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
            "the device, or the server of the file system, cannot do that there: the kernel's log, \
             or that of the server, has more"
        }
        Errno::EISDIR => "name a file, or copy the directory with -r",
        Errno::ENOTDIR => "a part of the path is not a directory: check the path",
        Errno::ELOOP => "the symbolic links form a loop: name the file itself",
        Errno::ENAMETOOLONG => "choose a shorter name",
        Errno::ETXTBSY => {
            "it is being executed, or is in use as swap: end the program, or use `swapoff`"
        }
        Errno::EBUSY => "it is mounted or in use: unmount it, or end what uses it",
        Errno::ENOMEM => "lower --bs or --iodepth, or raise the memory limit",
        Errno::EMFILE | Errno::ENFILE => "raise `ulimit -n`",
        Errno::ESTALE => "the server does not know the file any more: copy again",
        Errno::EPIPE => "the program that reads it closed it: look at what that program reports",
        Errno::EXDEV => "the directory is a mount point: name a path within one file system",
        _ => "errno(3) explains the error; `dio probe` shows what the file system allows",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_has_the_operation_the_path_the_cause_and_the_remedy() {
        let failure = Failure::of_errno("opening", Path::new("a/b"), Errno::ENOENT);
        assert_eq!(
            failure.to_string(),
            "cannot open a/b: No such file or directory (ENOENT); check the path"
        );
    }

    #[test]
    fn every_operation_of_this_crate_has_its_words() {
        let mut count = 0;
        let mut directories = vec![PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src"))];
        while let Some(directory) = directories.pop() {
            for entry in std::fs::read_dir(directory).expect("the sources of this crate") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    directories.push(path);
                    continue;
                }
                let source = std::fs::read_to_string(&path).expect("a source");
                let code = source.split("#[cfg(test)]").next().expect("a part");
                for call in
                    ["of_errno(", "of_io(", "of_engine(", "of_rule(", "of_layout(", "cannot("]
                {
                    for rest in code.split(call).skip(1) {
                        let Some(rest) = rest.trim_start().strip_prefix('"') else { continue };
                        let what = rest.split('"').next().expect("a part");
                        assert!(attempt_of(what).is_some(), "{what}, in {}", path.display());
                        count += 1;
                    }
                }
            }
        }
        assert!(count > 50, "{count}");
    }

    #[test]
    fn a_mismatch_names_both_hashes() {
        let mismatch = Mismatch {
            target: PathBuf::from("t"),
            hashes: Some([blake3::hash(b"a"), blake3::hash(b"b")]),
            is_in_place: false,
        };
        let text = mismatch.to_string();
        assert!(text.contains(&*blake3::hash(b"a").to_hex()), "{text}");
        assert!(text.contains(&*blake3::hash(b"b").to_hex()), "{text}");
        let text = Mismatch { hashes: None, ..mismatch }.to_string();
        assert!(text.contains("is not what the source has; the destination"), "{text}");
    }
}
