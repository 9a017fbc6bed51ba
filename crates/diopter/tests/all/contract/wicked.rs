//! Backends that break one clause each, and the test that `Checked` notices every one of them.

use std::panic::{AssertUnwindSafe, catch_unwind};

use diopter::BackendError;
use diopter_core::backend::sim::Null;
use diopter_core::backend::{Backend, Capabilities, Checked, Completions, LentBio, Wait};
use diopter_os::{
    BioId, BioResult, BioSpec, IoBuf, LentOnce, Op, OpenObject, RwFlags, Slab, SlabShape, Span,
};

/// Fault of a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Vice {
    None,
    /// Reports that it accepted one more than it was given.
    AcceptsTooMuch,
    /// Holds more than its depth.
    ExceedsItsDepth,
    /// Accepts a bio and does not count it.
    HidesABio,
    /// A completion twice.
    ReturnsTwice,
    /// A completion of a bio that waits in the slab and was never accepted.
    ReturnsAStranger,
    /// Drops a bio without a completion.
    LosesABio,
    /// More bytes than the bio has.
    MovesTooMuch,
    /// More bytes than the bio has, in `run_now`.
    MovesTooMuchNow,
    /// More bytes than the memory has, in `run_lent`.
    MovesTooMuchLent,
    /// Another bio in the slot of the one that was queued.
    Substitutes,
    /// `run_now` drops what is queued.
    DisturbsTheQueue,
}

struct Wicked {
    vice: Vice,
    slab: Slab,
    inner: Null,
    stranger: Option<BioId>,
    lost: u32,
    hidden: u32,
}

impl Wicked {
    fn wrong(&mut self, done: &mut Completions) {
        let Some((id, result)) = done.pop() else { return };
        match self.vice {
            Vice::ReturnsTwice => done.extend([(id, result), (id, result)]),
            Vice::ReturnsAStranger => {
                done.push((id, result));
                done.extend(self.stranger.take().map(|stranger| (stranger, Ok(0))));
            }
            Vice::LosesABio => self.lost += 1,
            Vice::MovesTooMuch => done.push((id, result.map(|moved| moved + 1))),
            Vice::Substitutes => {
                let mut spec = self.slab.spec(id);
                self.slab.retire(id);
                spec.offset += 1;
                let BioSpec { op, offset, span, flags, .. } = spec;
                let object = &OpenObject::simulated(0);
                let again = BioSpec { op, object, offset, span, flags };
                done.push((self.slab.build(again).unwrap(), result));
            }
            _ => done.push((id, result)),
        }
    }
}

impl Backend for Wicked {
    fn capabilities(&self) -> Capabilities {
        let claimed = if self.vice == Vice::ExceedsItsDepth { 1 } else { 8 };
        Capabilities { name: "wicked", depth_max: claimed }
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let accepted = self.inner.queue(ids);
        match self.vice {
            Vice::AcceptsTooMuch => accepted + 1,
            Vice::HidesABio => {
                self.hidden = 1;
                accepted
            }
            _ => accepted,
        }
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        let turned = self.inner.turn(wait, done);
        self.wrong(done);
        turned
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        let result = self.inner.run_now(id);
        match self.vice {
            Vice::MovesTooMuchNow => result.map(|moved| moved + 1),
            Vice::DisturbsTheQueue => {
                self.inner.turn(Wait::Poll, &mut Completions::new()).unwrap();
                result
            }
            _ => result,
        }
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        let result = self.inner.run_lent(bio);
        match self.vice {
            Vice::MovesTooMuchLent => result.map(|moved| moved + 1),
            _ => result,
        }
    }

    fn held(&self) -> u32 {
        self.inner.held() - self.hidden
    }

    fn cancel(&mut self, _id: BioId) {}
}

