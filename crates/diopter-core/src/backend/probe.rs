//! Tests if a backend works in this process by using it: a real set-up and a direct read. Versions
//! and sysctls are never consulted.

use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use diopter_os::file::{self, inspect, reopen_buffered};
use diopter_os::{
    AioWanted, BioSpec, Errno, IoBuf, Op, OpenObject, RwFlags, Slab, SlabShape, Span,
};

use crate::backend::aio::Aio;
use crate::backend::uring::{Uring, UringOptions};
use crate::backend::{Backend, Wait};
use crate::clock;
use crate::sync::{ForkMutex, OnceLock};
use crate::units::to_usize;

/// The failure of a backend's test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The step that failed.
    pub step: &'static str,
    /// Its errno.
    pub errno: Errno,
}

/// Time limit of the NOP and of the read.
const PROBE_WAIT: Duration = Duration::from_secs(5);

/// Bytes of the read, unless direct I/O needs more.
const READ_BYTES: u32 = 4096;

/// The step of [`Choice`] that sets up a ring or a context.
const SET_UP: &str = "set-up";

/// The step that fails on a kernel before 5.11 (5.10 with the backport).
const TIME_LIMIT: &str = "a wait with a time limit (IORING_FEAT_EXT_ARG)";

const SHAPE: SlabShape = SlabShape { operations: 0, bios: 1, segments_per_bio: 1, memories: 1 };

/// The result of a test, cached once it holds for the process.
struct CachedProbe {
    found: OnceLock<Result<(), Choice>>,
    /// One thread at a time: a thousand rings of a thousand tests would take every descriptor.
    trying: ForkMutex<()>,
}

impl CachedProbe {
    const fn new() -> CachedProbe {
        CachedProbe { found: OnceLock::new(), trying: ForkMutex::new(()) }
    }

    fn run(&self, attempt: impl FnOnce() -> Result<(), Choice>) -> Result<(), Choice> {
        if let Some(known) = self.found.get() {
            return *known;
        }
        // In a child of fork whose parent was in a test there is nothing to wait for.
        let _alone = self.trying.lock();
        if let Some(known) = self.found.get() {
            return *known;
        }
        let tried = attempt();
        if tried.is_err_and(|choice| !is_of_the_process(choice)) {
            return tried;
        }
        *self.found.get_or_init(|| tried)
    }
}

/// Returns true for a failure by a seccomp filter, a sysctl or the kernel's age, which is
/// permanent. A lack of descriptors, memory or AIO entries is not, and an error of the file that
/// was read proves nothing for other files.
fn is_of_the_process(choice: Choice) -> bool {
    match choice.errno {
        Errno::EPERM | Errno::EACCES | Errno::ENOSYS => true,
        errno => errno == Errno::EOPNOTSUPP && [SET_UP, TIME_LIMIT].contains(&choice.step),
    }
}

/// Tests io_uring in this process. The result is cached if it works, or if the process may not use
/// it.
///
/// # Errors
/// Fails with the step that failed, and its errno.
pub fn probe_uring() -> Result<(), Choice> {
    static PROBE: CachedProbe = CachedProbe::new();
    PROBE.run(|| try_uring(UringOptions::DEFAULT))
}

/// Tests Linux AIO in this process; cached as [`probe_uring`] is.
///
/// # Errors
/// Fails with the step that failed, and its errno: `EAGAIN` at the set-up if `fs.aio-max-nr` is
/// exhausted.
pub fn probe_aio() -> Result<(), Choice> {
    static PROBE: CachedProbe = CachedProbe::new();
    PROBE.run(try_aio)
}

/// Tests a ring with `sqpoll` in this process. Not cached, because it is rarely used.
///
/// # Errors
/// Fails with the step that failed, and its errno.
pub fn probe_sqpoll() -> Result<(), Choice> {
    try_uring(UringOptions { sqpoll: true, ..UringOptions::DEFAULT })
}

