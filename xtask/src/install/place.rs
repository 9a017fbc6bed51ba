//! Writes files into directories of the system, as root: nothing that another user can place there
//! decides what is written, or where. It knows no names of the product, and builds without the
//! engine: `diopter_os::trust` has the same rule for the product, and its crates would triple the
//! time that a first build of xtask takes.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use crate::repo;

const DIRECTORY_MODE: u32 = 0o755;

/// Makes the directory and those above it where they are missing, and checks that nothing in the
/// path is in the power of another user.
pub fn directory(path: &Path) -> Result<(), String> {
    let mut missing: Vec<&Path> = Vec::new();
    for above in path.ancestors() {
        match fs::symlink_metadata(above) {
            Ok(_) => break,
            Err(error) if error.kind() == io::ErrorKind::NotFound => missing.push(above),
            Err(error) => return Err(failed("look at", above, &error)),
        }
    }
    let there = missing.last().and_then(|last| last.parent()).unwrap_or(path);
    check(there)?;
    for one in missing.into_iter().rev() {
        let fail = |error: io::Error| failed("make the directory", one, &error);
        DirBuilder::new().mode(DIRECTORY_MODE).create(one).map_err(fail)?;
        // Whatever the umask is.
        fs::set_permissions(one, Permissions::from_mode(DIRECTORY_MODE)).map_err(fail)?;
    }
    Ok(())
}

/// Puts a file under its name: under a new name that did not exist, then renamed. A link that has
/// the name is replaced and not followed.
pub fn file(path: &Path, content: &[u8], mode: u32) -> Result<(), String> {
    let fail = |error: io::Error| failed("write", path, &error);
    under_new_name(path, |new| {
        // No other user opens it before it has its mode.
        let mut options = File::options();
        options.write(true).create_new(true).mode(0o600);
        let mut file = options.open(new).map_err(fail)?;
        file.write_all(content).map_err(fail)?;
        file.set_permissions(Permissions::from_mode(mode)).map_err(fail)?;
        file.sync_all().map_err(fail)
    })
}

/// Puts a symbolic link under its name, as `file` does.
pub fn link(path: &Path, target: &Path) -> Result<(), String> {
    under_new_name(path, |new| symlink(target, new).map_err(|error| failed("link", path, &error)))
}

fn under_new_name(
    path: &Path,
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<(), String> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let new = path.with_file_name(format!(".{name}.{}.new", std::process::id()));
    // Of an earlier process with this number, which was killed.
    remove(&new)?;
    make(&new)
        .and_then(|()| fs::rename(&new, path).map_err(|error| failed("replace", path, &error)))
        .inspect_err(|_| fs::remove_file(&new).unwrap_or(()))
}

/// Removes a file or a link. One that is not there is removed already.
pub fn remove(path: &Path) -> Result<(), String> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(failed("remove", path, &error))
        }
        _ => Ok(()),
    }
}

/// Returns why a path is in the power of another user than root and this one, if it is: a link or a
/// directory that is another user's, or a directory that everyone or a group other than root's may
/// write and rename in.
pub fn check(path: &Path) -> Result<(), String> {
    if !repo::is_root() {
        return Ok(());
    }
    let whole = path.canonicalize().map_err(|error| failed("look at", path, &error))?;
    // The links of the path as it is typed, then the directories that they lead to.
    path.ancestors().chain(whole.ancestors()).try_for_each(check_one)
}

fn check_one(path: &Path) -> Result<(), String> {
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    let found = fs::symlink_metadata(path).map_err(|error| failed("look at", path, &error))?;
    let refuse =
        |why: &str| Err(format!("write below {}: {why}; install somewhere else", path.display()));
    if found.uid() != 0 {
        return refuse("it belongs to another user, who could replace what root writes");
    }
    let is_sticky = found.mode() & 0o1000 != 0;
    if found.is_dir() && found.mode() & 0o002 != 0 && !is_sticky {
        return refuse("everyone can write in it, and rename what root writes");
    }
    if found.is_dir() && found.mode() & 0o020 != 0 && found.gid() != 0 && !is_sticky {
        return refuse("its group can write in it (chmod g-w), and rename what root writes");
    }
    if !found.is_dir() && !found.is_symlink() {
        return refuse("it is not a directory");
    }
    Ok(())
}

fn failed(what: &str, path: &Path, error: &io::Error) -> String {
    format!("{what} {}: {error}", path.display())
}

