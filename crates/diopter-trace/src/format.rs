//! The meaning of a record's bytes: the `format` file of its event, and fields read by it. Offsets
//! and sizes differ between kernels, so none is written down here.

use crate::error::TraceError;

/// The place of a field in a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// First byte.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// Negative numbers are negative.
    pub is_signed: bool,
}

/// An event's number and fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EventFormat {
    /// The number that its records begin with.
    pub id: u16,
    fields: Vec<(String, Field)>,
}

/// A record with the fields of it that are wanted, in the order in which they were asked for.
#[derive(Clone, Copy, Debug)]
pub struct Record<'a> {
    /// The wanted fields.
    pub fields: &'a [Field],
    /// The record's bytes.
    pub bytes: &'a [u8],
}

impl EventFormat {
    /// From the text of a `format` file.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] when it has no number, or a field without offset or size.
    pub fn parse(text: &str) -> Result<EventFormat, TraceError> {
        let malformed = |what: &str| TraceError::Malformed(format!("a format file has {what}"));
        let id = text.lines().find_map(|line| line.strip_prefix("ID:"));
        let id = id.and_then(|id| id.trim().parse().ok()).ok_or_else(|| malformed("no ID"))?;
        let mut fields = Vec::new();
        for line in text.lines().filter_map(|line| line.trim().strip_prefix("field:")) {
            let field = parse_field(line).ok_or_else(|| malformed("a field that is cut short"))?;
            fields.push(field);
        }
        Ok(EventFormat { id, fields })
    }

    /// The field of this name, if the kernel's event has one.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<Field> {
        self.fields.iter().find(|(found, _)| found == name).map(|(_, field)| *field)
    }
}

impl Record<'_> {
    /// The `index`th wanted field as a number; 0 where the record ends before it.
    #[must_use]
    pub fn number(&self, index: usize) -> u64 {
        self.fields.get(index).map_or(0, |field| number(self.bytes, *field))
    }

    /// The same, as a signed number.
    #[must_use]
    pub fn signed(&self, index: usize) -> i64 {
        self.number(index).cast_signed()
    }

    /// The same, where the kernel's type has 32 bits.
    #[must_use]
    pub fn number32(&self, index: usize) -> u32 {
        let low = self.number(index) & u64::from(u32::MAX);
        u32::try_from(low).expect("masked to 32 bits")
    }

    /// The bytes of the `index`th wanted field; none where the record ends before it.
    #[must_use]
    pub fn bytes_of(&self, index: usize) -> &[u8] {
        let Some(field) = self.fields.get(index) else { return &[] };
        let end = field.offset.saturating_add(field.size);
        self.bytes.get(field.offset..end).unwrap_or_default()
    }

    /// The `index`th wanted field as text: up to its first zero.
    #[must_use]
    pub fn text(&self, index: usize) -> &[u8] {
        self.bytes_of(index).split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// A number of one, two, four or eight bytes, widened; 0 where the record ends before it.
#[must_use]
pub fn number(bytes: &[u8], field: Field) -> u64 {
    let Some(bytes) = bytes.get(field.offset..field.offset.saturating_add(field.size)) else {
        return 0;
    };
    let widened = |signed: i64, plain: u64| {
        if field.is_signed { signed.cast_unsigned() } else { plain }
    };
    match *bytes {
        [byte] => widened(i64::from(byte.cast_signed()), u64::from(byte)),
        [a, b] => {
            let plain = u16::from_ne_bytes([a, b]);
            widened(i64::from(plain.cast_signed()), u64::from(plain))
        }
        [a, b, c, d] => {
            let plain = u32::from_ne_bytes([a, b, c, d]);
            widened(i64::from(plain.cast_signed()), u64::from(plain))
        }
        _ => bytes.try_into().map_or(0, u64::from_ne_bytes),
    }
}

/// `int a;\toffset:8;\tsize:4;\tsigned:1;`, after `field:`.
fn parse_field(line: &str) -> Option<(String, Field)> {
    let mut parts = line.split(';').map(str::trim);
    let declaration = parts.next()?;
    let name = declaration.split_whitespace().last()?.split('[').next()?.to_owned();
    let mut field = Field { offset: usize::MAX, size: 0, is_signed: false };
    for part in parts {
        match part.split_once(':') {
            Some(("offset", offset)) => field.offset = offset.parse().ok()?,
            Some(("size", size)) => field.size = size.parse().ok()?,
            Some(("signed", signed)) => field.is_signed = signed != "0",
            _ => {}
        }
    }
    (field.offset != usize::MAX).then_some((name, field))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FORMAT: &str = "name: sample\nID: 1134\nformat:\n\
        \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
        \tfield:int error;\toffset:4;\tsize:4;\tsigned:1;\n\n\
        \tfield:char rwbs[10];\toffset:8;\tsize:10;\tsigned:0;\n\
        \tfield:bool aio;\toffset:18;\tsize:1;\tsigned:0;\n\nprint fmt: \"%d\", REC->error\n";

    #[test]
    fn fields_are_read_where_the_format_says() {
        let format = EventFormat::parse(FORMAT).unwrap();
        assert_eq!(format.id, 1134);
        let fields = ["error", "rwbs", "aio"].map(|name| format.field(name).unwrap());
        let mut bytes = vec![0; 20];
        bytes[4..8].copy_from_slice(&(-11i32).to_ne_bytes());
        bytes[8..10].copy_from_slice(b"WS");
        bytes[18] = 1;
        let record = Record { fields: &fields, bytes: &bytes };
        assert_eq!(record.signed(0), -11);
        assert_eq!(record.text(1), b"WS");
        assert_eq!(record.number(2), 1);
    }

    #[test]
    fn a_record_that_ends_early_reads_as_nothing() {
        let format = EventFormat::parse(FORMAT).unwrap();
        let fields = [format.field("error").unwrap()];
        assert_eq!(Record { fields: &fields, bytes: &[0; 5] }.number(0), 0);
        assert!(format.field("nothing").is_none());
        assert!(EventFormat::parse("name: sample\n").is_err());
    }
}
