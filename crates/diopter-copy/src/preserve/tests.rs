//! Attributes of real files, and the rules for those that are not set.

use super::*;
use diopter_testkit::env::{Capability, skip};
use std::fs::{File, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;

fn attribute(file: &File, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 100];
    let length = rustix::fs::fgetxattr(file, name, &mut value[..]).ok()?;
    value.truncate(length);
    Some(value)
}

#[test]
fn permissions_times_and_attributes_are_the_sources_and_the_record_is_not() {
    let (source, other) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
    source.set_permissions(Permissions::from_mode(0o4741)).unwrap();
    let times = Timestamps {
        last_access: Timespec { tv_sec: 1_000_000, tv_nsec: 1 },
        last_modification: Timespec { tv_sec: 2_000_000, tv_nsec: 999_999_999 },
    };
    rustix::fs::futimens(&source, &times).unwrap();
    let set = |name| rustix::fs::fsetxattr(&source, name, b"value", XattrFlags::empty());
    let has_attributes =
        set("user.one").is_ok() && set(RECORD_NAME).is_ok() && set(MANIFEST_ATTRIBUTE).is_ok();
    let kept = Preserve::new(&[Attribute::All], &[]);
    let attributes = (Path::new("t"), Attributes { kept: &kept, mode: None });
    let metadata = source.metadata().unwrap();
    copy(source.as_fd(), &metadata, other.as_fd(), attributes).unwrap();
    let (ours, theirs) = (source.metadata().unwrap(), other.metadata().unwrap());
    assert_eq!(theirs.mode(), ours.mode());
    assert_eq!((theirs.uid(), theirs.gid()), (ours.uid(), ours.gid()));
    assert_eq!((theirs.atime(), theirs.atime_nsec()), (1_000_000, 1));
    assert_eq!((theirs.mtime(), theirs.mtime_nsec()), (2_000_000, 999_999_999));
    if has_attributes {
        assert_eq!(attribute(&other, "user.one").as_deref(), Some(&b"value"[..]));
        assert_eq!(attribute(&other, RECORD_NAME), None);
        assert_eq!(attribute(&other, MANIFEST_ATTRIBUTE), None);
    } else {
        skip(Capability::Xattr, "the temporary directory keeps no user attributes");
    }
}

#[test]
fn an_owner_that_cannot_be_kept_is_left_out_and_a_broken_disk_is_not() {
    let metadata = tempfile::tempfile().unwrap().metadata().unwrap();
    let refused = set_owner(&metadata, |owner, _| match owner {
        Some(_) => Err(rustix::io::Errno::PERM),
        None => Ok(()),
    });
    assert_eq!(refused, Ok(()));
    let broken = set_owner(&metadata, |_, _| Err(rustix::io::Errno::IO));
    assert_eq!(broken, Err(Errno::EIO));
}

#[test]
fn set_id_bits_go_only_with_their_owner() {
    let file = tempfile::tempfile().unwrap();
    file.set_permissions(Permissions::from_mode(0o6755)).unwrap();
    let metadata = file.metadata().unwrap();
    let check = |kept: &[Attribute], mode, is_owned, expected: Option<u32>| {
        let attributes = Attributes { kept: &Preserve::new(kept, &[]), mode };
        let mode = mode_of(&metadata, attributes, is_owned);
        assert_eq!(mode.map(|mode| mode.bits()), expected);
    };
    check(&[Attribute::Mode], None, true, Some(0o6755));
    check(&[Attribute::Mode], Some(0o700), false, Some(0o755));
    check(&[Attribute::Ownership], Some(0o700), true, Some(0o700));
    check(&[], None, true, None);
}

#[test]
fn what_is_left_out_wins_over_what_is_kept() {
    let kept = Preserve::new(&[Attribute::All], &[Attribute::Xattr, Attribute::Ownership]);
    let has = [Attribute::Mode, Attribute::Timestamps, Attribute::Context, Attribute::Links];
    assert_eq!(kept, Preserve::new(&has, &[]));
    let none = Preserve::new(&[Attribute::Mode], &[Attribute::All]);
    assert_eq!((none.kept.len(), none.new_mode(0o1700, 0o777)), (0, 0o1777));
    assert_eq!(Preserve::default().new_mode(0o600, 0o666), 0o600);
    for (name, expected) in [
        ("system.posix_acl_access", true),
        ("security.selinux", true),
        ("user.one", false),
        (RECORD_NAME, false),
    ] {
        assert_eq!(kept.has_extended(name.as_bytes()), expected, "{name}");
    }
    let all = Preserve::new(&[Attribute::All], &[]);
    assert!(all.has_extended(b"trusted.one") && !all.has_extended(b"trusted.SGI_ACL_FILE"));
}

#[test]
fn a_default_access_list_replaces_the_umask() {
    let list = |entries: &[(u8, u8)]| {
        let mut list = vec![2, 0, 0, 0];
        for (tag, permissions) in entries {
            list.extend([*tag, 0, *permissions, 0, 0xff, 0xff, 0xff, 0xff]);
        }
        list
    };
    let masked = list(&[(1, 7), (2, 7), (4, 5), (16, 6), (32, 1)]);
    assert_eq!(permissions_of(&masked), Some(0o761));
    assert_eq!(permissions_of(&list(&[(1, 6), (4, 5), (32, 0)])), Some(0o650));
    assert_eq!(granted_to_group(&masked), 4);
    assert_eq!(granted_to_group(&list(&[(1, 6), (4, 5), (32, 0)])), 5);
    assert_eq!(granted_to_group(&[0; 28]), 0);
    let mode = Mode::from_bits_truncate(0o4664);
    assert_eq!(without_list(mode, Some(0)), Mode::from_bits_truncate(0o4604));
    assert_eq!(without_list(mode, None), mode);
    for broken in [&[][..], &[2, 0, 0], &list(&[(1, 7)]), &[0; 28]] {
        assert_eq!(permissions_of(broken), None);
    }
    let dir = tempfile::tempdir().unwrap();
    let opened = File::open(dir.path()).unwrap();
    assert_eq!(creation_mode(opened.as_fd(), 0o777, 0o027), 0o750);
}

#[test]
fn without_the_list_of_attributes_a_copy_grants_its_group_nothing() {
    let copy = tempfile::tempfile().unwrap();
    let carriers = (&Carrier::Held(PathBuf::from("/nowhere")), &Carrier::Open(copy.as_fd()));
    for (kept, granted) in [(Attribute::Mode, Some(0)), (Attribute::Xattr, None)] {
        let not_set = copy_attributes(carriers, &Preserve::new(&[kept], &[])).unwrap();
        assert_eq!(not_set.granted_to_group, granted, "{kept:?}");
        assert_eq!(not_set.lost.refused.len(), 1, "{kept:?}");
    }
    let mode = without_list(Mode::from_raw_mode(0o674), Some(0));
    assert_eq!(mode, Mode::from_raw_mode(0o604));
}
