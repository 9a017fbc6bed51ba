//! Which backends and which options of io_uring work in this process, and on this file, each by
//! trying it.

use std::os::fd::BorrowedFd;

use diopter_os::Errno;

use diopter_core::backend::trial;
use diopter_core::backend::trial::Choice;

/// A backend or an option, and whether it can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ability {
    /// Its name: of a backend as on the command line; `sqpoll` or `iopoll`.
    pub name: &'static str,
    /// What was tried and refused, if it can't be had.
    pub refusal: Option<Choice>,
}

impl Ability {
    fn of(name: &'static str, tried: Result<(), Choice>) -> Ability {
        Ability { name, refusal: tried.err() }
    }
}

/// The backends, in the order of `auto`.
pub(super) fn backends() -> Vec<Ability> {
    vec![
        Ability::of("uring", trial::probe_uring()),
        Ability::of("aio", trial::probe_aio()),
        Ability::of("threads", Ok(())),
    ]
}

/// The options of io_uring; `iopoll` only of an open file. `polls`: whether the device's queue says
/// that it can. Where it says no, nothing is read: kernels before 6.11 would serve that read by
/// interrupt, and it writes back what the page cache has of the file's first bytes, which is not
/// for a probe to do in vain.
pub(super) fn uring_options(file: Option<BorrowedFd<'_>>, polls: Option<bool>) -> Vec<Ability> {
    let sqpoll = Ability::of("sqpoll", trial::probe_sqpoll());
    let iopoll = file.map(|file| {
        let tried = match polls {
            Some(false) => Err(Choice { step: "the device's queue", errno: Errno::EOPNOTSUPP }),
            Some(true) | None => trial::probe_iopoll(file),
        };
        Ability::of("iopoll", tried)
    });
    [Some(sqpoll), iopoll].into_iter().flatten().collect()
}
