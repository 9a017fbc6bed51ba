//! The examples and the program of `docs/c.md`, compiled as they say, on files.

use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use diopter_skip::Capability;

use crate::install::{Compiler, GCC, GXX, directory, has, installed, root, run};

/// Compiles an example, in a directory with a file of random length.
fn compile(name: &str, by: Compiler) -> Option<(TempDir, PathBuf, Vec<u8>)> {
    let installed = installed()?;
    let dir = directory();
    let more: &[&str] = if by.name == "g++" { &["-std=c++17", "-O2"] } else { &["-O2"] };
    let source = root().join("examples").join(name);
    let program = installed.compile(by, &source, dir.path(), more);
    let bytes: Vec<u8> =
        (0..5_000_011u32).flat_map(|n| (n.wrapping_mul(2_654_435_761)).to_le_bytes()).collect();
    std::fs::write(dir.path().join("data"), &bytes).expect("a file");
    Some((dir, program, bytes))
}

fn check_usage(program: &Path) {
    let output = Command::new(program).output().expect("it runs");
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn cat_writes_the_bytes_of_a_file() {
    let Some((dir, program, bytes)) = compile("cat.c", GCC) else { return };
    let output = run(Command::new(&program).arg(dir.path().join("data")));
    assert!(output.stdout == bytes);
    let output = Command::new(&program).arg("gone").output().expect("it runs");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("gone"), "{message}");
    check_usage(&program);
}

#[test]
fn random_reads_finish() {
    let Some((dir, program, _)) = compile("random_read.c", GCC) else { return };
    let output = run(Command::new(&program).arg(dir.path().join("data")));
    let line = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(line.starts_with("1000 reads by "), "{line}");
    check_usage(&program);
}

#[test]
fn a_copy_has_the_bytes_of_its_source() {
    if !has("g++", Capability::Cxx) {
        return;
    }
    let Some((dir, program, bytes)) = compile("copy.cpp", GXX) else { return };
    let target = dir.path().join("copy");
    run(Command::new(&program).arg(dir.path().join("data")).arg(&target));
    assert!(std::fs::read(&target).expect("the copy") == bytes);
    check_usage(&program);
}

#[test]
fn the_program_of_the_page_runs() {
    let Some(installed) = installed() else { return };
    let page = std::fs::read_to_string(root().join("../../docs/c.md")).expect("the page");
    let (_, rest) = page.split_once("```c\n").expect("a program");
    let (program, _) = rest.split_once("```").expect("its end");
    let dir = directory();
    let source = dir.path().join("page.c");
    std::fs::write(&source, program).expect("a file");
    let program = installed.compile(GCC, &source, dir.path(), &[]);
    let output = Command::new(&program).current_dir(&dir).output().expect("it runs");
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && message.contains("data.bin"), "{message}");
    std::fs::write(dir.path().join("data.bin"), "any bytes").expect("a file");
    run(Command::new(&program).current_dir(&dir));
}
