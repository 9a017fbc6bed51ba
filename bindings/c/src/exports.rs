//! The functions of `diopter.h`. Each converts its arguments, and calls one function of the other
//! modules inside `error::call`.

use std::ffi::{c_char, c_void};
use std::mem::MaybeUninit;
use std::time::Duration;

use libc::{c_int, c_uint, iovec, mode_t, ssize_t};

use crate::completion::dpt_completion;
use crate::error::{self, Failure, Result, call, call_int, call_pointer, string};
use crate::file::{self, dpt_file, place_of};
use crate::handle;
use crate::memory::{self, At};
use crate::options::{self, dpt_file_options, dpt_queue_options};
use crate::queue::{self, Queue, dpt_queue, dpt_request, queue_place};

/// Refuses a null pointer for a result.
fn check_result<T>(result: *mut T, name: &str) -> Result<()> {
    if result.is_null() || !result.is_aligned() {
        let why = format!("{name} is null or misaligned: pass where the result goes");
        return Err(Failure::new(libc::EINVAL, why));
    }
    Ok(())
}

/// Runs `body` on an open file.
///
/// # Safety
/// As [`handle::get`].
unsafe fn on_file(file: *const dpt_file, body: impl FnOnce(&diopter::File) -> Result<i64>) -> i64 {
    // SAFETY: as this function demands.
    call(|| body(&unsafe { handle::get(place_of(file)) }?.file))
}

/// Runs `body` on an open file, for a transfer at `offset`.
///
/// # Safety
/// As [`handle::get`].
unsafe fn transfer(
    file: *const dpt_file,
    offset: i64,
    body: impl FnOnce(&diopter::File, At<'_>) -> Result<usize>,
) -> ssize_t {
    signed(call(|| {
        // SAFETY: as this function demands.
        let file = unsafe { handle::get(place_of(file)) }?;
        let at = At { file, offset: memory::offset(offset)? };
        Ok(count(body(&file.file, at)?))
    }))
}

fn small(result: i64) -> c_int {
    c_int::try_from(result).unwrap_or(-libc::EOVERFLOW)
}

fn signed(result: i64) -> ssize_t {
    ssize_t::try_from(result).unwrap_or(ssize_t::MAX)
}

fn count(moved: usize) -> i64 {
    i64::try_from(moved).unwrap_or(i64::MAX)
}

fn done(result: diopter::Result<()>) -> Result<i64> {
    Ok(result.map(|()| 0)?)
}

/// Opens a file for direct I/O at any offset, with any length, from any address.
///
/// flags are those of open(2): O_RDONLY, O_WRONLY or O_RDWR, with O_CREAT, O_EXCL, O_TRUNC,
/// O_APPEND, O_DSYNC, O_SYNC and O_NOFOLLOW; O_CLOEXEC and O_DIRECT are always in force. O_EXCL
/// without O_CREAT refuses a block device that is mounted. mode is that of a file that is created.
/// options may be NULL. On a file system without direct I/O all goes through the page cache, but
/// with DPT_FILE_STRICT the open fails.
///
/// Returns 0 and stores the file in *file, or returns a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_file_open(
    path: *const c_char,
    flags: c_int,
    mode: mode_t,
    options: *const dpt_file_options,
    file: *mut *mut dpt_file,
) -> c_int {
    call_int(|| {
        check_result(file, "file")?;
        // SAFETY: the caller promises a string.
        let path = unsafe { string(path, "path") }?;
        // SAFETY: the caller promises options that begin with their size.
        let options = unsafe { options::read(options) }?;
        let opened = handle::open(file::open(path.to_bytes(), flags, mode, options.flags)?);
        // SAFETY: checked to be neither null nor misaligned; the caller promises that it may be
        // written.
        unsafe { file.write(opened.cast_mut().cast()) };
        Ok(0)
    })
}

/// Makes a file of a descriptor that is open, of a regular file or a block device.
///
/// The file is open for what the descriptor is open for, with its O_APPEND, O_DSYNC and O_SYNC. fd
/// stays the caller's, and may be closed or get other flags: the file has a duplicate of it, and
/// opens a second description, which needs the permissions of an open and /proc. Where that is not
/// possible, a description with O_DIRECT and without O_APPEND is used as it is: then its flags must
/// not change. When the file is closed, the kernel releases the POSIX locks that the process holds
/// on it.
///
/// Returns 0 and stores the file in *file, or returns a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_file_from_fd(fd: c_int, file: *mut *mut dpt_file) -> c_int {
    call_int(|| {
        check_result(file, "file")?;
        let opened = handle::open(file::of_descriptor(fd)?);
        // SAFETY: checked to be neither null nor misaligned; the caller promises that it may be
        // written.
        unsafe { file.write(opened.cast_mut().cast()) };
        Ok(0)
    })
}

