//! Writes files atomically: under a random name in the same directory, then renamed. A reader finds
//! the complete new file or the previous one, and a link that another user placed is replaced, not
//! followed.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use diopter_os::trust::{self, Refusal, Way, check_held, held_path, is_of_descriptor};
use diopter_text::untrusted;
use rustix::fs::{FileType, Mode, OFlags, mkdirat, openat};
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
    Place::named(path)?.write(content)
}

/// The name of an output, in a directory that is held: no link of another user led to it, and none
/// that is made meanwhile is followed.
#[derive(Debug)]
struct Place {
    within: OwnedFd,
    name: OsString,
}

impl Place {
    fn named(path: &Path) -> io::Result<Place> {
        let name = path.file_name().filter(|_| !path.as_os_str().as_bytes().ends_with(b"/"));
        let name = name.ok_or_else(|| io::Error::from(Errno::ISDIR))?.to_owned();
        Ok(Place { within: hold_directory(directory(path))?, name })
    }

    fn path(&self) -> PathBuf {
        held_path(&self.within).join(&self.name)
    }

    fn temporary(&self) -> io::Result<NamedTempFile> {
        // Created here: an error of `tempfile_in` has the random name, which no user gave.
        let create = |path: &Path| {
            File::options().read(true).write(true).create_new(true).mode(0o644).open(path)
        };
        tempfile::Builder::new().prefix(".dio-part-").make_in(held_path(&self.within), create)
    }

    fn persist(&self, file: NamedTempFile) -> io::Result<()> {
        file.as_file().sync_all()?;
        file.persist(self.path()).map(drop).map_err(|error| error.error)
    }

    fn write(&self, content: impl FnOnce(&mut dyn Write) -> io::Result<()>) -> io::Result<()> {
        let mut out = BufWriter::new(self.temporary()?);
        content(&mut out)?;
        self.persist(out.into_inner().map_err(io::IntoInnerError::into_error)?)
    }
}

/// Resolves the name of a directory once, without links of other users.
fn hold_directory(path: &Path) -> io::Result<OwnedFd> {
    let failed = |refusal: Refusal| match refusal.errno() {
        Some(errno) => errno.into(),
        None => io::Error::other(refusal.text(path, |path| untrusted::name(path))),
    };
    let held = trust::hold(path, Way::OwnLinks).map_err(failed)?;
    if FileType::from_raw_mode(rustix::fs::fstat(&held)?.st_mode) != FileType::Directory {
        return Err(io::Error::other("it is a file, not a directory"));
    }
    check_held(&held).map_err(|why| failed(Refusal { path: path.to_owned(), why }))?;
    Ok(held)
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
    New(New),
}

/// The file is removed by way of its place, and so is dropped before it.
#[derive(Debug)]
struct New {
    file: NamedTempFile,
    place: Place,
}

impl Output {
    /// Opens a name that the user gave: a pipe or a terminal is written in place, a file is
    /// replaced. Links are followed only in the names of this process's descriptors, such as
    /// `/dev/stdout`, which no other user makes.
    pub fn named(path: &Path) -> io::Result<Output> {
        let named = |to| Output { path: path.to_owned(), to };
        let is_stream = |kind: std::fs::FileType| kind.is_fifo() || kind.is_char_device();
        if is_of_descriptor(path) {
            match path.metadata() {
                Ok(found) if is_stream(found.file_type()) => {
                    return Ok(named(To::Stream(stream(path, true)?)));
                }
                // Standard output may lead to a file, whose name is not `/dev/stdout`.
                Ok(found) if found.is_file() => {
                    return Ok(named(To::Stream(File::options().append(true).open(path)?)));
                }
                _ => {}
            }
        }
        let place = Place::named(path)?;
        let found = place.path().symlink_metadata();
        if found.is_ok_and(|found| is_stream(found.file_type())) {
            return Ok(named(To::Stream(stream(&place.path(), false)?)));
        }
        let file = place.temporary()?;
        Ok(named(To::New(New { file, place })))
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
            To::New(mut new) => {
                new.file.write_all(content)?;
                new.place.persist(new.file)
            }
        }
    }
}

/// Calls [`Output::named`] and [`Output::write`].
pub fn write_named(path: &Path, content: &[u8]) -> io::Result<()> {
    Output::named(path)?.write(content)
}

/// A directory for several outputs, used by its descriptor: no link that another user places at a
/// name in it, at its own name or on the way to it, is followed.
#[derive(Debug)]
pub struct Directory(OwnedFd);

impl Directory {
    /// Opens a directory that the user named.
    ///
    /// # Errors
    /// The system's error; and if the name leads through a link of another user.
    pub fn named(path: &Path) -> io::Result<Directory> {
        hold_directory(path).map(Directory)
    }

    /// Opens a directory in this one, and makes it where it is missing.
    ///
    /// # Errors
    /// The system's error; and if the name is a link.
    pub fn make(&self, name: &str) -> io::Result<Directory> {
        match mkdirat(&self.0, name, Mode::from_raw_mode(0o777)) {
            Ok(()) | Err(Errno::EXIST) => Directory::open_at(&self.0, Path::new(name)),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Writes a complete file of this name, as [`write()`] does.
    ///
    /// # Errors
    /// The system's error; the previous file stays.
    pub fn write(&self, name: &str, content: &[u8]) -> io::Result<()> {
        let place = Place { within: self.0.try_clone()?, name: name.into() };
        place.write(|out| out.write_all(content))
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
    fn an_output_that_is_not_written_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let output = Output::named(&dir.path().join("out")).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        drop(output);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(Output::named(&dir.path().join("out/")).is_err(), "the name of a directory");
    }

    #[test]
    fn an_error_does_not_have_the_temporary_name() {
        let dir = tempfile::tempdir().unwrap();
        let error = Output::named(&dir.path().join("absent/out")).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(rustix::io::Errno::NOENT.raw_os_error()));
        assert!(!error.to_string().contains(".dio-part-"), "{error}");
    }

    #[test]
    fn a_link_of_another_user_is_not_followed_to_a_directory() {
        let dir = tempfile::tempdir().unwrap();
        let (own, closed) = (dir.path().join("own"), dir.path().join("closed"));
        fs::create_dir(&own).unwrap();
        fs::create_dir(&closed).unwrap();
        std::os::unix::fs::symlink(&closed, own.join("link")).unwrap();
        let out = Directory::named(&own).unwrap();
        assert!(Directory::named(&own.join("link")).is_ok(), "a link of this user");
        if diopter_os::ids::is_root() {
            std::os::unix::fs::lchown(own.join("link"), Some(54_321), None).unwrap();
            for name in ["link", "link/", "./link/.", "link/../closed"] {
                let why = Directory::named(&own.join(name)).unwrap_err().to_string();
                assert!(why.contains("it belongs to user 54321"), "{name}: {why}");
            }
            for name in ["link/page", "./link/./page"] {
                let why = write_named(&own.join(name), b"x").unwrap_err().to_string();
                assert!(why.contains("it belongs to user 54321"), "{name}: {why}");
            }
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
