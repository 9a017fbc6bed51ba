//! The calls of the program: each is passed on, and served if the kernel refuses it. `symbols.rs`
//! makes its arguments safe values.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use diopter::Errno;
use nix::errno::Errno as Raw;

use crate::copy::{self, Side};
use crate::guard::{is_serving, serve};
use crate::memory::Memory;
use crate::process::Process;
use crate::real::descriptor;
use crate::report::{self, Counter};
use crate::{advice, config, direct, files, sandbox};

/// A read or a write.
#[derive(Clone, Copy)]
pub struct Request {
    pub fd: c_int,
    /// `None` for the position of the descriptor.
    pub offset: Option<i64>,
    pub is_write: bool,
}

impl Request {
    /// Makes the call by `plain`, and serves it if the kernel refuses it. `memory` is checked as
    /// far as the request reaches, and is an errno if it cannot be used.
    pub fn run<'a>(
        self,
        plain: impl Fn() -> isize,
        memory: impl FnOnce(usize) -> Result<Memory<'a>, Errno>,
    ) -> isize {
        let advised = advice::begin(self.fd);
        let errno = Raw::last_raw();
        let moved = plain();
        if is_refused(moved) {
            return result_of(self.serve(memory), errno);
        }
        match advised {
            Some(file) if self.is_write => file.has_written(self.offset, moved),
            Some(file) => file.has_read(self.offset, moved),
            None => {}
        }
        let is_counted = moved > 0 && report::is_on() && !is_serving();
        // A filter of the program may not permit the look at the flags.
        if is_counted && !sandbox::has_begun() && direct::flags_of(self.fd).is_some() {
            report::add(Counter::Aligned, u64::try_from(moved).unwrap_or(0));
        }
        moved
    }

    fn serve<'a>(
        self,
        memory: impl FnOnce(usize) -> Result<Memory<'a>, Errno>,
    ) -> Result<usize, Errno> {
        let at = self.offset.map(u64::try_from).transpose().map_err(|_| Errno::EINVAL)?;
        let file = direct::flags_of(self.fd).filter(|_| direct::is_possible());
        let file = file.ok_or(Errno::EINVAL)?;
        serve(|process| direct::transfer(process, file, at, self.is_write, memory))
    }
}

/// Copies so many bytes from file to file, if the second is true also to a socket or a pipe.
/// `offsets` reads the program's own, which may be absent, `None` if it cannot; `advance` moves
/// them by what was served.
pub fn copy(
    [source, target]: [c_int; 2],
    offsets: impl Fn() -> Option<(Option<i64>, Option<i64>)>,
    count: (usize, bool),
    plain: impl Fn() -> isize,
    advance: impl FnOnce(i64),
) -> isize {
    let advised = (advice::begin(source), advice::begin(target));
    let errno = Raw::last_raw();
    let moved = plain();
    if is_refused(moved) {
        let side = |number, at| Side::of(descriptor(number).ok_or(Errno::EINVAL)?, at);
        let offsets = offsets().ok_or(Errno::EINVAL);
        let sides = offsets.and_then(|(from, to)| Ok((side(source, from)?, side(target, to)?)));
        let moved = result_of(sides.and_then(|sides| copy::refused(sides, count)), errno);
        // After a failure an offset may be one that the program cannot write.
        if moved > 0 {
            advance(i64::try_from(moved).unwrap_or(0));
        }
        return moved;
    }
    if moved > 0 && (advised.0.is_some() || advised.1.is_some()) {
        let (from, to) = offsets().unwrap_or_default();
        let start = |end: i64| end - i64::try_from(moved).unwrap_or(0);
        advised.0.inspect(|file| file.has_read(from.map(start), moved));
        advised.1.inspect(|file| file.has_written(to.map(start), moved));
    }
    moved
}

/// Returns true if the kernel has just refused a call that may be served here.
fn is_refused(moved: isize) -> bool {
    moved < 0 && Raw::last_raw() == libc::EINVAL && is_loaded()
}

/// Returns true if calls of the program may be served.
fn is_loaded() -> bool {
    config::get().is_some() && !is_serving()
}

/// Does what exec needs before it closes the engine's descriptors.
pub fn before_exec() {
    if is_watching() {
        let kept = serve(|process| {
            process.files().keep_over_exec();
            Ok(())
        });
        // A child of vfork has no locks.
        kept.unwrap_or(());
    }
}

/// Closes a descriptor by `plain`, unless it is the engine's, or not open: the engine could get its
/// number before `plain` closes it. A standard number is closed while the engine opens no file: it
/// could get that number.
pub fn close(fd: c_int, plain: impl Fn() -> c_int) -> c_int {
    let is_standard = (0..files::STANDARD).contains(&fd);
    if !is_standard || sandbox::has_begun() || !may_open() {
        return match before_close(fd) {
            Ok(()) => plain(),
            Err(errno) => int_of(Err(errno)),
        };
    }
    advice::end(fd);
    let closed = serve(|process| {
        let mut files = process.files();
        let Some(number) = descriptor(fd).filter(|_| is_open(fd) && !files.is_own(fd)) else {
            return Err(Errno::EBADF);
        };
        forget(&mut files, fd, number);
        called(&plain)
    });
    int_of(closed)
}

