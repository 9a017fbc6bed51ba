//! Passes over the bytes of one file: from source to target, and back for verify.

use std::path::Path;

use diopter::File;
use diopter_os::space;

use super::target::{Output, with_space};
use super::{Session, WrittenTo};
use crate::content::Hashing;
use crate::dir::fd_of;
use crate::failure::{Failure, Mismatch, Step, Stop};
use crate::flow::{Drain, Feed, Moved, Transfer, Zeros};
use crate::observer::{Notice, Pass};
use crate::options::{Options, Sparse};
use crate::pipeline::{Interruption, Milestone};
use crate::report::ReadBack;
use crate::segments::{Holes, Segments};
use crate::shape::Shape;
use crate::source::{Content, Source};
use crate::watched::Watched;

/// The bytes of one file that were copied.
#[derive(Debug)]
pub struct Passed {
    pub moved: Moved,
    /// Bytes that an earlier run had written.
    pub resumed: u64,
    pub is_reflinked: bool,
}

impl Passed {
    /// All bytes by this run, in requests.
    pub fn whole(moved: Moved) -> Passed {
        Passed { moved, resumed: 0, is_reflinked: false }
    }
}

impl Session<'_> {
    /// Copies the whole content. Fails if the source changes meanwhile.
    pub fn move_all(
        &mut self,
        source: &dyn Content,
        output: Output<'_>,
        (segments, zeros): (Segments, Zeros),
    ) -> Step<Moved> {
        self.fit_requests(source, output.file)?;
        self.observer.begins(Pass::Copy, source.path(), source.size());
        let transfer = Transfer {
            source: Feed::File(source.file(), segments),
            target: Drain::File(output.file),
            size: source.size(),
            write_from: 0,
            target_start: output.start,
            hashing: self.hashing(),
            zeros,
            flush_every: None,
        };
        let moved = self.run(transfer, &mut |_| {});
        let moved = moved.map_err(|why| stopped(why, source, output.path))?;
        if source.is_unchanged() { Ok(moved) } else { Err(source.has_changed().into()) }
    }

    /// Writes the content over a device, over a file in an image, or over a part of a file, and
    /// verifies it.
    pub fn write_in_place(&mut self, source: &dyn Content, output: Output<'_>) -> Step<Passed> {
        self.in_place(output.path, |session| session.overwrite(source, output))
    }

    /// Does what writes a target in place. Where it fails, the target may be written in part, which
    /// is reported.
    pub fn in_place<T>(
        &mut self,
        target: &Path,
        write: impl FnOnce(&mut Self) -> Step<T>,
    ) -> Step<T> {
        self.begin_in_place(target);
        let written = write(self);
        match &written {
            // The end of the run reports it.
            Err(Stop::Signal(_)) => return written,
            Err(Stop::Failed(_)) => self.observer.notice(Notice::PartlyWritten { target }),
            // The mismatch says that the target keeps the bytes.
            Err(Stop::Differs(_)) | Ok(_) => {}
        }
        self.begin_file();
        written
    }

    fn overwrite(&mut self, source: &dyn Content, output: Output<'_>) -> Step<Passed> {
        // Holes are written too: old bytes would show through a range that is not.
        let segments = Segments::new(Holes::Filled, source.size(), 1).of_part(source.start());
        let moved = self.move_all(source, output, (segments, Zeros::Written))?;
        self.flush(output)?;
        let passed = Passed::whole(moved);
        self.read_back(source, output, &passed, Holes::Filled)?;
        Ok(passed)
    }

    /// Runs one transfer, which a signal ends. `note` gets each milestone.
    pub fn run(
        &mut self,
        transfer: Transfer<'_>,
        note: &mut dyn FnMut(Milestone),
    ) -> Result<Moved, Interruption> {
        let (observer, stop) = (&mut self.observer, self.stop);
        self.pipeline.run(transfer, &mut |milestone| {
            match milestone {
                Milestone::Done(position) => observer.reached(position),
                Milestone::Moved(bytes) => observer.moved(bytes),
                Milestone::Flushed(_) => {}
            }
            note(milestone);
            stop.requested()
        })
    }

    /// Sets size and number of requests to those that the target prefers, or else the source.
    pub fn fit_requests(&mut self, source: &dyn Content, target: &File) -> Result<(), Failure> {
        let Options { bs, iodepth, .. } = *self.options;
        let (usual, size) = (Shape::new(bs, iodepth)?, source.size());
        let mut preferred = None;
        // A cluster serves its objects one by one, whatever the source prefers.
        let is_open = source.has_preference() || target.local_fd().is_none();
        if is_open && bs.is_none() && !usual.is_one_block(size) {
            preferred = self.sizes.of(target, size).or_else(|| self.sizes.of(source.file(), size));
        }
        let shape = Shape::fitted(bs, iodepth, preferred)?;
        self.pipeline.reshape(shape).map_err(|error| {
            let error = diopter::Error::from(error);
            Failure::of_engine("setting up for", source.path(), &error)
        })
    }

    /// With `verify`, reads the flushed copy back and compares.
    pub fn read_back(
        &mut self,
        source: &dyn Content,
        output: Output<'_>,
        passed: &Passed,
        holes: Holes,
    ) -> Step<()> {
        let unit = alignment_of(source, output.file);
        let segments = Segments::new(holes, source.size(), unit).of_part(output.start);
        self.read_segments_back(output, passed, segments)
    }

    /// As [`read_back`](Session::read_back), of these segments, which end where the file does.
    pub fn read_segments_back(
        &mut self,
        output: Output<'_>,
        passed: &Passed,
        segments: Segments,
    ) -> Step<()> {
        let Some(source_hash) = passed.moved.hash else { return Ok(()) };
        let (target, size) = (output.path, segments.size());
        self.observer.begins(Pass::Verify, target, size);
        let transfer = Transfer {
            source: Feed::File(output.file, segments),
            target: Drain::Nothing,
            size,
            write_from: 0,
            target_start: 0,
            hashing: self.hashing(),
            zeros: Zeros::Written,
            flush_every: None,
        };
        let watched = Watched::begin(output.file);
        let read = self.run(transfer, &mut |_| {});
        let mut read = read.map_err(|why| read_failed(why, "reading back", target))?;
        let from = watched.end(output.file, &mut read.reads);
        let is_direct = read.reads.buffered == 0;
        if !is_direct {
            let why: Vec<&str> = read.reads.why.iter().copied().collect();
            let (bytes, why) = (read.reads.buffered, &*why.join(", "));
            self.observer.notice(Notice::Buffered { target, bytes, why, from });
        }
        self.counts.verify.merge(&read.reads);
        let target_hash = read.hash.expect("the pass hashes");
        self.compare(target, [source_hash, target_hash], ReadBack { is_direct, from })
    }

    /// Compares the hashes of a source and of its target, and notes the result.
    pub fn compare(
        &mut self,
        target: &Path,
        hashes: [blake3::Hash; 2],
        read: ReadBack,
    ) -> Step<()> {
        let is_same = hashes[0] == hashes[1];
        let hashes = self.options.hashes.then_some(hashes);
        if is_same {
            self.counts.note_verified(target, hashes, read);
            return Ok(());
        }
        let is_in_place = matches!(self.written_to, WrittenTo::InPlace(_));
        let mismatch = Mismatch { target: target.to_owned(), hashes, is_in_place };
        self.counts.note_mismatch(&mismatch, read);
        Err(Stop::Differs(mismatch))
    }

    /// Makes the content and all metadata durable.
    pub fn flush(&mut self, output: Output<'_>) -> Result<(), Failure> {
        self.observer.flushes(output.path);
        let flushed = self.pipeline.sync_all(output.file);
        flushed.map_err(|error| Failure::of_engine("flushing", output.path, &error))?;
        // The last, partial page went through the page cache and is clean now. A device or file
        // system without a page cache has no page to drop.
        for object in output.file.object_descriptors() {
            space::advise_dont_need(object, 0, 0).unwrap_or(());
        }
        Ok(())
    }

    /// As [`flush`](Session::flush) for a temporary that a later run resumes; returns true if it
    /// succeeded.
    pub fn flush_for_resume(&mut self, file: &File) -> bool {
        self.pipeline.sync_all(file).is_ok()
    }

    /// Counts a file that was copied.
    pub fn count(&mut self, source: &dyn Content, passed: &Passed) {
        self.count_bytes(source.size(), passed);
    }

    /// As [`count`](Session::count), for a file of so many bytes.
    pub fn count_bytes(&mut self, size: u64, passed: &Passed) {
        let Passed { moved, resumed, .. } = passed;
        self.counts.read.merge(&moved.reads);
        self.counts.write.merge(&moved.writes);
        self.count_written(size, passed, (size - resumed).saturating_sub(moved.writes.bytes()));
    }

    /// Counts a file of which so many bytes were not written because they are holes. The bytes by
    /// their route are counted where they were moved.
    pub fn count_written(&mut self, size: u64, passed: &Passed, hole_bytes: u64) {
        let Passed { resumed, is_reflinked, .. } = passed;
        let counts = &mut self.counts;
        counts.files += 1;
        counts.bytes += size;
        counts.resumed_bytes += resumed;
        if *is_reflinked {
            counts.reflinked += 1;
        } else {
            counts.hole_bytes += hole_bytes;
        }
    }

    pub fn hashing(&self) -> Hashing {
        match (self.options.verify, self.options.hashes) {
            (false, _) => Hashing::Off,
            (true, true) => Hashing::Whole,
            (true, false) => Hashing::Data,
        }
    }

    /// Returns how the holes of a source are found for a copy into a new file.
    pub fn holes_of(&self, source: &Source) -> Holes {
        if self.options.sparse == Sparse::Never { Holes::Filled } else { source.holes() }
    }

    /// Returns the ranges of a source that a copy into a new file writes, in units of so many
    /// bytes.
    pub fn segments_of(&self, source: &Source, unit: u64) -> Segments {
        Segments::new(self.holes_of(source), source.size, unit).of_part(source.start)
    }

    /// Returns how blocks of zeros are written to a new file.
    pub fn zeros(&self) -> Zeros {
        match self.options.sparse {
            Sparse::Always => Zeros::Skipped,
            Sparse::Auto | Sparse::Never => Zeros::Written,
        }
    }
}

