//! The start of a queued request, from admission to its place in the table.

use diopter_os::AnyBuf;

use crate::engine::admit::{check, note_route, plain};
use crate::engine::core::Core;
use crate::engine::id;
use crate::engine::run::Order;
use crate::engine::single::{Entry, plain_site, single_site};
use crate::engine::target::Target;
use crate::error::{AdmitError, AdmitErrorKind};
use crate::request::{Request, RequestId, RequestOp};
use crate::sync::Arc;
use crate::units::{FileRange, to_u64};

impl Core {
    /// Admits a request and takes it in; returns its id. The memory stays with a request that is
    /// refused. Inlined, because most callers have constants in the request.
    #[inline(always)]
    pub(super) fn start(
        &mut self,
        target: &Arc<Target>,
        request: &mut Request,
    ) -> Result<RequestId, Box<AdmitError>> {
        let id = match self.start_plain(target, request) {
            Some(id) => id,
            None => self.start_other(target, request)?,
        };
        self.completer.note_started(id::place_of(id), &self.table);
        Ok(id)
    }

    /// Starts a request that goes to the file as it is: whole blocks, aligned memory, one bio.
    /// `None` for any other, and if it cannot start now.
    #[inline(always)]
    fn start_plain(&mut self, target: &Arc<Target>, request: &mut Request) -> Option<RequestId> {
        let memory = request.memory.as_ref()?;
        let is_write = match request.op {
            RequestOp::Read if memory.is_writable() => false,
            RequestOp::Write => true,
            _ => return None,
        };
        if request.adaptive || self.broken.is_some() || !self.table.has_room() {
            return None;
        }
        let (length, address) = (to_u64(memory.len()), memory.as_ptr().addr());
        let range = (request.offset.get(), length);
        let range = plain(target, is_write, range, &self.policies.route)?;
        let site = plain_site(target, range, address)?;
        if self.flight.is_too_large_to_poll(target, length) {
            return None;
        }
        let (op, flags) = (request.op, request.flags);
        let order = Order { op, range, flags, cached_to: 0 };
        let hold = if is_write { Some(self.enter_lock(target, range)?) } else { None };
        let buf = request.memory.take()?;
        let entry = Entry { hold, has_share: false };
        Some(self.begin_single(target, &order, buf, (site, entry)))
    }

    /// Starts any other request.
    #[inline(never)]
    fn start_other(
        &mut self,
        target: &Arc<Target>,
        request: &mut Request,
    ) -> Result<RequestId, Box<AdmitError>> {
        let Request { op, offset, flags, adaptive, .. } = *request;
        let length = request.memory.as_ref().map_or(0, |memory| to_u64(memory.len()));
        let range = (offset.get(), length);
        self.check_start(target, request, range)?;
        let route = self.policies.route.of_request(adaptive);
        let admitted = check(target, op, range, route).map_err(Box::new)?;
        let site = request.memory.as_ref().and_then(|memory| {
            let address = memory.as_ptr().addr();
            single_site(target, (op, admitted), address, &self.policies)
        });
        let site = site.filter(|_| !self.flight.is_too_large_to_poll(target, length));
        let flags = note_route(target, op, admitted, route, flags);
        let order = Order::new(op, admitted, flags);
        Ok(self.take_in(target, &order, request.memory.take(), site))
    }

    /// Refuses a request that the engine cannot take in now, or never.
    fn check_start(
        &mut self,
        target: &Target,
        request: &Request,
        (offset, length): (u64, u64),
    ) -> Result<(), Box<AdmitError>> {
        let range = FileRange::new(offset, offset.saturating_add(length));
        let refuse = |kind, why| Err(Box::new(AdmitError { kind, range, why }));
        if request.op.is_transfer() == request.memory.is_none() {
            let why = "a read or write carries memory, a sync carries none";
            return refuse(AdmitErrorKind::WrongMemory, why);
        }
        let is_writable = |memory: &AnyBuf| memory.is_writable();
        if request.op == RequestOp::Read && !request.memory.as_ref().is_some_and(is_writable) {
            let why = "a read fills its memory, and this buffer can only be written from";
            return refuse(AdmitErrorKind::WrongMemory, why);
        }
        let has_room_only = |memory: &AnyBuf| memory.has_room_only();
        if request.op == RequestOp::Read && request.memory.as_ref().is_some_and(has_room_only) {
            let why = "a read fills the length of its buffer, which is 0, and not the capacity; \
                       resize the buffer first";
            return refuse(AdmitErrorKind::WrongMemory, why);
        }
        if self.broken.is_some() {
            let why = "the engine has lost its backend; take its results and open a new one";
            return refuse(AdmitErrorKind::BackendLost, why);
        }
        if !(self.table.has_room() || self.make_room()) {
            let why = "the engine is full; take finished requests first";
            return refuse(AdmitErrorKind::Full, why);
        }
        if self.serve(target).is_err() {
            let why = "no descriptor is left for the backend of remote objects; close some";
            return refuse(AdmitErrorKind::NoEngine, why);
        }
        Ok(())
    }
}
