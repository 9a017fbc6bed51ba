//! Programs that `dio run` refuses, with the exit status of env(1) and a sentence that says why.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use diopter_testkit::built::products;
use diopter_testkit::env::{Capability, is_root, skip};
use diopter_testkit::files;
use tempfile::TempDir;

use crate::support::{compiled, dio, text};

/// Offset of the machine in the header of an ELF file, and that of a machine that this is not.
const MACHINE_AT: usize = 18;
const OTHER_MACHINE: u8 = if cfg!(target_arch = "aarch64") { 62 } else { 183 };

fn run(words: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(dio());
    let output = command.arg("run").args(words).env_remove("DIOPTER_PRELOAD").output();
    let output = output.expect("it runs");
    (output.status.code(), text(&output))
}

fn check(words: &[&str], status: i32, said: &str) {
    let (got, text) = run(words);
    assert_eq!(got, Some(status), "{words:?}: {text}");
    assert!(text.contains(said), "{words:?}: {text}");
    assert_eq!(text.lines().count(), 1, "{text}");
}

/// Copies an ELF file with another machine in its header.
fn for_another_machine(dir: &TempDir, from: &Path) -> PathBuf {
    let to = dir.path().join("other");
    let mut bytes = fs::read(from).expect("it is there");
    bytes[MACHINE_AT] = OTHER_MACHINE;
    fs::write(&to, bytes).expect("a file");
    fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("it is ours");
    to
}

fn name(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn the_status_is_that_of_the_program() {
    for (script, status) in [("exit 0", 0), ("exit 7", 7)] {
        check_status(&["--", "sh", "-c", script], status);
        check_status(&["--report", "--", "sh", "-c", script], status);
    }
    check_status(&["--report", "--", "sh", "-c", "kill -9 $$"], 128 + 9);
}

fn check_status(words: &[&str], status: i32) {
    let (got, said) = run(words);
    assert_eq!(got, Some(status), "{said}");
}

#[test]
fn a_program_that_is_not_there_or_not_executable() {
    check(&["--", "no-such-program"], 127, "no such program");
    check(&["--", "/no/such/program"], 127, "no such program");
    check(&["--", "/etc/passwd"], 126, "check the file");
}

/// The status of env(1), with and without a report.
#[test]
fn the_status_of_what_cannot_be_found_or_run_is_that_of_env() {
    let dir = files::dir();
    let file = |name: &str, content: &str, mode: u32| {
        let path = dir.path().join(name);
        fs::write(&path, content).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
        path
    };
    file("no-bits", "exit 1\n", 0o644);
    file("no-line", "exit 5\n", 0o755);
    file("no-interpreter", "#!/no/such/interpreter\n", 0o755);
    fs::create_dir(dir.path().join("directory")).expect("a directory");
    let below = format!("{}/below", name(&dir.path().join("no-bits")));
    let path = format!("{}:/usr/bin:/bin", name(dir.path()));
    for program in ["no-bits", "no-line", "no-interpreter", "directory", "", "no-such", &below] {
        let run = |words: &[&str]| {
            let mut command = Command::new(words[0]);
            let output = command.args(&words[1..]).env("PATH", &path).output();
            let output = output.expect("it runs");
            (output.status.code(), text(&output))
        };
        let (expected, _) = run(&["env", "--", program]);
        let dio = dio();
        for options in [&["--"] as &[&str], &["--report", "--"]] {
            let mut words = vec![name(&dio), "run"];
            words.extend(options);
            words.push(program);
            let (got, said) = run(&words);
            assert_eq!(got, expected, "{words:?}: {said}");
        }
    }
}

#[test]
fn a_static_program_and_a_script_for_it() {
    let Some(program) = compiled("writer", &["-static"]) else { return };
    check(&["--", name(&program)], 126, "it is statically linked");
    let dir = files::dir();
    let script = dir.path().join("script");
    fs::write(&script, format!("#! {} x\n", program.display())).expect("a file");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("it is ours");
    check(&["--", name(&script)], 126, "it is statically linked");
}

#[test]
fn a_program_for_another_machine() {
    let dir = files::dir();
    let program = for_another_machine(&dir, &dio());
    check(&["--", name(&program)], 126, "name another with DIOPTER_PRELOAD");
}

#[test]
fn a_program_for_another_libc() {
    let dir = files::dir();
    let to = dir.path().join("musl");
    let mut bytes = fs::read(dio()).expect("it is there");
    let loader: &[u8] = if cfg!(target_arch = "aarch64") {
        b"/lib/ld-linux-aarch64.so.1\0"
    } else {
        b"/lib64/ld-linux-x86-64.so.2\0"
    };
    let at = bytes.windows(loader.len()).position(|window| window == loader);
    let at = at.expect("dio has glibc's loader");
    let musl = b"/lib/ld-musl-x86_64.so.1\0";
    bytes[at..at + musl.len()].copy_from_slice(musl);
    fs::write(&to, bytes).expect("a file");
    fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).expect("it is ours");
    check(&["--", name(&to)], 126, "it uses musl");
}

#[test]
fn a_program_with_the_rights_of_its_file() {
    if !is_root() {
        return skip(Capability::Root, "only root gives a file to another user");
    }
    let dir = files::dir();
    let to = dir.path().join("setuid");
    fs::copy("/bin/true", &to).expect("a file");
    std::os::unix::fs::chown(&to, Some(65_534), None).expect("root may");
    fs::set_permissions(&to, fs::Permissions::from_mode(0o4755)).expect("it is ours");
    check(&["--", name(&to)], 126, "privileges of its file");
    // Those bits of a script count for nothing.
    files::script(&to, "#!/bin/sh\nexit 6\n");
    fs::set_permissions(&to, fs::Permissions::from_mode(0o6755)).expect("it is ours");
    check_status(&["--", name(&to)], 6);
}

#[test]
fn a_library_that_cannot_be_loaded() {
    let dir = files::dir();
    check(&["--preload", "/no/such/library.so", "--", "true"], 125, "No such file");
    check(&["--preload", "/etc/passwd", "--", "true"], 125, "not an ELF library");
    let other = for_another_machine(&dir, &products().join("libdiopter_preload.so"));
    check(&["--preload", name(&other), "--", "true"], 126, "name another with DIOPTER_PRELOAD");
    let spaced = dir.path().join("a library.so");
    fs::copy(products().join("libdiopter_preload.so"), &spaced).expect("a file");
    check(&["--preload", name(&spaced), "--", "true"], 125, "no path with a space");
}

#[test]
fn a_go_program() {
    if Command::new("go").arg("version").output().is_err() {
        return skip(Capability::Go, "no go");
    }
    let dir = files::dir();
    let (source, program) = (dir.path().join("main.go"), dir.path().join("program"));
    fs::write(&source, "package main\nfunc main() {}\n").expect("a file");
    let mut compiler = Command::new("go");
    compiler.env("GOCACHE", dir.path().join("cache")).env("GO111MODULE", "off");
    let output = compiler.args(["build", "-o", name(&program), name(&source)]).output();
    let output = output.expect("it ran before");
    assert!(output.status.success(), "{}", text(&output));
    check(&["--", name(&program)], 126, "it is written in Go");
}
