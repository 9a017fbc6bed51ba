//! Loops over a file: the engine's queued door, its blocking door, and the bare loop. All pick
//! their offsets with the same generator, check what they read now and then, and look at the end
//! whether what they wrote last is there.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use diopter::engine::{AnyBuf, CompletionPolicy, DepthPolicy};
use diopter::{
    BackendKind, Engine, EngineOptions, File, FinishedRequest, IoBuf, Policies, Request,
};
use diopter_os::file::O_DIRECT;
use diopter_os::testing::bare::{BareLoop, BareOptions, CHECKED_ONE_IN};
use serde_json::Value;

use crate::ground::{BLOCK, pattern_block};
use crate::own::{Job, WARM_UP, measure};

const LONG: Duration = Duration::from_secs(60);

/// Bytes that are moved between two looks at the clock.
const BYTES_PER_LOOK: u64 = 2 << 20;

/// Where transfers go: one of `slots` places, `stride` bytes apart, `shift` into it.
pub struct Places {
    random: u64,
    slots: u64,
    stride: u64,
    shift: u64,
}

impl Places {
    pub fn of(job: &Job) -> Result<Places, String> {
        let slots: u64 = job.number("slots")?;
        if !slots.is_power_of_two() {
            return Err(format!("slots={slots} is not a power of two"));
        }
        let (stride, shift) = (job.number("stride")?, job.number("shift")?);
        Ok(Places { random: 0x9E37_79B9_7F4A_7C15, slots, stride, shift })
    }

    /// The same places in an order of the task's own.
    #[cfg(feature = "tokio")]
    pub fn of_task(&self, number: u64) -> Places {
        let random = self.random.wrapping_mul(2 * number + 1);
        Places { random, slots: self.slots, stride: self.stride, shift: self.shift }
    }

    pub fn next(&mut self) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random & (self.slots - 1)) * self.stride + self.shift
    }
}

/// The bytes that this process writes: the pattern, with the process's mark in front.
fn written(bytes: usize) -> Vec<u8> {
    let mut content = pattern_block().repeat(bytes.div_ceil(BLOCK));
    content.truncate(bytes);
    let since = std::time::UNIX_EPOCH.elapsed().map_or(0, |since| since.subsec_nanos());
    content[..4].copy_from_slice(&std::process::id().to_le_bytes());
    content[4..8].copy_from_slice(&since.to_le_bytes());
    content
}

/// The first whole block in what was read begins with its number.
pub fn check_read(memory: &[u8], offset: u64) -> Result<(), String> {
    let block = u64::try_from(BLOCK).map_err(|error| error.to_string())?;
    let number = offset.div_ceil(block);
    let at = usize::try_from(number * block - offset).map_err(|error| error.to_string())?;
    if memory[at..].starts_with(&number.to_le_bytes()) {
        return Ok(());
    }
    Err(format!("block {number} does not begin with its number"))
}

fn check_written(path: &Path, memory: &[u8], offset: u64) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut there = vec![0; memory.len()];
    std::fs::File::open(path).map_err(failed)?.read_exact_at(&mut there, offset).map_err(failed)?;
    if there == memory {
        return Ok(());
    }
    Err(format!("{} at {offset} is not what was written last", path.display()))
}

/// Requests through the queued door.
struct EngineLoop {
    engine: Engine,
    file: File,
    places: Places,
    is_write: bool,
    bytes: u64,
    idle: Vec<AnyBuf>,
    done: Vec<FinishedRequest>,
    depth: usize,
}

/// `backend`, `depth`, `op`, `bytes`, `slots`, `stride`, `shift`; where wanted `registered`,
/// `inline`, `deferred`, `limit` (of bios in flight), `warm_up` (milliseconds) and `memory`: `vec`
/// for a `Vec<u8>` at an aligned address, `misaligned` for one at another.
pub fn engine(job: &Job) -> Result<Value, String> {
    let (path, time) = (job.file()?, job.time()?);
    let mut one = EngineLoop::set_up(job, &path)?;
    one.run(job.number("warm_up").map_or(WARM_UP, Duration::from_millis))?;
    let reply = measure(|| one.run(time))?;
    one.finish(&path)?;
    if job.is("deferred") && !has_workers()? {
        return Err("CompletionPolicy::Deferred has no worker here".to_owned());
    }
    Ok(reply)
}

