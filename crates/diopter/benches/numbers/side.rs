//! One side of a comparison: a separate process on separate cores, that says in JSON what it
//! moved. Both sides are started, watched and read in the same way.

use std::io::Read;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::machine::Dir;
use crate::result::{Finding, Measured};
use crate::trace::Tracer;
use crate::{own, stop};

/// No side takes so long.
const RUN_MAX: Duration = Duration::from_secs(120);

/// How often a waiting bench looks whether it was asked to stop.
const LOOK: Duration = Duration::from_millis(100);

/// Amount that one run moved.
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    pub ios: f64,
    pub seconds: f64,
    /// Processor time of all threads within that time, in seconds.
    pub cpu: f64,
}

impl Figures {
    pub fn per_second(self) -> f64 {
        self.ios / self.seconds
    }

    pub fn cpu_nanos_per_io(self) -> f64 {
        self.cpu * 1e9 / self.ios
    }
}

/// A program to run, and how its output is read.
#[derive(Clone)]
pub struct Side {
    pub name: &'static str,
    pub program: PathBuf,
    pub arguments: Vec<String>,
    pub read: fn(&str) -> Result<Figures, String>,
}

/// One run, and how many of its transfers went to a worker of io_uring, where that is known.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    pub figures: Figures,
    pub punted: Option<u64>,
}

/// All runs of one side, or why it has none.
pub type Runs = Result<Vec<Run>, String>;

/// Runs each side once a round, every other round in the opposite order.
pub fn in_turns(
    sides: &[Result<Side, String>],
    rounds: usize,
    (cores, tracer): (&str, Option<&Tracer>),
) -> Result<Vec<Runs>, String> {
    let mut runs: Vec<Runs> =
        sides.iter().map(|side| side.as_ref().map(|_| Vec::new()).map_err(Clone::clone)).collect();
    for round in 0..rounds {
        for turn in 0..sides.len() {
            let at = if round % 2 == 0 { turn } else { sides.len() - 1 - turn };
            let Ok(side) = &sides[at] else { continue };
            let Ok(so_far) = &mut runs[at] else { continue };
            stop::progress(&format!("round {} of {rounds}: {}", round + 1, side.name));
            match run(side, cores, tracer) {
                Ok(one) => so_far.push(one),
                Err(why) => runs[at] = Err(format!("{}: {why}", side.name)),
            }
            stop::check()?;
        }
    }
    stop::progress("");
    Ok(runs)
}

/// The rounds of two sides, side by side.
pub fn pair(ours: &Runs, theirs: &Runs, figure: fn(Figures) -> f64) -> Finding {
    let (ours, theirs) = (ours.as_ref(), theirs.as_ref());
    let (ours, theirs) = (ours.map_err(Clone::clone)?, theirs.map_err(Clone::clone)?);
    let pairs = ours.iter().zip(theirs);
    Ok(Measured::new(
        pairs.map(|(one, other)| (figure(one.figures), figure(other.figures))).collect(),
    ))
}

/// The largest share of transfers that a worker did, in any run; `None` where nothing counted.
pub fn punted_share(runs: &Runs) -> Option<f64> {
    let share = |run: &Run| Some(count(run.punted?) / run.figures.ios);
    let shares: Option<Vec<f64>> = runs.as_ref().ok()?.iter().map(share).collect();
    shares?.into_iter().max_by(f64::total_cmp)
}

/// A count as a number to divide; exact below 2^53.
pub fn count(number: u64) -> f64 {
    let (high, low) = (number >> 32, number & u64::from(u32::MAX));
    let exact = |part: u64| f64::from(u32::try_from(part).unwrap_or(u32::MAX));
    exact(high) * 4_294_967_296.0 + exact(low)
}

/// Runs one side to its end.
pub fn run(side: &Side, cores: &str, tracer: Option<&Tracer>) -> Result<Run, String> {
    if let Some(tracer) = tracer {
        tracer.clear()?;
    }
    let mut command = Command::new("taskset");
    command.args(["-c", cores]).arg(&side.program).args(&side.arguments);
    let output = output_of(&mut command)?;
    let figures = (side.read)(&output)?;
    if !(figures.ios > 0.0 && figures.seconds > 0.0) {
        return Err(format!("it moved nothing: {output}"));
    }
    let punted = tracer.map(Tracer::count).transpose()?;
    Ok(Run { figures, punted })
}

/// Counts one more run of a side in system calls and, where the machine counts them, user
/// instructions, for each transfer, its start and warm-up included. `None` without perf.
pub fn counts(side: &Side, cores: &str) -> Option<String> {
    const EVENTS: &str = "raw_syscalls:sys_enter,instructions:u";
    let dir = Dir::new("counts").ok()?;
    let counted = dir.path().join("counted");
    let mut command = Command::new("perf");
    command.args(["stat", "-x,", "-e", EVENTS, "-o"]).arg(&counted).args(["taskset", "-c", cores]);
    command.arg(&side.program).args(&side.arguments);
    let figures = (side.read)(&output_of(&mut command).ok()?).ok()?;
    let ios = figures.ios * (figures.seconds + own::WARM_UP.as_secs_f64()) / figures.seconds;
    let counted = std::fs::read_to_string(counted).ok()?;
    let of = |event: &str| {
        let line = counted.lines().find(|line| line.contains(event))?;
        line.split(',').next()?.parse::<f64>().ok()
    };
    let calls = of("raw_syscalls:sys_enter")? / ios;
    let instructions = of("instructions:u")
        .map_or(String::new(), |all| format!(", {:.0} user instructions", all / ios));
    Some(format!("{} {calls:.3} system calls{instructions}", side.name))
}

/// Returns what a program printed; it ends when this process is asked to end, or takes too long.
pub fn output_of(command: &mut Command) -> Result<String, String> {
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
        if stop::is_asked() || started.elapsed() > RUN_MAX {
            end(&mut child);
            stop::check()?;
            return Err(format!("not done after {RUN_MAX:?}"));
        }
    };
    let status = child.wait().map_err(|error| error.to_string())?;
    let errors = errors.join().unwrap_or_default();
    stop::check()?;
    if status.success() { Ok(output) } else { Err(format!("{status}: {output} {errors}")) }
}

fn text_of(mut from: impl Read) -> String {
    let mut text = Vec::new();
    // A broken pipe ends the text; the exit status says the rest.
    from.read_to_end(&mut text).unwrap_or(0);
    String::from_utf8_lossy(&text).trim().to_owned()
}

fn end(child: &mut Child) {
    let ended = child.kill().and_then(|()| child.wait());
    if let Err(error) = ended {
        eprintln!("a side is left running: {error}");
    }
}
