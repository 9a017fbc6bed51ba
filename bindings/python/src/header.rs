//! The header of a safetensors file: untrusted JSON that names the tensors and where their bytes
//! are. It needs no Python, and reads no file.
//!
//! A header is accepted only if its tensors cover the data that follows it: in some order each one
//! begins where the one before it ended, and the last one ends with the file. So no two overlap,
//! and none reaches outside.

use std::collections::HashSet;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};

/// Largest header that is read, in bytes: the limit of the format's reference implementation.
pub const HEADER_BYTES_MAX: u64 = 100_000_000;

/// Bytes before the header: its length.
pub const PREFIX_BYTES: u64 = 8;

/// Element types of the format, with the bits of an element.
const TYPES: [(&str, u64); 22] = [
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("F8_E4M3FNUZ", 8),
    ("F8_E5M2FNUZ", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

/// One tensor of a header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    pub name: String,
    /// The type as the format writes it, for example `BF16`.
    pub dtype: &'static str,
    pub shape: Vec<u64>,
    /// Its first byte and its end, counted from the end of the header.
    pub begin: u64,
    pub end: u64,
}

/// A header that was checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Header {
    /// In the order of their bytes.
    pub tensors: Vec<Tensor>,
    /// Text that the writer of the file added.
    pub metadata: Vec<(String, String)>,
}

/// The reason for which a header is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HeaderError(String);

impl fmt::Display for HeaderError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not a safetensors file: {}", self.0)
    }
}

impl std::error::Error for HeaderError {}

fn refused<T>(why: impl Into<String>) -> Result<T, HeaderError> {
    Err(HeaderError(why.into()))
}

/// Returns the length of the header, from the first 8 bytes of a file of `file_size` bytes.
///
/// # Errors
/// A header that ends past the file, or is longer than [`HEADER_BYTES_MAX`].
pub fn header_length(prefix: &[u8], file_size: u64) -> Result<u64, HeaderError> {
    let Ok(prefix) = <[u8; 8]>::try_from(prefix) else {
        return refused(format!("it has {file_size} bytes, and the length of the header takes 8"));
    };
    let length = u64::from_le_bytes(prefix);
    if length > HEADER_BYTES_MAX {
        return refused(format!("its header has {length} bytes, and {HEADER_BYTES_MAX} at most"));
    }
    if PREFIX_BYTES + length > file_size {
        return refused(format!("its header has {length} bytes, and the file {file_size}"));
    }
    Ok(length)
}

/// A tensor as the JSON has it.
#[derive(Deserialize)]
struct Written {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: (u64, u64),
}

/// The JSON object, in its order.
struct Document {
    tensors: Vec<(String, Written)>,
    metadata: Vec<(String, String)>,
}

/// An object of strings without a name that occurs twice.
struct Strings(Vec<(String, String)>);

impl<'de> Deserialize<'de> for Strings {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Strings, D::Error> {
        struct OfStrings;
        impl<'de> Visitor<'de> for OfStrings {
            type Value = Strings;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of strings")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Strings, A::Error> {
                let mut seen = HashSet::new();
                let mut pairs = Vec::new();
                while let Some((name, text)) = map.next_entry::<String, String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("`{name}` occurs twice")));
                    }
                    pairs.push((name, text));
                }
                Ok(Strings(pairs))
            }
        }
        deserializer.deserialize_map(OfStrings)
    }
}

impl<'de> Deserialize<'de> for Document {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Document, D::Error> {
        struct OfTensors;
        impl<'de> Visitor<'de> for OfTensors {
            type Value = Document;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Document, A::Error> {
                let mut seen = HashSet::new();
                let mut document = Document { tensors: Vec::new(), metadata: Vec::new() };
                while let Some(name) = map.next_key::<String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("`{name}` occurs twice")));
                    }
                    if name == "__metadata__" {
                        document.metadata = map.next_value::<Strings>()?.0;
                    } else {
                        document.tensors.push((name, map.next_value()?));
                    }
                }
                Ok(document)
            }
        }
        deserializer.deserialize_map(OfTensors)
    }
}

/// Parses and checks a header, with `data_size` bytes of the file after it.
///
/// # Errors
/// The first rule of the format that it breaks.
pub fn parse(bytes: &[u8], data_size: u64) -> Result<Header, HeaderError> {
    if bytes.first() != Some(&b'{') {
        return refused("its header does not begin with `{`");
    }
    let document: Document = serde_json::from_slice(bytes)
        .map_err(|error| HeaderError(format!("its header is not valid: {error}")))?;
    let tensors: Result<Vec<Tensor>, HeaderError> =
        document.tensors.into_iter().map(|(name, written)| checked(name, written)).collect();
    let mut tensors = tensors?;
    tensors.sort_by_key(|tensor| (tensor.begin, tensor.end));
    let mut at = 0;
    for tensor in &tensors {
        if tensor.begin != at {
            let what =
                if tensor.begin < at { "overlaps the one before it" } else { "leaves a gap" };
            return refused(format!("tensor `{}` at byte {} {what}", tensor.name, tensor.begin));
        }
        at = tensor.end;
    }
    if at != data_size {
        return refused(format!("its tensors end at byte {at}, and its data has {data_size}"));
    }
    Ok(Header { tensors, metadata: document.metadata })
}

