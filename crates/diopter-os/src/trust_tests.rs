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
