//! The calls of the program: each is passed on, served, or both. `symbols.rs` makes its arguments
//! safe values.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;

use diopter::Errno;
use nix::errno::Errno as Raw;
use rustix::fs::OFlags;

use crate::config::{self, Config};
use crate::copy::{self, Side};
use crate::direct::{self, At};
use crate::files;
use crate::guard::{is_serving, serve};
use crate::memory::Memory;
use crate::process::Process;
use crate::real::descriptor;
use crate::report::{self, Counter};
use crate::uncached::{self, Open, Write};

/// A read or a write.
pub struct Transfer<P, U, L, M> {
    pub fd: c_int,
    /// `None` for the position of the descriptor.
    pub offset: Option<i64>,
    /// The call as the program made it.
    pub plain: P,
    /// For a write: the same call with `RWF_DONTCACHE`.
    pub uncached: Option<U>,
    /// The length of the request. The kernel has not checked yet what it is read from.
    pub length: L,
    /// The memory, checked as far as the request reaches; the errno of what cannot be used.
    pub memory: M,
}

impl<'a, P, U, L, M> Transfer<P, U, L, M>
where
    P: Fn() -> isize,
    U: Fn() -> isize,
    L: Fn() -> usize,
    M: FnOnce(usize) -> Result<Memory<'a>, Errno>,
{
    /// Makes the call, or what takes its place.
    pub fn run(self) -> isize {
        let Some(config) = config::get().filter(|_| !is_serving()) else { return (self.plain)() };
        let Some(fd) = descriptor(self.fd) else { return (self.plain)() };
        let errno = Raw::last_raw();
        let moved = self.run_on(fd, config);
        if moved >= 0 {
            // A call that succeeds leaves it as it was.
            Raw::set_raw(errno);
        }
        moved
    }

    fn run_on(self, fd: BorrowedFd<'_>, config: &Config) -> isize {
        let moved = match &self.uncached {
            Some(uncached) if config.all => self.write_past_cache(fd, config, uncached),
            _ => (self.plain)(),
        };
        if moved < 0 && Raw::last_raw() == libc::EINVAL {
            return self.run_refused(fd);
        }
        if moved > 0 && report::is_on() {
            count_aligned(fd, moved);
        }
        if config.all && moved >= 0 && self.uncached.is_none() {
            self.note_read(fd, config, moved);
        }
        moved
    }

    fn run_refused(self, fd: BorrowedFd<'_>) -> isize {
        let at = match self.offset {
            None => At::Position,
            Some(offset) => match u64::try_from(offset) {
                Ok(offset) => At::Offset(offset),
                Err(_) => return refuse(Errno::EINVAL),
            },
        };
        let (memory, is_write) = (self.memory, self.uncached.is_some());
        result_of(serve(|process| direct::transfer(process, fd, at, is_write, memory)))
    }

    fn write_past_cache(&self, fd: BorrowedFd<'_>, config: &Config, uncached: &U) -> isize {
        if self.offset.is_some_and(|offset| offset < 0) {
            return (self.plain)();
        }
        let large = uncached::large(fd, &self.length, config.min_size);
        let Some((stat, length)) = large else { return (self.plain)() };
        let of = Open { number: self.fd, fd, stat: &stat };
        let decision = serve(|process| {
            let (decision, todo) = process.streams().before_write(of, length, config.min_size);
            process.leave_cache(&todo, fd);
            Ok(decision)
        });
        let mut decision = decision.unwrap_or(Write::Plain);
        if decision == Write::Uncached {
            let moved = uncached();
            let is_unknown =
                [libc::EOPNOTSUPP, libc::EINVAL, libc::ENOSYS].contains(&Raw::last_raw());
            if moved >= 0 || !is_unknown {
                report::add(Counter::WrittenUncached, u64::try_from(moved).unwrap_or(0));
                return moved;
            }
            let noted = serve(|process| {
                process.streams().refuse_flag(self.fd);
                Ok(())
            });
            noted.unwrap_or(());
            decision = Write::Behind;
        }
        let moved = (self.plain)();
        if decision == Write::Behind && moved > 0 {
            let length = moved.unsigned_abs();
            let noted = serve(|process| {
                let offset = self.offset.map(i64::unsigned_abs);
                let todo = process.streams().after_write(of, offset, to_u64(length))?;
                process.leave_cache(&todo, fd);
                Ok(())
            });
            noted.unwrap_or(());
        }
        moved
    }

    fn note_read(&self, fd: BorrowedFd<'_>, config: &Config, moved: isize) {
        let Some((stat, _)) = uncached::large(fd, || 0, config.min_size) else { return };
        let of = Open { number: self.fd, fd, stat: &stat };
        let length = to_u64(moved.unsigned_abs());
        let noted = serve(|process| {
            let offset = self.offset.map(i64::unsigned_abs);
            let todo = process.streams().after_read(of, offset, length)?;
            process.leave_cache(&todo, fd);
            Ok(())
        });
        // What could not be dropped stays cached.
        noted.unwrap_or(());
    }
}

