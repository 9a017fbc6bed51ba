//! Other processes of a test: this program again, with variables that say what to do. The test
//! `child` does nothing without them.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use diopter::{BackendKind, EngineOptions, File, use_for_this_thread};

use super::row::Row;

/// Name of the variable with a child's role.
const ROLE: &str = "DIOPTER_CHILD_ROLE";
const FILE: &str = "DIOPTER_CHILD_FILE";
const BACKEND: &str = "DIOPTER_CHILD_BACKEND";

/// Prefix of each line that a child prints, between the lines of the test harness.
const MARK: &str = "child:";

/// A running child. Killed with its owner.
pub struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

/// Starts this program as a child with a role.
pub fn start(row: &Row, role: &str, path: &Path) -> Running {
    let program = std::env::current_exe().unwrap();
    let mut child = Command::new(program)
        .args(["--exact", "kernel::child", "--nocapture", "--test-threads", "1"])
        .env(ROLE, role)
        .env(FILE, path)
        .env(BACKEND, row.backend.name())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = BufReader::new(child.stdout.take().expect("it is piped"));
    Running { child, stdout }
}

impl Running {
    /// The next thing that the child says; `None` after its end.
    pub fn next(&mut self) -> Option<String> {
        loop {
            let mut line = String::new();
            if self.stdout.read_line(&mut line).unwrap() == 0 {
                return None;
            }
            // The harness prints the name of a test without a line's end.
            if let Some((_, text)) = line.split_once(MARK)
                && text.ends_with('\n')
            {
                return Some(text.trim().to_owned());
            }
        }
    }

    /// SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
    }

    /// Waits for the child's end; whether it succeeded.
    pub fn succeeded(mut self) -> bool {
        while self.next().is_some() {}
        self.child.wait().unwrap().success()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may be gone already.
        self.child.kill().unwrap_or(());
        self.child.wait().map_or_else(|error| eprintln!("{error}"), |_| ());
    }
}

/// Says something to the parent.
pub fn say(what: impl std::fmt::Display) {
    println!("{MARK}{what}");
}

/// In a child: its role and its file, with the backend chosen.
pub fn role() -> Option<(String, PathBuf)> {
    let role = std::env::var(ROLE).ok()?;
    let backend: BackendKind = std::env::var(BACKEND).ok()?.parse().ok()?;
    use_for_this_thread(EngineOptions { backend, checked: true, ..EngineOptions::DEFAULT });
    Some((role, PathBuf::from(std::env::var_os(FILE)?)))
}

/// The file of a child, open for everything, with the blocks locked if other processes write too.
pub fn open(path: &Path, shared_writers: bool) -> File {
    let mut options = super::row::both_ways();
    options.shared_writers(shared_writers).open(path).unwrap()
}
