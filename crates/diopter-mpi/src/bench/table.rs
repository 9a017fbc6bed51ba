//! The result as text: IOR's lines, with its columns, then a line for each rank.

use std::fmt::Write;

use diopter_bench::document::Direction;

use super::document::{describe, stragglers_of};
use super::figures::{Figures, Times, float, per_second};
use super::run::{Measured, Phase, Plan};

const NS_PER_SECOND: f64 = 1e9;
const KIB: f64 = 1024.0;
const MIB: f64 = 1024.0 * KIB;

/// Returns the text, with a newline at its end.
#[must_use]
pub fn text(plan: &Plan, measured: &Measured) -> String {
    let mut text = format!("{}\n\n", plan.options.shape.name());
    text += "access    bw(MiB/s)  IOPS       Latency(s)  block(KiB) xfer(KiB)  open(s)    \
             wr/rd(s)   close(s)   total(s)   iter\n";
    for phase in &measured.phases {
        push(&mut text, &line(plan, phase));
    }
    for direction in [Direction::Write, Direction::Read] {
        let of_direction = measured.phases.iter().filter(|phase| phase.direction == direction);
        let phases: Vec<&Phase> = of_direction.collect();
        if phases.is_empty() {
            continue;
        }
        let rounds = match phases.len() {
            1 => String::new(),
            count => format!(", mean of {count} rounds"),
        };
        push(&mut text, &format!("\n{}, by rank{rounds}", word(direction)));
        push(&mut text, "rank   bw(MiB/s)  open(s)    wr/rd(s)   close(s)   host");
        for rank in 0..measured.environments.len() {
            push(&mut text, &rank_line(plan, measured, &phases, rank));
        }
        for straggler in stragglers_of(&phases) {
            let found = describe(&straggler, phases.len(), measured);
            push(&mut text, &format!("straggler: {found}"));
        }
    }
    text
}

fn push(text: &mut String, line: &str) {
    writeln!(text, "{line}").expect("memory takes every byte");
}

fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Write => "write",
        Direction::Read => "read",
    }
}

fn seconds(ns: u64) -> f64 {
    float(ns) / NS_PER_SECOND
}

fn line(plan: &Plan, phase: &Phase) -> String {
    let shape = plan.options.shape;
    let times: Vec<Times> = phase.ranks.iter().map(|rank| rank.times).collect();
    let figures = Figures::of(&times, shape.bytes_of_rank(), shape.transfers_of_rank());
    format!(
        "{:<9} {:<10.2} {:<10.2} {:<11.6} {:<10.2} {:<10.2} {:<10.6} {:<10.6} {:<10.6} {:<10.6} {}",
        word(phase.direction),
        figures.bandwidth() / MIB,
        figures.iops(),
        figures.latency_ns / NS_PER_SECOND,
        float(shape.block) / KIB,
        float(shape.transfer) / KIB,
        seconds(figures.open_ns),
        seconds(figures.access_ns),
        seconds(figures.close_ns),
        seconds(figures.total_ns),
        phase.round,
    )
}

fn rank_line(plan: &Plan, measured: &Measured, phases: &[&Phase], rank: usize) -> String {
    let count = u64::try_from(phases.len()).expect("64-bit Linux only");
    let sum = |of: fn(&Times) -> u64| -> u64 {
        phases.iter().map(|phase| of(&phase.ranks[rank].times)).sum()
    };
    let mean = |of| seconds(sum(of)) / float(count);
    let bytes = plan.options.shape.bytes_of_rank() * count;
    format!(
        "{:<6} {:<10.2} {:<10.6} {:<10.6} {:<10.6} {}",
        rank,
        per_second(bytes, sum(Times::total)) / MIB,
        mean(|it| it.open_end - it.open_start),
        mean(Times::access),
        mean(|it| it.close_end - it.close_start),
        diopter_text::untrusted::text(&measured.environments[rank].host),
    )
}
