//! Requests (`Request`) and their results (`FinishedRequest`). No kernel types but the memory.

use std::fmt;

use diopter_os::{AnyBuf, Errno, OwnedBuf, OwnedBufMut, RwFlags};

use crate::clock::Nanos;
use crate::error::{AdmitError, IoError, IoErrorKind};
use crate::outcome::{Outcome, RangeState, Route, StopReason, Timing, Transfer};
use crate::units::{Bytes, FileOffset, FileRange, to_u64};

/// The operation of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RequestOp {
    /// Reads: device to memory.
    Read,
    /// Writes: memory to device.
    Write,
    /// Makes every earlier write of the file durable: its data, and the metadata needed to read it.
    SyncData,
    /// `SyncData` with all metadata.
    SyncAll,
}

impl RequestOp {
    /// Returns true for a read or a write.
    #[inline]
    pub(crate) fn is_transfer(self) -> bool {
        matches!(self, RequestOp::Read | RequestOp::Write)
    }

    /// Returns its name in error messages.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            RequestOp::Read => "read",
            RequestOp::Write => "write",
            RequestOp::SyncData => "sync-data",
            RequestOp::SyncAll => "sync-all",
        }
    }
}

/// A request to an engine, with owned memory. The range is `[offset, offset + memory.len())`.
#[derive(Debug)]
pub struct Request {
    /// The operation.
    pub op: RequestOp,
    /// The first byte.
    pub offset: FileOffset,
    /// The memory; `None` for a sync.
    pub memory: Option<AnyBuf>,
    /// Extra per-request flags, such as [`RwFlags::DSYNC`].
    pub flags: RwFlags,
    /// Reads the bytes that the page cache has from there, as under
    /// [`RoutePolicy::Adaptive`](crate::policy::RoutePolicy::Adaptive), where the route policy in
    /// force is the engine's, and that is `Direct`.
    pub adaptive: bool,
}

impl Request {
    /// Reads as many bytes at `offset` as `memory` is long; fewer at the end of the file. What a
    /// buffer has room for past its length is not used.
    #[must_use]
    pub fn read(offset: u64, memory: impl OwnedBufMut) -> Request {
        Request::with_memory(RequestOp::Read, offset, AnyBuf::new(memory))
    }

    /// Sets [`Request::adaptive`].
    #[must_use]
    pub fn adaptive(self, adaptive: bool) -> Request {
        Request { adaptive, ..self }
    }

    /// Writes all of `memory` at `offset`.
    #[must_use]
    pub fn write(offset: u64, memory: impl OwnedBuf) -> Request {
        Request::with_memory(RequestOp::Write, offset, AnyBuf::new(memory))
    }

    /// Makes earlier writes durable: those whose result was returned, and this engine's started
    /// before.
    #[must_use]
    pub fn sync_data() -> Request {
        let offset = FileOffset::new(0);
        let flags = RwFlags::NONE;
        Request { op: RequestOp::SyncData, offset, memory: None, flags, adaptive: false }
    }

    /// [`Request::sync_data`] with all metadata.
    #[must_use]
    pub fn sync_all() -> Request {
        Request { op: RequestOp::SyncAll, ..Request::sync_data() }
    }

    /// Returns the range of the file that is asked for; empty for a flush.
    #[must_use]
    pub fn range(&self) -> FileRange {
        let start = self.offset.get();
        let length = self.memory.as_ref().map_or(0, |memory| to_u64(memory.len()));
        FileRange::new(start, start.saturating_add(length))
    }

    fn with_memory(op: RequestOp, offset: u64, memory: AnyBuf) -> Request {
        let (offset, flags) = (FileOffset::new(offset), RwFlags::NONE);
        Request { op, offset, memory: Some(memory), flags, adaptive: false }
    }
}

/// A request in an engine. No two requests of a process have the same id. Ids have no order of
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

impl RequestId {
    /// As a number, for logs.
    #[must_use]
    pub fn number(self) -> u64 {
        self.0
    }
}

