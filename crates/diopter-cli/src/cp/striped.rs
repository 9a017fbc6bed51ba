//! A striped file as the target: new objects that become its content when they are whole, or, with
//! a device among the objects, the objects that it has.

use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use diopter::layouts::{LayoutError, StripedFile};
use diopter::{Errno, File};
use diopter_layouts::layout::{Layout, ObjectKind};

use super::copier::Copier;
use super::dir::{Entry, Inode};
use super::failure::{Failure, Step, Stop};
use super::flow::Zeros;
use super::one::{Passed, block_of};
use super::preserve;
use super::segments::{Holes, Segments};
use super::source::{Source, layout_at};

/// Permissions of objects while they are filled; they have the source's when they are full.
const FILLING_MODE: u32 = 0o600;

impl Copier<'_> {
    /// Gives a striped file, whose manifest was looked up by its name, other content.
    pub fn write_striped(&mut self, source: &Source, target: &Entry, manifest: &Inode) -> Step<()> {
        let path = target.path();
        self.refuse_resume(&path)?;
        let failed = |error: LayoutError| Failure::of_layout("writing", &error);
        let mut layout = layout_at("writing", target, manifest)?;
        refuse_own_object(source, &layout)?;
        let has_device =
            layout.manifest().objects().iter().any(|it| matches!(it.kind, ObjectKind::Device(_)));
        if has_device {
            return self.write_striped_in_place(source, layout, &path);
        }
        self.writes_stripes = true;
        // Dropped on the way out of an error, it takes the new objects with it.
        let mut replacement = layout.replace().map_err(failed)?;
        replacement.set_mode(source.metadata.mode());
        let objects = replacement.take_objects();
        let file = File::of_new_objects(replacement.manifest(), objects);
        let passed = self.fill_objects(source, &file, &path)?;
        drop(file);
        let left = replacement.commit().map_err(failed)?;
        for error in &left {
            let failure = Failure::of_layout("removing an old object", error);
            self.progress.tell(&format!("dio cp: {failure}"));
            self.counts.note_failure(&failure);
        }
        layout.seal().map_err(|error| Failure::of_layout("sealing", &error))?;
        self.count_striped(source, &passed);
        Ok(())
    }

    /// Makes a striped file like the source, with all objects beside its manifest.
    pub fn make_striped(&mut self, source: &Source, target: &Entry) -> Step<()> {
        let path = target.path();
        self.refuse_resume(&path)?;
        self.writes_stripes = true;
        let failed = |error: LayoutError| Failure::of_layout("writing", &error);
        let striping = source.file.striping().expect("the source is striped");
        let creation = Layout::prepare_at(target.dir.as_fd(), &path, striping, FILLING_MODE);
        let mut creation = creation.map_err(failed)?;
        let objects = creation.take_objects();
        let file = File::of_new_objects(creation.manifest(), objects);
        let passed = self.fill_objects(source, &file, &path)?;
        let mut layout = creation.publish().map_err(failed)?;
        layout.seal().map_err(|error| Failure::of_layout("sealing", &error))?;
        self.preserve_like(source, &file, &layout, target)?;
        self.count_striped(source, &passed);
        Ok(())
    }

    /// Overwrites the objects of a striped file that has a device among them.
    fn write_striped_in_place(
        &mut self,
        source: &Source,
        layout: Layout,
        target: &Path,
    ) -> Step<()> {
        let refused = |cause: &str, remedy| {
            Failure::of_rule("writing the devices of a striped file", target, cause, remedy)
        };
        if !self.options.overwrite {
            let remedy = "look twice that it is the right one, then add --overwrite";
            return Err(refused("all that is on them would be lost", remedy).into());
        }
        let options = File::options().read(true).write(true).exclusive(true).clone();
        let file = StripedFile::of_layout(layout, &options);
        let file = file.map_err(|error| Failure::of_engine("opening", target, &error))?;
        let room = file.size();
        let room = room.map_err(|error| Failure::of_engine("measuring", target, &error))?;
        if room < source.size {
            let bytes = source.size;
            let cause = format!("the content has {bytes} bytes and the file has room for {room}");
            return Err(refused(&cause, "choose a larger one").into());
        }
        self.written_in_place = Some(target.to_owned());
        // Holes too: what is on the devices shows through whatever is not written.
        let segments = Segments::new(Holes::Filled, source.size, 1);
        let moved = self.move_all(source, &file, (segments, Zeros::Written), target)?;
        self.flush(&file, target)?;
        let passed = Passed { moved, resumed: 0, is_reflinked: false };
        let verdict = self.read_back(source, &file, target, &passed);
        self.written_in_place = None;
        verdict?;
        file.seal().map_err(|error| Failure::of_engine("sealing", target, &error))?;
        self.count_striped(source, &passed);
        Ok(())
    }

    /// Puts the content into new objects and makes it durable: all but the name.
    fn fill_objects(&mut self, source: &Source, file: &File, target: &Path) -> Step<Passed> {
        let segments = Segments::new(self.holes_of(source), source.size, block_of(source, file));
        self.reserve_objects(source, file, segments.clone(), target)?;
        let zeros = self.zeros();
        let moved = self.move_all(source, file, (segments, zeros), target)?;
        self.flush(file, target)?;
        let passed = Passed { moved, resumed: 0, is_reflinked: false };
        self.read_back(source, file, target, &passed)?;
        self.objects.note_made(file);
        match self.signals.arrived() {
            Some(signal) => Err(Stop::Signal(signal)),
            None => Ok(passed),
        }
    }

    /// Gives the objects their final sizes and their blocks, so that no write has to wait for them
    /// and a disk that is too small says so at once.
    fn reserve_objects(
        &self,
        source: &Source,
        file: &File,
        mut segments: Segments,
        target: &Path,
    ) -> Result<(), Failure> {
        let sized = file.set_len(source.size);
        sized.map_err(|error| Failure::of_engine("setting the size", target, &error))?;
        if self.zeros() == Zeros::Skipped {
            // Blocks that are reserved are no hole.
            return Ok(());
        }
        let unreadable = |errno| Failure::of_errno("looking for holes", &source.path, errno);
        while let Some(range) = segments.next(&source.file).map_err(unreadable)? {
            match file.allocate(range.start, range.end - range.start) {
                Ok(()) => {}
                Err(error) => match error.errno() {
                    // The blocks then come with the writes.
                    Errno::EOPNOTSUPP | Errno::ENOSYS | Errno::EINVAL => return Ok(()),
                    _ => return Err(Failure::of_engine("reserving space", target, &error)),
                },
            }
        }
        Ok(())
    }

    fn refuse_resume(&self, target: &Path) -> Result<(), Failure> {
        if !self.options.resume {
            return Ok(());
        }
        let cause = "a copy onto a striped file leaves nothing to go on from";
        Err(Failure::of_rule("writing the striped file", target, cause, "leave --resume out"))
    }

    /// What is kept of the source's manifest; the objects have its owner and permissions.
    fn preserve_like(
        &self,
        source: &Source,
        file: &File,
        layout: &Layout,
        target: &Entry,
    ) -> Result<(), Failure> {
        let mode = self.new_mode(&target.dir, source.metadata.mode() & 0o777, 0o666);
        let attributes = self.attributes(Some(mode));
        let objects = layout.manifest().objects().iter();
        for (object, opened) in objects.zip(file.object_descriptors()) {
            let path = layout.object_path(object);
            preserve::copy_object(&source.metadata, opened, (&path, attributes))?;
        }
        let attributes = (&*target.path(), attributes);
        preserve::copy(source.file.as_fd(), &source.metadata, layout.as_fd(), attributes)?;
        layout.deny_other_writers().map_err(|error| Failure::of_layout("writing", &error))
    }

    fn count_striped(&mut self, source: &Source, passed: &Passed) {
        self.counts.striped += 1;
        self.count(source, passed);
    }
}

/// The old objects go when the new content stands, so none of them may be where that comes from.
fn refuse_own_object(source: &Source, layout: &Layout) -> Result<(), Failure> {
    let is_source = |object| {
        layout.look_up(object).is_ok_and(|found| {
            let is_device = source.is_device() && found.rdev() == source.metadata.rdev();
            is_device || source.has_object(&found)
        })
    };
    if !layout.manifest().objects().iter().any(is_source) {
        return Ok(());
    }
    let cause = "the source is an object of the target, or has one in common with it";
    Err(Failure::of_rule("copying", &source.path, cause, "name another target"))
}
