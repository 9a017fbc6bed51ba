//! copy_file_range(2) and sendfile(2): between large regular files under `dio run --all`, and what
//! the kernel refuses because a descriptor has O_DIRECT.

use std::io::BufRead;
use std::os::fd::BorrowedFd;

use diopter::{Errno, File};
use rustix::fs::{FileType, OFlags, SeekFrom, Stat};

use crate::direct::Position;
use crate::process::Process;
use crate::real;
use crate::report::{self, Counter};

/// Shorter copies are the kernel's.
const LENGTH_MIN: u64 = 1 << 20;

/// The most that one call copies; the program asks again for the rest, as it does for the kernel.
const LENGTH_MAX: u64 = 256 << 20;

/// Bytes of one read and one write to a socket or a pipe.
pub const SENT_PIECE: usize = 256 << 10;

/// Local file systems with direct I/O (linux/magic.h). Others may copy in a better
/// way, such as within a server.
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

impl<'a> Side<'a> {
    /// Returns the position of the descriptor, if that is used.
    ///
    /// # Errors
    /// As [`Position::of`].
    pub fn position(&self, process: &'a Process) -> Result<Option<Position<'a>>, Errno> {
        match self.offset {
            None => Position::of(process, self.fd).map(Some),
            Some(_) => Ok(None),
        }
    }
}

/// Copies what is large under `dio run --all`; `None` if the call is for the kernel.
///
/// # Errors
/// The errno of the copy, if nothing was copied.
pub fn large(
    process: &Process,
    source: Side<'_>,
    target: Side<'_>,
    length: usize,
    min_size: u64,
) -> Result<Option<usize>, Errno> {
    let Ok(pair) = Pair::of(source, target) else { return Ok(None) };
    let is_local = is_local(source.fd) && is_local(target.fd);
    let start = start_of(source)?;
    let length = length_of(length).min(pair.size.saturating_sub(start)).min(LENGTH_MAX);
    let is_large = pair.size >= min_size && length >= LENGTH_MIN;
    if !is_local || !is_large || !pair.is_regular || pair.is_same || !pair.is_permitted() {
        return Ok(None);
    }
    let to = start_of(target)?;
    let positions = [source.position(process)?, target.position(process)?];
    if real::clone_range((source.fd, start), (target.fd, to), length) {
        report::add(Counter::Shared, length);
        let moved = usize::try_from(length).unwrap_or(usize::MAX);
        settle(&positions, moved)?;
        return Ok(Some(moved));
    }
    drop(positions);
    match by_engine(process, &pair, source, target, length)? {
        Ok(moved) => Ok(Some(moved)),
        // What cannot be opened a second time is the kernel's.
        Err(_) => Ok(None),
    }
}

/// Copies what the kernel has refused: one of the descriptors has O_DIRECT, and the range is not
/// aligned.
///
/// # Errors
/// `EINVAL` for what was refused for another reason, `ENOTBLK` for a target that is not a file; the
/// errno of the copy.
pub fn refused(
    process: &Process,
    source: Side<'_>,
    target: Side<'_>,
    length: usize,
) -> Result<usize, Errno> {
    let pair = Pair::of(source, target)?;
    let is_direct = (pair.source | pair.target).contains(OFlags::DIRECT);
    if !is_direct || !pair.is_permitted() {
        return Err(Errno::EINVAL);
    }
    if pair.is_sent {
        return Err(Errno::ENOTBLK);
    }
    let (from, to) = (start_of(source)?, start_of(target)?);
    let length = length_of(length).min(LENGTH_MAX);
    if pair.is_same && from < to.saturating_add(length) && to < from.saturating_add(length) {
        return Err(Errno::EINVAL);
    }
    let copied = by_engine(process, &pair, source, target, length)?;
    if copied.is_ok() {
        report::add(Counter::EinvalsAvoided, 1);
    }
    copied
}

/// How the two descriptors of a copy are open.
struct Pair {
    source: OFlags,
    target: OFlags,
    /// Bytes of the source.
    size: u64,
    is_same: bool,
    is_regular: bool,
    /// The target is a socket, a pipe or a terminal.
    is_sent: bool,
}

impl Pair {
    fn of(source: Side<'_>, target: Side<'_>) -> Result<Pair, Errno> {
        let (from, to) = (rustix::fs::fstat(source.fd)?, rustix::fs::fstat(target.fd)?);
        let is_regular =
            |stat: &Stat| FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
        Ok(Pair {
            source: rustix::fs::fcntl_getfl(source.fd)?,
            target: rustix::fs::fcntl_getfl(target.fd)?,
            size: u64::try_from(from.st_size).unwrap_or(0),
            is_same: (from.st_dev, from.st_ino) == (to.st_dev, to.st_ino),
            is_regular: is_regular(&from) && is_regular(&to),
            is_sent: !is_regular(&to)
                && FileType::from_raw_mode(to.st_mode) != FileType::BlockDevice,
        })
    }

