//! Any bytes as the manifest of a striped file: refused, or a manifest that is written as it was
//! read, and whose stripes hold every byte of a file once.

#![no_main]

use diopter_layouts::error::LayoutErrorKind;
use diopter_layouts::layout::Manifest;
use diopter_core::limits::FILE_SIZE_MAX;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let manifest = match Manifest::from_bytes(bytes) {
        Ok(manifest) => manifest,
        // The checksum is made right, or hardly any input would get past it.
        Err(LayoutErrorKind::WrongChecksum { recorded, computed }) if !recorded.is_empty() => {
            let Ok(text) = std::str::from_utf8(bytes) else { return };
            let Ok(manifest) = Manifest::from_bytes(text.replace(&recorded, &computed).as_bytes())
            else {
                return;
            };
            manifest
        }
        Err(_) => return,
    };
    let written = manifest.to_bytes().expect("what was read can be written");
    assert_eq!(Manifest::from_bytes(&written).as_ref(), Ok(&manifest));
    let striping = manifest.striping();
    for size in [0, 1, striping.width(), FILE_SIZE_MAX] {
        let of_one = |object| striping.object_size(object, size);
        let sizes: Vec<u64> = striping.objects().map(of_one).collect();
        assert_eq!(sizes.iter().sum::<u64>(), size);
        assert_eq!(manifest.file_size(&sizes), manifest.size().unwrap_or(size));
    }
});
