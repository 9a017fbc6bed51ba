//! From the kernel's per-CPU pipes into the spool, in a thread, while the traced processes run.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::code::RECORD_BYTES;
use crate::error::TraceError;
use crate::event::{self, now};
use crate::instance::Instance;
use crate::page::PageShape;
use crate::programs::{Programs, RING_BYTES};
use crate::spool::Spool;

/// How long the pipes are left alone, at least and at most. Each turn of the reader takes a CPU
/// from a traced thread if all are busy, and delays all that it has in flight: turns that are few
/// delay fewer than one request in a hundred.
const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(60);
/// KiB that one CPU records in a millisecond, at most: some 400 000 requests a second.
const KIB_PER_MILLISECOND_MAX: u64 = 150;
/// Bytes that the programs of one CPU record in a millisecond, at most: as many requests, of a
/// record with its header each.
const RING_BYTES_PER_MILLISECOND_MAX: u64 = 400 * 72;
/// The pace is looked at this often.
const PACE_TIME: Duration = Duration::from_millis(50);
/// Bytes of events a second from which on wakeups are not recorded: some 30 000 requests of all
/// processes.
const PACE_BYTES_MAX: u64 = 12 << 20;
/// Bytes of an event, about.
const EVENT_BYTES: u64 = 64;
/// The reader's niceness: before everything that is not of real time.
const PRIORITY: i32 = -20;
/// So many pages in one round mean that there are more.
const PAGES_BEHIND: u32 = 64;
/// Pages that are read from one CPU before the next has its turn.
const PAGES_IN_TURN_MAX: u32 = 4096;
/// Pages that go to the spool at once.
const PAGES_AT_ONCE: usize = 64;
/// An event is in its pipe at most so long after its time, in nanoseconds: between the two its CPU
/// may serve an interrupt.
const COMMIT_TIME: u64 = 10_000_000;

/// The pipes of an instance, and the spool that what comes out of them goes to.
#[derive(Debug)]
pub struct Pipes {
    pipes: Vec<File>,
    shape: PageShape,
    programs: Option<Programs>,
    /// Switches of the events that are left off when there are too many.
    wakes: Vec<PathBuf>,
    pace: Pace,
    pause: Duration,
    /// Records of programs on their way to the spool.
    records: Vec<u8>,
    /// Pages on their way to the spool, and their lengths.
    block: Vec<u8>,
    lengths: Vec<usize>,
    spool: Arc<Spool>,
}

/// How fast the spool grows.
#[derive(Debug)]
struct Pace {
    since: Instant,
    /// Bytes of the spool until then.
    recorded: u64,
    /// Bytes that are added to those of the spool since then.
    added: u64,
}

impl Pipes {
    /// Opens the pipes of every CPU, which have a buffer of `buffer_kib` each.
    ///
    /// # Errors
    /// [`TraceError::Tracefs`], [`TraceError::Machine`] when there is no room for the spool.
    pub fn open(
        instance: &Instance,
        programs: Option<Programs>,
        (buffer_kib, bytes_max): (u64, u64),
    ) -> Result<Pipes, TraceError> {
        let cpus = instance.cpus()?;
        let mut pipes = Vec::with_capacity(cpus.len());
        for cpu in cpus {
            let path = instance.path(&format!("per_cpu/cpu{cpu}/trace_pipe_raw"));
            let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
            let pipe = File::options().read(true).custom_flags(flags).open(&path);
            let what = "a trace pipe cannot be opened";
            pipes.push(pipe.map_err(|source| TraceError::Tracefs { what, path, source })?);
        }
        let shape = PageShape::parse(&instance.get("events/header_page")?)?;
        let spool = Arc::new(Spool::new(pipes.len() + 1, page_size(instance)?, bytes_max)?);
        let wakes = event::WAKES.iter().filter(|name| instance.has_event(name));
        let wakes = wakes.map(|name| instance.path(&format!("events/{name}/enable"))).collect();
        let pace = Pace { since: Instant::now(), recorded: 0, added: 0 };
        let block = vec![0; PAGES_AT_ONCE * spool.page_bytes()];
        let (records, lengths) = (Vec::new(), Vec::with_capacity(PAGES_AT_ONCE));
        let pause = pause(buffer_kib, programs.is_some().then_some(pipes.len()));
        Ok(Pipes { pipes, shape, programs, wakes, pace, pause, records, block, lengths, spool })
    }

    /// The spool that it fills.
    #[must_use]
    pub fn spool(&self) -> Arc<Spool> {
        self.spool.clone()
    }

    /// Reads until it is asked to stop, and then until the pipes are empty. Returns the number of
    /// records that programs lost.
    ///
    /// # Errors
    /// [`TraceError::Machine`] when a pipe cannot be read or the spool not be written.
    pub fn record(mut self, stop: &Receiver<()>) -> Result<u64, TraceError> {
        // On a busy machine a late reader loses events. Without the privilege, it may.
        rustix::process::setpriority_process(Some(rustix::thread::gettid()), PRIORITY).ok();
        let lost_before = self.lost();
        let mut is_last = false;
        loop {
            let began = now();
            let (mut read, mut is_behind) = (0, false);
            for cpu in 0..self.pipes.len() {
                let pages = self.turn(cpu)?;
                read += pages;
                if pages == PAGES_IN_TURN_MAX {
                    is_behind = true;
                    // The ring of the programs is not to be full meanwhile.
                    self.take_records()?;
                }
            }
            self.take_records()?;
            self.slow_down();
            if !is_behind {
                self.spool.complete(began.saturating_sub(COMMIT_TIME));
            }
            match (is_last, read) {
                (true, 0) => {
                    self.spool.complete(u64::MAX);
                    return Ok(self.lost() - lost_before);
                }
                (true, _) | (false, PAGES_BEHIND..) => continue,
                (false, _) => {}
            }
            is_last = !matches!(stop.recv_timeout(self.pause), Err(RecvTimeoutError::Timeout));
        }
    }

