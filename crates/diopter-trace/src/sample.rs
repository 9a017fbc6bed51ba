//! Which requests of a trace are shown one by one: the slowest, examples of each finding, those
//! that were deferred or cut, and runs of neighbours taken by chance. A bounded number.

use std::collections::BTreeMap;

use diopter_core::prng::Prng;

use crate::document::Summary;
use crate::model::{Context, Trace};
use crate::phases::Phases;

/// Requests of a sample at most.
pub const SAMPLE_MAX: usize = 2_000;
const SLOWEST: usize = 200;
/// Those deferred, and those cut, that are in it.
const OF_A_KIND: usize = 100;
/// Neighbours that are taken together, so that what was in flight at once can be seen.
const RUN: usize = 50;

/// Why a request is in a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Why {
    /// It is among the slowest.
    Slowest,
    /// Its completion took the way through a worker.
    Deferred,
    /// It became several bios, or one that was cut.
    Split,
    /// A finding shows it.
    Finding,
    /// By chance, with its neighbours.
    Chance,
}

impl Why {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Why::Slowest => "slowest",
            Why::Deferred => "deferred",
            Why::Split => "split",
            Why::Finding => "finding",
            Why::Chance => "chance",
        }
    }
}

/// Requests by their index, and why each is there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// In the order of their begin.
    pub requests: BTreeMap<usize, Vec<Why>>,
}

impl Sample {
    /// Returns a sample of a trace with its summary. The same seed gives the same sample.
    #[must_use]
    pub fn of(trace: &Trace, summary: &Summary, seed: u64) -> Sample {
        let mut sample = Sample::default();
        let examples = summary.findings.iter().flat_map(|finding| &finding.evidence.examples);
        let examples = examples.filter_map(|example| usize::try_from(example.request).ok());
        sample.add(examples.filter(|at| *at < trace.requests.len()), Why::Finding);
        let slowest = slowest(trace, |_| true);
        sample.add(slowest.into_iter().take(SLOWEST), Why::Slowest);
        let deferred = slowest_of(trace, |at| trace.requests[at].context == Some(Context::Kworker));
        sample.add(deferred, Why::Deferred);
        let split = slowest_of(trace, |at| is_split(trace, at));
        sample.add(split, Why::Split);
        sample.add_by_chance(trace.requests.len(), seed);
        sample
    }

    fn add(&mut self, requests: impl IntoIterator<Item = usize>, why: Why) {
        for at in requests {
            let reasons = self.requests.entry(at).or_default();
            if !reasons.contains(&why) {
                reasons.push(why);
            }
        }
    }

    /// Runs of neighbours until the sample is full.
    fn add_by_chance(&mut self, all: usize, seed: u64) {
        if all <= SAMPLE_MAX {
            self.add(0..all, Why::Chance);
            return;
        }
        let mut prng = Prng::new(seed);
        let starts = u64::try_from(all - RUN + 1).expect("a length fits 64 bits");
        // A run adds at least one in all but the rarest case; the bound ends that case.
        for _ in 0..SAMPLE_MAX {
            let room = SAMPLE_MAX.saturating_sub(self.requests.len());
            if room == 0 {
                return;
            }
            let start = usize::try_from(prng.below(starts)).expect("it is below a length");
            self.add(start..start + RUN.min(room), Why::Chance);
        }
    }
}

fn is_split(trace: &Trace, at: usize) -> bool {
    let bios = &trace.requests[at].bios;
    let is_cut = |bio: &usize| trace.bios.get(*bio).is_some_and(|bio| bio.pieces > 1);
    bios.len() > 1 || bios.iter().any(is_cut)
}

fn slowest_of(trace: &Trace, is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
    let mut found = slowest(trace, is_wanted);
    found.truncate(OF_A_KIND);
    found
}

/// The wanted requests, the slowest first.
fn slowest(trace: &Trace, is_wanted: impl Fn(usize) -> bool) -> Vec<usize> {
    let wanted = (0..trace.requests.len()).filter(|at| is_wanted(*at));
    let mut times: Vec<(Option<u64>, usize)> =
        wanted.map(|at| (Phases::of(trace, &trace.requests[at]).total, at)).collect();
    times.sort_unstable_by_key(|(total, at)| (std::cmp::Reverse(*total), *at));
    times.into_iter().map(|(_, at)| at).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summary::summary;
    use crate::synthetic::Job;

    fn sample_of(trace: &Trace, seed: u64) -> Sample {
        Sample::of(trace, &summary(trace), seed)
    }

    #[test]
    fn a_small_trace_is_its_own_sample() {
        let trace = Job::default().trace();
        assert_eq!(sample_of(&trace, 1).requests.len(), 200);
    }

    #[test]
    fn a_large_trace_gives_a_bounded_sample_with_the_slowest_request() {
        println!("seed 1");
        let mut trace = Job::overwrite(|job| job.requests = 20_000).trace();
        trace.requests[12_345].times.woken = Some(1 << 40);
        let sample = sample_of(&trace, 1);
        assert_eq!(sample.requests.len(), SAMPLE_MAX);
        assert!(sample.requests[&12_345].contains(&Why::Slowest));
        let has = |why| sample.requests.values().any(|reasons| reasons.contains(&why));
        assert!(has(Why::Deferred) && has(Why::Finding) && has(Why::Chance));
    }

    #[test]
    fn the_same_seed_gives_the_same_sample() {
        let trace = Job::with(|job| job.requests = 5_000).trace();
        assert_eq!(sample_of(&trace, 7), sample_of(&trace, 7));
        assert_ne!(sample_of(&trace, 7), sample_of(&trace, 8));
    }

    #[test]
    fn a_cut_request_is_among_the_split_ones() {
        let mut trace = Job::with(|job| job.requests = 5_000).trace();
        let bio = trace.requests[4_000].bios[0];
        trace.bios[bio].pieces = 2;
        assert!(sample_of(&trace, 1).requests[&4_000].contains(&Why::Split));
    }
}
