//! Loading: no librados, a file that is not a library, one that lacks a function.

use std::path::{Path, PathBuf};
use std::process::Command;

use diopter_rados::{ErrorKind, Library};

#[test]
fn a_missing_library_is_an_error_that_names_the_package() {
    let dir = tempfile::tempdir().unwrap();
    let error = Library::load(Some(&dir.path().join("librados.so.2"))).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Library);
    let text = error.to_string();
    assert!(text.contains("librados.so.2") && text.contains("package `librados2`"), "{text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

#[test]
fn a_file_that_is_not_a_library_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("librados.so.2");
    std::fs::write(&path, "not a library").unwrap();
    let error = Library::load(Some(&path)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Library);
}

/// The functions that are used, as the table in the sources names them.
fn functions() -> Vec<String> {
    let source = include_str!("../../src/loader/library.rs");
    let table = source.split_once("functions! {").unwrap().1.split_once("\n}").unwrap().0;
    let lines = table.lines().map(str::trim).filter(|line| line.starts_with("rados_"));
    lines.map(|line| line.split_once('(').unwrap().0.to_owned()).collect()
}

/// Compiles a library with these functions, none of which does anything.
fn stub(dir: &Path, functions: &[String]) -> PathBuf {
    let define =
        |name: &String| format!("#[unsafe(no_mangle)] pub extern \"C\" fn {name}() {{}}\n");
    let source = dir.join("stub.rs");
    std::fs::write(&source, functions.iter().map(define).collect::<String>()).unwrap();
    let path = dir.join("librados.so.2");
    let compiler = std::env::var_os("RUSTC").unwrap_or("rustc".into());
    let mut command = Command::new(compiler);
    command.args(["--edition=2024", "--crate-type=cdylib", "-Cpanic=abort", "-o"]);
    let output = command.arg(&path).arg(&source).output().expect("rustc");
    assert!(output.status.success(), "{output:?}");
    path
}

#[test]
fn a_library_that_lacks_a_function_is_an_error_that_names_it() {
    let functions = functions();
    assert!(functions.len() > 25, "{functions:?}");
    let dir = tempfile::tempdir().unwrap();
    let whole = stub(dir.path(), &functions);
    assert!(Library::load(Some(&whole)).is_ok());
    let dir = tempfile::tempdir().unwrap();
    let without: Vec<String> =
        functions.into_iter().filter(|name| name != "rados_write_op_exec").collect();
    let error = Library::load(Some(&stub(dir.path(), &without))).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Library);
    assert!(error.to_string().contains("`rados_write_op_exec`"), "{error}");
}
