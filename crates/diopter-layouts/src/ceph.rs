//! Layouts of `CephFS` files: the text of the attribute `ceph.file.layout`, and the mapping of file
//! offsets to objects (Ceph's src/osdc/Striper.cc; libradosstriper stripes files the same way).
//! Arithmetic only.

use diopter_core::units::size_text;

use crate::shape::{ForeignError, ForeignErrorKind, RequestShape};

/// The extended attribute that holds it.
pub const ATTRIBUTE: &str = "ceph.file.layout";

/// A `CephFS` layout: stripe units in turn over a set of objects, and a new set when all are full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CephLayout {
    stripe_unit: u64,
    stripe_count: u64,
    object_size: u64,
    pool: String,
    pool_namespace: Option<String>,
}

/// The location of a byte of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CephPlace {
    /// Number of the object.
    pub object: u64,
    /// Byte of the object.
    pub object_offset: u64,
    /// Bytes from here on that follow each other in the file and in the object.
    pub length: u64,
}

/// Parses the value of [`ATTRIBUTE`].
///
/// # Errors
/// Fails with [`ForeignError`] and the field that is wrong.
pub fn parse(value: &[u8]) -> Result<CephLayout, ForeignError> {
    let text = str::from_utf8(value)
        .map_err(|error| refusal(ForeignErrorKind::NotText, error.valid_up_to(), 0))?;
    let mut fields = Fields { text, at: 0 };
    let stripe_unit = fields.number("stripe_unit=")?;
    let stripe_count = fields.number(" stripe_count=")?;
    let object_size = fields.number(" object_size=")?;
    let (pool, pool_namespace) = fields.pool()?;
    let layout = CephLayout::new(stripe_unit, stripe_count, object_size)?;
    Ok(CephLayout { pool, pool_namespace, ..layout })
}

/// Returns the name of a `CephFS` file's object in its pool.
#[must_use]
pub fn object_name(inode: u64, object: u64) -> String {
    format!("{inode:x}.{object:08x}")
}

impl CephLayout {
    /// Returns a layout that names no pool, as of an object of libradosstriper.
    ///
    /// # Errors
    /// Fails with the number that is wrong.
    pub fn new(
        stripe_unit: u64,
        stripe_count: u64,
        object_size: u64,
    ) -> Result<CephLayout, ForeignError> {
        let refused = |kind, found| Err(refusal(kind, 0, found));
        if stripe_unit == 0 {
            return refused(ForeignErrorKind::StripeSize, stripe_unit);
        }
        if stripe_count == 0 {
            return refused(ForeignErrorKind::StripeCount, stripe_count);
        }
        if object_size == 0 || !object_size.is_multiple_of(stripe_unit) {
            return refused(ForeignErrorKind::ObjectSize, object_size);
        }
        let (pool, pool_namespace) = (String::new(), None);
        Ok(CephLayout { stripe_unit, stripe_count, object_size, pool, pool_namespace })
    }

    /// Returns the bytes of a stripe unit; never 0.
    #[must_use]
    pub fn stripe_unit(&self) -> u64 {
        self.stripe_unit
    }

    /// Returns the number of objects of a set; never 0.
    #[must_use]
    pub fn stripe_count(&self) -> u64 {
        self.stripe_count
    }

    /// Returns the bytes of a full object, a multiple of the stripe unit.
    #[must_use]
    pub fn object_size(&self) -> u64 {
        self.object_size
    }

    /// Returns the pool by name, or by number if its name is not known.
    #[must_use]
    pub fn pool(&self) -> &str {
        &self.pool
    }

    /// Returns the namespace within the pool, if it is not the default one.
    #[must_use]
    pub fn pool_namespace(&self) -> Option<&str> {
        self.pool_namespace.as_deref()
    }

    fn units_per_object(&self) -> u64 {
        self.object_size / self.stripe_unit
    }

    /// Returns the location of a byte of the file.
    #[must_use]
    pub fn locate(&self, offset: u64) -> CephPlace {
        let (block, in_block) = (offset / self.stripe_unit, offset % self.stripe_unit);
        let (stripe, position) = (block / self.stripe_count, block % self.stripe_count);
        let (set, row) = (stripe / self.units_per_object(), stripe % self.units_per_object());
        let object_offset = row * self.stripe_unit + in_block;
        // The units of one object follow each other in the file only if it is the only object.
        let length = match self.stripe_count {
            1 => self.object_size - object_offset,
            _ => self.stripe_unit - in_block,
        };
        CephPlace { object: set * self.stripe_count + position, object_offset, length }
    }

