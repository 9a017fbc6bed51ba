//! The dynamic symbols are those of the map, which are the functions of the header.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use crate::header::functions;
use crate::install::{GCC, directory, installed, installed_by_lld, root, run};
use crate::programs::source;

/// Returns the functions of the map.
fn mapped() -> BTreeSet<String> {
    let map = std::fs::read_to_string(root().join("diopter.map")).expect("the map");
    let words = map.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("dpt_")).map(str::to_owned).collect()
}

/// Returns the dynamic symbols, with their versions.
fn exported(library: &Path) -> BTreeSet<String> {
    let output = run(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let text = String::from_utf8(output.stdout).expect("names");
    let names = text.lines().filter_map(|line| line.split_whitespace().last());
    // The version itself is a symbol.
    names.filter(|name| *name != "DIOPTER_0.1").map(str::to_owned).collect()
}

fn check(library: &Path) {
    let expected = mapped().iter().map(|name| format!("{name}@@DIOPTER_0.1")).collect();
    assert_eq!(exported(library), expected);
    let output = run(Command::new("readelf").args(["-d", "-W"]).arg(library));
    let dynamic = String::from_utf8(output.stdout).expect("a text");
    for part in ["Library soname: [libdiopter.so.0]", "NODELETE", "NOW"] {
        assert!(dynamic.contains(part), "{part}: {dynamic}");
    }
}

#[test]
fn the_functions_of_the_header_are_those_of_the_map() {
    let functions: BTreeSet<String> = functions().into_iter().collect();
    assert_eq!(functions, mapped());
    assert!(functions.contains("dpt_pread"));
}

#[test]
fn the_dynamic_symbols_are_those_of_the_map_and_have_its_version() {
    let Some(installed) = installed() else { return };
    check(&installed.shared());
}

#[test]
fn a_library_that_lld_links_has_the_same_symbols_and_works() {
    let Some(installed) = installed_by_lld() else { return };
    check(&installed.shared());
    let dir = directory();
    let program = installed.compile(GCC, &source("file.c"), dir.path(), &[]);
    run(Command::new(program).current_dir(&dir));
}

#[test]
fn the_static_library_serves_without_the_shared_one() {
    let Some(installed) = installed() else { return };
    let dir = directory();
    let program = dir.path().join("program");
    let flags = installed.flags(&["--static", "--cflags", "--libs"]);
    let mut command = Command::new("gcc");
    command.args(["-std=c11", "-o"]).arg(&program).arg(source("queue.c"));
    command.arg(installed.lib().join("libdiopter.a"));
    run(command.args(flags.iter().filter(|flag| *flag != "-ldiopter")));
    let output = run(Command::new("readelf").arg("-d").arg(&program));
    assert!(!String::from_utf8_lossy(&output.stdout).contains("libdiopter"));
    run(Command::new(program).arg("threads").current_dir(&dir));
}
