//! Scratch.
use diopter_lab::trace::{RecordOptions, record};
use std::collections::BTreeMap;
fn main() {
    let command: Vec<_> = std::env::args_os().skip(1).collect();
    let started = std::time::Instant::now();
    let trace = match record(&RecordOptions::new(command), &mut |_| {}) {
        Ok(trace) => trace,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(i32::from(error.exit_status()))
        }
    };
    eprintln!("took {:?}", started.elapsed());
    let bytes: u64 = trace.requests.iter().map(|r| r.length).sum();
    let bio: u64 = trace.bios.iter().map(|b| b.bytes).sum();
    let mut m: BTreeMap<String, u64> = BTreeMap::new();
    for r in &trace.requests {
        let k = format!(
            "{:?} {:?} {:?} by={:?} ext={:?} unw={:?} cached={:?} dsync={} buf={} punt={} jrn={} res<0={} bios={} done={} woken={}",
            r.door,
            r.op,
            r.context,
            r.deferred_by,
            r.is_extending,
            r.is_unwritten,
            r.has_cached_pages,
            r.is_dsync,
            r.is_buffered,
            r.is_punted,
            r.waited_for_journal,
            r.result.is_none_or(|x| x < 0),
            r.bios.len(),
            r.times.device_done.is_some(),
            r.times.woken.is_some()
        );
        *m.entry(k).or_default() += 1;
    }
    for (k, v) in m {
        eprintln!("{v:8} {k}");
    }
    let mut m: BTreeMap<String, u64> = BTreeMap::new();
    for b in &trace.bios {
        *m.entry(format!(
            "bio {:?} {} pieces={} issued={} done={} {:?}",
            b.device,
            b.bytes,
            b.pieces,
            b.issued.is_some(),
            b.done.is_some(),
            b.context
        ))
        .or_default() += 1;
    }
    for (k, v) in m {
        eprintln!("{v:8} {k}");
    }
    for f in &trace.files {
        eprintln!("{f:?}");
    }
    eprintln!(
        "requests {} bytes {} bios {} bio_bytes {} lost {} status {} unknown {:?}",
        trace.requests.len(),
        bytes,
        trace.bios.len(),
        bio,
        trace.lost_events,
        trace.exit_status,
        trace.unknown
    );
    std::process::exit(i32::from(trace.exit_status));
}
