//! Files: flags of open(2) and of diopter as options, and the transfers of one call.

use std::collections::VecDeque;
use std::ffi::OsStr;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use diopter::engine::RoutePolicy;
use diopter::images::{Image, InsideName, split_name};
use diopter::internals::ForkMutex;
use diopter::probe::Alignment;
use diopter::{File, OpenOptions};
use libc::{c_int, mode_t};
use rustix::fs::OFlags;

use crate::error::{Failure, Result};
use crate::handle::{Named, Place, Places};
use crate::options::{
    DPT_FILE_ADAPTIVE, DPT_FILE_BUFFERED, DPT_FILE_IMAGE, DPT_FILE_SHARED_WRITERS, DPT_FILE_STRICT,
    DPT_FILE_STRIPED,
};

/// An open file. Its members are the library's.
pub struct dpt_file {
    _opaque: [u8; 0],
}

/// The file of a `dpt_file`.
pub struct OpenFile {
    pub file: File,
    /// The engine copies no byte of an aligned request: the bytes lie in one file as they are, and
    /// a write goes to the offset that the caller passes.
    pub is_plain: bool,
    /// A request whose offset, length and memory are multiples of this is an aligned one.
    pub aligned: usize,
}

/// A request of whole pages is aligned for each device with sectors of up to a page, also if its
/// alignment is found out later.
const PAGE_BYTES: u32 = 4096;

impl OpenFile {
    /// `is_plain` is false inside an image, and for a file that is opened to append.
    fn new(file: File, is_plain: bool) -> OpenFile {
        let Alignment { memory, offset_read, offset_write, .. } = file.alignment();
        let aligned = [memory, offset_read, offset_write].into_iter().fold(PAGE_BYTES, u32::max);
        let is_plain = is_plain && file.striping().is_none();
        OpenFile { file, is_plain, aligned: usize::try_from(aligned).unwrap_or(usize::MAX) }
    }
}

static FILES: Places<OpenFile> = ForkMutex::new(VecDeque::new());

impl Named for OpenFile {
    const MAGIC: u64 = 0x6469_6f70_6669_6c65;
    const NAME: &'static str = "dpt_file";
    fn places() -> &'static Places<OpenFile> {
        &FILES
    }
}

/// Returns the place of a handle that C holds.
pub fn place_of(file: *const dpt_file) -> *const Place<OpenFile> {
    file.cast()
}

const FILE_FLAGS: u64 = DPT_FILE_STRICT
    | DPT_FILE_BUFFERED
    | DPT_FILE_SHARED_WRITERS
    | DPT_FILE_STRIPED
    | DPT_FILE_IMAGE
    | DPT_FILE_ADAPTIVE;

/// Flags of open(2) that mean nothing new here: files are closed on exec, and opened for direct
/// I/O anyway.
const IGNORED: c_int = libc::O_CLOEXEC | libc::O_DIRECT | libc::O_LARGEFILE | libc::O_NOCTTY;

const OPEN_FLAGS: c_int = libc::O_ACCMODE
    | libc::O_CREAT
    | libc::O_EXCL
    | libc::O_TRUNC
    | libc::O_APPEND
    | libc::O_DSYNC
    | libc::O_SYNC
    | libc::O_NOFOLLOW
    | IGNORED;

/// Opens a file as dpt_file_open() does.
pub fn open(path: &[u8], flags: c_int, mode: mode_t, more: u64) -> Result<OpenFile> {
    let options = options_of(flags, mode, more)?;
    let path = Path::new(OsStr::from_bytes(path));
    let inside = if more & DPT_FILE_IMAGE != 0 { split_name(path) } else { None };
    let is_plain = inside.is_none() && flags & libc::O_APPEND == 0;
    let file = match inside {
        Some(InsideName { image, path }) => Image::open_with(image, &options)?.file(&path)?,
        None => options.open(path)?,
    };
    Ok(OpenFile::new(file, is_plain))
}

/// Takes a duplicate of a descriptor, as dpt_file_from_fd() does.
pub fn of_descriptor(fd: c_int) -> Result<OpenFile> {
    // SAFETY: no memory is passed. The call fails for a number without a descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        let error = std::io::Error::last_os_error();
        let errno = error.raw_os_error().unwrap_or(libc::EBADF);
        return Err(Failure::new(errno, format!("dpt_file_from_fd: descriptor {fd}: {error}")));
    }
    // SAFETY: a new descriptor, which nothing else has.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    let flags = rustix::fs::fcntl_getfl(&copy).unwrap_or(OFlags::APPEND);
    Ok(OpenFile::new(File::try_from(copy)?, !flags.contains(OFlags::APPEND)))
}

fn options_of(flags: c_int, mode: mode_t, more: u64) -> Result<OpenOptions> {
    let invalid = |why: String| Failure::new(libc::EINVAL, format!("dpt_file_open: {why}"));
    let unknown = flags & !OPEN_FLAGS;
    if unknown != 0 {
        return Err(invalid(format!("unknown flags {unknown:#o}: use those of the manual")));
    }
    let unknown = more & !FILE_FLAGS;
    if unknown != 0 {
        return Err(invalid(format!("unknown flags {unknown:#x} in the options: clear them")));
    }
    let has = |flag: c_int| flags & flag == flag;
    let (read, write) = match flags & libc::O_ACCMODE {
        libc::O_RDONLY => (true, false),
        libc::O_WRONLY => (false, true),
        libc::O_RDWR => (true, true),
        _ => return Err(invalid("O_WRONLY with O_RDWR: use one of them".to_owned())),
    };
    let mut options = OpenOptions::new();
    options.read(read).write(write).mode(mode & 0o7777);
    options.create(has(libc::O_CREAT)).create_new(has(libc::O_CREAT | libc::O_EXCL));
    options.exclusive(has(libc::O_EXCL) && !has(libc::O_CREAT)).truncate(has(libc::O_TRUNC));
    options.as_open(true).append(has(libc::O_APPEND) && write).no_follow(has(libc::O_NOFOLLOW));
    // O_SYNC contains the bit of O_DSYNC.
    options.sync(has(libc::O_SYNC)).dsync(has(libc::O_DSYNC) && !has(libc::O_SYNC));
    options.strict(more & DPT_FILE_STRICT != 0);
    options.shared_writers(more & DPT_FILE_SHARED_WRITERS != 0);
    options.striped(more & DPT_FILE_STRIPED != 0);
    match (more & DPT_FILE_BUFFERED != 0, more & DPT_FILE_ADAPTIVE != 0) {
        (true, true) => {
            let why = "DPT_FILE_BUFFERED with DPT_FILE_ADAPTIVE: use one of them";
            return Err(invalid(why.to_owned()));
        }
        (true, false) => drop(options.route(RoutePolicy::Buffered)),
        (false, true) => drop(options.route(RoutePolicy::Adaptive)),
        (false, false) => {}
    }
    Ok(options)
}

/// Reserves space as fallocate(2) does. The one mode is FALLOC_FL_KEEP_SIZE.
pub fn allocate(file: &File, mode: c_int, offset: u64, length: u64) -> Result<()> {
    if mode != libc::FALLOC_FL_KEEP_SIZE {
        let why = "dpt_fallocate: only FALLOC_FL_KEEP_SIZE is done: use dpt_ftruncate for the size";
        return Err(Failure::new(libc::EOPNOTSUPP, why));
    }
    if length == 0 {
        return Err(Failure::new(libc::EINVAL, "dpt_fallocate: the length is 0: pass 1 or more"));
    }
    Ok(file.allocate(offset, length)?)
}
