//! Landlock (landlock(7)) for commands that only read: from then on the process reads the named
//! files and the kernel's information about them, and nothing else. Best effort: without Landlock
//! in the kernel, the process is not restricted.

use std::path::{Path, PathBuf};

use diopter::File;
use diopter::layouts::StripedFile;
use diopter_layouts::layout::{Layout, ObjectKind};
use landlock::{
    ABI, Access, AccessFs, AccessNet, BitFlags, CompatLevel, Compatible, PathBeneath, PathFd,
    Ruleset, RulesetAttr, RulesetCreated, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};

use diopter_copy::image_path;

/// Facts about files, devices and this process, in directories and one file of the kernel.
const KERNEL: [&str; 4] = ["/proc/self", "/proc/sys", "/sys", "/proc/self/exe"];

/// The directory in which a device is searched by its id.
const DEVICES: &str = "/dev";

/// Access to the names of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Allowed {
    /// Reading the names of a directory, and of those below it.
    List,
    /// Reading.
    Read,
    /// Reading, and opening for writing what is not inside an image.
    OpenToWrite,
}

/// Restricts the calling thread, and the threads that it starts, to the names of a command. Returns
/// a description of the result. The caller must not have started a thread yet.
pub fn to_names(names: &[PathBuf], allowed: Allowed) -> String {
    // A confined process makes no file, so what trials show has to be remembered before.
    names.iter().filter(|name| name.is_file()).for_each(|name| {
        // A name that cannot be opened is reported when it is probed.
        if let Ok(file) = File::options().read(true).striped(true).open(name) {
            let _remembered = file.try_direct();
        }
    });
    let mut rules: Vec<(PathBuf, Allowed)> = Vec::new();
    for name in names {
        match image_path::split(name) {
            Some(inside) => rules.push((inside.image, Allowed::Read)),
            None => {
                let own = if name.is_dir() { Allowed::List } else { allowed };
                rules.push((name.clone(), own));
                rules.extend(of_striped(name, allowed));
            }
        }
    }
    match restrict(&rules) {
        Ok(RulesetStatus::NotEnforced) => {
            "this kernel has no Landlock: nothing is confined".to_owned()
        }
        Ok(_) => format!("confined by Landlock to {} names", rules.len()),
        Err(error) => format!("nothing is confined: {error}"),
    }
}

/// Returns the directory of a manifest, to be listed, and its objects; nothing for another file.
fn of_striped(name: &Path, allowed: Allowed) -> Vec<(PathBuf, Allowed)> {
    // One that is damaged or has no mark is read too, to report why it is refused.
    if StripedFile::is_at(name).is_ok_and(|is_striped| !is_striped) {
        return Vec::new();
    }
    // As its reader finds it: by the path without symbolic links.
    let Some(dir) = name.canonicalize().ok().and_then(|path| path.parent().map(Path::to_owned))
    else {
        return Vec::new();
    };
    let mut rules = vec![(dir, Allowed::List)];
    // One that can't be read is reported when it is opened.
    let Ok(layout) = Layout::open_marked(name) else { return rules };
    let objects = layout.manifest().objects();
    if objects.iter().any(|object| matches!(object.kind, ObjectKind::Device(_))) {
        rules.push((PathBuf::from(DEVICES), allowed));
    }
    rules.extend(objects.iter().map(|object| (layout.object_path(object), allowed)));
    rules
}

fn restrict(rules: &[(PathBuf, Allowed)]) -> Result<RulesetStatus, RulesetError> {
    let ruleset = Ruleset::default()
        .set_compatibility(CompatLevel::BestEffort)
        // Without ioctl(2) on devices (V5): their sizes and limits are asked for.
        .handle_access(AccessFs::from_all(ABI::V3))?
        .handle_access(AccessNet::from_all(ABI::V4))?
        .scope(Scope::from_all(ABI::V6))?;
    let mut created = ruleset.create()?;
    for path in KERNEL {
        created = allow(created, Path::new(path), Allowed::Read)?;
    }
    for (path, allowed) in rules {
        created = allow(created, path, *allowed)?;
    }
    Ok(created.restrict_self()?.ruleset)
}

/// Adds a rule; a directory may be listed too. A path that does not exist, or can't be opened,
/// needs no rule: opening it fails as it would without one.
fn allow(
    created: RulesetCreated,
    path: &Path,
    allowed: Allowed,
) -> Result<RulesetCreated, RulesetError> {
    let Ok(opened) = PathFd::new(path) else { return Ok(created) };
    let is_directory = path.is_dir();
    let mut access: BitFlags<AccessFs> = AccessFs::ReadFile.into();
    if is_directory {
        access |= AccessFs::ReadDir;
    }
    if allowed == Allowed::OpenToWrite {
        access |= AccessFs::WriteFile;
    }
    if allowed == Allowed::List {
        access = AccessFs::ReadDir.into();
    }
    created.add_rule(PathBeneath::new(opened, access))
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_testkit::env::{Capability, skip};
    use std::fs::File;
    use std::io::ErrorKind;

    /// Runs `look` in a thread that is restricted to `names`; `None` on a kernel without Landlock.
    fn confined<T: Send>(
        names: &[(PathBuf, Allowed)],
        look: impl FnOnce() -> T + Send,
    ) -> Option<T> {
        let confined = || {
            let status = restrict(names).unwrap();
            (status != RulesetStatus::NotEnforced).then(look)
        };
        let found = std::thread::scope(|scope| scope.spawn(confined).join().unwrap());
        if found.is_none() {
            skip(Capability::Landlock, "this kernel has none");
        }
        found
    }

    fn dir() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for name in ["named", "other"] {
            std::fs::write(dir.path().join(name), name).unwrap();
        }
        dir
    }

    #[test]
    fn what_is_not_named_can_not_be_read_and_nothing_can_be_written() {
        let dir = dir();
        let [named, other] = ["named", "other"].map(|name| dir.path().join(name));
        let rules = [(named.clone(), Allowed::Read)];
        let found = confined(&rules, || {
            let denied = |opened: std::io::Result<File>| opened.unwrap_err().kind();
            assert_eq!(denied(File::open(&other)), ErrorKind::PermissionDenied);
            assert_eq!(denied(File::open("/etc/passwd")), ErrorKind::PermissionDenied);
            let to_write = File::options().write(true).open(&named);
            assert_eq!(denied(to_write), ErrorKind::PermissionDenied);
            let gone = File::open(dir.path().join("gone"));
            assert_eq!(denied(gone), ErrorKind::NotFound);
            assert!(std::fs::read_dir(dir.path()).is_err());
            assert!(std::net::TcpStream::connect("127.0.0.1:9").is_err());
            std::fs::read_to_string(&named).unwrap()
                + &std::fs::read_to_string("/proc/self/limits").unwrap()
        });
        assert!(
            found.is_none_or(|text| text.starts_with("named") && text.contains("Max open files"))
        );
    }

    #[test]
    fn what_is_named_to_be_written_can_be_opened_so() {
        let dir = dir();
        let named = dir.path().join("named");
        let rules = [(named.clone(), Allowed::OpenToWrite)];
        let found = confined(&rules, || {
            let opened = File::options().read(true).write(true).open(&named);
            (opened.is_ok(), File::create(dir.path().join("new")).is_err())
        });
        assert!(found.is_none_or(|found| found == (true, true)));
    }
}
