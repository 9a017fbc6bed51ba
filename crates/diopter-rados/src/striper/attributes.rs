//! The attributes of a striped object, which its first object has. They are untrusted input.

use diopter_layouts::ceph::CephLayout;

use crate::error::{Error, ErrorKind, shown};

pub const STRIPE_UNIT: &str = "striper.layout.stripe_unit";
pub const STRIPE_COUNT: &str = "striper.layout.stripe_count";
pub const OBJECT_SIZE: &str = "striper.layout.object_size";
pub const SIZE: &str = "striper.size";

/// Stripe units and objects are multiples of it: libradosstriper makes no others.
pub const GRANULE: u64 = 64 << 10;

/// The largest number of a layout: libradosstriper reads an `int`.
const NUMBER_MAX: u64 = i32::MAX.unsigned_abs() as u64;

/// The largest size: libradosstriper reads a `long long`.
pub const SIZE_MAX: u64 = i64::MAX.unsigned_abs();

/// Digits of [`SIZE_MAX`].
const DIGITS_MAX: usize = 19;

/// The layout of a striped object: stripe units in turn over a set of objects, and a new set when
/// all are full.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    pub(super) map: CephLayout,
}

impl Layout {
    /// Returns a layout.
    ///
    /// # Errors
    /// Fails if the stripe unit is not a multiple of 64 KiB, the object size not a multiple of the
    /// stripe unit, or a number 0 or past 2^31 - 1.
    pub fn new(stripe_unit: u64, stripe_count: u64, object_size: u64) -> Result<Layout, Error> {
        let numbers =
            [(STRIPE_UNIT, stripe_unit), (STRIPE_COUNT, stripe_count), (OBJECT_SIZE, object_size)];
        let refused =
            |name, number, why: &str| Err(Error::invalid(format!("{name} is {number}, and {why}")));
        for (name, number) in numbers {
            if !(1..=NUMBER_MAX).contains(&number) {
                return refused(name, number, "not from 1 to 2^31 - 1");
            }
        }
        if !stripe_unit.is_multiple_of(GRANULE) {
            return refused(STRIPE_UNIT, stripe_unit, "not a multiple of 64 KiB");
        }
        match CephLayout::new(stripe_unit, stripe_count, object_size) {
            Ok(map) => Ok(Layout { map }),
            Err(_) => refused(OBJECT_SIZE, object_size, "not a multiple of the stripe unit"),
        }
    }

    /// Returns the bytes of a stripe unit.
    #[must_use]
    pub fn stripe_unit(&self) -> u64 {
        self.map.stripe_unit()
    }

    /// Returns the number of objects of a set.
    #[must_use]
    pub fn stripe_count(&self) -> u64 {
        self.map.stripe_count()
    }

    /// Returns the bytes of a full object.
    #[must_use]
    pub fn object_size(&self) -> u64 {
        self.map.object_size()
    }

    /// Returns the bytes of a set of full objects.
    pub(super) fn set_bytes(&self) -> u64 {
        // Both have 31 bits.
        self.object_size() * self.stripe_count()
    }

    /// Returns the number of objects that have bytes of a file of this size without holes; at least
    /// one, which has the attributes.
    #[must_use]
    pub fn objects(&self, size: u64) -> u64 {
        let (sets, rest) = (size / self.set_bytes(), size % self.set_bytes());
        let in_last = rest.div_ceil(self.stripe_unit()).min(self.stripe_count());
        (sets * self.stripe_count() + in_last).max(1)
    }

    /// Returns the bytes that an object has of a file of this size without holes.
    #[must_use]
    pub fn object_bytes(&self, object: u64, size: u64) -> u64 {
        let (count, unit) = (self.stripe_count(), self.stripe_unit());
        let (set, position) = (object / count, object % count);
        let before = set.saturating_mul(self.set_bytes());
        let in_set = size.saturating_sub(before).min(self.set_bytes());
        let (rows, rest) = (in_set / (unit * count), in_set % (unit * count));
        rows * unit + rest.saturating_sub(position * unit).min(unit)
    }

    /// Returns the attributes that describe the layout, as text.
    pub(super) fn attributes(&self) -> [(&'static str, String); 3] {
        [
            (OBJECT_SIZE, self.object_size().to_string()),
            (STRIPE_UNIT, self.stripe_unit().to_string()),
            (STRIPE_COUNT, self.stripe_count().to_string()),
        ]
    }
}

/// The layout of `rados --striper`: objects of 4 MiB, one after the other.
impl Default for Layout {
    fn default() -> Layout {
        Layout::new(4 << 20, 1, 4 << 20).expect("a valid layout")
    }
}

/// The attributes of a striped object, as they are read.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    stripe_unit: Option<Value>,
    stripe_count: Option<Value>,
    object_size: Option<Value>,
    size: Option<Value>,
}

/// The text of a number; `Err` has the start of what is not one.
type Value = Result<u64, String>;

impl Attributes {
    /// Takes one attribute of the object; others than those of a striped object are ignored.
    pub fn add(&mut self, name: &[u8], value: &[u8]) {
        let field = match str::from_utf8(name) {
            Ok(STRIPE_UNIT) => &mut self.stripe_unit,
            Ok(STRIPE_COUNT) => &mut self.stripe_count,
            Ok(OBJECT_SIZE) => &mut self.object_size,
            Ok(SIZE) => &mut self.size,
            _ => return,
        };
        *field = Some(number(value).ok_or_else(|| shown(value)));
    }

