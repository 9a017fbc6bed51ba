//! Requests leave the join when no event is expected that would change them, so that a long trace
//! takes no more memory than a short one.

use std::collections::HashMap;
use std::path::Path;

use diopter::probe::known;

use super::{Join, Pending};
use crate::flushes::OTHER_FILES;
use crate::model::{Context, Door, TracedBio, TracedFile, TracedOp, TracedRequest};
use crate::names::FileId;
use crate::totals::Collector;

/// A request's last events come within this time of its completion: further bios of a device that
/// is done at once.
const SETTLE_TIME: u64 = 10_000_000;
/// A thread is awaited so long after the completion of its request.
const WAKE_TIME: u64 = 1_000_000_000;
/// A request without an end after this time counts as unfinished: the event of its end may be lost.
const LOST_TIME: u64 = 60_000_000_000;

impl Join {
    /// The number of requests that it holds.
    #[must_use]
    pub fn held(&self) -> usize {
        self.requests.len()
    }

    /// Hands over the requests that are through. Without `has_wakes`, no event shows when their
    /// threads woke.
    pub fn retire(&mut self, has_wakes: bool, collector: &mut Collector) {
        self.end_missed_before(self.last);
        for number in 0..self.requests.len() {
            if self.age(self.requests[number].request.times.begin) > WAKE_TIME {
                self.end_past_end(number);
            }
        }
        let repeated: Vec<usize> = self.given_up.values().copied().collect();
        let mut is_through: Vec<bool> =
            self.requests.iter().map(|pending| self.is_through(pending, has_wakes)).collect();
        for number in repeated {
            let begin = self.requests[number].request.times.begin;
            is_through[number] = self.age(begin) > LOST_TIME;
        }
        for thread in self.threads.values() {
            // It may hand down more.
            if let Some(open) = thread.open {
                is_through[open] &= self.requests[open].request.bios.is_empty();
            }
        }
        self.hand_over(&is_through, collector);
    }

    /// Hands over every request, and what else the trace has to show.
    pub fn finish(mut self, collector: &mut Collector) {
        self.end_all_missed();
        for number in 0..self.requests.len() {
            self.end_past_end(number);
        }
        self.end_all_flushes();
        self.hand_over(&vec![true; self.requests.len()], collector);
        collector.finish();
        let trace = &mut collector.trace;
        if self.unfinished > 0 {
            let requests = counted(self.unfinished, ["request", "requests"]);
            trace.unknown.push(format!("how {requests} ended: no event showed it"));
        }
        if !self.workers.is_empty() {
            let count = u64::try_from(self.workers.len()).expect("a length fits 64 bits");
            let entries = counted(count, ["entry", "entries"]);
            trace.unknown.push(format!("{entries} of rings that workers of the kernel took"));
        }
        let others = || TracedFile { path: OTHER_FILES.to_owned(), ..TracedFile::default() };
        let describe =
            |file: &Option<FileId>| file.map_or_else(others, |file| self.files.describe(file));
        trace.files = self.file_ids.iter().map(describe).collect();
        trace.unseen_files = self.files.on_btrfs();
        let is_btrfs = trace.files.iter().any(|file| file.file_system == "btrfs");
        if is_btrfs || !trace.unseen_files.is_empty() {
            trace.unknown.push(unseen(&trace.unseen_files));
        }
        trace.flushed_files = self.flushed_files();
        trace.has_flushes = self.has_flushes;
        trace.has_rings = !self.ring_processes.is_empty();
        trace.queues = self.queues;
    }

    fn age(&self, time: u64) -> u64 {
        self.last.saturating_sub(time)
    }

    fn is_through(&self, pending: &Pending, has_wakes: bool) -> bool {
        let times = &pending.request.times;
        if !pending.is_complete && !pending.is_given_up {
            return self.age(times.begin) > LOST_TIME;
        }
        let ended = times.completed.or(times.device_done).unwrap_or(times.begin);
        // No event shows the wake-up of a thread that waits in its system call.
        let is_shown = has_wakes
            && match pending.request.door {
                Door::Syscall => false,
                Door::Unknown => self.aio_processes.contains(&pending.process),
                Door::Aio | Door::Uring => true,
            };
        let is_awaited = is_shown && times.woken.is_none() && !pending.is_given_up;
        self.age(ended) > if is_awaited { WAKE_TIME } else { SETTLE_TIME }
    }

