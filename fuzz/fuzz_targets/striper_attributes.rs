//! Any lines `NAME=VALUE` as the attributes of a striped object of a Ceph cluster: refused, or a
//! layout that is written as it was read.

#![no_main]

use diopter_rados::striper::{Attributes, Layout};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let mut attributes = Attributes::default();
    for line in text.split(|byte| *byte == b'\n') {
        let at = line.iter().position(|byte| *byte == b'=').unwrap_or(line.len());
        attributes.add(&line[..at], line.get(at + 1..).unwrap_or_default());
    }
    let Ok((layout, size)) = attributes.read() else { return };
    assert_eq!(attributes.size(), Ok(size));
    assert!(size <= i64::MAX.unsigned_abs());
    let numbers = [layout.stripe_unit(), layout.stripe_count(), layout.object_size()];
    assert!(numbers.iter().all(|number| (1..1 << 31).contains(number)));
    assert_eq!(Layout::new(numbers[0], numbers[1], numbers[2]), Ok(layout));
});
