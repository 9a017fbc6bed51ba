//! Layouts of Lustre files: what the attribute `lustre.lov` tells, plain or composite (PFL, FLR).
//!
//! Offsets and numbers are those of include/uapi/linux/lustre/lustre_user.h. The value is read in
//! `read`, bytes are found in `place`, and `text` tells it to people. What is not understood is
//! refused, never guessed.

mod place;
mod read;
mod text;

#[cfg(all(test, not(diopter_loom)))]
mod tests;

use diopter_core::stripe::Striping;
use diopter_core::units::FileRange;

use crate::foreign::RequestShape;

pub use place::{Lookup, LustrePlace};
pub use read::parse;

/// The extended attribute that tells it.
pub const ATTRIBUTE: &str = "lustre.lov";

/// Components of one file at most; real files have a few for each mirror, and mirrors are at most
/// 16.
pub const COMPONENTS_MAX: usize = 1024;

/// The layout of a Lustre file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LustreLayout {
    /// How often a composite has changed; a plain layout does not tell.
    generation: Option<u32>,
    /// State of the mirrors under its mask; 0 without mirrors.
    mirror_state: u16,
    /// In the order of the value; one for a plain layout, from 0 to the end.
    components: Vec<Component>,
}

/// A range of the file that is laid out in one way, in one mirror.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    /// Its number: bits 30 to 16 the mirror's, the rest its own. 0 for a plain layout.
    pub id: u32,
    /// See [`flags`].
    pub flags: u32,
    /// Which bytes of the file; to `u64::MAX` when it has no end.
    pub range: FileRange,
    /// How they are laid out.
    pub content: Content,
}

/// How a component is laid out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Content {
    /// In stripes.
    Striped(Stripes),
    /// Somewhere that Lustre itself knows nothing about.
    Foreign {
        /// Whose it is.
        kind: u32,
        /// Theirs.
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
    /// How many stripes; `None` while that is left to the file system.
    pub stripe_count: Option<u16>,
    /// The pool that its targets are from, if from one.
    pub pool: Option<String>,
    /// One for each stripe; none while there are none, or on a metadata target.
    pub objects: Vec<Object>,
}

/// An object of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Object {
    /// Number of the target (OST) that has it.
    pub target: u32,
    /// Its type or generation.
    pub generation: u32,
    /// Its number there.
    pub id: ObjectId,
}

/// An object's number on its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ObjectId {
    /// The number alone: of the first metadata target's files.
    Number(u64),
    /// A number that an identifier wraps (IDIF), with the target that it names.
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
    /// Nothing that Lustre knows.
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
    /// It has its objects.
    pub const INIT: u32 = 0x10;
    /// It stands for space that the component before may grow into.
    pub const EXTENSION: u32 = 0x40;
    /// It holds parity.
    pub const PARITY: u32 = 0x80;
    /// It is compressed.
    pub const COMPRESS: u32 = 0x100;
    /// A tool's "not"; never stored.
    pub const NEGATED: u32 = 0x8000_0000;
}

impl Component {
    /// Whether its objects are made.
    #[must_use]
    pub fn is_instantiated(&self) -> bool {
        self.flags & flags::INIT != 0
    }

    /// The number of its mirror.
    #[must_use]
    pub fn mirror(&self) -> u16 {
        u16::try_from(self.id >> 16 & 0x7fff).expect("15 bits")
    }

    /// Whether it has current bytes of the file.
    #[must_use]
    pub fn is_current(&self) -> bool {
        self.flags & (flags::STALE | flags::OFFLINE | flags::PARITY) == 0
    }

    /// Its stripes, if the file's own bytes are dealt out to objects by them, or will be.
    fn plain_stripes(&self) -> Option<&Stripes> {
        let Content::Striped(stripes) = &self.content else { return None };
        let is_plain = stripes.pattern & !pattern::OVERSTRIPING == pattern::RAID0;
        let is_own = self.flags & (flags::EXTENSION | flags::COMPRESS | flags::PARITY) == 0;
        (is_plain && is_own).then_some(stripes)
    }
}

impl Stripes {
    /// How they go over the objects; `None` while there are no objects.
    #[must_use]
    pub fn striping(&self) -> Option<Striping> {
        Striping::new(self.stripe_size, self.objects.len())
    }
}

impl LustreLayout {
    /// How often a composite layout has changed; `None` for a plain one.
    #[must_use]
    pub fn generation(&self) -> Option<u32> {
        self.generation
    }

    /// Its components; at least one.
    #[must_use]
    pub fn components(&self) -> &[Component] {
        &self.components
    }

    /// Bytes of a stripe at byte `offset`; `None` where nothing is striped.
    #[must_use]
    pub fn stripe_size_at(&self, offset: u64) -> Option<u64> {
        Some(self.readable(offset)?.plain_stripes()?.stripe_size)
    }

    /// What large requests to a file of `size` bytes should be, by the component that has most of
    /// it; of several, the last one.
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

    /// Why the objects alone do not have the content; `None` where they have.
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
    /// Why its objects alone do not have its bytes; `None` where they have.
    fn obstacle(&self) -> Option<&'static str> {
        let Content::Striped(stripes) = &self.content else {
            return Some("part of it is kept outside of Lustre");
        };
        let has = |bit: u32| stripes.pattern & bit != 0;
        let told = [
            (has(pattern::METADATA), "part of it is on a metadata target"),
            (has(pattern::HOLE), "some of its objects are missing"),
            (
                has(pattern::COMPRESS) || self.flags & flags::COMPRESS != 0,
                "part of it is compressed",
            ),
            (!self.is_instantiated(), "part of it has no objects yet"),
            (self.plain_stripes().is_none(), "its pattern is not known here"),
        ];
        told.into_iter().find(|(is_so, _)| *is_so).map(|(_, why)| why)
    }
}
