//! `dio cp`: files that are skipped, the limit on the rate, and what is printed.

mod cp_support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant, SystemTime};

use cp_support::*;

fn dio(options: &[&str], source: &Path, target: &Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.arg("cp").args(options).args([source, target]).stdin(Stdio::null());
    command.output().unwrap()
}

fn done(output: &Output) -> &Output {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output
}

fn set_time(path: &Path, seconds: u64) {
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
    File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
}

/// A tree with a small file, a large one and a link, and a copy in which all three differ.
fn trees(root: &Path) {
    for (tree, text) in [("source", "new"), ("target", "old")] {
        let dir = root.join(tree).join("dir");
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("small"), text).unwrap();
        fs::write(dir.join("large"), text.repeat(1 << 20)).unwrap();
        symlink(text, dir.join("link")).unwrap();
    }
    fs::write(root.join("source/dir/added"), "new").unwrap();
}

fn texts(root: &Path) -> [String; 4] {
    let dir = root.join("target/dir");
    let start = |name: &str| fs::read_to_string(dir.join(name)).unwrap()[..3].to_owned();
    let link = fs::read_link(dir.join("link")).unwrap().to_str().unwrap().to_owned();
    [start("small"), start("large"), link, start("added")]
}

#[test]
fn with_no_clobber_what_is_there_stays_and_what_is_missing_is_copied() {
    let root = tempfile::tempdir().unwrap();
    trees(root.path());
    let (source, target) = (root.path().join("source/."), root.path().join("target"));
    let output = dio(&["-rn", "--json"], &source, &target);
    let report: serde_json::Value = serde_json::from_slice(&done(&output).stdout).unwrap();
    assert_eq!(texts(root.path()), ["old", "old", "old", "new"]);
    assert_eq!((&report["skipped"], &report["files"]), (&3.into(), &1.into()));
    done(&dio(&["-r"], &source, &target));
    assert_eq!(texts(root.path()), ["new", "new", "new", "new"]);
}

#[test]
fn a_file_of_the_command_line_is_skipped_too() {
    let root = tempfile::tempdir().unwrap();
    let (source, target) = (root.path().join("source"), root.path().join("target"));
    fs::write(&source, "new").unwrap();
    fs::write(&target, "old").unwrap();
    for options in [&["-n"][..], &["-n", "--verify"], &["-rn"]] {
        done(&dio(options, &source, &target));
        assert_eq!(fs::read_to_string(&target).unwrap(), "old");
    }
    fs::remove_file(&target).unwrap();
    done(&dio(&["-n"], &source, &target));
    assert_eq!(fs::read_to_string(&target).unwrap(), "new");
}

#[test]
fn with_update_a_target_is_replaced_if_it_is_older() {
    let root = tempfile::tempdir().unwrap();
    trees(root.path());
    let (source, target) = (root.path().join("source/."), root.path().join("target"));
    for (name, its, that) in [("small", 1000, 2000), ("large", 2000, 1000)] {
        set_time(&root.path().join("source/dir").join(name), its);
        set_time(&root.path().join("target/dir").join(name), that);
    }
    done(&dio(&["-ru"], &source, &target));
    assert_eq!(texts(root.path()), ["old", "new", "old", "new"]);
    // The times are the same: nothing to do.
    set_time(&root.path().join("target/dir/large"), 2000);
    let output = dio(&["-rpu", "--json"], &source, &target);
    let report: serde_json::Value = serde_json::from_slice(&done(&output).stdout).unwrap();
    assert_eq!((&report["skipped"], &report["files"]), (&4.into(), &0.into()));
}

#[test]
fn a_link_in_place_of_a_file_is_older_than_every_file() {
    let root = tempfile::tempdir().unwrap();
    trees(root.path());
    let (source, target) = (root.path().join("source"), root.path().join("target"));
    set_time(&source.join("dir/small"), 1000);
    fs::remove_file(target.join("dir/small")).unwrap();
    symlink("nowhere", target.join("dir/small")).unwrap();
    done(&dio(&["-ru"], &source.join("."), &target));
    assert_eq!(fs::read_to_string(target.join("dir/small")).unwrap(), "new");
    assert!(!target.join("dir/nowhere").exists());
}

