//! The runner of real rounds: each in a child of its own, which is told to end when somebody asks
//! for it, and dies with this process.

use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use diopter_os::child::bind_to_parent;

use super::campaign::{Runner, Trouble};
use super::environment;
use super::ground::{Ground, is_fresh};
use super::plan::{Plan, PlannedColumn};
use super::round::{Place, Reply, RoundAnswer, RoundOrder};
use crate::document::{Environment, Job, Span};

/// How often a waiting run looks whether it was asked to end.
const LOOK: Duration = Duration::from_millis(50);

/// What a round may take beyond its own time: a device that finishes what it has.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a round that ends after an amount may take.
const AMOUNT_PATIENCE: Duration = Duration::from_secs(3600);

/// A reply is some ten kilobytes.
const REPLY_BYTES_MAX: u64 = 16 << 20;

/// Of what a child says on standard error, so much is told.
const SAID_MAX: usize = 400;

/// Runs rounds on this machine.
pub struct Machine {
    /// This program and the words that make it run a round.
    child: (PathBuf, Vec<String>),
    ground: Ground,
    warmup_ns: u64,
    stop: Box<dyn Fn() -> bool>,
    environment: Option<Environment>,
}

impl Machine {
    /// On a ground; `child` is a program, with its arguments, that answers an order on its standard
    /// input as [`super::round::serve`] does.
    #[must_use]
    pub fn new(
        child: (PathBuf, Vec<String>),
        ground: Ground,
        plan: &Plan,
        stop: Box<dyn Fn() -> bool>,
    ) -> Machine {
        Machine { child, ground, warmup_ns: plan.warmup_ns, stop, environment: None }
    }

    /// The file that a job's rounds run on now, for whoever compares by other means.
    ///
    /// # Errors
    /// It cannot be made, or lies in an image.
    pub fn file(&mut self, job: &Job) -> Result<PathBuf, Trouble> {
        match self.ground.place(job)? {
            Place::File(path) => Ok(path),
            Place::Inside { image, .. } => {
                Err(Trouble::Run(format!("{}: the file lies in an image", image.display())))
            }
        }
    }

    fn answer(&self, order: &RoundOrder) -> Result<RoundAnswer, Trouble> {
        let (program, arguments) = &self.child;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // An interrupt from the terminal is for the run, which then ends the round.
            .process_group(0);
        // A round whose run was killed would go on writing.
        let spawned = bind_to_parent(&mut command, None).spawn();
        let shown = program.display();
        let mut child =
            spawned.map_err(|error| Trouble::Run(format!("run {shown} again: {error}")))?;
        let text = serde_json::to_string(order).expect("strings and numbers are JSON");
        let mut stdin = child.stdin.take().expect("it is piped above");
        // A child that died has said why, or its status tells.
        stdin.write_all(text.as_bytes()).unwrap_or(());
        drop(stdin);
        let (status, said, complained) = self.wait(child, order)?;
        match serde_json::from_str(&said) {
            Ok(Reply::Done(answer)) => Ok(*answer),
            Ok(Reply::Failed(why)) => Err(Trouble::Cell(why)),
            Err(_) => {
                let told: String = complained.trim().chars().take(SAID_MAX).collect();
                Err(Trouble::Cell(format!("the process of the round ended with {status}: {told}")))
            }
        }
    }

    /// Waits for a child; its exit status, and what it wrote on both outputs.
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
        let stdout = child.stdout.take().expect("it is piped");
        let stderr = child.stderr.take().expect("it is piped");
        let (send, replies) = mpsc::channel();
        let complaints = std::thread::spawn(move || text_of(stderr));
        // Nobody listens when the child was ended, and then nobody wants it.
        std::thread::spawn(move || send.send(text_of(stdout)).unwrap_or(()));
        let said = loop {
            match replies.recv_timeout(LOOK) {
                Ok(said) => break said,
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
        // The end may have been asked for by a signal to all.
        if (self.stop)() { Err(Trouble::Interrupted) } else { Ok((status, said, complained)) }
    }
}

impl Runner for Machine {
    fn begin(&mut self, job: &Job) -> Result<(), Trouble> {
        self.environment = None;
        self.ground.begin(job)
    }

    fn round(
        &mut self,
        job: &Job,
        column: &PlannedColumn,
        round: u32,
    ) -> Result<RoundAnswer, Trouble> {
        let place = self.ground.place(job)?;
        if self.environment.is_none() || is_fresh(job) {
            let path = match &place {
                Place::File(path) | Place::Inside { image: path, .. } => path,
            };
            self.environment = Some(environment::of(path));
        }
        let dir = self.ground.dir()?;
        let (job, way, warmup_ns) = (job.clone(), column.way.clone(), self.warmup_ns);
        self.answer(&RoundOrder { job, way, place, warmup_ns, round, dir })
    }

    fn environment(&self) -> Environment {
        self.environment.clone().unwrap_or_default()
    }

    fn end(&mut self, _job: &Job) {
        self.ground.end();
    }
}

fn text_of(from: impl Read) -> String {
    let mut text = Vec::new();
    // A broken pipe ends the text; the exit status tells the rest.
    from.take(REPLY_BYTES_MAX).read_to_end(&mut text).unwrap_or(0);
    String::from_utf8_lossy(&text).into_owned()
}

/// Ends a child and all that it started: they are a group of their own.
fn end(child: &mut Child) {
    let group = i32::try_from(child.id()).ok().and_then(rustix::process::Pid::from_raw);
    if let Some(group) = group {
        // It may be gone already.
        rustix::process::kill_process_group(group, rustix::process::Signal::KILL).unwrap_or(());
    }
    // Reaped, so that no zombie stays.
    child.wait().map(drop).unwrap_or(());
}
