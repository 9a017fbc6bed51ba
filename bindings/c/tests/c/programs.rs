//! The programs of `tests/programs`, each plainly, under AddressSanitizer and under valgrind.

use std::path::PathBuf;
use std::process::Command;

use diopter::layouts::{CreateOptions, ObjectPlace, StripedFile};
use diopter_skip::{Capability, skip};

use crate::install::{
    COMPILERS, Compiler, GCC, Installed, directory, has, installed, root, run, text,
};

/// A program that cannot run here exits with this status, as automake's tests do.
const SKIPPED: i32 = 77;

const ASAN: [&str; 2] = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"];

const VALGRIND: [&str; 5] = [
    "-q",
    "--error-exitcode=99",
    "--leak-check=full",
    "--show-leak-kinds=definite",
    "--errors-for-leak-kinds=definite",
];

/// Each program, and its arguments.
const PROGRAMS: [(&str, &[&str]); 9] = [
    ("file.c", &[]),
    ("refused.c", &[]),
    ("unusable.c", &[]),
    ("queue.c", &["uring"]),
    ("queue.c", &["aio"]),
    ("queue.c", &["threads"]),
    ("states.c", &[]),
    ("threads.c", &[]),
    ("lost.c", &[]),
];

pub fn source(name: &str) -> PathBuf {
    root().join("tests/programs").join(name)
}

/// Compiles and runs a program.
fn check(installed: &Installed, by: Compiler, (name, arguments): (&str, &[&str]), more: &[&str]) {
    let dir = directory();
    let program = installed.compile(by, &source(name), dir.path(), more);
    let output = Command::new(program).args(arguments).current_dir(&dir).output();
    let output = output.expect("it runs");
    if output.status.code() == Some(SKIPPED) {
        let capability = if arguments == ["aio"] { Capability::Aio } else { Capability::Uring };
        return skip(capability, text(&output));
    }
    assert!(output.status.success(), "{name} {arguments:?}: {}", text(&output));
}

#[test]
fn each_program_runs() {
    let Some(installed) = installed() else { return };
    for program in PROGRAMS {
        check(installed, GCC, program, &["-O2"]);
    }
}

#[test]
fn each_program_runs_under_address_sanitizer() {
    let Some(installed) = installed() else { return };
    // The memory of lost requests is never freed, and a seccomp filter stops the leak check.
    for program in PROGRAMS.into_iter().filter(|(name, _)| *name != "lost.c") {
        check(installed, GCC, program, &ASAN);
    }
}

#[test]
fn each_compiler_takes_the_header_without_a_warning() {
    let Some(installed) = installed() else { return };
    for by in COMPILERS {
        if !has(by.name, by.capability) {
            continue;
        }
        let names = ["file.c", "refused.c", "unusable.c", "cxx.cpp"];
        for name in names.into_iter().filter(|name| by.is_for(&source(name))) {
            check(installed, by, (name, &[]), &["-Wconversion", "-Wshadow"]);
        }
    }
}

#[test]
fn each_program_runs_under_valgrind() {
    let Some(installed) = installed() else { return };
    if !has("valgrind", Capability::Valgrind) {
        return;
    }
    // valgrind 3.19 ends at the mapping of a ring.
    let programs: [(&str, &[&str]); 5] = [
        ("file.c", &[]),
        ("refused.c", &["threads"]),
        ("queue.c", &["aio"]),
        ("queue.c", &["threads"]),
        ("states.c", &["threads"]),
    ];
    for (name, arguments) in programs {
        let dir = directory();
        let program = installed.compile(GCC, &source(name), dir.path(), &[]);
        // A child of fork leaves its parent's engines as they are.
        let leaks: &[&str] = if name == "states.c" { &["--leak-check=no"] } else { &[] };
        let mut command = Command::new("valgrind");
        command.args(VALGRIND).args(leaks).arg(program).args(arguments).current_dir(&dir);
        let output = command.output().expect("it runs");
        if output.status.code() == Some(SKIPPED) {
            skip(Capability::Aio, text(&output));
            continue;
        }
        assert!(output.status.success(), "{name} {arguments:?}: {}", text(&output));
    }
}

#[test]
fn address_sanitizer_reports_memory_that_is_freed_early() {
    let Some(installed) = installed() else { return };
    let dir = directory();
    let program = installed.compile(GCC, &source("early_free.c"), dir.path(), &ASAN);
    let output = Command::new(program).current_dir(&dir).output().expect("it runs");
    let text = text(&output);
    assert!(!output.status.success() && text.contains("heap-use-after-free"), "{text}");
}

#[test]
fn the_library_is_loaded_and_closed_while_its_threads_run() {
    let Some(installed) = installed() else { return };
    let dir = directory();
    let program = dir.path().join("program");
    let mut command = Command::new("gcc");
    command.args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-pedantic"]);
    command.args(installed.flags(&["--cflags"])).arg(source("reloaded.c")).arg("-ldl");
    run(command.arg("-o").arg(&program));
    run(Command::new(program).arg(installed.shared()).current_dir(&dir));
}

#[test]
fn a_file_inside_an_image_is_opened_by_its_name() {
    let Some(installed) = installed() else { return };
    if Command::new("mke2fs").arg("-V").output().is_err() {
        return skip(Capability::Ext4, "mke2fs is not here");
    }
    let dir = directory();
    let content = dir.path().join("content");
    std::fs::create_dir(&content).expect("a directory");
    std::fs::write(content.join("file"), "words inside").expect("a file");
    let image = dir.path().join("disk.img");
    let made = std::fs::File::create(&image).and_then(|file| file.set_len(8 << 20));
    made.expect("an image");
    run(Command::new("mke2fs").args(["-q", "-t", "ext4", "-d"]).arg(&content).arg(&image));
    let program = installed.compile(GCC, &source("inside.c"), dir.path(), &ASAN);
    run(Command::new(program).args(["image", "disk.img::/file", "words inside"]).current_dir(&dir));
}

#[test]
fn a_striped_file_is_opened_by_its_manifest() {
    let Some(installed) = installed() else { return };
    let dir = directory();
    let places = [(); 2].map(|()| ObjectPlace::Dir(dir.path().into()));
    let options = CreateOptions { objects: places.into(), ..CreateOptions::default() };
    let made = StripedFile::create(dir.path().join("wide.dio"), &options);
    let wide = match made {
        Ok(wide) => wide,
        Err(error) => return skip(Capability::Xattr, error),
    };
    wide.write_all_at(b"words in stripes", 0).expect("room");
    drop(wide);
    let program = installed.compile(GCC, &source("inside.c"), dir.path(), &ASAN);
    let arguments = ["striped", "wide.dio", "words in stripes"];
    run(Command::new(program).args(arguments).current_dir(&dir));
}
