//! Names and files of another user, where root runs `dio`: none of them decides which file is
//! written, which configuration is read, and which library is loaded.

#[path = "names/bench.rs"]
mod bench;
#[path = "names/cluster.rs"]
mod cluster;
#[path = "names/inputs.rs"]
mod inputs;
#[path = "names/library.rs"]
mod library;
#[path = "names/outputs.rs"]
mod outputs;

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, lchown};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use diopter_testkit::env::{Capability, is_root, skip};
use diopter_testkit::files::dir;

/// The other user, who has no account.
const OTHER: u32 = 54_321;

/// Longest run of a command that waits for nothing.
const PATIENCE: Duration = Duration::from_secs(60);

/// A directory of root's with a directory of the other user.
struct Ground {
    root: tempfile::TempDir,
    /// Belongs to the other user.
    open: PathBuf,
}

/// Returns a ground; skips without root.
fn ground() -> Option<Ground> {
    if !is_root() {
        skip(Capability::Root, "files are another user's");
        return None;
    }
    let root = dir();
    set(root.path(), 0o755);
    let open = root.path().join("open");
    fs::create_dir(&open).unwrap();
    give(&open);
    Some(Ground { root, open })
}

impl Ground {
    /// Makes a file of root's, which no other user may read.
    fn secret(&self, name: &str) -> PathBuf {
        let path = self.root.path().join(name);
        fs::write(&path, vec![b'R'; 4 << 20]).unwrap();
        set(&path, 0o600);
        path
    }

    /// Makes a file of the other user.
    fn theirs(&self, name: &str, content: impl AsRef<[u8]>) -> PathBuf {
        let path = self.open.join(name);
        fs::write(&path, content).unwrap();
        give(&path);
        path
    }
}

fn set(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Makes a name the other user's.
fn give(path: &Path) {
    lchown(path, Some(OTHER), Some(OTHER)).unwrap();
}

fn dio(within: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.current_dir(within).env_remove("DIOPTER_PRELOAD").stdin(Stdio::null());
    command
}

/// Runs to the end; kills and fails for a command that does not end.
fn run(command: &mut Command) -> (Option<i32>, String) {
    let output = ended(command);
    (output.status.code(), String::from_utf8(output.stderr).unwrap())
}

fn ended(command: &mut Command) -> Output {
    let spawned = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let process = rustix::process::Pid::from_child(&spawned);
    let (done, ended) = std::sync::mpsc::channel::<()>();
    let killer = std::thread::spawn(move || {
        if ended.recv_timeout(PATIENCE) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            rustix::process::kill_process(process, rustix::process::Signal::KILL).unwrap();
        }
    });
    let began = Instant::now();
    let output = spawned.wait_with_output().unwrap();
    done.send(()).unwrap_or(());
    killer.join().unwrap();
    assert_ne!(output.status.signal(), Some(9), "{command:?} ended after {:?}", began.elapsed());
    output
}

fn fifo(path: &Path) {
    let made = Command::new("mkfifo").arg(path).status().unwrap();
    assert!(made.success());
}

/// Makes a library without a function, which ld.so loads; skips without a compiler.
fn library(within: &Path) -> Option<PathBuf> {
    let path = within.join("empty.so");
    let made =
        Command::new("cc").args(["-shared", "-x", "c", "/dev/null", "-o"]).arg(&path).status();
    if made.is_ok_and(|status| status.success()) {
        return Some(path);
    }
    skip(Capability::Cc, "cc does not make a library");
    None
}
