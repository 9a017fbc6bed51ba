//! The location of a byte of a Lustre file. Within a component the stripes count from the start of
//! the file, not of the component (lustre/lov/lov_offset.c).

use super::{Component, LustreLayout, ObjectId, flags};
use diopter_core::units::FileOffset;

/// The location of a byte of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// A byte of an object.
    Object(LustrePlace),
    /// No object yet: it reads as zeros.
    Zeros {
        component: u32,
        /// Bytes to the component's end.
        length: u64,
    },
    /// A location that only the file system reads: on a metadata target, compressed, foreign, with
    /// missing objects.
    Elsewhere {
        component: u32,
        /// Bytes to the component's end.
        length: u64,
    },
    /// Every mirror that has it is stale or offline.
    Stale,
    /// Past what the components cover.
    Nowhere,
}

/// The location of a byte on an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LustrePlace {
    /// Number of the component; 0 for a plain layout.
    pub component: u32,
    /// Number of the stripe's object in the component, from 0.
    pub stripe: u16,
    /// Number of the target (OST).
    pub target: u32,
    /// Number of the object there.
    pub object: ObjectId,
    /// Byte of the object.
    pub object_offset: u64,
    /// Bytes from here to the end of the stripe or of the component.
    pub length: u64,
}

impl LustreLayout {
    /// Returns the location of byte `offset`, in any current mirror; one that is preferred for
    /// reading goes first.
    #[must_use]
    pub fn locate(&self, offset: u64) -> Lookup {
        match self.readable(offset) {
            Some(component) => component.locate(offset),
            None if self.covering(offset).next().is_some() => Lookup::Stale,
            None => Lookup::Nowhere,
        }
    }

    /// Returns the components that have byte `offset`, one for each mirror at most.
    fn covering(&self, offset: u64) -> impl Iterator<Item = &Component> {
        let has = move |component: &&Component| {
            (component.range.start()..component.range.end()).contains(&offset)
        };
        self.components.iter().filter(has)
    }

    /// Returns the component to read byte `offset` from.
    pub(super) fn readable(&self, offset: u64) -> Option<&Component> {
        let mut first = None;
        for component in self.covering(offset).filter(|component| component.is_current()) {
            if component.flags & flags::PREFERRED_READ != 0 {
                return Some(component);
            }
            first = first.or(Some(component));
        }
        first
    }
}

impl Component {
    /// Returns the location of byte `offset`, which is in this component.
    fn locate(&self, offset: u64) -> Lookup {
        let (component, length) = (self.id, self.range.end() - offset);
        if !self.is_instantiated() {
            return Lookup::Zeros { component, length };
        }
        let Some(stripes) = self.plain_stripes() else {
            return Lookup::Elsewhere { component, length };
        };
        let striping = stripes.striping().expect("the reader has counted the objects");
        let (index, at) = striping.locate(FileOffset::new(offset));
        let object = stripes.objects[usize::from(index.0)];
        Lookup::Object(LustrePlace {
            component,
            stripe: index.0,
            target: object.target,
            object: object.id,
            object_offset: at.get(),
            length: length.min(striping.stripe_size() - offset % striping.stripe_size()),
        })
    }
}
