//! The file of the counters of `dio run --report`: private, and trusted only as `dio run` made it.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::Command;

use diopter_testkit::built::products;
use diopter_testkit::env::is_root;
use diopter_testkit::files;

use crate::support::{compiled, dio_run, make_cold, text};

const FILE_BYTES: usize = 64 << 10;

/// Runs a program that would count in the file; returns true if it wrote to `watched`.
fn writes(path: &Path, watched: &Path) -> bool {
    let mut command = Command::new("true");
    command.env("LD_PRELOAD", products().join("libdiopter_preload.so"));
    let status = command.env("DIOPTER_RUN_REPORT", path).status();
    assert!(status.expect("it runs").success());
    fs::read(watched).expect("it is there") != vec![0; FILE_BYTES]
}

#[test]
fn another_file_under_the_name_stays_as_it_is() {
    let dir = files::dir();
    let file = dir.path().join("file");
    let make = |mode: u32| {
        fs::write(&file, vec![0; FILE_BYTES]).expect("a file");
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).expect("it is ours");
    };
    make(0o600);
    assert!(writes(&file, &file), "one like that of dio run is used");
    make(0o600);
    let link = dir.path().join("link");
    symlink(&file, &link).expect("a link");
    assert!(!writes(&link, &file), "a symbolic link");
    fs::remove_file(&link).expect("it is there");
    fs::hard_link(&file, &link).expect("a link");
    assert!(!writes(&link, &file), "a second name");
    fs::remove_file(&link).expect("it is there");
    make(0o622);
    assert!(!writes(&file, &file), "one that others may write");
    if is_root() {
        make(0o600);
        chown(&file, Some(65_534), None).expect("root may");
        assert!(!writes(&file, &file), "one of another user");
    }
}

/// Runs `true` with the file of the counters, of a page; returns the file.
fn counted(path: &Path) -> Vec<u8> {
    let mut command = Command::new("true");
    command.env("LD_PRELOAD", products().join("libdiopter_preload.so"));
    let status = command.env("DIOPTER_RUN_REPORT", path).status();
    assert!(status.expect("it runs").success());
    fs::read(path).expect("it is there")
}

#[test]
fn a_process_that_ends_while_it_writes_the_names_leaves_them_to_the_next() {
    let dir = files::dir();
    let path = dir.path().join("file");
    let page = rustix::param::page_size();
    let make = |bytes: &[u8]| {
        fs::write(&path, bytes).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("it is ours");
    };
    make(&vec![0; page]);
    let whole = counted(&path);
    assert!(whole.len() == page && whole.starts_with(&1_u64.to_ne_bytes()));
    // Half of the names, and no mark.
    let mut half = whole.clone();
    half[..8].fill(0);
    half[page / 2 + 32..].fill(0);
    make(&half);
    assert!(counted(&path) == whole);
}

#[test]
fn a_limit_on_the_size_of_files_does_not_end_the_program() {
    let script = "ulimit -f 0; exec true";
    let output = dio_run(&["--report"]).args(["sh", "-c", script]).output().expect("it runs");
    assert!(output.status.success(), "{}: {}", output.status, text(&output));
    assert!(text(&output).contains("nothing had to be served"), "{}", text(&output));
}

#[test]
fn the_file_is_in_a_private_directory_and_both_are_removed() {
    let script = "stat -c %a \"${DIOPTER_RUN_REPORT%/*}\"; echo \"$DIOPTER_RUN_REPORT\"";
    let dir = files::dir();
    let mut command = dio_run(&["--report"]);
    let output = command.args(["sh", "-c", script]).env("TMPDIR", dir.path()).output();
    let said = text(&output.expect("it runs"));
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("700"), "{said}");
    assert!(Path::new(lines.next().expect("its name")).starts_with(dir.path()), "{said}");
    assert_eq!(fs::read_dir(dir.path()).expect("it is there").count(), 0);
}

/// Runs a program under `--all`, and returns the document.
fn document_of(words: &[&OsStr]) -> String {
    let dir = files::dir();
    let out = dir.path().join("out.json");
    let mut command = dio_run(&["--all", "--json-out", out.to_str().expect("UTF-8")]);
    let output = command.args(words).output().expect("it runs");
    assert!(output.status.success(), "{}", text(&output));
    fs::read_to_string(&out).expect("it was written")
}

#[test]
fn the_document_has_what_was_advised() {
    let dir = files::dir();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::write(&from, vec![7; 3 << 20]).expect("a file");
    make_cold(&from);
    let document =
        document_of(&["cp".as_ref(), "--reflink=never".as_ref(), from.as_ref(), to.as_ref()]);
    for name in ["read_behind_bytes", "written_behind_bytes"] {
        assert!(document.contains(&format!("\"{name}\": {},", 3 << 20)), "{document}");
    }
    assert!(document.contains("\"processes_with_seccomp\": 0"), "{document}");
}

#[test]
fn the_document_counts_programs_with_a_filter() {
    let Some(program) = compiled("bystander", &[]) else { return };
    let dir = files::dir();
    let file = dir.path().join("file");
    fs::write(&file, "").expect("a file");
    let document = document_of(&[program.as_ref(), "confined_kills".as_ref(), file.as_ref()]);
    assert!(document.contains("\"processes_with_seccomp\": 1"), "{document}");
    assert!(document.contains("\"written_behind_bytes\": 0,"), "{document}");
}

#[test]
fn the_document_has_what_the_report_says() {
    let dir = files::dir();
    let (from, out) = (dir.path().join("from"), dir.path().join("out.json"));
    fs::write(&from, vec![7; 8000]).expect("a file");
    let mut command = dio_run(&["--json-out", out.to_str().expect("UTF-8")]);
    let input = format!("if={}", from.display());
    let output = command.args(["dd", &input, "bs=4000", "iflag=direct", "status=none"]).output();
    let output = output.expect("it runs");
    assert!(output.status.success() && output.stdout == vec![7; 8000], "{}", text(&output));
    assert_eq!(output.stderr, b"", "{}", text(&output));
    let document = fs::read_to_string(&out).expect("it was written");
    for line in ["\"schema\": \"diopter.run/1\"", "\"status\": 0", "\"is_loaded\": true"] {
        assert!(document.contains(line), "{document}");
    }
    assert!(!document.contains("\"einvals_avoided\": 0"), "{document}");
}