    /// Returns the layout and the size.
    ///
    /// # Errors
    /// Fails with [`ErrorKind::Damaged`] and the attribute that is missing or wrong.
    pub fn read(&self) -> Result<(Layout, u64), Error> {
        let stripe_unit = field(STRIPE_UNIT, self.stripe_unit.as_ref())?;
        let stripe_count = field(STRIPE_COUNT, self.stripe_count.as_ref())?;
        let object_size = field(OBJECT_SIZE, self.object_size.as_ref())?;
        let layout = Layout::new(stripe_unit, stripe_count, object_size)
            .map_err(|error| damaged(&error.cause()))?;
        Ok((layout, self.size()?))
    }

    /// Returns the size.
    ///
    /// # Errors
    /// As [`Attributes::read`].
    pub fn size(&self) -> Result<u64, Error> {
        field(SIZE, self.size.as_ref())
    }
}

fn field(name: &str, value: Option<&Value>) -> Result<u64, Error> {
    match value {
        None => Err(damaged(&format!("the attribute {name} is missing"))),
        Some(Err(text)) => Err(damaged(&format!("the attribute {name} is {text}, not a number"))),
        Some(Ok(number)) => Ok(*number),
    }
}

fn damaged(why: &str) -> Error {
    Error::new(ErrorKind::Damaged, why).advise("this is not an intact striped object")
}

/// Parses a decimal number of at most 63 bits, without a sign.
pub fn number(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > DIGITS_MAX || !text.iter().all(u8::is_ascii_digit) {
        return None;
    }
    str::from_utf8(text).ok()?.parse().ok().filter(|number| *number <= SIZE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attributes(unit: &str, count: &str, object: &str, size: &str) -> Attributes {
        let mut attributes = Attributes::default();
        for (name, value) in
            [(STRIPE_UNIT, unit), (STRIPE_COUNT, count), (OBJECT_SIZE, object), (SIZE, size)]
        {
            attributes.add(name.as_bytes(), value.as_bytes());
        }
        attributes.add(b"lock.striper.lock", b"\x01\x01");
        attributes
    }

    #[test]
    fn the_attributes_of_the_tool_are_read() {
        let (layout, size) = attributes("4194304", "1", "4194304", "20971520").read().unwrap();
        assert_eq!((layout, size), (Layout::default(), 20 << 20));
    }

    #[test]
    fn what_is_written_is_read_again() {
        let layout = Layout::new(65536, 3, 262_144).unwrap();
        let mut read = Attributes::default();
        for (name, value) in layout.attributes() {
            read.add(name.as_bytes(), value.as_bytes());
        }
        read.add(SIZE.as_bytes(), b"0");
        assert_eq!(read.read(), Ok((layout, 0)));
    }

    #[test]
    fn damaged_attributes_are_refused_with_their_name() {
        let good = ["65536", "3", "262144", "1"];
        let names = [STRIPE_UNIT, STRIPE_COUNT, OBJECT_SIZE, SIZE];
        let past = "9223372036854775808";
        for bad in ["", " 1", "+1", "-1", "1x", "0x10", "1\0", past, "99999999999999999999"] {
            for (index, name) in names.into_iter().enumerate() {
                let mut fields = good;
                fields[index] = bad;
                let [unit, count, object, size] = fields;
                let error = attributes(unit, count, object, size).read().unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Damaged, "{name} {bad:?}");
                assert!(error.to_string().contains(name), "{error}");
            }
        }
        for [unit, count, object] in [
            ["0", "1", "65536"],
            ["65536", "0", "65536"],
            ["65536", "1", "0"],
            ["65536", "1", "65537"],
            ["1", "1", "1"],
            ["65536", "2147483648", "65536"],
            ["4294967296", "1", "4294967296"],
        ] {
            let error = attributes(unit, count, object, "0").read().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{unit} {count} {object}");
        }
    }

    #[test]
    fn the_bytes_of_the_objects_are_those_of_the_map() {
        const UNIT: u64 = 65536;
        for (count, rows) in [(1, 1), (1, 3), (3, 2), (4, 1)] {
            let layout = Layout::new(UNIT, count, UNIT * rows).unwrap();
            for size in [0, 1, UNIT - 1, UNIT, UNIT + 1, 5 * UNIT, 6 * UNIT, 13 * UNIT + 7] {
                let mut ends = [0; 20];
                for byte in (0..size).step_by(4096).chain(size.checked_sub(1)) {
                    let place = layout.map.locate(byte);
                    let end = &mut ends[usize::try_from(place.object).unwrap()];
                    *end = (place.object_offset + place.length.min(size - byte)).max(*end);
                }
                for (object, end) in (0..).zip(ends) {
                    assert_eq!(layout.object_bytes(object, size), end, "{count} {rows} {size}");
                }
                let last = ends.iter().rposition(|end| *end > 0).map_or(1, |last| last as u64 + 1);
                assert_eq!(layout.objects(size), last, "{count} {rows} {size}");
            }
        }
    }

    #[test]
    fn a_missing_attribute_is_named() {
        let mut read = Attributes::default();
        read.add(STRIPE_UNIT.as_bytes(), b"65536");
        assert!(read.read().unwrap_err().to_string().contains("stripe_count is missing"));
    }
}
