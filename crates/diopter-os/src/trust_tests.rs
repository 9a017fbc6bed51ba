//! Tests of trust in names: files, links and directories of another user, by root.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown, lchown, symlink};

use diopter_skip::{Capability, skip};

use super::*;

/// A user without an account.
const OTHER: u32 = 54_321;

/// A directory of root's, with a file that may decide.
struct Ground {
    at: tempfile::TempDir,
    file: PathBuf,
}

fn ground() -> Option<Ground> {
    if effective_user() != 0 {
        skip(Capability::Root, "owners are set by root");
        return None;
    }
    let at = tempfile::tempdir().unwrap();
    let file = at.path().join("file");
    fs::write(&file, b"mine").unwrap();
    fs::set_permissions(&file, Permissions::from_mode(0o644)).unwrap();
    Some(Ground { at, file })
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn give(path: &Path) {
    lchown(path, Some(OTHER), Some(OTHER)).unwrap();
}

fn why_of(path: &Path) -> Refusal {
    open(path).map(drop).unwrap_err()
}

#[test]
fn a_file_decides_only_without_other_owners_and_writers() {
    let Some(ground) = ground() else { return };
    assert!(open(&ground.file).is_ok());
    chown(&ground.file, None, Some(OTHER)).unwrap();
    for mode in [0o664, 0o646, 0o606] {
        set(&ground.file, mode);
        let expected = Refusal { path: ground.file.clone(), why: Why::Writers(mode) };
        assert_eq!(why_of(&ground.file), expected);
    }
    set(&ground.file, 0o644);
    chown(&ground.file, Some(OTHER), None).unwrap();
    let refused = why_of(&ground.file);
    assert_eq!(refused, Refusal { path: ground.file.clone(), why: Why::Owner(OTHER) });
    let text = refused.text(&ground.file, |path| path.display().to_string());
    assert!(text.starts_with("it belongs to user 54321, not to you or root; "), "{text}");
}

#[test]
fn each_directory_above_decides_too_and_a_sticky_one_may_be_open() {
    let Some(ground) = ground() else { return };
    let (above, below) = (ground.at.path().join("above"), ground.at.path().join("above/below"));
    fs::create_dir_all(&below).unwrap();
    let file = below.join("file");
    fs::write(&file, b"mine").unwrap();
    set(&file, 0o600);
    assert!(open(&file).is_ok());
    chown(&above, None, Some(OTHER)).unwrap();
    for mode in [0o777, 0o775] {
        set(&above, mode);
        assert_eq!(why_of(&file), Refusal { path: above.clone(), why: Why::Writers(mode) });
    }
    set(&above, 0o1777);
    assert!(open(&file).is_ok(), "no other user renames what is below");
    give(&above);
    assert_eq!(why_of(&file), Refusal { path: above.clone(), why: Why::Owner(OTHER) });
    let text = why_of(&file).text(&file, |path| path.display().to_string());
    assert!(text.starts_with(&format!("{}: it belongs to user 54321", above.display())), "{text}");
}

#[test]
fn a_directory_decides_only_if_no_other_user_makes_names_in_it() {
    let Some(ground) = ground() else { return };
    let (dir, named) = (ground.at.path().join("dir"), ground.at.path().join("link"));
    fs::create_dir(&dir).unwrap();
    symlink(&dir, &named).unwrap();
    set(&dir, 0o755);
    assert!(hold_directory(&dir).is_ok() && hold_directory(&named).is_ok());
    for mode in [0o777, 0o1777] {
        set(&dir, mode);
        let expected = Refusal { path: dir.clone(), why: Why::Writers(mode) };
        assert_eq!(hold_directory(&dir).map(drop), Err(expected));
    }
    set(&dir, 0o755);
    let why_of = |path: &Path| hold_directory(path).map(drop).unwrap_err();
    assert_eq!(why_of(&ground.file).why, Why::System(Errno::ENOTDIR));
    give(&named);
    assert_eq!(why_of(&named), Refusal { path: named.clone(), why: Why::Owner(OTHER) });
    give(&dir);
    assert_eq!(why_of(&dir).why, Why::Owner(OTHER));
}

#[test]
fn an_open_file_is_judged_without_its_names() {
    let Some(ground) = ground() else { return };
    set(ground.at.path(), 0o777);
    let file = fs::File::open(&ground.file).unwrap();
    assert_eq!(check_open(&file), Ok(()));
    set(&ground.file, 0o646);
    assert_eq!(check_open(&file), Err(Why::Writers(0o646)));
    give(&ground.file);
    assert_eq!(check_open(&file), Err(Why::Owner(OTHER)));
}

/// An access list that gives write permission to another user.
fn list_for_another() -> Vec<u8> {
    let entries = [(1, 7, u32::MAX), (2, 7, OTHER), (4, 5, u32::MAX), (16, 7, u32::MAX)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries.into_iter().chain([(32, 5, u32::MAX)]) {
        let (tag, permissions): (u16, u16) = (tag, permissions);
        list.extend(tag.to_le_bytes().into_iter().chain(permissions.to_le_bytes()));
        list.extend(id.to_le_bytes());
    }
    list
}

#[test]
fn the_private_group_of_the_owner_may_write_without_an_access_list() {
    let Some(ground) = ground() else { return };
    let [groups, accounts] = ["/etc/group", "/etc/passwd"].map(fs::read_to_string);
    if !private_group::is_private(&groups.unwrap(), &accounts.unwrap(), 0) {
        return skip(Capability::Root, "the group of root has members");
    }
    set(&ground.file, 0o664);
    set(ground.at.path(), 0o775);
    assert!(open(&ground.file).is_ok(), "as with a umask of 002");
    set(&ground.file, 0o666);
    assert_eq!(why_of(&ground.file).why, Why::Writers(0o666));
    set(&ground.file, 0o644);
    let file = fs::File::open(&ground.file).unwrap();
    let list = list_for_another();
    if crate::xattr::set(file.as_fd(), "system.posix_acl_access", &list) == Err(Errno::EOPNOTSUPP) {
        return skip(Capability::Xattr, "the temporary directory keeps no access lists");
    }
    assert_eq!(why_of(&ground.file).why, Why::Writers(0o775), "the mask is not the group");
}

#[test]
fn a_group_is_private_if_it_is_listed_without_another_account() {
    let groups = "root:x:0:\nann:x:1000:\nbob:x:1001:ann\ncut:x:1002\nstaff:x:50:ann,bob\n";
    let accounts = "root:x:0:0::/:\nann:x:1000:1000::/:\nguest:x:1003:1003::/:\n";
    let is_private = |id| private_group::is_private(groups, accounts, id);
    assert!(is_private(0) && is_private(1000));
    for (id, why) in [(1001, "members"), (1002, "no list"), (50, "members"), (1003, "unlisted")] {
        assert!(!is_private(id), "{id}: {why}");
    }
    let shared = format!("{accounts}eve:x:1009:1000::/:\n");
    assert!(!private_group::is_private(groups, &shared, 1000), "the primary group of another");
    assert!(!private_group::is_private("", &format!("{accounts}sync:x:5:0::/:"), 0));
    assert!(private_group::is_private("", accounts, 0), "root is the same everywhere");
    let twice = format!("{groups}again:x:1000:bob\n");
    assert!(!private_group::is_private(&twice, accounts, 1000), "listed twice");
}

#[test]
fn the_directory_above_a_link_of_proc_is_not_taken_from_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let held = hold(dir.path(), Way::OwnLinks).unwrap();
    assert_eq!(check_held(&held), Ok(()));
    let within = dir.path().join("within");
    fs::create_dir(&within).unwrap();
    assert!(hold(&held_path(&held).join("within/.."), Way::OwnLinks).is_ok(), "that is known");
    for way in [Way::OwnLinks, Way::Own] {
        let refused = hold(&held_path(&held).join(".."), way).unwrap_err();
        assert_eq!(refused.why, Why::AboveDescriptor, "{way:?}");
    }
}

#[test]
fn a_proc_of_another_namespace_is_refused() {
    use crate::testing::check_in_own_process;
    let name = "a_proc_of_another_namespace_is_refused";
    if effective_user() != 0 {
        return skip(Capability::Root, "root mounts");
    }
    check_in_own_process(module_path!(), name, || {
        let held = hold(Path::new("/usr"), Way::Any).unwrap();
        let mount = |kind: &std::ffi::CStr, target: &std::ffi::CStr, flags| {
            let (kind, target) = (kind.as_ptr(), target.as_ptr());
            // SAFETY: strings that end with a zero byte, and no data.
            unsafe { libc::mount(kind, target, kind, flags, std::ptr::null()) }
        };
        // SAFETY: the call has no requirements; the thread ends with this check.
        if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0
            || mount(c"none", c"/", libc::MS_REC | libc::MS_PRIVATE) != 0
            || mount(c"tmpfs", c"/proc", 0) != 0
        {
            return skip(Capability::Root, "no mounts here");
        }
        assert_eq!(check_held(&held), Err(Why::OtherProc));
        let link = held_path(&held);
        fs::create_dir_all(link.parent().unwrap()).unwrap();
        std::os::unix::fs::symlink("/etc", &link).unwrap();
        assert_eq!(check_held(&held), Err(Why::OtherProc), "another process has it");
    });
}

#[test]
fn a_link_decides_like_what_it_leads_to() {
    let Some(ground) = ground() else { return };
    let (link, dir) = (ground.at.path().join("link"), ground.at.path().join("dir"));
    symlink("dir/../dir/inner", &link).unwrap();
    fs::create_dir(&dir).unwrap();
    fs::copy(&ground.file, dir.join("inner")).unwrap();
    assert!(open(&link).is_ok());
    give(&dir);
    assert_eq!(why_of(&link), Refusal { path: dir, why: Why::Owner(OTHER) }, "on the way");
    fs::remove_file(&link).unwrap();
    symlink(&ground.file, &link).unwrap();
    assert!(open(&link).is_ok());
    give(&link);
    assert_eq!(why_of(&link), Refusal { path: link.clone(), why: Why::Owner(OTHER) });
    let round = ground.at.path().join("round");
    symlink("round", &round).unwrap();
    assert_eq!(why_of(&round).errno(), Some(Errno::ELOOP));
}

#[test]
fn what_is_not_a_file_is_not_opened() {
    let Some(ground) = ground() else { return };
    let fifo = ground.at.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
    // The open of a FIFO would not return.
    assert_eq!(why_of(&fifo).why, Why::NotRegular);
    assert_eq!(why_of(ground.at.path()).why, Why::NotRegular);
    for path in [&fifo, Path::new("/dev/zero")] {
        assert_eq!(open_document(path).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    }
    let directory = open_document(ground.at.path()).unwrap_err();
    assert_eq!(directory.kind(), io::ErrorKind::IsADirectory);
    assert!(open_document(&ground.file).is_ok());
    assert_eq!(why_of(&ground.at.path().join("none")).errno(), Some(Errno::ENOENT));
    assert_eq!(why_of(&ground.file.join("x")).errno(), Some(Errno::ENOTDIR));
}

#[test]
fn a_held_name_is_the_file_that_it_led_to() {
    let Some(ground) = ground() else { return };
    let (link, other) = (ground.at.path().join("link"), ground.at.path().join("other"));
    fs::write(&other, b"another").unwrap();
    symlink(&ground.file, &link).unwrap();
    let held = hold(&link, Way::OwnLinks).unwrap();
    fs::rename(&other, &ground.file).unwrap();
    assert_eq!(fs::read(held_path(&held)).unwrap(), b"mine");
    give(&link);
    assert_eq!(hold(&link, Way::OwnLinks).unwrap_err().why, Why::Owner(OTHER));
    assert!(hold(&link, Way::Any).is_ok());
    assert!(hold(&held_path(&held), Way::OwnLinks).is_ok(), "through a descriptor of this process");
}

#[test]
fn only_names_of_descriptors_are_the_systems() {
    for (name, is_one) in [
        ("/dev/stdout", true),
        ("/dev/fd/63", true),
        ("/proc/self/fd/1", true),
        ("/dev/shm/out", false),
        ("/dev/null", false),
        ("out", false),
    ] {
        assert_eq!(is_of_descriptor(Path::new(name)), is_one, "{name}");
    }
}
