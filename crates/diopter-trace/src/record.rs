//! One traced run, from the instance to the joined trace. The outline; the steps are
//! in the other modules.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::command::{Running, Signals};
use crate::error::TraceError;
use crate::event::{self, Device, Need};
use crate::files::{self, Files};
use crate::instance::{Instance, Listened, release};
use crate::join::Join;
use crate::joining::Joining;
use crate::model::{Ended, TargetKind, Trace, TracedTarget};
use crate::pipes::Pipes;
use crate::programs::Programs;
use crate::reader::{Decoder, Events};
use crate::spool::SpoolFacts;
use crate::symbols;
use crate::target::{Attached, Target};
use crate::totals::Totals;
use crate::watch::{Watched, Watcher, see_last};

/// KiB of the buffers of all CPUs together.
const BUFFERS_KIB_MAX: u64 = 512 << 10;
/// KiB of the buffer of one CPU, at most and at least, unless the caller sets another size.
const BUFFER_KIB_MAX: u64 = 32 << 10;
const BUFFER_KIB_MIN: u64 = 4 << 10;
/// Requests that are kept one by one, unless the caller sets another number: some 250 MiB.
const REQUESTS_MAX: usize = 500_000;

/// The processes that are traced, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// The processes.
    pub target: Target,
    /// The trace ends after this time; `None` for the end of its processes.
    pub duration: Option<Duration>,
    /// KiB of the kernel's buffer for each CPU; `None` for what suits the machine.
    pub buffer_kib: Option<u64>,
    /// Files, directories or devices: only what goes on on their devices is recorded, which spares
    /// the buffer on a busy machine. Empty for all devices.
    pub devices: Vec<PathBuf>,
    /// Bytes of the file that events are kept in until they are joined.
    pub spool_bytes_max: u64,
    /// Requests that are kept one by one; more are counted.
    pub requests_max: usize,
    /// True if the command reads from our standard input.
    pub has_input: bool,
}

/// A trace that ended.
#[derive(Debug)]
pub struct Recorded {
    pub trace: Trace,
    /// The requests that `trace` does not keep.
    pub beyond: Totals,
    /// The command, if the trace ended first.
    pub running: Option<Running>,
}

impl RecordOptions {
    /// Options that keep up with some 500 000 requests a second, for a command.
    #[must_use]
    pub fn new(command: Vec<OsString>) -> RecordOptions {
        RecordOptions::of(Target::Command(command))
    }

    /// The same for any processes.
    #[must_use]
    pub fn of(target: Target) -> RecordOptions {
        RecordOptions {
            target,
            duration: None,
            buffer_kib: None,
            devices: Vec::new(),
            spool_bytes_max: 8 << 30,
            requests_max: REQUESTS_MAX,
            has_input: true,
        }
    }

    fn command(&self) -> &[OsString] {
        match &self.target {
            Target::Command(command) => command,
            _ => &[],
        }
    }
}

/// Calls a function once the command runs, and watches nothing else.
struct OnStart<'a>(&'a mut dyn FnMut(u32));

impl Watcher for OnStart<'_> {
    fn started(&mut self, process: u32) {
        (self.0)(process);
    }
}

/// Traces to the end of the processes, and returns what the kernel did with their direct I/O.
/// `on_child` gets the command's process once it runs.
///
/// # Errors
/// [`TraceError`]; none of them leaves tracing on.
pub fn record(options: &RecordOptions, on_child: &mut dyn FnMut(u32)) -> Result<Trace, TraceError> {
    let mut recorded = record_watched(options, &mut OnStart(on_child))?;
    if let Some(running) = recorded.running {
        recorded.trace.exit_status = running.wait()?;
    }
    Ok(recorded.trace)
}

