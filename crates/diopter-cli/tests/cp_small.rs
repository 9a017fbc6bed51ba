//! `dio cp -r` of small files, which are flushed together: each has its name only when it is
//! durable, and a failure of one does not stop the others.

mod cp_support;

use std::collections::BTreeMap;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use cp_support::*;
use diopter_testkit::machine::{FileSystem, Loop, Mount};

/// Directories of a tree, and files in each.
const DIRS: u64 = 4;
const FILES: u64 = 150;

/// Makes a tree of small files; no two are the same.
fn make_small(root: &Path) {
    for dir in 0..DIRS {
        let path = root.join(dir.to_string());
        std::fs::create_dir_all(&path).unwrap();
        for file in 0..FILES {
            let seed = dir * FILES + file + 1;
            let length = usize::try_from(seed * 37 % 16_384).unwrap();
            std::fs::write(path.join(file.to_string()), content(seed, length)).unwrap();
        }
    }
}

/// Checks each file of a copy against its source; the number of files.
fn count_same(source: &Path, target: &Path) -> u64 {
    let mut count = 0;
    for entry in walkdir::WalkDir::new(target) {
        let entry = entry.unwrap();
        let path = entry.path().strip_prefix(target).unwrap();
        if entry.file_type().is_file() {
            assert_same(&source.join(path), entry.path());
            count += 1;
        }
    }
    count
}

/// The temporaries in a tree.
fn temporaries(root: &Path) -> usize {
    let names = walkdir::WalkDir::new(root).into_iter().flatten();
    names.filter(|entry| entry.file_name().as_encoded_bytes().ends_with(b".dio-part")).count()
}

/// `dio cp` under strace, which is its parent's grandchild; `None` without strace.
fn under_strace(strace: &[&str], copy: &[&str], paths: [&Path; 2]) -> Option<Command> {
    if let Err(error) = Command::new("strace").arg("-V").output() {
        skip(Capability::Strace, error);
        return None;
    }
    // A copy that does not end is a failure, and not a test that does not end.
    let mut command = Command::new("timeout");
    command.args(["-s", "KILL", "100", "strace", "-D", "-f", "-qq", "-y"]).args(strace);
    command.args([env!("CARGO_BIN_EXE_dio"), "cp"]).args(copy).args(paths);
    Some(command)
}

/// Runs [`under_strace`].
fn traced(strace: &[&str], copy: &[&str], paths: [&Path; 2]) -> Option<std::process::Output> {
    under_strace(strace, copy, paths).map(|mut command| command.output().unwrap())
}

/// Runs a copy of a tree in which system calls fail, and wants every file of it.
fn copy_with(faults: &[&str]) {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_small(&source);
    let strace = [&["-o", "/dev/null"], faults].concat();
    let Some(output) = traced(&strace, &["-r"], [&source, &target]) else { return };
    assert!(output.status.success(), "{faults:?}: {}", message(&output));
    assert_eq!(count_same(&source, &target), DIRS * FILES);
}

#[test]
fn kill_9_leaves_whole_files_only_and_the_next_copy_completes_them() {
    // strace counts the calls of each thread.
    for (when, options) in [(1, "-r"), (2, "-r"), (3, "-r"), (2, "-a")] {
        let dir = dir();
        let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
        make_small(&source);
        if is_root() && options == "-a" {
            // The copy is given away before it is flushed.
            for entry in walkdir::WalkDir::new(&source) {
                std::os::unix::fs::chown(entry.unwrap().path(), Some(65_534), None).unwrap();
            }
        }
        let kill = format!("inject=fsync:signal=KILL:when={when}");
        let strace = ["-o", "/dev/null", "-e", "trace=fsync", "-e", &kill];
        let Some(killed) = traced(&strace, &[options], [&source, &target]) else { return };
        assert!(killed.status.signal() == Some(9) || killed.status.code() == Some(137));
        let complete = |path: &Path| path.extension().is_none_or(|it| it != "dio-part");
        let whole = walkdir::WalkDir::new(&target).into_iter().flatten();
        for entry in whole.filter(|it| it.file_type().is_file() && complete(it.path())) {
            let path = entry.path().strip_prefix(&target).unwrap();
            assert_same(&source.join(path), entry.path());
        }
        assert!(temporaries(&target) > 0, "it was killed with files in flight");
        cp_well(&[options, "-T"], &source, &target);
        assert_eq!(temporaries(&target), 0, "{options}");
        assert_eq!(count_same(&source, &target), DIRS * FILES);
    }
}

