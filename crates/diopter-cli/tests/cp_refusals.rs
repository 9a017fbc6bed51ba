//! Refusals of `dio cp`: one message, exit status 2, nothing lost, nothing left.

mod cp_support;

use std::fs::{File, Permissions};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;

use cp_support::*;
use rustix::fs::{CWD, FileType, IFlags, Mode};
use rustix::process::Signal;

#[test]
fn a_missing_source() {
    let dir = dir();
    let target = dir.path().join("target");
    std::fs::write(&target, b"old").unwrap();
    let output = cp(&[], &dir.path().join("missing"), &target);
    assert_refused(&output, &["missing", "ENOENT", "check the path"]);
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["target"]);
}

#[test]
fn a_dir_without_r() {
    let dir = dir();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    let output = cp(&[], &source, &dir.path().join("target"));
    assert_refused(&output, &["source", "-r"]);
    assert_eq!(names(dir.path()), ["source"]);
}

#[test]
fn a_fifo_or_a_terminal_as_the_source_blocks_no_process() {
    let dir = dir();
    let fifo = dir.path().join("fifo");
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_bits_truncate(0o600), 0).unwrap();
    for source in [fifo.as_path(), Path::new("/dev/null"), Path::new("/dev/tty")] {
        let output = cp(&[], source, &dir.path().join("target"));
        assert_refused(&output, &["neither a file nor a block device"]);
    }
    assert_eq!(names(dir.path()), ["fifo"]);
}

#[test]
fn a_file_that_does_not_report_its_size() {
    let dir = dir();
    let output = cp(&[], Path::new("/proc/self/status"), &dir.path().join("target"));
    assert_refused(&output, &["reports a size of zero"]);
    assert_eq!(names(dir.path()).len(), 0);
}

#[test]
fn a_pipe_or_a_terminal_as_the_target() {
    let dir = dir();
    let [source, fifo] = ["source", "fifo"].map(|name| dir.path().join(name));
    std::fs::write(&source, b"abc").unwrap();
    rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, Mode::from_bits_truncate(0o600), 0).unwrap();
    for target in [fifo.as_path(), Path::new("/dev/null")] {
        assert_refused(&cp(&[], &source, target), &["neither a file nor a block device"]);
    }
    assert_eq!(names(dir.path()), ["fifo", "source"]);
}

/// `/dev/stdout` leads to a link with the text `pipe:[NUMBER]`, which does not name a file.
#[test]
fn a_link_to_a_pipe_or_to_a_file_without_a_name() {
    let dir = dir();
    let source = dir.path().join("source");
    std::fs::write(&source, b"abc").unwrap();
    assert_refused(
        &cp(&[], &source, Path::new("/proc/self/fd/1")),
        &["neither a file nor a block device", "`cat` writes to pipes"],
    );
    let unnamed = tempfile::tempfile().unwrap();
    let output = dio().arg(&source).arg("/proc/self/fd/1").stdout(unnamed).output().unwrap();
    assert_refused(&output, &["a file without a name"]);
}

#[test]
fn a_file_that_has_fewer_bytes_than_its_size_says() {
    let (dir, source) = (dir(), Path::new("/sys/kernel/uevent_seqnum"));
    if !source.exists() {
        return skip(Capability::Root, "this /sys is not the kernel's");
    }
    let output = cp(&[], source, &dir.path().join("target"));
    assert_refused(&output, &["fewer bytes than its size says", "`cat`"]);
    assert_eq!(names(dir.path()).len(), 0);
}

#[test]
fn a_file_in_the_disk_of_a_virtual_machine() {
    let dir = dir();
    let disk = dir.path().join("disk");
    for (magic, format) in [
        (&b"QFI\xfb\0\0\0\x03"[..], "qcow2"),
        (b"vhdxfileQ\0", "VHDX"),
        (b"KDMV\x01\0", "VMDK"),
        (b"# Disk DescriptorFile\nversion=1\n", "VMDK"),
    ] {
        for size in [0, 1 << 20] {
            std::fs::write(&disk, [magic, &vec![0; size]].concat()).unwrap();
            let name = format!("{}::/etc/hostname", disk.display());
            let output = cp(&[], Path::new(&name), &dir.path().join("target"));
            let what = format!("it is a {format} image, which is not read");
            assert_refused(&output, &[&what, "`qemu-img convert -O raw`"]);
        }
    }
}

/// Sets or removes an attribute of chattr(1); false where that is not allowed.
fn set_attribute(path: &Path, flag: IFlags, is_set: bool) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let Ok(flags) = rustix::fs::ioctl_getflags(&file) else { return false };
    let flags = if is_set { flags | flag } else { flags - flag };
    rustix::fs::ioctl_setflags(&file, flags).is_ok()
}

