//! Guests that do not do what they should, played by scripts in the emulator's place.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use diopter_lab::{BootError, BootOptions, Console, Initramfs, Kernel, Machine};

/// An emulator that does `body`, with `$console` and `$results` as files.
fn emulator(dir: &Path, body: &str) -> Machine {
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--version) echo 'QEMU emulator version 7.2'; exit;; esac\n\
         for word; do case $word in\n\
         file:*) [ \"$console\" ] && results=${{word#file:}} || console=${{word#file:}};;\n\
         esac; done\n{body}\n"
    );
    let path = dir.join("qemu");
    diopter_testkit::files::script(&path, &script);
    // The emulator has no root, and these scripts write into the directory.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    Machine::at(&path).unwrap()
}

fn boot(dir: &Path, body: &str, options: &BootOptions) -> Result<Console, BootError> {
    let image = dir.join("image");
    fs::write(&image, b"an image").unwrap();
    let image_digest = blake3::hash(b"an image").to_hex().to_string();
    let kernel = Kernel { image, image_digest, ..Kernel::default() };
    emulator(dir, body).boot(&kernel, &Initramfs::default(), "true", options)
}

fn boot_at_once(body: &str) -> Result<Console, BootError> {
    let dir = tempfile::tempdir().unwrap();
    boot(dir.path(), body, &BootOptions::default())
}

#[test]
fn a_guest_that_comes_to_its_end_gives_its_results_and_status() {
    let reported =
        boot_at_once("printf 'a\\r\\nb\\n' >$results; echo 'lab: end 3' >$console").unwrap();
    assert_eq!((reported.results.as_str(), reported.status), ("a\nb\n", 3));
}

