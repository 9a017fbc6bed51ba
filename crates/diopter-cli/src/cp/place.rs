//! Where each source goes: a folder or a name, links resolved, and what may not be a target. Looks
//! only.

use std::fs::Metadata;
use std::io::ErrorKind;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use diopter::{OpenAs, StripedFile};

use super::failure::Failure;
use crate::inside;

/// What stands at the path where a file is to be.
#[derive(Debug)]
pub enum Existing {
    /// Nothing.
    Nothing,
    /// A regular file.
    File(Metadata),
    /// The manifest of a striped file.
    Striped(Metadata),
    /// A block device.
    Device(Metadata),
}

/// A path that a file is to have.
#[derive(Debug)]
pub struct Place {
    /// The path itself, with a symbolic link replaced by what it leads to.
    pub path: PathBuf,
    /// What is there now.
    pub existing: Existing,
}

/// The path for `source`: `target` itself, or its name in it if that is a folder.
pub fn path_for(source: &Path, target: &Path, has_one_source: bool) -> Result<PathBuf, Failure> {
    if has_one_source && inside::split(target).is_some() {
        return Ok(target.to_owned());
    }
    match std::fs::metadata(target) {
        Ok(found) if found.is_dir() => {
            let name = name_of(source).ok_or_else(|| {
                let cause = "the source has no name to have in the target folder";
                Failure::of_rule(
                    "naming the copy",
                    source,
                    cause,
                    "name the target's last part too",
                )
            })?;
            // Without the slash that joining nothing would leave at the end.
            let is_folder_itself = name.as_os_str().is_empty();
            Ok(if is_folder_itself { target.to_owned() } else { target.join(name) })
        }
        Ok(_) | Err(_) if !has_one_source => {
            let cause = "several sources go into a folder, and this is none";
            Err(Failure::of_rule(
                "writing",
                target,
                cause,
                "make the folder first, or check the order",
            ))
        }
        Ok(_) => Ok(target.to_owned()),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            if target.as_os_str().as_encoded_bytes().ends_with(b"/") && !source.is_dir() {
                let cause = "there is no such folder";
                return Err(Failure::of_rule("writing", target, cause, "make the folder first"));
            }
            Ok(target.to_owned())
        }
        Err(error) => Err(Failure::of_io("looking up", target, &error)),
    }
}

/// Looks at the place of a file that is to be written. A manifest is what it is opened as.
pub fn of_file(path: &Path, open_as: OpenAs) -> Result<Place, Failure> {
    let refused = |cause: &str, remedy: &str| Failure::of_rule("writing", path, cause, remedy);
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return Ok(Place { path: path.to_owned(), existing: Existing::Nothing });
        }
        Err(error) => return Err(Failure::of_io("looking up", path, &error)),
    };
    let (path, found) = if found.is_symlink() {
        let real = std::fs::canonicalize(path).map_err(|error| match error.kind() {
            ErrorKind::NotFound => refused(
                "it is a symbolic link to nothing",
                "remove the link, or name the file that it is to lead to",
            ),
            _ => Failure::of_io("following the link", path, &error),
        })?;
        let found = std::fs::metadata(&real);
        let found = found.map_err(|error| Failure::of_io("looking up", &real, &error))?;
        (real, found)
    } else {
        (path.to_owned(), found)
    };
    let kind = found.file_type();
    let existing = if kind.is_file() && open_as == OpenAs::Striped && StripedFile::is_at(&path) {
        Existing::Striped(found)
    } else if kind.is_file() {
        Existing::File(found)
    } else if kind.is_block_device() {
        Existing::Device(found)
    } else if kind.is_dir() {
        return Err(refused("a folder is in the way", "remove it, or choose another target"));
    } else {
        return Err(refused(
            "it is neither a file nor a block device",
            "choose another target; `cat` writes to pipes and terminals",
        ));
    };
    Ok(Place { path, existing })
}

/// The folder that holds a path.
pub fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

/// Whether `target`, which need not exist, would lie in the folder `source`.
pub fn is_within(target: &Path, source: &Metadata) -> bool {
    // The nearest part of the path that is there; what is not there yet would be made in it.
    let Some(real) = target.ancestors().find_map(|part| {
        let part = if part.as_os_str().is_empty() { Path::new(".") } else { part };
        std::fs::canonicalize(part).ok()
    }) else {
        return false;
    };
    real.ancestors().any(|folder| {
        std::fs::metadata(folder)
            .is_ok_and(|found| (found.dev(), found.ino()) == (source.dev(), source.ino()))
    })
}

/// The name that a source has in the target folder; for `..` and the like the folder that it means.
fn name_of(source: &Path) -> Option<PathBuf> {
    let text = source.as_os_str().as_encoded_bytes();
    if text == b"." || text.ends_with(b"/.") {
        // The content of "a/." goes into the folder itself, as `cp -r a/. FOLDER` has it.
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
    fn a_folder_takes_the_name_of_the_source() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path();
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
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        std::os::unix::fs::symlink("file", &link).unwrap();
        let refusal = of_file(&link, OpenAs::Plain).unwrap_err();
        assert!(refusal.cause.contains("link to nothing"), "{refusal}");
        std::fs::write(&file, b"abc").unwrap();
        let place = of_file(&link, OpenAs::Plain).unwrap();
        assert_eq!(place.path, std::fs::canonicalize(&file).unwrap());
        assert!(matches!(place.existing, Existing::File(_)));
    }

    #[test]
    fn what_is_neither_file_nor_device_is_no_target() {
        let folder = tempfile::tempdir().unwrap();
        assert!(of_file(folder.path(), OpenAs::Plain).is_err());
        assert!(of_file(Path::new("/dev/null"), OpenAs::Plain).is_err());
        let nothing = of_file(&folder.path().join("new"), OpenAs::Plain).unwrap();
        assert!(matches!(nothing.existing, Existing::Nothing));
    }

    #[test]
    fn a_target_inside_the_source_is_seen_before_it_exists() {
        let folder = tempfile::tempdir().unwrap();
        let source = std::fs::metadata(folder.path()).unwrap();
        assert!(is_within(&folder.path().join("x/y"), &source));
        assert!(is_within(folder.path(), &source));
        assert!(!is_within(&std::env::temp_dir().join("diopter-elsewhere"), &source));
    }

    #[test]
    fn the_folder_of_a_bare_name_is_here() {
        assert_eq!(folder_of(Path::new("a")), Path::new("."));
        assert_eq!(folder_of(Path::new("/a")), Path::new("/"));
        assert_eq!(folder_of(Path::new("a/b")), Path::new("a"));
    }
}
