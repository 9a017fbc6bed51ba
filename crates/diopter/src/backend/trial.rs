//! Whether a backend works in this process, found by doing what it will be used for: a real set-up
//! and a direct read. Never by version or sysctl.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use diopter_sys::uring::is_direct;
use diopter_sys::{
    AioWanted, BioSpec, Errno, IoBuf, ObjectHandle, Op, RwFlags, Slab, SlabShape, Span,
};

use crate::backend::aio::Aio;
use crate::backend::uring::{Uring, UringOptions};
use crate::backend::{Backend, Wait};
use crate::clock;
use crate::sync::{OnceLock, StaticMutex};

/// Why a backend does not serve here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The step that failed.
    pub step: &'static str,
    /// Its errno.
    pub errno: Errno,
}

/// How long a trial waits for its NOP and its read.
const TRIAL_WAIT: Duration = Duration::from_secs(5);

/// Bytes of the read, and what they are aligned to.
const READ_BYTES: u32 = 4096;

const SHAPE: SlabShape = SlabShape { bios: 1, segments_per_bio: 1, memories: 1 };

/// What a trial found out, once for the process.
struct Trial {
    found: OnceLock<Result<(), Choice>>,
    /// One thread at a time: a thousand rings of a thousand trials would take every descriptor.
    trying: StaticMutex<()>,
}

impl Trial {
    const fn new() -> Trial {
        Trial { found: OnceLock::new(), trying: StaticMutex::new(()) }
    }

    fn run(&self, attempt: fn() -> Result<(), Choice>) -> Result<(), Choice> {
        if let Some(known) = self.found.get() {
            return *known;
        }
        let _alone = self.trying.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if let Some(known) = self.found.get() {
            return *known;
        }
        let tried = attempt();
        if tried.is_err_and(|choice| is_of_this_moment(choice.errno)) {
            return tried;
        }
        *self.found.get_or_init(|| tried)
    }
}

/// Want of descriptors, memory or AIO entries: it says nothing of the next attempt.
fn is_of_this_moment(errno: Errno) -> bool {
    [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EAGAIN].contains(&errno)
}

/// Whether io_uring works in this process. Cached: a seccomp filter or a sysctl does not come and
/// go. Want of descriptors or memory does, and is not.
///
/// # Errors
/// The step that failed, and its errno.
pub fn probe_uring() -> Result<(), Choice> {
    static TRIAL: Trial = Trial::new();
    TRIAL.run(|| try_uring(UringOptions::DEFAULT))
}

/// Whether Linux AIO works in this process; cached as [`probe_uring`] is.
///
/// # Errors
/// The step that failed, and its errno: `EAGAIN` at the set-up when `fs.aio-max-nr` is exhausted.
pub fn probe_aio() -> Result<(), Choice> {
    static TRIAL: Trial = Trial::new();
    TRIAL.run(try_aio)
}

/// Whether a ring with `sqpoll` works in this process. Not cached: it is asked for seldom.
///
/// # Errors
/// The step that failed, and its errno.
pub fn probe_sqpoll() -> Result<(), Choice> {
    try_uring(UringOptions { sqpoll: true, ..UringOptions::DEFAULT })
}

/// Whether reads of an open file can be polled for, by one such read of its first bytes.
///
/// # Errors
/// The step that failed, and its errno: `EOPNOTSUPP` at the read where the device has no polled
/// queues, `ENODATA` there for an empty file.
pub fn probe_iopoll(file: BorrowedFd<'_>) -> Result<(), Choice> {
    let object = ObjectHandle::of_fd(file);
    if !is_direct(object) {
        // The backend would serve it, in its other way.
        return Err(at("polled read through the page cache")(Errno::EOPNOTSUPP));
    }
    let slab = Slab::new(SHAPE);
    let wanted = UringOptions { iopoll: true, ..UringOptions::DEFAULT }.wanted();
    let mut uring = Uring::new(&slab, 4, wanted).map_err(at("set-up"))?;
    match read_first(&mut uring, &slab, object, "polled read")? {
        0 => Err(at("polled read")(Errno::ENODATA)),
        _ => Ok(()),
    }
}

fn at(step: &'static str) -> impl Fn(Errno) -> Choice {
    move |errno| Choice { step, errno }
}

fn try_uring(options: UringOptions) -> Result<(), Choice> {
    let slab = Slab::new(SHAPE);
    let mut uring = Uring::new(&slab, 4, options.wanted()).map_err(at("set-up"))?;
    uring.nop(TRIAL_WAIT).map_err(at("NOP"))?;
    read_own_program(&mut uring, &slab)
}

fn try_aio() -> Result<(), Choice> {
    let slab = Slab::new(SHAPE);
    let mut aio = Aio::new(&slab, 4, AioWanted::ALL).map_err(at("set-up"))?;
    read_own_program(&mut aio, &slab)
}

/// Any regular file does; the program's own is there and readable.
fn read_own_program(backend: &mut dyn Backend, slab: &Slab) -> Result<(), Choice> {
    let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open("/proc/self/exe");
    let Ok(file) = open(diopter_sys::file::O_DIRECT).or_else(|_| open(0)) else {
        // Without /proc there is nothing to read; the set-up has worked.
        return Ok(());
    };
    read_first(backend, slab, ObjectHandle::of_fd(file.as_fd()), "direct read").map(drop)
}

/// Reads the first bytes of an object, and answers how many.
fn read_first(
    backend: &mut dyn Backend,
    slab: &Slab,
    object: ObjectHandle,
    step: &'static str,
) -> Result<u32, Choice> {
    let memory = IoBuf::new(READ_BYTES as usize).map_err(at("buffer"))?;
    let memory = slab.adopt(memory).map_err(|_| at("buffer")(Errno::ENOMEM))?;
    let span = Some(Span::new(memory, 0, READ_BYTES));
    let spec = BioSpec { op: Op::Read, object, offset: 0, span, flags: RwFlags::NONE };
    let failed = at(step);
    let id = slab.build(spec).ok_or(failed(Errno::ENOMEM))?;
    if backend.queue(&[id]) == 0 {
        return Err(failed(Errno::EBUSY));
    }
    let mut done = Vec::new();
    let (started, most) = (clock::now(), TRIAL_WAIT.as_nanos());
    // A signal ends a turn early.
    while done.is_empty() && u128::from(clock::now().since(started)) < most {
        let turned = backend.turn(Wait::Block(TRIAL_WAIT), &mut done);
        turned.map_err(|error| failed(error.errno))?;
    }
    match done.first() {
        Some((_, Ok(moved))) => Ok(*moved),
        Some((_, Err(errno))) => Err(failed(*errno)),
        None => Err(failed(Errno::ETIMEDOUT)),
    }
}
