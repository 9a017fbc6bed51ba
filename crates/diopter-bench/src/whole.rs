//! Writes files atomically: under a random name in the same directory, then renamed. A reader finds
//! the complete new file or the previous one, and a link that another user placed is replaced, not
//! followed.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use diopter_os::trust::{held_path, is_of_descriptor};
use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};
use rustix::io::Errno;
use tempfile::NamedTempFile;

/// Writes a complete file.
///
/// # Errors
/// The system's error; the previous file stays.
pub fn write(
    path: &Path,
    content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let file = temporary(path)?;
    let mut out = BufWriter::new(file);
    content(&mut out)?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
    persist(file, path)
}

/// An output that is opened before its content is known.
#[derive(Debug)]
pub struct Output {
    path: PathBuf,
    to: To,
}

#[derive(Debug)]
enum To {
    /// A pipe, a terminal, or the file behind standard output.
    Stream(File),
    /// A file that gets its name when it is complete.
    New(NamedTempFile),
}

impl Output {
    /// Opens a name that the user gave: a pipe or a terminal is written in place, a file is
    /// replaced. Links are followed only in the names of this process's descriptors, such as
    /// `/dev/stdout`, which no other user makes.
    pub fn named(path: &Path) -> io::Result<Output> {
        let is_systems = is_of_descriptor(path);
        let found = if is_systems { path.metadata() } else { path.symlink_metadata() };
        let to = match found {
            Ok(found) if found.file_type().is_fifo() || found.file_type().is_char_device() => {
                To::Stream(stream(path, is_systems)?)
            }
            // Standard output may lead to a file, whose name is not `/dev/stdout`.
            Ok(found) if is_systems && found.is_file() => {
                To::Stream(File::options().append(true).open(path)?)
            }
            _ => To::New(temporary(path)?),
        };
        Ok(Output { path: path.to_owned(), to })
    }

    /// Returns true if both are files of the same name, of which only the last one would stay.
    #[must_use]
    pub fn is_replaced_by(&self, other: &Output) -> bool {
        let name = |output: &Output| match output.to {
            To::Stream(_) => None,
            To::New(_) => Some((
                directory(&output.path).canonicalize().ok()?,
                output.path.file_name()?.to_owned(),
            )),
        };
        name(self).is_some_and(|own| name(other) == Some(own))
    }

    /// Writes the content; a file gets its name.
    ///
    /// # Errors
    /// The system's error; the previous file stays.
    pub fn write(self, content: &[u8]) -> io::Result<()> {
        match self.to {
            To::Stream(mut file) => file.write_all(content),
            To::New(mut file) => {
                file.write_all(content)?;
                persist(file, &self.path)
            }
        }
    }
}

/// Calls [`Output::named`] and [`Output::write`].
pub fn write_named(path: &Path, content: &[u8]) -> io::Result<()> {
    Output::named(path)?.write(content)
}

/// A directory for several outputs, used by its descriptor: no link that another user places at a
/// name in it, or at its own name, is followed.
#[derive(Debug)]
pub struct Directory(OwnedFd);

impl Directory {
    /// Opens a directory that the user named.
    ///
    /// # Errors
    /// The system's error; and if the name is a link.
    pub fn named(path: &Path) -> io::Result<Directory> {
        // A slash at the end would follow a link.
        let path: PathBuf = path.components().filter(|it| *it != Component::CurDir).collect();
        let path = if path.as_os_str().is_empty() { PathBuf::from(".") } else { path };
        Directory::open_at(CWD, &path)
    }

