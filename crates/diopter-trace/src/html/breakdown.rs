//! Where the time went, as an icicle: all requests, then files, reads and writes, phases. Each
//! block is as wide as its time; a block is above the one that it is part of.

use std::collections::BTreeMap;

use maud::{Markup, html};

use super::parts::{grouped, percent, time, width};
use crate::document::{PhaseLatency, Summary};
use crate::findings::op_name;
use crate::model::Trace;
use crate::phases::{PHASE_NAMES, Phases};
use crate::sentences::of_total;
use crate::totals::failure_of;

/// Files that have a separate block.
const FILES_MAX: usize = 8;

/// Time of one file's reads or writes, by phase; the last is time that no phase explains.
type Times = [u64; 6];

struct Block {
    level: usize,
    from: u64,
    length: u64,
    class: &'static str,
    label: String,
}

/// The section: the picture, and its figures as a table.
pub fn section(trace: &Trace, summary: &Summary) -> Markup {
    let whole = summary.latency_ns.total.map_or(0, |total| total.sum);
    html! {
        section #breakdown {
            h2 { "Where the time went" }
            p.quiet {
                "The time of all requests together, which overlap: "
                (time(whole)) ". Point at a block for its figures."
            }
            (icicle(trace, whole))
            p.axis {
                span { "0" } span { "time of all requests together" } span { (time(whole)) }
            }
            (table(summary, whole))
        }
    }
}

fn icicle(trace: &Trace, whole: u64) -> Markup {
    let blocks = blocks_of(trace, whole);
    html! {
        div.icicle role="img" aria-label="where the time went; the table below has the figures" {
            @for block in &blocks {
                div class={ "block " (block.class) }
                    style={ "left:" (width(block.from, whole)) "%;width:"
                            (width(block.length, whole)) "%;--level:" (block.level) }
                    title={ (block.label) ": " (time(block.length)) ", "
                            (percent(block.length, whole)) } {
                    span { (block.label) }
                }
            }
        }
    }
}

fn blocks_of(trace: &Trace, whole: u64) -> Vec<Block> {
    let mut blocks = Vec::new();
    blocks.push(Block {
        level: 0,
        from: 0,
        length: whole,
        class: "all",
        label: "all requests".to_owned(),
    });
    let mut at = 0;
    for (name, by_op) in by_file(trace) {
        let length = by_op.values().flatten().sum();
        blocks.push(Block { level: 1, from: at, length, class: "file", label: name });
        for (op, times) in by_op {
            let length = times.iter().sum();
            blocks.push(Block { level: 2, from: at, length, class: "op", label: format!("{op}s") });
            let names = PHASE_NAMES.into_iter().chain(["unknown"]);
            for (name, length) in names.zip(times).filter(|(_, length)| *length > 0) {
                let label = name.to_owned();
                blocks.push(Block { level: 3, from: at, length, class: name, label });
                at += length;
            }
        }
    }
    blocks
}

/// Files, the one with the most time first; those past the limit are one.
fn by_file(trace: &Trace) -> Vec<(String, BTreeMap<&'static str, Times>)> {
    let mut files: Vec<BTreeMap<&'static str, Times>> = vec![BTreeMap::new(); trace.files.len()];
    for request in trace.requests.iter().filter(|request| failure_of(request).is_none()) {
        let phases = Phases::of(trace, request);
        let (Some(total), Some(file)) = (phases.total, files.get_mut(request.file)) else {
            continue;
        };
        let times = file.entry(op_name(request.op)).or_default();
        let seen = phases.in_order().map(Option::unwrap_or_default);
        let unknown = total.saturating_sub(seen.iter().sum());
        for (sum, time) in times.iter_mut().zip(seen.into_iter().chain([unknown])) {
            *sum = sum.saturating_add(time);
        }
    }
    let mut named: Vec<(String, BTreeMap<&'static str, Times>)> =
        trace.files.iter().map(|file| file.path.clone()).zip(files).collect();
    named.retain(|(_, times)| !times.is_empty());
    named.sort_by_key(|(_, times)| std::cmp::Reverse(times.values().flatten().sum::<u64>()));
    let rest = named.split_off(named.len().min(FILES_MAX));
    if !rest.is_empty() {
        let mut others: BTreeMap<&'static str, Times> = BTreeMap::new();
        for (op, times) in rest.iter().flat_map(|(_, times)| times) {
            let sums = others.entry(*op).or_default();
            for (sum, time) in sums.iter_mut().zip(times) {
                *sum = sum.saturating_add(*time);
            }
        }
        named.push((format!("{} more", rest.len()), others));
    }
    named
}

fn table(summary: &Summary, whole: u64) -> Markup {
    let latency = &summary.latency_ns;
    let meanings = [
        "until the last bio was queued",
        "until the driver had the last bio",
        "until the device was done",
        "until the completion ran",
        "until the waiting thread had it",
    ];
    let phases = [latency.submit, latency.queue, latency.device, latency.detour, latency.wake];
    html! {
        div.scroll { table {
            thead { tr {
                th { "phase" } th.wide { "is the time" } th.num { "requests" } th.num { "p50" }
                th.num { "p99" } th.num { "max" } th.num { "share" }
            } }
            tbody {
                @for ((name, meaning), phase) in PHASE_NAMES.iter().zip(meanings).zip(phases) {
                    tr {
                        th scope="row" { span class={ "swatch " (name) } {} (name) }
                        td.wide.quiet { (meaning) }
                        (cells(phase, whole))
                    }
                }
                tr.total {
                    th scope="row" { "total" }
                    td.wide.quiet { "from system call to wake-up" }
                    (cells(latency.total, whole))
                }
            }
        } }
        @if let Some(sentence) = of_total(summary) { p.quiet { (sentence) "." } }
    }
}

fn cells(phase: Option<PhaseLatency>, whole: u64) -> Markup {
    html! {
        @match phase {
            Some(phase) => {
                td.num { (grouped(phase.count)) }
                td.num { (time(phase.p50)) }
                td.num { (time(phase.p99)) }
                td.num { (time(phase.max)) }
                td.num { (percent(phase.sum, whole)) }
            }
            None => {
                td.num { "-" } td.num { "-" } td.num { "-" } td.num { "-" } td.num { "-" }
            }
        }
    }
}
