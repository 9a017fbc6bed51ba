//! `dio cp` that is ended on its way: the target has the old content or the whole new one, and
//! `--resume` goes on.

mod cp_support;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use cp_support::*;
use rustix::process::Signal;

const OLD: &[u8] = b"what was here before";

/// Moments at which a copy is killed: a share of them in every run, all of them in a soak.
const MOMENTS: u64 = 20;
const MOMENTS_OF_A_SOAK: u64 = 200;

/// A directory with a source that takes a while, and a target that is there already.
fn prepared(seed: u64, size: u64) -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    make_file(&source, seed, size);
    std::fs::write(&target, OLD).unwrap();
    (dir, source, target)
}

fn assert_ended_by(child: Child, signal: Signal, status: i32) -> String {
    send(&child, signal);
    let output = child.wait_with_output().unwrap();
    let text = message(&output);
    assert_eq!(output.status.code(), Some(status), "{text}");
    text
}

#[test]
fn a_signal_leaves_the_old_target_and_nothing_else() {
    for (signal, status) in [(Signal::INT, 130), (Signal::TERM, 143), (Signal::HUP, 129)] {
        let (dir, source, target) = prepared(1, SLOW_BYTES);
        let copy = start_slowly(&[], &source, &target);
        wait_for_record(&target);
        let text = assert_ended_by(copy, signal, status);
        assert!(text.contains("--resume"), "{text}");
        assert_eq!(std::fs::read(&target).unwrap(), OLD);
        assert_eq!(names(dir.path()), ["source", "target"]);
    }
}

#[test]
fn a_signal_with_resume_leaves_what_the_next_run_goes_on_from() {
    let (dir, source, target) = prepared(2, SLOW_BYTES + 7);
    let copy = start_slowly(&["--resume"], &source, &target);
    wait_for_record(&target);
    assert_ended_by(copy, Signal::INT, 130);
    assert_eq!(std::fs::read(&target).unwrap(), OLD);
    assert_eq!(names(dir.path()), [".target.dio-part", "source", "target"]);
    let report = cp_report(&["--resume"], &source, &target);
    let resumed = report["resumed_bytes"].as_u64().unwrap();
    assert!(resumed > 0 && resumed < SLOW_BYTES, "{resumed}");
    let written = report["route"]["write"]["direct"].as_u64().unwrap();
    assert_eq!(written, SLOW_BYTES - resumed, "what was there is not written again");
    assert_same(&source, &target);
    assert_eq!(names(dir.path()), ["source", "target"]);
    let left = rustix::fs::getxattr(&target, "user.diopter.cp", &mut [0u8; 4096][..]);
    assert_eq!(left, Err(rustix::io::Errno::NODATA));
}

#[test]
fn a_resumed_copy_is_verified_whole() {
    let (_dir, source, target) = prepared(3, SLOW_BYTES);
    let copy = start_slowly(&["--resume", "--verify"], &source, &target);
    wait_for_record(&target);
    assert_ended_by(copy, Signal::INT, 130);
    // What the first run wrote went bad meanwhile.
    let temporary = File::options().write(true).open(temporary_of(&target)).unwrap();
    temporary.write_all_at(b"rot", 0).unwrap();
    drop(temporary);
    let output = cp(&["--resume", "--verify"], &source, &target);
    assert_eq!(output.status.code(), Some(1), "{}", message(&output));
    assert_eq!(std::fs::read(&target).unwrap(), OLD);
    // The bad part is gone, so the next run starts from the beginning and is right.
    let report = cp_report(&["--resume", "--verify"], &source, &target);
    assert_eq!(report["resumed_bytes"], 0);
    let hash = blake3::hash(&std::fs::read(&source).unwrap()).to_string();
    assert_eq!(report["verified"][0]["source_blake3"], hash);
    assert_same(&source, &target);
}

#[test]
fn a_resumed_copy_that_is_verified_has_the_hash_of_the_whole_source() {
    let (_dir, source, target) = prepared(4, SLOW_BYTES + 1);
    let copy = start_slowly(&["--resume"], &source, &target);
    wait_for_record(&target);
    assert_ended_by(copy, Signal::INT, 130);
    let report = cp_report(&["--resume", "--verify"], &source, &target);
    assert!(report["resumed_bytes"].as_u64().unwrap() > 0);
    let hash = blake3::hash(&std::fs::read(&source).unwrap()).to_string();
    assert_eq!(report["verified"][0]["source_blake3"], hash);
}

#[test]
fn holes_are_kept_across_a_resume() {
    let (_dir, source, target) = prepared(5, SLOW_BYTES);
    let file = File::options().write(true).open(&source).unwrap();
    file.set_len(4 * SLOW_BYTES).unwrap();
    file.write_all_at(&content(6, 1 << 20), 3 * SLOW_BYTES).unwrap();
    leave_cache(&file);
    let copy = start_slowly(&["--resume"], &source, &target);
    wait_for_record(&target);
    assert_ended_by(copy, Signal::TERM, 143);
    cp_report(&["--resume"], &source, &target);
    assert_same(&source, &target);
    assert_eq!(data_of(&target), data_of(&source));
}

