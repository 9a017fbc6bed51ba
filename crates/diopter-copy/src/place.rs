//! Where each source is copied to: a directory or a name, and which targets are refused. Links are
//! followed in paths of the command line, and in no path below them. Nothing is changed here.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use diopter::Errno;
use diopter::layouts::StripedFile;
use diopter_rados::name::Name;
use rustix::fs::PROC_SUPER_MAGIC;

use crate::dir::{Dir, Entry, Inode};
use crate::failure::Failure;
use crate::image_path;
use crate::options::OpenAs;

/// Links in a row that the kernel follows.
const LINKS_MAX: usize = 40;

/// The file that exists at the place of a target.
#[derive(Debug)]
pub enum Existing {
    /// Nothing.
    Nothing,
    /// A symbolic link below a path of the command line; it is replaced.
    Link,
    /// A regular file.
    File(Inode),
    /// The manifest of a striped file.
    Striped(Inode),
    /// A block device.
    Device(Inode),
}

impl Existing {
    pub fn is_device(&self) -> bool {
        matches!(self, Existing::Device(_))
    }
}

/// The place of a target.
#[derive(Debug)]
pub struct Place {
    /// Its name. Where the command line names a symbolic link, the name that the link leads to.
    pub entry: Entry,
    pub existing: Existing,
}

/// The destination of a source.
#[derive(Debug)]
pub enum Destination {
    /// A name that the command line gives; a link with that name is followed.
    Named(Entry),
    /// A name in a directory that the command line gives; a link with that name is replaced.
    Inside(Entry),
    /// The directory that the command line gives.
    Itself(Rc<Dir>),
}

impl Destination {
    /// Returns the destination for a path that [`path_for`] returns. `into` is the directory that
    /// `target` is, if it is one.
    pub fn new(path: &Path, target: &Path, into: Option<&Rc<Dir>>) -> Result<Destination, Failure> {
        let Some(dir) = into else { return Ok(Destination::Named(Entry::of_path(path)?)) };
        if path == target {
            return Ok(Destination::Itself(Rc::clone(dir)));
        }
        let name = path.file_name().unwrap_or(OsStr::new(""));
        Ok(Destination::Inside(Entry::new(dir, name)))
    }
}

/// Returns the path for `source`: `target` itself, or its name in it if that is a directory.
pub fn path_for(source: &Path, target: &Path, has_one_source: bool) -> Result<PathBuf, Failure> {
    let is_object = Name::parse(target.as_os_str()).is_some();
    if has_one_source && (is_object || image_path::split(target).is_some()) {
        return Ok(target.to_owned());
    }
    match std::fs::metadata(target) {
        Ok(found) if found.is_dir() && !is_object => {
            let name = name_of(source).ok_or_else(|| {
                let cause = "the source has no name for the target directory";
                Failure::of_rule(
                    "naming the copy",
                    source,
                    cause,
                    "name the file in the target directory",
                )
            })?;
            // Joining nothing would add a slash.
            let is_dir_itself = name.as_os_str().is_empty();
            Ok(if is_dir_itself { target.to_owned() } else { target.join(name) })
        }
        Ok(_) | Err(_) if !has_one_source => {
            let remedy = "make the directory first, or check the order";
            Err(Failure::of_rule("writing", target, "the target is not a directory", remedy))
        }
        Ok(_) => Ok(target.to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if target.as_os_str().as_encoded_bytes().ends_with(b"/") && !source.is_dir() {
                let cause = "there is no such directory";
                return Err(Failure::of_rule("writing", target, cause, "make the directory first"));
            }
            Ok(target.to_owned())
        }
        Err(error) => Err(Failure::of_io("looking up", target, &error)),
    }
}

/// Looks up the place of a target at a path of the command line.
pub fn of_file(path: &Path, open_as: OpenAs) -> Result<Place, Failure> {
    of_destination(Destination::Named(Entry::of_path(path)?), open_as)
}