    /// Records that programs lost since they run.
    fn lost(&self) -> u64 {
        self.programs.as_ref().map_or(0, Programs::lost)
    }

    /// Reads what one CPU has now; returns the number of pages.
    fn turn(&mut self, cpu: usize) -> Result<u32, TraceError> {
        let mut pages = 0;
        while pages < PAGES_IN_TURN_MAX {
            self.read_block(cpu)?;
            self.spool.push(cpu, &self.block, &self.lengths)?;
            pages += u32::try_from(self.lengths.len()).expect("a block is small");
            if self.lengths.len() < PAGES_AT_ONCE {
                break;
            }
        }
        Ok(pages)
    }

    /// Reads pages until the CPU has no more, or the block is full.
    fn read_block(&mut self, cpu: usize) -> Result<(), TraceError> {
        self.lengths.clear();
        for page in self.block.chunks_exact_mut(self.spool.page_bytes()) {
            let length = loop {
                match (&self.pipes[cpu]).read(page) {
                    Ok(length) => break length,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break 0,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(source) => {
                        let what = "a trace pipe cannot be read";
                        return Err(TraceError::Machine { what, source });
                    }
                }
            };
            if length == 0 {
                break;
            }
            self.lengths.push(self.shape.used(&page[..length])?);
        }
        Ok(())
    }

    /// Leaves off the events of wakeups when there are so many events that the command
    /// would feel it.
    fn slow_down(&mut self) {
        let elapsed = self.pace.since.elapsed();
        if elapsed < PACE_TIME || self.wakes.is_empty() {
            return;
        }
        let recorded = self.spool.recorded();
        let bytes = recorded - self.pace.recorded + self.pace.added;
        if u128::from(bytes) * 1000 > u128::from(PACE_BYTES_MAX) * elapsed.as_millis() {
            for switch in self.wakes.drain(..) {
                // The other events cost time and show more.
                std::fs::write(switch, "0").ok();
            }
            self.spool.leave_off_wakes();
        }
        self.pace = Pace { since: Instant::now(), recorded, added: 0 };
    }

    /// Takes the records of the programs so far, in the order of their times: CPUs share the ring,
    /// and one may be a little late.
    fn take_records(&mut self) -> Result<(), TraceError> {
        let Some(programs) = &mut self.programs else { return Ok(()) };
        self.records.clear();
        // A request on a raw device has an event less than one on a file.
        self.pace.added += programs.take(&mut self.records) * EVENT_BYTES;
        let mut records: Vec<&[u8]> = self.records.chunks_exact(RECORD_BYTES).collect();
        records.sort_by_key(|record| record.first_chunk().map(|time| u64::from_ne_bytes(*time)));
        for page in records.chunks(self.spool.page_bytes() / RECORD_BYTES) {
            self.spool.push(self.pipes.len(), &page.concat(), &[page.len() * RECORD_BYTES])?;
        }
        Ok(())
    }
}

/// In this time the busiest CPU fills a third of its buffer, and with programs so many CPUs
/// together a third of the ring that they share.
fn pause(buffer_kib: u64, cpus: Option<usize>) -> Duration {
    let third = Duration::from_millis(buffer_kib / 3 / KIB_PER_MILLISECOND_MAX);
    let pause = third.clamp(PAUSE_MIN, PAUSE_MAX);
    let Some(cpus) = cpus.and_then(|cpus| u64::try_from(cpus).ok()) else { return pause };
    let bytes = RING_BYTES_PER_MILLISECOND_MAX.saturating_mul(cpus.max(1));
    let third = u64::try_from(RING_BYTES).expect("a length fits 64 bits") / 3;
    pause.min(Duration::from_millis((third / bytes).max(1)))
}

/// Bytes of what one read of a pipe returns: a sub-buffer of the ring.
fn page_size(instance: &Instance) -> Result<usize, TraceError> {
    match instance.get("buffer_subbuf_size_kb") {
        Ok(text) => {
            let kib = text.trim().parse::<usize>();
            let failed = |_| TraceError::Malformed(format!("a sub-buffer of {text} KiB"));
            Ok(kib.map_err(failed)? * 1024)
        }
        // Before 6.8 a sub-buffer is a page of memory.
        Err(_) => Ok(rustix::param::page_size()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_leaves_room_in_the_buffer_and_in_the_ring_of_all_cpus() {
        let pause = |kib, cpus| pause(kib, cpus).as_millis();
        assert_eq!(
            [pause(1 << 10, None), pause(1 << 14, None), pause(1 << 16, None)],
            [10, 36, 60]
        );
        assert_eq!([pause(1 << 16, Some(2)), pause(1 << 16, Some(16))], [60, 12]);
        assert_eq!([pause(1 << 10, Some(64)), pause(1 << 10, Some(1 << 20))], [3, 1]);
    }
}