    /// Returns the byte of the file at a byte of an object; `None` past the object's end, or past
    /// 2^64.
    #[must_use]
    pub fn file_offset(&self, object: u64, object_offset: u64) -> Option<u64> {
        if object_offset >= self.object_size {
            return None;
        }
        let (set, position) = (object / self.stripe_count, object % self.stripe_count);
        let (row, in_unit) = (object_offset / self.stripe_unit, object_offset % self.stripe_unit);
        let stripe = set.checked_mul(self.units_per_object())?.checked_add(row)?;
        let block = stripe.checked_mul(self.stripe_count)?.checked_add(position)?;
        block.checked_mul(self.stripe_unit)?.checked_add(in_unit)
    }

    /// Returns one stripe unit of each object of a set.
    #[must_use]
    pub fn request_shape(&self) -> RequestShape {
        RequestShape {
            width: self.stripe_unit * self.stripe_count,
            stripe_size: self.stripe_unit,
            stripe_count: self.stripe_count,
        }
    }

    /// Returns the layout as a line of text.
    #[must_use]
    pub fn line(&self) -> String {
        let objects = if self.stripe_count == 1 { "object" } else { "objects" };
        let namespace = self.pool_namespace.as_deref();
        let namespace =
            namespace.map_or(String::new(), |name| format!(", namespace {}", name.escape_debug()));
        format!(
            "stripes of {} over {} {objects} of {}, pool {}{namespace}",
            size_text(self.stripe_unit),
            self.stripe_count,
            size_text(self.object_size),
            self.pool.escape_debug()
        )
    }
}

fn refusal(kind: ForeignErrorKind, at: usize, found: u64) -> ForeignError {
    ForeignError { attribute: ATTRIBUTE, kind, at, found }
}