#[test]
fn a_target_or_its_dir_that_chattr_protects() {
    let dir = dir();
    let [source, inside, empty] = ["source", "inside", "empty"].map(|name| dir.path().join(name));
    std::fs::create_dir(&empty).unwrap();
    let target = inside.join("source");
    make_file(&source, 1, 5 << 20);
    std::fs::create_dir(&inside).unwrap();
    std::fs::write(&target, b"old").unwrap();
    for (path, kind) in [(&target, "file"), (&inside, "directory")] {
        for (flag, set) in [(IFlags::IMMUTABLE, "immutable"), (IFlags::APPEND, "append-only")] {
            if !set_attribute(path, flag, true) {
                return skip(Capability::Root, "chattr +i and +a are not allowed here");
            }
            let outputs = [0, 5 << 20].map(|size| {
                make_file(&source, 1, size);
                let kept = cp(&["-n"], &source, &target);
                (cp(&[], &source, &target), kept)
            });
            let there = names(&inside);
            let tree = cp(&["-r"], &empty, &inside.join("new"));
            assert!(set_attribute(path, flag, false));
            if path == &inside && flag == IFlags::IMMUTABLE {
                assert_refused(&tree, &["inside: the directory is immutable (chattr)"]);
            } else {
                assert!(tree.status.success(), "{}", message(&tree));
                std::fs::remove_dir(inside.join("new")).unwrap();
            }
            for (output, kept) in outputs {
                assert_refused(&output, &[&format!("the {kind} is {set} (chattr)"), "`lsattr"]);
                assert!(kept.status.success(), "{}", message(&kept));
            }
            assert_eq!(there, ["source"], "{kind} {set}");
            assert_eq!(std::fs::read(&target).unwrap(), b"old");
        }
    }
}

#[test]
fn a_tree_onto_a_file_that_chattr_protects() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    for tree in [&source, &target] {
        std::fs::create_dir(tree).unwrap();
        std::fs::write(tree.join("file"), b"old").unwrap();
    }
    std::fs::write(source.join("other"), b"new").unwrap();
    if !set_attribute(&target.join("file"), IFlags::IMMUTABLE, true) {
        return skip(Capability::Root, "chattr +i is not allowed here");
    }
    let output = cp(&["-rT"], &source, &target);
    assert!(set_attribute(&target.join("file"), IFlags::IMMUTABLE, false));
    assert_refused(&output, &["target/file", "the file is immutable (chattr)"]);
    assert_eq!(names(&target), ["file", "other"]);
}

#[test]
fn source_and_target_the_same_file_by_whatever_name() {
    let dir = dir();
    let [source, link, hard] = ["source", "link", "hard"].map(|name| dir.path().join(name));
    std::fs::write(&source, b"abc").unwrap();
    symlink("source", &link).unwrap();
    std::fs::hard_link(&source, &hard).unwrap();
    for (from, to) in [(&source, &source), (&link, &source), (&source, &link), (&source, &hard)] {
        assert_refused(&cp(&[], from, to), &["the same file"]);
    }
    assert_refused(&cp(&[], &source, dir.path()), &["the same file"]);
    assert_eq!(std::fs::read(&source).unwrap(), b"abc");
    assert_eq!(names(dir.path()), ["hard", "link", "source"]);
}

#[test]
fn a_target_that_is_a_link_to_nothing() {
    let dir = dir();
    let [source, link] = ["source", "link"].map(|name| dir.path().join(name));
    std::fs::write(&source, b"abc").unwrap();
    symlink("nothing", &link).unwrap();
    assert_refused(&cp(&[], &source, &link), &["link to nothing"]);
    assert_eq!(names(dir.path()), ["link", "source"]);
}