/// Looks up the place of a target. A manifest is what `open_as` says.
pub fn of_destination(destination: Destination, open_as: OpenAs) -> Result<Place, Failure> {
    let (entry, is_named) = match destination {
        Destination::Named(entry) => (entry, true),
        Destination::Inside(entry) => (entry, false),
        Destination::Itself(dir) => return Err(is_directory(&dir.path())),
    };
    let Some(found) = entry.look()? else {
        if is_named && is_among_devices(&entry.path()) {
            let cause = "there is no such device, and a file there would take memory";
            let remedy = "check the name: `lsblk` lists the devices";
            return Err(Failure::of_rule("writing", &entry.path(), cause, remedy));
        }
        return Ok(Place { entry, existing: Existing::Nothing });
    };
    let (entry, found) = match found.metadata().is_symlink() {
        true if is_named => follow(&entry)?,
        true => return Ok(Place { entry, existing: Existing::Link }),
        false => (entry, found),
    };
    let kind = found.metadata().file_type();
    let may_be_striped = kind.is_file() && open_as == OpenAs::Striped;
    let existing = if may_be_striped && is_striped(&found, &entry.path())? {
        Existing::Striped(found)
    } else if kind.is_file() {
        Existing::File(found)
    } else if kind.is_block_device() && !is_named {
        // An earlier copy may have made the node like one in a tree of another user (-a).
        let cause = "a block device in a directory is not written to";
        let remedy = "name the device itself as the target, or remove the node";
        return Err(Failure::of_rule("writing", &entry.path(), cause, remedy));
    } else if kind.is_block_device() {
        Existing::Device(found)
    } else if kind.is_dir() {
        return Err(is_directory(&entry.path()));
    } else {
        return Err(is_no_file(&entry.path()));
    };
    Ok(Place { entry, existing })
}

/// Returns true if a path lies in a directory of device nodes, where no one wants a regular file.
fn is_among_devices(path: &Path) -> bool {
    let Ok(directory) = std::fs::canonicalize(dir_of(path)) else { return false };
    directory == Path::new("/dev")
        || ["/dev/disk", "/dev/mapper"].iter().any(|nodes| directory.starts_with(nodes))
}

/// Follows a link that the command line names.
fn follow(link: &Entry) -> Result<(Entry, Inode), Failure> {
    let path = link.path();
    let dangling = || {
        let cause = "it is a symbolic link to nothing";
        let remedy = "remove the link, or name the file that it is to lead to";
        Failure::of_rule("writing", &path, cause, remedy)
    };
    // The kernel follows it first: it may forbid that (fs.protected_symlinks), which reading the
    // link here would not notice.
    let allowed = link.follow().map_err(|errno| match errno {
        Errno::ENOENT => dangling(),
        _ => Failure::of_errno("following the link", &path, errno),
    })?;
    let kind = allowed.metadata().file_type();
    if !kind.is_file() && !kind.is_dir() && !kind.is_block_device() {
        // It may have no path, as the pipe of /dev/stdout.
        return Err(is_no_file(&path));
    }
    let real = std::fs::canonicalize(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound => {
            let cause = "it is a symbolic link to a file without a name";
            Failure::of_rule("writing", &path, cause, "name the file that is to be written")
        }
        _ => Failure::of_io("following the link", &path, &error),
    })?;
    if leads_through_proc(&path) {
        let cause = "it leads to an open file of a process, which would lose its name";
        let remedy = "`-` writes to standard output; or name the file itself";
        return Err(Failure::of_rule("writing", &path, cause, remedy));
    }
    let entry = Entry::of_path(&real)?;
    let found = entry.look()?.ok_or_else(dangling)?;
    if found.id() != allowed.id() {
        let cause = "it was changed while it was followed";
        let remedy = "let nothing else write to its directory, and copy again";
        return Err(Failure::of_rule("following the link", &path, cause, remedy));
    }
    Ok((entry, found))
}

/// Returns true if a link, or one that it leads to, is one of /proc, as /dev/stdout is.
fn leads_through_proc(link: &Path) -> bool {
    let mut path = link.to_owned();
    for _ in 0..LINKS_MAX {
        let Ok(leads_to) = std::fs::read_link(&path) else { return false };
        let dir = dir_of(&path);
        let is_proc = rustix::fs::statfs(dir).is_ok_and(|found| found.f_type == PROC_SUPER_MAGIC);
        if is_proc {
            return true;
        }
        path = dir.join(leads_to);
    }
    false
}

fn is_no_file(path: &Path) -> Failure {
    let cause = "it is neither a file nor a block device";
    let remedy = "choose another target; `cat` writes to pipes and terminals";
    Failure::of_rule("writing", path, cause, remedy)
}

fn is_directory(path: &Path) -> Failure {
    let cause = "a directory is in the way";
    Failure::of_rule("writing", path, cause, "remove it, or choose another target")
}

/// Returns true if a regular file is a manifest; refuses one without its mark.
fn is_striped(inode: &Inode, path: &Path) -> Result<bool, Failure> {
    StripedFile::is_at(inode.proc_path())
        .map_err(|error| inode.named(path, Failure::of_engine("writing", path, &error)))
}

/// Returns the directory of a path.
pub fn dir_of(path: &Path) -> &Path {
    match path.parent() {
        Some(directory) if !directory.as_os_str().is_empty() => directory,
        _ => Path::new("."),
    }
}

