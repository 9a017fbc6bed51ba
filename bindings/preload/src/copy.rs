//! copy_file_range(2) and sendfile(2) that the kernel refuses because a descriptor has O_DIRECT.
//! The engine moves the bytes of that descriptor, and the kernel those of the other.

use std::os::fd::BorrowedFd;

use diopter::Errno;
use rustix::fs::{FileType, OFlags, SeekFrom, fcntl_getfl, fstat, seek};

use crate::direct::{self, Position};
use crate::files::Inode;
use crate::guard::serve;
use crate::process::Process;
use crate::report::{self, Counter};

/// The most that one call copies; the program asks again for the rest, as it does for the kernel.
const LENGTH_MAX: usize = 256 << 20;

/// Bytes of one read and one write.
const PIECE: usize = 256 << 10;

/// One side of a copy.
pub struct Side<'a> {
    fd: BorrowedFd<'a>,
    flags: OFlags,
    inode: Inode,
    /// True if it is the position of the descriptor where the bytes start.
    is_positioned: bool,
    /// Where they start; `None` for a socket, a pipe or a terminal.
    start: Option<u64>,
}

impl<'a> Side<'a> {
    /// Returns a side; an offset of `None` is the position of the descriptor.
    ///
    /// # Errors
    /// `EINVAL` for an offset below 0; the errno of what is not open.
    pub fn of(fd: BorrowedFd<'a>, offset: Option<i64>) -> Result<Side<'a>, Errno> {
        let (flags, stat) = (fcntl_getfl(fd)?, fstat(fd)?);
        let kind = FileType::from_raw_mode(stat.st_mode);
        let is_file = matches!(kind, FileType::RegularFile | FileType::BlockDevice);
        let start = match offset {
            Some(offset) => Some(u64::try_from(offset).map_err(|_| Errno::EINVAL)?),
            None if is_file => Some(seek(fd, SeekFrom::Current(0))?),
            None => None,
        };
        let is_positioned = is_file && offset.is_none();
        Ok(Side { fd, flags, inode: Inode::of(&stat), is_positioned, start })
    }

    fn is_direct(&self) -> bool {
        self.flags.contains(OFlags::DIRECT)
    }

    fn position(&self, process: &'static Process) -> Result<Option<Position<'a>>, Errno> {
        self.is_positioned.then(|| Position::of(process, self.fd)).transpose()
    }

    /// Reads a piece that starts `done` bytes behind the start.
    fn read(&self, done: usize, length: usize) -> Result<Vec<u8>, Errno> {
        let at = self.start.ok_or(Errno::EINVAL)?.saturating_add(length_of(done));
        serve(|process| {
            let mut piece = vec![0; length];
            let got = if self.is_direct() {
                let file = direct::opened(process, self.fd, self.flags)?;
                file.read_at(&mut piece, at).map_err(direct::errno_of)?
            } else {
                rustix::io::pread(self.fd, &mut piece, at)?
            };
            piece.truncate(got);
            Ok(piece)
        })
    }

    /// Writes a piece. A wait for the reader of a pipe or a socket can be interrupted.
    fn write(&self, done: usize, piece: &[u8]) -> Result<usize, Errno> {
        let Some(start) = self.start else { return Ok(rustix::io::write(self.fd, piece)?) };
        let at = start.saturating_add(length_of(done));
        if !self.is_direct() {
            return Ok(rustix::io::pwrite(self.fd, piece, at)?);
        }
        serve(|process| {
            let file = direct::opened(process, self.fd, self.flags)?;
            file.write_at(piece, at).map_err(direct::errno_of)
        })
    }
}

/// Copies what the kernel has refused; with `may_send` also to a socket, a pipe or a terminal.
///
/// # Errors
/// `EINVAL` for what was refused for another reason; the errno of the copy, if nothing was copied.
pub fn refused(
    (source, target): (Side<'_>, Side<'_>),
    (length, may_send): (usize, bool),
) -> Result<usize, Errno> {
    let is_permitted = source.flags & OFlags::RWMODE != OFlags::WRONLY
        && target.flags & OFlags::RWMODE != OFlags::RDONLY
        && !target.flags.contains(OFlags::APPEND)
        && (may_send || target.start.is_some());
    let length = length.min(LENGTH_MAX);
    let is_apart = source.inode != target.inode
        || source.start.unwrap_or(0).abs_diff(target.start.unwrap_or(0)) >= length_of(length);
    let is_direct = source.is_direct() || target.is_direct();
    if !is_direct || !is_permitted || !is_apart || !direct::is_possible() {
        return Err(Errno::EINVAL);
    }
    let positions = serve(|process| Ok([source.position(process)?, target.position(process)?]))?;
    let copied = copy_pieces(&source, &target, length)?;
    report::add(Counter::EinvalsAvoided, 1);
    report::add(Counter::Copied, length_of(copied));
    // It ends while no handler can run: it takes a lock.
    serve(|_| positions.into_iter().flatten().try_for_each(|position| position.advance(copied)))?;
    Ok(copied)
}

/// Copies until the end, a short write, or the first error. An error is returned if nothing was
/// copied.
fn copy_pieces(source: &Side<'_>, target: &Side<'_>, length: usize) -> Result<usize, Errno> {
    let mut done = 0;
    while done < length {
        let piece = source.read(done, PIECE.min(length - done));
        let written = piece.and_then(|piece| match piece.len() {
            // A write of nothing sends an empty datagram.
            0 => Ok((0, false)),
            got => target.write(done, &piece).map(|written| (written, written == got)),
        });
        match written {
            Ok((written, is_whole)) => {
                done += written;
                if !is_whole {
                    break;
                }
            }
            Err(_) if done > 0 => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(done)
}

fn length_of(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX)
}
