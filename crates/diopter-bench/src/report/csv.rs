//! Formats one line for each cell and round, for programs that read tables. The header only ever
//! grows at its end. A cell without rounds has one line, with its failure.

use diopter_text::untrusted;

use super::label::Labels;
use crate::document::{
    Bench, Cell, Contexts, Direction, DirectionSample, Latency, RouteSample, Row, Sample, Span,
};

/// Columns that identify the cell.
const PLACE: [&str; 17] = [
    "row",
    "label",
    "rw",
    "block_bytes",
    "iodepth",
    "numjobs",
    "size",
    "runtime_ns",
    "io_bytes",
    "file_system",
    "column",
    "program",
    "program_version",
    "preset",
    "engine",
    "kernel",
    "failure",
];

/// Columns of a round as a whole.
const ROUND: [&str; 21] = [
    "round",
    "turn",
    "started_unix_ns",
    "elapsed_ns",
    "user_ns",
    "system_ns",
    "voluntary_switches",
    "involuntary_switches",
    "memory_peak_bytes",
    "bios",
    "depth_mean",
    "direct_bytes",
    "bounced_bytes",
    "buffered_bytes",
    "inline",
    "deferred",
    "hardirq",
    "softirq",
    "kworker",
    "task",
    "instructions_per_io",
];

/// Columns of each direction of a round, after `read_` and `write_`.
const DIRECTION: [&str; 4] = ["ios", "bytes", "short_ios", "iops"];
/// Columns of each latency, after the direction and the latency's name.
const LATENCY: [&str; 5] = ["mean_ns", "p50_ns", "p99_ns", "p999_ns", "max_ns"];
const KINDS: [&str; 3] = ["slat", "clat", "lat"];

pub(super) fn csv(bench: &Bench) -> String {
    let mut writer = ::csv::Writer::from_writer(Vec::new());
    let mut put = |record: Vec<String>| writer.write_record(record).expect("memory takes all");
    put(header());
    let labels = Labels::of(&bench.rows);
    for (at, row) in bench.rows.iter().enumerate() {
        for (column, cell) in row.cells.iter().enumerate() {
            let place = place(bench, (at, &labels.full[at]), (column, cell));
            if cell.samples.is_empty() {
                put(place.clone().into_iter().chain(round(None)).collect());
            }
            for sample in &cell.samples {
                put(place.clone().into_iter().chain(round(Some(sample))).collect());
            }
        }
    }
    let bytes = writer.into_inner().expect("memory takes all");
    String::from_utf8(bytes).expect("strings were written")
}

fn header() -> Vec<String> {
    let mut header: Vec<String> =
        PLACE.iter().chain(&ROUND).map(|name| (*name).to_owned()).collect();
    for direction in ["read", "write"] {
        header.extend(DIRECTION.iter().map(|name| format!("{direction}_{name}")));
        for kind in KINDS {
            header.extend(LATENCY.iter().map(|name| format!("{direction}_{kind}_{name}")));
        }
    }
    header
}

fn place(
    bench: &Bench,
    (at, label): (usize, &String),
    (column, cell): (usize, &Cell),
) -> Vec<String> {
    let Row { job, .. } = &bench.rows[at];
    let column = bench.columns.get(column).cloned().unwrap_or_default();
    let text = untrusted::csv_field;
    let (runtime, bytes) = match job.span {
        Span::RuntimeNs(ns) => (ns.to_string(), String::new()),
        Span::IoBytes(bytes) => (String::new(), bytes.to_string()),
    };
    vec![
        at.to_string(),
        text(label),
        job.rw.name().to_owned(),
        job.block_bytes.to_string(),
        job.iodepth.to_string(),
        job.numjobs.to_string(),
        job.size.to_string(),
        runtime,
        bytes,
        text(job.file_system.as_deref().unwrap_or_default()),
        text(&column.label),
        text(&column.program),
        text(&column.program_version),
        text(&column.preset.unwrap_or_default()),
        text(&column.engine),
        text(&column.kernel.unwrap_or_default()),
        text(cell.failure.as_deref().unwrap_or_default()),
    ]
}

fn round(sample: Option<&Sample>) -> Vec<String> {
    let round = |of: fn(&Sample) -> u64| sample.map(|one| of(one).to_string()).unwrap_or_default();
    let known = |of: fn(&Sample) -> Option<u64>| shown(sample.and_then(of));
    let route = |of: fn(RouteSample) -> u64| shown(sample.and_then(|one| one.route).map(of));
    let context =
        |of: fn(&Contexts) -> u64| shown(sample.and_then(|one| one.contexts.as_ref()).map(of));
    let mut fields = vec![
        round(|one| one.round.into()),
        round(|one| one.turn.into()),
        round(|one| one.started_unix_ns),
        round(|one| one.elapsed_ns),
        round(|one| one.processor.user_ns),
        round(|one| one.processor.system_ns),
        round(|one| one.switches.voluntary),
        round(|one| one.switches.involuntary),
        known(|one| one.memory_peak_bytes),
        known(|one| one.bios),
        shown(sample.and_then(|one| one.depth_mean)),
        route(|route| route.direct),
        route(|route| route.bounced),
        route(|route| route.buffered),
        context(|contexts| contexts.inline),
        context(|contexts| contexts.deferred),
        context(|contexts| contexts.hardirq),
        context(|contexts| contexts.softirq),
        context(|contexts| contexts.kworker),
        context(|contexts| contexts.task),
        shown(sample.and_then(|one| one.guest).map(|guest| guest.instructions_per_io)),
    ];
    for way in [Direction::Read, Direction::Write] {
        fields.extend(direction(sample.and_then(|sample| sample.direction(way))));
    }
    fields
}

fn direction(sample: Option<&DirectionSample>) -> Vec<String> {
    let mut fields = vec![
        shown(sample.map(|one| one.ios)),
        shown(sample.map(|one| one.bytes)),
        shown(sample.map(|one| one.short_ios)),
        shown(sample.map(|one| one.iops)),
    ];
    let latencies = sample.and_then(|one| one.latencies.as_ref());
    let kinds = latencies.map(|all| [all.slat.as_ref(), all.clat.as_ref(), all.lat.as_ref()]);
    for kind in kinds.unwrap_or([None; 3]) {
        fields.extend(latency(kind));
    }
    fields
}

fn latency(latency: Option<&Latency>) -> [String; LATENCY.len()] {
    let at = |percent: f64| shown(latency.and_then(|one| one.percentile(percent)));
    [
        shown(latency.map(|one| one.mean_ns)),
        at(50.0),
        at(99.0),
        at(99.9),
        shown(latency.map(|one| one.max_ns)),
    ]
}

fn shown(value: Option<impl ToString>) -> String {
    value.map(|value| value.to_string()).unwrap_or_default()
}