/// Traces until the processes end, the time is up, or `watcher` or a signal asks for the end.
///
/// # Errors
/// [`TraceError`]; none of them leaves tracing on.
pub fn record_watched(
    options: &RecordOptions,
    watcher: &mut dyn Watcher,
) -> Result<Recorded, TraceError> {
    let attached = Attached::find(&options.target)?;
    let instance = Instance::create()?;
    let buffer_kib = match options.buffer_kib {
        Some(kib) => kib,
        None => suitable_kib(instance.cpus()?.len()),
    };
    let devices = devices(&options.devices)?;
    let decoder = prepare(&instance, buffer_kib, &devices, options)?;
    let (programs, missing) = Programs::load(!instance.has_probes(), &devices);
    let has_cached = programs.as_ref().is_some_and(Programs::has_cached);
    let has_raw = programs.as_ref().is_some_and(Programs::has_raw);
    if programs.as_ref().is_some_and(Programs::has_bios) {
        instance.set(&format!("events/{}/enable", event::BIO), "0")?;
    }
    let pipes = Pipes::open(&instance, programs, (buffer_kib, options.spool_bytes_max))?;
    let spool = pipes.spool();
    let (stop, stopped) = mpsc::channel();
    let reader = thread::Builder::new().name("dio-trace".to_owned());
    let what = "the thread that reads the trace cannot be started";
    let reader = reader
        .spawn(move || pipes.record(&stopped))
        .map_err(|source| TraceError::Machine { what, source })?;
    let target = described(&options.target, attached.as_ref());
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = Instant::now();
    instance.set("tracing_on", "1")?;
    let events = Events::new(spool.clone(), decoder, event::now());
    // Listed once events are recorded: no thread is missed between the two.
    let scope = attached.as_ref().map(Attached::scope).unwrap_or_default();
    let mut join = Join::new(scope, Files::new(options.command()), has_cached);
    join.devices = devices;
    (join.has_probes, join.has_flushes) = (instance.has_probes(), instance.has_event(event::FLUSH));
    let is_watched = watcher.interval().is_some();
    let mut joining = Joining::new(join, (spool.clone(), events), options.requests_max, is_watched);
    let is_recorded = || !reader.is_finished();
    let watched = start(options, attached).and_then(|watched| {
        if let Watched::Command(running) = &watched {
            joining.join.set_root(running.process());
            watcher.started(running.process());
        }
        let ended = watched.watch(options.duration, &mut joining, watcher, &is_recorded)?;
        Ok((watched, ended))
    });
    let until = event::now();
    instance.set("tracing_on", "0")?;
    let traced = since.elapsed();
    drop(stop);
    let lost = reader.join().expect("the reader returns its errors")?;
    let (watched, (ended, unseen)) = watched?;

    let lost_events = instance.lost_events()? + lost;
    let mut unknown = unknown(&instance, spool.facts())?;
    unknown.extend(missing);
    drop(instance);
    let (mut collector, last) = joining.finish(until, unseen)?;
    last.iter().for_each(|last| see_last(watcher, last));
    let trace = &mut collector.trace;
    unknown.extend(unknown_of_rings(trace, spool.facts()));
    unknown.append(&mut trace.unknown);
    let words = options.command().iter();
    trace.command = words.map(|word| word.to_string_lossy().into_owned()).collect();
    trace.started_unix_ns = u64::try_from(started.as_nanos()).unwrap_or_default();
    trace.traced_ns = u64::try_from(traced.as_nanos()).unwrap_or(u64::MAX);
    trace.kernel_release = release();
    (trace.unknown, trace.has_raw) = (unknown, has_raw);
    (trace.target, trace.ended, trace.lost_events) = (target, ended, lost_events);
    let is_empty = trace.requests.is_empty() && collector.beyond.flushes.flushes() == 0;
    if trace.lost_events > 0 && is_empty {
        return Err(TraceError::BufferTooSmall { lost_events, buffer_kib });
    }
    let running = still_running(watched, trace)?;
    Ok(Recorded { trace: collector.trace, beyond: collector.beyond, running })
}

/// Starts the command, or catches the signals that end a trace without one.
fn start(options: &RecordOptions, attached: Option<Attached>) -> Result<Watched, TraceError> {
    match attached {
        None => Running::start(options.command(), options.has_input).map(Watched::Command),
        Some(attached) => Ok(Watched::Attached(attached, Signals::catch()?)),
    }
}

/// Returns the command, if the trace ended first, or else notes its exit status.
fn still_running(watched: Watched, trace: &mut Trace) -> Result<Option<Running>, TraceError> {
    match watched {
        Watched::Command(running) if trace.ended == Ended::Exited => {
            trace.exit_status = running.wait()?;
            Ok(None)
        }
        Watched::Command(running) => Ok(Some(running)),
        Watched::Attached(..) => Ok(None),
    }
}

fn described(target: &Target, attached: Option<&Attached>) -> TracedTarget {
    let (kind, cgroup) = match target {
        Target::Command(_) => (TargetKind::Command, None),
        Target::Processes(_) => (TargetKind::Processes, None),
        Target::Cgroup(path) => (TargetKind::Cgroup, Some(path.to_string_lossy().into_owned())),
        Target::All => (TargetKind::All, None),
    };
    let processes = attached.map(Attached::names).unwrap_or_default();
    TracedTarget { kind, processes, cgroup }
}

