//! Copies out of unmounted images, and in place into them. A copy out of one is a temporary that
//! becomes the target, as every other; what an image holds is never changed but for bytes that a
//! file has already.

mod tree;

use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter::images::ImageError;
use diopter::{Error, File, FileRange};
use diopter_images::image::{NodeKind, Use};
use diopter_os::space;
use rustix::fs::Mode;

use super::copier::Copier;
use super::device;
use super::dir::Entry;
use super::failure::{Failure, Mismatch, Step, Stop};
use super::flow::{Hashing, Moved, Transfer, Zeros};
use super::one::stopped_reading_back;
use super::pipeline::{Interruption, Milestone};
use super::place::{self, Existing};
use super::record::SourceIdentity;
use super::segments::{Holes, Segments};
use super::shape::Shape;
use super::signals::Signals;
use super::temporary::{Temporary, Wanted};
use super::{CpOptions, Sparse};
use crate::inside::{self, DataRanges, Inside, InsideName, MappedBytes};

/// Bits of a mode that a copy has: permissions and the sticky bit.
const KEPT_MODE: u32 = 0o1777;

/// What is read: a file inside an image, or one that is copied into an image.
struct Input {
    file: File,
    /// Of the file, or of the image that it lies in; from before it was read.
    metadata: Metadata,
    size: u64,
    /// For messages.
    path: PathBuf,
    /// Where it has data, if the file system of the machine can't be asked.
    ranges: Option<DataRanges>,
    /// Permission bits that a copy gets.
    mode: u32,
    /// The inode inside the image.
    inode: Option<u64>,
    /// Whether a later time of change is somebody else's doing.
    is_watched: bool,
}

/// What is written in place.
struct Output<'a> {
    file: &'a File,
    path: &'a Path,
}

impl Input {
    fn of_path(path: &Path) -> Result<Input, Failure> {
        let failed = |error: Error| Failure::of_engine("opening", path, &error);
        let file = File::options().read(true).striped(true).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let (size, mode) = (file.size().map_err(failed)?, metadata.mode());
        let path = path.to_owned();
        Ok(Input { file, metadata, size, path, ranges: None, mode, inode: None, is_watched: true })
    }

    fn of_inside(inside: &Inside, path: &Path, signals: &Signals) -> Result<Input, Failure> {
        let failed = |error: Error| failure("opening", path, &error);
        let file = inside.file().map_err(failed)?;
        // A copy in memory is asked as any file.
        let is_inline = inside.inline_data().map_err(|error| failed(error.into()))?.is_some();
        let (image, inode) = (inside.image.clone(), inside.node.inode);
        let signals = signals.clone();
        let ranges = (!is_inline).then_some(DataRanges { image, inode, signals });
        let metadata = std::fs::metadata(&inside.image_path);
        let metadata =
            metadata.map_err(|e| Failure::of_io("looking at", &inside.image_path, &e))?;
        let (size, mode) = (inside.node.size, inside.node.mode);
        let (path, inode, is_watched) = (path.to_owned(), Some(inode), !is_inline);
        Ok(Input { file, metadata, size, path, ranges, mode, inode, is_watched })
    }

    /// Bytes that it maps in the image, if its volume can hold so many; `None` after a signal.
    fn mapped(&self) -> Result<Option<MappedBytes>, ImageError> {
        match &self.ranges {
            Some(ranges) => ranges.mapped(self.size),
            None => Ok(Some(MappedBytes::default())),
        }
    }

    /// With its holes, or without.
    fn segments(&self, keeps_holes: bool, alignment: u64) -> Segments {
        match &self.ranges {
            _ if !keeps_holes => Segments::new(Holes::Filled, self.size, alignment),
            None => Segments::new(Holes::Kept, self.size, alignment),
            Some(ranges) => Segments::inside(ranges.clone(), self.size, alignment),
        }
    }

    /// Whether the file, or the image around it, is what it was. The times of a device tell
    /// nothing.
    fn is_unchanged(&self) -> bool {
        let found = match &self.ranges {
            None => self.file.metadata().ok(),
            Some(ranges) => std::fs::metadata(ranges.image.path()).ok(),
        };
        let identity = SourceIdentity::of(&self.metadata, self.size);
        !self.is_watched || found.is_some_and(|it| SourceIdentity::of(&it, self.size) == identity)
    }

    fn changed(&self) -> Stop {
        let cause = "the source changed while it was copied";
        let remedy = "end what writes to it, or copy a snapshot";
        Failure::of_rule("copying", &self.path, cause, remedy).into()
    }
}

