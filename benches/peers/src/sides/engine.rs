//! Diopter's queued requests: one engine for each core.

use std::time::{Duration, Instant};

use diopter::engine::AnyBuf;
use diopter::{AdmitErrorKind, Engine, EngineOptions, File, FinishedRequest, IoBuf, Request};

use crate::draw::{Draw, Op, Tally};
use crate::gate::{Gate, on_threads};
use crate::job::{Figures, Job};
use crate::work::{Until, tasks_of, threads_of};

const LONG: Duration = Duration::from_secs(60);

pub fn run(job: &Job) -> Result<Figures, String> {
    in_threads(job, false)
}

pub fn registered(job: &Job) -> Result<Figures, String> {
    in_threads(job, true)
}

fn in_threads(job: &Job, is_registered: bool) -> Result<Figures, String> {
    if job.is_copying() {
        return Err("no copy was written for this side".to_owned());
    }
    Ok(on_threads(job, threads_of(job), |thread, gate| one(job, gate, (thread, is_registered))))
}

struct Loop {
    engine: Engine,
    file: File,
    draw: Draw,
    idle: Vec<AnyBuf>,
    /// Start times by request, if they are timed.
    started: Vec<(u64, Instant)>,
    done: Vec<FinishedRequest>,
    in_flight: usize,
}

fn one(job: &Job, gate: &Gate, (thread, is_registered): (usize, bool)) -> Result<Tally, String> {
    let tasks = tasks_of(job, thread);
    let depth = u32::try_from(tasks.len()).map_err(|_| "too many requests".to_owned())?;
    let options = EngineOptions::DEFAULT;
    let options = options.in_flight(depth.max(options.in_flight));
    let engine = Engine::new(options).map_err(|error| error.to_string())?;
    let file = File::options().read(true).write(true).open(&job.file);
    let file = file.map_err(|error| error.to_string())?;
    let pages: Result<Vec<IoBuf>, String> =
        tasks.map(|_| super::block(job).map(|block| block.0)).collect();
    let mut pages = pages?;
    if is_registered {
        let refused = |errno| format!("the kernel refuses to register: {errno}");
        engine.register_file(&file).map_err(refused)?;
        let mut all: Vec<&mut IoBuf> = pages.iter_mut().collect();
        engine.register_buffers(&mut all).map_err(refused)?;
    }
    let idle: Vec<AnyBuf> = pages.into_iter().map(AnyBuf::new).collect();
    let done = Vec::with_capacity(idle.len());
    let draw = Draw::new(job, thread);
    let mut one = Loop { engine, file, draw, idle, started: Vec::new(), done, in_flight: 0 };
    one.run(gate.warm_up(), &mut Tally::new(job))?;
    let until = gate.measure();
    let mut tally = Tally::new(job);
    one.run(until, &mut tally)?;
    Ok(tally)
}

impl Loop {
    /// Keeps the queue full until then, and takes back what is in flight.
    fn run(&mut self, until: Until, tally: &mut Tally) -> Result<(), String> {
        let per_look = (self.idle.len() as u64 * 8).min(512);
        let mut next_look = per_look;
        self.start_idle(tally)?;
        while self.in_flight > 0 {
            self.take(tally)?;
            let is_due = tally.ios >= next_look;
            if is_due && until.is_over() {
                while self.in_flight > 0 {
                    self.take(tally)?;
                }
                return Ok(());
            }
            if is_due {
                next_look = tally.ios + per_look;
            }
            self.start_idle(tally)?;
        }
        Err("nothing was in flight".to_owned())
    }

    /// Starts as many as the engine takes: it holds 128 requests.
    fn start_idle(&mut self, tally: &Tally) -> Result<(), String> {
        while let Some(memory) = self.idle.pop() {
            let (op, at) = self.draw.next();
            let request = match op {
                Op::Read => Request::read(at, memory),
                Op::Write => Request::write(at, memory),
            };
            let started = tally.started();
            match self.engine.start(&self.file, request) {
                Ok(id) => {
                    self.in_flight += 1;
                    self.started.extend(started.map(|started| (id.number(), started)));
                }
                Err(refused) if refused.error.kind == AdmitErrorKind::Full => {
                    self.idle.extend(refused.request.memory);
                    return Ok(());
                }
                Err(refused) => return Err(refused.error.to_string()),
            }
        }
        Ok(())
    }

    fn take(&mut self, tally: &mut Tally) -> Result<(), String> {
        let waited = self.engine.wait_many(LONG, &mut self.done);
        if waited.map_err(|error| error.to_string())? == 0 {
            return Err("nothing finished in a minute".to_owned());
        }
        for finished in self.done.drain(..) {
            let at = finished.range.start();
            let moved = finished.result.as_ref().map_err(|error| format!("at {at}: {error}"))?;
            if finished.route().buffered != 0 {
                return Err(format!("buffered at {at}: {:?}", finished.route()));
            }
            let moved = usize::try_from(moved.get()).unwrap_or(usize::MAX);
            let memory = finished.memory.ok_or("the memory was lost")?;
            self.draw.check(tally.ios, moved, &memory, at)?;
            let number = finished.id.number();
            let found = self.started.iter().position(|(id, _)| *id == number);
            tally.count(found.map(|found| self.started.swap_remove(found).1));
            self.in_flight -= 1;
            self.idle.push(memory);
        }
        Ok(())
    }
}