/// Closes a file. Does not flush it. Requests of queues that are in flight go on.
///
/// No other call may use the file at the same time, nor later. Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_file_close(file: *mut dpt_file) -> c_int {
    call_int(|| {
        // SAFETY: the caller promises a handle or readable memory, and no other call.
        drop(unsafe { handle::close(place_of(file)) }?);
        Ok(0)
    })
}

/// Returns the size of a file, or of the block device, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_file_size(file: *mut dpt_file) -> i64 {
    let size = |file: &diopter::File| Ok(i64::try_from(file.size()?).unwrap_or(i64::MAX));
    // SAFETY: the caller promises a handle or readable memory.
    unsafe { on_file(file, size) }
}

/// Reads count bytes at offset, as pread(2) does. Fewer are returned only at the end of the file,
/// and 0 past it.
///
/// Returns the number of bytes, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_pread(
    file: *mut dpt_file,
    buf: *mut c_void,
    count: usize,
    offset: i64,
) -> ssize_t {
    let read = |file: &diopter::File, at: At<'_>| {
        // SAFETY: the caller promises the memory for the call.
        Ok(file.read_at(unsafe { memory::filled(at, buf, count) }?, at.offset)?)
    };
    // SAFETY: the caller promises a handle or readable memory.
    unsafe { transfer(file, offset, read) }
}

/// Writes count bytes at offset, as pwrite(2) does, all of them; at the end of a file that was
/// opened with O_APPEND. Only a striped file that runs out of space writes fewer.
///
/// Returns the number of bytes, or a negative errno; part of the range may be written then.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_pwrite(
    file: *mut dpt_file,
    buf: *const c_void,
    count: usize,
    offset: i64,
) -> ssize_t {
    let write = |file: &diopter::File, at: At<'_>| {
        // SAFETY: the caller promises the memory for the call.
        Ok(file.write_at(unsafe { memory::taken(at, buf, count) }?, at.offset)?)
    };
    // SAFETY: the caller promises a handle or readable memory.
    unsafe { transfer(file, offset, write) }
}

/// Reads into iovcnt buffers, in order; otherwise as dpt_pread().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_preadv(
    file: *mut dpt_file,
    iov: *const iovec,
    iovcnt: c_int,
    offset: i64,
) -> ssize_t {
    let read = |file: &diopter::File, at: At<'_>| {
        // SAFETY: the caller promises the array and the memory for the call.
        let mut buffers = unsafe { memory::filled_each(at, iov, iovcnt) }?;
        Ok(file.read_vectored_at(&mut buffers, at.offset)?)
    };
    // SAFETY: the caller promises a handle or readable memory.
    unsafe { transfer(file, offset, read) }
}

/// Writes iovcnt buffers, in order; otherwise as dpt_pwrite().
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_pwritev(
    file: *mut dpt_file,
    iov: *const iovec,
    iovcnt: c_int,
    offset: i64,
) -> ssize_t {
    let write = |file: &diopter::File, at: At<'_>| {
        // SAFETY: the caller promises the array and the memory for the call.
        let buffers = unsafe { memory::taken_each(at, iov, iovcnt) }?;
        Ok(file.write_vectored_at(&buffers, at.offset)?)
    };
    // SAFETY: the caller promises a handle or readable memory.
    unsafe { transfer(file, offset, write) }
}

/// Makes every write that returned, on any thread, durable with all metadata, as fsync(2) does. A
/// failed flush stays: every later one of the file fails as well.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_fsync(file: *mut dpt_file) -> c_int {
    // SAFETY: the caller promises a handle or readable memory.
    small(unsafe { on_file(file, |file| done(file.sync_all())) })
}

/// As dpt_fsync(), with only the metadata that is needed to read the data, as fdatasync(2) does.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_fdatasync(file: *mut dpt_file) -> c_int {
    // SAFETY: the caller promises a handle or readable memory.
    small(unsafe { on_file(file, |file| done(file.sync_data())) })
}