/// Sets the instance: its clock, its buffer, its events. It does not record yet.
fn prepare(
    instance: &Instance,
    buffer_kib: u64,
    devices: &[Device],
    options: &RecordOptions,
) -> Result<Decoder, TraceError> {
    let has_groups = matches!(options.target, Target::Cgroup(_));
    instance.set("tracing_on", "0")?;
    instance.set("trace_clock", "mono")?;
    instance.set("buffer_size_kb", &buffer_kib.to_string())?;
    // What comes first is kept: a request's end without its begin joins nothing.
    instance.set("options/overwrite", "0")?;
    for Listened { path, .. } in instance.listened()? {
        if path == event::CGROUP_MOVE && !has_groups {
            continue;
        }
        narrow(instance, &path, devices)?;
        instance.set(&format!("events/{path}/enable"), "1")?;
    }
    Decoder::new(instance)
}

/// A buffer for each CPU that lasts for a second of 50 000 requests, if the reader gets no turn for
/// so long; less on a machine of many CPUs, where all of them together are bounded.
fn suitable_kib(cpus: usize) -> u64 {
    let cpus = u64::try_from(cpus).unwrap_or(u64::MAX).max(1);
    (BUFFERS_KIB_MAX / cpus).clamp(BUFFER_KIB_MIN, BUFFER_KIB_MAX)
}

/// Returns the devices of files, directories and devices, and the disks that they are parts of.
fn devices(paths: &[PathBuf]) -> Result<Vec<Device>, TraceError> {
    let mut devices = Vec::new();
    for path in paths {
        // The kernel's name for a device, as `dio probe` and lsblk print it.
        let node = Path::new("/dev").join(path);
        let is_name = path.components().count() == 1 && !path.exists() && node.exists();
        let path = if is_name { &node } else { path };
        let failed = |source| TraceError::Path { path: path.clone(), source };
        devices.extend(files::devices_of(path).map_err(failed)?);
    }
    devices.sort_unstable();
    devices.dedup();
    Ok(devices)
}

/// Keeps out of the buffer what can be of no use: other work than that of direct I/O, and other
/// devices if some were named.
fn narrow(instance: &Instance, event: &str, devices: &[Device]) -> Result<(), TraceError> {
    let is_of_device = event.starts_with("iomap/") || event.starts_with("block/");
    let wanted: Vec<String> = if event::WORK.contains(&event) {
        let addresses = symbols::WORK_FUNCTIONS.iter().filter_map(|name| symbols::address(name));
        addresses.map(|address| format!("function == {address:#x}")).collect()
    } else if is_of_device {
        devices.iter().map(|device| format!("dev == {}", device.0)).collect()
    } else {
        Vec::new()
    };
    if wanted.is_empty() {
        return Ok(());
    }
    instance.set(&format!("events/{event}/filter"), &wanted.join(" || "))
}

/// Returns the facts that this kernel and this run cannot show.
fn unknown(instance: &Instance, spool: SpoolFacts) -> Result<Vec<String>, TraceError> {
    const RING_END: &str = "io_uring/io_uring_complete";
    let listened = instance.listened()?;
    let mut unknown = Vec::new();
    for source in event::SOURCES.iter().filter(|source| !instance.has_event(source.name)) {
        if let Need::Shows(what) = source.need {
            unknown.push(format!("{what}: this kernel has no event {}", source.name));
        }
    }
    if instance.has_event(RING_END) && !listened.iter().any(|one| one.path == RING_END) {
        unknown.push(format!(
            "when waiters of rings woke, and flushes by rings: {RING_END} of this kernel names no \
             request"
        ));
    }
    if spool.is_without_wakes {
        unknown.push(
            "when waiters woke, once the machine made some 30 000 requests a second, with those of \
             other processes"
                .to_owned(),
        );
    }
    if spool.is_full {
        unknown.push("what came after the trace's file was full: trace a shorter run".to_owned());
    }
    Ok(unknown)
}

/// Flushes by rings have the events of wake-ups, which are left off when there are too many.
fn unknown_of_rings(trace: &mut Trace, spool: SpoolFacts) -> Option<String> {
    trace.is_uring_partial = trace.has_rings && spool.is_without_wakes;
    trace.is_uring_partial.then(|| {
        "flushes by io_uring, once the machine made some 30 000 requests a second".to_owned()
    })
}
