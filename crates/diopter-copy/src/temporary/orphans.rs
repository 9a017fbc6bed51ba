//! Temporaries of earlier copies that no run resumes and no run finds by their mark: their file
//! system keeps no attributes of users.

use std::os::unix::fs::MetadataExt;

use diopter::Errno;
use diopter_os::space;

use super::name::is_unused_name;
use super::{is_own, reopen};
use crate::dir::{Entry, fd_of};

/// Removes the temporaries of copies to a target that were killed. A file counts as such a
/// temporary if it has a name that [`unused_name`](super::unused_name) makes for this target,
/// belongs to this user, has no other name, and no process has locked it. Without locks none is
/// removed.
pub fn remove(target: &Entry) -> Result<(), Errno> {
    let dir = target.dir.to_list()?;
    loop {
        let names = dir.next_names()?;
        if names.is_empty() {
            return Ok(());
        }
        for name in names.into_iter().filter(|name| is_unused_name(name, &target.name)) {
            remove_one(&target.sibling(name));
        }
    }
}

/// Removes one of them. One that cannot be opened or locked stays.
fn remove_one(name: &Entry) {
    let Ok(Some(found)) = name.look() else { return };
    let metadata = found.metadata();
    if !metadata.is_file() || metadata.nlink() != 1 {
        return;
    }
    let Ok(file) = reopen(&found.proc_path()) else { return };
    let is_unused = space::lock_range(fd_of(&file), true, 0, 0, false) == Ok(true);
    if is_own(metadata) && is_unused && name.is(found.id()) {
        name.remove().unwrap_or(());
    }
}
