//! The kernel's type information: the offsets of the fields of its structures, and the numbers of
//! its types. Read at run time, since both differ from build to build.

use std::collections::HashMap;
use std::fs;

use crate::error::TraceError;

const PATH: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
const KIND_INT: u32 = 1;
const KIND_ARRAY: u32 = 3;
const KIND_STRUCT: u32 = 4;
const KIND_UNION: u32 = 5;
const KIND_ENUM: u32 = 6;
const KIND_POINTER: u32 = 2;
const KIND_TYPEDEF: u32 = 8;
const KIND_FUNCTION: u32 = 12;
const KIND_PROTOTYPE: u32 = 13;
const KIND_VARIABLE: u32 = 14;
const KIND_SECTION: u32 = 15;
const KIND_TAG: u32 = 17;
const KIND_ENUM_WIDE: u32 = 19;
/// The greatest depth of nested structures without a name.
const DEPTH_MAX: usize = 8;

/// The types of the kernel.
#[derive(Debug)]
pub struct Btf {
    bytes: Vec<u8>,
    strings: usize,
    /// Where each type's record begins; type 0 is `void` and has none.
    types: Vec<usize>,
    typedefs: HashMap<String, u32>,
    structures: HashMap<String, u32>,
    functions: HashMap<String, u32>,
}

impl Btf {
    /// Reads that of the running kernel; `None` if it has none.
    #[must_use]
    pub fn of_kernel() -> Option<Btf> {
        Btf::parse(fs::read(PATH).ok()?).ok()
    }

    /// From the bytes of the kernel's file.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] when a part reaches past the end or has an unknown kind.
    pub fn parse(bytes: Vec<u8>) -> Result<Btf, TraceError> {
        let malformed = || TraceError::Malformed("the kernel's type information".to_owned());
        let magic = bytes.get(..2).map(|magic| u16::from_ne_bytes([magic[0], magic[1]]));
        if magic != Some(MAGIC) {
            return Err(malformed());
        }
        let part = |at: usize| index(word(&bytes, at)?);
        let header = part(4).ok_or_else(malformed)?;
        let start = header + part(8).ok_or_else(malformed)?;
        let end = start + part(12).ok_or_else(malformed)?;
        let strings = header + part(16).ok_or_else(malformed)?;
        let mut btf = Btf {
            bytes: Vec::new(),
            strings,
            types: vec![0],
            typedefs: HashMap::new(),
            structures: HashMap::new(),
            functions: HashMap::new(),
        };
        btf.bytes = bytes;
        let mut at = start;
        while at < end {
            btf.types.push(at);
            btf.note(at).ok_or_else(malformed)?;
            at += 12 + btf.tail_of(at).ok_or_else(malformed)?;
        }
        Ok(btf)
    }

    /// The number of a named type.
    #[must_use]
    pub fn typedef(&self, name: &str) -> Option<u32> {
        self.typedefs.get(name).copied()
    }

    /// The number of parameters of a function, or of the functions that a named type points to.
    #[must_use]
    pub fn parameters(&self, name: &str) -> Option<usize> {
        let mut number = self.functions.get(name).copied().or_else(|| self.typedef(name))?;
        for _ in 0..DEPTH_MAX {
            let at = *self.types.get(index(number)?)?;
            match self.kind(at)? {
                KIND_PROTOTYPE => return index(word(&self.bytes, at + 4)? & 0xffff),
                KIND_TYPEDEF | KIND_POINTER | KIND_FUNCTION => number = word(&self.bytes, at + 8)?,
                _ => return None,
            }
        }
        None
    }

    /// The first byte of a field in a structure, nameless structures inside it looked through.
    #[must_use]
    pub fn field(&self, structure: &str, field: &str) -> Option<i16> {
        let mut level = vec![(*self.structures.get(structure)?, 0)];
        for _ in 0..DEPTH_MAX {
            let mut below = Vec::new();
            for (number, base) in level {
                for (name, kind, bits) in self.members(number)? {
                    if name == field {
                        return i16::try_from((base + bits) / 8).ok();
                    }
                    if name.is_empty() && self.is_structure(kind) {
                        below.push((kind, base + bits));
                    }
                }
            }
            level = below;
        }
        None
    }

    /// The value of a name of an enumeration, of those with values of 32 bits.
    #[must_use]
    pub fn value(&self, name: &str) -> Option<u32> {
        let enumerations = self.types.iter().filter(|at| self.kind(**at) == Some(KIND_ENUM));
        enumerations.flat_map(|at| self.values(*at)).find(|(found, _)| *found == name)?.1
    }

