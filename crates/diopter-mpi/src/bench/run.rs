//! The order of a benchmark: before each phase rank 0 says whether it goes on, all ranks are
//! released together, and each reports to rank 0.

use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use diopter::IoBuf;
use diopter_bench::bench::environment;
use diopter_bench::document::{Direction, Environment};
use serde::{Deserialize, Serialize};

use super::round::{self, Options, Reported};
use super::shape::Layout;
use crate::transport::{Transport, from_json, receive, to_json};

/// The whole benchmark.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The work of each rank.
    pub options: Options,
    /// Rounds (`-i`).
    pub rounds: u32,
    /// Writes (`-w`).
    pub writes: bool,
    /// Reads (`-r`).
    pub reads: bool,
    /// Leaves the files of the last round (`-k`).
    pub keeps: bool,
}

/// All ranks in one phase of one round.
#[derive(Clone, Debug)]
pub struct Phase {
    /// The round, from 0.
    pub round: u32,
    /// Writes or reads.
    pub direction: Direction,
    /// Start time: nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// The reports of the ranks.
    pub ranks: Vec<Reported>,
}

/// The result of a benchmark, on rank 0.
#[derive(Clone, Debug, Default)]
pub struct Measured {
    /// The machine of each rank.
    pub environments: Vec<Environment>,
    /// Phases, in time order.
    pub phases: Vec<Phase>,
    /// The reasons for an early end.
    pub failures: Vec<String>,
}

/// The message of rank 0 before each phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Next {
    Phase(Direction),
    Remove,
    End,
}

/// The state of one rank between phases.
struct Rank<'a> {
    plan: &'a Plan,
    rank: usize,
    /// The memory of a transfer; `None` if there is not enough.
    buffer: Option<IoBuf>,
    /// True if this rank made its file, and is to remove it.
    has_made: bool,
}

/// Runs the part of this rank. Rank 0 gets the result.
pub fn run(transport: &mut dyn Transport, plan: &Plan) -> Option<Measured> {
    let mut rank = Rank::new(plan, transport.rank());
    if transport.rank() == 0 {
        return Some(lead(transport, &mut rank));
    }
    transport.send(0, &to_json(&environment_of(&plan.options.file)));
    loop {
        let (_, message) = receive(transport);
        match from_json(&message) {
            Next::Phase(direction) => {
                let reported = rank.take_part(transport, direction);
                transport.send(0, &to_json(&reported));
            }
            Next::Remove => transport.send(0, &to_json(&rank.remove())),
            Next::End => return None,
        }
    }
}

impl Rank<'_> {
    fn new(plan: &Plan, rank: usize) -> Rank<'_> {
        let bytes = usize::try_from(plan.options.shape.transfer).expect("64-bit Linux only");
        let mut buffer = IoBuf::new(bytes).ok();
        let mut state = u64::try_from(rank).expect("64-bit Linux only") + 1;
        for byte in buffer.iter_mut().flat_map(|buffer| buffer.iter_mut()) {
            // xorshift64 (Marsaglia 2003): bytes that no device compresses, others on each rank.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *byte = state.to_le_bytes()[0];
        }
        Rank { plan, rank, buffer, has_made: false }
    }

    fn take_part(&mut self, transport: &mut dyn Transport, direction: Direction) -> Reported {
        transport.align();
        let Some(buffer) = &mut self.buffer else {
            let failure = Some("there is no memory for a transfer; reduce -t".to_owned());
            return Reported { failure, ..Reported::default() };
        };
        let reported = round::run(&self.plan.options, self.rank, direction, buffer);
        self.has_made |= reported.has_made;
        reported
    }

    /// Removes the file of this rank, if it made one; returns what failed.
    fn remove(&mut self) -> Option<String> {
        if !std::mem::take(&mut self.has_made) {
            return None;
        }
        let path = self.plan.options.file_of(self.rank);
        let removed = std::fs::remove_file(&path);
        let name = diopter_text::untrusted::name(&path);
        removed.err().map(|error| format!("removing {name}: {error}"))
    }
}

fn lead(transport: &mut dyn Transport, rank: &mut Rank<'_>) -> Measured {
    let plan = rank.plan;
    let environments = gather(transport, environment_of(&plan.options.file));
    let mut measured = Measured { environments, ..Measured::default() };
    let directions = [(plan.writes, Direction::Write), (plan.reads, Direction::Read)];
    'rounds: for round in 0..plan.rounds {
        for (_, direction) in directions.iter().filter(|(is_on, _)| *is_on) {
            let phase = lead_phase(transport, rank, (round, *direction));
            let failures = phase.as_ref().map_or_else(|why| vec![why.clone()], Phase::failures);
            if !failures.is_empty() {
                measured.failures = failures;
                break 'rounds;
            }
            measured.phases.extend(phase);
        }
        if round + 1 < plan.rounds {
            lead_removal(transport, rank, &mut measured.failures);
        }
    }
    if !plan.keeps || !measured.failures.is_empty() {
        lead_removal(transport, rank, &mut measured.failures);
    }
    send_all(transport, Next::End);
    measured
}

fn lead_phase(
    transport: &mut dyn Transport,
    rank: &mut Rank<'_>,
    (round, direction): (u32, Direction),
) -> Result<Phase, String> {
    let is_shared = rank.plan.options.shape.layout != Layout::FilePerProcess;
    if direction == Direction::Write && is_shared {
        rank.plan.options.create_shared()?;
        rank.has_made = true;
    }
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let started_unix_ns = diopter_bench::number::nanos(since);
    send_all(transport, Next::Phase(direction));
    let own = rank.take_part(transport, direction);
    let ranks = gather(transport, own);
    Ok(Phase { round, direction, started_unix_ns, ranks })
}

/// Removes the files that the ranks made.
fn lead_removal(transport: &mut dyn Transport, rank: &mut Rank<'_>, failures: &mut Vec<String>) {
    send_all(transport, Next::Remove);
    let own = rank.remove();
    failures.extend(gather(transport, own).into_iter().flatten());
}

impl Phase {
    /// Returns what failed, with the ranks.
    fn failures(&self) -> Vec<String> {
        let failures = self.ranks.iter().enumerate().filter_map(|(rank, reported)| {
            Some(format!("rank {rank}: {}", reported.failure.as_ref()?))
        });
        failures.collect()
    }
}

fn send_all(transport: &mut dyn Transport, next: Next) {
    for rank in 1..transport.size() {
        transport.send(rank, &to_json(&next));
    }
}

/// Returns what each rank sent, this one first.
fn gather<T>(transport: &mut dyn Transport, own: T) -> Vec<T>
where
    T: serde::de::DeserializeOwned,
{
    let mut all: Vec<Option<T>> = (0..transport.size()).map(|_| None).collect();
    all[0] = Some(own);
    for _ in 1..transport.size() {
        let (rank, message) = receive(transport);
        all[rank] = Some(from_json(&message));
    }
    all.into_iter().map(|one| one.expect("each rank sends once")).collect()
}

/// Describes this machine, with its name: a straggler is found by it.
fn environment_of(file: &Path) -> Environment {
    let dir = file.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim_end().to_owned();
    Environment { host, ..environment::of(dir) }
}
