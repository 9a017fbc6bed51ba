//! The copy of one file: into a temporary that becomes the target, or in place onto a device.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use diopter::sys::space;
use diopter::{Errno, File};

use super::copier::Copier;
use super::device;
use super::dir::{Entry, Inode, id_of};
use super::failure::{Failure, Mismatch, Step, Stop};
use super::flow::{Hashing, Moved, Transfer, Zeros};
use super::observer::Pass;
use super::options::{Options, Reflink, Sparse};
use super::pipeline::{Interruption, Milestone};
use super::place::{self, Destination, Existing, Place};
use super::preserve;
use super::record::Recorder;
use super::segments::{Holes, Segments};
use super::shape::Shape;
use super::source::{Found, Source};
use super::temporary::{Temporary, Wanted};

/// With `--resume`, what is written is flushed after so many bytes, so that a power failure loses
/// no more. A flush costs a few milliseconds, which is well below one percent of the time that
/// these bytes take.
const FLUSH_EVERY: u64 = 1 << 30;

/// Content of this size is flushed before its file gets the source's attributes, where that makes a
/// difference to a later run. A flush of less takes no longer than that of the attributes alone.
const FLUSH_APART_MIN: u64 = 1 << 20;

/// What a pass over the bytes of one file has told.
pub(super) struct Passed {
    pub moved: Moved,
    /// Bytes that an earlier run had written.
    pub resumed: u64,
    pub is_reflinked: bool,
}

