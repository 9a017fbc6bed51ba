//! Backends and options of io_uring, each tried in this process and on this file.

use std::os::fd::BorrowedFd;

use diopter_os::Errno;

use diopter_core::backend::probe;
use diopter_core::backend::probe::Choice;

/// A backend or an option, and the result of its test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ability {
    /// The name of a backend as on the command line; `sqpoll` or `iopoll`.
    pub name: &'static str,
    /// The refusal, if it is not available.
    pub refusal: Option<Choice>,
}

impl Ability {
    fn of(name: &'static str, tried: Result<(), Choice>) -> Ability {
        Ability { name, refusal: tried.err() }
    }
}

/// Tests the backends, in the order of `auto`.
pub(super) fn backends() -> Vec<Ability> {
    vec![
        Ability::of("uring", probe::probe_uring()),
        Ability::of("aio", probe::probe_aio()),
        Ability::of("threads", Ok(())),
    ]
}

/// Tests the options of io_uring; `iopoll` only on an open file. `polls` is the device queue's
/// support of polling. Without it nothing is read: kernels before 6.11 would serve that read by
/// interrupt, and it writes back the cached pages of the file's first bytes, which a probe must not
/// do without need.
pub(super) fn uring_options(file: Option<BorrowedFd<'_>>, polls: Option<bool>) -> Vec<Ability> {
    let sqpoll = Ability::of("sqpoll", probe::probe_sqpoll());
    let iopoll = file.map(|file| {
        let tried = match polls {
            Some(false) => Err(Choice { step: "the device's queue", errno: Errno::EOPNOTSUPP }),
            Some(true) | None => probe::probe_iopoll(file),
        };
        Ability::of("iopoll", tried)
    });
    [Some(sqpoll), iopoll].into_iter().flatten().collect()
}
