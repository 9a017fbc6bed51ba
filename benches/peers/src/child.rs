//! Runs one measurement as a process on given processors.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::job::{Figures, Job};
use crate::stop;

/// No measurement takes longer than its time and this.
const PATIENCE: Duration = Duration::from_secs(120);

/// How often a waiting run looks for a signal.
const LOOK: Duration = Duration::from_millis(100);

/// Runs a job on the first `job.cores` processors.
pub fn run(job: &Job) -> Result<Figures, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = Command::new("taskset");
    command.args(["-c", &cores(job.cores)]).arg(program).args(["side", &job.to_json().to_string()]);
    Figures::from_json(&output_of(&mut command, job.time)?)
}

/// The first so many processors, as taskset takes them.
fn cores(count: usize) -> String {
    if count > 1 { format!("0-{}", count - 1) } else { "0".to_owned() }
}

/// Returns what a program prints; it ends when this process is asked to, or takes too long.
fn output_of(command: &mut Command, time: Duration) -> Result<String, String> {
    let spawned =
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
    let mut child = spawned.map_err(|error| format!("{command:?}: {error}"))?;
    let stdout = child.stdout.take().expect("it is piped above");
    let stderr = child.stderr.take().expect("it is piped above");
    let (send, receiver) = mpsc::channel();
    let errors = std::thread::spawn(move || text_of(stderr));
    // The receiver is gone when the child was killed, and then nothing needs the text.
    std::thread::spawn(move || send.send(text_of(stdout)).unwrap_or(()));
    let started = Instant::now();
    let output = loop {
        match receiver.recv_timeout(LOOK) {
            Ok(output) => break output,
            Err(RecvTimeoutError::Disconnected) => return Err("its output was lost".to_owned()),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if stop::is_asked() || started.elapsed() > time + PATIENCE {
            end(&mut child);
            stop::check()?;
            return Err(format!("not done after {:?}", started.elapsed()));
        }
    };
    let status = child.wait().map_err(|error| error.to_string())?;
    let errors = errors.join().unwrap_or_default();
    stop::check()?;
    match (status.success(), errors.strip_prefix("peers: ")) {
        (true, _) => Ok(output),
        (false, Some(why)) => Err(why.to_owned()),
        (false, None) => Err(format!("{status}: {output} {errors}")),
    }
}

fn text_of(mut from: impl Read) -> String {
    let mut text = Vec::new();
    // A broken pipe ends the text; the exit status says the rest.
    from.read_to_end(&mut text).unwrap_or(0);
    String::from_utf8_lossy(&text).trim().to_owned()
}

fn end(child: &mut Child) {
    if let Err(error) = child.kill().and_then(|()| child.wait()) {
        eprintln!("a side is left running: {error}");
    }
}
