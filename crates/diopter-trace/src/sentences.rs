//! Sentences that the text and the page have in common: what a trace without requests, or without
//! findings, does and does not show.

use crate::document::Summary;
use crate::findings::time_text;

/// Returns the sentence for a document without requests.
#[must_use]
pub fn without_requests(document: &Summary) -> String {
    let who = match document.target.kind.as_str() {
        "processes" => "processes",
        "cgroup" => "control group",
        "all" => "machine",
        _ => "command",
    };
    if !document.unseen_files.is_empty() {
        return "none was seen, and btrfs has no event for those that it serves through the page \
                cache: `dio probe FILE` reports whether it does"
            .to_owned();
    }
    if !document.raw_devices_are_known {
        return "none on a file system; requests on raw devices are not recorded here".to_owned();
    }
    format!(
        "no direct I/O was seen: the {who} made no request with O_DIRECT, or none on a file system \
         or device that has tracepoints, or it was refused before one, or the page cache served it \
         (ext4 with data=journal); `dio probe FILE` reports what direct I/O on a file needs"
    )
}

/// Returns the sentence for flushes that took longer than all requests, or a tenth of the trace, or
/// `None`. Requests overlap: many at once take more time together than a thread has.
#[must_use]
pub fn of_flushes(document: &Summary) -> Option<String> {
    let flushes = document.flushes.calls_ns;
    let requests = document.latency_ns.total.map_or(0, |total| total.sum);
    if flushes == 0 {
        return None;
    }
    let text = format!("threads were in flushes for {}", time_text(flushes));
    if flushes >= requests {
        return Some(format!("{text}, and in these requests for {}", time_text(requests)));
    }
    let traced = document.traced_ns;
    (traced > 0 && flushes >= traced / 10)
        .then(|| format!("{text} of {} traced", time_text(traced)))
}

