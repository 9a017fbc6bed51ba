//! The state of direct I/O on an open file: what opening it found out, a trial on request, and a
//! sample of its large reads.

use diopter_core::engine::with_thread_engine;
use diopter_core::policy::RoutePolicy;
use diopter_core::sync::{AtomicU64, Ordering};
use diopter_os::Lent;
use diopter_os::buf::populate;
use diopter_os::file::{self, DirectSupport};
use diopter_os::residency::{ResidencySource, residency};

use super::File;
use crate::direct::{self, DirectState, DirectStates, WriteBack};

/// Reads of at least so many bytes are sampled: two calls more cost nothing next to them.
pub(super) const SAMPLED_BYTES_MIN: u64 = 1 << 20;

/// One of so many large reads is looked at, the first one included.
const SAMPLED_EACH: u64 = 32;

/// The sample of an open file, which its clones share.
pub(super) struct Sample {
    /// Large reads so far.
    reads: AtomicU64,
    /// Those of the sample that left new pages in the page cache.
    buffered: AtomicU64,
}

impl Sample {
    pub fn new() -> Sample {
        Sample { reads: AtomicU64::new(0), buffered: AtomicU64::new(0) }
    }
}

impl File {
    /// Returns how much of the file's I/O can be direct.
    #[must_use]
    pub fn direct_support(&self) -> DirectSupport {
        self.inner.facts.direct
    }

    /// Returns how much is known of direct I/O on the file without a trial made for it. Opening it
    /// makes one for a strict file, and on btrfs for one that is open for writing. If a read of the
    /// sample left new pages in the page cache ([`File::buffered_reads_seen`]), the state of reads
    /// is at most [`Unknown`](DirectState::Unknown).
    #[must_use]
    pub fn direct_states(&self) -> DirectStates {
        let states = self.inner.facts.states;
        match self.buffered_reads_seen() {
            0 => states,
            _ => DirectStates { reads: states.reads.least(DirectState::Unknown), ..states },
        }
    }

    /// Returns how many reads of the sample left new pages in the page cache, by this open file and
    /// its clones: of blocking reads of at least 1 MiB one in 32, the first one included. The
    /// kernel has sent them there, or another process has read the same bytes meanwhile.
    #[must_use]
    pub fn buffered_reads_seen(&self) -> u64 {
        self.inner.sample.buffered.load(Ordering::Relaxed)
    }

    /// Finds out whether direct I/O on the file is direct. On its file system one block of a file
    /// without a name is written and read, once for each kind of file; the result is remembered.
    /// The file itself is neither read nor written. Its requests are served as before.
    ///
    /// Without permission to make a file there, on a file system that is mounted read-only or has
    /// no `O_TMPFILE`, both states are [`DirectState::Unknown`].
    #[must_use]
    pub fn try_direct(&self) -> DirectStates {
        let each = self.object_descriptors().map(|object| match file::inspect(object) {
            Ok(opened) => direct::tried_on_content(&opened, WriteBack::Not),
            Err(_) => DirectStates::both(DirectState::Unknown),
        });
        // Objects of a cluster have no page cache here.
        each.reduce(DirectStates::least).unwrap_or(self.inner.facts.states)
    }

    /// Prepares a large read. Once the sample has seen the kernel fall back to the page cache, the
    /// caller's memory is populated: btrfs falls back where a page was never written. Returns how
    /// many pages of the range are in the page cache, if the read is one of the sample.
    #[cold]
    pub(super) fn begin_large_read(
        &self,
        lent: &mut Lent<'_, '_>,
        range: (u64, u64),
    ) -> Option<u64> {
        let of_engine = || with_thread_engine(|core| core.policies.route);
        let route = self.inner.target.access.route.unwrap_or_else(of_engine);
        let is_direct =
            matches!(self.direct_support(), DirectSupport::Full | DirectSupport::ReadsOnly);
        let may_be_direct = matches!(route, RoutePolicy::Direct | RoutePolicy::Adaptive);
        if !may_be_direct || !is_direct {
            return None;
        }
        let sample = &self.inner.sample;
        if sample.buffered.load(Ordering::Relaxed) > 0 {
            each_part(lent, populate);
        }
        let number = sample.reads.fetch_add(1, Ordering::Relaxed);
        number.is_multiple_of(SAMPLED_EACH).then(|| self.pages(range)).flatten()
    }

    /// Counts a large read of the sample that has left new pages in the page cache.
    #[cold]
    pub(super) fn end_large_read(&self, before: Option<u64>, range: (u64, u64)) {
        if let Some(before) = before
            && self.pages(range) > Some(before)
        {
            self.inner.sample.buffered.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns how many pages of a range are in the page cache; `None` where the kernel does not
    /// show them, and for a file that is not one object.
    fn pages(&self, (offset, length): (u64, u64)) -> Option<u64> {
        let found =
            residency(self.plain_fd()?, offset, length, offset.saturating_add(length)).ok()?;
        (found.source == ResidencySource::Cachestat).then_some(found.pages_cached)
    }
}

fn each_part(lent: &mut Lent<'_, '_>, populate: fn(&mut [u8])) {
    match lent {
        Lent::Fill(memory) => populate(memory),
        Lent::FillVectored(parts) => parts.iter_mut().for_each(|part| populate(part)),
        Lent::Take(_) | Lent::TakeVectored(_) => {}
    }
}
