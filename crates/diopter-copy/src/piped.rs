//! Copies from standard input and to standard output: what has no name, no size and no attributes.

use std::fs::{File as StdFile, Metadata};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use diopter::Errno;
use diopter_os::{space, standard};
use diopter_rados::name::Name;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::Mode;
use rustix::io::{ReadWriteFlags, pwritev2};

use crate::device;
use crate::dir::{Entry, Inode, fd_of, id_of};
use crate::failure::{Failure, Step};
use crate::file;
use crate::flow::{Drain, Feed, Transfer, UNKNOWN_SIZE, Zeros};
use crate::image_path;
use crate::observer::Pass;
use crate::options::{OpenAs, Options, WhenThere};
use crate::place::{self, Existing, Place};
use crate::record::SourceIdentity;
use crate::segments::{Holes, Segments};
use crate::session::{Output, Passed, Session, alignment_of, stopped_by};
use crate::source::{Content, Found, Source};
use crate::stop::StopFlag;
use crate::temporary::{Temporary, Wanted};

/// The names of standard input and output in messages.
const INPUT: &str = "standard input";
const OUTPUT: &str = "standard output";

/// Bytes that a pipe holds: as many as a user may have without privileges.
const PIPE_BYTES: usize = 1 << 20;

/// Longest wait for a pipe before the stop flag is checked.
const WAIT_SLICE: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// A pipe or the like that is waited for no longer than until a signal arrives.
#[derive(Debug)]
pub struct Interruptible<'s> {
    file: StdFile,
    stop: &'s StopFlag,
    /// False if the file has no write that does not wait.
    has_nowait: bool,
}

impl<'s> Interruptible<'s> {
    /// Reads and writes an open file until `stop` is set.
    ///
    /// # Errors
    /// The descriptor is not open, or there are too many.
    pub fn of(fd: BorrowedFd<'_>, stop: &'s StopFlag) -> io::Result<Interruptible<'s>> {
        if standard::was_closed(fd) {
            return Err(Errno::EBADF.into());
        }
        let file = Interruptible::new(StdFile::from(fd.try_clone_to_owned()?), stop);
        // A hint: each call moves more. Only a pipe has such a size.
        let _bytes = rustix::pipe::fcntl_setpipe_size(&file.file, PIPE_BYTES);
        Ok(file)
    }

    /// As [`Interruptible::of`], with a file that is open here.
    #[must_use]
    pub fn new(file: StdFile, stop: &'s StopFlag) -> Interruptible<'s> {
        let is_file = file.metadata().is_ok_and(|found| found.is_file());
        // A regular file is always ready, and may refuse such a write for ever.
        Interruptible { file, stop, has_nowait: !is_file }
    }

    /// Waits until the file is ready.
    ///
    /// # Errors
    /// That of poll(2), and where a signal has arrived.
    fn wait(&self, flags: PollFlags) -> io::Result<()> {
        loop {
            if self.stop.requested().is_some() {
                return Err(io::Error::other("a signal arrived"));
            }
            match poll(&mut [PollFd::new(&self.file, flags)], Some(&WAIT_SLICE)) {
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                // In a sandbox without the call, a signal is looked for between two calls.
                Ok(_) | Err(rustix::io::Errno::PERM | rustix::io::Errno::NOSYS) => return Ok(()),
                Err(errno) => return Err(errno.into()),
            }
        }
    }

    fn metadata(&self) -> io::Result<Metadata> {
        self.file.metadata()
    }
}

impl Read for Interruptible<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            self.wait(PollFlags::IN)?;
            match self.file.read(buffer) {
                Err(error) if is_to_repeat(&error) => {}
                read => return read,
            }
        }
    }
}