#[test]
fn striped_files_are_skipped_whole_or_refused() {
    let root = tempfile::tempdir().unwrap();
    let source = root.path().join("source");
    fs::create_dir(&source).unwrap();
    let mut create = Command::new(env!("CARGO_BIN_EXE_dio"));
    create.args(["stripe", "create"]).arg(source.join("striped")).arg("--stripe-size=64K");
    create.arg("--objects").arg(&source).arg("--objects").arg(&source);
    let created = create.output().unwrap();
    assert!(created.status.success(), "{}", String::from_utf8_lossy(&created.stderr));
    let target = root.path().join("target");
    done(&dio(&["-r", "--striped"], &source, &target));
    // No object is missing, and none counts.
    let output = dio(&["-rn", "--striped", "--json"], &source.join("."), &target);
    let report: serde_json::Value = serde_json::from_slice(&done(&output).stdout).unwrap();
    assert_eq!((&report["skipped"], &report["files"]), (&1.into(), &0.into()));
    let plain = root.path().join("plain");
    done(&dio(&["-u"], &source.join("striped"), &plain));
    let output = dio(&["-u"], &source.join("striped"), &plain);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("have no time of their content"), "{text}");
}

#[test]
fn images_have_no_such_choice_and_are_refused() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("image"), "").unwrap();
    let image = root.path().join("image::/file");
    let output = dio(&["-n"], &image, &root.path().join("target"));
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(text.contains("leave --no-clobber and --update out"), "{text}");
}

#[test]
fn the_rate_is_at_most_what_bwlimit_says_and_a_signal_ends_the_wait() {
    let root = tempfile::tempdir().unwrap();
    let (source, target) = (root.path().join("source"), root.path().join("target"));
    fs::create_dir(&source).unwrap();
    // Small files and a large one; what begins last need not be paid.
    for number in 0..8 {
        fs::write(source.join(number.to_string()), content(number + 1, 64 << 10)).unwrap();
    }
    fs::write(source.join("large"), content(9, 2 << 20)).unwrap();
    let started = Instant::now();
    done(&dio(&["-r", "--bwlimit=2M", "--bs=256K"], &source, &target));
    assert!(started.elapsed() >= Duration::from_millis(900), "{:?}", started.elapsed());
    for entry in fs::read_dir(&source).unwrap() {
        let name = entry.unwrap().file_name();
        assert_same(&source.join(&name), &target.join(&name));
    }

    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.args(["cp", "-rv", "--bwlimit=1"]).args([&source, &root.path().join("never")]);
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    // The first file is written, and the second begins after hours.
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(child.stdout.take().unwrap()));
    lines.next().unwrap().unwrap();
    let ended = Instant::now();
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::TERM,
    )
    .unwrap();
    let status = child.wait().unwrap();
    assert!(ended.elapsed() < Duration::from_secs(2), "{:?}", ended.elapsed());
    assert!(status.code() == Some(143) || status.signal() == Some(15), "{status}");
}

#[test]
fn holes_are_not_in_a_rate_and_take_no_time_of_bwlimit() {
    let root = tempfile::tempdir().unwrap();
    let (source, target) = (root.path().join("source"), root.path().join("target"));
    let file = fs::File::create(&source).unwrap();
    file.set_len(64 << 30).unwrap();
    file.write_all_at(&content(1, 1 << 20), 1 << 30).unwrap();
    file.write_all_at(&content(2, 1 << 20), 40 << 30).unwrap();
    file.sync_all().unwrap();
    let options = ["-v", "--bwlimit=1M", "--bs=256K", "--progress=always", "--reflink=never"];
    let output = dio(&options, &source, &target);
    let text = String::from_utf8(done(&output).stdout.clone()).unwrap();
    let summary = text.lines().last().unwrap();
    assert!(summary.starts_with("1 file; 64.00 GiB, 2.00 MiB of it moved, in "), "{text}");
    let err = String::from_utf8(output.stderr).unwrap();
    let rates: Vec<&str> = err.lines().map(|line| line.rsplit(", ").next().unwrap()).collect();
    assert!(!rates.is_empty(), "it takes more than a second");
    for rate in rates.into_iter().chain(summary.rsplit(", ").next()) {
        assert!(rate.ends_with("/s") && !rate.contains("GiB"), "{summary}\n{err}");
    }
}

