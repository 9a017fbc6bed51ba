//! One cell: a way to bytes, on a file system that replies oddly. It has no test.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use diopter_testkit::matrix::{Fault, Outcome};
use diopter_testkit::odd_fuse::{Odd, OddMount};
use diopter_testkit::watched::{self, Ended};

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

/// True if all was done; false after an error that names what failed.
///
/// # Errors
/// Anything else.
pub type Done = Result<bool, (Fault, String)>;

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

/// Runs a command.
pub fn run(command: &mut Command) -> Ended {
    watched::run(command, LIMIT)
}

impl Cell {
    pub fn run(&self) -> Outcome {
        let odd = OddMount::new(&self.odd).expect("it was mounted before");
        let ground = Ground { odd, local: dir(), bytes: content(7, BYTES), backend: self.backend };
        std::fs::write(ground.near("source"), &ground.bytes).expect("room");
        ground.odd.put("source", &ground.bytes);
        match self.door.run(&ground) {
            Ok(true) => Outcome::Right,
            Ok(false) if self.odd.is_empty() => {
                Outcome::Fault(Fault::Unnamed, "an error where nothing is odd".to_owned())
            }
            Ok(false) => Outcome::Error,
            Err((fault, why)) => Outcome::Fault(fault, why),
        }
    }
}

/// Returns true for status 0, and false for an error that names a file of the cell, or what the
/// request was for.
pub fn is_done(ground: &Ground, ended: &Ended) -> Done {
    let [far, near] = [ground.odd.path(), ground.local.path()].map(|it| it.display().to_string());
    match Outcome::of_end(ended, &[&far, &near, " of bytes ["]) {
        Some(Outcome::Fault(fault, why)) => Err((fault, why)),
        _ => Ok(ended.status.success()),
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
