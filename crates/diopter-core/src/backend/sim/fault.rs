//! What goes wrong, and how often. Plain values and one draw per bio; the media knows nothing of
//! it.

use diopter_os::Errno;

use crate::prng::Prng;

/// Fault rates: each `n` means once in `n` bios on average, 0 means never.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// The bio fails with `EIO`; the next try may succeed. A write may have reached the media in
    /// part.
    pub eio_once: u64,
    /// The bio's first sector turns bad and answers `EIO` from then on.
    pub eio_sticky: u64,
    /// The bio moves fewer bytes than asked, in whole blocks, perhaps none.
    pub short: u64,
    /// A write answers `ENOSPC` although there is room.
    pub no_space: u64,
    /// The bio answers `EAGAIN` or `EINTR` and moved nothing.
    pub again: u64,
    /// The bio never comes back by itself.
    pub never: u64,
    /// The bio takes a thousand times as long.
    pub slow: u64,
}

impl Faults {
    /// None.
    pub const NONE: Faults =
        Faults { eio_once: 0, eio_sticky: 0, short: 0, no_space: 0, again: 0, never: 0, slow: 0 };

    /// A random subset of the kinds at random rates: each run of a campaign meets other
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

    /// What happens to one bio.
    pub fn draw(&self, prng: &mut Prng) -> Fate {
        // One draw for each kind, always, so that switching one off does not move the others.
        let hit = |prng: &mut Prng, n: u64| prng.one_in(n.max(1)) && n > 0;
        let never = hit(prng, self.never);
        let eio_once = hit(prng, self.eio_once);
        let eio_sticky = hit(prng, self.eio_sticky);
        let no_space = hit(prng, self.no_space);
        let again = hit(prng, self.again);
        let short = hit(prng, self.short);
        let slow = hit(prng, self.slow);
        let answer = if never {
            Answer::Never
        } else if eio_sticky {
            Answer::TurnsBad
        } else if eio_once {
            Answer::FailsMidway(Errno::EIO)
        } else if no_space {
            Answer::NoSpace
        } else if again {
            let interrupted = prng.one_in(2);
            Answer::MovesNothing(if interrupted { Errno::EINTR } else { Errno::EAGAIN })
        } else if short {
            Answer::Short
        } else {
            Answer::Well
        };
        Fate { answer, slow }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Well,
    Short,
    MovesNothing(Errno),
    FailsMidway(Errno),
    NoSpace,
    TurnsBad,
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fate {
    pub answer: Answer,
    pub slow: bool,
}