#[test]
fn names_and_a_summary_are_on_standard_output_and_lines_on_standard_error() {
    let root = tempfile::tempdir().unwrap();
    let (source, target) = (root.path().join("source"), root.path().join("target"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("one\x1b[2J"), content(1, 100)).unwrap();
    fs::write(source.join("two"), content(2, 3 << 20)).unwrap();
    let options = ["-rv", "--verify", "--progress=always", "--bwlimit=2M", "--bs=256K"];
    let output = dio(&options, &source, &target);
    let (out, err) = (&done(&output).stdout, &output.stderr);
    let (out, err) = (String::from_utf8_lossy(out), String::from_utf8_lossy(err));
    assert!(!out.contains('\x1b'), "{out:?}");
    let lines: Vec<&str> = out.lines().collect();
    assert_eq!(lines.len(), 3, "{out}");
    assert!(lines[..2].iter().any(|line| line.ends_with("source/two")), "{out}");
    assert!(lines[2].starts_with("2 files, 1 directory; 3.00 MiB in "), "{out}");
    assert!(lines[2].contains("iB/s; verified (BLAKE3, "), "{out}");
    for phase in ["copying", "verifying"] {
        let has_phase = |line: &&str| line.starts_with(&format!("dio cp: {phase} two: "));
        let line = err.lines().find(has_phase).expect("each phase takes more than a second");
        assert!(line.contains(" of 3.00 MiB; ") && line.contains("% of all, "), "{err}");
    }
    // The rate of the whole run, and not of what was read since the line before.
    let rate = err.trim_end().rsplit(", ").next().unwrap();
    let (figure, unit) = rate.split_once(' ').expect("a figure and its unit");
    let is_slow = unit == "KiB/s" || unit == "MiB/s" && figure.parse::<f64>().unwrap() < 3.5;
    assert!(is_slow, "{err}");

    let quiet = dio(&["-rq"], &source, &target.join("again"));
    assert!(done(&quiet).stdout.is_empty() && quiet.stderr.is_empty());
    let both = dio(&["-rq", "-v"], &source, &target);
    assert_eq!(both.status.code(), Some(2));

    fs::create_dir(root.path().join("empty")).unwrap();
    let none = dio(&["-r", "--progress=always"], &root.path().join("empty"), &target);
    assert_eq!(String::from_utf8_lossy(&done(&none).stderr), "");
}

#[test]
fn the_log_has_the_backend_the_routes_and_the_requests() {
    let root = tempfile::tempdir().unwrap();
    let (source, target) = (root.path().join("source"), root.path().join("target"));
    fs::write(&source, content(3, 3 << 20)).unwrap();
    let logged = |level: &str| {
        let options = ["--reflink=never", "--backend=threads", "--log", level];
        let output = dio(&options, &source, &target);
        assert!(done(&output).stdout.is_empty());
        String::from_utf8(output.stderr).unwrap()
    };
    assert_eq!(logged("warn"), "");
    let (info, debug) = (logged("cp=info"), logged("debug"));
    assert!(info.starts_with("dio: backend threads: "), "{info}");
    for pass in ["read", "write"] {
        let line = info.lines().find_map(|line| line.strip_prefix(&format!("dio: {pass}: ")));
        let words: Vec<&str> = line.expect(&info).split([' ', ',', ';']).collect();
        assert!(words.contains(&"3145728") || words.contains(&"bounced"), "{info}");
    }
    let more = debug.strip_prefix(&info).expect("the same and more");
    assert!(more.starts_with("dio: ") && more.contains(" requests of "), "{debug}");
}
