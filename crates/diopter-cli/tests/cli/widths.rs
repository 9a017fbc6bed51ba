//! Tests of the width of texts: no line is wider than the terminal, except paths, commands to copy
//! and words that cannot be divided.

use std::fs;

use diopter_testkit::files::dir;

use crate::command_output::Output;
use crate::dio;
use crate::generated::COMMANDS;

const WIDTHS: [usize; 5] = [20, 40, 72, 80, 200];
/// On a narrower terminal texts are complete, and as narrow as their words.
const LEAST: usize = 40;

/// Prints the text of a command at each width and checks the lines.
fn check(words: &[&str], status: i32) {
    for columns in WIDTHS {
        let output = Output::of(dio(words).env("COLUMNS", columns.to_string()));
        assert_eq!(output.status, status, "{words:?}: {}", output.stderr);
        assert_ne!(output.stdout, "", "{words:?}");
        for line in output.stdout.lines() {
            // A path, a URL, and what else cannot be divided.
            let is_word = !line.trim().contains(' ') || line.contains("/.tmp");
            let fits = line.chars().count() <= columns || columns < LEAST;
            assert!(fits || is_word || is_to_copy(line), "{columns}, {words:?}: {line}");
        }
    }
}

/// Returns true for a command line of an example, which is as long as it is.
fn is_to_copy(line: &str) -> bool {
    let text = line.trim_start();
    let is_program = |name: &&str| text.starts_with(*name);
    let is_indented = [2, 4].contains(&(line.len() - text.len()));
    is_indented && ["dio ", "(cd ", "git ", "'dio ", "tar ", "zcat "].iter().any(is_program)
}

#[test]
fn reports_fit_the_terminal() {
    let dir = dir();
    let path = |name: &str| dir.path().join(name).to_str().expect("UTF-8").to_owned();
    let [file, longer, striped, copy] = ["file", "longer", "striped", "copy"].map(path);
    fs::write(&file, vec![7; 3 << 20]).expect("a file");
    fs::write(&longer, vec![7; (3 << 20) + 1]).expect("a file");
    let objects = ["a", "b", "c"].map(path);
    objects.iter().for_each(|it| fs::create_dir(it).expect("a directory"));
    let [a, b, c] = &objects;
    let create = ["stripe", "create", &striped, "--objects", a, b, c, "--stripe-size", "64k"];
    assert_eq!(Output::of(&mut dio(&create)).status, 0);
    assert_eq!(Output::of(&mut dio(&["cp", &file, &striped])).status, 0);
    for name in [&file, &striped] {
        check(&["probe", name], 0);
        for operation in ["read", "write"] {
            check(&["explain", operation, name, "--offset", "1", "--length", "1M"], 0);
        }
    }
    check(&["stripe", "info", &striped], 0);
    check(&["cp", "-v", "--verify", &file, &copy], 0);
    check(&["verify", &file, &copy], 0);
    check(&["verify", &file, &longer], 1);
    check(&["sum", &file], 0);
}

/// Names without a directory: only what is printed next to them is as wide as it is.
#[test]
fn the_first_line_of_a_report_fits_the_terminal() {
    let dir = dir();
    let at = |words: &[&str]| {
        Output::of(dio(words).current_dir(dir.path()).env("COLUMNS", LEAST.to_string()))
    };
    let striped = "a-striped-file";
    fs::create_dir(dir.path().join("objects")).expect("a directory");
    fs::write(dir.path().join("file"), vec![7; 3 << 20]).expect("a file");
    assert_eq!(at(&["stripe", "create", striped, "--objects", "objects"]).status, 0);
    assert_eq!(at(&["cp", "file", striped]).status, 0);
    let sized = "striped file, 3 MiB (3145728 B)";
    for words in [["probe", striped].as_slice(), &["stripe", "info", striped]] {
        let text = at(words).stdout;
        assert!(text.starts_with(&format!("{striped}:\n  {sized}\n\n")), "{words:?}: {text}");
    }
}

#[test]
fn help_fits_the_terminal() {
    for command in COMMANDS {
        for option in ["-h", "--help"] {
            let words: Vec<&str> = command.split(' ').chain([option]).collect();
            check(&words, 0);
            let [narrow, wide] = ["40", "200"].map(|columns| {
                let output = Output::of(dio(&words).env("COLUMNS", columns)).stdout;
                output.lines().filter(|it| is_to_copy(it)).map(str::to_owned).collect::<Vec<_>>()
            });
            assert_eq!(narrow, wide, "{words:?}: a command line is whole");
        }
    }
}