impl Copier<'_> {
    /// Copies one file or block device to its destination, whatever is there.
    pub fn copy_file(&mut self, source: Found<'_>, destination: Destination) -> Step<()> {
        self.written_in_place = None;
        self.writes_stripes = false;
        let open_as = self.options.open_as();
        let source = Source::open(source, open_as)?;
        self.copy_opened(&source, place::of_destination(destination, open_as)?)?;
        if source.is_striped() {
            self.objects.note_copied(&source.file);
        }
        Ok(())
    }

    fn copy_opened(&mut self, source: &Source, place: Place) -> Step<()> {
        refuse_same(source, &place.existing)?;
        let is_to_be_striped = self.options.striped && source.is_striped();
        let target = place.entry.path();
        match place.existing {
            Existing::Device(device) => self.write_device(source, &target, &device),
            Existing::Striped(there) => self.write_striped(source, &place.entry, &there),
            Existing::Nothing if is_to_be_striped => self.make_striped(source, &place.entry),
            Existing::File(_) | Existing::Link if is_to_be_striped => {
                let cause = "a file that is not striped is in the way";
                let remedy = "remove it, or leave --striped out";
                Err(Failure::of_rule("writing", &target, cause, remedy).into())
            }
            Existing::File(there) if self.objects.has_made(there.id()) => {
                let cause = "it is an object of a striped file that this run wrote";
                let remedy = "copy the two into two directories";
                Err(Failure::of_rule("writing", &target, cause, remedy).into())
            }
            Existing::File(_) | Existing::Link | Existing::Nothing => {
                self.replace_file(source, &place.entry)
            }
        }
    }

    fn write_device(&mut self, source: &Source, target: &Path, device: &Inode) -> Step<()> {
        let refused = |cause, remedy| Failure::of_rule("writing the device", target, cause, remedy);
        if !self.options.overwrite {
            let remedy = "look twice that it is the right one, then add --overwrite";
            return Err(refused("all that is on it would be lost", remedy).into());
        }
        if self.options.resume {
            let cause = "a device is written in place, with nothing to go on from";
            return Err(refused(cause, "leave --resume out").into());
        }
        let file = device::open(target, device, source.size)?;
        self.written_in_place = Some(target.to_owned());
        // Holes too: what is on the device shows through whatever is not written.
        let segments = Segments::new(Holes::Filled, source.size, 1);
        let moved = self.move_all(source, &file, (segments, Zeros::Written), target)?;
        self.flush(&file, target)?;
        let passed = Passed { moved, resumed: 0, is_reflinked: false };
        let verdict = self.read_back(source, &file, target, &passed);
        self.written_in_place = None;
        verdict?;
        self.count(source, &passed);
        Ok(())
    }

    /// Moves the whole content of a source that stays what it is meanwhile.
    pub(super) fn move_all(
        &mut self,
        source: &Source,
        file: &File,
        (segments, zeros): (Segments, Zeros),
        target: &Path,
    ) -> Step<Moved> {
        self.reshape(source, file)?;
        self.observer.begins(Pass::Copy, &source.path, source.size);
        let transfer = Transfer {
            source: &source.file,
            target: Some(file),
            segments,
            size: source.size,
            write_from: 0,
            hashing: self.hashing(),
            zeros,
            flush_every: None,
        };
        let (observer, stop) = (&mut self.observer, &self.stop);
        let moved = self.pipeline.run(transfer, &mut |milestone| {
            if let Milestone::Done(position) = milestone {
                observer.reached(position);
            }
            stop.requested()
        });
        let moved = moved.map_err(|why| stopped(why, source, target))?;
        if source.is_unchanged() { Ok(moved) } else { Err(source.has_changed().into()) }
    }

    fn replace_file(&mut self, source: &Source, target: &Entry) -> Step<()> {
        let (boot, is_resumed) = (self.boot.clone(), self.options.resume);
        let wanted = Wanted { source: &source.identity, boot: &boot, is_resumed };
        let mut temporary = Temporary::take(target, &wanted)?;
        temporary.start = self.covered(source, &temporary)?;
        let mut recorder = temporary.recorder();
        match self.fill_and_finish(source, &temporary, &mut recorder, target) {
            Ok(passed) => {
                temporary.publish(target)?;
                self.flush_dir(&target.dir)?;
                self.count(source, &passed);
                Ok(())
            }
            Err(stop) => {
                self.leave_temporary(source, temporary, recorder, &stop);
                Err(stop)
            }
        }
    }

    /// How far a temporary has what its record claims: up to the first byte that the source has and
    /// the temporary has no block for.
    fn covered(&self, source: &Source, temporary: &Temporary) -> Result<u64, Failure> {
        let unit = block_of(source, &temporary.file);
        let mut segments = Segments::new(self.holes_of(source), source.size, unit);
        let unreadable = |errno| Failure::of_errno("looking for holes", &source.path, errno);
        let start = temporary.start;
        while let Some(range) = segments.next(&source.file).map_err(unreadable)? {
            if range.start >= start {
                break;
            }
            let hole = match space::seek_hole(temporary.file.as_fd(), range.start) {
                Ok(hole) => hole,
                Err(Errno::ENXIO) => range.start,
                // A file system that does not say: nothing is believed.
                Err(Errno::EINVAL | Errno::EOPNOTSUPP) => return Ok(0),
                Err(errno) => {
                    let path = temporary.path();
                    return Err(Failure::of_errno("looking for holes", &path, errno));
                }
            };
            if hole < range.end.min(start) {
                return Ok(hole - hole % unit);
            }
        }
        Ok(start)
    }

    /// Removes the temporary of a copy that came to no end, unless a later run is to go on from it.
    fn leave_temporary(
        &mut self,
        source: &Source,
        temporary: Temporary,
        mut recorder: Recorder,
        stop: &Stop,
    ) {
        let is_usable = match stop {
            Stop::Differs(_) => false,
            Stop::Failed(_) | Stop::Signal(_) => source.is_unchanged(),
        };
        if !self.options.resume || !is_usable || !recorder.has_progress() || !temporary.is_as_made()
        {
            return temporary.discard();
        }
        // So that it is good after the next boot too. If it cannot be flushed it still is in this
        // one.
        if self.pipeline.sync_all(&temporary.file).is_ok() {
            recorder.note_all_flushed();
        }
        if !recorder.write(temporary.file.as_fd()) {
            temporary.discard();
        }
    }

    /// Everything up to the rename.
    fn fill_and_finish(
        &mut self,
        source: &Source,
        temporary: &Temporary,
        recorder: &mut Recorder,
        target: &Entry,
    ) -> Step<Passed> {
        let passed = self.fill(source, temporary, recorder)?;
        if !source.is_unchanged() {
            return Err(source.has_changed().into());
        }
        let (file, path) = (&temporary.file, target.path());
        if self.options.verify || self.is_flushed_apart(source) {
            self.flush(file, &path)?;
            self.read_back(source, file, &path, &passed)?;
        }
        // From here on it may be another user's, whose files no later run takes for a temporary:
        // only attributes are flushed until it has its name.
        if let Some(signal) = self.stop.requested() {
            return Err(Stop::Signal(signal));
        }
        let mode = self.new_mode(&target.dir, source.metadata.mode() & 0o777, 0o666);
        let attributes = (&*path, self.attributes(Some(mode)));
        preserve::copy(source.file.as_fd(), &source.metadata, file.as_fd(), attributes)?;
        self.flush(file, &path)?;
        match self.stop.requested() {
            Some(signal) => Err(Stop::Signal(signal)),
            None => Ok(passed),
        }
    }

    /// Whether the content is flushed before the temporary may be given to another user, so that
    /// the next run finds one that is left when the process is killed meanwhile.
    fn is_flushed_apart(&self, source: &Source) -> bool {
        let is_given_away = self.options.preserve.gives_away(&source.metadata);
        source.size >= FLUSH_APART_MIN && (self.options.resume || is_given_away)
    }

    /// Puts the content into the temporary.
    fn fill(
        &mut self,
        source: &Source,
        temporary: &Temporary,
        recorder: &mut Recorder,
    ) -> Step<Passed> {
        let fd = temporary.file.as_fd();
        let resumed = temporary.start;
        self.observer.begins(Pass::Copy, &source.path, source.size);
        let is_reflinked = resumed == 0 && self.reflink(source, &temporary.file)?;
        let holes = self.holes_of(source);
        let alignment = block_of(source, &temporary.file);
        let segments = Segments::new(holes, source.size, alignment);
        if !is_reflinked {
            self.reserve(source, temporary, segments.clone())?;
        }
        let target = (!is_reflinked).then_some(&temporary.file);
        if is_reflinked && !self.options.verify {
            self.observer.reached(source.size);
            return Ok(Passed { moved: Moved::default(), resumed, is_reflinked });
        }
        self.reshape(source, &temporary.file)?;
        let transfer = Transfer {
            source: &source.file,
            target,
            segments,
            size: source.size,
            write_from: resumed,
            hashing: self.hashing(),
            zeros: self.zeros(),
            flush_every: self.options.resume.then_some(FLUSH_EVERY),
        };
        if self.hashing() == Hashing::Off {
            self.observer.resumes_at(resumed);
        }
        let (observer, stop) = (&mut self.observer, &self.stop);
        let moved = self.pipeline.run(transfer, &mut |milestone| {
            match milestone {
                Milestone::Done(position) => {
                    observer.reached(position);
                    if target.is_some() {
                        recorder.note(fd, position);
                    }
                }
                Milestone::Flushed(position) => recorder.note_flushed(fd, position),
            }
            stop.requested()
        });
        let moved = moved.map_err(|why| stopped(why, source, &temporary.path()))?;
        Ok(Passed { moved, resumed, is_reflinked })
    }

    /// Fits the requests to what the target wants, or else the source.
    pub(super) fn reshape(&mut self, source: &Source, target: &File) -> Result<(), Failure> {
        let Options { bs, iodepth, .. } = *self.options;
        let usual = Shape::new(bs, iodepth)?;
        let mut wish = None;
        if bs.is_none() && !usual.is_one_block(source.size) {
            let size = source.size;
            wish = self.wishes.of(target, size).or_else(|| self.wishes.of(&source.file, size));
        }
        let shape = Shape::fitted(bs, iodepth, wish)?;
        self.pipeline.reshape(shape).map_err(|error| {
            let error = diopter::Error::from(error);
            Failure::of_engine("setting up for", &source.path, &error)
        })
    }

    /// Shares the source's blocks where the file system can, unless told how holes are to be.
    fn reflink(&self, source: &Source, temporary: &File) -> Step<bool> {
        let is_wanted = self.options.reflink == Reflink::Auto
            && self.options.sparse == Sparse::Auto
            && !source.is_device()
            && !source.is_striped()
            && source.size > 0;
        // Whatever the refusal is (EOPNOTSUPP, EXDEV, EINVAL, ETXTBSY ...), copying either works or
        // tells why.
        if !is_wanted || space::reflink(source.file.as_fd(), temporary.as_fd()).is_err() {
            return Ok(false);
        }
        let size = temporary.size();
        let size = size.map_err(|error| Failure::of_engine("measuring", &source.path, &error))?;
        if size != source.size {
            return Err(source.has_changed().into());
        }
        Ok(true)
    }

    /// Gives the temporary its final size and its blocks. A file that grows with each write has its
    /// writes done one at a time by the kernel, and a disk that is too small says so at once.
    fn reserve(
        &self,
        source: &Source,
        temporary: &Temporary,
        mut segments: Segments,
    ) -> Result<(), Failure> {
        let fd = temporary.file.as_fd();
        let failed = |what| move |errno| Failure::of_errno(what, &temporary.path(), errno);
        space::set_len(fd, source.size).map_err(failed("setting the size"))?;
        if self.zeros() == Zeros::Skipped {
            // Blocks that are reserved are no hole.
            return Ok(());
        }
        let unreadable = |errno| Failure::of_errno("looking for holes", &source.path, errno);
        while let Some(range) = segments.next(&source.file).map_err(unreadable)? {
            match space::fallocate_keep_size(fd, range.start, range.end - range.start) {
                Ok(()) => {}
                // The blocks then come with the writes.
                Err(Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL) => return Ok(()),
                Err(errno) => return Err(failed("reserving space")(errno)),
            }
        }
        Ok(())
    }

    /// With `--verify`, reads the flushed copy back and compares.
    pub(super) fn read_back(
        &mut self,
        source: &Source,
        copy: &File,
        target: &Path,
        passed: &Passed,
    ) -> Step<()> {
        let Some(source_hash) = passed.moved.hash else { return Ok(()) };
        self.observer.begins(Pass::Verify, target, source.size);
        let holes = if source.is_device() { Holes::Filled } else { Holes::Kept };
        let transfer = Transfer {
            source: copy,
            target: None,
            segments: Segments::new(holes, source.size, block_of(source, copy)),
            size: source.size,
            write_from: 0,
            hashing: Hashing::Blake3,
            zeros: Zeros::Written,
            flush_every: None,
        };
        let (observer, stop) = (&mut self.observer, &self.stop);
        let moved = self.pipeline.run(transfer, &mut |milestone| {
            if let Milestone::Done(position) = milestone {
                observer.reached(position);
            }
            stop.requested()
        });
        let moved = moved.map_err(|why| stopped_reading_back(why, target))?;
        let is_direct = moved.reads.buffered == 0;
        if !is_direct {
            let why: Vec<&str> = moved.reads.why.iter().copied().collect();
            self.tell_buffered(target, moved.reads.buffered, &why.join(", "));
        }
        self.counts.verify.merge(&moved.reads);
        let target_hash = moved.hash.expect("the pass hashes");
        let is_in_place = self.written_in_place.is_some();
        let verdict = compare(source_hash, target_hash, target, is_in_place);
        match &verdict {
            Ok(()) => self.counts.note_verified(target, source_hash, is_direct),
            Err(mismatch) => self.counts.note_mismatch(mismatch, is_direct),
        }
        verdict.map_err(Stop::Differs)
    }

    pub(super) fn flush(&mut self, file: &File, target: &Path) -> Result<(), Failure> {
        let flushed = self.pipeline.sync_all(file);
        flushed.map_err(|error| Failure::of_engine("flushing", target, &error))?;
        // The last, partial page went through the page cache; clean now, it can leave. A device or
        // file system without a page cache has nothing to drop.
        for object in file.object_descriptors() {
            space::advise_dont_need(object, 0, 0).unwrap_or(());
        }
        Ok(())
    }

    pub(super) fn count(&mut self, source: &Source, passed: &Passed) {
        let Passed { moved, resumed, is_reflinked } = passed;
        let counts = &mut self.counts;
        counts.files += 1;
        counts.bytes += source.size;
        counts.read.merge(&moved.reads);
        counts.write.merge(&moved.writes);
        counts.resumed_bytes += resumed;
        if *is_reflinked {
            counts.reflinked += 1;
        } else {
            counts.hole_bytes += (source.size - resumed).saturating_sub(moved.writes.bytes());
        }
    }

    fn hashing(&self) -> Hashing {
        if self.options.verify { Hashing::Blake3 } else { Hashing::Off }
    }

    pub(super) fn zeros(&self) -> Zeros {
        match self.options.sparse {
            Sparse::Always => Zeros::Skipped,
            Sparse::Auto | Sparse::Never => Zeros::Written,
        }
    }

    pub(super) fn holes_of(&self, source: &Source) -> Holes {
        if self.options.sparse == Sparse::Never || source.is_device() {
            Holes::Filled
        } else {
            Holes::Kept
        }
    }
}

