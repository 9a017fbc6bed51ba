//! `dio bench` of root on names of another user: job files, and targets that are swapped.

use super::*;

use std::collections::BTreeSet;
use std::os::unix::fs::symlink;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use diopter_testkit::machine::{self, FileSystem, Loop, Mount};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// Exchanges of two names while a run goes on, at least.
const SWAPS_MIN: u64 = 100;

fn bench(ground: &Ground, words: &[&str]) -> (Option<i32>, String) {
    run(dio(ground.root.path()).arg("bench").args(words).args(["--quiet", "--json-out=r.json"]))
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A job that overwrites a file.
fn job_on(path: &Path) -> String {
    format!("[x]\nfilename={}\nrw=write\nbs=64k\nsize=1m\ndirect=1\n", path.display())
}

#[test]
fn content_makes_no_job_file() {
    let Some(ground) = ground() else { return };
    let secret = ground.secret("root.img");
    let before = fs::read(&secret).unwrap();
    let table = ground.theirs("table.ibd", job_on(&secret));
    let words = ["--overwrite", text(&table), "--rw=randwrite", "--size=1M", "--rounds=1"];
    let (status, message) = bench(&ground, &words);
    assert_eq!(status, Some(2), "{message}");
    assert!(message.contains(&format!("write --job {}", table.display())), "{message}");
    // Larger than a job file, or with other bytes, it is the target that was named.
    let mut data = job_on(&secret).into_bytes();
    data.resize(4 << 20, 0);
    let table = ground.theirs("large.ibd", &data);
    let words = [
        "--overwrite",
        text(&table),
        "--rw=randwrite",
        "--size=1M",
        "--rounds=1",
        "--runtime=50ms",
    ];
    assert_eq!(bench(&ground, &words), (Some(0), String::new()));
    assert_ne!(fs::read(&table).unwrap(), data);
    assert_eq!(fs::read(&secret).unwrap(), before);
}

#[test]
fn a_job_file_of_another_user_is_refused_by_each_of_its_names() {
    let Some(ground) = ground() else { return };
    let secret = ground.secret("root.img");
    let theirs = ground.theirs("job.fio", job_on(&secret).replace("rw=write", "rw=read"));
    let shared = ground.root.path().join("shared.fio");
    fs::copy(&theirs, &shared).unwrap();
    set(&shared, 0o666);
    for (path, why) in
        [(&theirs, "belongs to user 54321"), (&shared, "other users may write to it")]
    {
        let job = format!("--job={}", path.display());
        for words in [&[text(path)][..], &[&job], &[&job, text(ground.root.path())]] {
            let (status, message) = bench(&ground, words);
            assert_eq!(status, Some(2), "{words:?}: {message}");
            assert!(message.contains(why), "{words:?}: {message}");
        }
    }
    set(&shared, 0o644);
    let words = [text(&shared), "--rounds=1", "--warmup=1ms"];
    assert_eq!(bench(&ground, &words), (Some(0), String::new()), "then it is root's");
    let include = ground.root.path().join("include.fio");
    fs::write(&include, format!("include {}\n[a]\n", theirs.display())).unwrap();
    let (status, message) = bench(&ground, &[text(&include)]);
    assert_eq!(status, Some(2), "{message}");
    assert!(message.contains("include.fio:1: include:"), "{message}");
    assert!(
        message.contains("belongs to user 54321") && !message.contains("filename"),
        "{message}"
    );
}

#[test]
fn overwriting_is_for_names_of_the_command_line() {
    let Some(ground) = ground() else { return };
    let secret = ground.secret("root.img");
    let before = fs::read(&secret).unwrap();
    let job = ground.root.path().join("job.fio");
    fs::write(&job, job_on(&secret)).unwrap();
    set(&job, 0o644);
    let (status, message) = bench(&ground, &["--overwrite", text(&job), "--rounds=1"]);
    assert_eq!(status, Some(2), "{message}");
    assert!(message.contains("name it on the command line with --overwrite"), "{message}");
    assert_eq!(fs::read(&secret).unwrap(), before);
    let words = ["--overwrite", "--job", text(&job), text(&secret), "--rounds=1", "--warmup=1ms"];
    assert_eq!(bench(&ground, &words), (Some(0), String::new()));
    assert_ne!(fs::read(&secret).unwrap(), before);
}

#[test]
fn an_include_opens_no_device() {
    let Some(ground) = ground() else { return };
    if Command::new("strace").arg("-V").output().is_err() {
        return skip(Capability::Strace, "strace is not installed");
    }
    let job = ground.root.path().join("a.fio");
    fs::write(&job, "include /dev/full\n[x]\nrw=read\nsize=1m\n").unwrap();
    let log = ground.root.path().join("strace");
    let mut command = Command::new("strace");
    command.args(["-f", "-e", "trace=open,openat,openat2", "-o"]).arg(&log);
    command.arg(env!("CARGO_BIN_EXE_dio")).arg("bench").arg(&job).stdin(Stdio::null());
    let (status, message) = run(command.current_dir(ground.root.path()));
    assert_eq!(status, Some(2), "{message}");
    assert!(message.contains("/dev/full: not a regular file"), "{message}");
    let calls = fs::read_to_string(&log).unwrap();
    let opened: Vec<&str> =
        calls.lines().filter(|line| line.contains("full\"") && !line.contains("O_PATH")).collect();
    assert!(calls.contains("full\"") && opened.is_empty(), "{opened:?}");
}

/// Exchanges two names as the other user until `stop`.
fn exchange_until(stop: &AtomicBool, swaps: &AtomicU64, [one, other]: [&Path; 2]) {
    // Of this thread alone: its user, and with that its capabilities.
    let (user, group) = (rustix::fs::Uid::from_raw(OTHER), rustix::fs::Gid::from_raw(OTHER));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(group, group, group).unwrap();
    set_thread_res_uid(user, user, user).unwrap();
    while !stop.load(Ordering::Relaxed) {
        if renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok() {
            swaps.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Overwrites a file of the other user, who exchanges it with a link to `victim` meanwhile; returns
/// the exchanges, the runs that were done, and the messages.
fn attacked(ground: &Ground, victim: &Path, with: &[&str]) -> (u64, u32, BTreeSet<String>) {
    let data = ground.theirs("data", vec![0; 4 << 20]);
    let link = ground.open.join("link");
    symlink(victim, &link).unwrap();
    give(&link);
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let (mut done, mut messages) = (0, BTreeSet::new());
    std::thread::scope(|scope| {
        scope.spawn(|| exchange_until(&stop, &swaps, [&data, &link]));
        let began = Instant::now();
        while (swaps.load(Ordering::Relaxed) < SWAPS_MIN || done < 2) && began.elapsed() < PATIENCE
        {
            let words = ["--overwrite", text(&data), "--rw=randwrite", "--size=4M", "--rounds=3"];
            let (status, message) =
                bench(ground, &[&words[..], &["--runtime=50ms", "--warmup=1ms"], with].concat());
            done += u32::from(status == Some(0));
            messages.insert(message);
        }
        stop.store(true, Ordering::Relaxed);
    });
    (swaps.into_inner(), done, messages)
}

#[test]
fn a_target_that_is_swapped_for_a_link_is_the_file_that_was_named() {
    let Some(ground) = ground() else { return };
    let victim = ground.secret("root.img");
    let before = fs::read(&victim).unwrap();
    let (swaps, done, messages) = attacked(&ground, &victim, &[]);
    assert!(fs::read(&victim).unwrap() == before, "written after {swaps} swaps: {messages:?}");
    assert!(swaps >= SWAPS_MIN && done >= 1, "{swaps} swaps, {done} runs: {messages:?}");
    let fine = |it: &String| {
        it.is_empty() || it.contains("leads through the link") || it.contains("was replaced")
    };
    assert!(messages.iter().all(fine), "{messages:?}");
}

#[test]
fn a_mounted_device_behind_a_swapped_name_is_not_written() {
    let Some(ground) = ground() else { return };
    if let Some(why) = machine::loop_missing() {
        return skip(Capability::Loop, why);
    }
    let ext4 = FileSystem::Ext4 { block: 4096, extra: &[] };
    if let Some((capability, why)) = ext4.missing() {
        return skip(capability, why);
    }
    let _alone = machine::alone();
    let device = Loop::new("names-bench", 64 << 20, 512).unwrap();
    let path = device.device().to_owned();
    let mount = Mount::on(device, ext4, "").unwrap();
    fs::write(mount.path().join("file"), b"precious").unwrap();
    rustix::fs::sync();
    let has_fio = Command::new("fio").arg("--version").output().is_ok();
    let with = if has_fio { &["--with=fio:psync"][..] } else { &[] };
    let (swaps, done, messages) = attacked(&ground, &path, with);
    assert!(swaps >= SWAPS_MIN && done >= 1, "{swaps} swaps, {done} runs: {messages:?}");
    let device = mount.unmounted().unwrap();
    let checked = Command::new("e2fsck").args(["-f", "-n"]).arg(device.device()).output().unwrap();
    let log = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(checked.status.success(), "after {swaps} swaps: {log}");
}
