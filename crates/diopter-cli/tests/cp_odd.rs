//! `dio cp` to file systems that lack or refuse what most have, and where a filter refuses system
//! calls: the copy is whole, or an error that names the cause; no temporary is left.

mod cp_support;

use std::fs::Permissions;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cp_support::*;
use diopter_testkit::odd_fuse::{Odd, OddMount};

/// Mounts a file system; prints why if there is none.
fn mounted(odd: &[Odd]) -> Option<OddMount> {
    match OddMount::new(odd) {
        Ok(mount) => Some(mount),
        Err(why) => {
            skip(Capability::Fuse, why);
            None
        }
    }
}

/// Makes a tree of these files, with their names as content.
fn tree_of(dir: &Path, files: &[&str]) -> PathBuf {
    let tree = dir.join("tree");
    for file in files {
        let path = tree.join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, file).unwrap();
    }
    tree
}

/// Wants exit status 2, and each of `words` in the messages.
fn assert_failed(output: &Output, words: &[&str]) {
    let text = message(output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text}");
    }
}

/// Every name below a directory.
fn all_names(dir: &Path) -> Vec<String> {
    let entries = walkdir::WalkDir::new(dir).min_depth(1).sort_by_file_name();
    let name = |entry: walkdir::Result<walkdir::DirEntry>| {
        entry.unwrap().path().strip_prefix(dir).unwrap().to_str().unwrap().to_owned()
    };
    entries.into_iter().map(name).collect()
}

const TAKEN: &str = "takes the name for that of another file of this copy";

#[test]
fn names_that_the_target_takes_for_one_are_an_error_and_the_first_file_stays() {
    first_file_stays(&[Odd::FoldsCase]);
    first_file_stays(&[Odd::FoldsCase, Odd::ListsLowerCase]);
}

fn first_file_stays(odd: &[Odd]) {
    let Some(mount) = mounted(odd) else { return };
    let dir = dir();
    let tree = tree_of(dir.path(), &["README", "readme"]);
    let holds_one = |target: &Path, options: &[&str], output: &Output| {
        assert_failed(output, &[TAKEN]);
        let [name] = &*names(target) else { panic!("{options:?}: {:?}", names(target)) };
        let content = std::fs::read_to_string(target.join(name)).unwrap();
        let is_whole = content == *name || odd.contains(&Odd::ListsLowerCase);
        assert!(is_whole && content.eq_ignore_ascii_case(name), "{options:?}: {content}");
    };
    for (number, options) in
        [&["-r"][..], &["-a"], &["-rn"], &["-r", "--verify"]].iter().enumerate()
    {
        // Into a directory that the copy makes, and into one that was there.
        for is_there in [false, true] {
            let target = mount.path().join(format!("{number}-{is_there}"));
            if is_there {
                std::fs::create_dir(&target).unwrap();
            }
            let output = cp(&[options, &["-T"][..]].concat(), &tree, &target);
            holds_one(&target, options, &output);
        }
    }
    let target = mount.path().join("there");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("readme"), "old").unwrap();
    assert_failed(&cp(&["-rT"], &tree, &target), &[TAKEN]);
    assert_eq!(names(&target), ["readme"]);
    let target = mount.path().join("two");
    std::fs::create_dir(&target).unwrap();
    let mut two = dio();
    let output = two.arg(tree.join("README")).arg(tree.join("readme")).arg(&target).output();
    holds_one(&target, &[], &output.unwrap());
}

#[test]
fn directories_and_links_that_the_target_takes_for_one_are_an_error() {
    let Some(mount) = mounted(&[Odd::FoldsCase]) else { return };
    let dir = dir();
    let tree = tree_of(dir.path(), &["Docs/one", "docs/two"]);
    let target = mount.path().join("dirs");
    assert_failed(&cp(&["-r"], &tree, &target), &[TAKEN]);
    assert_eq!(names(&target).len(), 1);
    let links = dir.path().join("links");
    std::fs::create_dir(&links).unwrap();
    symlink("one", links.join("Link")).unwrap();
    symlink("two", links.join("LINK")).unwrap();
    let target = mount.path().join("links");
    assert_failed(&cp(&["-r"], &links, &target), &[TAKEN]);
    assert_eq!(names(&target).len(), 1);
}

