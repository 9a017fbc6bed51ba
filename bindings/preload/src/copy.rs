//! copy_file_range(2) and sendfile(2) between large regular files under `dio run --all`.

use std::os::fd::BorrowedFd;

use diopter::{Errno, File, IoBuf};
use rustix::fs::{FileType, OFlags, SeekFrom, Stat};

use crate::direct::Taken;
use crate::files;
use crate::process::Process;
use crate::real;
use crate::report::{self, Counter};

/// Shorter copies are the kernel's.
const LENGTH_MIN: u64 = 1 << 20;

/// The most that one call copies; the program asks again for the rest, as it does for the kernel.
const LENGTH_MAX: u64 = 64 << 20;

/// Bytes of one read and one write.
const PIECE: usize = 4 << 20;

/// Local file systems with direct I/O (linux/magic.h). Others may have a way of their own to copy,
/// such as a server that does it.
const FILE_SYSTEMS: [i64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];

/// One side of a copy.
#[derive(Clone, Copy)]
pub struct Side<'a> {
    pub fd: BorrowedFd<'a>,
    /// `None` for the position of the descriptor.
    pub offset: Option<u64>,
}

impl Side<'_> {
    /// Returns a side; `None` for an offset below 0.
    pub fn of(fd: BorrowedFd<'_>, offset: Option<i64>) -> Option<Side<'_>> {
        let offset = offset.map(u64::try_from).transpose().ok()?;
        Some(Side { fd, offset })
    }
}

/// Copies; `None` if the call is for the kernel.
///
/// # Errors
/// The errno of the copy, if nothing was copied.
pub fn copy(
    process: &Process,
    source: Side<'_>,
    target: Side<'_>,
    length: usize,
    min_size: u64,
) -> Result<Option<usize>, Errno> {
    let (Ok(from), Ok(to)) = (rustix::fs::fstat(source.fd), rustix::fs::fstat(target.fd)) else {
        return Ok(None);
    };
    let flags = rustix::fs::fcntl_getfl(source.fd)?;
    let target_flags = rustix::fs::fcntl_getfl(target.fd)?;
    let size = u64::try_from(from.st_size).unwrap_or(0);
    let is_same = (from.st_dev, from.st_ino) == (to.st_dev, to.st_ino);
    let is_ours = is_local(source.fd, &from) && is_local(target.fd, &to);
    let is_refused = flags & OFlags::RWMODE == OFlags::WRONLY
        || target_flags & OFlags::RWMODE == OFlags::RDONLY
        || target_flags.contains(OFlags::APPEND);
    if !is_ours || is_same || is_refused || size < min_size {
        return Ok(None);
    }
    let start = start_of(source)?;
    let length = u64::try_from(length).unwrap_or(u64::MAX).min(size.saturating_sub(start));
    let length = length.min(LENGTH_MAX);
    if length < LENGTH_MIN {
        return Ok(None);
    }
    let to_start = start_of(target)?;
    let moved = if real::clone_range((source.fd, start), (target.fd, to_start), length) {
        report::add(Counter::Shared, length);
        usize::try_from(length).unwrap_or(usize::MAX)
    } else {
        let _standard = files::take_standard_numbers();
        // What cannot be opened a second time is the kernel's.
        let (Ok(reader), Ok(writer)) =
            (process.files().of(source.fd, flags), process.files().of(target.fd, target_flags))
        else {
            return Ok(None);
        };
        let moved = copy_by_engine(&reader.file, start, &writer.file, to_start, length)?;
        report::add(Counter::Copied, u64::try_from(moved).unwrap_or(0));
        moved
    };
    for side in [source, target] {
        if side.offset.is_none() {
            Taken::new(side.fd, moved)?.settle(moved)?;
        }
    }
    Ok(Some(moved))
}

/// Copies until the end, or the first error. An error is returned if nothing was copied.
fn copy_by_engine(
    reader: &File,
    from: u64,
    writer: &File,
    to: u64,
    length: u64,
) -> Result<usize, Errno> {
    let mut buf = IoBuf::new(PIECE)?;
    let mut done = 0_u64;
    while done < length {
        let piece = usize::try_from(length - done).unwrap_or(PIECE).min(PIECE);
        let copied = reader
            .read_at(&mut buf[..piece], from + done)
            .and_then(|got| writer.write_all_at(&buf[..got], to + done).map(|()| got));
        match copied {
            Ok(0) => break,
            Ok(got) => done += u64::try_from(got).unwrap_or(0),
            Err(_) if done > 0 => break,
            Err(error) => return Err(error.errno()),
        }
    }
    Ok(usize::try_from(done).unwrap_or(usize::MAX))
}

fn start_of(side: Side<'_>) -> Result<u64, Errno> {
    match side.offset {
        Some(offset) => Ok(offset),
        None => Ok(rustix::fs::seek(side.fd, SeekFrom::Current(0))?),
    }
}

fn is_local(fd: BorrowedFd<'_>, stat: &Stat) -> bool {
    let is_regular = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    is_regular
        && rustix::fs::fstatfs(fd)
            .is_ok_and(|about| FILE_SYSTEMS.contains(&i64::from(about.f_type)))
}
