//! Tests of what `dio` generates: help, the version, schemas, man pages, completions.

use std::fs;
use std::path::Path;
use std::process::Command;

use diopter_testkit::files::dir;
use snapbox::{Data, assert_data_eq};

use crate::command_output::Output;
use crate::stdout_of;

/// Every command; the last four are hidden.
pub const COMMANDS: [&str; 26] = [
    "cp",
    "verify",
    "sum",
    "explain",
    "probe",
    "bench",
    "compare",
    "report",
    "run",
    "trace",
    "stripe",
    "stripe create",
    "stripe info",
    "stripe rm",
    "stripe seal",
    "stripe unseal",
    "stripe adopt",
    "lab",
    "lab kernels",
    "lab run",
    "lab bisect",
    "lab check",
    "bench-round",
    "man",
    "completions",
    "schema",
];

/// Every document that has a schema.
const SCHEMAS: [&str; 15] = [
    "bench",
    "compare",
    "cp",
    "explain",
    "explain-rados",
    "probe",
    "stripe",
    "stripe-rados",
    "sum",
    "verify",
    "lab-kernels",
    "lab-bisect",
    "lab-check",
    "trace",
    "trace-diff",
];

/// A golden file, by its path from this crate.
fn golden(path: &str) -> Data {
    Data::read_from(&Path::new(env!("CARGO_MANIFEST_DIR")).join(path), None).raw()
}

#[test]
fn help_of_every_command_is_as_it_was() {
    for command in [""].into_iter().chain(COMMANDS) {
        let words: Vec<&str> = command.split_whitespace().collect();
        let name = if command.is_empty() { "dio".to_owned() } else { words.join("-") };
        for (file, option) in [("help", "--help"), ("h", "-h")] {
            let path = format!("tests/golden/{file}-{name}.txt");
            let help = stdout_of(&[&words[..], &[option]].concat());
            // clap leaves blanks in empty lines, which editors remove from golden files.
            let help: String = help.lines().map(|line| format!("{}\n", line.trim_end())).collect();
            assert_data_eq!(help, golden(&path));
        }
    }
}

#[test]
fn the_synopsis_of_cp_has_its_target() {
    let page = stdout_of(&["man", "cp"]);
    assert!(page.contains("<\\fISRC>... <DST\\fR>"), "{page}");
}

#[test]
fn help_of_a_command_is_printed_by_help_too() {
    for words in [&["cp"][..], &["stripe", "create"], &["trace"]] {
        let by_command = stdout_of(&[&["help"], words].concat());
        assert_eq!(by_command, stdout_of(&[words, &["--help"]].concat()), "{words:?}");
    }
}

#[test]
fn the_version_has_the_backends_and_what_is_installed() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(stdout_of(&["-V"]), format!("dio {version}\n"));
    let dir = dir();
    let prefix = dir.path().canonicalize().expect("a path");
    let (bin, lib) = (prefix.join("bin"), prefix.join("lib/diopter"));
    fs::create_dir_all(&bin).expect("a directory");
    fs::create_dir_all(&lib).expect("a directory");
    diopter_testkit::files::program(Path::new(env!("CARGO_BIN_EXE_dio")), &bin.join("dio"));
    // PREFIX is a directory of this run, and a build may have a directory compiled in.
    let text = |variables: &[(&str, &Path)], words: &[&str]| {
        let mut command = Command::new(bin.join("dio"));
        command.env_remove("DIOPTER_PRELOAD").envs(variables.iter().copied()).args(words);
        let output = Output::of(&mut command);
        let text = (output.stdout + &output.stderr).replace(&*prefix.to_string_lossy(), "PREFIX");
        match option_env!("DIOPTER_LIBDIR") {
            Some(dir) => text.replace(&format!(", {dir}/libdiopter-preload.so"), ""),
            None => text,
        }
    };
    let mut whole = text(&[], &["--version"]) + &text(&[], &["run", "--", "true"]);
    fs::write(lib.join("libdiopter-preload.so"), "").expect("a file");
    whole += &text(&[], &["--version"]);
    let other = lib.join("other.so");
    whole += &text(&[("DIOPTER_PRELOAD", &other)], &["--version"]);
    // librados is there or not.
    let whole: String = whole
        .replace(version, "VERSION")
        .split_inclusive('\n')
        .map(|line| if line.starts_with("rados: ") { "rados: RADOS\n" } else { line })
        .collect();
    assert_data_eq!(whole, golden("tests/golden/version.txt"));
}

#[test]
fn schemas_are_those_of_the_documentation() {
    for command in SCHEMAS {
        let path = format!("../../docs/schema/{command}.json");
        assert_data_eq!(stdout_of(&["schema", command]), golden(&path));
    }
}

#[test]
fn man_pages_are_written_for_every_command_that_is_shown() {
    let dir = dir();
    let out = dir.path().to_str().unwrap();
    assert_eq!(stdout_of(&["man", "--out", out]), "");
    let mut names: Vec<String> = std::fs::read_dir(dir.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let expected = [
        "dio-bench.1",
        "dio-compare.1",
        "dio-cp.1",
        "dio-explain.1",
        "dio-lab-bisect.1",
        "dio-lab-check.1",
        "dio-lab-kernels.1",
        "dio-lab-run.1",
        "dio-lab.1",
        "dio-probe.1",
        "dio-report.1",
        "dio-run.1",
        "dio-stripe-adopt.1",
        "dio-stripe-create.1",
        "dio-stripe-info.1",
        "dio-stripe-rm.1",
        "dio-stripe-seal.1",
        "dio-stripe-unseal.1",
        "dio-stripe.1",
        "dio-sum.1",
        "dio-trace.1",
        "dio-verify.1",
        "dio.1",
    ];
    assert_eq!(names, expected);
    let nested = stdout_of(&["man", "stripe-create"]);
    assert!(nested.contains(".TH dio-stripe-create 1") && nested.contains("\\-\\-objects"));
    let written = std::fs::read_to_string(dir.path().join("dio-cp.1")).unwrap();
    assert_eq!(written, stdout_of(&["man", "cp"]));
    assert!(!written.contains(" \\fR]"), "an option without a long name: {written}");
    assert!(written.contains("[\\fB\\-p\\fR]"), "{written}");
    assert!(written.contains(".TH dio-cp 1") && written.contains("\\-\\-verify"), "{written}");
}

#[test]
fn completions_know_the_commands_and_their_options() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout_of(&["completions", shell]);
        for word in ["explain", "probe", "verify", "linux-3.10", "stripe-size", "unseal"] {
            assert!(script.contains(word), "{shell}: {word}");
        }
    }
}
