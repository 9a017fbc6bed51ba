//! The functions that `engine.c` calls, as `diopter_fio.h` declares them. They convert arguments
//! and results, and stop panics.

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::os::fd::IntoRawFd;
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use diopter::File;

use crate::failure::{EIO, Failure};
use crate::files::{self, Mode, Special};
use crate::job::{Done, Job, NotStarted, Op, Options, Tag};

/// As `DIOPTER_FIO_MESSAGE_BYTES` of the header.
const MESSAGE_BYTES: usize = 512;

/// Room for a message of C.
type Message = MaybeUninit<[u8; MESSAGE_BYTES]>;

const STARTED: c_int = 0;
const BUSY: c_int = -1;

const PLAIN: c_uint = 0;
const SPECIAL: c_uint = 1;

#[repr(C)]
pub struct COptions {
    backend: *const c_char,
    preset: *const c_char,
    registers: c_int,
    in_flight: c_uint,
}

#[repr(C)]
pub struct CMode {
    writes: c_int,
    creates: c_int,
    strict: c_int,
    dsync: c_int,
    sync: c_int,
    size_wanted: u64,
}

impl CMode {
    fn get(&self) -> Mode {
        Mode {
            writes: self.writes != 0,
            creates: self.creates != 0,
            strict: self.strict != 0,
            dsync: self.dsync != 0,
            sync: self.sync != 0,
            size_wanted: self.size_wanted,
        }
    }
}

/// Runs `work`; a panic becomes a failure. The engine says in its message what went wrong, and the
/// job ends with it: what it left half done is not used again.
fn guarded<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        Err(Failure::new(EIO, "the engine panicked; the message is above; report it as a bug"))
    })
}

/// Runs `work` and returns its errno, with the message where the caller has room for it.
fn errno_of(message: Option<&mut Message>, work: impl FnOnce() -> Result<(), Failure>) -> c_int {
    let Err(failure) = guarded(work) else { return 0 };
    if let Some(room) = message {
        write_message(room, &failure.message);
    }
    failure.errno
}

/// Writes as much of a message as fits, and a zero.
fn write_message(room: &mut Message, message: &str) {
    let mut bytes = [0; MESSAGE_BYTES];
    let length = message.len().min(MESSAGE_BYTES - 1);
    bytes[..length].copy_from_slice(&message.as_bytes()[..length]);
    room.write(bytes);
}

/// Returns the text at an address; no text at null.
///
/// # Safety
/// `text` is null, or a string of C that lives as long as the caller uses the result.
unsafe fn text<'a>(text: *const c_char) -> &'a OsStr {
    if text.is_null() {
        return OsStr::new("");
    }
    // SAFETY: as the caller promises.
    let text = unsafe { CStr::from_ptr(text) };
    OsStr::from_bytes(text.to_bytes())
}

/// # Safety
/// The strings of `options` are strings of C, or null.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn diopter_fio_job_new(
    options: &COptions,
    job: &mut *mut Job,
    message: Option<&mut Message>,
) -> c_int {
    let owned = |text: &OsStr| text.to_string_lossy().into_owned();
    // SAFETY: a string of fio's options, or null.
    let backend = owned(unsafe { text(options.backend) });
    // SAFETY: a string of fio's options, or null.
    let preset = owned(unsafe { text(options.preset) });
    let (registers, in_flight) = (options.registers != 0, options.in_flight);
    let options = Options { backend, preset, registers, in_flight };
    let work = || {
        *job = Box::into_raw(Box::new(Job::new(options)?));
        Ok(())
    };
    errno_of(message, work)
}

/// # Safety
/// `job` is from `diopter_fio_job_new`, and is not used after this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn diopter_fio_job_free(job: *mut Job) {
    // SAFETY: the pointer is from `Box::into_raw`, and the caller passes it on.
    let job = unsafe { Box::from_raw(job) };
    guarded(|| {
        let mut job = job;
        job.free();
        Ok(())
    })
    .unwrap_or(());
}

#[unsafe(no_mangle)]
pub extern "C" fn diopter_fio_memory_new(
    job: &mut Job,
    bytes: usize,
    message: Option<&mut Message>,
) -> *mut c_void {
    let mut base = std::ptr::null_mut();
    let work = || {
        base = job.allocate(bytes)?.as_ptr().cast();
        Ok(())
    };
    errno_of(message, work);
    // Null after a failure.
    base
}