    /// The names of an enumeration, and their values.
    fn values(&self, at: usize) -> impl Iterator<Item = (&str, Option<u32>)> {
        let count = word(&self.bytes, at + 4).and_then(|info| index(info & 0xffff));
        let places = (0..count.unwrap_or_default()).map(move |value| at + 12 + value * 8);
        places.filter_map(|at| {
            Some((name(&self.bytes, self.strings, at)?, word(&self.bytes, at + 4)))
        })
    }

    /// Keeps the name of what programs are made with.
    fn note(&mut self, at: usize) -> Option<()> {
        let kind = self.kind(at)?;
        let names = match kind {
            KIND_TYPEDEF => &mut self.typedefs,
            KIND_STRUCT => &mut self.structures,
            KIND_FUNCTION => &mut self.functions,
            _ => return Some(()),
        };
        let number = u32::try_from(self.types.len() - 1).ok()?;
        let name = name(&self.bytes, self.strings, at)?;
        names.entry(name.to_owned()).or_insert(number);
        Some(())
    }

    fn kind(&self, at: usize) -> Option<u32> {
        Some(word(&self.bytes, at + 4)? >> 24 & 0x1f)
    }

    /// Bytes behind a type's first twelve.
    fn tail_of(&self, at: usize) -> Option<usize> {
        let count = index(word(&self.bytes, at + 4)? & 0xffff)?;
        Some(match self.kind(at)? {
            KIND_INT | KIND_VARIABLE | KIND_TAG => 4,
            KIND_ARRAY => 12,
            KIND_STRUCT | KIND_UNION | KIND_SECTION | KIND_ENUM_WIDE => count * 12,
            KIND_ENUM | KIND_PROTOTYPE => count * 8,
            0 | 20.. => return None,
            _ => 0,
        })
    }

    fn is_structure(&self, number: u32) -> bool {
        let at = index(number).and_then(|number| self.types.get(number));
        at.and_then(|at| self.kind(*at))
            .is_some_and(|kind| matches!(kind, KIND_STRUCT | KIND_UNION))
    }

    /// The members of a structure: name, type, and bits from its start.
    fn members(&self, number: u32) -> Option<Vec<(&str, u32, u32)>> {
        let at = *self.types.get(index(number)?)?;
        let info = word(&self.bytes, at + 4)?;
        // With this flag, the upper byte is the width of a field of bits.
        let mask = if info >> 31 == 0 { u32::MAX } else { 0xff_ffff };
        let count = index(info & 0xffff)?;
        let member = |position: usize| {
            let at = at + 12 + position * 12;
            let name = name(&self.bytes, self.strings, at)?;
            Some((name, word(&self.bytes, at + 4)?, word(&self.bytes, at + 8)? & mask))
        };
        (0..count).map(member).collect()
    }
}

/// Returns the name at the offset that the word at `at` holds.
fn name(bytes: &[u8], strings: usize, at: usize) -> Option<&str> {
    let start = strings + index(word(bytes, at)?)?;
    let rest = bytes.get(start..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    std::str::from_utf8(&rest[..end]).ok()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn index(word: u32) -> Option<usize> {
    usize::try_from(word).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An enumeration of two names behind a type of twelve bytes and no tail.
    fn enumeration() -> Vec<u8> {
        let strings = b"\0__REQ_META\0__REQ_FUA\0";
        let types = [1, KIND_POINTER << 24, 0, 0, KIND_ENUM << 24 | 2, 4, 1, 12, 12, 17_u32];
        let length = |bytes: usize| u32::try_from(bytes).unwrap();
        let header =
            [24, 0, length(types.len() * 4), length(types.len() * 4), length(strings.len())];
        let mut bytes = [&MAGIC.to_ne_bytes()[..], &[1, 0]].concat();
        bytes.extend(header.iter().chain(&types).flat_map(|word: &u32| word.to_ne_bytes()));
        bytes.extend_from_slice(strings);
        bytes
    }

    #[test]
    fn a_name_of_an_enumeration_has_its_value() {
        let btf = Btf::parse(enumeration()).unwrap();
        assert_eq!(btf.value("__REQ_META"), Some(12));
        assert_eq!(btf.value("__REQ_FUA"), Some(17));
        assert_eq!(btf.value("__REQ_SYNC"), None);
    }

    #[test]
    fn types_that_are_cut_short_are_an_error() {
        let bytes = enumeration();
        let types = 24;
        for length in [0, 10, 23, types + 6, types + 14] {
            assert!(Btf::parse(bytes[..length].to_vec()).is_err(), "{length}");
        }
    }
}
