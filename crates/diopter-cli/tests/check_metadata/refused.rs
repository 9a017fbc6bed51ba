//! Limits of `dio verify --metadata`: names without attributes, file systems that lack
//! some of them, and attributes that may not be read.

use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::process::Command;

use diopter_testkit::machine::{self, FileSystem, Loop, Mount};

use super::*;

#[test]
fn names_whose_inode_is_not_their_content_are_refused() {
    let Some(dir) = ground() else { return };
    std::fs::create_dir(dir.path().join("objects")).unwrap();
    std::fs::write(dir.path().join("plain"), content(1, 5000)).unwrap();
    run(dir.path(), &["stripe", "create", "striped", "--objects", "objects", "objects"]);
    cp_well(&[], &dir.path().join("plain"), &dir.path().join("striped"));
    let refused = |names: [&str; 2], cause: &str| {
        let [one, other] = names;
        for names in [[one, other], [other, one]] {
            run_well(dir.path(), &["verify", "--bytes=0", names[0], names[1]]);
            let words = ["verify", "--bytes=0", "--metadata", names[0], names[1]];
            let output = run(dir.path(), &words);
            let expected = format!(
                "dio verify: cannot compare the metadata of {other}: {cause}; leave --metadata \
                 out, which is for files and directories\n"
            );
            assert_eq!((output.status.code(), message(&output)), (Some(2), expected));
        }
    };
    refused(["plain", "striped"], "it is a striped file");
    // In a tree its manifest is a plain file.
    let output = run(dir.path(), &["verify", "--metadata", ".", "."]);
    assert!(output.status.success(), "{}", message(&output));
    let _alone = machine::alone();
    let image = match Loop::new("metadata", 16 << 20, 512) {
        Ok(device) => device,
        Err(why) => return skip(Capability::Loop, why),
    };
    refused(["plain", image.device().to_str().unwrap()], "it is a block device");
    let kind = FileSystem::Ext4 { block: 4096, extra: &[] };
    let mount = match Mount::on(image, kind, "") {
        Ok(mount) => mount,
        Err(why) => return skip(Capability::Ext4, why),
    };
    std::fs::write(mount.path().join("inside"), "").unwrap();
    let image = mount.unmounted().unwrap();
    let inside = format!("{}::/inside", image.backing().display());
    refused(["plain", &inside], "it is inside an image");
}

#[test]
fn a_file_system_without_attributes_differs_only_from_a_file_that_has_some() {
    let Some(dir) = ground() else { return };
    let (one, _) = twins(dir.path());
    let two = dir.path().join("two");
    std::fs::remove_dir_all(&two).unwrap();
    std::fs::create_dir(&two).unwrap();
    let _alone = machine::alone();
    if let Err(why) = machine::run("mount", &["-t", "ramfs", "none", two.to_str().unwrap()]) {
        return skip(Capability::Mount, why);
    }
    cp_well(&["-a", "-T"], &one, &two);
    let with = differences(dir.path(), 1);
    rustix::fs::removexattr(one.join("dir/file"), "user.one").unwrap();
    let without = run(dir.path(), &["verify", "--metadata", "one", "two"]);
    machine::unmount(&two).unwrap();
    let line = "one/dir/file and two/dir/file differ in extended attribute user.one: \
                only one/dir/file has it";
    assert_eq!(with, [line]);
    assert_eq!((without.status.code(), message(&without)), (Some(0), String::new()));
}

#[test]
fn coarser_times_of_a_file_system_are_no_difference() {
    let _alone = machine::alone();
    let kind = FileSystem::Ext4 { block: 4096, extra: &["-I", "128"] };
    let mount = match Mount::new(kind, 32 << 20, "") {
        Ok(mount) => mount,
        Err(why) => return skip(Capability::Ext4, why),
    };
    let Some(dir) = ground() else { return };
    let (one, _) = twins(dir.path());
    std::fs::remove_dir_all(dir.path().join("two")).unwrap();
    symlink(mount.path().join("two"), dir.path().join("two")).unwrap();
    cp_well(&["-a", "-T"], &one, &mount.path().join("two"));
    assert_eq!(differences(dir.path(), 0), [""; 0]);
    set_time(&mount.path().join("two/dir/file"), THEN + 1, 0);
    let line = "one/dir/file and two/dir/file differ in modification time: \
                2001-09-09T01:46:40.000000001Z and 2001-09-09T01:46:41.000000000Z";
    assert_eq!(differences(dir.path(), 1), [line]);
}

#[test]
fn another_user_who_may_not_read_an_attribute_gets_a_failure() {
    let Some(dir) = ground() else { return };
    set_mode(dir.path(), 0o755);
    let (one, _) = twins(dir.path());
    set_mode(&one.join("dir/file"), 0o600);
    let mut command = command(dir.path(), &["verify", "--metadata", "one", "two"]);
    if !is_root() {
        return skip(Capability::Root, "the files of this user are readable");
    }
    let Ok(output) = command.uid(65_534).gid(65_534).output() else {
        return skip(Capability::Root, "another user may not run the test's dio");
    };
    let message = message(&output);
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("one/dir/file: Permission denied"), "{message}");
    let line = "one/dir/file and two/dir/file differ in permissions: 0600 and 0644\n";
    assert_eq!(stdout(&output), line, "what can be read is compared");
}

#[test]
fn a_refusal_to_read_attributes_is_a_failure_and_no_attributes_are_none() {
    let Some(dir) = ground() else { return };
    twins(dir.path());
    let with = |fault: &str| {
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("inject={fault}")]);
        strace.arg(env!("CARGO_BIN_EXE_dio")).args(["verify", "--metadata", "one", "two"]);
        strace.current_dir(dir.path()).output()
    };
    let Ok(plain) = with("listxattr:error=EOPNOTSUPP") else {
        return skip(Capability::Strace, "there is no strace");
    };
    assert_eq!(plain.status.code(), Some(0), "{}", message(&plain));
    for (fault, expected) in [
        ("listxattr:error=EIO", "cannot list the extended attributes of one/"),
        ("flistxattr:error=EACCES", "cannot list the extended attributes of one: Permission"),
        (
            "getxattr:error=EIO",
            "cannot read an extended attribute of one/dir/file: user.one: Input/output error",
        ),
        (
            "getxattr:error=EACCES",
            "cannot read an extended attribute of one/dir/file: user.one: Permission denied",
        ),
    ] {
        let output = with(fault).unwrap();
        let message = message(&output);
        assert_eq!(output.status.code(), Some(2), "{fault}: {message}");
        assert!(message.contains(expected), "{fault}: {message}");
    }
}

#[test]
fn without_the_option_no_attribute_is_read() {
    let Some(dir) = ground() else { return };
    twins(dir.path());
    let calls = dir.path().join("calls");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-e", "trace=/.*xattr.*", "-o"]).arg(&calls);
    strace.arg(env!("CARGO_BIN_EXE_dio")).args(["verify", "one", "two"]).current_dir(dir.path());
    match strace.output() {
        Ok(output) => assert_eq!(output.status.code(), Some(0), "{}", message(&output)),
        Err(why) => return skip(Capability::Strace, why),
    }
    // strace knows not every call by name, and prints those as well.
    let calls = std::fs::read_to_string(calls).unwrap();
    assert_eq!(calls.lines().filter(|line| line.contains("xattr(")).count(), 0, "{calls}");
}
