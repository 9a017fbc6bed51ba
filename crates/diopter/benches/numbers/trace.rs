//! How many transfers io_uring handed to its workers: the kernel's own tracepoint, counted in a
//! private tracefs instance, for this process and those that it starts.

use std::fs;
use std::path::{Path, PathBuf};

use crate::ground::is_gone;
use crate::machine;

const EVENT: &str = "events/io_uring/io_uring_queue_async_work/enable";

const TRACEFS: &str = "/sys/kernel/tracing";

/// Prefix of an instance's name; the process's id follows.
const PREFIX: &str = "diopter-";

/// Removes the instances of runs that were killed.
pub fn remove_stale() {
    let instances = fs::read_dir(Path::new(TRACEFS).join("instances"));
    for instance in instances.into_iter().flatten().flatten() {
        let name = instance.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        if process.is_some_and(is_gone) {
            fs::remove_dir(instance.path()).unwrap_or_else(|error| eprintln!("{name:?}: {error}"));
        }
    }
}

/// A private instance; removed when dropped.
pub struct Tracer {
    instance: PathBuf,
}

impl Tracer {
    pub fn new() -> Result<Tracer, String> {
        let tracefs = Path::new(TRACEFS);
        if !tracefs.join("instances").exists() {
            // The usual place, left mounted as every tool for traces does.
            machine::run("mount", &["-t", "tracefs", "none", TRACEFS])?;
        }
        let instance = tracefs.join("instances").join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&instance).map_err(|error| format!("{}: {error}", instance.display()))?;
        let tracer = Tracer { instance };
        tracer.write("options/event-fork", "1")?;
        // A process started by one that is watched is watched, and its threads. Without any name in
        // this file it would be every process.
        tracer.write("set_event_pid", &std::process::id().to_string())?;
        tracer.write(EVENT, "1")?;
        Ok(tracer)
    }

    pub fn clear(&self) -> Result<(), String> {
        self.write("trace", "")
    }

    /// Events since it was cleared, those that the buffer had no room for included.
    pub fn count(&self) -> Result<u64, String> {
        let dir = self.instance.join("per_cpu");
        let cores = fs::read_dir(&dir).map_err(|error| error.to_string())?;
        let mut count = 0;
        for core in cores.flatten() {
            let stats = fs::read_to_string(core.path().join("stats"));
            let stats = stats.map_err(|error| format!("{}: {error}", dir.display()))?;
            count += events(&stats);
        }
        Ok(count)
    }

    fn write(&self, name: &str, value: &str) -> Result<(), String> {
        let path = self.instance.join(name);
        fs::write(&path, value).map_err(|error| format!("{}: {error}", path.display()))
    }
}

fn events(stats: &str) -> u64 {
    let field = |line: &str| {
        let (name, value) = line.split_once(':')?;
        let counts = ["entries", "overrun", "dropped events"].contains(&name);
        value.trim().parse::<u64>().ok().filter(|_| counts)
    };
    stats.lines().filter_map(field).sum()
}

impl Drop for Tracer {
    fn drop(&mut self) {
        self.write(EVENT, "0").unwrap_or(());
        if let Err(error) = fs::remove_dir(&self.instance) {
            eprintln!("{} stays: {error}", self.instance.display());
        }
    }
}
