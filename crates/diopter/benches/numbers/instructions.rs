//! The instructions of a queued read, counted by valgrind's callgrind: the same in every run, on a
//! busy machine as well.

use std::path::Path;
use std::process::{Command, ExitCode};

use crate::null_loop::NullLoop;

/// A queued 4 KiB read of one bio, the loop of its caller included.
const MOST: f64 = 560.0;

/// Runs of different lengths: the difference has neither the start nor the end of the program.
const REQUESTS: [u32; 2] = [20_000, 120_000];

/// `instructions`: counts, prints, and fails above [`MOST`]. `instructions N` is the program that
/// is counted.
pub fn main(arguments: &[String]) -> Result<ExitCode, String> {
    if let Some(requests) = arguments.first() {
        let requests = requests.parse().map_err(|_| format!("{requests} is not a number"))?;
        NullLoop::new().run(requests);
        return Ok(ExitCode::SUCCESS);
    }
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let [few, many] = REQUESTS.map(|requests| count(&program, requests));
    let each = (many? - few?) / f64::from(REQUESTS[1] - REQUESTS[0]);
    println!("{each:.0} instructions for a queued read, at most {MOST}");
    Ok(ExitCode::from(u8::from(each > MOST)))
}

fn count(program: &Path, requests: u32) -> Result<f64, String> {
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", "--callgrind-out-file=/dev/null"])
        .arg(program)
        .args(["instructions", &requests.to_string()])
        .output()
        .map_err(|error| format!("valgrind: {error}; install valgrind"))?;
    let text = String::from_utf8_lossy(&output.stderr);
    let collected = text.lines().find_map(|line| line.split_once("Collected : "));
    let Some((_, collected)) = collected.filter(|_| output.status.success()) else {
        return Err(format!("valgrind counts nothing ({}): {text}", output.status));
    };
    collected.trim().parse().map_err(|_| format!("valgrind counted {collected}"))
}
