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
    // A copy that does not end is a failure, and not a test that does not end. In the foreground,
    // since timeout(1) sends a signal that it passes on to its group too: a second signal ends dio
    // at once.
    let mut command = Command::new("timeout");
    command
        .args(["--foreground", "-s", "KILL", "100", "strace", "-D", "-f", "-qq", "-y"])
        .args(strace);
    command.args([env!("CARGO_BIN_EXE_dio"), "cp"]).args(copy).args(paths);
    Some(command)
}

/// Runs [`under_strace`].
fn traced(strace: &[&str], copy: &[&str], paths: [&Path; 2]) -> Option<std::process::Output> {
    under_strace(strace, copy, paths).map(|mut command| command.output().unwrap())
}

/// True on a file system that `--flush=filesystem` flushes.
fn is_flushed_together(dir: &Path) -> bool {
    // stat(1) has one name for ext2, ext3 and ext4: none of the tests runs on the first two.
    ["ext2/ext3", "xfs", "btrfs"].contains(&&*type_of(dir))
}

/// The type of a file system, as stat(1) names it.
fn type_of(dir: &Path) -> String {
    let found = Command::new("stat").args(["-f", "-c", "%T"]).arg(dir).output().unwrap();
    String::from_utf8(found.stdout).unwrap().trim().to_owned()
}

/// A directory, and true where a small file in a new directory has no name until it is flushed;
/// `None` for the directory of the tests, where that depends on the machine.
struct Place {
    dir: std::path::PathBuf,
    is_nameless: Option<bool>,
    _mount: Option<Mount>,
    _dir: Option<tempfile::TempDir>,
}

const JOURNAL: FileSystem = FileSystem::Ext4 { block: 4096, extra: &["-O", "has_journal"] };
const NO_JOURNAL: FileSystem = FileSystem::Ext4 { block: 4096, extra: &["-O", "^has_journal"] };
const XFS: FileSystem = FileSystem::Xfs { extra: &[] };

