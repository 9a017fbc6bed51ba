//! `diopter.h` is what cbindgen makes of the sources.

use crate::install::root;

/// In the order of the header.
const SOURCES: [&str; 5] = ["options.rs", "file.rs", "completion.rs", "queue.rs", "exports.rs"];

fn made() -> String {
    let root = root();
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
    let path = root().join("diopter.h");
    let made = made();
    if std::env::var_os("DIOPTER_BLESS").is_some() {
        std::fs::write(&path, &made).expect("the header is written");
    }
    let header = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(header == made, "diopter.h is not up to date: run `cargo xtask bless`");
}

/// Returns the names that the header declares and begin with `prefix`.
pub fn names(prefix: &str) -> Vec<String> {
    let header = std::fs::read_to_string(root().join("diopter.h")).expect("the header");
    let code = header.lines().filter(|line| !line.trim_start().starts_with("//"));
    let code: Vec<&str> = code.collect();
    let code = code.join("\n");
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    let mut names: Vec<String> =
        words.filter(|word| word.starts_with(prefix)).map(str::to_owned).collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Returns the functions of the header.
pub fn functions() -> Vec<String> {
    let header = std::fs::read_to_string(root().join("diopter.h")).expect("the header");
    let code = header.lines().filter(|line| !line.trim_start().starts_with("//"));
    let of_line = |line: &str| {
        let (before, _) = line.split_once('(')?;
        let name = before.rsplit([' ', '*']).next()?;
        name.starts_with("dpt_").then(|| name.to_owned())
    };
    code.filter_map(of_line).collect()
}
