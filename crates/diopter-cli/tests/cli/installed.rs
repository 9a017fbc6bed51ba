//! Tests of what is installed with `dio`: man formats each page without a warning, and the shells
//! load the completions.

use std::fs;
use std::path::Path;
use std::process::Command;

use diopter_testkit::env::{Capability, skip};
use diopter_testkit::files::dir;

use crate::command_output::Output;
use crate::stdout_of;

/// A command with the environment of no user; `None`, with a skip, if the program is not here.
fn program(name: &str, capability: Capability) -> Option<Command> {
    let is_here = Command::new(name).arg("--version").output().is_ok();
    if !is_here {
        skip(capability, format!("{name} is not here"));
        return None;
    }
    let mut command = Command::new(name);
    // man formats for the width, and a user's settings are not the test's.
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.env("LC_ALL", "C.UTF-8").env("MANWIDTH", "80").env("HOME", "/nonexistent");
    Some(command)
}

/// The output of a command that must succeed and print nothing on standard error.
fn quiet(command: &mut Command, of: &str) -> String {
    let output = Output::of(command);
    assert_eq!((output.status, output.stderr.as_str()), (0, ""), "{of}");
    output.stdout
}

#[test]
fn man_formats_every_page_without_a_warning() {
    let dir = dir();
    stdout_of(&["man", "--out", dir.path().to_str().expect("UTF-8")]);
    let pages = fs::read_dir(dir.path()).expect("pages").map(|entry| entry.expect("one").path());
    let mut pages: Vec<_> = pages.collect();
    pages.push(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bindings/c/man/diopter.3"));
    assert!(pages.len() > 20, "{pages:?}");
    for page in pages {
        let Some(mut man) = program("man", Capability::Man) else { return };
        man.args(["--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z"]).arg(&page);
        let formatted = quiet(&mut man, &page.display().to_string());
        assert!(formatted.contains("NAME") && formatted.len() > 1000, "{page:?}: {formatted}");
    }
}

#[test]
fn bash_loads_its_completions() {
    let dir = dir();
    let path = dir.path().join("dio");
    fs::write(&path, stdout_of(&["completions", "bash"])).expect("a file");
    let Some(mut bash) = program("bash", Capability::Bash) else { return };
    quiet(bash.arg("-n").arg(&path), "bash -n");
    let Some(mut bash) = program("bash", Capability::Bash) else { return };
    let script = r#". "$1"; COMP_WORDS=(dio cp --ver); COMP_CWORD=2; _dio dio --ver cp
        echo "${COMPREPLY[@]}""#;
    bash.args(["--norc", "-c", script, "bash"]).arg(&path);
    let found = quiet(&mut bash, "bash");
    assert!(found.split_whitespace().any(|word| word == "--verify"), "{found}");
}

#[test]
fn zsh_loads_its_completions() {
    let dir = dir();
    let path = dir.path().join("_dio");
    fs::write(&path, stdout_of(&["completions", "zsh"])).expect("a file");
    let Some(mut zsh) = program("zsh", Capability::Zsh) else { return };
    quiet(zsh.arg("-n").arg(&path), "zsh -n");
    let Some(mut zsh) = program("zsh", Capability::Zsh) else { return };
    // As from a directory of `fpath`, where it is installed.
    let script = r#"fpath=("$1" $fpath); autoload -U compinit; compinit -u -D
        autoload +X _dio; print -r -- ${_comps[dio]} ${functions[_dio]}"#;
    zsh.args(["-f", "-c", script, "zsh"]).arg(dir.path());
    let found = quiet(&mut zsh, "zsh");
    assert!(found.starts_with("_dio ") && found.contains("--verify"), "{found}");
}

#[test]
fn fish_loads_its_completions() {
    let dir = dir();
    let path = dir.path().join("dio.fish");
    fs::write(&path, stdout_of(&["completions", "fish"])).expect("a file");
    let Some(mut fish) = program("fish", Capability::Fish) else { return };
    quiet(fish.arg("-n").arg(&path), "fish -n");
    let Some(mut fish) = program("fish", Capability::Fish) else { return };
    let script = r#"source $argv[1]; complete -C "dio cp --ver""#;
    fish.env("HOME", dir.path()).args(["--no-config", "-c", script]).arg(&path);
    let found = quiet(&mut fish, "fish");
    assert!(found.contains("--verify"), "{found}");
}
