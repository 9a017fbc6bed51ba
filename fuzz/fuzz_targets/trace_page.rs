//! Any bytes as a page of the kernel's ring buffer, as the format of an event, or as the shape of a
//! page: refused, or records that lie in their page and fields that lie in their record.

#![no_main]

use diopter_trace::format::{EventFormat, Record};
use diopter_trace::page::PageShape;
use libfuzzer_sys::fuzz_target;

const FORMAT: &str = "ID: 7\nformat:\n\
    \tfield:unsigned short common_type;\toffset:0;\tsize:2;\tsigned:0;\n\
    \tfield:dev_t dev;\toffset:8;\tsize:4;\tsigned:0;\n\
    \tfield:loff_t pos;\toffset:16;\tsize:8;\tsigned:1;\n\
    \tfield:char comm[16];\toffset:24;\tsize:16;\tsigned:0;\n";

fuzz_target!(|input: &[u8]| {
    // The first byte says what the rest is.
    let Some((kind, input)) = input.split_first() else { return };
    let text = std::str::from_utf8(input);
    match (kind % 4, text) {
        (0, _) => read_page(PageShape { data_offset: 16, commit_size: 8 }, input),
        (1, _) => read_page(PageShape { data_offset: 12, commit_size: 4 }, input),
        (2, Ok(text)) => {
            let Ok(format) = EventFormat::parse(text) else { return };
            read_fields(&format, input);
        }
        (_, Ok(text)) => {
            let Ok(shape) = PageShape::parse(text) else { return };
            read_page(shape, &[1; 4096]);
        }
        (_, Err(_)) => {}
    }
});

fn read_page(shape: PageShape, page: &[u8]) {
    let format = EventFormat::parse(FORMAT).expect("a format");
    assert!(shape.used(page).is_ok_and(|used| used <= page.len()) || shape.records(page).is_err());
    let Ok(mut records) = shape.records(page) else { return };
    let mut bytes = 0;
    while let Ok(Some(record)) = records.next_record() {
                // Each record has a header word, so their number is bounded.
        bytes += 4 + record.bytes.len();
        assert!(bytes <= page.len(), "records reach past their page");
        read_fields(&format, record.bytes);
    }
}

fn read_fields(format: &EventFormat, bytes: &[u8]) {
    let names = ["common_type", "dev", "pos", "comm", "field"];
    let fields: Vec<_> = names.iter().filter_map(|name| format.field(name)).collect();
    let record = Record { fields: &fields, bytes };
    for (index, field) in fields.iter().enumerate() {
        let is_inside = field.offset.checked_add(field.size).is_some_and(|end| end <= bytes.len());
        assert!(is_inside || (record.number(index) == 0 && record.text(index).is_empty()));
        assert!(record.text(index).len() <= field.size);
        assert_eq!(u64::from(record.number32(index)), record.number(index) & u64::from(u32::MAX));
    }
}
