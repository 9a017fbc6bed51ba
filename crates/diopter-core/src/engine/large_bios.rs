//! Large bios of one engine: with `DepthPolicy::Auto` no more of them are in the device than help
//! throughput, so that small bios find a short queue. Small bios are never kept back.

use std::collections::VecDeque;

use diopter_os::{BioId, BioResult};

use crate::clock::Nanos;
use crate::engine::depth::{DepthController, DepthReport, Progress};
use crate::limits::BULK_BYTES_MIN;

/// The large bios of one engine.
pub struct LargeBios {
    /// Bytes from which on a bio is large; none is, where nothing is kept back.
    bytes_min: u64,
    controller: DepthController,
    /// Built, and kept back by the depth; oldest first.
    pub(super) kept_back: VecDeque<BioId>,
    /// True if the engine's backlog may hold large bios.
    is_in_backlog: bool,
    /// In the device.
    pub(super) held: u32,
    /// The number in the device after the last hand-over, and whether there were more.
    in_flight: u32,
    has_more: bool,
    /// True if an object had its full share, so that a bio was not even built.
    has_share_full: bool,
    /// Bios and bytes that completed since.
    count: u32,
    bytes: u64,
}

impl LargeBios {
    /// Creates the state for an engine that holds `bios` bios. Large ones are kept back only if
    /// `is_on`.
    pub fn new(is_on: bool, bios: u32) -> LargeBios {
        LargeBios {
            bytes_min: if is_on { BULK_BYTES_MIN.into() } else { u64::MAX },
            controller: DepthController::new(bios),
            kept_back: VecDeque::new(),
            is_in_backlog: false,
            held: 0,
            in_flight: 0,
            has_more: false,
            has_share_full: false,
            count: 0,
            bytes: 0,
        }
    }

    /// Returns true if a bio of `length` bytes, which goes into the backlog, is a large one.
    #[inline]
    pub fn takes(&mut self, length: u64) -> bool {
        let is_large = length >= self.bytes_min;
        if is_large {
            self.is_in_backlog = true;
        }
        is_large
    }

    /// Returns true if each bio of the backlog must be checked.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.is_in_backlog || self.has_share_full || !self.kept_back.is_empty()
    }

    /// Something is not built because its object has its share of the depth.
    pub fn note_share(&mut self) {
        self.has_share_full = self.bytes_min != u64::MAX;
    }

    /// How many may be in the device.
    pub fn depth(&self) -> u32 {
        self.controller.depth()
    }

    /// Bios that are kept back.
    pub fn kept_back(&mut self) -> &mut VecDeque<BioId> {
        &mut self.kept_back
    }

    /// Returns true if a bio is kept back.
    pub fn has_kept_back(&self) -> bool {
        !self.kept_back.is_empty()
    }

    /// Returns true if one more bio may go to the device.
    pub fn has_room(&self) -> bool {
        self.held < self.controller.depth()
    }

    /// Ends a hand-over: all bios that may go have gone; `is_empty` if the backlog is empty, too.
    pub fn end_hand_over(&mut self, is_empty: bool) {
        self.is_in_backlog = !is_empty;
        self.in_flight = self.held;
        let has_share_full = std::mem::take(&mut self.has_share_full);
        self.has_more = !is_empty || self.has_kept_back() || has_share_full;
    }

    /// One came back.
    #[cold]
    pub fn take_back(&mut self, result: BioResult) {
        self.held -= 1;
        self.count += 1;
        self.bytes += u64::from(result.unwrap_or(0));
    }

    /// All that came back by now has been taken.
    #[inline]
    pub fn end_turn(&mut self, now: impl FnOnce() -> Nanos) {
        if self.count == 0 {
            return;
        }
        let count = std::mem::take(&mut self.count);
        let bytes = std::mem::take(&mut self.bytes);
        let (in_flight, has_more) = (self.in_flight, self.has_more);
        // Until the next hand-over these are what is left.
        self.in_flight = self.held;
        self.controller.note(Progress { now: now(), count, bytes, in_flight, has_more });
    }

    /// The backend is lost, or another process's.
    pub fn clear(&mut self) {
        self.kept_back.clear();
        self.is_in_backlog = false;
        self.held = 0;
    }

    /// Returns the depth in force and the reason for it.
    pub fn report(&self) -> DepthReport {
        self.controller.report()
    }
}
