//! Layouts of Lustre files: the content of the attribute `lustre.lov`, plain or composite (PFL,
//! FLR).
//!
//! Offsets and numbers are those of include/uapi/linux/lustre/lustre_user.h. `read` parses the
//! value, `place` finds bytes, and `text` prints. Unknown values are refused, never guessed.

mod place;
mod read;
mod text;

#[cfg(all(test, not(diopter_loom)))]
mod tests;

use diopter_core::stripe::Striping;
use diopter_core::units::FileRange;

use crate::shape::RequestShape;

pub use place::{Lookup, LustrePlace};
pub use read::parse;

/// The extended attribute that holds it.
pub const ATTRIBUTE: &str = "lustre.lov";

/// Limit of the components of one file; real files have a few for each mirror, and at most 16
/// mirrors.
pub const COMPONENTS_MAX: usize = 1024;

/// The layout of a Lustre file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LustreLayout {
    /// Number of changes of a composite; a plain layout does not count them.
    generation: Option<u32>,
    /// State of the mirrors under its mask; 0 without mirrors.
    mirror_state: u16,
    /// In the order of the value; one for a plain layout, from 0 to the end.
    components: Vec<Component>,
}

/// A range of the file with one layout, in one mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Its number: bits 30 to 16 are the mirror's number, the rest the component's. 0 for a plain
    /// layout.
    pub id: u32,
    /// See [`flags`].
    pub flags: u32,
    /// Bytes of the file; to `u64::MAX` if it has no end.
    pub range: FileRange,
    pub content: Content,
}

/// The content of a component.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// In stripes.
    Striped(Stripes),
    /// A place outside Lustre.
    Foreign {
        /// The owner's number.
        kind: u32,
        /// The owner's flags.
        flags: u32,
    },
}

/// Stripes, and the objects that hold them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// See [`pattern`].
    pub pattern: u32,
    /// Bytes of a stripe; of a component that grows by extension, bytes of each extension.
    pub stripe_size: u64,
    /// Number of stripes; `None` while the file system has not decided.
    pub stripe_count: Option<u16>,
    /// The pool of its targets, if any.
    pub pool: Option<String>,
    /// One for each stripe; empty before they are created, or on a metadata target.
    pub objects: Vec<Object>,
}

/// An object of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Number of its target (OST).
    pub target: u32,
    /// Its type or generation.
    pub generation: u32,
    /// Its number there.
    pub id: ObjectId,
}

/// An object's number on its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectId {
    /// The number alone: for files of the first metadata target.
    Number(u64),
    /// A number in an identifier (IDIF), with the target that it names.
    Wrapped {
        /// Number of the target.
        target: u16,
        /// Number of the object.
        number: u64,
    },
    /// A file identifier (FID).
    Fid {
        /// Its sequence.
        sequence: u64,
        /// Its number in the sequence.
        number: u32,
        /// Its version.
        version: u32,
    },
}

/// Bits of a pattern.
pub mod pattern {
    /// Stripes in turn.
    pub const RAID0: u32 = 0x1;
    /// Parity of other stripes.
    pub const PARITY: u32 = 0x4;
    /// On the metadata target.
    pub const METADATA: u32 = 0x100;
    /// A target may have several stripes.
    pub const OVERSTRIPING: u32 = 0x200;
    /// Unknown to Lustre.
    pub const FOREIGN: u32 = 0x400;
    /// Compressed.
    pub const COMPRESS: u32 = 0x800;
    /// A check of the file system found objects missing.
    pub const HOLE: u32 = 0x4000_0000;
    /// In an archive.
    pub const RELEASED: u32 = 0x8000_0000;
}

/// Bits of a component's flags.
pub mod flags {
    /// Older than other mirrors.
    pub const STALE: u32 = 0x1;
    /// Preferred for reading.
    pub const PREFERRED_READ: u32 = 0x2;
    /// Not to be used.
    pub const OFFLINE: u32 = 0x8;
    /// Its objects exist.
    pub const INIT: u32 = 0x10;
    /// Reserves space that the component before may grow into.
    pub const EXTENSION: u32 = 0x40;
    /// It holds parity.
    pub const PARITY: u32 = 0x80;
    /// It is compressed.
    pub const COMPRESS: u32 = 0x100;
    /// A tool's "not"; never stored.
    pub const NEGATED: u32 = 0x8000_0000;
}