/// The result of a copy, by who made it.
pub enum Copied {
    /// The kernel has moved the program's offsets too.
    ByKernel(isize),
    ByEngine(Result<usize, Errno>),
}

/// Closes a descriptor by `plain`, unless it is the engine's, or not open: the engine could get its
/// number before `plain` closes it.
pub fn close(fd: c_int, plain: impl Fn() -> c_int) -> c_int {
    match before_close(fd) {
        Ok(()) => plain(),
        Err(errno) => result_of_int(Err(errno)),
    }
}

/// Does what has to be done before libc closes a descriptor by itself.
pub fn before_hidden_close(fd: c_int) {
    // The descriptor of a stream is never the engine's.
    before_close(fd).unwrap_or(());
}

/// Gives the number `new` to the file of `old` by `plain`. Fails with `EBUSY` if `new` is of the
/// engine and a request uses it, as what it writes at this moment would go to the file of `old`; or
/// if the process has locks on its file, which its close would release. A write-back is waited for.
/// Until `plain` returns, the engine opens no file in any thread: it could get the number `new`.
pub fn replace(old: c_int, new: c_int, plain: impl Fn() -> c_int) -> c_int {
    if is_watching()
        && old != new
        && is_open(old)
        && let Some(fd) = descriptor(new)
    {
        let done = serve(|process| {
            end_streams(process, new, fd);
            let mut files = process.files();
            while !files.evict(new) {
                if !files.is_waited_for(new) {
                    return Ok(Err(Errno::EBUSY));
                }
                files = process.wait_for_write_back(files);
            }
            forget(&mut files, new, fd);
            Ok(called(&plain))
        });
        // In a child of vfork there is nothing to do before.
        if let Ok(done) = done {
            return result_of_int(done);
        }
    }
    plain()
}

/// Makes a call of libc; the errno is a value.
fn called(plain: impl Fn() -> c_int) -> Result<c_int, Errno> {
    let result = plain();
    if result < 0 { Err(Errno::from_raw(Raw::last_raw())) } else { Ok(result) }
}

