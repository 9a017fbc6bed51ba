//! Bytes inside the inode: in the place of the block map first, then in an extended attribute.

use super::features::{flag, incompat};
use super::field::{u16_at, u32_at};
use super::inode::{Inode, MAP_BYTES};
use super::{Ext, corrupt};
use diopter_core::units::{to_u64, to_usize};

use crate::image::ImageError;

/// The mark at the start of attributes.
const MAGIC: u32 = 0xEA02_0000;
/// Bytes of an attribute's entry without its name.
const ENTRY_BYTES: usize = 16;
/// The namespace `system.`, which attributes have as a number.
const NAMESPACE_SYSTEM: u8 = 7;
const NAME: &[u8] = b"data";

/// The bytes in the map's place, and the attribute's value.
type Parts<'a> = (&'a [u8], &'a [u8]);

impl Ext {
    /// Returns all inline bytes of an inode, including those that the file does not use any more;
    /// `None` for an inode with blocks.
    pub(super) fn inline_parts<'a>(
        &self,
        inode: &'a Inode,
    ) -> Result<Option<Parts<'a>>, ImageError> {
        if !inode.has(flag::INLINE_DATA) {
            return Ok(None);
        }
        let wrong = |what: &str| corrupt(what).on_inode(inode.number.into());
        if !self.superblock.features.has_incompat(incompat::INLINE_DATA) {
            return Err(wrong("inline data on a volume without the feature"));
        }
        let value = attribute(inode.attributes()).map_err(wrong)?;
        Ok(Some((inode.map(), value.unwrap_or_default())))
    }

    /// Returns the bytes of a file that has them in its inode.
    pub(super) fn inline_bytes(&self, inode: &Inode) -> Result<Option<Vec<u8>>, ImageError> {
        let Some((first, second)) = self.inline_parts(inode)? else { return Ok(None) };
        let size = self.size(inode)?;
        if size > to_u64(first.len() + second.len()) {
            let what = format!("{size} inline bytes, and room for {}", first.len() + second.len());
            return Err(corrupt(what).on_inode(inode.number.into()));
        }
        let mut bytes = [first, second].concat();
        bytes.truncate(to_usize(size));
        Ok(Some(bytes))
    }
}

/// Returns the value of the attribute with inline data among those in an inode.
fn attribute(raw: &[u8]) -> Result<Option<&[u8]>, &'static str> {
    if raw.len() < 4 || u32_at(raw, 0) != MAGIC {
        return Ok(None);
    }
    // Offsets of values start at the first entry.
    let raw = &raw[4..];
    let mut at = 0;
    // Four zeros end the list; each entry takes some of a bounded place.
    while raw.get(at..at + 4).ok_or("attributes without an end")? != [0; 4] {
        let entry = raw.get(at..at + ENTRY_BYTES).ok_or("an attribute cut off")?;
        let name_end = at + ENTRY_BYTES + usize::from(entry[0]);
        let name = raw.get(at + ENTRY_BYTES..name_end).ok_or("an attribute's name cut off")?;
        if entry[1] == NAMESPACE_SYSTEM && name == NAME {
            let start = usize::from(u16_at(entry, 2));
            let size = to_usize(u32_at(entry, 8).into());
            let value = start.checked_add(size).and_then(|end| raw.get(start..end));
            let is_elsewhere = u32_at(entry, 4) != 0;
            return match value {
                Some(value) if !is_elsewhere => Ok(Some(value)),
                _ => Err("inline data outside its inode"),
            };
        }
        at = name_end.next_multiple_of(4);
    }
    Ok(None)
}

const _: () = assert!(MAP_BYTES == 60);