/// A refused request: the reason, and the request back.
#[derive(Debug)]
pub struct Refused {
    /// The reason.
    pub error: AdmitError,
    /// The refused request, memory included.
    pub request: Request,
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

// No `source`: the message is that of `error`.
impl std::error::Error for Refused {}

impl From<Box<Refused>> for std::io::Error {
    /// Keeps the reason, and drops the request with its memory.
    fn from(refused: Box<Refused>) -> std::io::Error {
        refused.error.into()
    }
}

/// A finished request: result, memory, outcome, route and timing. At most 64 bytes.
#[derive(Debug)]
pub struct FinishedRequest {
    /// The id that starting it returned.
    pub id: RequestId,
    /// The operation.
    pub op: RequestOp,
    /// The requested range.
    pub range: FileRange,
    /// The memory back; `None` for a sync, for lent memory, and for memory that was lost with its
    /// backend. [`FinishedRequest::into_parts`] returns it as the type that it was.
    pub memory: Option<AnyBuf>,
    /// Whole, or how far it came and why; or the first error.
    pub result: Result<Transfer, IoError>,
    /// The path of all bytes where there is no detail.
    path: SimplePath,
    /// Absent if all bytes took one path, and no clock was read.
    detail: Option<Box<Detail>>,
}

/// The path that all bytes of a simple request took.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SimplePath {
    Direct,
    /// Through an aligned buffer, because of where the memory is.
    Bounced,
    /// From the page cache, which had them.
    Cached,
}

impl SimplePath {
    fn route(self, bytes: u64) -> Route {
        match self {
            SimplePath::Direct => Route::all_direct(bytes),
            SimplePath::Bounced => Route::all_bounced(bytes),
            SimplePath::Cached => Route::all_cached(bytes),
        }
    }
}

/// Outcome, route and timing of a request that is not simple.
#[derive(Debug)]
struct Detail {
    outcome: Outcome,
    route: Route,
    timing: Option<Timing>,
}

impl FinishedRequest {
    /// A request that moved all its bytes between the caller's memory and the device.
    #[inline(always)]
    pub(crate) fn whole(
        (id, op): (RequestId, RequestOp),
        range: FileRange,
        memory: Option<AnyBuf>,
    ) -> FinishedRequest {
        let result = Ok(Transfer::Whole(Bytes::new(range.length())));
        FinishedRequest { id, op, range, memory, result, path: SimplePath::Direct, detail: None }
    }

    /// The same on another path.
    #[inline]
    pub(crate) fn on(mut self, path: SimplePath) -> FinishedRequest {
        self.path = path;
        if let Some(detail) = &mut self.detail {
            detail.route = path.route(self.range.length());
        }
        self
    }

    /// The same with another result, outcome and route.
    #[inline(never)]
    pub(crate) fn ended(
        self,
        result: Result<Transfer, IoError>,
        outcome: Outcome,
        route: Route,
    ) -> FinishedRequest {
        let timing = self.timing();
        FinishedRequest {
            result,
            detail: Some(Box::new(Detail { outcome, route, timing })),
            ..self
        }
    }

    /// The same, with when it passed its stages.
    #[inline(never)]
    pub(crate) fn timed(self, timing: Timing) -> FinishedRequest {
        let (outcome, route) = (self.outcome(), self.route());
        let detail = Some(Box::new(Detail { outcome, route, timing: Some(timing) }));
        FinishedRequest { detail, ..self }
    }

    /// Sets when its completion ran, if a clock is read for it.
    pub(crate) fn set_finished(&mut self, now: impl FnOnce() -> Nanos) {
        if let Some(timing) = self.detail.as_mut().and_then(|detail| detail.timing.as_mut()) {
            timing.finished = now();
        }
    }

    /// A request that failed as a whole, without an engine.
    #[must_use]
    pub fn failed(
        op: RequestOp,
        range: FileRange,
        error: IoError,
        state: RangeState,
    ) -> FinishedRequest {
        let whole = FinishedRequest::whole((RequestId(0), op), range, None);
        whole.ended(Err(error), Outcome::whole(range, state), Route::default())
    }

    /// A read that filled its memory without an engine.
    #[must_use]
    #[doc(hidden)]
    pub fn filled(range: FileRange, memory: AnyBuf) -> FinishedRequest {
        FinishedRequest::whole((RequestId(0), RequestOp::Read), range, Some(memory))
    }

    /// A request whose engine is gone: its result is unknown.
    #[must_use]
    #[doc(hidden)]
    pub fn lost(op: RequestOp, range: FileRange) -> FinishedRequest {
        let error = IoError::new(Errno::EIO, range, op.name()).of_kind(IoErrorKind::BackendLost);
        FinishedRequest::failed(op, range, error, RangeState::Unknown)
    }