#[test]
fn a_source_that_was_changed_between_two_runs_is_copied_from_the_start() {
    let (_dir, source, target) = prepared(7, SLOW_BYTES);
    let copy = start_slowly(&["--resume"], &source, &target);
    wait_for_record(&target);
    assert_ended_by(copy, Signal::INT, 130);
    make_file(&source, 8, SLOW_BYTES);
    let report = cp_report(&["--resume"], &source, &target);
    assert_eq!(report["resumed_bytes"], 0);
    assert_same(&source, &target);
}

/// Only the time of status change shows it, which no program sets.
#[test]
fn a_source_whose_time_was_put_back_after_a_change_is_copied_from_the_start() {
    let (_dir, source, target) = prepared(14, SLOW_BYTES);
    let copy = start_slowly(&["--resume"], &source, &target);
    wait_for_record(&target);
    assert_ended_by(copy, Signal::INT, 130);
    let before = source.metadata().unwrap();
    let file = File::options().write(true).open(&source).unwrap();
    file.write_all_at(b"changed in place", 0).unwrap();
    file.set_modified(before.modified().unwrap()).unwrap();
    let after = source.metadata().unwrap();
    assert_eq!((before.ino(), before.len()), (after.ino(), after.len()));
    assert_eq!(before.modified().unwrap(), after.modified().unwrap());
    let report = cp_report(&["--resume"], &source, &target);
    assert_eq!(report["resumed_bytes"], 0);
    assert_same(&source, &target);
}

#[test]
fn a_name_and_permissions_that_a_source_gets_while_it_is_copied_are_no_change_of_it() {
    let (dir, source, target) = prepared(15, SLOW_BYTES / 4);
    let copy = start_slowly(&[], &source, &target);
    wait_for_start(&target, SLOW_BYTES / 4);
    std::fs::hard_link(&source, dir.path().join("another")).unwrap();
    std::fs::set_permissions(&source, std::fs::Permissions::from_mode(0o640)).unwrap();
    let output = copy.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", message(&output));
    assert_same(&source, &target);
}

#[test]
fn a_plain_copy_starts_over_and_leaves_nothing_of_an_interrupted_one() {
    let (dir, source, target) = prepared(9, SLOW_BYTES);
    let copy = start_slowly(&["--resume"], &source, &target);
    wait_for_record(&target);
    assert_ended_by(copy, Signal::INT, 130);
    let other = dir.path().join("other");
    make_file(&other, 10, 5000);
    let report = cp_report(&[], &other, &target);
    assert_eq!(report["resumed_bytes"], 0);
    assert_same(&other, &target);
    assert_eq!(names(dir.path()), ["other", "source", "target"]);
}

#[test]
fn a_signal_in_a_tree_leaves_whole_files_only() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::create_dir(&source).unwrap();
    for seed in 0..8 {
        make_file(&source.join(seed.to_string()), seed, SLOW_BYTES / 4);
    }
    let copy = start_slowly(&["-r"], &source, &target);
    let is_begun = || std::fs::read_dir(&target).is_ok_and(|entries| entries.count() >= 3);
    wait_for("the third file", is_begun);
    let text = assert_ended_by(copy, Signal::INT, 130);
    assert!(text.contains("ended by SIGINT after ") && text.contains(" -uT "), "{text}");
    let copied = names(&target);
    assert!((1..8).contains(&copied.len()), "{copied:?}");
    for name in copied {
        assert_same(&source.join(&name), &target.join(&name));
    }
    // The advice makes one copy, and not a second one in the first.
    cp_well(&["-ruT"], &source, &target);
    assert_eq!(names(&target), names(&source));
}

#[test]
fn the_advice_after_a_signal_is_the_command_that_continues() {
    let dir = dir();
    let [source, made, there, other] =
        ["source", "made", "there", "other"].map(|name| dir.path().join(name));
    for dir in [&source, &there, &other] {
        std::fs::create_dir(dir).unwrap();
    }
    make_file(&source.join("file"), 11, SLOW_BYTES);
    for (option, target, name, advice) in [
        ("--resume", &made, "file", "no file is complete; run the command again with -T to"),
        ("--resume", &there, "source/file", "is unchanged; run the command again to continue"),
        ("-q", &other, "source/file", "--resume would have kept"),
    ] {
        let copy = start_slowly(&["-r", option], &source, target);
        wait_for_record(&target.join(name));
        let text = assert_ended_by(copy, Signal::INT, 130);
        assert!(text.contains(advice), "{text}");
    }
}

