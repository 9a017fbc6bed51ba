//! The attributes that `dio cp` keeps of a source: those that GNU cp keeps, with the same options.

mod cp_support;

use std::fs::{DirBuilder, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use cp_support::*;
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