/// Tests polled reads of an open file, by one such read of its first bytes.
///
/// # Errors
/// Fails with the step that failed, and its errno: `EOPNOTSUPP` at the read if the device has no
/// polled queues, `ENODATA` there for an empty file.
pub fn probe_iopoll(file: BorrowedFd<'_>) -> Result<(), Choice> {
    let object = OpenObject::duplicate(file).map_err(at("descriptor"))?;
    if !object.is_direct() {
        // The backend would serve it as buffered I/O.
        return Err(at("polled read through the page cache")(Errno::EOPNOTSUPP));
    }
    let slab = Slab::new(SHAPE);
    let wanted = UringOptions { iopoll: true, ..UringOptions::DEFAULT }.wanted();
    let mut uring = Uring::new(&slab, 4, wanted).map_err(at(SET_UP))?;
    match read_first(&mut uring, &slab, &object, "polled read")? {
        0 => Err(at("polled read")(Errno::ENODATA)),
        _ => Ok(()),
    }
}

fn at(step: &'static str) -> impl Fn(Errno) -> Choice {
    move |errno| Choice { step, errno }
}

fn try_uring(options: UringOptions) -> Result<(), Choice> {
    let slab = Slab::new(SHAPE);
    let failed = |errno| {
        let lacks_it = errno == Errno::EOPNOTSUPP && options == UringOptions::DEFAULT;
        at(if lacks_it { TIME_LIMIT } else { SET_UP })(errno)
    };
    let mut uring = Uring::new(&slab, 4, options.wanted()).map_err(failed)?;
    uring.nop(PROBE_WAIT).map_err(at("NOP"))?;
    read_own_program(&mut uring, &slab)
}

fn try_aio() -> Result<(), Choice> {
    let slab = Slab::new(SHAPE);
    let mut aio = Aio::new(&slab, 4, AioWanted::ALL).map_err(at(SET_UP))?;
    read_own_program(&mut aio, &slab)
}

fn read_own_program(backend: &mut dyn Backend, slab: &Slab) -> Result<(), Choice> {
    read_program(backend, slab, Path::new("/proc/self/exe"))
}

/// Any regular file is suitable; the program itself exists and is readable.
fn read_program(backend: &mut dyn Backend, slab: &Slab, path: &Path) -> Result<(), Choice> {
    let options = file::OpenOptions { read: true, ..file::OpenOptions::default() };
    let Ok(opened) = file::open(path, &options) else {
        // Without /proc there is nothing to read; the set-up has worked.
        return Ok(());
    };
    let object = OpenObject::new(opened.fd);
    match read_first(backend, slab, &object, "direct read") {
        // The file system needs a larger alignment than it reports, or has no direct I/O.
        Err(Choice { errno: Errno::EINVAL | Errno::EOPNOTSUPP, .. }) if object.is_direct() => {
            let failed = at("buffered read");
            let fd = object.fd().ok_or(failed(Errno::EBADF))?;
            let buffered = OpenObject::new(reopen_buffered(fd, true, false).map_err(failed)?);
            read_first(backend, slab, &buffered, "buffered read").map(drop)
        }
        tried => tried.map(drop),
    }
}

/// Returns the bytes of a first direct read of an object; at least [`READ_BYTES`].
fn bytes_of_read(object: &OpenObject) -> Result<u32, Errno> {
    let fd = object.fd().ok_or(Errno::EBADF)?;
    let fd = fd.try_clone_to_owned().map_err(|_| Errno::EMFILE)?;
    let inspected = inspect(fd).map_err(|failure| failure.errno)?;
    Ok(inspected.alignment.offset_read.max(READ_BYTES))
}