/// Returns the alignment of ranges with which no write changes a part of a block.
pub fn alignment_of(source: &dyn Content, target: &File) -> u64 {
    let (source, target) = (source.file().alignment(), target.alignment());
    u64::from(source.offset_read.max(target.offset_read).max(target.offset_write).max(1))
}

/// As [`stopped`], for the copy of these segments into a new file. If there is no space for them,
/// the failure has what they need, and what there was.
pub fn stopped_of_new(
    why: Interruption,
    source: &dyn Content,
    (output, segments): (Output<'_>, Segments),
) -> Stop {
    let errno = match &why {
        Interruption::Write(error) => Some(error.errno()),
        _ => None,
    };
    match (stopped(why, source, output.path), errno) {
        (Stop::Failed(failure), Some(errno)) => {
            Stop::Failed(with_space(failure, errno, source, (fd_of(output.file), segments)))
        }
        (stop, _) => stop,
    }
}

/// Why a copy ended early.
pub fn stopped(why: Interruption, source: &dyn Content, target: &Path) -> Stop {
    match why {
        Interruption::SourceChanged => Stop::Failed(source.ended_early()),
        why => stopped_by(why, source.path(), target),
    }
}

/// As [`stopped`], where the source has only a path for messages.
pub fn stopped_by(why: Interruption, path: &Path, target: &Path) -> Stop {
    let failure = match why {
        Interruption::Signal(signal) => return Stop::Signal(signal),
        Interruption::SourceChanged => became_shorter("reading", path),
        Interruption::Read(error) => Failure::of_engine("reading", path, &error),
        Interruption::Write(error) => Failure::of_engine("writing", target, &error),
        Interruption::Flush(error) => Failure::of_engine("flushing", target, &error),
        Interruption::Seek(errno) => Failure::of_errno("looking for holes", path, errno),
        Interruption::Memory(errno) => Failure::of_errno("making a buffer", path, errno),
        Interruption::Input(error) => Failure::of_io("reading", path, &error),
        Interruption::Output(error) => Failure::of_io("writing", target, &error),
    };
    Stop::Failed(failure)
}

/// Why a file could not be read in a pass that only reads. `what` is the operation, for messages.
pub fn read_failed(why: Interruption, what: &'static str, path: &Path) -> Stop {
    let failure = match why {
        Interruption::Signal(signal) => return Stop::Signal(signal),
        Interruption::SourceChanged => became_shorter(what, path),
        Interruption::Read(error) | Interruption::Write(error) | Interruption::Flush(error) => {
            Failure::of_engine(what, path, &error)
        }
        Interruption::Seek(errno) => Failure::of_errno("looking for holes", path, errno),
        Interruption::Memory(errno) => Failure::of_errno("making a buffer", path, errno),
        Interruption::Input(error) | Interruption::Output(error) => {
            Failure::of_io(what, path, &error)
        }
    };
    Stop::Failed(failure)
}

fn became_shorter(what: &'static str, path: &Path) -> Failure {
    let cause = "it became shorter meanwhile; another process may be writing to it";
    Failure::of_rule(what, path, cause, "end that process, and try again")
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter::{Errno, FileRange, IoError};

    #[test]
    fn a_read_back_that_fails_names_the_target_and_not_the_source() {
        let range = FileRange::new(4096, 8192);
        let error = || diopter::Error::Io(IoError::new(Errno::EIO, range, "read"));
        let target = Path::new("/dev/target");
        for why in [
            Interruption::Read(error()),
            Interruption::Seek(Errno::EIO),
            Interruption::Memory(Errno::ENOMEM),
            Interruption::SourceChanged,
        ] {
            let Stop::Failed(failure) = read_failed(why, "reading back", target) else {
                panic!("it is a failure")
            };
            assert_eq!(failure.on, target, "{failure}");
        }
    }
}
