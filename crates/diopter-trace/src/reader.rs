//! From the kernel's per-CPU pipes into a private file while the command runs, and from that
//! file back as one stream of events in the order of their times. Memory is bounded: what is
//! recorded lies in an unlinked file.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use crate::error::TraceError;
use crate::event::{self, Event, Source};
use crate::format::{EventFormat, Field, Record, number};
use crate::instance::Instance;
use crate::page::PageShape;
use crate::programs::{self, Programs, RECORD_BYTES};

/// How long the pipes are left alone when they were empty.
const PAUSE: Duration = Duration::from_millis(10);
/// The pace is looked at this often.
const PACE_TIME: Duration = Duration::from_millis(50);
/// Bytes of events a second from which on wakeups are not recorded: some 30 000 requests.
const PACE_BYTES_MAX: u64 = 12 << 20;
/// The reader's niceness: before everything that is not of real time.
const PRIORITY: i32 = -20;
/// So many pages in one round mean that there are more.
const PAGES_BEHIND: u32 = 64;
/// Pages that are read from one CPU before the next has its turn.
const PAGES_IN_TURN_MAX: u32 = 4096;

/// The pipes of an instance, and the file that what comes out of them goes to.
#[derive(Debug)]
pub struct Pipes {
    pipes: Vec<File>,
    page_size: usize,
    shape: PageShape,
    programs: Option<Programs>,
    /// Switches of the events that are left off when there are too many.
    wakes: Vec<PathBuf>,
    pace: Pace,
    /// Records of programs on their way to the spool.
    records: Vec<u8>,
    spool: Spool,
}

/// How fast the spool grows.
#[derive(Debug)]
struct Pace {
    since: Instant,
    end: u64,
}

/// The recorded pages, by CPU.
#[derive(Debug)]
pub struct Spool {
    file: File,
    /// For each CPU, and then for programs, where its pages lie, in order.
    pages: Vec<Vec<Place>>,
    /// True if events of wakeups were left off at some time.
    is_without_wakes: bool,
    /// Records that programs lost.
    lost: u64,
    end: u64,
    bytes_max: u64,
    /// Pages that had no place any more.
    is_full: bool,
}

/// Where a page lies in the spool.
#[derive(Clone, Copy, Debug)]
struct Place {
    start: u64,
    length: usize,
}

/// The meaning of records, by their numbers.
pub struct Decoder {
    shape: PageShape,
    common: [Field; 3],
    by_id: HashMap<u16, (Source, Vec<Field>)>,
}

/// The events of a spool, in the order of their times.
pub struct Events<'a> {
    spool: &'a Spool,
    decoder: &'a Decoder,
    lanes: Vec<Lane>,
}

/// One CPU's share: its current page, decoded.
#[derive(Default)]
struct Lane {
    next_page: usize,
    /// The page's events, the next one last.
    events: Vec<Event>,
}

impl Pipes {
    /// Opens the pipes of every CPU.
    ///
    /// # Errors
    /// [`TraceError::Tracefs`], [`TraceError::Machine`] when there is no room for the spool.
    pub fn open(
        instance: &Instance,
        programs: Option<Programs>,
        bytes_max: u64,
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
        let page_size = page_size(instance)?;
        let shape = PageShape::parse(&instance.get("events/header_page")?)?;
        let what = "a file for the trace cannot be made in TMPDIR";
        let file = tempfile::tempfile().map_err(|source| TraceError::Machine { what, source })?;
        let pages = vec![Vec::new(); pipes.len() + 1];
        let spool = Spool {
            file,
            pages,
            is_without_wakes: false,
            lost: 0,
            end: 0,
            bytes_max,
            is_full: false,
        };
        let wakes = event::WAKES.iter().filter(|name| instance.has_event(name));
        let wakes = wakes.map(|name| instance.path(&format!("events/{name}/enable"))).collect();
        let pace = Pace { since: Instant::now(), end: 0 };
        Ok(Pipes { pipes, page_size, shape, programs, wakes, pace, records: Vec::new(), spool })
    }

    /// Reads until it is asked to stop, and then until the pipes are empty.
    ///
    /// # Errors
    /// [`TraceError::Machine`] when a pipe cannot be read or the spool not be written.
    pub fn record(mut self, stop: &Receiver<()>) -> Result<Spool, TraceError> {
        // On a busy machine a late reader loses events. Without the privilege, it may.
        rustix::process::setpriority_process(Some(rustix::thread::gettid()), PRIORITY).ok();
        let mut page = vec![0; self.page_size];
        let mut is_last = false;
        loop {
            let mut read = 0;
            for cpu in 0..self.pipes.len() {
                read += self.turn(cpu, &mut page)?;
            }
            self.take_records()?;
            self.slow_down();
            match (is_last, read) {
                (true, 0) => {
                    self.spool.lost = self.programs.as_ref().map_or(0, Programs::lost);
                    return Ok(self.spool);
                }
                (true, _) | (false, PAGES_BEHIND..) => continue,
                (false, _) => {}
            }
            is_last = !matches!(stop.recv_timeout(PAUSE), Err(RecvTimeoutError::Timeout));
        }
    }

