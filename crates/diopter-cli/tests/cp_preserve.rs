//! The attributes that `dio cp` keeps of a source: those that GNU cp keeps, with the same options.

mod cp_support;

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use cp_support::*;
use diopter_testkit::machine::{FileSystem, Loop, Mount};
use rustix::fs::{CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};

/// Time of everything in the source, in seconds.
const THEN: i64 = 1_000_000_000;

/// A tree with every kind of thing, permissions that the umask and set-id bits matter to, and, as
/// far as the file system has them, attributes.
fn make_source(root: &Path) {
    for (name, mode) in [("", 0o775), ("sticky", 0o1777), ("group", 0o2775), ("closed", 0o700)] {
        let path = root.join(name);
        DirBuilder::new().create(&path).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    for (name, mode) in [
        ("suid", 0o4755),
        ("sgid", 0o2775),
        ("open", 0o666),
        ("sticky/closed", 0o640),
        ("group/read-only", 0o444),
        ("closed/none", 0o1600),
    ] {
        let path = root.join(name);
        std::fs::write(&path, name).unwrap();
        if is_root() {
            std::os::unix::fs::chown(&path, Some(12_345), Some(54_321)).unwrap();
        }
        rustix::fs::setxattr(&path, "user.one", b"value", XattrFlags::empty()).unwrap_or(());
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
    }
    symlink("open", root.join("link")).unwrap();
    let mode = Mode::from_bits_truncate(0o600);
    rustix::fs::mknodat(CWD, root.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    std::fs::set_permissions(root.join("fifo"), Permissions::from_mode(0o666)).unwrap();
    for entry in walkdir::WalkDir::new(root).contents_first(true) {
        let time = Timespec { tv_sec: THEN, tv_nsec: 1 };
        let times = Timestamps { last_access: time, last_modification: time };
        let flags = rustix::fs::AtFlags::SYMLINK_NOFOLLOW;
        rustix::fs::utimensat(CWD, entry.unwrap().path(), &times, flags).unwrap();
    }
}

/// Returns the attributes of each name below a directory.
fn picture(root: &Path) -> Vec<String> {
    let line = |entry: walkdir::DirEntry| {
        let (path, found) = (entry.path(), entry.metadata().unwrap());
        let is_then = found.mtime() == THEN;
        let mut value = [0; 100];
        let attribute = |name: &str, value: &mut [u8]| {
            !found.is_symlink() && rustix::fs::getxattr(path, name, value).is_ok()
        };
        let attributes = ["user.one", "system.posix_acl_access", "system.posix_acl_default"]
            .map(|name| attribute(name, &mut value[..]));
        let name = path.strip_prefix(root).unwrap();
        let owner = (found.uid(), found.gid());
        format!("{name:?} {:o} {owner:?} then: {is_then} {attributes:?}", found.mode())
    };
    let entries = walkdir::WalkDir::new(root).sort_by_file_name().into_iter();
    entries.map(|entry| line(entry.unwrap())).collect()
}

/// Runs a program with a umask.
fn run_with_umask(umask: &str, program: &str, arguments: &[&str]) {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("umask {umask} && exec \"$0\" \"$@\""));
    command.env_remove("DIOPTER_BACKEND").arg(program).args(arguments);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", message(&output));
}

/// Returns true if `cp` is GNU's, which the copies are compared with.
fn has_gnu_cp() -> bool {
    let version = Command::new("cp").arg("--version").output();
    let is_gnu = version.is_ok_and(|reported| reported.stdout.windows(3).any(|it| it == b"GNU"));
    if !is_gnu {
        skip(Capability::GnuCp, "cp is another one");
    }
    is_gnu
}

/// Copies with both programs into directories that `prepare` made, and compares.
fn check(options: &[&str], umask: &str, prepare: &dyn Fn(&Path)) {
    let directory = dir();
    let source = directory.path().join("source");
    make_source(&source);
    let [ours, theirs] = ["ours", "theirs"].map(|name| directory.path().join(name));
    for target in [&ours, &theirs] {
        std::fs::create_dir(target).unwrap();
        prepare(target);
    }
    let arguments = |target: &Path| -> Vec<String> {
        let options = options.iter().map(|option| (*option).to_owned());
        let paths = [&source, target].map(|path| path.to_str().unwrap().to_owned());
        options.chain(paths).collect()
    };
    let run = |program: &str, command: &[&str], target: &Path| {
        let arguments = arguments(target);
        let arguments: Vec<&str> =
            command.iter().copied().chain(arguments.iter().map(String::as_str)).collect();
        run_with_umask(umask, program, &arguments);
    };
    run(env!("CARGO_BIN_EXE_dio"), &["cp"], &ours);
    run("cp", &[], &theirs);
    let copies = [&ours, &theirs].map(|target| picture(&target.join("source")));
    assert_eq!(copies[0], copies[1], "{options:?} with umask {umask}");
}

#[test]
fn the_same_is_kept_as_by_cp_with_every_option_and_umask() {
    if !has_gnu_cp() {
        return;
    }
    for umask in ["022", "027", "0"] {
        check(&["-r"], umask, &|_| {});
    }
    for options in [
        &["-a"][..],
        &["-R", "-p"],
        &["-r", "--preserve"],
        &["-r", "--preserve=timestamps"],
        &["-r", "--preserve=xattr,timestamps"],
        &["-a", "--no-preserve=ownership,mode"],
        &["-a", "--no-preserve=timestamps"],
        &["-a", "--no-preserve=all"],
    ] {
        check(options, "022", &|_| {});
    }
}

#[test]
fn a_default_access_list_and_a_group_of_the_target_are_inherited_as_by_cp() {
    if !has_gnu_cp() {
        return;
    }
    let inherited = |target: &Path| {
        std::fs::set_permissions(target, Permissions::from_mode(0o2775)).unwrap();
    };
    let listed = |target: &Path| {
        if !set_default_list(target, [5, 5, 1]) {
            skip(Capability::Acl, "this file system has no access lists");
        }
    };
    check(&["-r"], "027", &inherited);
    for options in [["-r"], ["-a"]] {
        check(&options, "027", &listed);
    }
}

#[test]
fn a_directory_that_was_there_keeps_its_permissions() {
    let directory = dir();
    let [source, target] = ["source", "target"].map(|name| directory.path().join(name));
    make_source(&source);
    for name in ["", "sticky", "group"] {
        std::fs::create_dir(target.join(name)).unwrap();
        std::fs::set_permissions(target.join(name), Permissions::from_mode(0o751)).unwrap();
    }
    cp_well(&["-r"], &source.join("."), &target);
    for name in ["", "sticky", "group"] {
        assert_eq!(target.join(name).metadata().unwrap().mode() & 0o7777, 0o751, "{name}");
    }
    assert_eq!(target.join("closed").metadata().unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn a_read_only_file_is_copied_by_an_ordinary_user_and_has_no_record() {
    let directory = dir();
    std::fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let [source, target] = ["source", "target"].map(|name| directory.path().join(name));
    std::fs::write(&source, b"abc").unwrap();
    std::fs::set_permissions(&source, Permissions::from_mode(0o444)).unwrap();
    let mut command = dio();
    if is_root() {
        command.uid(65_534).gid(65_534);
    }
    let Ok(output) = command.arg("--preserve=mode").args([&source, &target]).output() else {
        return skip(Capability::Root, "another user may not run the test's dio");
    };
    assert!(output.status.success(), "{}", message(&output));
    assert_eq!(target.metadata().unwrap().mode() & 0o7777, 0o444);
    let left = rustix::fs::getxattr(&target, "user.diopter.cp", &mut [0u8; 4096][..]);
    assert_eq!(left, Err(rustix::io::Errno::NODATA));
    assert_eq!(names(directory.path()), ["source", "target"]);
}

#[test]
fn a_target_can_be_a_name_where_it_is_a_directory() {
    let directory = dir();
    let [source, target] = ["source", "target"].map(|name| directory.path().join(name));
    for path in [&source, &target] {
        std::fs::create_dir(path).unwrap();
    }
    std::fs::write(source.join("file"), b"abc").unwrap();
    cp_well(&["-rT"], &source, &target);
    assert_eq!(names(&target), ["file"]);
    let output = cp(&["-T"], &source.join("file"), &target);
    assert_refused(&output, &["a directory is in the way"]);
}

#[test]
fn what_is_mounted_in_the_source_is_left_out_where_that_is_asked_for() {
    let directory = dir();
    let [source, target] = ["source", "target"].map(|name| directory.path().join(name));
    std::fs::create_dir_all(source.join("mounted")).unwrap();
    std::fs::write(source.join("file"), b"abc").unwrap();
    let script = "mount -t tmpfs none \"$1/mounted\" && touch \"$1/mounted/inner\" && \
                  \"$0\" cp -rx \"$1\" \"$2\" && \"$0\" cp -r \"$1\" \"$2.all\" || exit 9";
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", script, env!("CARGO_BIN_EXE_dio")]);
    let output = command.args([&source, &target]).output();
    match output {
        Ok(output) if output.status.success() => {}
        Ok(output) if is_root() && output.status.code() == Some(9) => {
            let text = message(&output);
            assert!(text.contains("mount:"), "{text}");
            return skip(Capability::Root, "a file system cannot be mounted here");
        }
        _ => return skip(Capability::Root, "a file system cannot be mounted here"),
    }
    assert_eq!(names(&target), ["file", "mounted"]);
    assert_eq!(names(&target.join("mounted")).len(), 0);
    assert_eq!(names(&directory.path().join("target.all/mounted")), ["inner"]);
}

/// Gives a file the longest attribute that it has room for, of at most `bytes`. Returns its length.
fn fill_attributes(file: &Path, bytes: usize) -> usize {
    let lengths: Vec<usize> = (1..=bytes).collect();
    let fits = |length: usize| {
        rustix::fs::setxattr(file, "user.long", &vec![b'x'; length], XattrFlags::empty()).is_ok()
    };
    let length = lengths.partition_point(|length| fits(*length));
    assert!(length == 0 || fits(length));
    length
}

#[test]
fn an_attribute_that_the_record_of_the_temporary_leaves_no_room_for_is_kept() {
    let directory = dir();
    let [source, target] = ["source", "target"].map(|name| directory.path().join(name));
    std::fs::create_dir(&source).unwrap();
    let mut lengths = Vec::new();
    for (name, bytes) in [("small", 4), ("large", 2 << 20)] {
        std::fs::write(source.join(name), content(1, bytes)).unwrap();
        let length = fill_attributes(&source.join(name), 4096);
        if length == 0 {
            return skip(Capability::Xattr, "the temporary directory keeps no user attributes");
        }
        lengths.push((name, length));
    }
    for options in [&["-aT"][..], &["-aT", "--verify"], &["-aT", "--resume"]] {
        cp_well(options, &source, &target);
        for (name, length) in &lengths {
            let copy = target.join(name);
            let found = rustix::fs::getxattr(&copy, "user.long", &mut [0; 8192][..]);
            assert_eq!(found, Ok(*length), "{options:?} {name}");
            let left = rustix::fs::getxattr(&copy, "user.diopter.cp", &mut [0; 4096][..]);
            assert_eq!(left, Err(rustix::io::Errno::NODATA));
            assert_eq!(names(copy.parent().unwrap()), ["large", "small"]);
        }
    }
}

#[test]
fn a_file_is_copied_without_an_attribute_that_its_file_system_has_no_room_for() {
    let ext4 = FileSystem::Ext4 { block: 1024, extra: &[] };
    let disk = Loop::new("cp", 16 << 20, 512).and_then(|it| Mount::on(it, ext4, "defaults"));
    let disk = match disk {
        Ok(disk) => disk,
        Err(why) => return skip(Capability::Ext4, why),
    };
    let directory = dir();
    let source = directory.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("small"), b"abc").unwrap();
    std::fs::write(source.join("large"), content(1, 2 << 20)).unwrap();
    for path in [source.clone(), source.join("small"), source.join("large")] {
        let set =
            |name, value: &[u8]| rustix::fs::setxattr(&path, name, value, XattrFlags::empty());
        if set("user.short", b"value").is_err() || set("user.long", &[b'x'; 2000]).is_err() {
            return skip(Capability::Xattr, "the temporary directory keeps no long attributes");
        }
    }
    let target = disk.path().join("target");
    let output = cp(&["-a"], &source, &target);
    let text = message(&output);
    assert!(output.status.success(), "{text}");
    for name in ["", "small", "large"] {
        let copy = target.join(name);
        let path = copy.display().to_string();
        let line = format!("{} lacks the extended attribute user.long", path.trim_end_matches('/'));
        assert!(text.contains(&line), "{text}");
        let found = rustix::fs::getxattr(&copy, "user.short", &mut [0; 100][..]);
        assert_eq!(found, Ok(5), "{name}");
    }
    assert_eq!(text.lines().count(), 3, "{text}");
    assert_eq!(std::fs::read(target.join("large")).unwrap(), content(1, 2 << 20));
    assert_eq!(names(&target), ["large", "small"]);
}
