//! Any bytes as the value of `ceph.file.layout`: refused, or a layout that finds every byte again.

#![no_main]

use diopter_layouts::ceph;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|value: &[u8]| {
    let Ok(layout) = ceph::parse(value) else { return };
    let width = layout.request_shape().width;
    for offset in [0, width - 1, width, layout.object_size(), 1 << 62, u64::MAX] {
        let place = layout.locate(offset);
        assert!(place.length > 0 && place.object_offset < layout.object_size());
        assert_eq!(layout.file_offset(place.object, place.object_offset), Some(offset));
    }
    assert!(!layout.line().is_empty());
});