/// Returns the path that strace writes after a descriptor.
fn path_in(text: &str) -> &str {
    let (_, path) = text.split_once('<').unwrap();
    path.split_once('>').unwrap().0
}

/// The names in quotation marks in a line of strace.
fn quoted(call: &str) -> Vec<&str> {
    call.split('"').skip(1).step_by(2).collect()
}

/// The order of the calls, from the log of strace: a file has a temporary's name when it is
/// flushed, its flush returns before it gets its own, and that of a directory starts after the last
/// name in it.
#[test]
fn a_file_is_flushed_before_it_gets_its_name_and_its_directory_after_that() {
    let dir = dir();
    let [source, target, log] = ["source", "target", "log"].map(|name| dir.path().join(name));
    make_small(&source);
    let calls = "trace=openat,linkat,fsync,renameat,renameat2,syncfs,sync";
    let strace = ["-o", log.to_str().unwrap(), "-e", calls];
    let Some(copied) = traced(&strace, &["-r"], [&source, &target]) else { return };
    assert!(copied.status.success(), "{}", message(&copied));
    let log = std::fs::read_to_string(&log).unwrap();
    let number = |text: &str| -> String { text.chars().take_while(char::is_ascii_digit).collect() };
    // Temporaries by descriptor, flushes by thread, and whether a temporary is flushed.
    let (mut linked, mut started) = (BTreeMap::new(), BTreeMap::new());
    let (mut is_flushed, mut dirs, mut named) = (BTreeMap::new(), Vec::new(), 0);
    for line in log.lines() {
        let (thread, call) = line.split_once(' ').unwrap();
        let call = call.trim_start();
        assert!(!call.contains("sync(") || call.starts_with("fsync("), "{call}");
        if call.starts_with("linkat(") {
            let [file, name] = quoted(call)[..] else { panic!("{call}") };
            let (_, into) = call.split_once("\", ").unwrap();
            linked.insert(number(file.rsplit('/').next().unwrap()), (path_in(into), name));
            is_flushed.insert((path_in(into), name), false);
        } else if let Some(file) = call.strip_prefix("fsync(") {
            let Some(temporary) = linked.get(&number(file)).copied().filter(|_| file.contains('#'))
            else {
                dirs.push(path_in(file));
                continue;
            };
            started.insert(thread, temporary);
            if call.contains(" = 0") {
                is_flushed.insert(started.remove(thread).unwrap(), true);
            }
        } else if call.contains("fsync resumed") {
            assert!(call.contains(" = 0"), "{call}");
            // That of a directory is not noted.
            if let Some(temporary) = started.remove(thread) {
                is_flushed.insert(temporary, true);
            }
        } else if call.starts_with("renameat") {
            let into = path_in(call);
            let temporary = (into, quoted(call)[0]);
            assert_eq!(is_flushed.remove(&temporary), Some(true), "it is not flushed: {call}");
            assert!(!dirs.contains(&into), "its directory was flushed before: {call}");
            named += 1;
        }
    }
    assert_eq!(named, DIRS * FILES);
    assert!(u64::try_from(dirs.len()).unwrap() >= DIRS, "{dirs:?}");
}

#[test]
fn a_file_is_copied_where_its_temporary_cannot_be_linked_or_marked() {
    for errno in ["EPERM", "ENOENT", "EXDEV"] {
        copy_with(&["-e", "trace=linkat", "-e", &format!("inject=linkat:error={errno}")]);
    }
    copy_with(&["-e", "trace=fsetxattr", "-e", "inject=fsetxattr:error=EOPNOTSUPP"]);
}

#[test]
fn a_write_that_writes_nothing_is_an_error_and_the_file_is_copied_alone() {
    copy_with(&["-e", "trace=pwrite64", "-e", "inject=pwrite64:retval=0"]);
}