    /// Reads what one CPU has now; returns the number of whole pages.
    fn turn(&mut self, cpu: usize, page: &mut [u8]) -> Result<u32, TraceError> {
        let mut whole = 0;
        for _ in 0..PAGES_IN_TURN_MAX {
            match (&self.pipes[cpu]).read(page) {
                Ok(0) => break,
                Ok(length) => {
                    let used = self.shape.used(&page[..length])?;
                    self.spool.push(cpu, &page[..used])?;
                    whole += 1;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => {
                    return Err(TraceError::Machine {
                        what: "a trace pipe cannot be read",
                        source,
                    });
                }
            }
        }
        Ok(whole)
    }
}

impl Pipes {
    /// Leaves off the events of wakeups when there are so many events that the command
    /// would feel it.
    fn slow_down(&mut self) {
        let elapsed = self.pace.since.elapsed();
        if elapsed < PACE_TIME || self.wakes.is_empty() {
            return;
        }
        let bytes = self.spool.end - self.pace.end;
        if u128::from(bytes) * 1000 > u128::from(PACE_BYTES_MAX) * elapsed.as_millis() {
            for switch in self.wakes.drain(..) {
                // The other events cost time and show more.
                std::fs::write(switch, "0").ok();
            }
            self.spool.is_without_wakes = true;
        }
        self.pace = Pace { since: Instant::now(), end: self.spool.end };
    }

    /// Takes the records of the programs so far, in the order of their times.
    fn take_records(&mut self) -> Result<(), TraceError> {
        let Some(programs) = &mut self.programs else { return Ok(()) };
        self.records.clear();
        programs.take(&mut self.records);
        if self.records.is_empty() {
            return Ok(());
        }
        self.spool.push(self.pipes.len(), &self.records)
    }
}

impl Spool {
    /// True if events of wakeups were left off at some time.
    #[must_use]
    pub fn is_without_wakes(&self) -> bool {
        self.is_without_wakes
    }

    /// Records that programs lost.
    #[must_use]
    pub fn lost(&self) -> u64 {
        self.lost
    }

    /// True if more was recorded than it may hold.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is_full
    }

    fn push(&mut self, cpu: usize, page: &[u8]) -> Result<(), TraceError> {
        let length = u64::try_from(page.len()).expect("a page is small");
        if self.end + length > self.bytes_max {
            self.is_full = true;
            return Ok(());
        }
        let what = "the trace cannot be written to its file in TMPDIR";
        let failed = |source| TraceError::Machine { what, source };
        self.file.write_all_at(page, self.end).map_err(failed)?;
        self.pages[cpu].push(Place { start: self.end, length: page.len() });
        self.end += length;
        Ok(())
    }

    /// Its events, as `decoder` reads them.
    #[must_use]
    pub fn events<'a>(&'a self, decoder: &'a Decoder) -> Events<'a> {
        let lanes = self.pages.iter().map(|_| Lane::default()).collect();
        Events { spool: self, decoder, lanes }
    }
}

impl Decoder {
    /// For the events of [`event::SOURCES`] that `instance` has.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] or [`TraceError::Tracefs`] when a format cannot be read.
    pub fn new(instance: &Instance) -> Result<Decoder, TraceError> {
        let shape = PageShape::parse(&instance.get("events/header_page")?)?;
        let mut by_id = HashMap::new();
        let mut common = None;
        for source in event::SOURCES.iter().filter(|source| instance.has_event(source.name)) {
            let format =
                EventFormat::parse(&instance.get(&format!("events/{}/format", source.name))?)?;
            let field = |name: &str| format.field(name);
            let all = (field("common_type"), field("common_flags"), field("common_pid"));
            if let (Some(number), Some(flags), Some(thread)) = all {
                common = Some([number, flags, thread]);
            }
            by_id.insert(format.id, (*source, event::wanted(source, &format)));
        }
        let missing = || TraceError::Malformed("events have no common fields".to_owned());
        Ok(Decoder { shape, common: common.ok_or_else(missing)?, by_id })
    }

    /// The event of a record; `None` for one that is not listened to.
    fn event(&self, time: u64, bytes: &[u8]) -> Option<Event> {
        let [id, flags, thread] = self.common.map(|field| number(bytes, field));
        let (source, fields) = self.by_id.get(&u16::try_from(id).ok()?)?;
        Some(Event {
            time,
            thread: u32::try_from(thread).unwrap_or_default(),
            flags: u8::try_from(flags).unwrap_or_default(),
            what: (source.read)(Record { fields, bytes }),
        })
    }
}

impl Events<'_> {
    /// The next event; `None` at the end.
    ///
    /// # Errors
    /// [`TraceError::Malformed`], [`TraceError::Machine`].
    pub fn next_event(&mut self) -> Result<Option<Event>, TraceError> {
        let mut earliest: Option<(u64, usize)> = None;
        for cpu in 0..self.lanes.len() {
            self.fill(cpu)?;
            let time = self.lanes[cpu].events.last().map(|event| event.time);
            if let Some(time) = time.filter(|time| earliest.is_none_or(|(least, _)| *time < least))
            {
                earliest = Some((time, cpu));
            }
        }
        Ok(earliest.and_then(|(_, cpu)| self.lanes[cpu].events.pop()))
    }

    /// Decodes the CPU's next page when its current one is used up.
    fn fill(&mut self, cpu: usize) -> Result<(), TraceError> {
        let lane = &mut self.lanes[cpu];
        let pages = &self.spool.pages[cpu];
        while lane.events.is_empty() && lane.next_page < pages.len() {
            let place = pages[lane.next_page];
            let mut page = vec![0; place.length];
            let what = "the trace cannot be read back";
            let failed = |source| TraceError::Machine { what, source };
            self.spool.file.read_exact_at(&mut page, place.start).map_err(failed)?;
            lane.next_page += 1;
            if cpu + 1 == self.spool.pages.len() {
                lane.events.extend(page.chunks_exact(RECORD_BYTES).filter_map(programs::event));
                // CPUs share the ring, and one may be a little late.
                lane.events.sort_by_key(|event| event.time);
            } else {
                let mut records = self.decoder.shape.records(&page)?;
                while let Some(record) = records.next_record()? {
                    lane.events.extend(self.decoder.event(record.time, record.bytes));
                }
            }
            lane.events.reverse();
        }
        Ok(())
    }
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