    fn hand_over(&mut self, is_leaving: &[bool], collector: &mut Collector) {
        let (numbers, bio_numbers) = self.numbers(is_leaving);
        let mut bios: Vec<Option<TracedBio>> =
            std::mem::take(&mut self.bios).into_iter().map(Some).collect();
        let requests = std::mem::take(&mut self.requests);
        for (pending, is_leaving) in requests.into_iter().zip(is_leaving) {
            if !is_leaving {
                self.keep(pending, &bio_numbers);
                continue;
            }
            let of_request = pending.request.bios.iter().filter_map(|bio| bios[*bio].take());
            let of_request: Vec<TracedBio> = of_request.collect();
            if !pending.is_given_up {
                self.unfinished += u64::from(!pending.is_complete);
                collector.add(self.described(pending), of_request);
            }
        }
        self.bios = bios.into_iter().flatten().collect();
        let owners = std::mem::take(&mut self.owners);
        self.owners = owners.into_iter().filter_map(|owner| numbers[owner]).collect();
        self.outstanding.renumber(&bio_numbers);
        self.renumber(&numbers);
        collector.add_flushes(&std::mem::take(&mut self.flushes));
        collector.end_part();
    }

    /// The new numbers of the requests that stay, and of their bios.
    fn numbers(&self, is_leaving: &[bool]) -> (Vec<Option<usize>>, Vec<Option<usize>>) {
        let counted = |stays: &mut dyn Iterator<Item = bool>| {
            let mut next = 0;
            let number = |stays: bool| {
                next += usize::from(stays);
                stays.then(|| next - 1)
            };
            stays.map(number).collect::<Vec<Option<usize>>>()
        };
        let requests = counted(&mut is_leaving.iter().map(|is_leaving| !is_leaving));
        let bios = counted(&mut self.owners.iter().map(|owner| !is_leaving[*owner]));
        (requests, bios)
    }

    fn keep(&mut self, mut pending: Pending, bio_numbers: &[Option<usize>]) {
        let bios = pending.request.bios.iter();
        pending.request.bios = bios.filter_map(|bio| bio_numbers[*bio]).collect();
        self.requests.push(pending);
    }

    /// Everything that names requests names those that stay by their new numbers.
    fn renumber(&mut self, numbers: &[Option<usize>]) {
        self.in_flight.retain(|_, waiting| {
            waiting.retain_mut(|number| renumbered(number, numbers));
            !waiting.is_empty()
        });
        self.reapable.retain(|_, waiting| {
            waiting.retain_mut(|number| renumbered(number, numbers));
            !waiting.is_empty()
        });
        self.uncompleted.retain_mut(|number| renumbered(number, numbers));
        self.awaited.retain_mut(|number| renumbered(number, numbers));
        retain(&mut self.entries, numbers);
        retain(&mut self.given_up, numbers);
        retain(&mut self.raw, numbers);
        for thread in self.threads.values_mut() {
            thread.open = thread.open.and_then(|open| numbers[open]);
        }
    }

    /// A request with what only the whole trace shows.
    fn described(&self, pending: Pending) -> TracedRequest {
        let file_system = self.files.file_system(pending.inode);
        let mut request = pending.request;
        if request.door == Door::Unknown {
            let has_aio = self.aio_processes.contains(&pending.process);
            request.door = if has_aio { Door::Aio } else { Door::Syscall };
            if !has_aio {
                // As of one bio: an interrupt wakes the thread at a time that is not known.
                let is_inline = request.context == Some(Context::Task);
                request.times.woken = request.times.completed.filter(|_| is_inline);
                request.context = request.context.map(|_| Context::Task);
            }
        }
        if matches!(file_system, "ext4" | "xfs") && request.is_unwritten.is_none() {
            request.is_unwritten = Some(false);
        }
        if request.op == TracedOp::Read {
            request.is_extending = request.is_extending.map(|_| false);
        }
        request
    }
}

/// Direct requests that btrfs serves through the page cache without iomap make no event that
/// buffered ones do not make: misaligned ones, and since Linux 6.15 writes of files with checksums.
fn unseen(files: &[String]) -> String {
    let path = match files {
        [path] => known::shell_word(Path::new(path)),
        _ => "FILE".to_owned(),
    };
    format!(
        "requests that btrfs served through the page cache: it has no event for misaligned ones, \
         nor for writes with checksums; run `dio probe {path}`, which reports what it serves so"
    )
}

fn counted(count: u64, [one, many]: [&str; 2]) -> String {
    format!("{count} {}", if count == 1 { one } else { many })
}

fn renumbered(number: &mut usize, numbers: &[Option<usize>]) -> bool {
    let new = numbers[*number];
    *number = new.unwrap_or(*number);
    new.is_some()
}

fn retain<K>(map: &mut HashMap<K, usize>, numbers: &[Option<usize>]) {
    map.retain(|_, number| renumbered(number, numbers));
}