#[test]
fn what_was_there_before_is_replaced_under_its_own_name_also_where_case_is_ignored() {
    let Some(mount) = mounted(&[Odd::FoldsCase]) else { return };
    let dir = dir();
    let tree = tree_of(dir.path(), &["a", "readme", "sub/b"]);
    let target = mount.path().join("target");
    std::fs::create_dir(&target).unwrap();
    std::fs::write(target.join("README"), "old").unwrap();
    for _ in 0..2 {
        cp_well(&["-rT"], &tree, &target);
        assert_eq!(all_names(&target), ["README", "a", "sub", "sub/b"]);
        assert_eq!(std::fs::read_to_string(target.join("readme")).unwrap(), "readme");
    }
    // The same name of two sources is one name, not two.
    let mut both = dio();
    let output = both.arg("-r").arg(tree.join(".")).arg(tree.join(".")).arg(&target).output();
    assert!(output.unwrap().status.success());
}

#[test]
fn a_copy_that_keeps_what_is_there_needs_no_exclusive_rename_and_no_links() {
    for odd in [&[Odd::NoRenameFlags][..], &[Odd::NoRenameFlags, Odd::NoLinks]] {
        let Some(mount) = mounted(odd) else { return };
        let dir = dir();
        let source = dir.path().join("source");
        std::fs::write(&source, "new").unwrap();
        let [target, there] = ["target", "there"].map(|name| mount.path().join(name));
        std::fs::write(&there, "old").unwrap();
        cp_well(&["-n"], &source, &target);
        cp_well(&["-n"], &source, &there);
        assert_eq!(std::fs::read_to_string(&target).unwrap(), "new");
        assert_eq!(std::fs::read_to_string(&there).unwrap(), "old");
        cp_well(&[], &source, &there);
        assert_eq!(std::fs::read_to_string(&there).unwrap(), "new");
        assert_eq!(names(mount.path()), ["target", "there"]);
    }
}

#[test]
fn files_are_copied_where_their_attributes_are_refused_and_those_are_named() {
    let dir = dir();
    let tree = tree_of(dir.path(), &["one", "sub/two"]);
    make_file(&tree.join("large"), 1, 2 << 20);
    symlink("one", tree.join("link")).unwrap();
    let with_attribute = rustix::fs::setxattr(
        tree.join("one"),
        "user.kept",
        b"value",
        rustix::fs::XattrFlags::empty(),
    );
    let failing = [Odd::MetadataFails, Odd::AttributesFail];
    let lacking = [Odd::NoMetadata, Odd::NoAttributes];
    for (odd, is_silent) in [(failing, false), (lacking, true)] {
        for odd in [&odd[..1], &odd] {
            let Some(mount) = mounted(odd) else { return };
            let target = mount.path().join("tree");
            let output = cp(&["-a"], &tree, &target);
            assert_same(&tree.join("large"), &target.join("large"));
            assert_eq!(all_names(&target), all_names(&tree), "{}", message(&output));
            for name in ["one", "sub/two"] {
                assert_eq!(std::fs::read_to_string(target.join(name)).unwrap(), name);
            }
            if is_silent {
                assert!(output.status.success(), "{}", message(&output));
                continue;
            }
            let words = ["cannot keep all attributes of", "the times: ", "EIO", "--no-preserve"];
            assert_failed(&output, &words);
            let text = message(&output);
            if odd.contains(&Odd::AttributesFail) && with_attribute.is_ok() {
                assert!(text.contains("the attribute user.kept"), "{text}");
            }
        }
    }
}

#[test]
fn symbolic_links_are_copied_where_they_cannot_be_read_back() {
    let Some(mount) = mounted(&[Odd::HidesSymlinks]) else { return };
    let dir = dir();
    let tree = tree_of(dir.path(), &["file"]);
    symlink("/absolute/path", tree.join("link")).unwrap();
    let target = mount.path().join("tree");
    cp_well(&["-a"], &tree, &target);
    assert_eq!(all_names(&target), ["file", "link"]);
    assert!(target.join("link").symlink_metadata().unwrap().is_symlink());
}