/// Returns the files and links below a directory, sorted, without the directory's own path.
pub fn below(root: &Path) -> Result<Vec<PathBuf>, String> {
    let mut found = Vec::new();
    let mut left = vec![root.to_owned()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(&dir).map_err(|error| failed("list", &dir, &error))? {
            let path = entry.map_err(|error| failed("list", &dir, &error))?.path();
            if path.is_dir() && !path.is_symlink() {
                left.push(path);
            } else if let Ok(name) = path.strip_prefix(root) {
                found.push(name.to_owned());
            }
        }
    }
    found.sort();
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A directory of one test, removed at its end.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            let path = repo::target_dir().join(format!("tmp/place-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a directory");
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0).ok();
        }
    }

    #[test]
    fn a_link_that_has_the_name_is_replaced_and_not_followed() {
        let scratch = Scratch::new("link");
        let (victim, name) = (scratch.0.join("victim"), scratch.0.join("dio"));
        fs::write(&victim, "precious").expect("a file");
        symlink(&victim, &name).expect("a link");
        file(&name, b"new", 0o755).expect("it is written");
        assert_eq!(fs::read_to_string(&victim).expect("the victim"), "precious");
        assert!(!name.is_symlink());
        assert_eq!(fs::metadata(&name).expect("the file").mode() & 0o7777, 0o755);

        let old = scratch.0.join("lib.so");
        symlink(&scratch.0, &old).expect("a link to a directory");
        link(&old, Path::new("lib.so.0")).expect("it is linked");
        assert_eq!(fs::read_link(&old).expect("a link"), Path::new("lib.so.0"));
        assert_eq!(below(&scratch.0).expect("a list").len(), 3, "no temporary name is left");
    }

    #[test]
    fn a_link_under_the_temporary_name_is_not_followed() {
        let scratch = Scratch::new("temporary");
        let (victim, name) = (scratch.0.join("victim"), scratch.0.join("dio"));
        fs::write(&victim, "precious").expect("a file");
        let new = scratch.0.join(format!(".dio.{}.new", std::process::id()));
        symlink(&victim, &new).expect("a link");
        file(&name, b"new", 0o644).expect("it is written");
        assert_eq!(fs::read_to_string(&victim).expect("the victim"), "precious");
    }

    #[test]
    fn a_directory_under_the_name_is_an_error_and_leaves_nothing() {
        let scratch = Scratch::new("directory");
        let name = scratch.0.join("dio");
        fs::create_dir(&name).expect("a directory");
        let why = file(&name, b"new", 0o644).unwrap_err();
        assert!(why.starts_with("replace ") && why.contains("/dio: "), "{why}");
        assert!(below(&scratch.0).expect("a list").is_empty());
    }

    #[test]
    fn root_writes_nothing_where_others_could_replace_it() {
        if !repo::is_root() {
            return diopter_skip::skip(diopter_skip::Capability::Root, "owners are set by root");
        }
        let scratch = Scratch::new("owners");
        let (open, theirs, to) =
            (scratch.0.join("open"), scratch.0.join("theirs"), scratch.0.join("to"));
        for dir in [&open, &theirs] {
            fs::create_dir(dir).expect("a directory");
        }
        symlink(&open, &to).expect("a link");
        fs::set_permissions(&open, Permissions::from_mode(0o777)).expect("open to all");
        std::os::unix::fs::chown(&theirs, Some(65534), None).expect("another user's");
        for (dir, why) in [(&open, "everyone"), (&to, "everyone"), (&theirs, "another user")] {
            let error = directory(&dir.join("usr/bin")).unwrap_err();
            assert!(error.contains(why), "{error}");
            assert!(fs::read_dir(dir).expect("a directory").next().is_none());
        }
        fs::set_permissions(&open, Permissions::from_mode(0o775)).expect("open to root's group");
        directory(&open.join("usr/lib")).expect("root's own");
        std::os::unix::fs::chown(&open, None, Some(65534)).expect("another group's");
        assert!(directory(&open.join("usr/bin")).unwrap_err().contains("its group can write"));
        fs::set_permissions(&open, Permissions::from_mode(0o1777)).expect("sticky, as /tmp");
        directory(&open.join("usr/bin")).expect("root's own");
        std::os::unix::fs::lchown(&to, Some(65534), None).expect("another user's link");
        assert!(directory(&to.join("usr/bin")).unwrap_err().contains("another user"));
    }
}