/// A name in the source may be that of the temporary of its neighbour in the target.
#[test]
fn whatever_has_the_name_of_a_temporary_is_copied_as_it_is() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::create_dir(&source).unwrap();
    let temporary = |number: u64| source.join(format!(".{number}.dio-part"));
    for number in 0..100 {
        let length = usize::try_from(number * 97).unwrap();
        std::fs::write(source.join(number.to_string()), content(number, length)).unwrap();
        match number % 5 {
            0 => std::fs::write(temporary(number), content(number + 500, 2 << 20)).unwrap(),
            1 => std::fs::write(temporary(number), content(number + 500, 5000)).unwrap(),
            2 => std::os::unix::fs::symlink("nowhere", temporary(number)).unwrap(),
            3 => std::fs::create_dir(temporary(number)).unwrap(),
            _ => {
                let made = Command::new("mkfifo").arg(temporary(number)).status().unwrap();
                assert!(made.success());
            }
        }
    }
    // A directory has its names in any order, and here no third one comes between the two.
    for number in 100..140 {
        let pair = source.join(format!("{number}.pair"));
        std::fs::create_dir(&pair).unwrap();
        std::fs::write(pair.join(number.to_string()), content(number, 3000)).unwrap();
        let other = pair.join(format!(".{number}.dio-part"));
        std::fs::write(other, content(number + 500, 5000)).unwrap();
    }
    cp_well(&["-r"], &source, &target);
    assert_eq!(count_same(&source, &target), 40 + 40 + 100 + 40);
    assert_eq!(names(&target), names(&source));
    for name in names(&source) {
        let [from, to] = [&source, &target].map(|root| root.join(&name));
        let kind = |path: &Path| path.symlink_metadata().unwrap().file_type();
        assert_eq!(kind(&from), kind(&to), "{name}");
        if kind(&from).is_file() {
            assert_same(&from, &to);
        }
    }
}

/// Where the kernel cannot read without leaving pages in the cache (before Linux 6.14).
#[test]
fn a_source_is_in_the_page_cache_afterwards_if_it_was_before() {
    let dir = dir();
    // The last: a file system that cannot say what is in its cache.
    for (is_cached, when) in [(false, "1"), (true, "1"), (true, "1..2")] {
        let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
        std::fs::create_dir(&source).unwrap();
        let path = source.join("file");
        make_file(&path, 3, 300_000);
        if is_cached {
            std::fs::read(&path).unwrap();
        }
        let before = cached_bytes(&path);
        let fault = format!("inject=preadv2:error=EOPNOTSUPP:when={when}");
        let fault = ["-e", "trace=preadv2", "-e", &fault];
        let strace = [&["-o", "/dev/null"], &fault[..]].concat();
        let Some(output) = traced(&strace, &["-r"], [&source, &target]) else { return };
        assert!(output.status.success(), "{}", message(&output));
        assert_eq!(cached_bytes(&path), before);
        assert_eq!(is_cached, before > 0);
        assert_same(&path, &target.join("file"));
        for root in [source, target] {
            std::fs::remove_dir_all(root).unwrap();
        }
    }
}

#[test]
fn a_flush_that_fails_fails_its_file_and_no_other() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_small(&source);
    let fault = ["-o", "/dev/null", "-e", "trace=fsync", "-e", "inject=fsync:error=EIO:when=1"];
    let Some(output) = traced(&fault, &["-r", "--json"], [&source, &target]) else { return };
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let failures = report["failures"].as_array().unwrap();
    // strace counts the calls of each thread.
    assert!(!failures.is_empty());
    for failure in failures {
        assert!(failure["what"].as_str().unwrap().starts_with("flushing"), "{failure}");
    }
    let copied = report["files"].as_u64().unwrap();
    assert_eq!(count_same(&source, &target), copied);
    assert!(copied > 0 && copied < DIRS * FILES, "{copied}");
}

#[test]
fn a_file_that_cannot_be_written_is_reported_and_the_others_are_copied() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_small(&source);
    std::fs::create_dir_all(target.join("2/7")).unwrap();
    let output = cp(&["-r", "-T"], &source, &target);
    assert_refused(&output, &["a directory is in the way", "2/7"]);
    assert_eq!(count_same(&source, &target), DIRS * FILES - 1);
}

#[test]
fn a_copy_over_a_copy_replaces_each_file_and_leaves_no_temporary() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_small(&source);
    cp_well(&["-r"], &source, &target);
    for file in 0..FILES {
        let path = source.join("1").join(file.to_string());
        std::fs::write(&path, content(file + 5000, 3000)).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o400)).unwrap();
    }
    let report = cp_report(&["-a", "-T"], &source, &target);
    assert_eq!(report["files"], DIRS * FILES);
    assert_eq!(count_same(&source, &target), DIRS * FILES);
}

