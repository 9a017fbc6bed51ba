//! Sources inside an image, and those that are copied into one.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter::images::ImageError;
use diopter::{Error, File};

use crate::failure::{Failure, Step, Stop};
use crate::image_path::{self, DataRanges, Inside, MappedBytes};
use crate::record::SourceIdentity;
use crate::segments::{Holes, Segments};
use crate::source::Content;
use crate::stop::StopFlag;

/// A file inside an image, or one that is copied into an image.
pub struct Input {
    file: File,
    /// Metadata of the file, or of the image that it lies in, from before it was read.
    pub metadata: Metadata,
    pub size: u64,
    /// Its path, for messages.
    pub path: PathBuf,
    /// Where it has data, if the file system of the machine does not know.
    ranges: Option<DataRanges>,
    /// Permission bits that a copy gets.
    pub mode: u32,
    /// The inode inside the image.
    pub inode: Option<u64>,
    /// False if the copy itself changes the image that the source lies in.
    pub is_watched: bool,
}

impl Input {
    /// Opens a file that is copied into an image.
    pub fn of_path(path: &Path) -> Result<Input, Failure> {
        let failed = |error: Error| Failure::of_engine("opening", path, &error);
        let file = File::options().read(true).striped(true).open(path).map_err(failed)?;
        let metadata = file.metadata().map_err(failed)?;
        let (size, mode) = (file.size().map_err(failed)?, metadata.mode());
        let path = path.to_owned();
        Ok(Input { file, metadata, size, path, ranges: None, mode, inode: None, is_watched: true })
    }

    /// Opens a file inside an image.
    pub fn of_inside(inside: &Inside, path: &Path, stop: &StopFlag) -> Result<Input, Failure> {
        let failed = |error: Error| cannot("opening", path, &error);
        let file = inside.file().map_err(failed)?;
        // A file that is held in memory reports its holes as any other.
        let is_inline = inside.inline_data().map_err(|error| failed(error.into()))?.is_some();
        let (image, inode) = (inside.image.clone(), inside.node.inode);
        let stop = stop.clone();
        let ranges = (!is_inline).then_some(DataRanges { image, inode, stop });
        let metadata = std::fs::metadata(&inside.image_path);
        let metadata =
            metadata.map_err(|e| Failure::of_io("looking at", &inside.image_path, &e))?;
        let (size, mode) = (inside.node.size, inside.node.mode);
        let (path, inode, is_watched) = (path.to_owned(), Some(inode), !is_inline);
        Ok(Input { file, metadata, size, path, ranges, mode, inode, is_watched })
    }

    /// As [`Input::of_inside`], for a file that maps no more than its volume can hold.
    pub fn of_checked(inside: &Inside, path: &Path, stop: &StopFlag) -> Step<Input> {
        let input = Input::of_inside(inside, path, stop)?;
        let mapped = input.mapped().map_err(|error| cannot("opening", path, &error.into()))?;
        match (mapped, stop.requested()) {
            (None, Some(signal)) => Err(Stop::Signal(signal)),
            _ => Ok(input),
        }
    }

    /// Returns the bytes that it maps in the image, or `None` after a signal. Fails if its volume
    /// cannot hold so many.
    pub fn mapped(&self) -> Result<Option<MappedBytes>, ImageError> {
        match &self.ranges {
            Some(ranges) => ranges.mapped(self.size),
            None => Ok(Some(MappedBytes::default())),
        }
    }

    /// Returns its data with its holes, or all of it as data.
    pub fn segments(&self, keeps_holes: bool, alignment: u64) -> Segments {
        match &self.ranges {
            _ if !keeps_holes => Segments::new(Holes::Filled, self.size, alignment),
            None => Segments::new(Holes::Kept, self.size, alignment),
            Some(ranges) => Segments::inside(ranges.clone(), self.size, alignment),
        }
    }
}

impl Content for Input {
    fn file(&self) -> &File {
        &self.file
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> u64 {
        self.size
    }

    /// Checks the image around a file; the times of a device do not change.
    fn is_unchanged(&self) -> bool {
        let found = match &self.ranges {
            None => self.file.metadata().ok(),
            Some(ranges) => std::fs::metadata(ranges.image.path()).ok(),
        };
        let identity = SourceIdentity::of(&self.metadata, self.size);
        let is_same = |it| SourceIdentity::of(&it, self.size).is_content_of(&identity);
        !self.is_watched || found.is_some_and(is_same)
    }

    fn has_preference(&self) -> bool {
        false
    }
}

/// Returns the failure of an operation on a name inside an image.
pub fn cannot(what: &'static str, on: &Path, error: &Error) -> Failure {
    let (cause, remedy) = image_path::cause_and_remedy(error);
    Failure::of_rule(what, on, &cause, &remedy)
}