impl Component {
    /// Returns true if its objects exist.
    #[must_use]
    pub fn is_instantiated(&self) -> bool {
        self.flags & flags::INIT != 0
    }

    /// Returns the number of its mirror.
    #[must_use]
    pub fn mirror(&self) -> u16 {
        u16::try_from(self.id >> 16 & 0x7fff).expect("15 bits")
    }

    /// Returns true if it has current bytes of the file.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.flags & (flags::STALE | flags::OFFLINE | flags::PARITY) == 0
    }

    /// Returns its stripes, if they distribute the file's own bytes over objects, now or later.
    fn plain_stripes(&self) -> Option<&Stripes> {
        let Content::Striped(stripes) = &self.content else { return None };
        let is_plain = stripes.pattern & !pattern::OVERSTRIPING == pattern::RAID0;
        let is_own = self.flags & (flags::EXTENSION | flags::COMPRESS | flags::PARITY) == 0;
        (is_plain && is_own).then_some(stripes)
    }
}

impl Stripes {
    /// Returns their striping over the objects; `None` before the objects exist.
    #[must_use]
    pub fn striping(&self) -> Option<Striping> {
        Striping::new(self.stripe_size, self.objects.len())
    }
}

impl LustreLayout {
    /// Returns the number of changes of a composite layout; `None` for a plain one.
    #[must_use]
    pub fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// Returns its components; at least one.
    #[must_use]
    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// Returns the bytes of a stripe at byte `offset`; `None` if it is not striped.
    #[must_use]
    pub fn stripe_size_at(&self, offset: u64) -> Option<u64> {
        Some(self.readable(offset)?.plain_stripes()?.stripe_size)
    }

    /// Returns the recommended shape of large requests to a file of `size` bytes, by the component
    /// that has most of it; of several, the last one.
    #[must_use]
    pub fn request_shape(&self, size: u64) -> Option<RequestShape> {
        let current = self.components.iter().filter(|component| component.is_current());
        let held = |component: &Component| {
            size.max(1).min(component.range.end()).saturating_sub(component.range.start())
        };
        let (_, stripes) = current
            .filter_map(|component| Some((held(component), component.plain_stripes()?)))
            .filter(|(bytes, _)| *bytes > 0)
            .max_by_key(|(bytes, _)| *bytes)?;
        let stripe_size = stripes.stripe_size;
        let stripe_count = u64::from(stripes.stripe_count?);
        Some(RequestShape { width: stripe_size * stripe_count, stripe_size, stripe_count })
    }

    /// Returns the reason that the objects alone do not have the content; `None` if they have it.
    #[must_use]
    pub fn obstacle(&self) -> Option<&'static str> {
        let mut current = self.components.iter().filter(|component| component.is_current());
        if self.components.iter().all(|component| !component.is_current()) {
            return Some("no mirror of it is current");
        }
        current.find_map(Component::obstacle)
    }
}

impl Component {
    /// Returns the reason that its objects alone do not have its bytes; `None` if they have them.
    fn obstacle(&self) -> Option<&'static str> {
        let Content::Striped(stripes) = &self.content else {
            return Some("part of it is kept outside of Lustre");
        };
        let has = |bit: u32| stripes.pattern & bit != 0;
        let reported = [
            (has(pattern::METADATA), "part of it is on a metadata target"),
            (has(pattern::HOLE), "some of its objects are missing"),
            (
                has(pattern::COMPRESS) || self.flags & flags::COMPRESS != 0,
                "part of it is compressed",
            ),
            (!self.is_instantiated(), "part of it has no objects yet"),
            (self.plain_stripes().is_none(), "its pattern is not known here"),
        ];
        reported.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why)
    }
}
