//! Our sides: this program again as a child that runs one loop and prints what it moved, as fio
//! does. `side KIND key=value...`; each loop warms up, then measures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, Timespec, clock_gettime};
use serde_json::{Value, json};

use crate::side::{Figures, Side};
use crate::{loops, paired, scale};

/// Before anything is measured: as long as fio's ramp.
pub const WARM_UP: Duration = Duration::from_millis(200);

/// Settings of a child process.
pub struct Job(BTreeMap<String, String>);

impl Job {
    pub fn text(&self, key: &str) -> Result<&str, String> {
        self.0.get(key).map(String::as_str).ok_or_else(|| format!("{key}=VALUE is missing"))
    }

    pub fn number<T: FromStr>(&self, key: &str) -> Result<T, String> {
        let text = self.text(key)?;
        text.parse().map_err(|_| format!("{key}={text} is not a number"))
    }

    pub fn is(&self, key: &str) -> bool {
        self.0.get(key).is_some_and(|value| value == "yes")
    }

    pub fn file(&self) -> Result<PathBuf, String> {
        self.text("file").map(PathBuf::from)
    }

    pub fn time(&self) -> Result<Duration, String> {
        self.number("millis").map(Duration::from_millis)
    }
}

/// A side that is this program; `settings` are `key=value`.
pub fn side(name: &'static str, kind: &str, settings: &[(&str, String)]) -> Result<Side, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut arguments = vec!["side".to_owned(), kind.to_owned()];
    arguments.extend(settings.iter().map(|(key, value)| format!("{key}={value}")));
    Ok(Side { name, program, arguments, read })
}

/// A path as a setting.
pub fn file(path: &Path) -> (&'static str, String) {
    ("file", path.display().to_string())
}

fn read(output: &str) -> Result<Figures, String> {
    let output: Value = serde_json::from_str(output)
        .map_err(|error| format!("a side's result ({error}): {output}"))?;
    let number = |name| {
        let value: &Value = &output[name];
        value.as_f64().ok_or_else(|| format!("a side's result has no number `{name}`"))
    };
    Ok(Figures { ios: number("ios")?, seconds: number("seconds")?, cpu: number("cpu")? })
}

/// The child: runs its job and prints the result.
pub fn main(arguments: &[String]) -> Result<(), String> {
    let Some((kind, settings)) = arguments.split_first() else {
        return Err("side KIND key=value...".to_owned());
    };
    let pairs = settings.iter().filter_map(|setting| setting.split_once('='));
    let job = Job(pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect());
    let output = match kind.as_str() {
        "engine" => loops::engine(&job)?,
        "bare" => loops::bare(&job)?,
        "calls" => loops::calls(&job)?,
        "blocking" => paired::blocking(&job)?,
        #[cfg(feature = "tokio")]
        "tasks" => crate::tasks::tasks(&job)?,
        "null" => paired::null(&job)?,
        "scale" => scale::scale(&job)?,
        "processes" => scale::processes(&job)?,
        _ => return Err(format!("no side is called {kind}")),
    };
    println!("{output}");
    Ok(())
}

/// Measures `work`, which returns how many transfers it did.
pub fn measure(work: impl FnOnce() -> Result<u64, String>) -> Result<Value, String> {
    let (cpu, started) = (process_time(), Instant::now());
    let ios = work()?;
    let seconds = started.elapsed().as_secs_f64();
    let cpu = (process_time() - cpu).as_secs_f64();
    Ok(json!({ "ios": ios, "seconds": seconds, "cpu": cpu }))
}

/// User and system time of all threads of this process, io_uring's workers included.
fn process_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    let seconds = u64::try_from(tv_sec).expect("a process's time is not negative");
    Duration::new(seconds, u32::try_from(tv_nsec).expect("less than a second"))
}