#[test]
fn several_sources_into_what_is_no_dir() {
    let dir = dir();
    let [one, two, target] = ["one", "two", "target"].map(|name| dir.path().join(name));
    for path in [&one, &two, &target] {
        std::fs::write(path, b"abc").unwrap();
    }
    let output = dio().args([&one, &two]).arg(&target).output().unwrap();
    let text = message(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(
        text.matches("the target is not a directory").count(),
        1,
        "once, and not for each source: {text}"
    );
    assert_eq!(text.lines().count(), 1, "{text}");
    assert_eq!(names(dir.path()), ["one", "target", "two"]);
}

#[test]
fn two_sources_of_one_name() {
    let dir = dir();
    let target = dir.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let sources = ["a", "b"].map(|name| {
        std::fs::create_dir(dir.path().join(name)).unwrap();
        let source = dir.path().join(name).join("same");
        std::fs::write(&source, name).unwrap();
        source
    });
    let output = dio().args(&sources).arg(&target).output().unwrap();
    assert_refused(&output, &["b/same", "the same name"]);
    assert_eq!(std::fs::read(target.join("same")).unwrap(), b"a");
}

#[test]
fn a_target_dir_that_is_not_there() {
    let dir = dir();
    let source = dir.path().join("source");
    std::fs::write(&source, b"abc").unwrap();
    let target = dir.path().join("missing/target");
    assert_refused(&cp(&[], &source, &target), &["missing", "ENOENT"]);
    assert_refused(&cp(&[], &source, &dir.path().join("new/")), &["no such directory"]);
    assert_eq!(names(dir.path()), ["source"]);
}

#[test]
fn more_memory_than_the_bound_and_sizes_that_mean_nothing() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::write(&source, b"abc").unwrap();
    for options in [
        ["--bs=1G", "--iodepth=1"],
        ["--bs=64M", "--iodepth=2"],
        ["--bs=1M", "--iodepth=100000"],
        ["--bs=100", "--iodepth=1"],
    ] {
        let output = cp(&options, &source, &target);
        assert_refused(&output, &["--"]);
    }
    assert_refused(&cp(&["--bs=64M", "--iodepth=2"], &source, &target), &["67108864"]);
    assert_eq!(names(dir.path()), ["source"]);
}

/// Runs as a user without rights here, if we are the administrator; as ourselves otherwise.
fn as_a_stranger(source: &Path, target: &Path) -> Option<std::process::Output> {
    let mut command = dio();
    if is_root() {
        command.uid(65_534).gid(65_534);
    }
    match command.arg(source).arg(target).output() {
        Ok(output) => Some(output),
        Err(error) => {
            skip(Capability::Root, format!("another user may not run the test's dio: {error}"));
            None
        }
    }
}

#[test]
fn a_source_that_may_not_be_read_and_a_dir_that_may_not_be_written() {
    let dir = dir();
    std::fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let [source, open, closed] = ["source", "open", "closed"].map(|name| dir.path().join(name));
    std::fs::write(&source, b"abc").unwrap();
    for (path, mode) in [(&open, 0o777), (&closed, 0o555)] {
        std::fs::create_dir(path).unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }
    std::fs::set_permissions(&source, Permissions::from_mode(0o000)).unwrap();
    let Some(output) = as_a_stranger(&source, &open.join("target")) else { return };
    assert_refused(&output, &["cannot open", "source", "EACCES"]);
    std::fs::set_permissions(&source, Permissions::from_mode(0o644)).unwrap();
    let Some(output) = as_a_stranger(&source, &closed.join("target")) else { return };
    assert_refused(&output, &["closed", "EACCES"]);
    let Some(output) = as_a_stranger(&source, &open.join("target")) else { return };
    assert!(output.status.success(), "{}", message(&output));
    assert_eq!(names(&open), ["target"]);
    assert_eq!(names(&closed).len(), 0);
}

#[test]
fn a_file_larger_than_the_limit_of_the_shell() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_file(&source, 1, 9 << 20);
    let mut command = std::process::Command::new("sh");
    // In units of 512 bytes in dash, of 1024 in bash: 2 or 4 MiB.
    command.args(["-c", "ulimit -f 4096 && exec \"$0\" cp \"$1\" \"$2\""]);
    command.arg(env!("CARGO_BIN_EXE_dio")).args([&source, &target]);
    let output = command.output().unwrap();
    assert_refused(&output, &["EFBIG", "ulimit -f"]);
    assert_eq!(names(dir.path()), ["source"]);
}

#[test]
fn a_source_that_grows_or_shrinks_on_the_way() {
    for (new_size, options) in [(SLOW_BYTES + 1, &[][..]), (SLOW_BYTES / 2, &["--resume"][..])] {
        let dir = dir();
        let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
        make_file(&source, 2, SLOW_BYTES);
        std::fs::write(&target, b"old").unwrap();
        let copy = start_slowly(options, &source, &target);
        wait_for_start(&target, SLOW_BYTES);
        File::options().write(true).open(&source).unwrap().set_len(new_size).unwrap();
        let output = copy.wait_with_output().unwrap();
        assert_refused(&output, &["changed while it was copied"]);
        assert_eq!(std::fs::read(&target).unwrap(), b"old");
        assert_eq!(names(dir.path()), ["source", "target"]);
    }
}