/// The sources are walked through for objects before the first of them is copied; these many names
/// take minutes.
#[test]
fn a_signal_ends_the_walk_before_the_copy() {
    let dir = dir();
    let [source, target] = ["source", "target"].map(|name| dir.path().join(name));
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("0"), "content").unwrap();
    for number in 1..2000 {
        std::fs::hard_link(source.join("0"), source.join(number.to_string())).unwrap();
    }
    std::fs::create_dir(&target).unwrap();
    let mut command = dio();
    command.args(["-r", "--striped"]).args(vec![&source; 3000]).arg(&target);
    let mut copy = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    let status = format!("/proc/{}/status", copy.id());
    wait_for("the signals to be caught", || {
        let status = std::fs::read_to_string(&status).unwrap();
        let caught = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
        let caught = caught.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        // SIGXFSZ is the last one.
        caught.is_some_and(|mask| mask & (1 << 24) != 0)
    });
    send(&copy, Signal::TERM);
    let sent = Instant::now();
    wait_for("the walk to end", || {
        if sent.elapsed() > Duration::from_secs(20) {
            copy.kill().unwrap();
        }
        copy.try_wait().unwrap().is_some()
    });
    let output = copy.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(143), "{}", message(&output));
    assert_eq!(names(&target).len(), 0);
}

#[test]
fn an_ignored_signal_stays_ignored() {
    let (_dir, source, target) = prepared(11, SLOW_BYTES / 4);
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_dio"), "cp"]);
    let copy = command.args(SLOWLY).args([&source, &target]).spawn().unwrap();
    wait_for_start(&target, SLOW_BYTES / 4);
    send(&copy, Signal::HUP);
    let output = copy.wait_with_output().unwrap();
    assert!(output.status.success());
    assert_same(&source, &target);
}

/// The target has the old content, or all of the new one.
fn assert_old_or_new(source: &Path, target: &Path) {
    if target.metadata().unwrap().size() == u64::try_from(OLD.len()).unwrap() {
        assert_eq!(std::fs::read(target).unwrap(), OLD);
    } else {
        assert_same(source, target);
    }
}

/// The copy is killed when it flushes its content: by then it must not belong to the source's
/// owner, or no later run would take it for a temporary.
#[test]
fn kill_9_at_the_end_of_a_copy_that_changes_the_owner_leaves_what_resume_goes_on_from() {
    if !is_root() {
        return skip(Capability::Root, "only root gives files away");
    }
    let size = 80 << 20;
    for options in [&["-a"][..], &["-a", "--resume"]] {
        let (dir, source, target) = prepared(13, size);
        std::os::unix::fs::chown(&source, Some(65_534), Some(65_534)).unwrap();
        let mut strace = std::process::Command::new("strace");
        strace.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync"]);
        strace.args(["-e", "inject=fsync:signal=KILL:when=1", env!("CARGO_BIN_EXE_dio"), "cp"]);
        strace.args(["--backend=threads", "--reflink=never"]).args(options);
        let killed = match strace.args([&source, &target]).output() {
            Ok(killed) => killed,
            Err(error) => return skip(Capability::Strace, error),
        };
        assert_eq!(killed.status.signal(), Some(9), "{}", message(&killed));
        assert_eq!(std::fs::read(&target).unwrap(), OLD);
        assert_eq!(names(dir.path()), [".target.dio-part", "source", "target"]);
        let report = cp_report(&["-a", "--resume"], &source, &target);
        assert!(report["resumed_bytes"].as_u64().unwrap() > 0, "{report}");
        assert_same(&source, &target);
        assert_eq!(target.metadata().unwrap().uid(), 65_534);
        assert_eq!(names(dir.path()), ["source", "target"]);
    }
}

#[test]
fn kill_9_at_any_moment_leaves_the_old_or_the_new_target_and_resume_completes_it() {
    let size = 96 << 20;
    let (dir, source, target) = prepared(12, size);
    let started = Instant::now();
    let plain = ["--bs=256k", "--iodepth=4", "--reflink=never"];
    let options = [&plain[..], &["--resume"]].concat();
    cp_well(&options, &source, &target);
    let whole = started.elapsed();
    let mut numbers = Numbers::new(seed());
    let is_soak = std::env::var_os("DIOPTER_SOAK").is_some();
    let (mut completed, mut resumed) = (0, 0);
    let moments = if is_soak { MOMENTS_OF_A_SOAK } else { MOMENTS };
    for turn in 0..moments {
        std::fs::remove_file(&target).unwrap();
        std::fs::write(&target, OLD).unwrap();
        // A little longer than the whole copy, so that its end is met too.
        let nanoseconds = u64::try_from(whole.as_nanos()).unwrap() * 11 / 10;
        let moment = Duration::from_nanos(numbers.next() % nanoseconds);
        // A run without --resume can be resumed as well.
        let first = if turn % 2 == 0 { &options[..] } else { &plain };
        let mut copy = dio().args(first).args([&source, &target]).spawn().unwrap();
        let begun = Instant::now();
        wait_for("the moment", || begun.elapsed() >= moment);
        copy.kill().unwrap();
        copy.wait().unwrap();
        assert_old_or_new(&source, &target);
        let is_new = target.metadata().unwrap().size() == size;
        completed += u64::from(is_new);
        let report = cp_report(&options, &source, &target);
        resumed += u64::from(report["resumed_bytes"].as_u64().unwrap() > 0);
        assert_same(&source, &target);
        assert_eq!(names(dir.path()), ["source", "target"]);
    }
    print_line(&format!("killed: {completed} had completed, {resumed} were resumed"));
    print_line(&format!("TRIED cp-kills: {moments} kills"));
}
