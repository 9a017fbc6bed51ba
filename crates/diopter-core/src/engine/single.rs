//! The fast path: a request that is one aligned, direct bio, from admission to its result; and a
//! small queued one whose memory alone is misaligned, with a bounce buffer. What the fast path
//! cannot do it leaves to the phases.

use diopter_os::{AnyBuf, BioResult, BioSpec, LentOnce, MemoryId, Op, OpenObject, RwFlags, Span};

use crate::backend::LentBio;
use crate::bio::pieces;
use crate::engine::admit::{Admitted, buffered};
use crate::engine::core::Core;
use crate::engine::flight::share_of;
use crate::engine::run::{Order, judge_single};
use crate::engine::target::Target;
use crate::error::IoError;
use crate::extent::{ExtentState, ObjectIndex};
use crate::inode_lock::Hold;
use crate::limits::{BIO_BYTES_MAX, BOUNCE_SLOT_BYTES};
use crate::policy::Policies;
use crate::request::{FinishedRequest, RequestId, RequestOp};
use crate::sync::Arc;
use crate::units::{Bytes, FileRange, is_aligned, to_u32, to_u64, to_usize};

/// The lock that a request of one bio has entered, and whether it has a share of its object.
pub(super) struct Entry {
    pub(super) hold: Option<Hold>,
    pub(super) has_share: bool,
}

/// Where the one bio of a request goes that is a single one.
#[derive(Clone, Copy)]
pub(crate) struct BioSite<'t> {
    pub(crate) object: &'t OpenObject,
    pub(crate) offset: u64,
}

/// The bio of an aligned request that is a single one, as the phases would build it. The memory is
/// one range, so only its address is needed.
#[inline(always)]
pub(crate) fn single_site<'t>(
    target: &'t Target,
    (op, admitted): (RequestOp, Admitted),
    address: usize,
    policies: &Policies,
) -> Option<BioSite<'t>> {
    let Admitted { range, is_plain, cached_to } = admitted;
    if !is_plain && admitted.starts_cached() {
        return cached_site(target, range, cached_to);
    }
    let site = plain_site(target, range, address)?;
    if is_plain { Some(site) } else { mapped_site(target, (op, range), policies) }
}

/// The bio of a read whose bytes are all in the page cache.
#[inline(never)]
fn cached_site(target: &Target, range: FileRange, cached_to: u64) -> Option<BioSite<'_>> {
    let is_one = cached_to >= range.end() && range.length() <= u64::from(BIO_BYTES_MAX);
    if !is_one || !target.mapper.is_identity() {
        return None;
    }
    let object = target.buffered(ObjectIndex(0)).ok()?;
    Some(BioSite { object, offset: range.start() })
}

/// The bio of a plain request, if it is a single one.
#[inline(always)]
pub(super) fn plain_site(target: &Target, range: FileRange, address: usize) -> Option<BioSite<'_>> {
    let is_one = (1..=u64::from(BIO_BYTES_MAX)).contains(&range.length());
    let is_aligned = is_aligned(to_u64(address), target.blocks.memory);
    let site = BioSite { object: target.first(), offset: range.start() };
    (is_one && is_aligned).then_some(site)
}

/// The same where the bytes may lie elsewhere, or more is to be done.
#[inline(never)]
fn mapped_site<'t>(
    target: &'t Target,
    (op, range): (RequestOp, FileRange),
    policies: &Policies,
) -> Option<BioSite<'t>> {
    let is_write = op == RequestOp::Write;
    let block = if is_write { target.blocks.write } else { target.blocks.read };
    if !is_aligned(range.start() | range.end(), block) {
        return None;
    }
    let has_more_to_do = is_write
        && (target.access.append
            || target.access.shared_writers
            || target.outgrows_seal(range.end()));
    let takes_a_detour = has_more_to_do
        || range.length() > target.bytes_of_one
        || buffered(target, is_write, range.length(), policies.route).is_some()
        || pieces::rule_of(policies.history.cut, &*target.mapper).is_some();
    if takes_a_detour {
        return None;
    }
    // One extent within the limits of one bio: there is nothing to build.
    let extent = target.mapper.map(range).ok()?;
    let moves = extent.state == ExtentState::Mapped || (!is_write && extent.state.has_bytes());
    let is_one = extent.range == range && moves;
    let object = target.direct(extent.object);
    is_one.then_some(BioSite { object, offset: extent.object_offset.get() })
}

