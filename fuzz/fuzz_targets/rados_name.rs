//! Any bytes as the name of a striped object on a command line: refused, or written so that they
//! parse to the same parts.

#![no_main]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use diopter_rados::name::Name;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let Some(Ok(name)) = Name::parse(OsStr::from_bytes(text)) else { return };
    assert!(!name.pool.is_empty() && !name.name.is_empty());
    let written = name.to_string();
    let again = Name::parse(OsStr::new(&written)).expect("the prefix").expect("a name");
    assert_eq!(again, name);
});
