//! Any bytes as a result: fio's JSON, json+ or terse lines, or a document of diopter. Refused, or a
//! document that is exported as fio's JSON and read again.

#![no_main]

use diopter_bench::{fio, load};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(loaded) = load::bytes_of(bytes) else { return };
    for export in fio::export(&loaded.bench) {
        let again = fio::import(&export.document.to_string());
        assert!(again.is_ok(), "{again:?} of {}", export.document);
    }
});