/// Returns `count` vectors with `content`, all at addresses that are multiples of 4096, or none.
fn vectors(content: &[u8], count: usize, is_aligned: bool) -> Vec<AnyBuf> {
    let mut others = Vec::new();
    let mut found = Vec::new();
    while found.len() < count {
        // An allocator that is asked again and again returns addresses of every kind.
        let (vector, step) = (content.to_vec(), vec![0_u8; 16]);
        if vector.as_ptr().addr().is_multiple_of(4096) == is_aligned {
            found.push(AnyBuf::new(vector));
        } else {
            others.push((vector, step));
        }
    }
    found
}

/// Returns true if this process has more than one thread; those of io_uring do not count.
fn has_workers() -> Result<bool, String> {
    let tasks = std::fs::read_dir("/proc/self/task").map_err(|error| error.to_string())?;
    let name = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
    let is_ours = |task: &std::fs::DirEntry| name(task).is_ok_and(|it| !it.starts_with("iou-"));
    Ok(tasks.flatten().filter(is_ours).count() > 1)
}

impl EngineLoop {
    fn set_up(job: &Job, path: &Path) -> Result<EngineLoop, String> {
        let is_write = job.text("op")? == "write";
        let depth: u32 = job.number("depth")?;
        let bytes: u64 = job.number("bytes")?;
        let backend: BackendKind = job.text("backend")?.parse()?;
        let mut policies = Policies::default();
        if job.is("deferred") {
            policies.completion = CompletionPolicy::Deferred;
        }
        if job.is("inline") {
            policies.completion = CompletionPolicy::Inline;
        }
        if let Ok(limit) = job.number("limit") {
            policies.depth = DepthPolicy::Fixed(limit);
        }
        let options = EngineOptions { backend, policies, ..EngineOptions::DEFAULT };
        let engine = Engine::new(options).map_err(|error| error.to_string())?;
        let file = File::options().read(true).write(true).open(path);
        let file = file.map_err(|error| error.to_string())?;
        let content = written(usize::try_from(bytes).map_err(|error| error.to_string())?);
        let mut pages = Vec::new();
        for _ in 0..depth {
            let mut memory = IoBuf::new(content.len()).map_err(|errno| errno.to_string())?;
            memory.copy_from_slice(&content);
            pages.push(memory);
        }
        if job.is("registered") {
            let refused = |errno| format!("the kernel refuses to register: {errno}");
            engine.register_file(&file).map_err(refused)?;
            let mut all: Vec<&mut IoBuf> = pages.iter_mut().collect();
            engine.register_buffers(&mut all).map_err(refused)?;
        }
        let idle: Vec<AnyBuf> = match job.text("memory") {
            Ok("vec") => vectors(&content, pages.len(), true),
            Ok("misaligned") => vectors(&content, pages.len(), false),
            _ => pages.into_iter().map(AnyBuf::new).collect(),
        };
        let depth = idle.len();
        let (places, done) = (Places::of(job)?, Vec::with_capacity(depth));
        Ok(EngineLoop { engine, file, places, is_write, bytes, idle, done, depth })
    }

    fn start(&mut self, memory: AnyBuf) -> Result<(), String> {
        let offset = self.places.next();
        let request = if self.is_write {
            Request::write(offset, memory)
        } else {
            Request::read(offset, memory)
        };
        let started = self.engine.start(&self.file, request);
        started.map(drop).map_err(|refused| refused.error.to_string())
    }

    /// Waits for a first one and takes all that have finished, as the bare loop does: `each` gets
    /// the memory of each, and where it was.
    fn wait(
        &mut self,
        mut each: impl FnMut(&mut EngineLoop, AnyBuf, u64) -> Result<(), String>,
    ) -> Result<u64, String> {
        let mut done = std::mem::take(&mut self.done);
        let waited = self.engine.wait_many(LONG, &mut done);
        if waited.map_err(|error| error.to_string())? == 0 {
            return Err("nothing finished in a minute".to_owned());
        }
        let mut count = 0;
        for finished in &mut done {
            match &finished.result {
                Ok(moved) if moved.get() == self.bytes && finished.route().buffered == 0 => {}
                other => {
                    return Err(format!(
                        "{other:?} of {} bytes, {:?}",
                        self.bytes,
                        finished.route()
                    ));
                }
            }
            let memory = finished.memory.take().ok_or("the memory was lost")?;
            each(self, memory, finished.range.start())?;
            count += 1;
        }
        done.clear();
        self.done = done;
        Ok(count)
    }

