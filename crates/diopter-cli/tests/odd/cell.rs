//! One cell: a way to bytes, on a file system that replies oddly. It has no test.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use diopter_testkit::odd_fuse::{Odd, OddMount};

use crate::cp_support::{content, dir};
use crate::doors::Door;

/// No cell takes longer.
const LIMIT: Duration = Duration::from_secs(10);

/// Bytes of the file: neither blocks nor pages.
pub const BYTES: usize = 300_077;

/// Content of the target before.
pub const OLD: &[u8] = b"what was here before";

pub struct Cell {
    pub door: Door,
    pub odd: Vec<Odd>,
    pub backend: &'static str,
}

/// How a cell ended.
pub enum Outcome {
    /// The right bytes, and status 0.
    Right,
    /// An error that names what failed.
    Refused,
    Wrong(String),
}

impl Outcome {
    pub fn name(&self) -> &'static str {
        match self {
            Outcome::Right => "right",
            Outcome::Refused => "refused",
            Outcome::Wrong(_) => "wrong",
        }
    }
}

/// The places of a cell.
pub struct Ground {
    pub odd: OddMount,
    pub local: tempfile::TempDir,
    pub bytes: Vec<u8>,
    pub backend: &'static str,
}

impl Ground {
    pub fn far(&self, name: &str) -> PathBuf {
        self.odd.path().join(name)
    }

    pub fn near(&self, name: &str) -> PathBuf {
        self.local.path().join(name)
    }

    /// Returns a command of `dio` with the backend of the cell.
    pub fn dio(&self, command: &str) -> Command {
        let mut dio = Command::new(env!("CARGO_BIN_EXE_dio"));
        dio.arg(command).env("DIOPTER_BACKEND", self.backend);
        dio
    }
}

/// The end of a command, and its output.
pub struct Ended {
    /// `None` after a signal.
    pub status: Option<i32>,
    pub stdout: Vec<u8>,
    pub stderr: String,
}

/// Runs a command. After [`LIMIT`] its file system and its process are ended.
pub fn run(command: &mut Command, ground: &Ground) -> Result<Ended, String> {
    let piped = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = piped.spawn().map_err(|error| error.to_string())?;
    let pid = rustix::process::Pid::from_child(&child);
    let (sender, receiver) = channel();
    let waits = std::thread::spawn(move || sender.send(child.wait_with_output()));
    let ended = match receiver.recv_timeout(LIMIT) {
        Ok(ended) => ended.map_err(|error| error.to_string()),
        Err(RecvTimeoutError::Timeout) => {
            ground.odd.abort().unwrap_or_else(|message| eprintln!("{message}"));
            // It ended between the limit and now.
            rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap_or(());
            Err(format!("no end after {LIMIT:?}"))
        }
        Err(RecvTimeoutError::Disconnected) => Err("its thread is gone".to_owned()),
    };
    let sent = waits.join().map_err(|_| "its thread panicked".to_owned())?;
    let output = ended?;
    drop(sent);
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    Ok(Ended { status: output.status.code(), stdout: output.stdout, stderr })
}

impl Cell {
    pub fn run(&self) -> Outcome {
        let odd = OddMount::new(&self.odd).expect("it was mounted before");
        let ground = Ground { odd, local: dir(), bytes: content(7, BYTES), backend: self.backend };
        std::fs::write(ground.near("source"), &ground.bytes).expect("room");
        ground.odd.put("source", &ground.bytes);
        match self.door.run(&ground) {
            Ok(true) => Outcome::Right,
            Ok(false) => Outcome::Refused,
            Err(why) => Outcome::Wrong(why),
        }
    }
}

/// Returns true for status 0 and false for an error that is one: its status says so, and it
/// names something.
///
/// # Errors
/// Neither.
pub fn is_done(ended: &Ended) -> Result<bool, String> {
    match ended.status {
        Some(0) => Ok(true),
        Some(1 | 2) if ended.stderr.trim().len() > 10 => Ok(false),
        Some(1 | 2) => Err(format!("an error without a message: {:?}", ended.stderr)),
        Some(status) => Err(format!("status {status}: {}", ended.stderr)),
        None => Err(format!("ended by a signal: {}", ended.stderr)),
    }
}

/// Returns the bytes that a plain program reads, which makes interrupted calls again; `None` if it
/// cannot read them.
pub fn read_plainly(path: &Path) -> Option<Vec<u8>> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::File::open(path).ok()?;
    let mut all = Vec::new();
    let mut piece = vec![0; 64 << 10];
    let mut refusals = 0;
    loop {
        match file.read_at(&mut piece, u64::try_from(all.len()).expect("64-bit")) {
            Ok(0) => return Some(all),
            Ok(moved) => all.extend_from_slice(&piece[..moved]),
            Err(_) if refusals < 100 => refusals += 1,
            Err(_) => return None,
        }
    }
}

/// Returns the names in a directory, in order.
pub fn names(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).expect("a directory");
    let name = |entry: std::io::Result<std::fs::DirEntry>| {
        entry.expect("an entry").file_name().to_string_lossy().into_owned()
    };
    let mut names: Vec<String> = entries.map(name).collect();
    names.sort();
    names
}