/// Returns how flushes were asked for, and how they ended.
#[must_use]
pub fn kinds_of_flushes(document: &Summary) -> String {
    let flushes = &document.flushes;
    let mut parts = vec![];
    for (count, what) in
        [(flushes.fsync, "fsync"), (flushes.fdatasync, "fdatasync"), (flushes.uring, "by io_uring")]
    {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    for failure in &flushes.failures {
        parts.push(format!("{} failed with {}", failure.requests, failure.errno));
    }
    if flushes.unfinished > 0 {
        parts.push(format!("{} without an end", flushes.unfinished));
    }
    if flushes.uring_is_partial {
        parts.push("most of io_uring not known".to_owned());
    }
    parts.join(", ")
}

/// Returns the time that threads were in flushes, and that of flushes by rings; `None` if none took
/// any. Threads may be short-lived: only that of a single one is a share of the trace.
#[must_use]
pub fn time_in_flushes(document: &Summary) -> Option<String> {
    let flushes = &document.flushes;
    let mut parts = Vec::new();
    if flushes.calls > 0 {
        let (ns, traced) = (flushes.calls_ns, document.traced_ns);
        let mut text = format!("{} of {} traced", time_text(ns), time_text(traced));
        // The threads of rings are among them.
        match flushes.threads {
            _ if flushes.uring > 0 => {}
            1 => text.push_str(", by 1 thread"),
            many => text.push_str(&format!(", by {many} threads")),
        }
        parts.push(text);
    }
    let of_rings = flushes.latency_ns?.sum.saturating_sub(flushes.calls_ns);
    if of_rings > 0 {
        parts.push(format!("flushes by io_uring took {} together", time_text(of_rings)));
    }
    Some(parts.join("; ")).filter(|text| !text.is_empty())
}

/// Returns the sentence for a document without findings, and true if it is good news: the time of
/// requests went where it should.
#[must_use]
pub fn without_findings(document: &Summary) -> (String, bool) {
    if document.lost_events > 0 {
        return ("none in what was not lost".to_owned(), false);
    }
    match of_flushes(document).or_else(|| of_wake_up(document)) {
        Some(sentence) => (format!("none, but {sentence}"), false),
        None if document.flushes.uring_is_partial => {
            ("none, but flushes by io_uring are not known".to_owned(), false)
        }
        None if document.latency_ns.wake.is_none() => {
            ("none up to the completions: no wake-up is known".to_owned(), false)
        }
        None => ("none: nothing slowed these requests down".to_owned(), true),
    }
}

/// Returns the sentence for wake-ups that are most of the time of all requests, or `None`.
#[must_use]
pub fn of_wake_up(document: &Summary) -> Option<String> {
    let sum = |phase: Option<crate::document::PhaseLatency>| phase.map_or(0, |phase| phase.sum);
    let phases = &document.latency_ns;
    let (wake, total) = (u128::from(sum(phases.wake)), u128::from(sum(phases.total)));
    (wake * 2 > total).then(|| {
        format!(
            "{} % of the time is wake-up: requests were complete, and their threads were busy, \
             collect results in batches, waited for a CPU, or flushed the device after durable \
             writes",
            wake * 100 / total.max(1)
        )
    })
}

/// Returns the sentence for a total that not all requests have to their wake-up; `None` if it is
/// the same for all.
#[must_use]
pub fn of_total(document: &Summary) -> Option<String> {
    let total = document.latency_ns.total?.count;
    let woken = document.latency_ns.wake.map_or(0, |wake| wake.count);
    let rest = total.checked_sub(woken).filter(|rest| *rest > 0)?;
    Some(if woken == 0 {
        "the total is to the completion: no wake-up is known, nor what threads waited for after \
         it, such as the flush of a durable write"
            .to_owned()
    } else {
        format!(
            "the total is to the wake-up for {woken} requests, and to the completion for {rest} \
             whose wake-up is not known"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{PhaseLatencies, PhaseLatency, TargetSummary};
    use crate::summary::summary;
    use crate::synthetic::Job;

    fn with_wake(wake: u64) -> Summary {
        let phase = |sum| Some(PhaseLatency { count: 10, sum, ..PhaseLatency::default() });
        let latency_ns =
            PhaseLatencies { wake: phase(wake), total: phase(1000), ..PhaseLatencies::default() };
        Summary { latency_ns, requests: 10, ..Summary::default() }
    }

    #[test]
    fn wake_ups_that_are_most_of_the_time_are_not_nothing() {
        let (text, is_good) = without_findings(&with_wake(950));
        assert!(!is_good && text.contains("95 % of the time is wake-up"), "{text}");
        let (text, is_good) = without_findings(&with_wake(500));
        assert!(is_good && text.contains("nothing slowed these requests down"), "{text}");
        assert_eq!(of_wake_up(&with_wake(500)), None);
        let lost = Summary { lost_events: 1, ..with_wake(0) };
        assert!(!without_findings(&lost).1);
    }

    #[test]
    fn flushes_that_took_longer_than_requests_are_not_nothing() {
        let with = |sum| {
            let mut document = with_wake(0);
            let latency = PhaseLatency { count: 4, sum, ..PhaseLatency::default() };
            document.flushes.latency_ns = Some(latency);
            (document.flushes.calls, document.flushes.calls_ns) = (4, sum);
            (document.flushes.threads, document.traced_ns) = (2, 9990);
            document
        };
        let (text, is_good) = without_findings(&with(1000));
        let expected = "none, but threads were in flushes for 1.0 us, and in these requests for";
        assert!(!is_good && text.starts_with(expected), "{text}");
        let (text, is_good) = without_findings(&with(999));
        assert!(!is_good && text.ends_with("in flushes for 999 ns of 10.0 us traced"), "{text}");
        assert!(without_findings(&with(998)).1);
        let mut partial = with(998);
        partial.flushes.uring_is_partial = true;
        let (text, is_good) = without_findings(&partial);
        assert!(!is_good && text.contains("flushes by io_uring are not known"), "{text}");
        assert_eq!(kinds_of_flushes(&partial), "most of io_uring not known");
        assert_eq!(time_in_flushes(&with(999)).unwrap(), "999 ns of 10.0 us traced, by 2 threads");
        let mut rings = with(5000);
        (rings.flushes.calls_ns, rings.flushes.uring) = (1000, 1);
        let expected = "1.0 us of 10.0 us traced; flushes by io_uring took 4.0 us together";
        assert_eq!(time_in_flushes(&rings).unwrap(), expected);
        assert_eq!(time_in_flushes(&with_wake(0)), None);
    }

    #[test]
    fn a_total_of_two_kinds_says_how_many_there_are_of_each() {
        let mut trace = Job::default().trace();
        assert_eq!(of_total(&summary(&trace)), None);
        trace.requests.iter_mut().take(30).for_each(|request| request.times.woken = None);
        let text = of_total(&summary(&trace)).unwrap();
        assert!(text.contains("for 170 requests, and to the completion for 30"), "{text}");
        trace.requests.iter_mut().for_each(|request| request.times.woken = None);
        assert!(of_total(&summary(&trace)).unwrap().contains("no wake-up is known"));
    }

    #[test]
    fn a_trace_of_btrfs_without_requests_does_not_deny_direct_io() {
        let raw_devices_are_known = true;
        let none = Summary { raw_devices_are_known, ..Summary::default() };
        assert!(without_requests(&none).contains("no direct I/O was seen"));
        for (kind, who) in [("command", "command"), ("cgroup", "control group")] {
            let target = TargetSummary { kind: kind.to_owned(), ..TargetSummary::default() };
            let text = without_requests(&Summary { target, ..none.clone() });
            assert!(text.contains(&format!("the {who} made no request")), "{text}");
        }
        let unseen_files = vec!["/srv/a".to_owned()];
        let text = without_requests(&Summary { unseen_files, ..none });
        assert!(!text.contains("no direct I/O was seen"), "{text}");
        assert!(text.contains("dio probe FILE"), "{text}");
    }
}