/// Gives the number `new` to the file of `old` by `plain`. Fails with `EBUSY` if `new` is of the
/// engine and a request uses it, as what it writes at this moment would go to the file of `old`; or
/// if the process has locks on its file, which its close would release. Until `plain` returns, the
/// engine opens no file in any thread: it could get the number `new`.
pub fn replace(old: c_int, new: c_int, plain: impl Fn() -> c_int) -> c_int {
    if sandbox::has_begun() {
        return plain();
    }
    let Some(fd) = descriptor(new).filter(|_| old != new && is_open(old)) else { return plain() };
    advice::end(new);
    let done = may_open().then(|| {
        serve(|process| {
            let mut files = process.files();
            if !files.evict(new) {
                return Ok(Err(Errno::EBUSY));
            }
            forget(&mut files, new, fd);
            Ok(called(&plain))
        })
    });
    let result = match done {
        Some(Ok(result)) => int_of(result),
        // In a child of vfork there is nothing to do before.
        _ => plain(),
    };
    advice::begin(new);
    result
}

/// Closes the descriptors from `first` to `last` by `plain`, piece by piece around the engine's. It
/// opens no others until then.
pub fn close_range(first: u32, last: u32, plain: impl Fn(u32, u32) -> c_int) -> c_int {
    advice::end_range(first, last);
    if !may_open() || first > last {
        return plain(first, last);
    }
    let done = serve(|process| {
        let mut files = process.files();
        for fd in files::open_descriptors().filter(|fd| is_within(*fd, first, last)) {
            if let Some(borrowed) = descriptor(fd).filter(|_| !files.is_own(fd)) {
                forget(&mut files, fd, borrowed);
            }
        }
        Ok(called(|| close_between(&files.descriptors(), (first, last), &plain)))
    });
    done.map_or_else(|_| plain(first, last), int_of)
}

/// Closes the descriptors of a range by `plain` but for `kept`, which are in order.
fn close_between(
    kept: &[c_int],
    (first, last): (u32, u32),
    plain: impl Fn(u32, u32) -> c_int,
) -> c_int {
    let mut from = first;
    for own in kept.iter().filter_map(|fd| u32::try_from(*fd).ok()) {
        if own < from || own > last {
            continue;
        }
        if own > from && plain(from, own - 1) != 0 {
            return -1;
        }
        from = own + 1;
    }
    if from > last { 0 } else { plain(from, last) }
}

/// Closes the open descriptors from `first` to `last` by `plain`.
pub fn close_each(first: u32, last: u32, plain: impl Fn(c_int) -> c_int) {
    for fd in files::open_descriptors().filter(|fd| is_within(*fd, first, last)) {
        plain(fd);
    }
}

fn is_open(number: c_int) -> bool {
    descriptor(number).is_some_and(|fd| rustix::io::fcntl_getfd(fd).is_ok())
}

fn is_within(fd: c_int, first: u32, last: u32) -> bool {
    u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd))
}

/// Returns true if a descriptor that is closed may matter to the engine.
pub fn is_watching() -> bool {
    files::has_files() && !is_serving()
}

/// Returns true if a thread may open a file of the engine at this moment, also the first. A child
/// of fork has none until it makes a request. Nor does it where a filter of the program's may not
/// permit what follows.
fn may_open() -> bool {
    is_watching() || is_loaded() && !sandbox::has_begun() && Process::exists()
}

/// Does what has to be done before the program closes a descriptor.
pub fn before_close(number: c_int) -> Result<(), Errno> {
    // The program's filter need not permit what follows: the close is as one past libc.
    if sandbox::has_begun() {
        return Ok(());
    }
    advice::end(number);
    let Some(fd) = descriptor(number).filter(|_| is_watching()) else { return Ok(()) };
    let known = serve(|process| {
        let mut files = process.files();
        let is_programs = is_open(number) && !files.is_own(number);
        if is_programs {
            forget(&mut files, number, fd);
        }
        Ok(is_programs)
    });
    // A child of vfork closes its own descriptors, whichever they are.
    if known == Ok(false) { Err(Errno::EBADF) } else { Ok(()) }
}

fn forget(files: &mut files::Files, number: c_int, fd: BorrowedFd<'_>) {
    files.lose(number);
    if let Ok(stat) = rustix::fs::fstat(fd) {
        files.forget(files::Inode::of(&stat));
    }
}

/// Makes a call of libc; the errno is a value.
fn called(plain: impl Fn() -> c_int) -> Result<c_int, Errno> {
    let result = plain();
    if result < 0 { Err(Errno::from_raw(Raw::last_raw())) } else { Ok(result) }
}

/// Returns what a call of libc returns.
fn int_of(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        Raw::set_raw(errno.raw());
        -1
    })
}

/// As [`int_of`], for a call that succeeds with `errno` as it was before.
fn result_of(result: Result<usize, Errno>, errno: i32) -> isize {
    Raw::set_raw(result.map_or_else(Errno::raw, |_| errno));
    result.map_or(-1, |moved| isize::try_from(moved).unwrap_or(isize::MAX))
}