/// Does with a checked backend what an engine does: queue, run one now, turn until all are back.
fn exercise(vice: Vice) {
    let slab = Slab::new(SlabShape { operations: 0, bios: 8, segments_per_bio: 1, memories: 1 });
    let memory = slab.adopt(IoBuf::new(4096).unwrap()).unwrap();
    let build = |offset| {
        let span = Some(Span::new(memory, 0, 512));
        let object = &OpenObject::simulated(0);
        slab.build(BioSpec { op: Op::Read, object, offset, span, flags: RwFlags::NONE }).unwrap()
    };
    let queued = [build(0), build(512)];
    let (now, stranger) = (build(1024), build(2048));
    let inner = Null::new(&slab, 8);
    let wicked =
        Wicked { vice, slab: slab.clone(), inner, stranger: Some(stranger), lost: 0, hidden: 0 };
    let mut checked = Checked::new(Box::new(wicked), &slab);
    assert_eq!(checked.queue(&queued), 2);
    assert_eq!(checked.run_now(now), Ok(512));
    let (object, mut fill) = (&OpenObject::simulated(0), [0; 512]);
    let memory = LentOnce::Fill(&mut fill);
    let lent = LentBio { object, offset: 0, flags: RwFlags::NONE, memory };
    assert_eq!(checked.run_lent(lent), Ok(512));
    let mut done = Completions::new();
    checked.turn(Wait::Poll, &mut done).unwrap();
    assert_eq!(done.len(), 2);
}

fn check(vice: Vice, expected: &str) {
    let panic = catch_unwind(AssertUnwindSafe(|| exercise(vice)))
        .expect_err("a backend that breaks the contract is caught");
    let message = panic
        .downcast_ref::<String>()
        .cloned()
        .or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()))
        .unwrap_or_default();
    assert!(message.contains(expected), "{vice:?}: {message}");
}

#[test]
fn a_backend_without_vice_passes() {
    exercise(Vice::None);
}

#[test]
fn a_backend_that_accepts_more_than_it_is_given_is_caught() {
    check(Vice::AcceptsTooMuch, "accepts a prefix");
}

#[test]
fn a_backend_that_holds_more_than_its_depth_is_caught() {
    check(Vice::ExceedsItsDepth, "held stays within the depth");
}

#[test]
fn a_backend_that_accepts_a_bio_and_does_not_hold_it_is_caught() {
    check(Vice::HidesABio, "held is what was accepted");
}

#[test]
fn a_backend_that_returns_a_bio_twice_is_caught() {
    check(Vice::ReturnsTwice, "a bio comes back once");
}

#[test]
fn a_backend_that_returns_a_bio_it_never_had_is_caught() {
    check(Vice::ReturnsAStranger, "only if it was accepted");
}

#[test]
fn a_backend_that_loses_a_bio_is_caught() {
    check(Vice::LosesABio, "held is what did not come back");
}

#[test]
fn a_backend_that_moves_more_than_the_length_is_caught() {
    check(Vice::MovesTooMuch, "at most the length is moved");
    check(Vice::MovesTooMuchNow, "at most the length is moved");
    check(Vice::MovesTooMuchLent, "at most the length is moved");
}

#[test]
fn a_backend_that_returns_another_bio_than_the_queued_one_is_caught() {
    check(Vice::Substitutes, "a bio comes back once, and only if it was accepted");
}

#[test]
fn a_backend_whose_run_now_disturbs_the_queue_is_caught() {
    check(Vice::DisturbsTheQueue, "run_now leaves what is queued alone");
}

#[test]
fn a_bio_that_is_queued_twice_is_caught() {
    let slab = Slab::new(SlabShape { operations: 0, bios: 1, segments_per_bio: 1, memories: 1 });
    let memory = slab.adopt(IoBuf::new(512).unwrap()).unwrap();
    let span = Some(Span::new(memory, 0, 512));
    let object = &OpenObject::simulated(0);
    let spec = BioSpec { op: Op::Read, object, offset: 0, span, flags: RwFlags::NONE };
    let id = slab.build(spec).unwrap();
    let mut checked = Checked::new(Box::new(Null::new(&slab, 8)), &slab);
    assert_eq!(checked.queue(&[id]), 1);
    let again = catch_unwind(AssertUnwindSafe(|| checked.queue(&[id])));
    assert!(again.is_err());
}