    /// Opens a directory in this one, and makes it where it is missing.
    ///
    /// # Errors
    /// As [`Directory::named`].
    pub fn make(&self, name: &str) -> io::Result<Directory> {
        match mkdirat(&self.0, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => Directory::open_at(&self.0, Path::new(name)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes a complete file of this name, as [`write`] does.
    ///
    /// # Errors
    /// The system's error; the previous file stays.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        write(&held_path(&self.0).join(name), |out| out.write_all(content))
    }

    fn open_at(within: impl AsFd, path: &Path) -> io::Result<Directory> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        match openat(within, path, flags, Mode::empty()) {
            Ok(fd) => Ok(Directory(fd)),
            // Of a link too, with O_DIRECTORY.
            Err(Errno::NOTDIR | Errno::LOOP) => {
                Err(io::Error::other("it is a link or a file, not a directory"))
            }
            Err(errno) => Err(errno.into()),
        }
    }
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    // Created here: an error of `tempfile_in` has the random name, which no user gave.
    let create = |path: &Path| {
        File::options().read(true).write(true).create_new(true).mode(0o644).open(path)
    };
    tempfile::Builder::new().prefix(".dio-part-").make_in(directory(path), create)
}

fn persist(file: NamedTempFile, path: &Path) -> io::Result<()> {
    file.as_file().sync_all()?;
    file.persist(path).map(drop).map_err(|error| error.error)
}

/// Opens a stream; a pipe without a reader fails with `ENXIO` at once.
fn stream(path: &Path, may_be_link: bool) -> io::Result<File> {
    let follow = if may_be_link { OFlags::empty() } else { OFlags::NOFOLLOW };
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY | follow).bits().cast_signed();
    let file = File::options().write(true).custom_flags(flags).open(path)?;
    rustix::fs::fcntl_setfl(&file, OFlags::empty())?;
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn two_outputs_are_one_file_under_any_of_its_names_and_streams_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str| Output::named(&dir.path().join(name)).unwrap();
        assert!(of("a").is_replaced_by(&of("./a")) && !of("a").is_replaced_by(&of("b")));
        let null = || Output::named(Path::new("/dev/null")).unwrap();
        assert!(!null().is_replaced_by(&null()));
    }

    #[test]
    fn a_link_is_replaced_and_what_it_leads_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (secret, out) = (dir.path().join("secret"), dir.path().join("out.html"));
        fs::write(&secret, b"mine").unwrap();
        std::os::unix::fs::symlink(&secret, &out).unwrap();
        write_named(&out, b"page").unwrap();
        assert_eq!(fs::read(&secret).unwrap(), b"mine");
        assert_eq!(fs::read(&out).unwrap(), b"page");
        assert!(out.symlink_metadata().unwrap().is_file());
        let part = dir.path().join(format!("out.html.part-{}", std::process::id()));
        std::os::unix::fs::symlink(&secret, &part).unwrap();
        write_named(&out, b"again").unwrap();
        assert_eq!(fs::read(&secret).unwrap(), b"mine");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 3, "no temporary file stays");
    }

    #[test]
    fn a_pipe_without_a_reader_fails_and_one_that_was_not_named_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        assert!(write_named(&pipe, b"x").is_err());
        write(&pipe, |out| out.write_all(b"x")).unwrap();
        assert_eq!(fs::read(&pipe).unwrap(), b"x");
        write_named(Path::new("/dev/null"), b"x").unwrap();
        assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
    }

    #[test]
    fn an_error_does_not_have_the_temporary_name() {
        let dir = tempfile::tempdir().unwrap();
        let error = Output::named(&dir.path().join("absent/out")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOENT.raw_os_error()));
        assert!(!error.to_string().contains(".dio-part-"), "{error}");
    }

    #[test]
    fn a_link_in_place_of_a_directory_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (own, closed) = (dir.path().join("own"), dir.path().join("closed"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&closed).unwrap();
        std::os::unix::fs::symlink(&closed, own.join("link")).unwrap();
        let out = Directory::named(&own).unwrap();
        for name in ["link", "link/", "./link/."] {
            let why = Directory::named(&own.join(name)).unwrap_err();
            assert_eq!(why.to_string(), "it is a link or a file, not a directory", "{name}");
        }
        assert!(out.make("link").is_err());
        let inner = out.make("inner").unwrap();
        fs::rename(own.join("inner"), own.join("moved")).unwrap();
        std::os::unix::fs::symlink(&closed, own.join("inner")).unwrap();
        inner.write("page", b"x").unwrap();
        assert_eq!(fs::read(own.join("moved/page")).unwrap(), b"x");
        assert_eq!(fs::read_dir(&closed).unwrap().count(), 0);
        assert!(out.make("moved").is_ok(), "one that is there");
    }

    #[test]
    fn a_link_below_dev_is_replaced_unless_it_names_a_descriptor() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let (secret, out) = (dir.path().join("secret"), dir.path().join("out"));
        fs::write(&secret, b"mine").unwrap();
        std::os::unix::fs::symlink(&secret, &out).unwrap();
        write_named(&out, b"page").unwrap();
        assert_eq!(fs::read(&secret).unwrap(), b"mine");
    }

    #[test]
    fn content_that_fails_leaves_the_file_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("out");
        fs::write(&path, b"before").unwrap();
        assert!(write(&path, |_| Err(io::Error::other("no"))).is_err());
        assert_eq!(fs::read(&path).unwrap(), b"before");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }
}