/// Sets the length of a file, as ftruncate(2) does, after every write of this process that is in
/// flight.
///
/// Returns 0 or a negative errno: -EBUSY if another thread does not take its completions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_ftruncate(file: *mut dpt_file, length: i64) -> c_int {
    let cut = |file: &diopter::File| done(file.set_len(memory::offset(length)?));
    // SAFETY: the caller promises a handle or readable memory.
    small(unsafe { on_file(file, cut) })
}

/// Reserves space for a range, as fallocate(2) does. The one mode is FALLOC_FL_KEEP_SIZE; any other
/// fails with -EOPNOTSUPP.
///
/// Returns 0 or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_fallocate(
    file: *mut dpt_file,
    mode: c_int,
    offset: i64,
    length: i64,
) -> c_int {
    let reserve = |file: &diopter::File| {
        let (offset, length) = (memory::offset(offset)?, memory::offset(length)?);
        file::allocate(file, mode, offset, length)?;
        Ok(0)
    };
    // SAFETY: the caller promises a handle or readable memory.
    small(unsafe { on_file(file, reserve) })
}

/// Creates a queue, which takes up to 128 requests, or in_flight of its options. It belongs to the
/// thread that creates it, and is destroyed on that thread, before the thread ends.
///
/// options may be NULL. Returns 0 and stores the queue in *queue, or returns a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_queue_create(
    options: *const dpt_queue_options,
    queue: *mut *mut dpt_queue,
) -> c_int {
    call_int(|| {
        check_result(queue, "queue")?;
        // SAFETY: the caller promises options that begin with their size.
        let options = unsafe { options::read(options) }?;
        // SAFETY: the caller promises its strings.
        let created = handle::open(unsafe { queue::create(&options) }?);
        // SAFETY: checked to be neither null nor misaligned; the caller promises that it may be
        // written.
        unsafe { queue.write(created.cast_mut().cast()) };
        Ok(0)
    })
}

/// Waits for the requests of a queue, and destroys it. Completions that were not taken are dropped.
///
/// Returns 0, or the first error of a write or flush whose completion was not taken; the queue is
/// destroyed then as well. -ENOTRECOVERABLE: requests were lost with the backend, and their memory
/// must stay until the process ends. -EPERM, -EBUSY, -EBADF and -EINVAL destroy nothing. In a child
/// of fork it returns 0, and leaves the requests to the parent.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_queue_destroy(queue: *mut dpt_queue) -> c_int {
    call_int(|| {
        let place = queue_place(queue);
        // SAFETY: the caller promises a handle or readable memory.
        let entered: &Queue = unsafe { handle::get(place) }?;
        let finished = if entered.is_inherited() { Ok(()) } else { entered.enter()?.finish() };
        let is_inherited = entered.is_inherited();
        // SAFETY: as above, and no other thread may use the queue. In a child of fork there is no
        // other one.
        let closed = unsafe { handle::close(place) }?;
        if is_inherited {
            // A thread of the parent may have been changing it during the fork.
            std::mem::forget(closed);
        }
        finished.map(|()| 0)
    })
}

/// Submits count requests, in order. Does not wait. The memory of a request belongs to it until
/// dpt_queue_complete() has returned its completion.
///
/// Returns how many were submitted: fewer than count if one was refused, which is the first of the
/// next call then. If the first one is refused, returns a negative errno: -EAGAIN if the queue is
/// full, -ENOTRECOVERABLE if it has lost its backend, -EBADF if the file is not open for this.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_queue_submit(
    queue: *mut dpt_queue,
    requests: *const dpt_request,
    count: c_uint,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller promises a handle or readable memory.
        let queue = unsafe { handle::get::<Queue>(queue_place(queue)) }?.enter()?;
        if count > 0 && (requests.is_null() || !requests.is_aligned()) {
            let why = "requests is null or misaligned, and count is not 0: pass an array";
            return Err(Failure::new(libc::EINVAL, why));
        }
        if count == 0 {
            // SAFETY: no request, so no memory.
            return unsafe { queue.submit(&[]) };
        }
        // SAFETY: neither null nor misaligned, with `count` requests as the caller promises.
        let requests = unsafe { std::slice::from_raw_parts(requests, count as usize) };
        // SAFETY: as this function demands.
        unsafe { queue.submit(requests) }
    })
}