/// Whether what was read back is what was copied.
fn compare(
    source_hash: blake3::Hash,
    target_hash: blake3::Hash,
    target: &Path,
    is_in_place: bool,
) -> Result<(), Mismatch> {
    if source_hash == target_hash {
        return Ok(());
    }
    Err(Mismatch { target: target.to_owned(), source_hash, target_hash, is_in_place })
}

/// Ranges are multiples of this, so that no write has to change a part of a block.
pub(super) fn block_of(source: &Source, target: &File) -> u64 {
    let (source, target) = (source.file.alignment(), target.alignment());
    u64::from(source.offset_read.max(target.offset_read).max(target.offset_write).max(1))
}

fn refuse_same(source: &Source, existing: &Existing) -> Result<(), Failure> {
    let (is_same, is_object) = match existing {
        Existing::Nothing | Existing::Link => (false, false),
        Existing::File(found) | Existing::Striped(found) => {
            let is_same = found.id() == id_of(&source.metadata);
            (is_same, source.is_striped() && source.has_object(found.metadata()))
        }
        Existing::Device(found) => {
            let found = found.metadata();
            let is_same = source.is_device() && found.rdev() == source.metadata.rdev();
            (is_same, source.is_striped() && source.has_object(found))
        }
    };
    let cause = match (is_same, is_object) {
        (true, _) => "source and target are the same file",
        (false, true) => "the target is an object of the source",
        (false, false) => return Ok(()),
    };
    Err(Failure::of_rule("copying", &source.path, cause, "name another target"))
}