    /// Returns true if every byte was moved.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        matches!(self.result, Ok(Transfer::Whole(_)))
    }

    /// Succeeds if every byte was moved.
    ///
    /// # Errors
    /// The error of the request; of one that stopped before its end, that of the bytes which were
    /// not moved: `NoSpace`, `TooLarge`, `UnexpectedEnd` or `NoProgress`, with their range.
    pub fn check_whole(&self) -> Result<(), IoError> {
        match &self.result {
            Ok(transfer) => transfer.check_whole(self.range, self.op.name()),
            Err(error) => Err(error.clone()),
        }
    }

    /// Returns how many bytes a read has moved: all, or those before the end of the file.
    ///
    /// # Errors
    /// As [`FinishedRequest::check_whole`], if it stopped for another reason.
    pub fn check_read(&self) -> Result<u64, IoError> {
        match &self.result {
            Ok(Transfer::Stopped { done, why: StopReason::EndOfFile }) => Ok(done.get()),
            _ => self.check_whole().map(|()| self.range.length()),
        }
    }

    /// Returns the result of each range.
    #[must_use]
    pub fn outcome(&self) -> Outcome {
        match &self.detail {
            Some(detail) => detail.outcome.clone(),
            None => Outcome::whole(self.range, RangeState::Done),
        }
    }

    /// Returns the path that the bytes took.
    #[must_use]
    pub fn route(&self) -> Route {
        match &self.detail {
            Some(detail) => detail.route,
            None => self.path.route(self.range.length()),
        }
    }

    /// Returns when it passed its stages; `None` unless its engine has
    /// [`EngineOptions::timings`](crate::engine::EngineOptions::timings).
    #[must_use]
    pub fn timing(&self) -> Option<Timing> {
        self.detail.as_ref().and_then(|detail| detail.timing)
    }

    /// Returns the result, and the memory as the type that the request was made with: `None` if
    /// there is no memory, or it is of another type.
    ///
    /// A dropped result does not compile:
    ///
    /// ```compile_fail
    /// #![deny(unused_must_use)]
    /// # use diopter_core::{error::IoError, request::FinishedRequest};
    /// fn take(finished: FinishedRequest) -> Result<Option<Vec<u8>>, IoError> {
    ///     let (result, memory) = finished.into_parts();
    ///     result?;
    ///     Ok(memory)
    /// }
    /// ```
    pub fn into_parts<T: OwnedBuf>(self) -> (Result<Transfer, IoError>, Option<T>) {
        (self.result, self.memory.and_then(|memory| memory.downcast().ok()))
    }

    /// As [`FinishedRequest::into_parts`], with the result of [`FinishedRequest::check_whole`].
    ///
    /// ```
    /// # use diopter_core::{error::IoError, request::FinishedRequest};
    /// fn take(finished: FinishedRequest) -> Result<Option<Vec<u8>>, IoError> {
    ///     let (result, memory) = finished.into_whole();
    ///     result?;
    ///     Ok(memory)
    /// }
    /// ```
    pub fn into_whole<T: OwnedBuf>(self) -> (Result<(), IoError>, Option<T>) {
        let whole = self.check_whole();
        (whole, self.memory.and_then(|memory| memory.downcast().ok()))
    }
}

#[cfg(all(test, target_pointer_width = "64"))]
mod tests {
    use super::*;
    use crate::error::IoErrorKind;

    #[test]
    fn a_result_is_one_cache_line() {
        assert!(size_of::<FinishedRequest>() <= 64, "{}", size_of::<FinishedRequest>());
        assert_eq!(size_of::<Option<IoError>>(), 8);
    }

    #[test]
    fn a_request_that_stopped_is_an_error_of_the_rest_where_the_whole_is_wanted() {
        let range = FileRange::new(4096, 12_288);
        let stopped = |op, why| {
            let whole = FinishedRequest::whole((RequestId(1), op), range, None);
            assert!(whole.is_whole() && whole.check_whole().is_ok());
            assert_eq!(whole.check_read(), Ok(8192));
            let result = Ok(Transfer::Stopped { done: Bytes::new(4096), why });
            whole.ended(result, Outcome::whole(range, RangeState::Done), Route::default())
        };
        let write = |why| stopped(RequestOp::Write, why).check_whole().unwrap_err();
        let rest = FileRange::new(8192, 12_288);
        for (why, kind) in [
            (StopReason::NoSpace, IoErrorKind::NoSpace),
            (StopReason::SizeLimit, IoErrorKind::TooLarge),
            (StopReason::Short, IoErrorKind::NoProgress),
            (StopReason::EndOfFile, IoErrorKind::UnexpectedEnd),
        ] {
            assert_eq!((write(why).kind, write(why).range), (kind, rest), "{why:?}");
            assert!(!stopped(RequestOp::Write, why).is_whole());
        }
        let read = |why| stopped(RequestOp::Read, why).check_read();
        assert_eq!(read(StopReason::EndOfFile), Ok(4096));
        assert_eq!(read(StopReason::Short).unwrap_err().range, rest);
    }
}
