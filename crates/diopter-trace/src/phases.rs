//! Where the time of one request went: five phases, one after the other, whose sum is its total.
//! Nothing here knows about more than one request.

use crate::model::{Context, Door, Trace, TracedBio, TracedRequest};

/// The phases' names, in the order in which a request goes through them.
pub const PHASE_NAMES: [&str; 5] = ["submit", "queue", "device", "detour", "wake"];

/// Nanoseconds in each phase; `None` where an end of it was not seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Phases {
    /// From its entry into the kernel until its last bio was queued. No event shows the entry of a
    /// request on a raw device.
    pub submit: Option<u64>,
    /// Until the driver had the last bio.
    pub queue: Option<u64>,
    /// Until the device was done with the last bio. With the queue if no event showed when the
    /// driver got the bios.
    pub device: Option<u64>,
    /// Until its completion ran: the way to a worker, if it took one. 0 where the thread that
    /// waits in the kernel completes the request itself.
    pub detour: Option<u64>,
    /// Until the waiting thread had it.
    pub wake: Option<u64>,
    /// From its entry into the kernel, or its first bio on a raw device, to the last of these that
    /// was seen.
    pub total: Option<u64>,
}

impl Phases {
    /// Returns the phases of one request of `trace`.
    #[must_use]
    pub fn of(trace: &Trace, request: &TracedRequest) -> Phases {
        let bios: Option<Vec<&TracedBio>> =
            request.bios.iter().map(|bio| trace.bios.get(*bio)).collect();
        let issued = bios.and_then(|bios| last_issued(bios.into_iter()));
        Phases::with_last_issued(request, issued)
    }

    /// Returns the phases of a request with these bios.
    #[must_use]
    pub fn with_bios<'a>(
        request: &TracedRequest,
        bios: impl Iterator<Item = &'a TracedBio>,
    ) -> Phases {
        Phases::with_last_issued(request, last_issued(bios))
    }

    fn with_last_issued(request: &TracedRequest, issued: Option<u64>) -> Phases {
        let times = &request.times;
        let begin = Some(times.begin);
        let submitted = later(times.submitted, begin);
        let issued = later(issued, submitted);
        let device_done = later(times.device_done, later(issued, submitted).or(submitted));
        let completed = later(times.completed, device_done.or(submitted).or(begin));
        let woken = later(times.woken, completed.or(begin));
        // The waiting thread itself runs the completion: what came before is its wake-up. ext4
        // waits for a write that extends the file, also if it was submitted not to be waited for.
        let is_known = request.door == Door::Syscall || woken.is_some();
        let is_waited_for = is_known && request.context == Some(Context::Task);
        let completed = if is_waited_for { device_done.or(completed) } else { completed };
        Phases {
            submit: between(begin, submitted).filter(|_| !request.is_raw),
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

/// When the driver had the last of these bios; `None` unless that was seen of each.
fn last_issued<'a>(bios: impl Iterator<Item = &'a TracedBio>) -> Option<u64> {
    let issued: Option<Vec<u64>> = bios.map(|bio| bio.issued).collect();
    issued?.into_iter().max()
}

/// `time`, but not before `floor`: bios of one request overlap, phases do not.
fn later(time: Option<u64>, floor: Option<u64>) -> Option<u64> {
    time.map(|time| floor.map_or(time, |floor| time.max(floor)))
}

fn between(from: Option<u64>, to: Option<u64>) -> Option<u64> {
    Some(to?.saturating_sub(from?))
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
    fn the_submission_to_a_raw_device_is_unknown_and_not_0() {
        let trace = Job::with(|job| job.file_system = "raw").trace();
        let phases = Phases::of(&trace, &trace.requests[0]);
        assert_eq!(phases.submit, None);
        assert!(phases.queue.is_some() && phases.total.is_some());
    }

    #[test]
    fn a_thread_that_waits_in_the_kernel_is_woken_and_takes_no_detour() {
        let mut trace = Job::default().trace();
        let deferred = Phases::of(&trace, &trace.requests[0]);
        assert_eq!((deferred.detour, deferred.wake), (Some(2_000), Some(1_000)));
        (trace.requests[0].door, trace.requests[0].context) = (Door::Syscall, Some(Context::Task));
        let waited_for = Phases::of(&trace, &trace.requests[0]);
        assert_eq!((waited_for.detour, waited_for.wake), (Some(0), Some(3_000)));
        assert_eq!(waited_for.total, deferred.total);
        trace.requests[0].door = Door::Aio;
        assert_eq!(Phases::of(&trace, &trace.requests[0]), waited_for);
        trace.requests[0].times.woken = None;
        let unknown = Phases::of(&trace, &trace.requests[0]);
        assert_eq!((unknown.detour, unknown.wake), (Some(2_000), None));
        assert_eq!(unknown.total, deferred.total.map(|total| total - 1_000));
    }

    #[test]
    fn a_bio_that_ends_while_others_are_queued_makes_no_negative_phase() {
        let phases = phases_of(|times| times.device_done = Some(times.begin));
        assert_eq!(phases.device, Some(0));
        let sum: u64 = phases.in_order().into_iter().flatten().sum();
        assert_eq!(Some(sum), phases.total);
    }
}