#[test]
fn a_copy_that_is_not_what_was_written() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_file(&source, 3, SLOW_BYTES);
    std::fs::write(&target, b"old").unwrap();
    let mut copy = start_slowly(&["--verify", "--json"], &source, &target);
    wait_for_start(&target, SLOW_BYTES);
    // Another process writes to the temporary all the time, as bad memory or a bad disk would. By
    // direct I/O: where buffered and direct writes meet, Linux fails the next flush with EIO.
    let vandal = diopter::File::options().read(true).write(true).clone();
    let vandal = vandal.open(temporary_of(&target)).unwrap();
    wait_for("the copy to end", || {
        vandal.write_all_at(&[b'v'; 4096], 4096).unwrap();
        copy.try_wait().unwrap().is_some()
    });
    let output = copy.wait_with_output().unwrap();
    let text = message(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let hash = blake3::hash(&std::fs::read(&source).unwrap()).to_string();
    assert!(text.contains(&hash) && text.contains("verify failed on"), "{text}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&report["exit_status"], &report["verified"][0]["is_same"]),
        (&1.into(), &false.into())
    );
    assert_eq!(std::fs::read(&target).unwrap(), b"old");
    assert_eq!(names(dir.path()), ["source", "target"]);
}

#[test]
fn a_second_copy_to_the_same_target() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_file(&source, 4, SLOW_BYTES);
    let first = start_slowly(&[], &source, &target);
    wait_for_start(&target, SLOW_BYTES);
    // Held, since the second one waits a little before it fails.
    send(&first, Signal::STOP);
    assert_refused(&cp(&[], &source, &target), &["another `dio cp`", "wait"]);
    assert_refused(&cp(&["--resume"], &source, &target), &["another `dio cp`"]);
    send(&first, Signal::CONT);
    let output = first.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", message(&output));
    assert_same(&source, &target);
    assert_eq!(names(dir.path()), ["source", "target"]);
}

#[test]
fn a_temporary_is_never_longer_than_the_file_will_be() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    let size = (16 << 20) + 7;
    make_file(&source, 5, size);
    let mut copy = start_slowly(&[], &source, &target);
    let temporary = temporary_of(&target);
    let mut longest = 0;
    wait_for("the copy to end", || {
        for path in [&temporary, &target] {
            longest = longest.max(std::fs::metadata(path).map_or(0, |found| found.len()));
        }
        copy.try_wait().unwrap().is_some()
    });
    assert_eq!(longest, size);
    assert_same(&source, &target);
}

/// Has the kernel refuse to follow other users' links in directories that all may write to, and
/// gives the machine its own setting back.
struct ProtectedSymlinks(String);

impl ProtectedSymlinks {
    const PATH: &str = "/proc/sys/fs/protected_symlinks";

    fn new() -> std::io::Result<ProtectedSymlinks> {
        let found = std::fs::read_to_string(ProtectedSymlinks::PATH)?;
        std::fs::write(ProtectedSymlinks::PATH, "1")?;
        Ok(ProtectedSymlinks(found))
    }
}

impl Drop for ProtectedSymlinks {
    fn drop(&mut self) {
        std::fs::write(ProtectedSymlinks::PATH, &self.0).unwrap();
    }
}

#[test]
fn a_link_that_the_kernel_forbids_to_follow() {
    if !is_root() {
        return skip(Capability::Root, "only root makes another user's link");
    }
    let dir = dir();
    let [source, victim, open] = ["source", "victim", "open"].map(|name| dir.path().join(name));
    for path in [&source, &victim, &open] {
        std::fs::create_dir(path).unwrap();
    }
    std::fs::set_permissions(&open, Permissions::from_mode(0o1777)).unwrap();
    let [from, file] = [&source, &victim].map(|path| path.join("file"));
    std::fs::write(&from, b"new").unwrap();
    std::fs::write(&file, b"old").unwrap();
    let [to_file, to_directory] = ["to-file", "to-directory"].map(|name| open.join(name));
    for (link, leads_to) in [(&to_file, &file), (&to_directory, &victim)] {
        symlink(leads_to, link).unwrap();
        std::os::unix::fs::lchown(link, Some(65_534), Some(65_534)).unwrap();
    }
    let protected = match ProtectedSymlinks::new() {
        Ok(protected) => protected,
        Err(error) => return skip(Capability::Sysctl, error),
    };
    for options in [&[][..], &["-T"]] {
        assert_refused(&cp(options, &from, &to_file), &["to-file", "EACCES"]);
        let options = [options, &["-r"]].concat();
        assert_refused(&cp(&options, &source, &to_directory), &["to-directory", "EACCES"]);
    }
    assert_refused(&cp(&[], &to_file, &dir.path().join("copy")), &["to-file", "EACCES"]);
    drop(protected);
    assert_eq!(
        (names(&victim), std::fs::read(&file).unwrap()),
        (vec!["file".into()], b"old".into())
    );
    // Root's own link is followed, with -T as well.
    let own = dir.path().join("own");
    symlink(&file, &own).unwrap();
    cp_well(&["-T"], &from, &own);
    assert_eq!(std::fs::read(&file).unwrap(), b"new");
}