impl Copier<'_> {
    /// Copies from or to a name inside an image; `None` where neither is one.
    pub fn copy_image(&mut self, source: &Path, target: &Path) -> Option<Step<()>> {
        let (from, to) = (inside::split(source), inside::split(target));
        if from.is_none() && to.is_none() {
            return None;
        }
        self.written_in_place = None;
        Some(self.copy_between((source, from), (target, to)))
    }

    fn copy_between(
        &mut self,
        (source, from): (&Path, Option<InsideName>),
        (target, to): (&Path, Option<InsideName>),
    ) -> Step<()> {
        if self.options.resume {
            let cause = "a copy from or to an image has nothing to go on from";
            let on = if to.is_some() { target } else { source };
            return Err(Failure::of_rule("copying", on, cause, "leave --resume out").into());
        }
        let inside = from.map(|name| inside::open(&name, Use::Read));
        let inside = inside.transpose().map_err(|error| failure("opening", source, &error))?;
        let is_dir = |inside: &Inside| inside.node.kind == NodeKind::Directory;
        match (inside, to) {
            (Some(inside), None) if self.options.recursive && is_dir(&inside) => {
                self.copy_tree_out(&inside, source, target)
            }
            (Some(inside), None) => {
                let input = self.checked_input(&inside, source)?;
                self.copy_out(&input, target)
            }
            (Some(inside), Some(name)) => {
                let input = self.checked_input(&inside, source)?;
                self.overwrite_inside(input, &name, target)
            }
            (None, Some(name)) => self.overwrite_inside(Input::of_path(source)?, &name, target),
            (None, None) => unreachable!("one of them is inside an image"),
        }
    }

    /// A file inside an image that maps no more than its volume can hold.
    fn checked_input(&self, inside: &Inside, path: &Path) -> Step<Input> {
        let input = Input::of_inside(inside, path, &self.signals)?;
        let mapped = input.mapped().map_err(|error| failure("opening", path, &error.into()))?;
        match (mapped, self.signals.arrived()) {
            (None, Some(signal)) => Err(Stop::Signal(signal)),
            _ => Ok(input),
        }
    }

    /// Bytes of a source inside an image; 0 for one that is none, or a directory.
    pub fn bytes_inside(source: &Path) -> u64 {
        let inside = inside::split(source).and_then(|name| inside::open(&name, Use::Read).ok());
        let file = inside.filter(|inside| inside.node.kind == NodeKind::File);
        file.map_or(0, |inside| inside.node.size)
    }

    fn copy_out(&mut self, input: &Input, target: &Path) -> Step<()> {
        let place = place::of_file(target, self.options.open_as())?;
        let path = place.entry.path();
        match place.existing {
            Existing::Device(device) => {
                if !self.options.overwrite {
                    let remedy = "look twice that it is the right one, then add --overwrite";
                    let cause = "all that is on it would be lost";
                    let what = "writing the device";
                    return Err(Failure::of_rule(what, &path, cause, remedy).into());
                }
                let file = device::open(&path, &device, input.size)?;
                self.write_in_place(input, &Output { file: &file, path: &path })
            }
            Existing::Striped(_) => {
                let cause = "a file out of an image is not written onto a striped file";
                let remedy = "copy it to a plain file, and that onto the striped one";
                Err(Failure::of_rule("writing", &path, cause, remedy).into())
            }
            Existing::File(_) | Existing::Link | Existing::Nothing => {
                self.replace(input, &place.entry)?;
                Ok(place.entry.dir.flush()?)
            }
        }
    }

    /// Makes the file `target`, or replaces it. Its directory is not flushed.
    fn replace(&mut self, input: &Input, target: &Entry) -> Step<()> {
        let (identity, boot) = (SourceIdentity::of(&input.metadata, input.size), self.boot.clone());
        let wanted = Wanted { source: &identity, boot: &boot, is_resumed: false };
        let temporary = Temporary::take(target, &wanted)?;
        match self.fill_from_image(input, &temporary, &target.path()) {
            Ok(moved) => {
                temporary.publish(target)?;
                self.count_image(input, &moved);
                Ok(())
            }
            Err(stop) => {
                temporary.discard();
                // A search for data that a signal ended is no failure of the image.
                Err(self.signals.arrived().map_or(stop, Stop::Signal))
            }
        }
    }

    fn fill_from_image(
        &mut self,
        input: &Input,
        temporary: &Temporary,
        target: &Path,
    ) -> Step<Moved> {
        let file = &temporary.file;
        let output = Output { file, path: target };
        let failed = |what| move |errno| Failure::of_errno(what, target, errno);
        space::set_len(file.as_fd(), input.size).map_err(failed("setting the size"))?;
        let keeps_holes = self.options.sparse != Sparse::Never;
        if self.options.sparse != Sparse::Always {
            self.reserve_for(input, &output, keeps_holes)?;
        }
        let segments = input.segments(keeps_holes, unit_of(input, &output));
        let moved = self.pass_bytes(input, &output, segments)?;
        self.flush_output(&output)?;
        self.compare_back(input, &output, &moved, Holes::Kept)?;
        // The owner is not told, so set-id bits would be somebody else's.
        let mode = Mode::from_bits_truncate(input.mode & KEPT_MODE);
        rustix::fs::fchmod(file.as_fd(), mode)
            .map_err(|errno| Failure::of_errno("setting the permissions", target, errno.into()))?;
        self.flush_output(&output)?;
        match self.signals.arrived() {
            Some(signal) => Err(Stop::Signal(signal)),
            None => Ok(moved),
        }
    }

    /// Has the blocks before the bytes, so that a disk that is too small says so at once.
    fn reserve_for(&self, input: &Input, output: &Output<'_>, keeps_holes: bool) -> Step<()> {
        let mut segments = input.segments(keeps_holes, unit_of(input, output));
        let unreadable = |errno| Failure::of_errno("looking for holes", &input.path, errno);
        while let Some(range) = segments.next(&input.file).map_err(unreadable)? {
            let length = range.end - range.start;
            match space::fallocate_keep_size(output.file.as_fd(), range.start, length) {
                Ok(()) => {}
                // The blocks then come with the writes.
                Err(
                    diopter::Errno::EOPNOTSUPP | diopter::Errno::ENOSYS | diopter::Errno::EINVAL,
                ) => return Ok(()),
                Err(errno) => {
                    return Err(Failure::of_errno("reserving space", output.path, errno).into());
                }
            }
        }
        Ok(())
    }

    /// Writes over a file inside an image, if all of it can be.
    fn overwrite_inside(&mut self, mut input: Input, name: &InsideName, target: &Path) -> Step<()> {
        let refused = |cause: &str, remedy: &str| -> Step<()> {
            Err(Failure::of_rule("writing", target, cause, remedy).into())
        };
        if !self.options.overwrite {
            let cause = "a file inside an image is written in place, and its content would be lost";
            return refused(cause, "look twice that it is the right one, then add --overwrite");
        }
        let failed = |error: Error| failure("writing", target, &error);
        let inside = inside::open(name, Use::Overwrite).map_err(failed)?;
        let file = inside.file().map_err(failed)?;
        let image = std::fs::metadata(&name.image)
            .map_err(|error| Failure::of_io("looking at", &name.image, &error))?;
        let is_same_image = (image.dev(), image.ino(), image.rdev())
            == (input.metadata.dev(), input.metadata.ino(), input.metadata.rdev());
        if is_same_image && input.inode == Some(inside.node.inode) {
            return refused("source and target are the same file", "name another target");
        }
        let (size, fixed) = (input.size, inside.node.size);
        if size != fixed {
            let cause = format!(
                "the content has {size} bytes and the file has {fixed}, which can't change here"
            );
            return refused(&cause, "give content of the same size, or mount the image");
        }
        // All of it, before the first byte is written.
        inside.check_overwrite(FileRange::new(0, fixed)).map_err(failed)?;
        input.is_watched &= !is_same_image;
        self.write_in_place(&input, &Output { file: &file, path: target })
    }

    fn write_in_place(&mut self, input: &Input, output: &Output<'_>) -> Step<()> {
        self.written_in_place = Some(output.path.to_owned());
        // Holes too: what is there shows through whatever is not written.
        let segments = input.segments(false, 1);
        let moved = self.pass_bytes(input, output, segments)?;
        self.flush_output(output)?;
        let verdict = self.compare_back(input, output, &moved, Holes::Filled);
        self.written_in_place = None;
        verdict?;
        self.count_image(input, &moved);
        Ok(())
    }

    /// Moves the bytes, and looks whether the source stayed what it was.
    fn pass_bytes(
        &mut self,
        input: &Input,
        output: &Output<'_>,
        segments: Segments,
    ) -> Step<Moved> {
        let CpOptions { bs, iodepth, verify, sparse, .. } = *self.options;
        let shape = Shape::new(bs, iodepth)?;
        self.pipeline
            .reshape(shape)
            .map_err(|error| Failure::of_engine("setting up for", &input.path, &error.into()))?;
        self.progress.begin("", &input.path, input.size);
        let is_in_place = self.written_in_place.is_some();
        let skips_zeros = sparse == Sparse::Always && !is_in_place;
        let transfer = Transfer {
            source: &input.file,
            target: Some(output.file),
            segments,
            size: input.size,
            write_from: 0,
            hashing: if verify { Hashing::Blake3 } else { Hashing::Off },
            zeros: if skips_zeros { Zeros::Skipped } else { Zeros::Written },
            flush_every: None,
        };
        let moved = self.run_transfer(transfer);
        let moved = moved.map_err(|why| stopped(why, input, output.path))?;
        if input.is_unchanged() { Ok(moved) } else { Err(input.changed()) }
    }

    fn run_transfer(&mut self, transfer: Transfer<'_>) -> Result<Moved, Interruption> {
        let (progress, signals) = (&self.progress, &self.signals);
        self.pipeline.run(transfer, &mut |milestone| {
            if let Milestone::Done(position) = milestone {
                progress.at(position);
            }
            signals.arrived()
        })
    }

    fn flush_output(&mut self, output: &Output<'_>) -> Result<(), Failure> {
        let flushed = self.pipeline.sync_all(output.file);
        flushed.map_err(|error| Failure::of_engine("flushing", output.path, &error))?;
        // What went through the page cache is clean now, and can leave it.
        space::advise_dont_need(output.file.as_fd(), 0, 0).unwrap_or(());
        Ok(())
    }

    /// With `--verify`, reads what was flushed back and compares.
    fn compare_back(
        &mut self,
        input: &Input,
        output: &Output<'_>,
        moved: &Moved,
        holes: Holes,
    ) -> Step<()> {
        let Some(source_hash) = moved.hash else { return Ok(()) };
        self.progress.begin("verifying ", output.path, input.size);
        let transfer = Transfer {
            source: output.file,
            target: None,
            segments: Segments::new(holes, input.size, unit_of(input, output)),
            size: input.size,
            write_from: 0,
            hashing: Hashing::Blake3,
            zeros: Zeros::Written,
            flush_every: None,
        };
        let read = self.run_transfer(transfer);
        let read = read.map_err(|why| stopped_reading_back(why, output.path))?;
        let is_direct = read.reads.buffered == 0;
        if !is_direct {
            let why: Vec<&str> = read.reads.why.iter().copied().collect();
            self.tell_buffered(output.path, read.reads.buffered, &why.join(", "));
        }
        self.counts.verify.merge(&read.reads);
        let target_hash = read.hash.expect("the pass hashes");
        if source_hash == target_hash {
            self.counts.note_verified(output.path, source_hash, is_direct);
            return Ok(());
        }
        let target = output.path.to_owned();
        let is_in_place = self.written_in_place.is_some();
        let mismatch = Mismatch { target, source_hash, target_hash, is_in_place };
        self.counts.note_mismatch(&mismatch, is_direct);
        Err(Stop::Differs(mismatch))
    }

    fn count_image(&mut self, input: &Input, moved: &Moved) {
        let counts = &mut self.counts;
        counts.files += 1;
        counts.bytes += input.size;
        counts.read.merge(&moved.reads);
        counts.write.merge(&moved.writes);
        counts.hole_bytes += input.size.saturating_sub(moved.writes.bytes());
    }
}

