//! One copy by one tool: how it is started, timed and flushed, and what it leaves in the cache.

use crate::repo;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// A way to copy a file.
pub struct Tool {
    pub name: &'static str,
    kind: Kind,
}

enum Kind {
    Dio,
    Cp,
    Dd { block: &'static str },
}

/// Every tool's time ends with its target flushed: by dd itself, for the others by `sync --data`.
/// That costs dio and cp the start of one process, about 1 ms.
pub const TOOLS: [Tool; 5] = [
    Tool { name: "dio cp", kind: Kind::Dio },
    Tool { name: "cp --reflink=never; sync", kind: Kind::Cp },
    Tool { name: "dd direct bs=1M", kind: Kind::Dd { block: "bs=1M" } },
    Tool { name: "dd direct bs=4M", kind: Kind::Dd { block: "bs=4M" } },
    Tool { name: "dd direct bs=16M", kind: Kind::Dd { block: "bs=16M" } },
];

/// The two files and the program that is shown.
pub struct Files {
    pub source: PathBuf,
    pub target: PathBuf,
    pub dio: PathBuf,
    size: u64,
}

impl Tool {
    /// Copies the source to the target and says how long that took.
    pub fn run(&self, files: &Files) -> Result<Duration, String> {
        let mut commands = self.commands(files);
        let started = Instant::now();
        for command in &mut commands {
            repo::output_of(command)?;
        }
        Ok(started.elapsed())
    }

    fn commands(&self, files: &Files) -> Vec<Command> {
        let copy = |program: &Path, argument: &str| {
            let mut command = Command::new(program);
            command.arg(argument).arg(&files.source).arg(&files.target);
            command
        };
        let mut flush = Command::new("sync");
        flush.arg("--data").arg(&files.target);
        match self.kind {
            Kind::Dio => vec![copy(&files.dio, "cp"), flush],
            Kind::Cp => vec![copy(Path::new("cp"), "--reflink=never"), flush],
            Kind::Dd { block } => {
                let mut dd = Command::new("dd");
                dd.arg(operand("if=", &files.source)).arg(operand("of=", &files.target));
                dd.args(["iflag=direct", "oflag=direct", block, "conv=fsync", "status=none"]);
                vec![dd]
            }
        }
    }
}

impl Files {
    /// The files' names in the scratch directory.
    pub fn below(scratch: &Path, dio: PathBuf, size: u64) -> Files {
        Files { source: scratch.join("source"), target: scratch.join("target"), dio, size }
    }

    /// Makes the next copy start from the disk: the source out of the page cache, and nothing
    /// left to write from whatever ran before.
    pub fn make_cold(&self) -> Result<(), String> {
        let mut dd = Command::new("dd");
        dd.arg(operand("of=", &self.source));
        dd.args(["oflag=nocache", "conv=notrunc,fdatasync", "count=0", "status=none"]);
        repo::output_of(&mut dd)?;
        repo::output_of(&mut Command::new("sync")).map(drop)
    }

    /// Removes what the copy before has left, if it left anything.
    pub fn remove_target(&self) -> Result<(), String> {
        match std::fs::remove_file(&self.target) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(format!("{}: {error}", self.target.display()))
            }
            _ => Ok(()),
        }
    }

    /// Bytes of source and target that are in the page cache; none if `fincore` is not here.
    pub fn cached_bytes(&self) -> Option<u64> {
        let fincore = repo::tool("fincore")?;
        let cached = |file: &Path| {
            let mut command = Command::new(&fincore);
            command.args(["--bytes", "--noheadings", "--output", "RES"]).arg(file);
            let reply = repo::output_of(&mut command).ok()?;
            // Some versions print nothing for a file without a cached page.
            if reply.is_empty() { Some(0) } else { reply.trim().parse::<u64>().ok() }
        };
        Some(cached(&self.source)? + cached(&self.target)?)
    }

    /// Fails unless the target is the source, byte for byte.
    pub fn compare(&self) -> Result<(), String> {
        let status = std::fs::metadata(&self.target);
        let status = status.map_err(|error| format!("{}: {error}", self.target.display()))?;
        if status.len() != self.size {
            return Err(format!("the copy has {} bytes, not {}", status.len(), self.size));
        }
        repo::output_of(Command::new("cmp").arg(&self.source).arg(&self.target)).map(drop)
    }
}

fn operand(name: &str, file: &Path) -> std::ffi::OsString {
    let mut operand = std::ffi::OsString::from(name);
    operand.push(file);
    operand
}
