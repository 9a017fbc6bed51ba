//! Open content of a check: a file, a striped file, a block device, a file inside an image, or a
//! striped object of a cluster.

use std::path::Path;

use crate::cluster::Object;
use crate::dir::Inode;
use crate::failure::Step;
use crate::image::{self, Input};
use crate::segments::{Holes, Segments};
use crate::source::{Content, Source};
use crate::stop::StopFlag;

/// Open content.
pub enum Opened {
    Path(Box<Source>),
    Inside(Box<Input>),
    Object(Box<Object>),
}

impl Opened {
    /// Opens a name inside an image; returns `None` for any other.
    pub fn inside(name: &Path, stop: &StopFlag) -> Option<Step<Opened>> {
        let input = image::open(name, stop)?;
        Some(input.map(|input| Opened::Inside(Box::new(input))))
    }

    /// As [`Opened::inside`], in an image that was looked up.
    pub fn inside_at(name: &Path, image: &Inode, stop: &StopFlag) -> Option<Step<Opened>> {
        let input = image::open_at(name, image, stop)?;
        Some(input.map(|input| Opened::Inside(Box::new(input))))
    }

    pub fn content(&self) -> &dyn Content {
        match self {
            Opened::Path(source) => &**source,
            Opened::Inside(input) => &**input,
            Opened::Object(object) => &**object,
        }
    }

    /// Returns the ranges of its first `size` bytes that have data, which start and end on whole
    /// blocks.
    pub fn segments(&self, size: u64) -> Segments {
        let alignment = u64::from(self.content().file().alignment().offset_read.max(1));
        match self {
            Opened::Path(source) => Segments::new(source.holes(), size, alignment),
            Opened::Inside(input) if size == input.size => input.segments(true, alignment),
            Opened::Inside(_) | Opened::Object(_) => Segments::new(Holes::Filled, size, alignment),
        }
    }
}