/// Closes the descriptors from `first` to `last` by `plain`, piece by piece around the engine's. It
/// opens no others until then.
pub fn close_range(first: u32, last: u32, plain: impl Fn(u32, u32) -> c_int) -> c_int {
    if !is_watching() || first > last {
        return plain(first, last);
    }
    let done = serve(|process| {
        for fd in files::open_descriptors().filter(|fd| is_within(*fd, first, last)) {
            if let Some(borrowed) = descriptor(fd) {
                end_streams(process, fd, borrowed);
                let mut files = process.files();
                if !files.is_own(fd) {
                    forget(&mut files, fd, borrowed);
                }
            }
        }
        let files = process.files();
        Ok(called(|| close_between(&files.descriptors(), (first, last), &plain)))
    });
    done.map_or_else(|_| plain(first, last), result_of_int)
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

/// Copies from file to file at offsets, or at the positions of the descriptors; with `may_send`
/// also to a socket or a pipe. `offsets` reads the program's own; `None` if it cannot.
pub fn copy(
    (source, target): (c_int, c_int),
    offsets: impl Fn() -> Option<(Option<i64>, Option<i64>)>,
    (length, may_send): (usize, bool),
    plain: impl Fn() -> isize,
) -> Copied {
    let Some(config) = config::get().filter(|_| !is_serving()) else {
        return Copied::ByKernel(plain());
    };
    let sides = || {
        let (from, to) = offsets()?;
        let source = Side::of(descriptor(source)?, from)?;
        Some((source, Side::of(descriptor(target)?, to)?))
    };
    if config.all
        && let Some((source, target)) = sides()
    {
        let min_size = config.min_size;
        match serve(|process| copy::large(process, source, target, length, min_size)) {
            Ok(Some(moved)) => return Copied::ByEngine(Ok(moved)),
            Err(errno) if errno != Errno::EINVAL => return Copied::ByEngine(Err(errno)),
            Ok(None) | Err(_) => {}
        }
    }
    let moved = plain();
    if moved >= 0 || Raw::last_raw() != libc::EINVAL {
        return Copied::ByKernel(moved);
    }
    let Some((source, target)) = sides() else { return Copied::ByKernel(moved) };
    match serve(|process| copy::refused(process, source, target, length)) {
        Err(Errno::ENOTBLK) if may_send => Copied::ByEngine(send(source, target, length)),
        Err(Errno::ENOTBLK) => Copied::ByEngine(Err(Errno::EINVAL)),
        copied => Copied::ByEngine(copied),
    }
}

/// Sends bytes of a file with O_DIRECT to a socket or a pipe. The wait for its reader can be
/// interrupted.
fn send(source: Side<'_>, target: Side<'_>, length: usize) -> Result<usize, Errno> {
    let position = serve(|process| source.position(process))?;
    let sent = send_pieces(source, target, length);
    // It ends while no handler can run: it takes a lock.
    serve(|_| match (position, &sent) {
        (Some(position), Ok(sent)) => position.advance(*sent),
        _ => Ok(()),
    })?;
    sent
}

fn send_pieces(source: Side<'_>, target: Side<'_>, length: usize) -> Result<usize, Errno> {
    let mut sent = 0;
    while sent < length {
        let wanted = (length - sent).min(copy::SENT_PIECE);
        let piece = serve(|process| copy::piece_of(process, source, sent, wanted));
        let written = piece.and_then(|piece| match piece.len() {
            // A write of nothing sends an empty datagram.
            0 => Ok((0, 0)),
            length => Ok((length, rustix::io::write(target.fd, &piece)?)),
        });
        let got = match written {
            Ok((0, _)) => break,
            Ok((length, written)) if written == length => written,
            Ok((_, written)) => {
                sent += written;
                break;
            }
            Err(_) if sent > 0 => break,
            Err(errno) => return Err(errno),
        };
        sent += got;
    }
    Ok(sent)
}

fn is_open(number: c_int) -> bool {
    descriptor(number).is_some_and(|fd| rustix::io::fcntl_getfd(fd).is_ok())
}

fn is_within(fd: c_int, first: u32, last: u32) -> bool {
    u32::try_from(fd).is_ok_and(|fd| (first..=last).contains(&fd))
}

/// Returns true if a descriptor that is closed may matter here.
pub fn is_watching() -> bool {
    let config = config::get();
    config.is_some_and(|config| files::has_files() || config.all) && !is_serving()
}

/// Does what has to be done before the program closes a descriptor.
fn before_close(number: c_int) -> Result<(), Errno> {
    let Some(fd) = descriptor(number).filter(|_| is_watching()) else { return Ok(()) };
    let known = serve(|process| {
        end_streams(process, number, fd);
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

fn end_streams(process: &Process, number: c_int, fd: BorrowedFd<'_>) {
    let todo = process.streams().close(number, fd);
    process.leave_cache(&todo, fd);
}

fn forget(files: &mut files::Files, number: c_int, fd: BorrowedFd<'_>) {
    files.lose(number);
    if let Ok(stat) = rustix::fs::fstat(fd) {
        files.forget(files::Inode::of(&stat));
    }
}

fn count_aligned(fd: BorrowedFd<'_>, moved: isize) {
    if rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| flags.contains(OFlags::DIRECT)) {
        report::add(Counter::Aligned, to_u64(moved.unsigned_abs()));
    }
}

fn to_u64(length: usize) -> u64 {
    u64::try_from(length).unwrap_or(u64::MAX)
}

fn refuse(errno: Errno) -> isize {
    result_of(Err(errno))
}

/// Returns what a call of libc returns.
pub fn result_of(result: Result<usize, Errno>) -> isize {
    match result {
        Ok(moved) => isize::try_from(moved).unwrap_or(isize::MAX),
        Err(errno) => {
            Raw::set_raw(errno.raw());
            -1
        }
    }
}

/// As [`result_of`], for calls whose results are small.
fn result_of_int(result: Result<c_int, Errno>) -> c_int {
    result.unwrap_or_else(|errno| {
        Raw::set_raw(errno.raw());
        -1
    })
}
