//! The extents of a file inside an image: counted, searched for data, checked before a write.

use diopter::engine::{Extent, ExtentState};
use diopter::images::{Image, ImageError, ImageErrorKind};
use diopter::{Errno, FileRange};
use diopter_images::image::walk::ExtentWalk;
use diopter_images::image::{Node, Volume};

use crate::stop::StopFlag;

/// Limit of the extents that are counted; more are reported as cut.
const EXTENTS_MAX: usize = 1_000_000;

/// Bytes up to which neighbouring extents are one range: a copy reads more metadata as it proceeds.
const RANGE_BYTES: u64 = 64 << 20;

/// The extents of a file, counted by state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtentCounts {
    /// Extents with a place in the image.
    pub count: u64,
    /// Bytes in them.
    pub bytes: u64,
    /// Contiguous pieces in the image, of one state each.
    pub pieces: u64,
    /// Allocated, and reads as zeros: how many, and bytes.
    pub unwritten: (u64, u64),
    /// Used by another file as well.
    pub shared: (u64, u64),
    /// Ranges that have no place.
    pub holes: (u64, u64),
    /// True if there are more than were counted.
    pub is_cut: bool,
}

impl ExtentCounts {
    /// Counts the extents of a file without inline data.
    ///
    /// # Errors
    /// Those of the volume.
    pub fn of(volume: &dyn Volume, node: &Node) -> Result<ExtentCounts, ImageError> {
        let mut counts = ExtentCounts::default();
        let mut follower = None;
        let mut walk = ExtentWalk::new(volume, node.inode, FileRange::new(0, node.size));
        for extent in walk.by_ref().take(EXTENTS_MAX) {
            let extent = extent?;
            counts.add(&extent, follower);
            // A hole has no place, and continues in the next one.
            let end = match extent.state {
                ExtentState::Hole => 0,
                _ => extent.object_offset.get() + extent.range.length(),
            };
            follower = Some((end, extent.state));
        }
        counts.is_cut = walk.position() < node.size;
        Ok(counts)
    }

    /// Counts an extent; `follower` is the place and the state that would continue the previous
    /// one.
    fn add(&mut self, extent: &Extent, follower: Option<(u64, ExtentState)>) {
        let length = extent.range.length();
        let is_hole = extent.state == ExtentState::Hole;
        let start = if is_hole { 0 } else { extent.object_offset.get() };
        let goes_on = follower == Some((start, extent.state));
        let add = |(count, bytes): &mut (u64, u64), is_new: bool| {
            *count += u64::from(is_new);
            *bytes += length;
        };
        match extent.state {
            ExtentState::Hole => return add(&mut self.holes, !goes_on),
            ExtentState::Unwritten => add(&mut self.unwritten, true),
            ExtentState::Shared => add(&mut self.shared, true),
            ExtentState::Mapped => {}
        }
        self.count += 1;
        self.bytes += length;
        self.pieces += u64::from(!goes_on);
    }
}

/// Refuses a write to `range` of a file, unless each byte of it is the file's own and written.
///
/// # Errors
/// `Refused` with the first range that is not, and the volume's errors.
pub fn check_overwrite(
    volume: &dyn Volume,
    node: &Node,
    range: FileRange,
) -> Result<(), ImageError> {
    let refused = |what: String, remedy| {
        Err(ImageError::new(ImageErrorKind::Refused, what).with_remedy(remedy))
    };
    if volume.inline_data(node.inode)?.is_some() {
        let what =
            "the file's bytes are in its inode, and it has no blocks to overwrite".to_owned();
        return refused(what, "mount the image to change it");
    }
    if range.end() > node.size {
        let what = format!(
            "the file has {} bytes, and bytes {range} exceed it: its size is fixed",
            node.size
        );
        return refused(what, "write within the file, or mount the image to make it longer");
    }
    for extent in ExtentWalk::new(volume, node.inode, range) {
        let extent = extent?;
        let is = match extent.state {
            ExtentState::Mapped => continue,
            ExtentState::Hole => "a hole",
            ExtentState::Unwritten => "allocated but not written",
            ExtentState::Shared => "shared with another file",
        };
        let what = format!("bytes {} are {is}: a write would change metadata", extent.range);
        return refused(what, "mount the image and write through the mount");
    }
    Ok(())
}

/// Bytes that a file maps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MappedBytes {
    /// In blocks that no other file uses.
    pub own: u64,
    /// In blocks that another file uses too.
    pub shared: u64,
}

/// The ranges of a file inside an image that have bytes, found as a copy proceeds.
#[derive(Clone, Debug)]
pub struct DataRanges {
    /// The image.
    pub image: Image,
    /// The file in it.
    pub inode: u64,
    /// Ends the copy.
    pub stop: StopFlag,
}

impl DataRanges {
    /// Returns the bytes that the first `size` bytes of the file map; `None` after a signal.
    ///
    /// # Errors
    /// `Refused` for more than the volume can hold, and the volume's errors.
    pub fn mapped(&self, size: u64) -> Result<Option<MappedBytes>, ImageError> {
        let mut mapped = MappedBytes::default();
        let range = FileRange::new(0, size);
        for extent in ExtentWalk::new(self.image.volume(), self.inode, range) {
            let extent = extent?;
            match extent.state {
                ExtentState::Hole => {}
                ExtentState::Shared => mapped.shared += extent.range.length(),
                ExtentState::Mapped | ExtentState::Unwritten => mapped.own += extent.range.length(),
            }
            if self.stop.requested().is_some() {
                return Ok(None);
            }
        }
        Ok(Some(mapped))
    }

    /// Returns start and end of the next one at or after `from`, below `size`.
    ///
    /// # Errors
    /// `EUCLEAN` for inconsistent metadata, the errno of a read, and `EINTR` after a signal.
    pub fn next(&self, from: u64, size: u64) -> Result<Option<(u64, u64)>, Errno> {
        let mut found: Option<(u64, u64)> = None;
        let mut at = from;
        while at < size {
            let range = FileRange::new(at, size);
            let extent = self.image.volume().extent(self.inode, range);
            let extent = extent.map_err(|error| error.errno())?;
            at = extent.range.end();
            if self.stop.requested().is_some() {
                return Err(Errno::EINTR);
            }
            match (extent.state.has_bytes(), found) {
                (true, None) => found = Some((extent.range.start(), at)),
                (true, Some((start, end))) if end - start < RANGE_BYTES => {
                    found = Some((start, at))
                }
                (true, Some(_)) => break,
                (false, Some(_)) => break,
                (false, None) => {}
            }
        }
        Ok(found)
    }
}
