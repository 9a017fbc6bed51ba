//! Parses the bytes of the attribute. Every access is checked, every count bounded; `foreign` has
//! the messages.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    ATTRIBUTE, COMPONENTS_MAX, Component, Content, LustreLayout, Object, ObjectId, Stripes, flags,
    pattern,
};
use diopter_core::limits::OBJECTS_MAX;
use diopter_core::units::{FileRange, to_u64};

use crate::shape::{ForeignError, ForeignErrorKind};

const MAGIC_V1: u32 = 0x0BD1_0BD0;
const MAGIC_V3: u32 = 0x0BD3_0BD0;
/// Like version 3, for a layout whose user chose the targets.
const MAGIC_SPECIFIC: u32 = 0x0BD5_0BD0;
const MAGIC_COMPOSITE: u32 = 0x0BD6_0BD0;
const MAGIC_FOREIGN: u32 = 0x0BD7_0BD0;
/// A bit of the magic: the layout is chosen, and its objects do not exist yet.
const MAGIC_DEFINED: u32 = 0x1000_0000;

/// Bytes before the objects of version 1, and before the pool of the others.
const STRIPES_HEADER_BYTES: usize = 32;
const POOL_BYTES: usize = 16;
const OBJECT_BYTES: usize = 24;
const COMPOSITE_HEADER_BYTES: usize = 32;
const ENTRY_BYTES: usize = 48;
const FOREIGN_HEADER_BYTES: usize = 16;

const STRIPE_UNIT: u64 = 64 << 10;
/// Stripe counts from here on are symbolic: as many as there are targets, or similar.
const WIDE_MIN: u16 = 0xFFE0;
/// Identifiers that wrap an object's number (IDIF).
const WRAPPED_SEQUENCES: std::ops::RangeInclusive<u64> = 0x1_0000_0000..=0x1_FFFF_FFFF;
/// State of the mirrors in a composite's flags.
const MIRROR_STATE_MASK: u16 = 0x0B;

/// Parses the value of `lustre.lov`, in either byte order.
///
/// # Errors
/// Fails with [`ForeignError`] and the first byte that is invalid.
pub fn parse(value: &[u8]) -> Result<LustreLayout, ForeignError> {
    let reader = Reader::of(value)?;
    let magic = reader.u32(0)?;
    if magic & !MAGIC_DEFINED == MAGIC_COMPOSITE {
        return composite(&reader);
    }
    let flags = if magic & MAGIC_DEFINED == 0 { flags::INIT } else { 0 };
    let content = content(&reader, flags)?;
    let range = FileRange::new(0, u64::MAX);
    let components = vec![Component { id: 0, flags, range, content }];
    Ok(LustreLayout { generation: None, mirror_state: 0, components })
}

/// A value, or the part of it that is one component's, in one byte order.
struct Reader<'a> {
    bytes: &'a [u8],
    /// Offset of the part in the value.
    base: usize,
    is_swapped: bool,
}