impl Write for Interruptible<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        loop {
            self.wait(PollFlags::OUT)?;
            if self.has_nowait {
                // A pipe is ready when it takes a page; more than it takes would wait, also for a
                // reader that never reads.
                let flags = ReadWriteFlags::NOWAIT;
                let at_position = u64::MAX;
                match pwritev2(&self.file, &[io::IoSlice::new(bytes)], at_position, flags) {
                    Ok(written) => return Ok(written),
                    Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => continue,
                    // Before Linux 6.4, and for sockets and terminals. Another error comes again.
                    Err(_) => self.has_nowait = false,
                }
            }
            match self.file.write(bytes) {
                Err(error) if is_to_repeat(&error) => {}
                written => return written,
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn is_to_repeat(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Copies what standard input has to the target.
pub fn from_input(session: &mut Session<'_>, input: &mut Interruptible<'_>) -> Step<()> {
    session.begin_file();
    let target = &session.options.target;
    let found = input.metadata();
    let found = found.map_err(|error| Failure::of_io("reading", Path::new(INPUT), &error))?;
    refuse_elsewhere(target)?;
    if target.is_dir() {
        let cause = "standard input has no name in a directory";
        return Err(refused(target, cause, "name the file that is to be written").into());
    }
    let place = place::of_file(target, OpenAs::Striped)?;
    let (path, options) = (place.entry.path(), session.options);
    if options.expect_size.is_some_and(|bytes| i64::try_from(bytes).is_err()) {
        return Err(refused(&path, "no file has so many bytes", "correct --expect-size").into());
    }
    if let Existing::File(there) | Existing::Device(there) = &place.existing {
        refuse_same(there, &found, &path)?;
        if options.existing == WhenThere::Keep {
            session.skip(0);
            return Ok(());
        }
    }
    let start = options.target_offset.unwrap_or(0);
    let end = start.saturating_add(options.expect_size.unwrap_or(0));
    let in_place = match &place.existing {
        Existing::Device(device) => device::open(&path, device, end, options.overwrite)?,
        Existing::Striped(_) => {
            let cause = "a striped file is not written from standard input";
            return Err(refused(&path, cause, "copy to a file, and then to the striped one").into());
        }
        _ if options.target_offset.is_some() => file::open_part(session, &place)?,
        _ => return replace(session, input, &place),
    };
    let output = Output { file: &in_place, path: &path, start };
    let expected = options.expect_size.filter(|_| !place.existing.is_device());
    if let Some(bytes) = expected {
        session.reserve_part(output, bytes)?;
    }
    let written = session.in_place(&path, |session| {
        let passed = pass(session, input, (output, false))?;
        session.flush(output)?;
        read_back(session, output, &passed)?;
        Ok(passed)
    });
    let passed = file::end_part(session, &place, output, written)?;
    session.count_bytes(passed.moved.input_bytes, &passed);
    Ok(())
}

/// Writes a temporary, which gets the name of the target when the input is complete.
fn replace(session: &mut Session<'_>, input: &mut Interruptible<'_>, place: &Place) -> Step<()> {
    let (target, mut replaced) = (&place.entry, None);
    if let Existing::File(there) = &place.existing {
        target.refuse_other_name()?;
        replaced = Some(there.metadata().mode());
    }
    let wanted = Wanted {
        source: &SourceIdentity::of_none(),
        boot: session.boot(),
        is_resumed: false,
        replaces: session.options.existing != WhenThere::Keep,
        given_to: None,
    };
    let temporary = Temporary::take(target, &wanted)?;
    match fill(session, input, (&temporary, target), replaced) {
        Ok(passed) => {
            temporary.publish(target)?;
            session.flush_dir(&target.dir)?;
            session.count_bytes(passed.moved.input_bytes, &passed);
            Ok(())
        }
        Err(stop) => {
            temporary.discard();
            Err(stop)
        }
    }
}

fn fill(
    session: &mut Session<'_>,
    input: &mut Interruptible<'_>,
    (temporary, target): (&Temporary, &Entry),
    replaced: Option<u32>,
) -> Step<Passed> {
    let (file, path) = (&temporary.file, target.path());
    let output = Output::of(file, &path);
    if let Some(bytes) = session.options.expect_size {
        session.reserve_part(output, bytes)?;
    }
    let passed = pass(session, input, (output, true))?;
    let failed = |what, errno| Failure::of_errno(what, &path, errno);
    space::set_len(fd_of(file), passed.moved.input_bytes)
        .map_err(|errno| failed("setting the size", errno))?;
    // Without a source, the permissions are those of the file that it replaces.
    let usual = session.new_mode(&target.dir, 0o666, 0o666);
    let mode = Mode::from_bits_truncate(replaced.map_or(usual, |mode| mode & 0o777));
    rustix::fs::fchmod(fd_of(file), mode)
        .map_err(|errno| failed("setting the permissions", errno.into()))?;
    session.flush(output)?;
    read_back(session, output, &passed)?;
    session.check_stop()?;
    Ok(passed)
}

/// Moves all that the input has.
fn pass(
    session: &mut Session<'_>,
    input: &mut Interruptible<'_>,
    (output, is_new): (Output<'_>, bool),
) -> Step<Passed> {
    let expected = session.options.expect_size;
    let name = Path::new(INPUT);
    session.observer().begins(Pass::Copy, name, expected.unwrap_or(0));
    // In place, what is not written keeps its old bytes.
    let zeros = if is_new { session.zeros() } else { Zeros::Written };
    let hashing = session.hashing();
    // One byte more shows that the input does not end there.
    let mut limited = input.take(expected.map_or(u64::MAX, |bytes| bytes.saturating_add(1)));
    let transfer = Transfer {
        source: Feed::Input(&mut limited),
        target: if is_new { Drain::Growing(output.file) } else { Drain::File(output.file) },
        size: UNKNOWN_SIZE,
        write_from: 0,
        target_start: output.start,
        hashing,
        zeros,
        flush_every: None,
    };
    let moved = session.run(transfer, &mut |_| {});
    let moved = moved.map_err(|why| stopped_by(why, name, output.path))?;
    let bytes = moved.input_bytes;
    match expected {
        Some(expected) if bytes < expected => {
            let cause = format!("it ended after {bytes} of the {expected} bytes of --expect-size");
            let remedy = "look at what the program before it reports, and copy again";
            Err(Failure::of_rule("reading", name, &cause, remedy).into())
        }
        Some(expected) if bytes > expected => {
            let cause = format!("it has more than the {expected} bytes of --expect-size");
            let remedy = "correct --expect-size, or leave it out";
            Err(Failure::of_rule("reading", name, &cause, remedy).into())
        }
        _ => Ok(Passed::whole(moved)),
    }
}

fn read_back(session: &mut Session<'_>, output: Output<'_>, passed: &Passed) -> Step<()> {
    let unit = u64::from(output.file.alignment().offset_read).max(1);
    let holes = if output.start > 0 { Holes::Filled } else { Holes::Kept };
    let segments = Segments::new(holes, passed.moved.input_bytes, unit).of_part(output.start);
    session.read_segments_back(output, passed, segments)
}

/// Copies a file, a striped file or a device to standard output.
pub fn to_output(session: &mut Session<'_>, output: &mut Interruptible<'_>) -> Step<()> {
    session.begin_file();
    let options = session.options;
    let Options { offset, length, .. } = *options;
    let [path] = &options.sources[..] else {
        let cause = "standard output takes one source";
        return Err(refused(Path::new(OUTPUT), cause, "copy them one after another").into());
    };
    refuse_elsewhere(path)?;
    let inode = Inode::of_path(path, options.follows_named())
        .map_err(|errno| Failure::of_errno("opening", path, errno))?;
    let kind = inode.metadata().file_type();
    if !kind.is_file() && !kind.is_block_device() {
        let cause = "it is neither a file nor a block device";
        return Err(Failure::of_rule("copying", path, cause, "`cat` and `tar` read others").into());
    }
    let found = Found { inode: &inode, entry: None, path };
    let source = Source::open(found, OpenAs::Striped)?.part(offset, length)?;
    if source.is_device() && !options.mounted {
        device::refuse_mounted(path, source.metadata.rdev())?;
    }
    let name = Path::new(OUTPUT);
    let there = output.metadata().map_err(|error| Failure::of_io("writing", name, &error))?;
    if source.has_object(&there) {
        return Err(is_same(path).into());
    }
    session.fit_requests(&source, &source.file)?;
    session.observer().begins(Pass::Copy, path, source.size);
    let segments = session.segments_of(&source, alignment_of(&source, &source.file));
    let transfer = Transfer {
        source: Feed::File(&source.file, segments),
        target: Drain::Output(output),
        size: source.size,
        write_from: 0,
        target_start: 0,
        hashing: session.hashing(),
        zeros: Zeros::Written,
        flush_every: None,
    };
    let moved = session.run(transfer, &mut |_| {});
    let moved = moved.map_err(|why| stopped_by(why, path, name))?;
    if !source.is_unchanged() {
        return Err(source.has_changed().into());
    }
    let passed = Passed::whole(moved);
    session.counts.read.merge(&passed.moved.reads);
    session.count_written(source.size, &passed, 0);
    Ok(())
}

fn refused(on: &Path, cause: &str, remedy: &str) -> Failure {
    Failure::of_rule("writing", on, cause, remedy)
}

/// Refuses a file inside an image, and an object of a cluster.
fn refuse_elsewhere(path: &Path) -> Result<(), Failure> {
    if image_path::split(path).is_none() && Name::parse(path.as_os_str()).is_none() {
        return Ok(());
    }
    let cause = "files of an image and objects of a cluster have no pipes";
    Err(Failure::of_rule("copying", path, cause, "copy from or to a file"))
}

/// Refuses a file that is standard input, too.
fn refuse_same(named: &Inode, piped: &Metadata, path: &Path) -> Result<(), Failure> {
    if named.id() == id_of(piped) { Err(is_same(path)) } else { Ok(()) }
}

fn is_same(path: &Path) -> Failure {
    let cause = "source and target are the same file";
    Failure::of_rule("copying", path, cause, "name another target")
}