    /// Returns true if the kernel permits such a copy.
    fn is_permitted(&self) -> bool {
        self.source & OFlags::RWMODE != OFlags::WRONLY
            && self.target & OFlags::RWMODE != OFlags::RDONLY
            && !self.target.contains(OFlags::APPEND)
    }
}

/// Copies by the engine. The outer result is that of the copy, the inner one that of opening the
/// files.
fn by_engine(
    process: &Process,
    pair: &Pair,
    source: Side<'_>,
    target: Side<'_>,
    length: u64,
) -> Result<Result<usize, Errno>, Errno> {
    let _serving = process.serving();
    let (reader, writer) = {
        let mut files = process.files();
        match (files.of(source.fd, pair.source), files.of(target.fd, pair.target)) {
            (Ok(reader), Ok(writer)) => (reader.file, writer.file),
            (Err(errno), _) | (_, Err(errno)) => return Ok(Err(errno)),
        }
    };
    let positions = [source.position(process)?, target.position(process)?];
    let (from, to) = (start_of(source)?, start_of(target)?);
    let moved = copy_pieces(&reader, from, &writer, to, length)?;
    report::add(Counter::Copied, length_of(moved));
    settle(&positions, moved)?;
    Ok(Ok(moved))
}

/// Moves the positions that were used.
fn settle(positions: &[Option<Position<'_>>], moved: usize) -> Result<(), Errno> {
    positions.iter().flatten().try_for_each(|position| position.advance(moved))
}

/// Reads the next piece that is sent.
///
/// # Errors
/// The errno of the read.
pub fn piece_of(
    process: &Process,
    source: Side<'_>,
    sent: usize,
    length: usize,
) -> Result<Vec<u8>, Errno> {
    let _serving = process.serving();
    let flags = rustix::fs::fcntl_getfl(source.fd)?;
    let served = process.files().of(source.fd, flags)?;
    let mut piece = vec![0; length];
    let start = start_of(source)?.saturating_add(length_of(sent));
    let got = served.file.read_at(&mut piece, start).map_err(|error| error.errno())?;
    piece.truncate(got);
    report::add(Counter::EinvalsAvoided, u64::from(sent == 0));
    Ok(piece)
}

/// Copies until the end, or the first error; the device reads ahead meanwhile. An error is returned
/// if nothing was copied.
fn copy_pieces(
    reader: &File,
    from: u64,
    writer: &File,
    to: u64,
    length: u64,
) -> Result<usize, Errno> {
    let mut reader = reader.reader(from);
    let mut done = 0_u64;
    while done < length {
        let room = usize::try_from(length - done).unwrap_or(usize::MAX);
        let copied = reader.fill_buf().map_err(errno_of).and_then(|there| {
            let piece = &there[..there.len().min(room)];
            let written = writer.write_all_at(piece, to + done);
            written.map(|()| piece.len()).map_err(|error| error.errno())
        });
        match copied {
            Ok(0) => break,
            Ok(copied) => {
                reader.consume(copied);
                done += length_of(copied);
            }
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(usize::try_from(done).unwrap_or(usize::MAX))
}

fn errno_of(error: std::io::Error) -> Errno {
    let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<diopter::Error>());
    inner.map_or(Errno::EIO, diopter::Error::errno)
}

fn start_of(side: Side<'_>) -> Result<u64, Errno> {
    match side.offset {
        Some(offset) => Ok(offset),
        None => Ok(rustix::fs::seek(side.fd, SeekFrom::Current(0))?),
    }
}

fn is_local(fd: BorrowedFd<'_>) -> bool {
    rustix::fs::fstatfs(fd).is_ok_and(|about| FILE_SYSTEMS.contains(&about.f_type))
}

fn length_of(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