impl<'a> Reader<'a> {
    /// Detects the byte order: the one in which the magic is known.
    fn of(value: &'a [u8]) -> Result<Reader<'a>, ForeignError> {
        let host = Reader { bytes: value, base: 0, is_swapped: false };
        let magic = host.u32(0)?;
        let is_known = |magic: u32| {
            let known = [MAGIC_V1, MAGIC_V3, MAGIC_SPECIFIC, MAGIC_COMPOSITE, MAGIC_FOREIGN];
            known.contains(&(magic & !MAGIC_DEFINED))
        };
        match (is_known(magic), is_known(magic.swap_bytes())) {
            (true, _) => Ok(host),
            (false, true) => Ok(Reader { is_swapped: true, ..host }),
            (false, false) => Err(host.refused(ForeignErrorKind::UnknownMagic, 0, magic.into())),
        }
    }

    fn array<const N: usize>(&self, at: usize) -> Result<[u8; N], ForeignError> {
        let found = self.bytes.get(at..).and_then(<[u8]>::first_chunk);
        let length = to_u64(self.bytes.len());
        found.copied().ok_or_else(|| self.refused(ForeignErrorKind::Truncated, at, length))
    }

    fn u16(&self, at: usize) -> Result<u16, ForeignError> {
        let number = u16::from_ne_bytes(self.array(at)?);
        Ok(if self.is_swapped { number.swap_bytes() } else { number })
    }

    fn u32(&self, at: usize) -> Result<u32, ForeignError> {
        let number = u32::from_ne_bytes(self.array(at)?);
        Ok(if self.is_swapped { number.swap_bytes() } else { number })
    }

    fn u64(&self, at: usize) -> Result<u64, ForeignError> {
        let number = u64::from_ne_bytes(self.array(at)?);
        Ok(if self.is_swapped { number.swap_bytes() } else { number })
    }

    fn refused(&self, kind: ForeignErrorKind, at: usize, found: u64) -> ForeignError {
        ForeignError { attribute: ATTRIBUTE, kind, at: self.base + at, found }
    }
}

fn composite(reader: &Reader<'_>) -> Result<LustreLayout, ForeignError> {
    reader.array::<COMPOSITE_HEADER_BYTES>(0)?;
    let total = reader.u32(4)?;
    if u64::from(total) != to_u64(reader.bytes.len()) {
        return Err(reader.refused(ForeignErrorKind::TotalSize, 4, total.into()));
    }
    let generation = Some(reader.u32(8)?);
    let mirror_state = reader.u16(12)? & MIRROR_STATE_MASK;
    let count = reader.u16(14)?;
    if count == 0 || usize::from(count) > COMPONENTS_MAX {
        return Err(reader.refused(ForeignErrorKind::ComponentCount, 14, count.into()));
    }
    let blobs_from = COMPOSITE_HEADER_BYTES + usize::from(count) * ENTRY_BYTES;
    // No blob may serve two components, so that the layout is no larger than the value.
    let mut room = reader.bytes.len().saturating_sub(blobs_from);
    let mut seen = Seen::default();
    let mut components = Vec::with_capacity(usize::from(count));
    for entry in 0..usize::from(count) {
        let at = COMPOSITE_HEADER_BYTES + entry * ENTRY_BYTES;
        reader.array::<ENTRY_BYTES>(at)?;
        let component = component(reader, at, (blobs_from, &mut room))?;
        seen.add(reader, at, &component)?;
        components.push(component);
    }
    Ok(LustreLayout { generation, mirror_state, components })
}

fn component(
    reader: &Reader<'_>,
    at: usize,
    (blobs_from, room): (usize, &mut usize),
) -> Result<Component, ForeignError> {
    let (id, flags) = (reader.u32(at)?, reader.u32(at + 4)?);
    if flags & flags::NEGATED != 0 {
        return Err(reader.refused(ForeignErrorKind::ComponentFlags, at + 4, flags.into()));
    }
    let (start, end) = (reader.u64(at + 8)?, reader.u64(at + 16)?);
    if end <= start {
        return Err(reader.refused(ForeignErrorKind::ComponentEnd, at + 16, end));
    }
    let (offset, size) = (reader.u32(at + 24)?, reader.u32(at + 28)?);
    let outside = || reader.refused(ForeignErrorKind::BlobRange, at + 24, offset.into());
    let base = usize::try_from(offset).ok().filter(|base| *base >= blobs_from);
    let base = base.ok_or_else(outside)?;
    let size = usize::try_from(size).ok().filter(|size| *size <= *room).ok_or_else(outside)?;
    let bytes = base.checked_add(size).and_then(|end| reader.bytes.get(base..end));
    *room -= size;
    let blob = Reader { bytes: bytes.ok_or_else(outside)?, base, is_swapped: reader.is_swapped };
    let content = content(&blob, flags)?;
    Ok(Component { id, flags, range: FileRange::new(start, end), content })
}

/// State of the components so far.
#[derive(Default)]
struct Seen {
    ids: BTreeSet<u32>,
    /// The next start in each mirror.
    ends: BTreeMap<u16, u64>,
}

impl Seen {
    fn add(
        &mut self,
        reader: &Reader<'_>,
        at: usize,
        component: &Component,
    ) -> Result<(), ForeignError> {
        let id = component.id;
        if id == 0 || !self.ids.insert(id) {
            return Err(reader.refused(ForeignErrorKind::ComponentId, at, id.into()));
        }
        let end = self.ends.entry(component.mirror()).or_insert(0);
        if component.range.start() != *end {
            let start = component.range.start();
            return Err(reader.refused(ForeignErrorKind::NotTiled, at + 8, start));
        }
        *end = component.range.end();
        Ok(())
    }
}

/// Parses one layout that is not a composite.
fn content(reader: &Reader<'_>, flags: u32) -> Result<Content, ForeignError> {
    let magic = reader.u32(0)?;
    match magic & !MAGIC_DEFINED {
        MAGIC_V1 => stripes(reader, flags, false).map(Content::Striped),
        MAGIC_V3 | MAGIC_SPECIFIC => stripes(reader, flags, true).map(Content::Striped),
        MAGIC_FOREIGN => foreign(reader),
        MAGIC_COMPOSITE => Err(reader.refused(ForeignErrorKind::NestedComposite, 0, magic.into())),
        _ => Err(reader.refused(ForeignErrorKind::UnknownMagic, 0, magic.into())),
    }
}

fn foreign(reader: &Reader<'_>) -> Result<Content, ForeignError> {
    reader.array::<FOREIGN_HEADER_BYTES>(0)?;
    let length = u64::from(reader.u32(4)?);
    if to_u64(reader.bytes.len() - FOREIGN_HEADER_BYTES) < length {
        return Err(reader.refused(ForeignErrorKind::Truncated, 4, length));
    }
    Ok(Content::Foreign { kind: reader.u32(8)?, flags: reader.u32(12)? })
}

fn stripes(reader: &Reader<'_>, flags: u32, has_pool: bool) -> Result<Stripes, ForeignError> {
    reader.array::<STRIPES_HEADER_BYTES>(0)?;
    let pattern = reader.u32(4)?;
    if pattern & pattern::RELEASED != 0 {
        return Err(reader.refused(ForeignErrorKind::Released, 4, pattern.into()));
    }
    let size = u64::from(reader.u32(24)?);
    // An extension holds its step, in KiB.
    let size = if flags & flags::EXTENSION == 0 { size } else { size * 1024 };
    if size == 0 || !size.is_multiple_of(STRIPE_UNIT) {
        return Err(reader.refused(ForeignErrorKind::StripeSize, 24, size));
    }
    let has_objects = flags & flags::INIT != 0 && pattern & pattern::METADATA == 0;
    let count = stripe_count(reader, has_objects)?;
    let mut at = STRIPES_HEADER_BYTES;
    let mut pool = None;
    if has_pool {
        pool = pool_name(&reader.array::<POOL_BYTES>(at)?);
        at += POOL_BYTES;
    }
    let expected = if has_objects { usize::from(count.unwrap_or(0)) } else { 0 };
    let objects = objects(reader, at, expected)?;
    Ok(Stripes { pattern, stripe_size: size, stripe_count: count, pool, objects })
}

/// Parses the number of stripes. Before there are objects the file system may choose it: a default
/// (0), or "all".
fn stripe_count(reader: &Reader<'_>, has_objects: bool) -> Result<Option<u16>, ForeignError> {
    let count = reader.u16(28)?;
    match count {
        0 if !has_objects => Ok(None),
        WIDE_MIN.. if !has_objects => Ok(None),
        1..=OBJECTS_MAX => Ok(Some(count)),
        _ => Err(reader.refused(ForeignErrorKind::StripeCount, 28, count.into())),
    }
}

fn pool_name(padded: &[u8; POOL_BYTES]) -> Option<String> {
    let length = padded.iter().position(|byte| *byte == 0).unwrap_or(POOL_BYTES);
    let name = padded.get(..length).unwrap_or_default();
    (!name.is_empty()).then(|| String::from_utf8_lossy(name).into_owned())
}

/// Parses the objects from byte `from` to the end, as many as expected.
fn objects(reader: &Reader<'_>, from: usize, expected: usize) -> Result<Vec<Object>, ForeignError> {
    let bytes = reader.bytes.len().saturating_sub(from);
    let length = to_u64(reader.bytes.len());
    if !bytes.is_multiple_of(OBJECT_BYTES) {
        return Err(reader.refused(ForeignErrorKind::Truncated, from, length));
    }
    if bytes / OBJECT_BYTES != expected {
        let found = to_u64(bytes / OBJECT_BYTES);
        return Err(reader.refused(ForeignErrorKind::ObjectCount, 28, found));
    }
    (0..expected).map(|number| object(reader, from + number * OBJECT_BYTES)).collect()
}

fn object(reader: &Reader<'_>, at: usize) -> Result<Object, ForeignError> {
    let (generation, target) = (reader.u32(at + 16)?, reader.u32(at + 20)?);
    Ok(Object { target, generation, id: object_id(reader, at)? })
}

/// Parses one of two forms of the same 16 bytes: with a second half of zero the first is a number
/// of 48 bits, else together they are an identifier.
fn object_id(reader: &Reader<'_>, at: usize) -> Result<ObjectId, ForeignError> {
    let first = reader.u64(at)?;
    if reader.u64(at + 8)? == 0 {
        return Ok(ObjectId::Number(first & 0xFFFF_FFFF_FFFF));
    }
    let (number, version) = (reader.u32(at + 8)?, reader.u32(at + 12)?);
    if !WRAPPED_SEQUENCES.contains(&first) {
        return Ok(ObjectId::Fid { sequence: first, number, version });
    }
    let target = u16::try_from(first >> 16 & 0xFFFF).expect("16 bits");
    let high = (u64::from(version) << 48) | ((first & 0xFFFF) << 32);
    Ok(ObjectId::Wrapped { target, number: high | u64::from(number) })
}
