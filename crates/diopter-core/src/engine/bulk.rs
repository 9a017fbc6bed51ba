//! Large bios of one engine: with `DepthPolicy::Auto` no more of them are in the device than help,
//! so that small ones beside them find a short queue. Small bios are never kept back.

use std::collections::VecDeque;

use diopter_os::{BioId, BioResult};

use crate::clock::Nanos;
use crate::engine::depth::{DepthController, DepthReport, Progress};
use crate::limits::BULK_BYTES_MIN;

/// The large bios of one engine.
pub struct Bulk {
    /// Bytes from which on a bio is large; none is, where nothing is kept back.
    bytes_min: u32,
    controller: DepthController,
    /// Built, and kept back by the depth; oldest first.
    pub(super) kept_back: VecDeque<BioId>,
    /// Whether the engine's backlog may hold large bios.
    is_in_backlog: bool,
    /// In the device.
    pub(super) held: u32,
    /// As many as were in the device when it was last given some, and whether there were more.
    in_flight: u32,
    has_more: bool,
    /// Whether an object had its share, so that something was not even built.
    has_share_full: bool,
    /// What came back since.
    count: u32,
    bytes: u64,
}

impl Bulk {
    /// For an engine that holds so many bios; `is_on`: whether anything is kept back.
    pub fn new(is_on: bool, bios: u32) -> Bulk {
        Bulk {
            bytes_min: if is_on { BULK_BYTES_MIN } else { u32::MAX },
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

    /// Whether a bio of `length` bytes, which goes into the backlog, is a large one.
    #[inline]
    pub fn takes(&mut self, length: u32) -> bool {
        let is_bulk = length >= self.bytes_min;
        if is_bulk {
            self.is_in_backlog = true;
        }
        is_bulk
    }

    /// Whether the backlog is to be looked at bio by bio.
    #[inline]
    pub fn is_waiting(&self) -> bool {
        self.is_in_backlog || self.has_share_full || !self.kept_back.is_empty()
    }

    /// Something is not built because its object has its share of the depth.
    pub fn note_share(&mut self) {
        self.has_share_full = self.bytes_min != u32::MAX;
    }

    /// How many may be in the device.
    pub fn depth(&self) -> u32 {
        self.controller.depth()
    }

    /// Bios that are kept back.
    pub fn kept_back(&mut self) -> &mut VecDeque<BioId> {
        &mut self.kept_back
    }

    /// Whether any bio is kept back.
    pub fn has_kept_back(&self) -> bool {
        !self.kept_back.is_empty()
    }

    /// Whether one more may go to the device.
    pub fn has_room(&self) -> bool {
        self.held < self.controller.depth()
    }

    /// All that may go has gone; `is_empty`: and nothing is left in the backlog.
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
    pub fn end_turn(&mut self, now: Nanos) {
        if self.count == 0 {
            return;
        }
        let count = std::mem::take(&mut self.count);
        let bytes = std::mem::take(&mut self.bytes);
        let (in_flight, has_more) = (self.in_flight, self.has_more);
        // Until the next hand-over these are what is left.
        self.in_flight = self.held;
        self.controller.note(Progress { now, count, bytes, in_flight, has_more });
    }

    /// The backend is lost, or another process's.
    pub fn clear(&mut self) {
        self.kept_back.clear();
        self.is_in_backlog = false;
        self.held = 0;
    }

    /// What was found.
    pub fn report(&self) -> DepthReport {
        self.controller.report()
    }
}
