//! One traced run, from the instance to the joined trace. The outline; what the steps do stands in
//! the modules beside this one.

use std::ffi::OsString;
use std::sync::mpsc;
use std::thread;
use std::time::{SystemTime, UNIX_EPOCH};

use super::command::Running;
use super::error::TraceError;
use super::event::{self, Need};
use super::files::Files;
use super::instance::Instance;
use super::join::Join;
use super::model::Trace;
use super::reader::{Decoder, Pipes, Spool};

/// How a command is traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordOptions {
    /// The command and its arguments.
    pub command: Vec<OsString>,
    /// KiB of the kernel's buffer for each CPU.
    pub buffer_kib: u64,
    /// Bytes of the file that events are kept in while the command runs.
    pub spool_bytes_max: u64,
}

impl RecordOptions {
    /// Options that keep up with some 500 000 requests a second.
    #[must_use]
    pub fn new(command: Vec<OsString>) -> RecordOptions {
        RecordOptions { command, buffer_kib: 16 << 10, spool_bytes_max: 8 << 30 }
    }
}

/// Runs the command, and tells what the kernel did with its direct I/O. `on_child` gets the
/// command's process once it runs.
///
/// # Errors
/// [`TraceError`]; none of them leaves tracing on.
pub fn record(options: &RecordOptions, on_child: &mut dyn FnMut(u32)) -> Result<Trace, TraceError> {
    let instance = Instance::create()?;
    let decoder = prepare(&instance, options)?;
    let pipes = Pipes::open(&instance, options.spool_bytes_max)?;
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
        lost_events: instance.lost_events()?,
        unknown: unknown(&instance, &spool),
        kernel_release: release(),
        ..Trace::default()
    };
    drop(instance);
    let files = Files::new(paths, &options.command);
    let mut join = Join::new(root, files);
    let mut events = spool.events(&decoder);
    while let Some(event) = events.next_event()? {
        join.take(event);
    }
    join.finish(&mut trace);
    if trace.lost_events > 0 && trace.requests.is_empty() {
        let lost_events = trace.lost_events;
        return Err(TraceError::BufferTooSmall { lost_events, buffer_kib: options.buffer_kib });
    }
    Ok(trace)
}

/// Sets the instance: its clock, its buffer, its events. It does not record yet.
fn prepare(instance: &Instance, options: &RecordOptions) -> Result<Decoder, TraceError> {
    instance.set("tracing_on", "0")?;
    instance.set("trace_clock", "mono")?;
    instance.set("buffer_size_kb", &options.buffer_kib.to_string())?;
    // What comes first is kept: a request's end without its begin joins nothing.
    instance.set("options/overwrite", "0")?;
    for source in event::SOURCES {
        if instance.has_event(source.name) {
            narrow(instance, source.name)?;
            instance.set(&format!("events/{}/enable", source.name), "1")?;
        } else if source.need == Need::Must {
            return Err(TraceError::NoIomapEvents { release: release() });
        }
    }
    Decoder::new(instance)
}

/// Of the many pieces of work of a kernel, only those of direct I/O.
fn narrow(instance: &Instance, event: &str) -> Result<(), TraceError> {
    if !event::WORK.contains(&event) {
        return Ok(());
    }
    let addresses = super::symbols::WORK_FUNCTIONS
        .iter()
        .filter_map(|name| Some(format!("function == {:#x}", super::symbols::address(name)?)));
    let filter = addresses.collect::<Vec<String>>().join(" || ");
    if filter.is_empty() {
        return Ok(());
    }
    instance.set(&format!("events/{event}/filter"), &filter)
}

/// What this kernel and this run cannot tell.
fn unknown(instance: &Instance, spool: &Spool) -> Vec<String> {
    let mut unknown = Vec::new();
    for source in event::SOURCES.iter().filter(|source| !instance.has_event(source.name)) {
        if let Need::Tells(what) = source.need {
            unknown.push(format!("{what}: this kernel has no event {}", source.name));
        }
    }
    if spool.is_full() {
        unknown.push("what came after the trace's file was full: trace a shorter run".to_owned());
    }
    unknown
}

fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}