/// Reads the first bytes of an object, and returns their number.
fn read_first(
    backend: &mut dyn Backend,
    slab: &Slab,
    object: &OpenObject,
    step: &'static str,
) -> Result<u32, Choice> {
    let failed = at(step);
    let bytes = bytes_of_read(object).map_err(&failed)?;
    let memory = IoBuf::new(to_usize(u64::from(bytes))).map_err(at("buffer"))?;
    let memory = slab.adopt(memory).map_err(|_| at("buffer")(Errno::ENOMEM))?;
    let span = Some(Span::new(memory, 0, bytes));
    let spec = BioSpec { op: Op::Read, object, offset: 0, span, flags: RwFlags::NONE };
    let id = slab.build(spec).ok_or(failed(Errno::ENOMEM))?;
    if backend.queue(&[id]) == 0 {
        return Err(failed(Errno::EBUSY));
    }
    let mut done = Vec::new();
    let (started, most) = (clock::now(), PROBE_WAIT.as_nanos());
    // A signal ends a turn early.
    while done.is_empty() && u128::from(clock::now().since(started)) < most {
        let turned = backend.turn(Wait::Block(PROBE_WAIT), &mut done);
        turned.map_err(|error| failed(error.errno))?;
    }
    let Some(&(_, result)) = done.first() else { return Err(failed(Errno::ETIMEDOUT)) };
    slab.retire(id);
    drop(slab.release(memory));
    result.map_err(failed)
}

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests {
    use super::*;
    use crate::sync::tests::check_while_held;

    const UNSUPPORTED: Choice = Choice { step: SET_UP, errno: Errno::EOPNOTSUPP };

    /// Runs a test with this result, and returns how many of two runs tried.
    fn tries(result: Result<(), Choice>) -> u32 {
        let (probe, mut count) = (CachedProbe::new(), 0);
        for _ in 0..2 {
            let tried = probe.run(|| {
                count += 1;
                result
            });
            assert_eq!(tried, result);
        }
        count
    }

    #[test]
    fn a_verdict_on_the_process_is_kept_and_one_on_the_moment_or_a_file_is_not() {
        assert_eq!(tries(Ok(())), 1);
        assert_eq!(tries(Err(UNSUPPORTED)), 1);
        for errno in [Errno::EPERM, Errno::EACCES, Errno::ENOSYS] {
            assert_eq!(tries(Err(Choice { step: "NOP", errno })), 1, "{errno}");
        }
        let moment = [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EAGAIN];
        let file = [Errno::EINVAL, Errno::EIO, Errno::EOPNOTSUPP, Errno::ETIMEDOUT];
        for errno in moment.into_iter().chain(file) {
            assert_eq!(tries(Err(Choice { step: "direct read", errno })), 2, "{errno}");
        }
    }

    #[test]
    fn a_child_does_not_wait_for_the_probe_that_a_thread_of_its_parent_is_in() {
        let name = "a_child_does_not_wait_for_the_probe_that_a_thread_of_its_parent_is_in";
        static PROBE: CachedProbe = CachedProbe::new();
        let held = |hold: &dyn Fn()| {
            let tried = PROBE.run(|| {
                hold();
                Ok(())
            });
            assert_eq!(tried, Ok(()));
        };
        check_while_held((module_path!(), name), held, || {
            assert_eq!(PROBE.run(|| Err(UNSUPPORTED)), Err(UNSUPPORTED), "its own attempt");
        });
    }

    #[test]
    fn a_program_is_read_whatever_its_file_system_says_of_direct_io() {
        let slab = Slab::new(SHAPE);
        let mut threads = crate::backend::threads::Threads::new(&slab, 1);
        let dir = tempfile::tempdir().expect("a directory");
        for name in ["empty", "short", "long"] {
            let path = dir.path().join(name);
            let length = [("empty", 0), ("short", 7), ("long", 100_000)]
                .into_iter()
                .find_map(|(its, length)| (its == name).then_some(length));
            std::fs::write(&path, vec![1; length.expect("named")]).expect("space");
            assert_eq!(read_program(&mut threads, &slab, &path), Ok(()), "{name}");
        }
        assert_eq!((slab.held(), slab.memories(), slab.vacancies()), (0, 0, 1));
        assert_eq!(read_program(&mut threads, &slab, &dir.path().join("none")), Ok(()));
    }
}