/// Fills completions, from the front, with up to max finished requests. Waits until there are min,
/// or timeout_ns nanoseconds have passed, or nothing is in flight; a negative timeout_ns sets no
/// limit. With min 0 it does not wait.
///
/// Returns how many there are, or a negative errno: -ENOTRECOVERABLE if the queue has lost its
/// backend and every result was returned. Requests whose memory the kernel may still use are never
/// returned then, and stay in flight.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_queue_complete(
    queue: *mut dpt_queue,
    completions: *mut dpt_completion,
    min: c_uint,
    max: c_uint,
    timeout_ns: i64,
) -> c_int {
    call_int(|| {
        // SAFETY: the caller promises a handle or readable memory.
        let queue = unsafe { handle::get::<Queue>(queue_place(queue)) }?.enter()?;
        check_result(completions, "completions")?;
        if max == 0 || min > max || c_int::try_from(max).is_err() {
            let why = "max is 0, less than min or larger than INT_MAX: pass the array's length";
            return Err(Failure::new(libc::EINVAL, why));
        }
        let room = completions.cast::<MaybeUninit<dpt_completion>>();
        // SAFETY: neither null nor misaligned, with room for `max` as the caller promises; nothing
        // is read from it.
        let completions = unsafe { std::slice::from_raw_parts_mut(room, max as usize) };
        let limit = u64::try_from(timeout_ns).ok().map(Duration::from_nanos);
        queue.complete(completions, min as usize, limit)
    })
}

/// Cancels the requests with this user_data, best effort. Each still completes: with -ECANCELED, or
/// with its result if it was too late.
///
/// Returns how many there are, or a negative errno: -ENOENT if there is none.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_queue_cancel(queue: *mut dpt_queue, user_data: u64) -> c_int {
    call_int(|| {
        // SAFETY: the caller promises a handle or readable memory.
        unsafe { handle::get::<Queue>(queue_place(queue)) }?.enter()?.cancel(user_data)
    })
}

/// Returns the number of requests that were submitted and whose completions were not returned, or
/// a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_queue_in_flight(queue: *mut dpt_queue) -> c_int {
    call_int(|| {
        // SAFETY: the caller promises a handle or readable memory.
        Ok(unsafe { handle::get::<Queue>(queue_place(queue)) }?.enter()?.in_flight())
    })
}

/// Returns an eventfd that is readable when a completion may be ready, for poll(2) and epoll(7).
/// The first call makes it, before the first request, or fails with -EBUSY. The queue closes it.
///
/// Call dpt_queue_complete() with min 0 when it is readable, whatever that returns, and do not read
/// the descriptor: a call that returns fewer than max completions clears it. It stays readable
/// while all that is left waits for writes of other threads or processes to the same blocks.
///
/// Returns the descriptor, or a negative errno.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_queue_event_fd(queue: *mut dpt_queue) -> c_int {
    call_int(|| {
        // SAFETY: the caller promises a handle or readable memory.
        unsafe { handle::get::<Queue>(queue_place(queue)) }?.enter()?.event_fd()
    })
}

/// Returns the name of the backend of a queue, "uring", "aio" or "threads", or NULL for an error,
/// which dpt_strerror_detail() describes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_queue_backend(queue: *mut dpt_queue) -> *const c_char {
    call_pointer(|| {
        // SAFETY: the caller promises a handle or readable memory.
        Ok(unsafe { handle::get::<Queue>(queue_place(queue)) }?.enter()?.backend().as_ptr())
    })
}

/// Returns the message of the error of completions[index], as the last dpt_queue_complete() of this
/// queue filled them: what failed, why, and what to do. It is "" for a request that succeeded, and
/// valid until the next dpt_queue_complete() or dpt_queue_destroy(). Returns NULL for an error of
/// this call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn dpt_completion_detail(
    queue: *mut dpt_queue,
    index: c_uint,
) -> *const c_char {
    call_pointer(|| {
        // SAFETY: the caller promises a handle or readable memory.
        Ok(unsafe { handle::get::<Queue>(queue_place(queue)) }?.enter()?.detail(index as usize))
    })
}

/// Returns the message of the last call of this library that failed on the calling thread: what
/// failed, why, and what to do. It is "" before the first failure, and valid until the next one of
/// the thread.
#[unsafe(no_mangle)]
pub extern "C" fn dpt_strerror_detail() -> *const c_char {
    error::detail()
}

/// Returns the version of the library, such as "0.1.0".
#[unsafe(no_mangle)]
pub extern "C" fn dpt_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
