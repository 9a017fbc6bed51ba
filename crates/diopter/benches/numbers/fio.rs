//! fio as a side: its command line, and its result in JSON.

use std::path::Path;

use serde_json::Value;

use crate::machine;
use crate::side::{Figures, Side};

/// The oldest that knows every option used here.
const VERSION_MIN: (u32, u32) = (3, 20);

/// One fio job.
pub struct Job<'a> {
    pub name: &'static str,
    pub engine: &'a str,
    pub depth: u32,
    pub extra: &'static [&'static str],
    pub file: &'a Path,
    pub pattern: &'a Path,
    pub is_write: bool,
    pub millis: u32,
}

/// Its version, as it says it.
pub fn version() -> Result<String, String> {
    let output =
        machine::run("fio", &["--version"]).map_err(|why| format!("no fio here ({why})"))?;
    let version = output.trim().to_owned();
    let mut numbers = version.trim_start_matches("fio-").split('.').map_while(|it| {
        let digits = it.split(|letter: char| !letter.is_ascii_digit()).next()?;
        digits.parse::<u32>().ok()
    });
    let numbers = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    if numbers < VERSION_MIN {
        let (major, minor) = VERSION_MIN;
        return Err(format!("{version} is too old; {major}.{minor} or newer is wanted"));
    }
    Ok(version)
}

impl Job<'_> {
    pub fn side(&self) -> Result<Side, String> {
        version()?;
        let rw = if self.is_write { "randwrite" } else { "randread" };
        let mut arguments: Vec<String> = [
            "--name=numbers",
            "--thread",
            "--direct=1",
            "--bs=4k",
            "--norandommap",
            "--randrepeat=0",
            "--fallocate=none",
            "--time_based",
            "--ramp_time=200ms",
            "--output-format=json",
        ]
        .map(str::to_owned)
        .into();
        arguments.push(format!("--filename={}", self.file.display()));
        arguments.push(format!("--ioengine={}", self.engine));
        arguments.push(format!("--iodepth={}", self.depth));
        arguments.push(format!("--rw={rw}"));
        arguments.push(format!("--runtime={}ms", self.millis));
        arguments.push(format!("--buffer_pattern='{}'", self.pattern.display()));
        arguments.extend(self.extra.iter().map(|extra| (*extra).to_owned()));
        let read = if self.is_write { read_write } else { read_read };
        Ok(Side { name: self.name, program: "fio".into(), arguments, read })
    }
}

fn read_read(output: &str) -> Result<Figures, String> {
    figures(output, "read")
}

fn read_write(output: &str) -> Result<Figures, String> {
    figures(output, "write")
}

fn figures(output: &str, direction: &str) -> Result<Figures, String> {
    // Notes of fio may precede it.
    let start = output.find('{').ok_or_else(|| format!("fio printed no JSON: {output}"))?;
    let output: Value =
        serde_json::from_str(&output[start..]).map_err(|error| format!("fio's JSON: {error}"))?;
    let job = &output["jobs"][0];
    let number = |value: &Value, name: &str| {
        value[name].as_f64().ok_or_else(|| format!("fio's JSON has no number `{name}`"))
    };
    let error = number(job, "error")?;
    if error != 0.0 {
        return Err(format!("fio ended with error {error}"));
    }
    let seconds = number(&job[direction], "runtime")? / 1e3;
    let ios = number(&job[direction], "total_ios")?;
    let cpu = (number(job, "usr_cpu")? + number(job, "sys_cpu")?) / 100.0 * seconds;
    Ok(Figures { ios, seconds, cpu })
}
