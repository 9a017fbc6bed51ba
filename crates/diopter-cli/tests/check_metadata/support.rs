//! Shared by the tests of `dio verify --metadata`: trees with known attributes, and the command. It
//! has no test.

use std::fs::{File, Permissions};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags, makedev};

use diopter_testkit::files::with_attributes;

use crate::cp_support::{Capability, content, dir, is_root, message, set_default_list, skip};

/// The time of everything, in seconds; it has one nanosecond more.
pub const THEN: i64 = 1_000_000_000;

/// A directory on a file system with attributes of users; none is a skip.
pub fn ground() -> Option<tempfile::TempDir> {
    with_attributes(dir())
}

/// Returns true if `cp` is GNU's.
pub fn has_gnu_cp() -> bool {
    let version = Command::new("cp").arg("--version").output();
    let is_gnu = version.is_ok_and(|reported| reported.stdout.windows(3).any(|it| it == b"GNU"));
    if !is_gnu {
        skip(Capability::GnuCp, "cp is another one");
    }
    is_gnu
}

/// `dio ARGUMENTS` in a directory.
pub fn command(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.current_dir(dir).env_remove("DIOPTER_BACKEND").env_remove("DIOPTER_LOG");
    command.args(arguments).stdin(Stdio::null());
    command
}

pub fn run(dir: &Path, arguments: &[&str]) -> Output {
    command(dir, arguments).output().unwrap()
}

/// Wants exit status 0 or 1.
pub fn run_well(dir: &Path, arguments: &[&str]) {
    let output = run(dir, arguments);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{arguments:?}: {}", message(&output));
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the lines of `dio verify --metadata one two`, none if there is no difference.
pub fn differences(dir: &Path, status: i32) -> Vec<String> {
    let output = run(dir, &["verify", "--metadata", "one", "two"]);
    let text = stdout(&output);
    assert_eq!(output.status.code(), Some(status), "{text}{}", message(&output));
    let lines = text.lines().filter(|line| !line.starts_with("no difference"));
    lines.map(str::to_owned).collect()
}

/// Returns the document of the same.
pub fn document(dir: &Path, status: i32) -> serde_json::Value {
    let output = run(dir, &["verify", "--metadata", "--json", "one", "two"]);
    assert_eq!(output.status.code(), Some(status), "{}", message(&output));
    let document = serde_json::from_slice(&output.stdout).unwrap();
    let schema = run(dir, &["schema", "verify"]);
    let schema = serde_json::from_slice(&schema.stdout).unwrap();
    assert_eq!(crate::json_schema::mismatch(&schema, &document), None);
    document
}

/// Sets the time of modification, of a link its own.
pub fn set_time(path: &Path, tv_sec: i64, tv_nsec: i64) {
    let time = Timespec { tv_sec, tv_nsec };
    let times = Timestamps { last_access: time, last_modification: time };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Sets the time of everything in a tree.
pub fn set_times(root: &Path) {
    for entry in walkdir::WalkDir::new(root).contents_first(true) {
        set_time(entry.unwrap().path(), THEN, 1);
    }
}

/// Sets an attribute, of a link its own.
pub fn set_attribute(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty()).unwrap();
}

/// Sets an access list with an entry for a user that leaves the permissions 0644 as they are.
pub fn set_access_list(path: &Path, user: u32) {
    // linux/posix_acl_xattr.h: version 2, then tag, permissions and id of each entry.
    let none = u32::MAX;
    let mut list = vec![2, 0, 0, 0];
    for (tag, permissions, id) in
        [(1u16, 6u16, none), (2, 4, user), (4, 4, none), (16, 4, none), (32, 4, none)]
    {
        list.extend(tag.to_le_bytes());
        list.extend(permissions.to_le_bytes());
        list.extend(id.to_le_bytes());
    }
    set_attribute(path, "system.posix_acl_access", &list);
}

/// Makes the trees `one` and `two`, which are the same.
pub fn twins(dir: &Path) -> (PathBuf, PathBuf) {
    let trees = ["one", "two"].map(|tree| dir.join(tree));
    for root in &trees {
        std::fs::create_dir_all(root.join("dir")).unwrap();
        std::fs::write(root.join("dir/file"), "content").unwrap();
        set_attribute(&root.join("dir/file"), "user.one", b"value");
        symlink("dir/file", root.join("link")).unwrap();
        rustix::fs::mknodat(CWD, root.join("fifo"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        for (name, mode) in [("", 0o755), ("dir", 0o755), ("dir/file", 0o644), ("fifo", 0o644)] {
            std::fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
        }
        set_times(root);
    }
    let [one, two] = trees;
    (one, two)
}

/// Makes a tree with everything that a copy with all attributes keeps.
pub fn make_odd(root: &Path) {
    let deep = root.join("deep/er/and/deeper");
    std::fs::create_dir_all(&deep).unwrap();
    for (name, mode) in [("suid", 0o4711), ("sgid", 0o2755), ("none", 0), ("sticky", 0o1644)] {
        let path = root.join(name);
        std::fs::write(&path, content(u64::from(mode), 5000)).unwrap();
        if is_root() {
            lchown(&path, Some(mode + 1000), Some(4_000_000_000)).unwrap();
        }
        set_attribute(&path, "user.empty", b"");
        set_attribute(&path, "user.long", &content(7, 2000));
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    let hostile = std::ffi::OsStr::from_bytes(b"red\x1b[31m\n\xff");
    std::fs::write(deep.join(hostile), "hostile").unwrap();
    std::fs::hard_link(deep.join(hostile), root.join("second name")).unwrap();
    std::fs::hard_link(deep.join(hostile), root.join("deep/third")).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    sparse.set_len(5 << 20).unwrap();
    sparse.write_all_at(b"data", 3 << 20).unwrap();
    std::fs::write(root.join("large"), content(9, 3 << 20)).unwrap();
    symlink("nowhere/\x1b[2J", root.join("link")).unwrap();
    std::fs::hard_link(root.join("link"), root.join("deep/link")).unwrap();
    let nodes = [(FileType::Fifo, 0), (FileType::Socket, 0)];
    let devices =
        [(FileType::CharacterDevice, makedev(1, 3)), (FileType::BlockDevice, makedev(7, 250))];
    let devices: &[_] = if is_root() { &devices } else { &[] };
    for (number, (kind, device)) in nodes.iter().chain(devices).enumerate() {
        let path = root.join(format!("node{number}"));
        rustix::fs::mknodat(CWD, &path, *kind, Mode::RUSR, *device).unwrap();
    }
    if is_root() {
        lchown(root.join("link"), Some(12), Some(13)).unwrap();
        set_attribute(&root.join("link"), "trusted.link", b"of a link");
        set_attribute(&root.join("node0"), "trusted.node", b"of a fifo");
        // vfs_cap_data of linux/capability.h, version 2.
        let capability = [1, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        std::fs::write(root.join("capable"), "").unwrap();
        set_attribute(&root.join("capable"), "security.capability", &capability);
    }
    for (name, mode) in [("deep", 0o3777), ("deep/er", 0o700), ("", 0o750)] {
        std::fs::set_permissions(root.join(name), Permissions::from_mode(mode)).unwrap();
    }
    if set_default_list(&root.join("deep/er"), [5, 5, 1]) {
        set_access_list(&root.join("sparse"), 7);
    } else {
        skip(Capability::Acl, "this file system has no access lists");
    }
    set_times(root);
    set_time(&root.join("large"), -3, 999_999_999);
}