/// The directory of the tests, and new file systems.
fn places(kinds: &[(FileSystem, bool)]) -> Vec<Place> {
    let own = dir();
    let mut places = vec![Place {
        dir: own.path().to_owned(),
        is_nameless: None,
        _mount: None,
        _dir: Some(own),
    }];
    for (kind, is_nameless) in kinds {
        let disk = Loop::new("cp", 320 << 20, 512);
        let mount = disk.and_then(|disk| Mount::on(disk, *kind, "defaults"));
        match mount {
            Ok(mount) => places.push(Place {
                dir: mount.path().to_owned(),
                is_nameless: Some(*is_nameless),
                _mount: Some(mount),
                _dir: None,
            }),
            Err(why) => skip(Capability::Loop, &why),
        }
    }
    places
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
    let cases = [
        (1, "-r", "files"),
        (3, "-r", "files"),
        (2, "-a", "files"),
        (1, "-r", "filesystem"),
        (2, "-a", "filesystem"),
    ];
    for (when, options, flush) in cases {
        let dir = dir();
        let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
        make_small(&source);
        if is_root() && options == "-a" {
            // The copy is given away before it is flushed.
            for entry in walkdir::WalkDir::new(&source) {
                std::os::unix::fs::chown(entry.unwrap().path(), Some(65_534), None).unwrap();
            }
        }
        let call = if flush == "files" { "fsync" } else { "syncfs" };
        if call == "syncfs" && !is_flushed_together(dir.path()) {
            continue;
        }
        let kill = format!("inject={call}:signal=KILL:when={when}");
        let calls = format!("trace={call}");
        let strace = ["-o", "/dev/null", "-e", &*calls, "-e", &kill];
        let flush = format!("--flush={flush}");
        let paths = [&*source, &target];
        let Some(killed) = traced(&strace, &[options, &flush], paths) else { return };
        assert!(killed.status.signal() == Some(9) || killed.status.code() == Some(137));
        let complete = |path: &Path| path.extension().is_none_or(|it| it != "dio-part");
        let whole = walkdir::WalkDir::new(&target).into_iter().flatten();
        for entry in whole.filter(|it| it.file_type().is_file() && complete(it.path())) {
            let path = entry.path().strip_prefix(&target).unwrap();
            assert_same(&source.join(path), entry.path());
        }
        let names = walkdir::WalkDir::new(&target).into_iter().flatten();
        let whole = names.filter(|it| it.file_type().is_file() && complete(it.path())).count();
        assert!(u64::try_from(whole).unwrap() < DIRS * FILES, "it was killed with files in flight");
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

/// A descriptor: the digits at the start of a text.
fn number(text: &str) -> u32 {
    let end = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    text[..end].parse().unwrap()
}

/// A system call, from the lines of strace in which it begins and ends.
struct Call {
    begun: usize,
    ended: usize,
    text: String,
}

impl Call {
    /// The arguments, if it is a call of this name.
    fn of(&self, name: &str) -> Option<&str> {
        self.text.strip_prefix(name)?.strip_prefix('(')
    }

    /// The descriptor that it returned.
    fn returned(&self) -> u32 {
        number(self.text.rsplit_once(" = ").unwrap().1)
    }
}

/// The calls in a log of several threads that returned without an error.
fn calls_in(log: &str) -> Vec<Call> {
    let (mut begun, mut calls) = (BTreeMap::new(), Vec::new());
    for (line, text) in log.lines().enumerate() {
        let (thread, text) = text.split_once(' ').unwrap();
        let text = text.trim_start();
        if let Some(start) = text.strip_suffix("<unfinished ...>") {
            begun.insert(thread, (line, start));
        } else if text.starts_with("<... ") {
            let (_, rest) = text.split_once(" resumed>").unwrap();
            let (begun, start) = begun.remove(thread).unwrap();
            calls.push(Call { begun, ended: line, text: format!("{start}{rest}") });
        } else {
            calls.push(Call { begun: line, ended: line, text: text.to_owned() });
        }
    }
    calls.retain(|call| call.text.contains(" = ") && !call.text.contains(" = -1"));
    calls
}

/// How a new file got its name.
struct Named<'c> {
    /// Its descriptor, and the line in which it was made.
    file: u32,
    made: usize,
    by: &'c Call,
    /// The directory that the name is in.
    dir: &'c str,
}

/// The files that got their names: a file without a name by a link, another by a rename of its
/// temporary.
fn named_in(calls: &[Call]) -> Vec<Named<'_>> {
    let (mut made, mut temporaries, mut named) = (BTreeMap::new(), BTreeMap::new(), Vec::new());
    for call in calls {
        if let Some(arguments) = call.of("openat")
            && arguments.contains("O_TMPFILE")
        {
            made.insert(call.returned(), call.ended);
        } else if let Some(arguments) = call.of("linkat") {
            let [from, name] = quoted(arguments)[..] else { panic!("{arguments}") };
            let file = number(from.rsplit('/').next().unwrap());
            let dir = path_in(arguments.split_once("\", ").unwrap().1);
            if name.ends_with(".dio-part") {
                temporaries.insert((dir, name), file);
            } else {
                named.push(Named { file, made: made[&file], by: call, dir });
            }
        } else if let Some(arguments) = call.of("renameat2").or_else(|| call.of("renameat")) {
            let dir = path_in(arguments);
            let file = temporaries.remove(&(dir, quoted(arguments)[0])).unwrap();
            named.push(Named { file, made: made[&file], by: call, dir });
        }
    }
    named
}

/// Copies a tree of small files under strace; the document and the log.
fn copy_logged(dir: &Path, flush: &str) -> Option<(serde_json::Value, String)> {
    let [source, target, log] = ["source", "target", "log"].map(|name| dir.join(name));
    make_small(&source);
    let calls = "trace=openat,linkat,fsync,renameat,renameat2,syncfs,sync";
    let strace = ["-o", log.to_str().unwrap(), "-e", calls];
    let copied = traced(&strace, &["-r", flush, "--json"], [&source, &target])?;
    assert!(copied.status.success(), "{}", message(&copied));
    assert_eq!(count_same(&source, &target), DIRS * FILES);
    let report = serde_json::from_slice(&copied.stdout).unwrap();
    Some((report, std::fs::read_to_string(&log).unwrap()))
}