/// The rest of the text.
struct Fields<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Fields<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or("")
    }

    /// Skips `label`, or fails.
    fn expect(&mut self, label: &str) -> Result<(), ForeignError> {
        if !self.rest().starts_with(label) {
            return Err(refusal(ForeignErrorKind::MissingField, self.at, 0));
        }
        self.at += label.len();
        Ok(())
    }

    /// Parses a decimal number of 32 bits after `label`.
    fn number(&mut self, label: &str) -> Result<u64, ForeignError> {
        self.expect(label)?;
        let rest = self.rest();
        let end = rest.find(|character: char| !character.is_ascii_digit()).unwrap_or(rest.len());
        let number = rest.get(..end).and_then(|digits| digits.parse::<u32>().ok());
        let number = number.ok_or_else(|| refusal(ForeignErrorKind::NotANumber, self.at, 0))?;
        self.at += end;
        Ok(u64::from(number))
    }

    /// Parses the pool and its namespace, to the end of the text. A pool's name may have blanks.
    fn pool(&mut self) -> Result<(String, Option<String>), ForeignError> {
        self.expect(" pool=")?;
        let rest = self.rest();
        let (pool, namespace) = match rest.split_once(" pool_namespace=") {
            Some((pool, namespace)) => (pool, Some(namespace.to_owned())),
            None => (rest, None),
        };
        if pool.is_empty() {
            return Err(refusal(ForeignErrorKind::MissingField, self.at, 0));
        }
        Ok((pool.to_owned(), namespace))
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use diopter_core::prng::Prng;

    use super::*;
    use crate::mutation;

    fn layout(unit: u64, count: u64, size: u64) -> CephLayout {
        let text = format!("stripe_unit={unit} stripe_count={count} object_size={size} pool=data");
        parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn the_text_of_the_attribute_is_read() {
        let text = "stripe_unit=4194304 stripe_count=1 object_size=4194304 pool=cephfs_data";
        let read = parse(text.as_bytes()).unwrap();
        assert_eq!((read.stripe_unit(), read.stripe_count(), read.object_size()), {
            (4 << 20, 1, 4 << 20)
        });
        assert_eq!((read.pool(), read.pool_namespace()), ("cephfs_data", None));
        let read = parse(format!("{text} pool_namespace=mine").as_bytes()).unwrap();
        assert_eq!((read.pool(), read.pool_namespace()), ("cephfs_data", Some("mine")));
        assert!(read.line().contains("over 1 object of 4 MiB"), "{}", read.line());
    }

    #[test]
    fn a_byte_lies_where_ceph_puts_it() {
        let layouts = [
            layout(64 << 10, 3, 256 << 10),
            layout(4 << 20, 1, 4 << 20),
            layout(1 << 20, 4, 4 << 20),
        ];
        let table = [
            (0, [(0, 0), (0, 0), (0, 0)]),
            (65535, [(0, 65535), (0, 65535), (0, 65535)]),
            (65536, [(1, 0), (0, 65536), (0, 65536)]),
            (131_072, [(2, 0), (0, 131_072), (0, 131_072)]),
            (196_608, [(0, 65536), (0, 196_608), (0, 196_608)]),
            (786_431, [(2, 262_143), (0, 786_431), (0, 786_431)]),
            (786_432, [(3, 0), (0, 786_432), (0, 786_432)]),
            (851_968, [(4, 0), (0, 851_968), (0, 851_968)]),
            (5_000_000, [(19, 84800), (1, 805_696), (0, 1_854_272)]),
        ];
        for (offset, places) in table {
            for (layout, (object, object_offset)) in layouts.iter().zip(places) {
                let place = layout.locate(offset);
                assert_eq!((place.object, place.object_offset), (object, object_offset));
                assert_eq!(layout.file_offset(object, object_offset), Some(offset));
            }
        }
    }

    #[test]
    fn bytes_follow_each_other_to_the_end_of_the_unit_or_of_a_lone_object() {
        assert_eq!(layout(65536, 3, 262_144).locate(65_000).length, 536);
        assert_eq!(layout(65536, 1, 262_144).locate(65_000).length, 262_144 - 65_000);
    }

    #[test]
    fn every_byte_is_found_again_and_its_neighbours_lie_beside_it() {
        let mut prng = Prng::new(4);
        for _ in 0..20_000 {
            let unit = 1 + prng.below(1 << 20);
            let layout = layout(unit, 1 + prng.below(9), unit * (1 + prng.below(7)));
            let offset = prng.below(1 << 50);
            let place = layout.locate(offset);
            assert_eq!(layout.file_offset(place.object, place.object_offset), Some(offset));
            let last = layout.locate(offset + place.length - 1);
            assert_eq!(last.object, place.object);
            assert_eq!(last.object_offset, place.object_offset + place.length - 1);
            let next = layout.locate(offset + place.length);
            assert!(next.object != place.object, "{layout:?} {offset} could be longer");
        }
    }

    #[test]
    fn the_largest_offset_and_object_are_located() {
        let layout = layout(1, u64::from(u32::MAX), u64::from(u32::MAX));
        assert_eq!(layout.locate(u64::MAX).length, 1);
        assert_eq!(layout.file_offset(u64::MAX, 0), None);
        assert_eq!(layout.file_offset(0, u64::from(u32::MAX)), None);
    }

    #[test]
    fn what_is_no_layout_is_refused_with_its_kind() {
        use ForeignErrorKind::{
            MissingField, NotANumber, NotText, ObjectSize, StripeCount, StripeSize,
        };
        for (text, kind) in [
            ("", MissingField),
            ("stripe_unit=1 stripe_count=1 object_size=1", MissingField),
            ("stripe_unit=1 stripe_count=1 object_size=1 pool=", MissingField),
            ("stripe_count=1 stripe_unit=1 object_size=1 pool=a", MissingField),
            ("stripe_unit=1  stripe_count=1 object_size=1 pool=a", MissingField),
            ("stripe_unit= stripe_count=1 object_size=1 pool=a", NotANumber),
            ("stripe_unit=+1 stripe_count=1 object_size=1 pool=a", NotANumber),
            ("stripe_unit=4294967296 stripe_count=1 object_size=1 pool=a", NotANumber),
            ("stripe_unit=0 stripe_count=1 object_size=1 pool=a", StripeSize),
            ("stripe_unit=1 stripe_count=0 object_size=1 pool=a", StripeCount),
            ("stripe_unit=1 stripe_count=1 object_size=0 pool=a", ObjectSize),
            ("stripe_unit=2 stripe_count=1 object_size=3 pool=a", ObjectSize),
            ("stripe_unit=2 stripe_count=1 object_size=1 pool=a", ObjectSize),
        ] {
            assert_eq!(parse(text.as_bytes()).unwrap_err().kind, kind, "{text:?}");
        }
        assert_eq!(parse(b"stripe_unit=\xff").unwrap_err().kind, NotText);
    }

    #[test]
    fn objects_are_named_in_hex_with_eight_digits_at_least() {
        assert_eq!(object_name(0x100_0000_0ABC, 26), "10000000abc.0000001a");
    }

    #[test]
    fn a_million_broken_layouts_are_refused_or_sound() {
        let good = "stripe_unit=65536 stripe_count=3 object_size=262144 pool=data";
        let long = format!("{good} pool_namespace=mine");
        let digits = "stripe_unit=4294967295 stripe_count=1 object_size=4294967295 pool=7";
        let seeds: Vec<Vec<u8>> =
            [good, &long, digits].map(|text| text.as_bytes().to_vec()).to_vec();
        let (mut read, mut refused) = (0u32, 0u32);
        mutation::run("ceph", &seeds, 1_000_000, |value, prng| {
            let Ok(layout) = parse(value) else {
                refused += 1;
                return;
            };
            read += 1;
            assert!(layout.object_size().is_multiple_of(layout.stripe_unit()));
            for offset in [0, u64::MAX, prng.next_u64()] {
                let place = layout.locate(offset);
                assert!(place.length > 0 && place.object_offset < layout.object_size());
                let back = layout.file_offset(place.object, place.object_offset);
                assert_eq!(back, Some(offset));
            }
            assert!(layout.request_shape().width > 0 && !layout.line().is_empty());
        });
        assert!(read > 10_000 && refused > 50_000, "{read} read, {refused} refused");
    }
}