#[test]
fn a_link_that_is_too_long_is_named_with_its_length_and_leaves_nothing() {
    let Some(mount) = mounted(&[Odd::ShortLinks]) else { return };
    let dir = dir();
    let tree = tree_of(dir.path(), &["file"]);
    symlink("x/".repeat(60), tree.join("link")).unwrap();
    let target = mount.path().join("tree");
    assert_failed(&cp(&["-r"], &tree, &target), &["it leads to a path of 120 bytes, too long"]);
    assert_eq!(all_names(&target), ["file"]);
}

#[test]
fn a_copy_that_no_run_can_resume_says_so() {
    let Some(mount) = mounted(&[Odd::NoAttributes]) else { return };
    let dir = dir();
    let source = dir.path().join("source");
    make_file(&source, 1, 3 << 20);
    let target = mount.path().join("target");
    let output = cp_well(&["--resume"], &source, &target);
    let text = message(&output);
    assert!(text.contains("keeps no user attributes") && text.contains(".dio-part"), "{text}");
    assert_same(&source, &target);
    assert_eq!(message(&cp_well(&[], &source, &target)), "", "it is of no interest otherwise");
}

#[test]
fn what_a_killed_copy_left_without_a_mark_is_removed_by_a_resumed_one() {
    let Some(mount) = mounted(&[Odd::NoAttributes]) else { return };
    let dir = dir();
    let source = dir.path().join("source");
    make_file(&source, 1, 3 << 20);
    let target = mount.path().join("target");
    let left = || names(mount.path()).into_iter().filter(|name| name.ends_with(".dio-part"));
    let options = ["--bwlimit=256k", "--bs=64k"];
    let start = |count| {
        let child = start_slowly(&options, &source, &target);
        wait_for("a temporary", || left().count() == count);
        child
    };
    let mut killed = start(1);
    send(&killed, rustix::process::Signal::KILL);
    killed.wait().unwrap();
    let orphan = left().next().unwrap();
    // That of another target, that of a copy that runs, and files that only look like one.
    let others = [".target.0123456789abcdeg.dio-part", ".targets.0123456789abcdef.dio-part"];
    for other in others {
        std::fs::write(mount.path().join(other), "other").unwrap();
    }
    let mut running = start_slowly(&options, &source, &target);
    wait_for("a temporary", || left().count() == 4);
    cp_well(&["--resume"], &source, &target);
    let kept: Vec<String> = left().collect();
    assert!(!kept.contains(&orphan), "{kept:?}");
    assert_eq!(kept.len(), 3, "{kept:?}");
    assert!(others.iter().all(|other| kept.iter().any(|name| name == other)));
    running.kill().unwrap();
    running.wait().unwrap();
}

#[test]
fn a_temporary_that_cannot_be_opened_again_is_removed() {
    let Some(mount) = mounted(&[Odd::WrittenOnce]) else { return };
    let dir = dir();
    let source = dir.path().join("source");
    make_file(&source, 1, 3 << 20);
    let output = cp(&[], &source, &mount.path().join("target"));
    assert_refused(&output, &["cannot open the temporary file", "EACCES"]);
    assert_eq!(names(mount.path()), [""; 0]);
}

/// The command in a place where another user can run it.
fn for_other_users(dir: &Path) -> PathBuf {
    let program = dir.join("dio");
    std::fs::copy(env!("CARGO_BIN_EXE_dio"), &program).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(dir, Permissions::from_mode(0o755)).unwrap();
    program
}

/// Sets a default access list that lets no one write, the owner neither. Returns false if the file
/// system has no access lists.
fn set_list_without_writers(dir: &Path) -> bool {
    // linux/posix_acl_xattr.h: version 2, then tag, permissions and no id of each entry.
    let mut list = vec![2, 0, 0, 0];
    for tag in [1u16, 4, 32] {
        list.extend(tag.to_le_bytes());
        list.extend(5u16.to_le_bytes());
        list.extend([0xff; 4]);
    }
    let name = "system.posix_acl_default";
    rustix::fs::setxattr(dir, name, &list, rustix::fs::XattrFlags::empty()).is_ok()
}

