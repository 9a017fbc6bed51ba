//! `dio cp`: files with several names.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};

fn cp(program: &str, options: &[&str], sources: &[&Path], target: &Path) -> Output {
    let mut command = Command::new(program);
    command.args(options).args(sources).arg(target).stdin(Stdio::null());
    command.output().unwrap()
}

fn dio(options: &[&str], sources: &[&Path], target: &Path) -> Output {
    cp(env!("CARGO_BIN_EXE_dio"), &[&["cp", "--json"], options].concat(), sources, target)
}

fn report_of(output: &Output) -> serde_json::Value {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Returns each file below a directory by its name: the first name of the same inode, the number of
/// names, and the content.
fn names(root: &Path) -> BTreeMap<String, (String, u64, Vec<u8>)> {
    let mut firsts = BTreeMap::new();
    let mut found = BTreeMap::new();
    let mut left = vec![root.to_owned()];
    let mut files = Vec::new();
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let metadata = path.symlink_metadata().unwrap();
            if metadata.is_dir() { left.push(path) } else { files.push((path, metadata)) }
        }
    }
    files.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (path, metadata) in files {
        let name = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
        let first = firsts.entry(metadata.ino()).or_insert_with(|| name.clone()).clone();
        let content = if metadata.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
        found.insert(name, (first, metadata.nlink(), content));
    }
    found
}

/// Small files and a large one with names in one directory and in others, one that has a name
/// outside, and a link with two names.
fn tree(root: &Path) {
    let dirs = ["a", "a/b", "c", "c/d/e"].map(|dir| root.join(dir));
    dirs.iter().for_each(|dir| fs::create_dir_all(dir).unwrap());
    for number in 0..150 {
        let first = dirs[number % 4].join(format!("small{number:03}"));
        fs::write(&first, format!("content {number}")).unwrap();
        for (nth, dir) in dirs.iter().enumerate().skip(number % 3) {
            fs::hard_link(&first, dir.join(format!("other{number:03}-{nth}"))).unwrap();
        }
    }
    fs::write(dirs[0].join("large"), vec![7; 3 << 20]).unwrap();
    fs::hard_link(dirs[0].join("large"), dirs[3].join("large")).unwrap();
    fs::write(root.join("../outside"), "outside").unwrap();
    fs::hard_link(root.join("../outside"), dirs[1].join("inside")).unwrap();
    fs::write(dirs[2].join("single"), "single").unwrap();
}

#[test]
fn names_of_one_file_are_names_of_one_copy_as_with_cp() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    tree(&source);
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    for kept in [&["-a"][..], &["-r", "--preserve=links"], &["-a", "--verify"]] {
        let report = report_of(&dio(kept, &[&source], &ours));
        assert!(cp("cp", &["-a"], &[&source], &theirs).status.success());
        let (found, wanted) = (names(&ours), names(&theirs));
        assert_eq!(found, wanted);
        let files = wanted.iter().filter(|(name, (first, ..))| *name == first).count();
        assert_eq!(report["files"], files, "{kept:?}");
        assert_eq!(report["links"], wanted.len() - files);
        assert_eq!(report["separate_links"], 0);
        let times = |root: &Path| root.join("c/d").metadata().unwrap().modified().unwrap();
        if kept[0] == "-a" {
            assert_eq!(times(&ours), times(&source), "a directory gets its time after its names");
        }
        fs::remove_dir_all(&ours).unwrap();
        fs::remove_dir_all(&theirs).unwrap();
    }
    for kept in [&["-r"][..], &["-a", "--no-preserve=links"], &["-r", "--preserve=mode"]] {
        let report = report_of(&dio(kept, &[&source], &ours));
        assert_eq!(report["links"], 0);
        let several = names(&source).values().filter(|(_, names, _)| *names > 1).count();
        assert_eq!(report["separate_links"], several, "{kept:?}");
        assert!(names(&ours).values().all(|(_, names, _)| *names == 1), "{kept:?}");
        fs::remove_dir_all(&ours).unwrap();
    }
    let output = cp(env!("CARGO_BIN_EXE_dio"), &["cp", "-rv"], &[&source], &ours);
    let text = String::from_utf8(output.stdout).unwrap();
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let several = names(&source).values().filter(|(_, names, _)| *names > 1).count();
    let words = format!(
        "; names with hard links, each a separate file now: {several} (-a keeps links among what \
         it copies)"
    );
    assert!(text.ends_with(&words), "{text}");
}

