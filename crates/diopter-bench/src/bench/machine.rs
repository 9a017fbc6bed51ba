//! The runner of real rounds: each in a separate child process, which ends when the user interrupts
//! the run and is killed with this process.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use diopter_os::child::bind_to_parent;

use super::campaign::{Runner, Trouble};
use super::environment;
use super::plan::{Plan, PlannedColumn};
use super::round::{Place, Reply, RoundOrder, RoundResult};
use super::target::{Targets, is_fresh};
use crate::document::{Environment, Job, Span};

/// Interval at which a waiting run checks for an interruption.
const LOOK: Duration = Duration::from_millis(50);

/// Time that a round may take longer than its runtime: the device completes its requests.
const PATIENCE: Duration = Duration::from_secs(120);

/// Time limit of a round that ends after an amount.
const AMOUNT_PATIENCE: Duration = Duration::from_secs(3600);

/// Largest reply; a usual one has about ten kilobytes.
const REPLY_BYTES_MAX: u64 = 16 << 20;

/// Longest excerpt of a child's standard error in a message.
const STDERR_CHARS_MAX: usize = 400;

pub struct Machine {
    /// This program and the arguments that make it run a round.
    child: (PathBuf, Vec<String>),
    targets: Targets,
    warmup_ns: u64,
    stop: Box<dyn Fn() -> bool>,
    environment: Option<Environment>,
}

impl Machine {
    /// Creates a runner for its targets; `child` is a program, with its arguments, that replies to
    /// an order on its standard input as [`super::round::serve`] does.
    #[must_use]
    pub fn new(
        child: (PathBuf, Vec<String>),
        targets: Targets,
        plan: &Plan,
        stop: Box<dyn Fn() -> bool>,
    ) -> Machine {
        Machine { child, targets, warmup_ns: plan.warmup_ns, stop, environment: None }
    }

    /// Returns the file that a job's rounds run on now, for a comparison by other means.
    ///
    /// # Errors
    /// It cannot be made, or is in an image.
    pub fn file(&mut self, job: &Job) -> Result<PathBuf, Trouble> {
        match self.targets.current().place(job)? {
            Place::File(path) => Ok(path),
            Place::Inside { image, .. } => {
                Err(Trouble::Run(format!("{}: the file is in an image", image.display())))
            }
            Place::Objects(place) => {
                Err(Trouble::Run(format!("{}: the file is in a cluster", place.name)))
            }
        }
    }

    fn reply(&self, order: &RoundOrder) -> Result<RoundResult, Trouble> {
        let (program, arguments) = &self.child;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // An interrupt from the terminal is for the run, which then ends the round.
            .process_group(0);
        // Otherwise a round would continue to write after its run was killed.
        let spawned = bind_to_parent(&mut command, None).spawn();
        let shown = program.display();
        let mut child =
            spawned.map_err(|error| Trouble::Run(format!("run {shown} again: {error}")))?;
        let text = serde_json::to_string(order).expect("strings and numbers are JSON");
        let mut stdin = child.stdin.take().expect("standard input is a pipe");
        // A child that died has reported why, or its status shows it.
        stdin.write_all(text.as_bytes()).unwrap_or(());
        drop(stdin);
        let (status, output, complained) = self.wait(child, order)?;
        match serde_json::from_str(&output) {
            Ok(Reply::Done(result)) => Ok(*result),
            Ok(Reply::Failed(why)) => Err(Trouble::Cell(why)),
            Err(_) => {
                let excerpt: String = complained.trim().chars().take(STDERR_CHARS_MAX).collect();
                Err(Trouble::Cell(format!(
                    "the process of the round ended with {status}: {excerpt}"
                )))
            }
        }
    }

    /// Waits for a child; returns its exit status and both its outputs.
    fn wait(
        &self,
        mut child: Child,
        order: &RoundOrder,
    ) -> Result<(ExitStatus, String, String), Trouble> {
        let own = match order.job.span {
            Span::RuntimeNs(ns) => Duration::from_nanos(ns.saturating_add(order.warmup_ns)),
            Span::IoBytes(_) => AMOUNT_PATIENCE,
        };
        let until = Instant::now() + own + PATIENCE;
        let stdout = child.stdout.take().expect("standard output is a pipe");
        let stderr = child.stderr.take().expect("standard error is a pipe");
        let (send, replies) = mpsc::channel();
        let complaints = std::thread::spawn(move || text_of(stderr));
        // After the child was killed, the receiver is gone and the output is not needed.
        std::thread::spawn(move || send.send(text_of(stdout)).unwrap_or(()));
        let output = loop {
            match replies.recv_timeout(LOOK) {
                Ok(output) => break output,
                Err(RecvTimeoutError::Disconnected) => break String::new(),
                Err(RecvTimeoutError::Timeout) => {}
            }
            if (self.stop)() {
                end(&mut child);
                return Err(Trouble::Interrupted);
            }
            if Instant::now() > until {
                end(&mut child);
                let why = "the round did not end in time: look at the device".to_owned();
                return Err(Trouble::Cell(why));
            }
        };
        let status = child.wait().map_err(|error| Trouble::Run(error.to_string()))?;
        let complained = complaints.join().unwrap_or_default();
        // A signal to the whole group may also have interrupted the run.
        if (self.stop)() { Err(Trouble::Interrupted) } else { Ok((status, output, complained)) }
    }
}

impl Runner for Machine {
    fn begin(&mut self, row: usize, job: &Job) -> Result<(), Trouble> {
        self.environment = None;
        self.targets.select(row).begin(job)
    }

    fn round(
        &mut self,
        job: &Job,
        column: &PlannedColumn,
        round: u32,
    ) -> Result<RoundResult, Trouble> {
        let place = self.targets.current().place(job)?;
        if self.environment.is_none() || is_fresh(job) {
            let path = match &place {
                Place::File(path) | Place::Inside { image: path, .. } => path.clone(),
                // The machine's; the cluster's devices are not known here.
                Place::Objects(_) => self.targets.current().dir()?,
            };
            self.environment = Some(environment::of(&path));
        }
        let dir = self.targets.current().dir()?;
        let (job, way, warmup_ns) = (job.clone(), column.way.clone(), self.warmup_ns);
        self.reply(&RoundOrder { job, way, place, warmup_ns, round, dir })
    }

    fn environment(&self) -> Environment {
        self.environment.clone().unwrap_or_default()
    }

    fn end(&mut self, _job: &Job) {
        self.targets.current().end();
    }
}

fn text_of(from: impl Read) -> String {
    let mut text = Vec::new();
    // A broken pipe ends the text; the exit status shows the rest.
    from.take(REPLY_BYTES_MAX).read_to_end(&mut text).unwrap_or(0);
    String::from_utf8_lossy(&text).into_owned()
}

/// Ends a child and its descendants, which are a separate process group.
fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        // It may have exited already.
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap_or(());
    }
    // Reap it, so that no zombie stays.
    child.wait().map(drop).unwrap_or(());
}
