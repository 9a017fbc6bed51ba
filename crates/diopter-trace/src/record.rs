//! One traced run, from the instance to the joined trace. The outline; the steps are
//! in the other modules.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::command::Running;
use crate::error::TraceError;
use crate::event::{self, Device, Need};
use crate::files::Files;
use crate::instance::{Instance, release};
use crate::join::Join;
use crate::model::Trace;
use crate::programs::Programs;
use crate::reader::{Decoder, Pipes, Spool};
use crate::symbols;

/// KiB of the buffers of all CPUs together.
const BUFFERS_KIB_MAX: u64 = 512 << 10;
/// KiB of the buffer of one CPU, at most and at least, unless the caller sets another size.
const BUFFER_KIB_MAX: u64 = 32 << 10;
const BUFFER_KIB_MIN: u64 = 4 << 10;

/// How a command is traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// KiB of the kernel's buffer for each CPU; `None` for what suits the machine.
    pub buffer_kib: Option<u64>,
    /// Files, directories or devices: only what goes on on their devices is recorded, which spares
    /// the buffer on a busy machine. Empty for all devices.
    pub devices: Vec<PathBuf>,
    /// Bytes of the file that events are kept in while the command runs.
    pub spool_bytes_max: u64,
}

impl RecordOptions {
    /// Options that keep up with some 500 000 requests a second.
    #[must_use]
    pub fn new(command: Vec<OsString>) -> RecordOptions {
        RecordOptions { command, buffer_kib: None, devices: Vec::new(), spool_bytes_max: 8 << 30 }
    }
}

/// Runs the command, and returns what the kernel did with its direct I/O. `on_child` gets the
/// command's process once it runs.
///
/// # Errors
/// [`TraceError`]; none of them leaves tracing on.
pub fn record(options: &RecordOptions, on_child: &mut dyn FnMut(u32)) -> Result<Trace, TraceError> {
    let instance = Instance::create()?;
    let buffer_kib = match options.buffer_kib {
        Some(kib) => kib,
        None => suitable_kib(instance.cpus()?.len()),
    };
    let decoder = prepare(&instance, buffer_kib, &devices(&options.devices)?)?;
    let (programs, missing) = Programs::load();
    let has_cached = programs.as_ref().is_some_and(Programs::has_cached);
    let has_raw = programs.as_ref().is_some_and(Programs::has_raw);
    let pipes = Pipes::open(&instance, programs, options.spool_bytes_max)?;
    let (stop, stopped) = mpsc::channel();
    let reader = thread::Builder::new().name("dio-trace".to_owned());
    let what = "the thread that reads the trace cannot be started";
    let reader = reader
        .spawn(move || pipes.record(&stopped))
        .map_err(|source| TraceError::Machine { what, source })?;
    let started = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    instance.set("tracing_on", "1")?;
    let ran = Running::start(&options.command).and_then(|running| {
        let process = running.process();
        on_child(process);
        Ok((process, running.wait()?))
    });
    instance.set("tracing_on", "0")?;
    drop(stop);
    let spool = reader.join().expect("the reader returns its errors")?;
    let (root, (exit_status, paths)) = ran?;

    let mut trace = Trace {
        command: options.command.iter().map(|word| word.to_string_lossy().into_owned()).collect(),
        exit_status,
        started_unix_ns: u64::try_from(started.as_nanos()).unwrap_or_default(),
        lost_events: instance.lost_events()? + spool.lost(),
        unknown: unknown(&instance, &spool),
        kernel_release: release(),
        has_raw,
        ..Trace::default()
    };
    trace.unknown.extend(missing);
    drop(instance);
    let files = Files::new(paths, &options.command);
    let mut join = Join::new(root, files, has_cached);
    let mut events = spool.events(&decoder);
    while let Some(event) = events.next_event()? {
        join.take(event);
    }
    join.finish(&mut trace);
    if trace.lost_events > 0 && trace.requests.is_empty() {
        let lost_events = trace.lost_events;
        return Err(TraceError::BufferTooSmall { lost_events, buffer_kib });
    }
    Ok(trace)
}

/// Sets the instance: its clock, its buffer, its events. It does not record yet.
fn prepare(
    instance: &Instance,
    buffer_kib: u64,
    devices: &[Device],
) -> Result<Decoder, TraceError> {
    instance.set("tracing_on", "0")?;
    instance.set("trace_clock", "mono")?;
    instance.set("buffer_size_kb", &buffer_kib.to_string())?;
    // What comes first is kept: a request's end without its begin joins nothing.
    instance.set("options/overwrite", "0")?;
    for source in event::SOURCES.iter().filter(|source| instance.has_event(source.name)) {
        narrow(instance, source.name, devices)?;
        instance.set(&format!("events/{}/enable", source.name), "1")?;
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
        let failed = |source| TraceError::Path { path: path.clone(), source };
        let device = super::command::device_of(path).map_err(failed)?;
        devices.extend([device, super::files::whole_disk(device)]);
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
fn unknown(instance: &Instance, spool: &Spool) -> Vec<String> {
    let mut unknown = Vec::new();
    for source in event::SOURCES.iter().filter(|source| !instance.has_event(source.name)) {
        if let Need::Shows(what) = source.need {
            unknown.push(format!("{what}: this kernel has no event {}", source.name));
        }
    }
    if spool.is_without_wakes() {
        unknown
            .push("when waiters woke, while there were too many requests to record it".to_owned());
    }
    if spool.is_full() {
        unknown.push("what came after the trace's file was full: trace a shorter run".to_owned());
    }
    unknown
}
