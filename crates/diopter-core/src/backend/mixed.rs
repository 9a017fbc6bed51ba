//! Two backends that serve the bios of one slab, as one.

use std::time::Duration;

use diopter_os::BioId;

use crate::backend::{Backend, Completions, Wait};
use crate::error::BackendError;

/// A turn that waits for two backends at the same time.
const MIXED_SLICE: Duration = Duration::from_micros(500);

/// Queues each bio with `queue_one`, which returns how many it has accepted, up to the first that
/// is not accepted, and at most `room`. Returns the number of accepted bios.
pub(super) fn queue_each(
    ids: &[BioId],
    room: u32,
    mut queue_one: impl FnMut(&[BioId]) -> u32,
) -> u32 {
    let with_room = ids.chunks(1).zip(0..room);
    let accepted = with_room.take_while(|(id, _)| queue_one(id) > 0).count();
    u32::try_from(accepted).expect("at most `room`")
}

/// Waits for `other`, and for `base` if it has bios too: in short turns then.
#[cold]
pub(super) fn turn_both<B: Backend + ?Sized, O: Backend + ?Sized>(
    (base, other): (&mut B, &mut O),
    wait: Wait,
    done: &mut Completions,
) -> Result<(), BackendError> {
    if base.held() == 0 {
        return other.turn(wait, done);
    }
    other.turn(Wait::Poll, done)?;
    let wait = match wait {
        Wait::Block(timeout) if done.is_empty() => Wait::Block(timeout.min(MIXED_SLICE)),
        Wait::Block(_) | Wait::Poll => Wait::Poll,
    };
    base.turn(wait, done)
}