/// Returns true if `target`, which need not exist, lies in the directory `source`.
pub fn is_within(target: &Path, source: &Metadata) -> bool {
    // The nearest part of the path that exists; the rest would be made in it.
    let Some(real) = target.ancestors().find_map(|part| {
        let part = if part.as_os_str().is_empty() { Path::new(".") } else { part };
        std::fs::canonicalize(part).ok()
    }) else {
        return false;
    };
    real.ancestors().any(|directory| {
        std::fs::metadata(directory)
            .is_ok_and(|found| (found.dev(), found.ino()) == (source.dev(), source.ino()))
    })
}

/// Returns the name of a source in the target directory; for `..` and the like, that of the
/// directory they mean.
fn name_of(source: &Path) -> Option<PathBuf> {
    let text = source.as_os_str().as_encoded_bytes();
    if text == b"." || text.ends_with(b"/.") {
        // The content of "a/." goes into the directory itself, as with `cp -r a/. DIR`.
        return Some(PathBuf::new());
    }
    match source.components().next_back()? {
        Component::Normal(name) => Some(PathBuf::from(name)),
        Component::CurDir | Component::ParentDir | Component::RootDir | Component::Prefix(_) => {
            let real = std::fs::canonicalize(source).ok()?;
            real.file_name().map(PathBuf::from)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_dir_takes_the_name_of_the_source() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path();
        assert_eq!(path_for(Path::new("a/b"), target, true).unwrap(), target.join("b"));
        assert_eq!(path_for(Path::new("a/b/"), target, false).unwrap(), target.join("b"));
        assert_eq!(path_for(Path::new("a/b/."), target, true).unwrap(), target);
        let other = target.join("new");
        assert_eq!(path_for(Path::new("a/b"), &other, true).unwrap(), other);
        assert!(path_for(Path::new("a/b"), &other, false).is_err());
        assert!(path_for(Path::new("a/b"), &target.join("new/"), true).is_err());
    }

    #[test]
    fn a_link_is_replaced_by_what_it_leads_to_and_a_dead_one_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let (file, link) = (directory.path().join("file"), directory.path().join("link"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        let refusal = of_file(&link, OpenAs::Plain).unwrap_err();
        assert!(refusal.cause.contains("link to nothing"), "{refusal}");
        std::fs::write(&file, b"abc").unwrap();
        let place = of_file(&link, OpenAs::Plain).unwrap();
        assert_eq!(place.entry.path(), std::fs::canonicalize(&file).unwrap());
        assert!(matches!(place.existing, Existing::File(_)));
    }

    #[test]
    fn a_link_below_what_the_command_line_names_is_not_followed() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("file"), b"abc").unwrap();
        std::os::unix::fs::symlink("file", directory.path().join("link")).unwrap();
        let dir = Dir::open(directory.path()).unwrap();
        let path = path_for(Path::new("a/link"), directory.path(), true).unwrap();
        let inside = Destination::new(&path, directory.path(), Some(&dir)).unwrap();
        let place = of_destination(inside, OpenAs::Plain).unwrap();
        assert_eq!(place.entry.path(), directory.path().join("link"));
        assert!(matches!(place.existing, Existing::Link));
    }

    #[test]
    fn what_is_neither_file_nor_device_is_no_target() {
        let directory = tempfile::tempdir().unwrap();
        assert!(of_file(directory.path(), OpenAs::Plain).is_err());
        assert!(of_file(Path::new("/dev/null"), OpenAs::Plain).is_err());
        let nothing = of_file(&directory.path().join("new"), OpenAs::Plain).unwrap();
        assert!(matches!(nothing.existing, Existing::Nothing));
    }

    #[test]
    fn a_name_among_devices_that_is_none_is_no_new_file() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("devices");
        std::os::unix::fs::symlink("/dev", &link).unwrap();
        for path in [PathBuf::from("/dev/diopter-none"), link.join("diopter-none")] {
            let refusal = of_file(&path, OpenAs::Plain).unwrap_err();
            assert!(refusal.cause.contains("no such device"), "{refusal}");
        }
        assert!(of_file(Path::new("/dev/shm/diopter-none"), OpenAs::Plain).is_ok());
    }

    #[test]
    fn a_target_inside_the_source_is_seen_before_it_exists() {
        let directory = tempfile::tempdir().unwrap();
        let source = std::fs::metadata(directory.path()).unwrap();
        assert!(is_within(&directory.path().join("x/y"), &source));
        assert!(is_within(directory.path(), &source));
        assert!(!is_within(&std::env::temp_dir().join("diopter-elsewhere"), &source));
    }

    #[test]
    fn the_dir_of_a_bare_name_is_here() {
        assert_eq!(dir_of(Path::new("a")), Path::new("."));
        assert_eq!(dir_of(Path::new("/a")), Path::new("/"));
        assert_eq!(dir_of(Path::new("a/b")), Path::new("a"));
    }
}