    /// Keeps the queue full for so long.
    fn run(&mut self, time: Duration) -> Result<u64, String> {
        while let Some(memory) = self.idle.pop() {
            self.start(memory)?;
        }
        let per_look = (BYTES_PER_LOOK / self.bytes).max(1);
        let (until, mut done, mut next_look) = (Instant::now() + time, 0u64, per_look);
        let (mut until_check, is_write) = (0, self.is_write);
        loop {
            done += self.wait(|its, memory, offset| {
                if !is_write && until_check == 0 {
                    check_read(&memory, offset)?;
                    until_check = CHECKED_ONE_IN;
                }
                until_check = until_check.saturating_sub(1);
                its.start(memory)
            })?;
            if done >= next_look {
                if Instant::now() >= until {
                    return Ok(done);
                }
                next_look = done + per_look;
            }
        }
    }

    /// Takes back what is under way; of writes, looks that it is there.
    fn finish(&mut self, path: &Path) -> Result<(), String> {
        let (mut left, is_write) = (self.depth, self.is_write);
        while left > 0 {
            self.wait(|_, memory, offset| {
                left -= 1;
                if is_write { check_written(path, &memory, offset) } else { Ok(()) }
            })?;
        }
        Ok(())
    }
}

/// The bare loop: `depth`, `batch`, `op`, `slots`.
pub fn bare(job: &Job) -> Result<Value, String> {
    let (path, time) = (job.file()?, job.time()?);
    let is_write = job.text("op")? == "write";
    let (depth, batch, blocks) = (job.number("depth")?, job.number("batch")?, job.number("slots")?);
    let open = OpenOptions::new().read(true).write(true).custom_flags(O_DIRECT).open(&path);
    let file = open.map_err(|error| error.to_string())?;
    let options = BareOptions { depth, batch, is_write, blocks };
    let failed = |error: std::io::Error| format!("the bare loop: {error}");
    let mut one = BareLoop::new(&file, &written(BLOCK), options).map_err(failed)?;
    one.run(WARM_UP).map_err(failed)?;
    let reply = measure(|| one.run(time).map_err(failed))?;
    if is_write {
        one.last().try_for_each(|(offset, memory)| check_written(&path, memory, offset))?;
    }
    Ok(reply)
}

/// The blocking door, one call at a time: `backend`, `op`, `slots`, `stride`, `shift`.
pub fn calls(job: &Job) -> Result<Value, String> {
    let (path, time) = (job.file()?, job.time()?);
    let is_write = job.text("op")? == "write";
    let backend: BackendKind = job.text("backend")?.parse()?;
    diopter::use_for_this_thread(EngineOptions { backend, ..EngineOptions::default() });
    let file = File::options().read(true).write(true).open(&path);
    let file = file.map_err(|error| error.to_string())?;
    let mut memory = IoBuf::new(BLOCK).map_err(|errno| errno.to_string())?;
    memory.copy_from_slice(&written(BLOCK));
    let (mut places, mut last) = (Places::of(job)?, 0);
    let mut run = |time| {
        let (until, mut done) = (Instant::now() + time, 0u64);
        while Instant::now() < until {
            for _ in 0..256 {
                last = places.next();
                let moved = if is_write {
                    file.write_at(&memory, last)
                } else {
                    file.read_at(&mut memory, last)
                };
                if moved.map_err(|error| error.to_string())? != BLOCK {
                    return Err("a short transfer".to_owned());
                }
                done += 1;
            }
            if !is_write {
                check_read(&memory, last)?;
            }
        }
        Ok(done)
    };
    run(WARM_UP)?;
    let reply = measure(|| run(time))?;
    if is_write {
        check_written(&path, &memory, last)?;
    }
    Ok(reply)
}