impl Core {
    /// Runs one admitted request that is a single direct bio as one system call, without table and
    /// slab. Returns `None` if it is not of that kind, or if one call did not complete it; running
    /// it through the phases then loses nothing.
    #[inline]
    pub fn run_single(
        &mut self,
        target: &Target,
        admitted: Admitted,
        memory: LentOnce<'_>,
        flags: RwFlags,
    ) -> Option<Result<Bytes, IoError>> {
        let range = admitted.range;
        let (op, flags) = match memory {
            LentOnce::Fill(_) => (RequestOp::Read, flags),
            LentOnce::Take(_) => (RequestOp::Write, flags.with(target.access.durability)),
        };
        let address = memory.address();
        if let Err(errno) = self.serve(target) {
            return Some(Err(IoError::new(errno, range, op.name())));
        }
        let site = single_site(target, (op, admitted), address, &self.policies)?;
        let BioSite { object, offset } = site;
        let bio = LentBio { object, offset, flags, memory };
        let result = if op == RequestOp::Write {
            let hold = self.enter_lock(target, range)?;
            let result = self.backend.run_lent(bio);
            target.inode_lock().unlock(hold);
            result
        } else {
            self.backend.run_lent(bio)
        };
        if admitted.starts_cached() && !result.is_ok_and(|moved| u64::from(moved) == range.length())
        {
            // A page has gone, or the file is shorter: the phases know that it was not direct.
            return None;
        }
        result_of(target, op, range, result)
    }

    /// Takes an admitted request in; the caller has checked `Table::has_room`. The bio of a request
    /// with a site is built at once. Returns the id.
    pub(crate) fn take_in(
        &mut self,
        target: &Arc<Target>,
        order: &Order,
        memory: Option<AnyBuf>,
        site: Option<BioSite<'_>>,
    ) -> RequestId {
        let entered = site.and_then(|site| Some((site, self.enter_site(target, order, site)?)));
        match (entered, memory) {
            (Some(entered), Some(buf)) => self.begin_single(target, order, buf, entered),
            (_, memory) => self.begin_other(target, order, memory, site.is_some()),
        }
    }

    /// Enters the lock of a write, and the share of an object that has one; `None` if a single bio
    /// cannot be started there now.
    fn enter_site(&mut self, target: &Target, order: &Order, site: BioSite<'_>) -> Option<Entry> {
        let flight = &mut self.flight;
        let share = share_of(target, &self.policies, flight, order.range.length());
        if share.is_some_and(|share| flight.share_of(site.object.handle()) >= share) {
            flight.large_bios.note_share();
            return None;
        }
        let is_write = order.op == RequestOp::Write;
        let hold = if is_write { Some(self.enter_lock(target, order.range)?) } else { None };
        Some(Entry { hold, has_share: share.is_some() })
    }

    /// Enters the lock of a write; `None` if that takes a wait, or more than the lock.
    #[inline]
    pub(super) fn enter_lock(&self, target: &Target, range: FileRange) -> Option<Hold> {
        let (inode_lock, start) = (target.inode_lock(), range.start());
        let hold = inode_lock.try_lock_shared(target.touched(range), self.shard)?;
        if start > inode_lock.end_seen() && target.leaves_hole_in_page(start) {
            inode_lock.unlock(hold);
            return None;
        }
        Some(hold)
    }