fn stopped(why: Interruption, source: &Source, target: &Path) -> Stop {
    let failure = match why {
        Interruption::Signal(signal) => return Stop::Signal(signal),
        Interruption::SourceChanged => source.has_changed(),
        Interruption::Read(error) => Failure::of_engine("reading", &source.path, &error),
        Interruption::Write(error) => Failure::of_engine("writing", target, &error),
        Interruption::Flush(error) => Failure::of_engine("flushing", target, &error),
        Interruption::Seek(errno) => Failure::of_errno("looking for holes", &source.path, errno),
        Interruption::Memory(errno) => Failure::of_errno("making a buffer", &source.path, errno),
        Interruption::Backend(error) => Failure::of_engine("copying", &source.path, &error.into()),
    };
    Stop::Failed(failure)
}

/// Why a copy could not be read back. Only the copy was read.
pub(super) fn stopped_reading_back(why: Interruption, target: &Path) -> Stop {
    let failure = match why {
        Interruption::Signal(signal) => return Stop::Signal(signal),
        Interruption::SourceChanged => {
            let cause = "the copy ends before its content does";
            let remedy = "look for another process that writes to it, and copy again";
            Failure::of_rule("verify", target, cause, remedy)
        }
        Interruption::Read(error) | Interruption::Write(error) | Interruption::Flush(error) => {
            Failure::of_engine("reading back", target, &error)
        }
        Interruption::Seek(errno) => Failure::of_errno("looking for holes", target, errno),
        Interruption::Memory(errno) => Failure::of_errno("making a buffer", target, errno),
        Interruption::Backend(error) => Failure::of_engine("reading back", target, &error.into()),
    };
    Stop::Failed(failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter::{FileRange, IoError};

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
            let Stop::Failed(failure) = stopped_reading_back(why, target) else {
                panic!("it is a failure")
            };
            assert_eq!(failure.on, target, "{failure}");
        }
    }
}
