//! The private group of a user: a group with the number of the user and without members, which many
//! systems make for each account. With a umask of 002 all files of the user are writable to it.

use std::os::fd::AsFd;

use rustix::fs::Stat;

use super::{check_held, held_path};
use crate::errno::Errno;

/// Returns true if write permission of the group of a file is given to its owner alone.
pub fn is_of_owner(fd: impl AsFd, stat: &Stat) -> bool {
    stat.st_uid == stat.st_gid && has_owner_alone(stat.st_gid) && has_no_list(fd)
}

/// Returns true if no other account has the group.
fn has_owner_alone(id: u32) -> bool {
    let text = |path| std::fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned());
    match (text("/etc/group"), text("/etc/passwd")) {
        (Ok(groups), Ok(accounts)) => is_private(&groups, &accounts, id),
        _ => false,
    }
}

/// As [`has_owner_alone`], by the text of group(5) and passwd(5). A group that is not listed may be
/// one of a directory service, whose members are not known.
pub fn is_private(groups: &str, accounts: &str, id: u32) -> bool {
    let listed = |text: &'_ str, field: usize| -> Vec<Vec<String>> {
        let lines = text.lines().map(|line| line.split(':').map(|it| it.trim().to_owned()));
        lines
            .map(Iterator::collect)
            .filter(|line: &Vec<String>| line.get(field).and_then(|it| it.parse().ok()) == Some(id))
            .collect()
    };
    let groups = listed(groups, 2);
    let has_members = groups.iter().any(|line| line.get(3).is_none_or(|list| !list.is_empty()));
    let is_owner = |line: &Vec<String>| line[2].parse() == Ok(id);
    (id == 0 || !groups.is_empty()) && !has_members && listed(accounts, 3).iter().all(is_owner)
}

/// Returns true if the file has no access list, which may name other users: the permissions of the
/// group are then its mask. A server of NFS 4 has lists of another kind.
fn has_no_list(fd: impl AsFd) -> bool {
    // A descriptor of O_PATH has no fgetxattr(2).
    let (is_held, path) = (check_held(&fd).is_ok(), held_path(&fd));
    let has_none = |list| {
        let found = rustix::fs::getxattr(&path, list, &mut [0_u8; 0][..]);
        matches!(found.map_err(Errno::from), Err(Errno::ENODATA | Errno::EOPNOTSUPP))
    };
    is_held && ["system.posix_acl_access", "system.nfs4_acl"].into_iter().all(has_none)
}