    /// Starts a request as one bio on its own memory, which may be longer than the range: a file of
    /// fixed size ends there.
    #[inline(always)]
    pub(super) fn begin_single(
        &mut self,
        target: &Arc<Target>,
        order: &Order,
        buf: AnyBuf,
        (site, entry): (BioSite<'_>, Entry),
    ) -> RequestId {
        let (op, flags) = single_op(target, order);
        let BioSite { object, offset } = site;
        let place = self.table.occupy(target, order);
        let length = to_u32(order.range.length());
        let draft = BioSpec { op, object, offset, span: length, flags };
        let (memory, id) = self.flight.slab.begin_with_bio(place, buf, draft);
        self.flight.push(place, (id, object.handle(), length.into()), entry.has_share);
        if order.starts_cached() {
            return self.table.begin_cached(place, memory);
        }
        self.table.begin_single(place, memory, entry.hold)
    }

    /// Starts any other request: as one bio on a bounce buffer where the request is small and its
    /// memory alone is misaligned, else by its phases.
    #[inline(never)]
    fn begin_other(
        &mut self,
        target: &Arc<Target>,
        order: &Order,
        memory: Option<AnyBuf>,
        is_aligned: bool,
    ) -> RequestId {
        let place = self.table.occupy(target, order);
        let memory = memory.map(|buf| self.flight.slab.begin(place, buf));
        if is_aligned
            || order.starts_cached()
            || !self.begin_bounced((place, memory), target, order)
        {
            self.table.begin_queued(place, memory, order);
        }
        self.table.id_at(place)
    }

    /// Builds the bio of a small queued request whose memory alone is misaligned; false for any
    /// other.
    fn begin_bounced(
        &mut self,
        (place, memory): (usize, Option<MemoryId>),
        target: &Target,
        order: &Order,
    ) -> bool {
        let length = order.range.length();
        let Some(memory) = memory else { return false };
        let is_small = length > 0 && length <= BOUNCE_SLOT_BYTES;
        if !is_small
            || self.flight.is_too_large_to_poll(target, length)
            || !self.is_misaligned(target, memory, length)
        {
            return false;
        }
        let site = mapped_site(target, (order.op, order.range), &self.policies);
        let bounce = self.pool.at_place(&self.flight.slab, place);
        let (Some(site), Some(bounce)) = (site, bounce) else { return false };
        let Some(entry) = self.enter_site(target, order, site) else { return false };
        let ours = (bounce.memory, to_usize(bounce.start));
        if order.op == RequestOp::Write {
            self.flight.slab.copy((memory, 0), ours, to_usize(length));
        }
        let (op, flags) = single_op(target, order);
        let BioSite { object, offset } = site;
        let span = Some(Span::new(ours.0, ours.1, to_u32(length)));
        let draft = BioSpec { op, object, offset, span, flags };
        let id = self.flight.slab.build_own(place, draft);
        self.flight.push(place, (id, object.handle(), length), entry.has_share);
        self.table.begin_bounced(place, memory, (bounce, entry.hold));
        true
    }

    fn is_misaligned(&self, target: &Target, memory: MemoryId, length: u64) -> bool {
        let bits = self.flight.slab.alignment(memory, 0, to_usize(length));
        !is_aligned(to_u64(bits.addresses), target.blocks.memory)
    }

    /// Files a queued request whose only bio came back, if that is all there is to do.
    #[inline(always)]
    pub(super) fn end_single(&mut self, place: usize, result: BioResult) -> bool {
        if !self.table.end_single(place, result) {
            return false;
        }
        if self.table.at(place).is_discarded() || self.completer.is_watching {
            self.table.end_as_other(place);
            self.file_finished(place);
            return true;
        }
        self.completer.plain += 1;
        self.table.file_single(place);
        true
    }

    /// Takes a request out of the table, as a request whose only bio did all and whose time is not
    /// taken.
    #[inline(always)]
    pub(super) fn take_out_single(&mut self, place: usize) -> FinishedRequest {
        let memory = self.flight.slab.end(place);
        self.table.take_out_single(place, memory)
    }
}

/// The operation and flags of the bio of a request of one.
#[inline(always)]
fn single_op(target: &Target, order: &Order) -> (Op, RwFlags) {
    if order.op == RequestOp::Write {
        (Op::Write, order.flags.with(target.access.durability))
    } else {
        (Op::Read, order.flags)
    }
}

/// Returns the result of a request of a single bio; `None` if there is more to do.
#[inline]
fn result_of(
    target: &Target,
    op: RequestOp,
    range: FileRange,
    result: BioResult,
) -> Option<Result<Bytes, IoError>> {
    match result {
        Ok(moved) if u64::from(moved) == range.length() => Some(Ok(Bytes::new(moved.into()))),
        short_or_failed => judge_single(target, (op, range), short_or_failed),
    }
}