#[test]
fn a_panic_is_reported_with_the_last_lines() {
    let body = "echo first >$console; echo 'Kernel panic - not syncing: VFS' >>$console";
    match boot_at_once(body) {
        Err(BootError::Panic(lines)) => assert!(lines.ends_with("panic - not syncing: VFS")),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_guest_that_says_nothing_of_its_end_gives_no_results() {
    assert!(matches!(boot_at_once("echo x >$results"), Err(BootError::Silent(_))));
}

#[test]
fn a_guest_that_prints_without_end_is_ended() {
    for output in ["console", "results"] {
        let body = format!("echo begin >$console; exec cat /dev/zero >${output}");
        match boot_at_once(&body) {
            Err(error @ BootError::Flood(_)) => {
                assert!(error.to_string().contains("printed too much"), "{error}");
            }
            other => panic!("{output}: {other:?}"),
        }
    }
}

#[test]
fn what_the_emulator_complains_of_is_reported() {
    let reported = boot_at_once("echo 'no such machine' >&2; exit 1").unwrap_err().to_string();
    assert!(reported.starts_with("run ") && reported.ends_with("no such machine"), "{reported}");
}

#[test]
fn a_guest_that_hangs_is_ended_at_its_limit_with_its_emulator() {
    let dir = tempfile::tempdir().unwrap();
    let pid = dir.path().join("pid");
    let limit = Duration::from_millis(300);
    let options = BootOptions { limit, ..BootOptions::default() };
    let body = format!("echo waiting >$console; echo $$ >{}; exec sleep 1000", pid.display());
    match boot(dir.path(), &body, &options) {
        Err(error @ BootError::Hang(..)) => {
            assert!(error.last_lines().len() <= "waiting".len());
            assert!(error.to_string().contains("more time"), "{error}");
        }
        other => panic!("{other:?}"),
    }
    // On a busy machine the limit may come before the script has written its number.
    let pid = fs::read_to_string(&pid).unwrap_or_default();
    if let Ok(pid) = pid.trim().parse::<u32>() {
        assert!(!Path::new("/proc").join(pid.to_string()).exists());
    }
}

#[test]
fn a_guest_that_prints_nothing_for_too_long_is_ended() {
    let dir = tempfile::tempdir().unwrap();
    let quiet_limit = Some(Duration::from_millis(300));
    let options = BootOptions { quiet_limit, tail_lines: 1, ..BootOptions::default() };
    match boot(dir.path(), "echo first >$console; exec sleep 1000", &options) {
        Err(error @ BootError::Quiet(..)) => {
            assert!(["", "first"].contains(&error.last_lines()), "{}", error.last_lines());
            assert!(error.to_string().contains("printed nothing"), "{error}");
        }
        other => panic!("{other:?}"),
    }
}

/// One that prints is waited for, longer than it may be quiet; an error has as many of its lines as
/// were asked for.
#[test]
fn a_guest_that_prints_again_and_again_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let (quiet_limit, tail_lines) = (Some(Duration::from_secs(3)), 2);
    let options = BootOptions { quiet_limit, tail_lines, ..BootOptions::default() };
    let body = "for line in 1 2 3 4 5 6 7 8; do echo $line >>$console; sleep 0.5; done";
    match boot(dir.path(), body, &options) {
        Err(BootError::Silent(lines)) => assert_eq!(lines, "7\n8"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_guest_is_ended_when_the_caller_asks_to_stop() {
    let dir = tempfile::tempdir().unwrap();
    let started = dir.path().join("started");
    rustix_fifo(&started);
    let stop = Arc::new(AtomicBool::new(false));
    let options = BootOptions { stop: Some(Arc::clone(&stop)), ..BootOptions::default() };
    let body = format!("echo >{}; exec sleep 1000", started.display());
    std::thread::scope(|scope| {
        scope.spawn(|| {
            fs::read(&started).unwrap();
            stop.store(true, Ordering::Relaxed);
        });
        assert!(matches!(boot(dir.path(), &body, &options), Err(BootError::Stopped)));
    });
}

fn rustix_fifo(path: &Path) {
    let made = std::process::Command::new("mkfifo").args(["-m", "666"]).arg(path).status().unwrap();
    assert!(made.success());
}

#[test]
fn an_emulator_that_is_not_there_is_reported() {
    let message = Machine::at(Path::new("/nonexistent/qemu")).unwrap_err().to_string();
    assert!(message.starts_with("start /nonexistent/qemu: No such file"), "{message}");
    let message = BootError::NoQemu.to_string();
    assert!(message.contains("install it (Debian: qemu-system-x86"), "{message}");
}

#[test]
fn the_emulator_has_no_root_and_finds_kernel_and_initramfs_by_descriptor() {
    let body = "while [ \"$1\" ]; do [ $1 = -kernel ] && cat $2 >$results; shift; done\n\
        id -u >>$results; grep NoNewPrivs /proc/self/status >>$results\n\
        echo 'lab: end 0' >$console";
    let reported = boot_at_once(body).unwrap().results;
    let user = rustix_user();
    assert_eq!(reported, format!("an image{user}\nNoNewPrivs:\t1\n"));
}

fn rustix_user() -> String {
    let output = std::process::Command::new("id").arg("-u").output().unwrap();
    let user = String::from_utf8(output.stdout).unwrap().trim().to_owned();
    if user == "0" { "65534".to_owned() } else { user }
}

#[test]
fn an_image_that_is_not_what_was_fetched_is_not_booted() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("vmlinuz");
    fs::write(&image, b"another image").unwrap();
    let digest = blake3::hash(b"an image").to_hex().to_string();
    let kernel = Kernel { image, image_digest: digest, ..Kernel::default() };
    let machine = emulator(dir.path(), "echo 'lab: end 0' >$console");
    let booted = machine.boot(&kernel, &Initramfs::default(), "true", &BootOptions::default());
    let message = booted.unwrap_err().to_string();
    assert!(message.contains("not what was fetched"), "{message}");
    fs::write(&kernel.image, b"an image").unwrap();
    machine.boot(&kernel, &Initramfs::default(), "true", &BootOptions::default()).unwrap();
}
