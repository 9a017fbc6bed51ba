//! Structures of options. Each begins with its size, so that later versions can add members.

use std::ffi::c_char;
use std::mem::{MaybeUninit, offset_of};

use libc::c_int;

use crate::error::{Failure, Result};

/// Refuses every request that would go through the page cache, in whole or in part, and a file
/// without direct I/O, with -EOPNOTSUPP.
pub const DPT_FILE_STRICT: u64 = 1;
/// Sends every request through the page cache.
pub const DPT_FILE_BUFFERED: u64 = 2;
/// Locks what it writes against other processes that open the file with this flag as well.
pub const DPT_FILE_SHARED_WRITERS: u64 = 4;
/// Opens a striped file by the name of its manifest; any other file as without this flag.
pub const DPT_FILE_STRIPED: u64 = 8;
/// Opens IMAGE::/PATH, a file inside an unmounted ext2, ext3, ext4 or XFS file system; any other
/// name as without this flag. Such a file keeps its size: it is read, or overwritten in place.
pub const DPT_FILE_IMAGE: u64 = 16;
/// Reads what the page cache has from there, and all else directly. Not of a file of another user,
/// whose cached pages the kernel does not report, and not with DPT_FILE_STRICT.
pub const DPT_FILE_ADAPTIVE: u64 = 32;

/// Options of dpt_file_open(). Set every byte to 0, then size, then what is wanted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dpt_file_options {
    /// sizeof(struct dpt_file_options)
    pub size: usize,
    /// DPT_FILE_STRICT and so on, or 0
    pub flags: u64,
}

/// For dpt_queue_options.flags: the clock is read for each request, and a dpt_completion has its
/// timing.
pub const DPT_QUEUE_TIMINGS: u32 = 1;

/// Options of dpt_queue_create(). Set every byte to 0, then size, then what is wanted.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct dpt_queue_options {
    /// sizeof(struct dpt_queue_options)
    pub size: usize,
    /// "auto", "uring", "aio" or "threads"; NULL is "auto"
    pub backend: *const c_char,
    /// a set of policies: "diopter", "linux-4.15" and so on; NULL is "diopter"
    pub preset: *const c_char,
    /// operations in the device at a time, from 1 to in_flight; 0 has the queue find out
    pub depth: u32,
    /// DPT_QUEUE_TIMINGS, or 0
    pub flags: u32,
    /// requests that the queue has at once, from 1 to 4096; 0 is 128
    pub in_flight: u32,
    /// 0
    pub reserved: u32,
}

/// The most bytes of options of any version; a size beyond is memory that was not set.
const SIZE_MAX: usize = 4096;

impl Default for dpt_file_options {
    fn default() -> dpt_file_options {
        dpt_file_options { size: size_of::<dpt_file_options>(), flags: 0 }
    }
}

impl Default for dpt_queue_options {
    fn default() -> dpt_queue_options {
        let (backend, preset) = (std::ptr::null(), std::ptr::null());
        let size = size_of::<dpt_queue_options>();
        dpt_queue_options { size, backend, preset, depth: 0, flags: 0, in_flight: 0, reserved: 0 }
    }
}

/// A structure of options, of which every bit pattern is a value: all bytes 0 are the default but
/// for the size.
///
/// # Safety
/// Every bit pattern is a value of the type, and its first member is its size, a `size_t`.
pub unsafe trait Options: Copy + Default {
    /// Its bytes in the first version, which programs of then have.
    const FIRST: usize;
}

// SAFETY: integers alone.
unsafe impl Options for dpt_file_options {
    const FIRST: usize = size_of::<dpt_file_options>();
}

// SAFETY: integers and pointers.
unsafe impl Options for dpt_queue_options {
    const FIRST: usize = offset_of!(dpt_queue_options, in_flight);
}

/// Copies options; null is the default. Members that an older program does not have are 0.
///
/// # Safety
/// `options` is null, or begins with a `size_t` that is the number of its readable bytes.
pub unsafe fn read<T: Options>(options: *const T) -> Result<T> {
    let invalid = |errno: c_int, why: &str| Err(Failure::new(errno, why));
    if options.is_null() {
        return Ok(T::default());
    }
    if !options.is_aligned() {
        return invalid(libc::EINVAL, "the options are misaligned: pass a structure of diopter.h");
    }
    // SAFETY: the caller promises the first member, and `options` is aligned for the structure.
    let size = unsafe { options.cast::<usize>().read() };
    let is_whole = size.is_multiple_of(size_of::<u32>());
    if !(T::FIRST..=SIZE_MAX).contains(&size) || !is_whole {
        return invalid(libc::EINVAL, "the size in the options is wrong: set it by sizeof");
    }
    // SAFETY: `size` bytes are readable, as the caller promises.
    let all = unsafe { std::slice::from_raw_parts(options.cast::<u8>(), size) };
    let (known, newer) = all.split_at(size.min(size_of::<T>()));
    // A newer program has more members, of which this version knows nothing.
    if newer.iter().any(|byte| *byte != 0) {
        return invalid(libc::E2BIG, "an option is newer than this library: set it to 0");
    }
    let mut made = MaybeUninit::<T>::zeroed();
    // SAFETY: no more bytes than the type has, into memory of this function.
    unsafe {
        std::ptr::copy_nonoverlapping(known.as_ptr(), made.as_mut_ptr().cast(), known.len());
    }
    // SAFETY: every bit pattern is a value.
    Ok(unsafe { made.assume_init() })
}
