//! Any bytes as the value of `lustre.lov`: refused, or a layout that maps every offset.

#![no_main]

use diopter_layouts::foreign::ForeignLayout;
use diopter_layouts::lustre;
use diopter_layouts::lustre::Lookup;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|value: &[u8]| {
    let Ok(layout) = lustre::parse(value) else { return };
    let ends = layout.components().iter().map(|component| component.range.end());
    let starts = layout.components().iter().map(|component| component.range.start());
    for edge in starts.chain(ends).chain([0, u64::MAX]) {
        for offset in [edge.saturating_sub(1), edge, edge.saturating_add(1)] {
            let length = match layout.locate(offset) {
                Lookup::Object(place) => place.length,
                Lookup::Zeros { length, .. } | Lookup::Elsewhere { length, .. } => length,
                Lookup::Stale | Lookup::Nowhere => continue,
            };
            assert!(length > 0 && offset.checked_add(length).is_some());
        }
    }
    let layout = ForeignLayout::Lustre(layout);
    for size in [0, 1 << 30, u64::MAX] {
        assert!(layout.request_shape(size).is_none_or(|shape| shape.width > 0));
    }
    assert!(!layout.lines().is_empty());
});