fn checked(name: String, written: Written) -> Result<Tensor, HeaderError> {
    let Written { dtype, shape, data_offsets: (begin, end) } = written;
    let Some((dtype, bits)) = TYPES.iter().find(|(known, _)| *known == dtype) else {
        return refused(format!("tensor `{name}` has the unknown type `{dtype}`"));
    };
    let elements = shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent));
    let bits = elements.and_then(|elements| elements.checked_mul(*bits));
    let bytes = bits.filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8);
    if bytes.is_none() || end.checked_sub(begin) != bytes {
        let shape = format!("{shape:?} of {dtype}");
        return refused(format!("tensor `{name}`, {shape}, is not bytes {begin} to {end}"));
    }
    Ok(Tensor { name, dtype, shape, begin, end })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &str = r#"{"__metadata__":{"format":"np"},
        "b":{"dtype":"F32","shape":[2,2],"data_offsets":[4,20]},
        "a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}}  "#;

    fn why(json: &str, data_size: u64) -> String {
        parse(json.as_bytes(), data_size).unwrap_err().to_string()
    }

    #[test]
    fn tensors_are_in_the_order_of_their_bytes() {
        let header = parse(TWO.as_bytes(), 20).unwrap();
        let names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(header.tensors[1].shape, [2, 2]);
        assert_eq!(header.metadata, [("format".to_owned(), "np".to_owned())]);
        assert_eq!(parse(b"{}", 0), Ok(Header::default()));
    }

    #[test]
    fn a_length_is_within_the_file_and_the_limit() {
        assert_eq!(header_length(&2u64.to_le_bytes(), 10), Ok(2));
        assert!(header_length(&3u64.to_le_bytes(), 10).is_err());
        assert!(header_length(&u64::MAX.to_le_bytes(), u64::MAX).is_err());
        assert!(header_length(b"short", 5).is_err());
    }

    #[test]
    fn data_without_a_tensor_and_tensors_without_data_are_refused() {
        assert!(why(TWO, 19).contains("its data has 19"));
        assert!(why(TWO, 21).contains("its data has 21"));
    }

    #[test]
    fn overlaps_and_gaps_are_refused() {
        let pair = |begin: u64| {
            format!(
                r#"{{"a":{{"dtype":"U8","shape":[4],"data_offsets":[0,4]}},
                    "b":{{"dtype":"U8","shape":[4],"data_offsets":[{begin},{}]}}}}"#,
                begin + 4
            )
        };
        assert!(parse(pair(4).as_bytes(), 8).is_ok());
        assert!(why(&pair(3), 7).contains("overlaps"));
        assert!(why(&pair(5), 9).contains("gap"));
    }

    #[test]
    fn sizes_that_overflow_or_differ_from_the_shape_are_refused() {
        let one = |shape: &str, begin: u64, end: u64| {
            format!(r#"{{"a":{{"dtype":"F32","shape":{shape},"data_offsets":[{begin},{end}]}}}}"#)
        };
        assert!(parse(one("[0,18446744073709551615]", 0, 0).as_bytes(), 0).is_ok());
        for bad in [
            one("[4294967296,4294967296]", 0, 0),
            one("[2]", 0, 7),
            one("[2]", 8, 0),
            one("[-1]", 0, 4),
            one("[1.5]", 0, 6),
        ] {
            parse(bad.as_bytes(), 8).expect_err(&bad);
        }
        let nibbles = r#"{"a":{"dtype":"F4","shape":[3],"data_offsets":[0,1]}}"#;
        assert!(why(nibbles, 1).contains("is not bytes"));
    }

    #[test]
    fn names_occur_once_and_types_are_known() {
        let tensor = r#"{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#;
        assert!(why(&format!(r#"{{"a":{tensor},"a":{tensor}}}"#), 0).contains("twice"));
        let metadata = r#"{"__metadata__":{"a":"1","a":"2"}}"#;
        assert!(why(metadata, 0).contains("twice"));
        assert!(why(&format!(r#"{{"a":{}}}"#, tensor.replace("U8", "X9")), 0).contains("`X9`"));
        assert!(why(" {}", 0).contains("begin"));
        assert!(why("[]", 0).contains("begin"));
        assert!(why(&format!("{{{}", "[".repeat(100_000)), 0).contains("not valid"));
    }
}