#[unsafe(no_mangle)]
pub extern "C" fn diopter_fio_memory_free(job: &mut Job) {
    guarded(|| {
        job.free();
        Ok(())
    })
    .unwrap_or(());
}

/// # Safety
/// `name` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn diopter_fio_file_look(
    name: *const c_char,
    mode: &CMode,
    kind: &mut c_uint,
    size: &mut u64,
    message: Option<&mut Message>,
) -> c_int {
    // SAFETY: a name of fio's, which it keeps during the call.
    let name = Path::new(unsafe { text(name) });
    let work = || {
        (*kind, *size) = match files::look(name, mode.get())? {
            Some(Special(size)) => (SPECIAL, size),
            None => (PLAIN, 0),
        };
        Ok(())
    };
    errno_of(message, work)
}

/// # Safety
/// `name` is a string of C.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn diopter_fio_file_open(
    job: Option<&Job>,
    name: *const c_char,
    mode: &CMode,
    file: &mut *mut File,
    descriptor: &mut c_int,
    message: Option<&mut Message>,
) -> c_int {
    // SAFETY: a name of fio's, which it keeps during the call.
    let name = Path::new(unsafe { text(name) });
    let work = || {
        let opened = files::open(name, mode.get())?;
        let copy = files::descriptor(&opened)?;
        if let Some(job) = job {
            job.opened(&opened);
        }
        *descriptor = copy.into_raw_fd();
        *file = Box::into_raw(Box::new(opened));
        Ok(())
    };
    errno_of(message, work)
}

/// # Safety
/// `file` is from `diopter_fio_file_open`, and is not used after this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn diopter_fio_file_close(
    job: Option<&Job>,
    file: *mut File,
    flushes: c_int,
) -> c_int {
    // SAFETY: the pointer is from `Box::into_raw`, and the caller passes it on.
    let file = unsafe { Box::from_raw(file) };
    let work = || {
        let flushed = if flushes != 0 { file.sync_all() } else { Ok(()) };
        if let Some(job) = job {
            job.closing(&file);
        }
        Ok(flushed?)
    };
    errno_of(None, work)
}

#[unsafe(no_mangle)]
pub extern "C" fn diopter_fio_file_drop_cache(file: &File) -> c_int {
    let work = || {
        let dropped = files::drop_cache(file);
        dropped.map_err(|errno| Failure::new(errno.raw_os_error(), String::new()))
    };
    guarded(work).map_or_else(|failure| failure.errno, |()| 0)
}

#[unsafe(no_mangle)]
pub extern "C" fn diopter_fio_start(
    job: &mut Job,
    file: &File,
    op: c_uint,
    offset: u64,
    memory: *mut c_void,
    length: usize,
    tag: Tag,
) -> c_int {
    let op = match op {
        0 => Op::Read,
        1 => Op::Write,
        2 => Op::Sync,
        _ => Op::DataSync,
    };
    let started = guarded(|| Ok(job.start(file, (op, offset), (memory.cast(), length), tag)));
    match started {
        Ok(Ok(())) => STARTED,
        Ok(Err(NotStarted::Busy)) => BUSY,
        Ok(Err(NotStarted::Failed(errno))) | Err(Failure { errno, .. }) => errno,
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn diopter_fio_submit(job: &mut Job) {
    guarded(|| {
        job.submit();
        Ok(())
    })
    .unwrap_or(());
}

#[unsafe(no_mangle)]
pub extern "C" fn diopter_fio_reap(job: &mut Job, least: c_uint, most: c_uint) -> c_int {
    let [least, most] = [least, most].map(|count| usize::try_from(count).unwrap_or(usize::MAX));
    let reaped = guarded(|| Ok(job.reap(least, most)));
    reaped.map_or_else(|failure| -failure.errno, |count| c_int::try_from(count).unwrap_or(0))
}

/// Not guarded: a panic here, about an index that fio cannot have, aborts the process.
#[unsafe(no_mangle)]
pub extern "C" fn diopter_fio_result(job: &Job, index: c_uint, done: &mut Done) {
    *done = job.result(usize::try_from(index).unwrap_or(usize::MAX));
}

#[unsafe(no_mangle)]
pub extern "C" fn diopter_fio_first_failure(job: &mut Job, message: &mut Message) -> c_int {
    let Some(first) = job.first_failure() else { return 0 };
    write_message(message, &first);
    1
}