#[test]
fn a_process_with_few_open_files_copies_a_tree() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_small(&source);
    for limit in ["64", "40"] {
        let mut limited = Command::new("sh");
        limited.args(["-c", "ulimit -n \"$0\"; exec \"$@\"", limit]);
        limited.args([env!("CARGO_BIN_EXE_dio"), "cp", "-r", "-T"]).args([&source, &target]);
        let output = limited.output().unwrap();
        assert!(output.status.success(), "{limit}: {}", message(&output));
        assert_eq!(count_same(&source, &target), DIRS * FILES);
    }
}

#[test]
fn a_full_disk_fails_the_files_that_do_not_fit() {
    let ext4 = FileSystem::Ext4 { block: 4096, extra: &["-m0"] };
    let disk = Loop::new("cp", 16 << 20, 512);
    let disk = match disk {
        Ok(device) => match Mount::on(device, ext4, "defaults") {
            Ok(disk) => disk,
            Err(why) => return skip(Capability::Ext4, why),
        },
        Err(why) => return skip(Capability::Loop, why),
    };
    let dir = dir();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for file in 0..400 {
        std::fs::write(source.join(file.to_string()), content(file, 100_000)).unwrap();
    }
    let target = disk.path().join("target");
    let output = cp(&["-r", "--json"], &source, &target);
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let (copied, failed) =
        (report["files"].as_u64().unwrap(), report["failures"].as_array().unwrap().len());
    assert!(copied > 0 && failed > 0, "{copied} {failed}");
    assert_eq!(copied + u64::try_from(failed).unwrap(), 400);
    assert_eq!(count_same(&source, &target), copied);
}

/// A store through a mapping changes the time of a file only after its page was written back.
#[test]
fn a_store_through_a_mapping_during_the_copy_is_noticed() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::create_dir(&source).unwrap();
    let path = source.join("file");
    make_file(&path, 4, 1 << 20);
    let mut writer = Command::new("xfs_io");
    writer.arg(&path).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut writer = match writer.spawn() {
        Ok(writer) => writer,
        Err(error) => return skip(Capability::Xfs, format!("xfs_io: {error}")),
    };
    let mut commands = writer.stdin.take().unwrap();
    writeln!(commands, "mmap -rw 0 1m\nmwrite -S 0 0 1m").unwrap();
    let stores = std::thread::spawn(move || {
        // Ends with the process that stores.
        for number in 1.. {
            if writeln!(commands, "mwrite -S {} 0 1m", number % 251).is_err() {
                return;
            }
        }
    });
    let dirty = || std::fs::read(&path).unwrap()[0];
    let first = dirty();
    wait_for("a store", || dirty() != first);
    // There is a store after each read, and before the copy looks at the times.
    let slow = ["-o", "/dev/null", "-e", "trace=preadv2", "-e", "inject=preadv2:delay_exit=300000"];
    for _ in 0..3 {
        let copied = traced(&slow, &["-r", "-T", "--json"], [&source, &target]);
        let Some(output) = copied else { break };
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        // It is copied alone then, which can end between two stores.
        assert!(!report.to_string().contains("small-file"), "{report}");
        let text = message(&output);
        assert!(output.status.success() || text.contains("the source changed"), "{text}");
    }
    writer.kill().unwrap();
    writer.wait().unwrap();
    stores.join().unwrap();
    assert_eq!(temporaries(&target), 0);
}

/// Each flush takes long: those that have started are waited for, and no other is started.
#[test]
fn a_signal_starts_no_flush_and_leaves_no_temporary() {
    let dir = dir();
    let [source, target, log] = ["source", "target", "log"].map(|name| dir.path().join(name));
    make_small(&source);
    let slow = ["-e", "trace=fsync", "-e", "inject=fsync:delay_enter=2000000"];
    let strace = [&["-o", log.to_str().unwrap()], &slow[..]].concat();
    let Some(mut command) = under_strace(&strace, &["-r"], [&source, &target]) else { return };
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    // 128 are being flushed, and 72 wait.
    wait_for("a queue", || temporaries(&target) >= 200);
    // timeout(1) passes it on.
    send(&child, rustix::process::Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(130), "{:?} {}", output.status, message(&output));
    assert_eq!(temporaries(&target), 0);
    let log = std::fs::read_to_string(&log).unwrap();
    let is_flush = |line: &&str| line.contains("fsync(") && line.contains('#');
    assert!(log.lines().filter(is_flush).count() >= 128, "{log}");
    // A thread may be on its way into the call when the signal arrives.
    let after = log.lines().skip_while(|line| !line.contains("--- SIGINT")).filter(is_flush);
    assert!(after.count() <= 36, "{log}");
}
