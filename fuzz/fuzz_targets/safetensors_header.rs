//! Any bytes as the start of a safetensors file: refused, or a header whose tensors cover the data
//! after it, each byte once.

#![no_main]

use diopter_python::header::{self, PREFIX_BYTES, header_length};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let size = bytes.len() as u64;
    let prefix = &bytes[..bytes.len().min(8)];
    if let Ok(length) = header_length(prefix, size) {
        let end = usize::try_from(PREFIX_BYTES + length).expect("it is within the bytes");
        check(&bytes[8..end], size - PREFIX_BYTES - length);
    }
    // Without the length, or hardly any input would get past it; the data is as long as the last
    // two bytes say.
    if let [text @ .., low, high] = bytes {
        check(text, u64::from(u16::from_le_bytes([*low, *high])));
    }
});

fn check(text: &[u8], data_size: u64) {
    let Ok(header) = header::parse(text, data_size) else { return };
    let mut at = 0;
    for tensor in &header.tensors {
        assert_eq!(tensor.begin, at);
        at = tensor.end;
        let elements = tensor.shape.iter().product::<u64>();
        assert!(elements == 0 || tensor.end > tensor.begin);
    }
    assert_eq!(at, data_size);
    let mut names: Vec<&str> = header.tensors.iter().map(|tensor| tensor.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), header.tensors.len());
}
