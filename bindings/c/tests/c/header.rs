//! `diopter.h` is what cbindgen makes of the sources.

use std::path::Path;

/// In the order of the header.
const SOURCES: [&str; 5] = ["options.rs", "file.rs", "completion.rs", "queue.rs", "exports.rs"];

fn made() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(root.join("cbindgen.toml")).expect("a configuration");
    let start = cbindgen::Builder::new().with_config(config);
    let builder =
        SOURCES.iter().fold(start, |builder, name| builder.with_src(root.join("src").join(name)));
    let mut header = Vec::new();
    builder.generate().expect("bindings").write(&mut header);
    String::from_utf8(header).expect("a text")
}

#[test]
fn the_header_is_what_cbindgen_makes_of_the_sources() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("diopter.h");
    let made = made();
    if std::env::var_os("DIOPTER_BLESS").is_some() {
        std::fs::write(&path, &made).expect("the header is written");
    }
    let header = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(header == made, "diopter.h is not up to date: run `cargo xtask bless`");
}
