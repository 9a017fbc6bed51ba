//! Faults and their rates. Plain values and one draw per bio; the media does not know them.

use diopter_os::Errno;

use crate::prng::Prng;

/// Fault rates: each `n` means once in `n` bios on average, 0 means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The bio fails with `EIO`; the next try may succeed. A write may have reached the media in
    /// part.
    pub eio_once: u64,
    /// The bio's first sector turns bad and fails with `EIO` from then on.
    pub eio_sticky: u64,
    /// The bio moves fewer bytes than requested, in whole blocks, perhaps none.
    pub short: u64,
    /// A write fails with `ENOSPC` although there is room.
    pub no_space: u64,
    /// The bio fails with `EAGAIN` or `EINTR` and moves nothing.
    pub again: u64,
    /// The bio never completes by itself.
    pub never: u64,
    /// The bio takes a thousand times as long.
    pub slow: u64,
}

impl Faults {
    /// No faults.
    pub const NONE: Faults =
        Faults { eio_once: 0, eio_sticky: 0, short: 0, no_space: 0, again: 0, never: 0, slow: 0 };

    /// Returns a random subset of the kinds at random rates: each run of a campaign has other
    /// combinations.
    #[must_use]
    pub fn swarm(prng: &mut Prng) -> Faults {
        let mut rate = |least: u64| if prng.one_in(2) { least + prng.below(40) } else { 0 };
        Faults {
            eio_once: rate(15),
            eio_sticky: rate(60),
            short: rate(5),
            no_space: rate(40),
            again: rate(5),
            never: rate(80),
            slow: rate(10),
        }
    }

    /// Draws the fate of one bio.
    pub(crate) fn draw(&self, prng: &mut Prng) -> Fate {
        // One draw for each kind, always, so that switching one off does not change the others.
        let hit = |prng: &mut Prng, n: u64| prng.one_in(n.max(1)) && n > 0;
        let never = hit(prng, self.never);
        let eio_once = hit(prng, self.eio_once);
        let eio_sticky = hit(prng, self.eio_sticky);
        let no_space = hit(prng, self.no_space);
        let again = hit(prng, self.again);
        let short = hit(prng, self.short);
        let slow = hit(prng, self.slow);
        let effect = if never {
            Effect::Never
        } else if eio_sticky {
            Effect::TurnsBad
        } else if eio_once {
            Effect::FailsMidway(Errno::EIO)
        } else if no_space {
            Effect::NoSpace
        } else if again {
            let interrupted = prng.one_in(2);
            Effect::MovesNothing(if interrupted { Errno::EINTR } else { Errno::EAGAIN })
        } else if short {
            Effect::Short
        } else {
            Effect::Well
        };
        Fate { effect, slow }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    Well,
    Short,
    MovesNothing(Errno),
    FailsMidway(Errno),
    NoSpace,
    TurnsBad,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fate {
    pub(crate) effect: Effect,
    pub(crate) slow: bool,
}