#[test]
fn a_umask_or_an_access_list_that_takes_the_owners_permissions_does_not_keep_from_copying() {
    const USER: u32 = 65_534;
    if !is_root() {
        return skip(Capability::Root, "only the administrator can become another user");
    }
    let dir = tempfile::tempdir().unwrap();
    let program = for_other_users(dir.path());
    let tree = tree_of(dir.path(), &["one", "sub/two"]);
    make_file(&tree.join("large"), 1, 2 << 20);
    for path in [&tree, &tree.join("sub")] {
        std::fs::set_permissions(path, Permissions::from_mode(0o755)).unwrap();
    }
    for (number, umask) in ["0222", "0777", "0022"].into_iter().enumerate() {
        let open = dir.path().join(format!("open{number}"));
        std::fs::create_dir(&open).unwrap();
        chown(&open, Some(USER), Some(USER)).unwrap();
        if umask == "0022" && !set_list_without_writers(&open) {
            return skip(Capability::Acl, "the temporary directory has no access lists");
        }
        let script =
            format!("umask {umask}; exec {} cp -r tree {}/tree", program.display(), open.display());
        let mut shell = Command::new("sh");
        shell.args(["-c", &script]).current_dir(dir.path()).uid(USER).gid(USER);
        let output = shell.output().unwrap();
        assert!(output.status.success(), "umask {umask}: {}", message(&output));
        assert_eq!(all_names(&open.join("tree")), all_names(&tree));
        assert_same(&tree.join("large"), &open.join("tree/large"));
        let mode = open.join("tree/large").metadata().unwrap().mode() & 0o777;
        let expected = if umask == "0222" {
            0o444
        } else if umask == "0777" {
            0
        } else {
            mode
        };
        assert_eq!(mode, expected, "umask {umask}");
    }
}

/// Runs `dio cp` where a filter refuses calls; `None` without strace.
fn filtered(fault: &str, options: &[&str], paths: [&Path; 2]) -> Option<Output> {
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("inject={fault}")]);
    strace.arg(env!("CARGO_BIN_EXE_dio")).arg("cp").args(options).args(paths);
    match strace.output() {
        Ok(output) => Some(output),
        Err(error) => {
            skip(Capability::Strace, error);
            None
        }
    }
}

#[test]
fn a_refused_hint_is_a_hint_less_and_a_refused_flush_an_error() {
    let dir = dir();
    let tree = tree_of(dir.path(), &["one", "sub/two"]);
    make_file(&tree.join("large"), 1, 3 << 20);
    let hints = [
        "fallocate:error=EPERM",
        "fallocate:error=ENOSYS",
        "fadvise64:error=EPERM",
        "sync_file_range:error=EPERM",
        "flistxattr,fgetxattr,fsetxattr,fremovexattr:error=ENOSYS",
        "renameat2:error=EPERM",
        "renameat2:error=ENOSYS",
        "flock:error=EPERM",
        "ioctl:error=EPERM",
    ];
    for (number, hint) in hints.iter().enumerate() {
        let target = dir.path().join(format!("copy{number}"));
        let Some(output) = filtered(hint, &["-r"], [&tree, &target]) else { return };
        assert!(output.status.success(), "{hint}: {}", message(&output));
        assert_eq!(all_names(&target), all_names(&tree), "{hint}");
        assert_same(&tree.join("large"), &target.join("large"));
    }
    for refused in ["fsync:error=ENOSYS", "fsync:error=EPERM"] {
        let target = dir.path().join("refused");
        let source = tree.join("large");
        let options = ["--backend=threads", "--reflink=never"];
        let Some(output) = filtered(refused, &options, [&source, &target]) else { return };
        assert_refused(&output, &["cannot flush"]);
        assert!(!names(dir.path()).iter().any(|name| name.ends_with(".dio-part")), "{refused}");
        assert!(!target.exists(), "{refused}");
    }
}
