//! A round of the engine: the job's threads, started together, and one sample of their counts.

use std::str::FromStr;
use std::sync::{Barrier, Mutex};
use std::time::SystemTime;

use diopter::BackendKind;
use diopter::{Policies, Preset};

use super::order::{Facts, Place, RoundOrder, RoundResult};
use super::usage::{Scope, Snapshot, Used, memory_peak_bytes};
use super::worker::{DirectionTally, Tally, Worker};
use crate::document::{DirectionSample, Sample, SeriesPoint};
use crate::number::{float, nanos, per_second};

/// Observations of the first thread.
#[derive(Default)]
struct Seen {
    begin: Option<Snapshot>,
    end: Option<Snapshot>,
    started_unix_ns: u64,
}

pub fn run(order: &RoundOrder, preset: &str, backend: &str) -> Result<RoundResult, String> {
    let known = Preset::ALL.into_iter().find(|known| known.name() == preset);
    let policies = known.ok_or_else(|| format!("unknown preset `{preset}`"))?.policies();
    let kind = BackendKind::from_str(backend).map_err(|error| format!("backend: {error}"))?;
    let seen = Mutex::new(Seen::default());
    let tallies = threads(order, (policies, kind), &seen)?;
    let mut all = Tally::default();
    for (tally, _) in &tallies {
        all.add(tally);
    }
    if all.ios() == 0 {
        return Err("no request finished within the round; give it more time".to_owned());
    }
    let (name, flags) = tallies.into_iter().next().map(|(_, choice)| choice).unwrap_or_default();
    let seen = seen.into_inner().map_err(|_| "a thread of the round panicked")?;
    let mut used = match (&seen.begin, &seen.end) {
        (Some(begin), Some(end)) => begin.until(end),
        _ => Used::default(),
    };
    used.seen.pages_cached = pages_cached(&order.place);
    let facts = Facts {
        program: "diopter".to_owned(),
        program_version: env!("CARGO_PKG_VERSION").to_owned(),
        engine: name,
        flags,
    };
    let sample = sample(order, &all, &used, seen.started_unix_ns);
    Ok(RoundResult { sample, facts, seen: used.seen })
}

type Choice = (String, Vec<String>);

/// Runs a worker in each thread; the first also observes the resource usage.
fn threads(
    order: &RoundOrder,
    how: (Policies, BackendKind),
    seen: &Mutex<Seen>,
) -> Result<Vec<(Tally, Choice)>, String> {
    let together = Barrier::new(usize::try_from(order.job.numjobs).unwrap_or(usize::MAX));
    let note = |note: &dyn Fn(&mut Seen)| note(&mut seen.lock().expect("no thread panics in it"));
    let one = |number: u32| {
        let made = Worker::new(order, number, how);
        // A thread whose setup failed waits here too, or the others would block forever.
        together.wait();
        let mut worker = made?;
        let is_first = number == 0;
        let begin = || {
            if is_first {
                note(&|seen| {
                    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
                    seen.started_unix_ns = since.map_or(0, nanos);
                    seen.begin = Some(Snapshot::now(Scope::Own));
                });
            }
        };
        let end = || {
            if is_first {
                note(&|seen| seen.end = Some(Snapshot::now(Scope::Own)));
            }
        };
        let tally = worker.run(order, begin, end)?;
        Ok((tally, worker.choice.clone()))
    };
    std::thread::scope(|scope| {
        let handles: Vec<_> =
            (0..order.job.numjobs).map(|number| scope.spawn(move || one(number))).collect();
        let joined = handles.into_iter().map(|handle| {
            handle.join().unwrap_or_else(|_| Err("a thread of the round panicked".to_owned()))
        });
        joined.collect()
    })
}

fn sample(order: &RoundOrder, all: &Tally, used: &Used, started_unix_ns: u64) -> Sample {
    let elapsed_ns = all.elapsed_ns.max(1);
    Sample {
        round: order.round,
        started_unix_ns,
        elapsed_ns,
        read: direction(&all.read, elapsed_ns),
        write: direction(&all.write, elapsed_ns),
        sync: all.sync.to_latency(),
        processor: used.processor,
        machine: used.machine,
        switches: used.switches,
        memory_peak_bytes: memory_peak_bytes(Scope::Own),
        bios: Some(all.bios),
        route: Some(all.route),
        contexts: Some(all.contexts.clone()),
        // Little's law.
        depth_mean: Some(float(all.in_flight_ns()) / float(elapsed_ns)),
        series: series(all),
        ..Sample::default()
    }
}

fn series(all: &Tally) -> Vec<SeriesPoint> {
    let ends = (1..).map(|slice| (slice * all.slice_ns).min(all.elapsed_ns));
    let points = ends.zip(&all.series);
    points.map(|(at_ns, (ios, bytes))| SeriesPoint { at_ns, ios: *ios, bytes: *bytes }).collect()
}

fn direction(tally: &DirectionTally, elapsed_ns: u64) -> Option<DirectionSample> {
    (tally.ios > 0).then(|| DirectionSample {
        ios: tally.ios,
        bytes: tally.bytes,
        short_ios: tally.short_ios,
        iops: per_second(tally.ios, elapsed_ns),
        latencies: Some(tally.times.to_latencies()),
    })
}

/// Returns the pages of the file that are in the page cache; 0 if it is not known.
pub fn pages_cached(place: &Place) -> u64 {
    let Place::File(path) = place else { return 0 };
    let options = diopter::File::options().read(true).striped(true).clone();
    let Ok(file) = options.open(path) else { return 0 };
    let pages = file.object_descriptors().filter_map(|object| {
        let size = rustix::fs::fstat(object).ok().and_then(|stat| u64::try_from(stat.st_size).ok());
        let all = diopter_os::residency::residency(object, 0, 0, size?);
        Some(all.ok()?.pages_cached)
    });
    pages.sum()
}