#[test]
fn names_that_are_printed_are_those_of_the_source() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    tree(&source);
    let target = dir.path().join("target");
    let output = cp(env!("CARGO_BIN_EXE_dio"), &["cp", "-av"], &[&source], &target);
    let text = String::from_utf8(output.stdout).unwrap();
    let printed = text.lines().rev().skip(1).collect::<Vec<_>>();
    assert!(printed.len() > 3 && output.status.success(), "{text}");
    assert!(printed.iter().all(|name| Path::new(name).starts_with(&source)), "{text}");
}

#[test]
fn what_is_there_is_replaced_or_stays() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), "new").unwrap();
    for name in ["b", "c", "d"] {
        fs::hard_link(source.join("a"), source.join(name)).unwrap();
    }
    let (target, outside) = (dir.path().join("target"), dir.path().join("outside"));
    let again = || {
        fs::remove_dir_all(&target).unwrap_or(());
        fs::create_dir(&target).unwrap();
        fs::write(&outside, "outside").unwrap();
        fs::write(target.join("b"), "old").unwrap();
        symlink(&outside, target.join("c")).unwrap();
    };
    again();
    let report = report_of(&dio(&["-a"], &[&source.join(".")], &target));
    assert_eq!((&report["files"], &report["links"]), (&1.into(), &3.into()));
    assert!(names(&target).values().all(|(first, names, _)| first == "a" && *names == 4));
    assert_eq!(fs::read(&outside).unwrap(), b"outside", "a link was replaced, not followed");
    // The second run finds names of one file where it puts names of another.
    report_of(&dio(&["-a"], &[&source.join(".")], &target));
    assert!(names(&target).values().all(|(first, names, _)| first == "a" && *names == 4));
    assert_eq!(fs::read_dir(&target).unwrap().count(), 4, "no temporary is left");
    again();
    let report = report_of(&dio(&["-an"], &[&source.join(".")], &target));
    assert_eq!(
        (&report["files"], &report["links"], &report["skipped"]),
        (&1.into(), &1.into(), &2.into())
    );
    assert_eq!(fs::read(target.join("b")).unwrap(), b"old");
    assert_eq!(fs::read_link(target.join("c")).unwrap(), outside);
    fs::remove_file(target.join("b")).unwrap();
    fs::create_dir(target.join("b")).unwrap();
    let output = dio(&["-a"], &[&source.join(".")], &target);
    assert_eq!(output.status.code(), Some(2), "a directory is in the way");
    assert!(names(&target).values().all(|(first, names, _)| first == "a" && *names == 3));
}

#[test]
fn sources_on_the_command_line_count_too() {
    let dir = tempfile::tempdir().unwrap();
    let paths = ["a", "b", "tree"].map(|name| dir.path().join(name));
    fs::write(&paths[0], "a").unwrap();
    fs::hard_link(&paths[0], &paths[1]).unwrap();
    fs::create_dir(&paths[2]).unwrap();
    fs::hard_link(&paths[0], paths[2].join("c")).unwrap();
    let target = dir.path().join("target");
    fs::create_dir(&target).unwrap();
    report_of(&dio(&["-a"], &[&paths[0], &paths[1], &paths[2]], &target));
    let found = names(&target);
    assert_eq!(found.keys().collect::<Vec<_>>(), ["a", "b", "tree/c"]);
    assert!(found.values().all(|(first, names, _)| first == "a" && *names == 3));
    // Each stays as it is.
    fs::write(target.join("b"), "other").unwrap();
    report_of(&dio(&["-an"], &[&paths[0], &paths[1], &paths[2]], &target));
    assert_eq!(fs::read(target.join("a")).unwrap(), b"other");
}

#[test]
fn the_limit_of_open_files_holds_in_a_tree_of_many_directories() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    for number in 0..300 {
        let at = source.join(format!("{number:03}"));
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join("file"), "text").unwrap();
        fs::hard_link(at.join("file"), source.join(format!("name{number:03}"))).unwrap();
    }
    let target = dir.path().join("target");
    let script = "ulimit -n 64; exec \"$0\" cp -a --json \"$1\" \"$2\"";
    let mut command = Command::new("sh");
    command.args(["-c", script, env!("CARGO_BIN_EXE_dio")]).args([&source, &target]);
    let report = report_of(&command.output().unwrap());
    assert_eq!((&report["files"], &report["links"]), (&300.into(), &300.into()));
    assert!(names(&target).values().all(|(_, names, _)| *names == 2));
}
