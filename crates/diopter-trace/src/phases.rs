//! Where the time of one request went: five phases, one after the other, whose sum is its total.
//! Nothing here knows about more than one request.

use crate::model::{Trace, TracedRequest};

/// The phases' names, in the order in which a request goes through them.
pub const PHASE_NAMES: [&str; 5] = ["submit", "queue", "device", "detour", "wake"];

/// Nanoseconds in each phase; `None` where an end of it was not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// From its entry into the kernel until its last bio was queued.
    pub submit: Option<u64>,
    /// Until the driver had the last bio.
    pub queue: Option<u64>,
    /// Until the device was done with the last bio. With the queue if no event showed when the
    /// driver got the bios.
    pub device: Option<u64>,
    /// Until its completion ran: the way to a worker, if it took one.
    pub detour: Option<u64>,
    /// Until the waiting thread had it.
    pub wake: Option<u64>,
    /// From its entry into the kernel to the last of these that was seen.
    pub total: Option<u64>,
}

impl Phases {
    /// Returns the phases of one request of `trace`.
    #[must_use]
    pub fn of(trace: &Trace, request: &TracedRequest) -> Phases {
        let times = &request.times;
        let begin = Some(times.begin);
        let submitted = later(times.submitted, begin);
        let issued = later(last_issued(trace, request), submitted);
        let device_done = later(times.device_done, later(issued, submitted).or(submitted));
        let completed = later(times.completed, device_done.or(submitted).or(begin));
        let woken = later(times.woken, completed.or(begin));
        Phases {
            submit: between(begin, submitted),
            queue: between(submitted, issued),
            device: between(issued.or(submitted), device_done),
            detour: between(device_done, completed),
            wake: between(completed, woken),
            total: between(begin, woken.or(completed)),
        }
    }

    /// The phases in the order of [`PHASE_NAMES`].
    #[must_use]
    pub fn in_order(&self) -> [Option<u64>; 5] {
        [self.submit, self.queue, self.device, self.detour, self.wake]
    }
}

/// Returns the end of a request for its submitter: woken, else completed. `None` if neither was
/// seen.
#[must_use]
pub fn end_of(request: &TracedRequest) -> Option<u64> {
    let end = request.times.woken.or(request.times.completed)?;
    Some(end.max(request.times.begin))
}

/// When the driver had the last of its bios; `None` unless that was seen of each.
fn last_issued(trace: &Trace, request: &TracedRequest) -> Option<u64> {
    let issued: Option<Vec<u64>> =
        request.bios.iter().map(|bio| trace.bios.get(*bio)?.issued).collect();
    issued?.into_iter().max()
}

/// `time`, but not before `floor`: bios of one request overlap, phases do not.
fn later(time: Option<u64>, floor: Option<u64>) -> Option<u64> {
    time.map(|time| floor.map_or(time, |floor| time.max(floor)))
}

fn between(from: Option<u64>, to: Option<u64>) -> Option<u64> {
    Some(to?.saturating_sub(from?))
}

/// Most of these requests that were in flight at once.
pub fn in_flight_max<'a>(requests: impl Iterator<Item = &'a TracedRequest>) -> u64 {
    let mut edges: Vec<(u64, bool)> = requests
        .filter_map(|request| Some((request.times.begin, end_of(request)?)))
        .flat_map(|(begin, end)| [(begin, true), (end, false)])
        .collect();
    // An end comes before a begin at the same time: one request made room for the other.
    edges.sort_unstable();
    let mut now = 0_u64;
    let mut most = 0;
    for (_, is_begin) in edges {
        now = if is_begin { now + 1 } else { now.saturating_sub(1) };
        most = most.max(now);
    }
    most
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::RequestTimes;
    use crate::synthetic::Job;

    fn phases_of(change: impl Fn(&mut RequestTimes)) -> Phases {
        let mut trace = Job::default().trace();
        change(&mut trace.requests[0].times);
        Phases::of(&trace, &trace.requests[0])
    }

    #[test]
    fn phases_follow_each_other_and_sum_to_the_total() {
        let phases = phases_of(|_| {});
        let sum: u64 = phases.in_order().into_iter().flatten().sum();
        assert!(phases.in_order().iter().all(Option::is_some), "{phases:?}");
        assert_eq!(Some(sum), phases.total);
    }

    #[test]
    fn a_time_that_was_not_seen_leaves_only_the_phases_next_to_it_unknown() {
        let phases = phases_of(|times| times.completed = None);
        assert_eq!((phases.detour, phases.wake), (None, None));
        assert!(phases.device.is_some() && phases.total.is_some());
        let phases = phases_of(|times| times.woken = None);
        assert_eq!(phases.wake, None);
        assert_eq!(phases.total.unwrap(), phases.in_order().into_iter().flatten().sum::<u64>());
    }

    #[test]
    fn a_bio_that_ends_while_others_are_queued_makes_no_negative_phase() {
        let phases = phases_of(|times| times.device_done = Some(times.begin));
        assert_eq!(phases.device, Some(0));
        let sum: u64 = phases.in_order().into_iter().flatten().sum();
        assert_eq!(Some(sum), phases.total);
    }
}