/// Ranges are multiples of this, so that no write has to change a part of a block.
fn unit_of(input: &Input, output: &Output<'_>) -> u64 {
    let (source, target) = (input.file.alignment(), output.file.alignment());
    u64::from(source.offset_read.max(target.offset_read).max(target.offset_write).max(1))
}

/// What can't be done with a name inside an image, and why.
fn failure(what: &'static str, on: &Path, error: &Error) -> Failure {
    let (cause, remedy) = inside::told(error);
    Failure::of_rule(what, on, &cause, &remedy)
}

fn stopped(why: Interruption, input: &Input, target: &Path) -> Stop {
    let failure = match why {
        Interruption::Signal(signal) => return Stop::Signal(signal),
        Interruption::SourceChanged => return input.changed(),
        Interruption::Read(error) => Failure::of_engine("reading", &input.path, &error),
        Interruption::Write(error) => Failure::of_engine("writing", target, &error),
        Interruption::Flush(error) => Failure::of_engine("flushing", target, &error),
        Interruption::Seek(errno) => Failure::of_errno("looking for holes", &input.path, errno),
        Interruption::Memory(errno) => Failure::of_errno("making a buffer", &input.path, errno),
        Interruption::Backend(error) => Failure::of_engine("copying", &input.path, &error.into()),
    };
    Stop::Failed(failure)
}
