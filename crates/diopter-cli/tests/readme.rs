//! The commands of README.md: every block marked `sh` runs, in order, in one directory. Blocks
//! marked `shell` need root, a network or a build, and do not run. The Rust code of the page is
//! compiled by the documentation tests of `diopter`.

use std::fs;
use std::path::Path;
use std::process::Command;

use diopter_testkit::env::{Capability, skip};

/// Blocks marked `sh`: copies, striped files, images, measuring.
const BLOCKS: usize = 4;

#[test]
fn the_commands_of_the_readme_work_in_their_order() {
    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../README.md")).unwrap();
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = |name: &str| dir.path().join(name);

    let blocks = blocks(&page);
    assert_eq!(blocks.len(), BLOCKS);
    run(&blocks[0], dir.path());
    assert!(fs::read(path("backup/big.img")).unwrap() == fs::read(path("big.img")).unwrap());

    run(&blocks[1], dir.path());
    assert_eq!(fs::metadata(path("back.img")).unwrap().len(), 100 << 20);
    assert!(!path("big.dio").exists());

    if ["/sbin", "/usr/sbin"].iter().any(|dir| Path::new(dir).join("mkfs.ext3").exists()) {
        let printed = run(&blocks[2], dir.path());
        let bios = |line: &&str| line.starts_with("bios ");
        let counts: Vec<&str> =
            printed.lines().filter(bios).filter_map(|line| line.split(' ').next_back()).collect();
        assert_eq!(counts, ["12", "2"]);
        assert_eq!(fs::read_to_string(path("docs/hello")).unwrap(), "hello\n");
        assert_eq!(fs::metadata(path("out.bin")).unwrap().len(), 52 << 10);
    } else {
        skip(Capability::Ext4, "mkfs.ext3 is not installed");
    }

    run(&blocks[3], dir.path());
    for name in ["dio-bench.json", "dio-bench.html", "new.json"] {
        assert!(path("measured").join(name).exists(), "{name}");
    }
}

/// Returns the scripts of the page, a block each.
fn blocks(page: &str) -> Vec<String> {
    let parts = page.split("\n```sh\n").skip(1);
    parts.map(|part| part.split("\n```").next().unwrap().lines().map(as_run).collect()).collect()
}

/// Returns the line as this test runs it: short rounds, one run after the other, of which `dio
/// compare` may say that the second is worse, or that they are inconclusive.
fn as_run(line: &str) -> String {
    let command = line.split("  #").next().unwrap().trim_end();
    let is_verdict = " || case $? in 1 | 3) ;; *) exit 2 ;; esac";
    let accepted = if command.starts_with("dio compare") { is_verdict } else { "" };
    command.replace("--quick", "--quick --rounds 2 --runtime 100ms") + accepted + "\n"
}

/// Runs a script in `dir` and returns what it printed.
#[track_caller]
fn run(script: &str, dir: &Path) -> String {
    let dio = Path::new(env!("CARGO_BIN_EXE_dio")).parent().unwrap();
    let system = std::env::var("PATH").unwrap();
    let mut shell = Command::new("sh");
    shell.args(["-e", "-c", script]).current_dir(dir).env_clear();
    let output = shell.env("PATH", format!("{}:{system}", dio.display())).output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {script}\n{stderr}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