/// Every directory is flushed after the last name in it, and not before.
fn check_dirs(calls: &[Call], named: &[Named<'_>]) {
    let flushes = || calls.iter().filter_map(|call| Some((call, path_in(call.of("fsync")?))));
    for Named { by, dir, .. } in named {
        assert!(
            flushes().all(|(flush, of)| of != *dir || flush.begun > by.ended),
            "{dir} was flushed before: {}",
            by.text
        );
        assert!(flushes().any(|(_, of)| of == *dir), "{dir} was not flushed");
    }
}

/// Checks that files got their names by links where they have none before, else by renames.
fn check_how(place: &Place, named: &[Named<'_>]) {
    let links = named.iter().filter(|named| named.by.of("linkat").is_some()).count();
    assert!(links == 0 || links == named.len(), "{links} of {}", named.len());
    if let Some(is_nameless) = place.is_nameless {
        assert_eq!(links > 0, is_nameless, "{}", place.dir.display());
    }
}

/// The order of the calls: a file is flushed after it was made, its flush returns before it gets
/// its name, and that of a directory starts after the last name in it.
#[test]
fn a_file_is_flushed_before_it_gets_its_name_and_its_directory_after_that() {
    for place in places(&[(JOURNAL, true), (NO_JOURNAL, false)]) {
        let Some((report, log)) = copy_logged(&place.dir, "--flush=files") else { return };
        let calls = calls_in(&log);
        let named = named_in(&calls);
        for Named { file, made, by, .. } in &named {
            let is_its_flush = |call: &Call| {
                let of = call.of("fsync").map(number);
                of == Some(*file) && *made < call.begun && call.ended < by.begun
            };
            assert!(calls.iter().any(is_its_flush), "it is not flushed: {}", by.text);
        }
        assert_eq!(u64::try_from(named.len()).unwrap(), DIRS * FILES);
        assert!(!log.contains("syncfs(") && !log.contains(" sync("), "{log}");
        assert_eq!(report["file_system_flushes"], 0);
        check_dirs(&calls, &named);
        check_how(&place, &named);
    }
}

/// As the test above, where one flush of the file system serves up to 128 files: its descriptor is
/// opened before the first file that it serves is made.
#[test]
fn files_that_are_flushed_together_get_their_names_after_that() {
    let places = places(&[(JOURNAL, true), (XFS, false), (FileSystem::Btrfs, false)]);
    for place in places.into_iter().filter(|place| is_flushed_together(&place.dir)) {
        let Some((report, log)) = copy_logged(&place.dir, "--flush=filesystem") else { return };
        let calls = calls_in(&log);
        // Line of the opening, and the call.
        let (mut opened, mut flushes) = (BTreeMap::new(), Vec::new());
        for call in &calls {
            if call.of("openat").is_some_and(|arguments| arguments.contains("O_DIRECTORY")) {
                opened.insert(call.returned(), call.ended);
            } else if let Some(arguments) = call.of("syncfs") {
                flushes.push((opened.remove(&number(arguments)).unwrap(), call));
            }
        }
        let named = named_in(&calls);
        for Named { made, by, .. } in &named {
            let is_its_flush = |(opened, flush): &(usize, &Call)| {
                opened < made && *made < flush.begun && flush.ended < by.begun
            };
            assert!(flushes.iter().any(is_its_flush), "it is not flushed: {}", by.text);
        }
        assert_eq!(u64::try_from(named.len()).unwrap(), DIRS * FILES);
        let of_a_file = |call: &&Call| call.of("fsync").is_some_and(|file| file.contains('#'));
        assert_eq!(calls.iter().filter(of_a_file).count(), 0, "{log}");
        let count = u64::try_from(flushes.len()).unwrap();
        assert_eq!(report["file_system_flushes"], count);
        assert!((DIRS * FILES).div_ceil(128) <= count && count < DIRS * FILES / 16, "{count}");
        check_dirs(&calls, &named);
        check_how(&place, &named);
    }
}

/// A copy of the disk after the command, as a crash would leave it, has every file.
#[test]
fn files_are_there_after_a_crash_of_an_ext4_without_a_journal() {
    for flush in ["--flush=files", "--flush=filesystem"] {
        let disk = Loop::new("cp", 64 << 20, 512);
        let mount = match disk.and_then(|disk| Mount::on(disk, NO_JOURNAL, "defaults")) {
            Ok(mount) => mount,
            Err(why) => return skip(Capability::Loop, &why),
        };
        let dir = dir();
        let source = dir.path().join("source");
        make_small(&source);
        cp_well(&["-r", "-T", flush], &source, &mount.path().join("target"));
        let image = dir.path().join("crashed");
        std::fs::copy(mount.device().backing(), &image).unwrap();
        drop(mount);
        // 1: errors were corrected, such as the mark of a mounted file system.
        let checked = Command::new("e2fsck").arg("-fy").arg(&image).output().unwrap();
        assert!(checked.status.code() <= Some(1), "{checked:?}");
        let again = Loop::over_image(&image, 512).unwrap();
        let again = Mount::again(again, NO_JOURNAL, "ro").unwrap();
        assert_eq!(count_same(&source, &again.path().join("target")), DIRS * FILES, "{flush}");
    }
}

/// A flush of the file system that fails says nothing of a single file: each is flushed alone then,
/// and so are all that follow.
#[test]
fn files_whose_flush_together_fails_are_flushed_one_by_one() {
    let dir = dir();
    if !is_flushed_together(dir.path()) {
        return;
    }
    for error in ["EIO", "ENOSYS"] {
        let [source, target, log] = ["source", error, "log"].map(|name| dir.path().join(name));
        make_small(&source);
        let fault = format!("inject=syncfs:error={error}");
        let strace = ["-o", log.to_str().unwrap(), "-e", "trace=fsync,syncfs", "-e", &*fault];
        let options = ["-r", "--flush=filesystem", "--json"];
        let Some(copied) = traced(&strace, &options, [&source, &target]) else { return };
        assert!(copied.status.success(), "{error}: {}", message(&copied));
        let report: serde_json::Value = serde_json::from_slice(&copied.stdout).unwrap();
        assert_eq!(report["file_system_flushes"], 0);
        assert_eq!(count_same(&source, &target), DIRS * FILES);
        let log = std::fs::read_to_string(&log).unwrap();
        let calls = |call: &str| log.lines().filter(|line| line.contains(call)).count() as u64;
        assert!(calls(" fsync(") >= DIRS * FILES, "{error}: {log}");
        assert!(calls(" syncfs(") <= (DIRS * FILES).div_ceil(128), "{error}: {log}");
    }
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
    let options = ["-r", "--flush=files", "--json"];
    let Some(output) = traced(&fault, &options, [&source, &target]) else { return };
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
    let options = ["-r", "--flush=files"];
    let Some(mut command) = under_strace(&strace, &options, [&source, &target]) else { return };
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    // 128 are being flushed, and others wait.
    let flushes = || std::fs::read_to_string(&log).unwrap_or_default().matches("fsync(").count();
    wait_for("a queue", || flushes() >= 128);
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

/// As the test above, with a flush of the file system: the files of the flush that has begun get no
/// names after the signal either.
#[test]
fn a_signal_starts_no_flush_of_the_file_system() {
    let dir = dir();
    if !is_flushed_together(dir.path()) {
        return;
    }
    let [source, target, log] = ["source", "target", "log"].map(|name| dir.path().join(name));
    make_small(&source);
    let calls = "trace=syncfs,renameat,renameat2";
    let slow = ["-e", calls, "-e", "inject=syncfs:delay_enter=2000000"];
    let strace = [&["-o", log.to_str().unwrap()], &slow[..]].concat();
    let options = ["-r", "--flush=filesystem"];
    let Some(mut command) = under_strace(&strace, &options, [&source, &target]) else { return };
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    let begins = || std::fs::read_to_string(&log).unwrap_or_default().contains("syncfs(");
    wait_for("a flush", begins);
    send(&child, rustix::process::Signal::INT);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.code() == Some(130), "{:?} {}", output.status, message(&output));
    assert_eq!(temporaries(&target), 0);
    let log = std::fs::read_to_string(&log).unwrap();
    assert!(log.contains("syncfs(") && log.contains("--- SIGINT"), "{log}");
    let begins = |line: &&str| line.contains("syncfs(") || line.contains("renameat");
    let after = log.lines().skip_while(|line| !line.contains("--- SIGINT")).filter(begins);
    assert_eq!(after.count(), 0, "{log}");
}

#[test]
fn small_files_are_verified_after_their_flush_and_before_they_have_their_names() {
    let dir = dir();
    let [source, target, log] = ["source", "target", "log"].map(|name| dir.path().join(name));
    make_small(&source);
    // A write and a read of the user without capabilities: not even its owner may read the copy.
    let secret = source.join("0/0");
    std::fs::set_permissions(&secret, std::fs::Permissions::from_mode(0o200)).unwrap();
    let calls = "trace=openat,linkat,renameat,renameat2";
    let strace = ["-o", log.to_str().unwrap(), "-e", calls];
    let options = ["-r", "--verify", "--json", "--reflink=never"];
    let Some(copied) = traced(&strace, &options, [&source, &target]) else { return };
    if is_root() {
        assert!(copied.status.success(), "{}", message(&copied));
    }
    let report: serde_json::Value = serde_json::from_slice(&copied.stdout).unwrap();
    let verified = report["verified"].as_array().unwrap();
    let count = u64::try_from(verified.len()).unwrap();
    assert_eq!(count, DIRS * FILES - u64::from(!is_root()));
    assert!(verified.iter().all(|file| file["is_same"] == true), "{verified:?}");
    let bytes = |route: &str| report["route"][route]["direct"].as_u64().unwrap();
    assert_eq!(bytes("read"), 0, "a small file goes through the page cache");
    assert!(report["read_from"] != "device" || bytes("verify") > 0, "{report}");
    let log = std::fs::read_to_string(&log).unwrap();
    let calls = calls_in(&log);
    // Descriptors of files that were opened once more, to be read back.
    let opened = |call: &Call| {
        let (_, file) = call.of("openat")?.split_once("\"/proc/self/fd/")?;
        file.contains("O_DIRECT|").then(|| (number(file), call.begun))
    };
    let opened: Vec<(u32, usize)> = calls.iter().filter_map(opened).collect();
    let named = named_in(&calls);
    assert!(named.len() > 500, "{log}");
    for Named { file, made, by, .. } in named {
        let is_it = |(of, line): &(u32, usize)| *of == file && made < *line && *line < by.begun;
        assert!(
            report["read_from"] != "device" || opened.iter().any(is_it),
            "it was not read back: {}",
            by.text
        );
    }
}

/// A byte of a target is changed on its way, and nothing else.
#[test]
fn a_small_file_that_differs_gets_no_name_and_the_others_do() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_small(&source);
    // The first write of each thread that writes files puts one byte in place of all.
    let fault = ["-e", "trace=pwrite64", "-e", "inject=pwrite64:retval=1:when=1"];
    let strace = [&["-o", "/dev/null"], &fault[..]].concat();
    let options = ["-r", "--verify", "--json", "--reflink=never"];
    let Some(copied) = traced(&strace, &options, [&source, &target]) else { return };
    assert_eq!(copied.status.code(), Some(1), "{}", message(&copied));
    let report: serde_json::Value = serde_json::from_slice(&copied.stdout).unwrap();
    let verified = report["verified"].as_array().unwrap();
    let differing: Vec<&str> = verified
        .iter()
        .filter(|file| file["is_same"] == false)
        .map(|file| file["path"].as_str().unwrap())
        .collect();
    assert!(!differing.is_empty());
    assert!(differing.iter().all(|path| !Path::new(path).exists()), "{differing:?}");
    let whole = DIRS * FILES - u64::try_from(differing.len()).unwrap();
    assert_eq!(count_same(&source, &target), whole);
    assert_eq!(temporaries(&target), 0);
}
