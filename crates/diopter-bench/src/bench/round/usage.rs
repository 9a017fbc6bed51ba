//! Resource usage of a round and other activity during it, as differences between two snapshots:
//! this process, the machine, and the control group.

use std::fs;
use std::time::Duration;

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeVal;
use serde::{Deserialize, Serialize};

use crate::document::{Processor, Switches};
use crate::number::nanos;

/// Observations during a round, from which warnings are derived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Seen {
    /// Total time of the machine's processors.
    pub available_ns: u64,
    /// Processor time of other programs.
    pub others_ns: u64,
    /// Time taken by the host of a virtual machine.
    pub stolen_ns: u64,
    /// Time for which the control group throttled processes.
    pub throttled_ns: u64,
    /// Pages of the file in the page cache after the round.
    pub pages_cached: u64,
}

/// A snapshot.
#[derive(Clone, Debug)]
pub struct Snapshot {
    own: Own,
    machine: Option<Machine>,
    throttled_us: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct Own {
    user: Duration,
    system: Duration,
    switches: Switches,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Machine {
    user_ns: u64,
    system_ns: u64,
    idle_ns: u64,
    stolen_ns: u64,
}

/// The difference between two snapshots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Used {
    /// Used by the process.
    pub processor: Processor,
    /// Used by everything on the machine.
    pub machine: Option<Processor>,
    pub switches: Switches,
    pub seen: Seen,
}

/// The processes whose time is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// This process.
    Own,
    /// The children that it has waited for.
    Children,
}

impl Snapshot {
    /// Takes a snapshot.
    pub fn now(scope: Scope) -> Snapshot {
        Snapshot {
            own: own(scope),
            machine: fs::read_to_string("/proc/stat").ok().and_then(|text| machine(&text)),
            throttled_us: throttled_us(),
        }
    }

    /// Returns the difference from here to `later`.
    pub fn until(&self, later: &Snapshot) -> Used {
        let own = |of: fn(&Own) -> Duration| nanos(of(&later.own).saturating_sub(of(&self.own)));
        let processor = Processor { user_ns: own(|it| it.user), system_ns: own(|it| it.system) };
        let before = self.own.switches;
        let after = later.own.switches;
        let switches = Switches {
            voluntary: after.voluntary.saturating_sub(before.voluntary),
            involuntary: after.involuntary.saturating_sub(before.involuntary),
        };
        let throttled_us = later.throttled_us.saturating_sub(self.throttled_us);
        let mut seen = Seen { throttled_ns: throttled_us * 1000, ..Seen::default() };
        let mut whole = None;
        if let (Some(first), Some(last)) = (self.machine, later.machine) {
            let passed = |of: fn(&Machine) -> u64| of(&last).saturating_sub(of(&first));
            let user_ns = passed(|it| it.user_ns);
            let system_ns = passed(|it| it.system_ns);
            whole = Some(Processor { user_ns, system_ns });
            seen.stolen_ns = passed(|it| it.stolen_ns);
            seen.available_ns = user_ns + system_ns + seen.stolen_ns + passed(|it| it.idle_ns);
            // Only the time of programs: the kernel also works for this process outside of it.
            seen.others_ns = user_ns.saturating_sub(processor.user_ns);
        }
        Used { processor, machine: whole, switches, seen }
    }
}

/// Returns the peak memory of this process, or of its largest child, in bytes.
pub fn memory_peak_bytes(scope: Scope) -> Option<u64> {
    let kib = getrusage(who(scope)).ok()?.max_rss();
    u64::try_from(kib).ok().map(|kib| kib * 1024)
}

fn who(scope: Scope) -> UsageWho {
    match scope {
        Scope::Own => UsageWho::RUSAGE_SELF,
        Scope::Children => UsageWho::RUSAGE_CHILDREN,
    }
}

fn own(scope: Scope) -> Own {
    let Ok(usage) = getrusage(who(scope)) else { return Own::default() };
    let count = |of: fn(&Usage) -> i64| u64::try_from(of(&usage)).unwrap_or(0);
    Own {
        user: duration(usage.user_time()),
        system: duration(usage.system_time()),
        switches: Switches {
            voluntary: count(|it| it.voluntary_context_switches()),
            involuntary: count(|it| it.involuntary_context_switches()),
        },
    }
}

fn duration(time: TimeVal) -> Duration {
    let seconds = u64::try_from(time.tv_sec()).unwrap_or(0);
    let micros = u64::try_from(time.tv_usec()).unwrap_or(0);
    Duration::from_secs(seconds) + Duration::from_micros(micros)
}

/// Parses the first line of /proc/stat (proc_stat(5)), in ticks of a hundredth of a second on every
/// architecture that diopter supports. User time already includes guests.
fn machine(text: &str) -> Option<Machine> {
    const TICK_NS: u64 = 10_000_000;
    let line = text.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let fields: Vec<u64> = line.split_whitespace().map(|word| word.parse().unwrap_or(0)).collect();
    let sum = |at: &[usize]| {
        at.iter().map(|at| fields.get(*at).copied().unwrap_or(0)).sum::<u64>() * TICK_NS
    };
    Some(Machine {
        user_ns: sum(&[0, 1]),
        system_ns: sum(&[2, 5, 6]),
        idle_ns: sum(&[3, 4]),
        stolen_ns: sum(&[7]),
    })
}

fn throttled_us() -> u64 {
    let stat = crate::bench::environment::cgroup_file("cpu.stat").unwrap_or_default();
    let line = stat.lines().find_map(|line| line.strip_prefix("throttled_usec "));
    line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn the_machines_line_is_read_in_nanoseconds() {
        let text = "cpu  10 2 3 100 5 1 1 4 9 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let expected = Machine {
            user_ns: 120_000_000,
            system_ns: 50_000_000,
            idle_ns: 1_050_000_000,
            stolen_ns: 40_000_000,
        };
        assert_eq!(machine(text), Some(expected));
        assert_eq!(machine("intr 1 2 3"), None);
    }

    #[test]
    fn work_between_two_looks_is_seen_as_this_process_own() {
        let before = Snapshot::now(Scope::Own);
        let started = Instant::now();
        let mut sum = 0u64;
        while started.elapsed() < Duration::from_millis(30) {
            sum = std::hint::black_box(sum.wrapping_add(1));
        }
        let after = Snapshot::now(Scope::Own);
        let used = before.until(&after);
        assert!(used.processor.user_ns + used.processor.system_ns > 0, "{used:?}");
        assert!(memory_peak_bytes(Scope::Own).is_some_and(|bytes| bytes > 1 << 20));
    }
}
