//! `dio sum` and `dio verify`: sums, lists of sums, and the comparison of files and trees.

mod cp_support;

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Instant;

use cp_support::*;

const MIB: u64 = 1 << 20;

/// Runs `dio ARGUMENTS` in a directory.
fn run<S: AsRef<OsStr>>(dir: &Path, arguments: impl IntoIterator<Item = S>) -> Output {
    command(dir).args(arguments).output().unwrap()
}

fn command(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.current_dir(dir).env_remove("DIOPTER_BACKEND").env_remove("DIOPTER_LOG");
    command.stdin(Stdio::null());
    command
}

/// Runs it and wants an exit status; returns standard output.
fn run_to<S: AsRef<OsStr>>(
    status: i32,
    dir: &Path,
    arguments: impl IntoIterator<Item = S>,
) -> String {
    let output = run(dir, arguments);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(output.status.code(), Some(status), "{text}{}", message(&output));
    text
}

fn sum_of(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_string()
}

#[test]
fn sums_are_those_of_the_content_and_leave_nothing_in_the_page_cache() {
    let dir = dir();
    for length in [0, 1, 511, 4096, 4097, 3 * MIB + 7] {
        let name = length.to_string();
        let path = dir.path().join(&name);
        make_file(&path, length, length);
        let expected = format!("{}  {name}\n", sum_of(&std::fs::read(&path).unwrap()));
        leave_cache(&File::open(&path).unwrap());
        assert_eq!(run_to(0, dir.path(), ["sum", &name]), expected);
        assert_eq!(run_to(0, dir.path(), ["sum", &name, "--bs=4k", "--iodepth=3"]), expected);
        assert!(cached_bytes(&path) <= 4096, "{length}: {}", cached_bytes(&path));
    }
}

#[test]
fn what_was_just_written_is_flushed_and_read() {
    let dir = dir();
    let bytes = content(1, 300_000);
    std::fs::write(dir.path().join("new"), &bytes).unwrap();
    let document = run_to(0, dir.path(), ["sum", "new", "--json"]);
    let document: serde_json::Value = serde_json::from_str(&document).unwrap();
    assert_eq!(document["schema"], "diopter.sum/1");
    assert_eq!((&document["exit_status"], &document["failures"]), (&0.into(), &0.into()));
    let file = &document["files"][0];
    assert_eq!((&file["name"], &file["bytes"]), (&"new".into(), &300_000.into()));
    assert_eq!((&file["blake3"], file["is_same"].is_null()), (&sum_of(&bytes).into(), true));
}

#[test]
fn holes_count_as_zeros() {
    let dir = dir();
    let path = dir.path().join("sparse");
    let file = File::create(&path).unwrap();
    file.set_len(70 * MIB).unwrap();
    file.write_all_at(&content(1, 5000), 3 * MIB + 1).unwrap();
    file.write_all_at(&content(2, 5000), 40 * MIB).unwrap();
    let text = run_to(0, dir.path(), ["sum", "sparse"]);
    assert_eq!(text, format!("{}  sparse\n", sum_of(&std::fs::read(&path).unwrap())));
}

/// Names in the order of their bytes.
const NAMES: [&[u8]; 6] = [b"a", b"b b", b"back\\slash", b"line\nfeed", b"z", b"\xff\xfe"];

fn make_names(dir: &Path) {
    for (seed, name) in (0u64..).zip(NAMES) {
        std::fs::write(dir.join(OsStr::from_bytes(name)), content(seed, 5000)).unwrap();
    }
}

#[test]
fn the_files_of_a_tree_come_in_order_and_a_list_of_them_can_be_checked() {
    let dir = dir();
    let tree = dir.path().join("tree");
    std::fs::create_dir_all(tree.join("m/empty")).unwrap();
    make_names(&tree);
    make_names(&tree.join("m"));
    symlink("/etc/passwd", tree.join("link")).unwrap();
    let listed = run(dir.path(), ["sum", "tree"]);
    assert!(listed.status.success(), "{}", message(&listed));
    let mut expected = Vec::new();
    let mut add = |below: &[u8], index: usize| {
        let name = [b"tree/", below, NAMES[index]].concat();
        let escaped = String::from_utf8_lossy(&name).replace('\\', "\\\\").replace('\n', "\\n");
        let is_escaped = name.contains(&b'\\') || name.contains(&b'\n');
        let sum = sum_of(&content(u64::try_from(index).unwrap(), 5000));
        expected.extend(if is_escaped { &b"\\"[..] } else { b"" });
        expected.extend(format!("{sum}  ").as_bytes());
        let plain = std::str::from_utf8(&name).is_err();
        expected.extend(if plain { &name[..] } else { escaped.as_bytes() });
        expected.push(b'\n');
    };
    (0..4).for_each(|index| add(b"", index));
    (0..6).for_each(|index| add(b"m/", index));
    (4..6).for_each(|index| add(b"", index));
    assert_eq!(listed.stdout, expected);

    std::fs::write(dir.path().join("list"), &listed.stdout).unwrap();
    let checked = run(dir.path(), ["sum", "--check", "list"]);
    assert!(checked.status.success(), "{}", message(&checked));
    assert_eq!(checked.stdout.iter().filter(|byte| **byte == b'\n').count(), 12);
    assert!(checked.stdout.starts_with(b"tree/a: OK\ntree/b b: OK\n\\tree/back\\\\slash: OK\n"));
    assert_eq!(run_to(0, dir.path(), ["sum", "--check", "list", "--quiet"]), "");

    // One bit, an absent file, a line that is none.
    let other = File::options().write(true).open(tree.join("m/a")).unwrap();
    other.write_all_at(b"!", 4999).unwrap();
    let words = ["sum", "-q", "--check", "list"];
    let differing = run(dir.path(), words);
    assert_eq!(differing.status.code(), Some(1));
    assert_eq!(differing.stdout, b"tree/m/a: FAILED\n");
    assert_eq!(message(&differing), "dio sum: 1 file does not have the sum of the list\n");
    std::fs::remove_file(tree.join("z")).unwrap();
    let failing = run(dir.path(), words);
    assert_eq!(failing.status.code(), Some(2), "a failure outweighs a difference");
    assert_eq!(failing.stdout, b"tree/m/a: FAILED\ntree/z: FAILED\n");
    assert!(message(&failing).contains("tree/z: No such file"), "{}", message(&failing));
}

/// Runs `dio ARGUMENTS` with standard input.
fn run_with(input: &[u8], dir: &Path, arguments: &[&str]) -> Output {
    let mut command = command(dir);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut pipe = child.stdin.take().unwrap();
    let output = std::thread::scope(|scope| {
        // A command that fails early does not take all of it.
        scope.spawn(move || pipe.write_all(input).unwrap_or(()));
        child.wait_with_output()
    });
    output.unwrap()
}

#[test]
fn the_options_of_a_check_come_in_any_order_and_lists_as_names() {
    let dir = dir();
    for name in ["a", "b"] {
        std::fs::write(dir.path().join(name), name).unwrap();
        let list = format!("{}  {name}\n", sum_of(name.as_bytes()));
        std::fs::write(dir.path().join(format!("{name}.b3")), list).unwrap();
    }
    for words in [
        &["--check", "--quiet", "a.b3"][..],
        &["-c", "-q", "a.b3", "b.b3"],
        &["--quiet", "a.b3", "--check"],
        &["a.b3", "--quiet", "--check", "b.b3"],
        &["--check=a.b3", "--quiet"],
    ] {
        assert_eq!(run_to(0, dir.path(), [&["sum"], words].concat()), "", "{words:?}");
    }
    let both = run_to(0, dir.path(), ["sum", "--check", "a.b3", "b.b3"]);
    assert_eq!(both, "a: OK\nb: OK\n");
    std::fs::write(dir.path().join("b"), "c").unwrap();
    let failed = run_to(1, dir.path(), ["sum", "--check", "--quiet", "a.b3", "b.b3"]);
    assert_eq!(failed, "b: FAILED\n");
    for words in [&["sum"][..], &["sum", "--check"], &["sum", "--quiet", "a"]] {
        let output = run(dir.path(), words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", message(&output));
    }
    let output = run(dir.path(), ["sum", "--check", "--quiet"]);
    assert!(message(&output).contains("name one"), "{}", message(&output));
}

#[test]
fn a_dash_is_standard_input_as_with_b3sum() {
    let dir = dir();
    let bytes = content(5, 300_001);
    std::fs::write(dir.path().join("a"), "a").unwrap();
    let output = run_with(&bytes, dir.path(), &["sum", "a", "-", "-"]);
    let (first, second) = (sum_of(b"a"), sum_of(&bytes));
    let expected = format!("{first}  a\n{second}  -\n{}  -\n", sum_of(b""));
    let printed = String::from_utf8(output.stdout.clone()).unwrap();
    assert_eq!(printed, expected, "{}", message(&output));
    let output = run_with(&bytes, dir.path(), &["sum", "--json", "-"]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let file = &document["files"][0];
    assert_eq!((&file["name"], &file["bytes"]), (&"-".into(), &300_001.into()));
    assert_eq!(file["blake3"], second.as_str());

    let list = format!("{second}  -\n");
    std::fs::write(dir.path().join("list"), &list).unwrap();
    let output = run_with(&bytes, dir.path(), &["sum", "--check", "list"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(0), &b"-: OK\n"[..]));
    let output = run_with(b"other", dir.path(), &["sum", "--check", "list"]);
    assert_eq!((output.status.code(), &*output.stdout), (Some(1), &b"-: FAILED\n"[..]));
    let output = run_with(list.as_bytes(), dir.path(), &["sum", "--check", "-"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(message(&output).contains("which the list comes from"), "{}", message(&output));
    std::fs::write(dir.path().join("-"), "file").unwrap();
    let file = run_to(0, dir.path(), ["sum", "./-"]);
    assert_eq!(file, format!("{}  ./-\n", sum_of(b"file")));
}

#[test]
fn a_signal_ends_the_wait_for_standard_input() {
    let dir = dir();
    std::fs::write(dir.path().join("a"), "a").unwrap();
    let mut command = command(dir.path());
    command.args(["sum", "a", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::null()).spawn().unwrap();
    // It waits for standard input once it has printed the first sum.
    let input = child.stdin.take().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    send(&child, rustix::process::Signal::TERM);
    assert_eq!(child.wait().unwrap().code(), Some(143));
    drop(input);
}

#[test]
fn a_list_with_other_lines_is_reported_line_by_line() {
    let dir = dir();
    std::fs::write(dir.path().join("a"), "a").unwrap();
    let good = format!("{}  a\n", sum_of(b"a"));
    let mut child = command(dir.path())
        .args(["sum", "--check", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let text = format!("{good}no sum\n{good}");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b"a: OK\na: OK\n"[..]));
    let expected = "dio sum: line 2 of -: it is not a BLAKE3 sum, two spaces and a name\n";
    assert_eq!(message(&output), expected);

    for (name, text) in [("empty", Vec::new()), ("long", vec![b'x'; 200_000])] {
        std::fs::write(dir.path().join(name), text).unwrap();
        let output = run(dir.path(), ["sum", "--check", name]);
        assert_eq!((output.status.code(), message(&output).lines().count()), (Some(2), 1));
    }
}

#[test]
fn a_list_reads_nothing_outside_the_working_directory_unless_it_may() {
    let dir = dir();
    let here = dir.path().join("here");
    std::fs::create_dir(&here).unwrap();
    std::fs::write(dir.path().join("secret"), "secret").unwrap();
    symlink("../secret", here.join("link")).unwrap();
    symlink("..", here.join("up")).unwrap();
    std::fs::write(here.join("own"), "secret").unwrap();
    symlink("own", here.join("inside")).unwrap();
    let absolute = dir.path().join("secret");
    let names = [absolute.to_str().unwrap(), "../secret", "up/secret", "link", "up/here/../secret"];
    for name in names {
        std::fs::write(here.join("list"), format!("{}  {name}\n", sum_of(b"secret"))).unwrap();
        let output = run(&here, ["sum", "--check", "list"]);
        assert_eq!(output.status.code(), Some(2), "{name}: {}", message(&output));
        assert!(message(&output).contains("outside the working directory"), "{name}");
        let allowed = run_to(0, &here, ["sum", "--check", "list", "--allow-outside"]);
        assert_eq!(allowed, format!("{name}: OK\n"));
    }
    std::fs::write(here.join("list"), format!("{}  ./inside\n", sum_of(b"secret"))).unwrap();
    assert_eq!(run_to(0, &here, ["sum", "--check", "list"]), "./inside: OK\n");
}

#[test]
fn a_terminal_gets_no_control_characters_and_a_pipe_the_name() {
    let dir = dir();
    let name = OsString::from_vec(b"red\x1b[31m".to_vec());
    std::fs::write(dir.path().join(&name), "").unwrap();
    let words = ["sum".as_ref(), name.as_os_str()];
    let piped = run(dir.path(), words);
    assert_eq!(piped.stdout, format!("{}  red\x1b[31m\n", sum_of(b"")).as_bytes());
    let failed = run(dir.path(), ["sum", "no\x1b[31m"]);
    assert!(!failed.stderr.contains(&0x1b), "{}", message(&failed));
}

/// A striped file and a file inside an image have the sums of their content.
#[test]
fn striped_files_are_read_as_they_are_and_in_a_tree_as_their_parts() {
    let dir = dir();
    std::fs::create_dir(dir.path().join("objects")).unwrap();
    make_file(&dir.path().join("plain"), 9, 3 * MIB + 5);
    run_to(0, dir.path(), ["stripe", "create", "striped", "--objects", "objects", "objects"]);
    cp_well(&[], &dir.path().join("plain"), &dir.path().join("striped"));
    let bytes = std::fs::read(dir.path().join("plain")).unwrap();
    let expected = format!("{}  striped\n", sum_of(&bytes));
    assert_eq!(run_to(0, dir.path(), ["sum", "striped"]), expected);
    let equal = run_to(0, dir.path(), ["verify", "plain", "striped"]);
    assert!(equal.starts_with("no difference: 1 file, 3 MiB"), "{equal}");
    let manifest = std::fs::read(dir.path().join("striped")).unwrap();
    let listed = run_to(0, dir.path(), ["sum", "."]);
    assert!(listed.contains(&format!("{}  ./striped\n", sum_of(&manifest))), "{listed}");
    assert_eq!(listed.lines().count(), 4, "{listed}");
}

/// An image inside the working directory may be read, one behind a link may not.
#[test]
fn a_list_reads_no_image_outside_the_working_directory() {
    let dir = dir();
    let here = dir.path().join("here");
    std::fs::create_dir_all(here.join("content")).unwrap();
    std::fs::write(here.join("content/s"), "secret").unwrap();
    let image = dir.path().join("image");
    File::create(&image).unwrap().set_len(8 * MIB).unwrap();
    let mut mkfs = Command::new("mkfs.ext4");
    mkfs.args(["-q", "-F", "-d"]).arg(here.join("content")).arg(&image);
    match mkfs.output() {
        Ok(made) if made.status.success() => {}
        other => return skip(Capability::Ext4, format!("mkfs.ext4: {other:?}")),
    }
    symlink("../image", here.join("link")).unwrap();
    std::fs::copy(&image, here.join("own")).unwrap();
    let list = |name: &str| format!("{}  {name}\n", sum_of(b"secret"));
    std::fs::write(here.join("list"), list("link::/s")).unwrap();
    let output = run(&here, ["sum", "--check", "list"]);
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    assert!(message(&output).contains("outside the working directory"), "{}", message(&output));
    run_to(0, &here, ["sum", "--check", "list", "--allow-outside"]);
    std::fs::write(here.join("list"), list("own::/s")).unwrap();
    assert_eq!(run_to(0, &here, ["sum", "--check", "list"]), "own::/s: OK\n");
}

#[test]
fn a_signal_ends_the_wait_for_a_list_and_a_lost_reader_the_work() {
    let dir = dir();
    let mut child = command(dir.path())
        .args(["sum", "--check", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // It waits for the second line once it has reported the first.
    let mut list = child.stdin.take().unwrap();
    list.write_all(b"no sum\n").unwrap();
    let mut reported = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut reported).unwrap();
    assert!(reported.contains("line 1 of -"), "{reported}");
    send(&child, rustix::process::Signal::TERM);
    let status = child.wait().unwrap();
    assert_eq!(status.code(), Some(143));
    drop(list);

    for number in 0..200 {
        std::fs::write(dir.path().join(number.to_string()), "content").unwrap();
    }
    let mut child = command(dir.path()).args(["sum", "."]).stdout(Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    assert_eq!(child.wait().unwrap().code(), Some(141));
    for words in [["sum", "--quiet", "1"], ["sum", "--allow-outside", "1"]] {
        run_to(2, dir.path(), words);
    }
}

/// Returns the output of `dio verify one two` in a directory.
fn verify(dir: &Path, status: i32) -> String {
    run_to(status, dir, ["verify", "one", "two"])
}

#[test]
fn files_that_differ_are_named_with_the_first_bytes_that_do() {
    let dir = dir();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    make_file(&one, 3, 9 * MIB + 100);
    std::fs::copy(&one, &two).unwrap();
    leave_cache(&File::open(&one).unwrap());
    assert!(verify(dir.path(), 0).starts_with("no difference: 1 file, 9 MiB"));
    assert!(cached_bytes(&one) <= 4096, "{}", cached_bytes(&one));
    let file = File::options().write(true).open(&two).unwrap();
    let last = 9 * MIB + 99;
    for at in [last, 5 * MIB + 1000, 700] {
        let mut byte = [0];
        File::open(&one).unwrap().read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[!byte[0]], at).unwrap();
        assert_eq!(verify(dir.path(), 1), format!("one and two differ at byte {at} (1 byte)\n"));
        let limited = ["verify", "one", "two", "--bytes", &at.to_string()];
        assert!(run_to(0, dir.path(), limited).contains("no difference"), "{at}");
    }
    assert_eq!(run_to(1, dir.path(), ["verify", "-q", "one", "two"]), "");
    let text = run_to(1, dir.path(), ["verify", "--json", "two", "one"]);
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    let found = &document["differences"][0];
    assert_eq!((&found["what"], &found["first"]), (&"bytes".into(), &"two".into()));
    assert_eq!((&found["offset"], &found["length"]), (&700.into(), &1.into()));
    assert_eq!((&document["exit_status"], &document["left_out"]), (&1.into(), &0.into()));
}

#[test]
fn a_longer_file_is_different_unless_only_the_start_counts() {
    let dir = dir();
    make_file(&dir.path().join("one"), 3, 10_000);
    let start = std::fs::read(dir.path().join("one")).unwrap()[..9000].to_vec();
    std::fs::write(dir.path().join("two"), start).unwrap();
    let expected = "one has 10000 bytes and two 9000; the first 9000 are the same\n";
    assert_eq!(verify(dir.path(), 1), expected);
    run_to(0, dir.path(), ["verify", "-n", "9000", "one", "two"]);
    assert_eq!(run_to(1, dir.path(), ["verify", "-n", "9500", "one", "two"]), expected);
}

#[test]
fn a_hole_is_the_same_as_zeros_and_two_holes_cost_nothing() {
    let dir = dir();
    let sparse = File::create(dir.path().join("one")).unwrap();
    sparse.set_len(20 * MIB).unwrap();
    sparse.write_all_at(&[1], 7 * MIB).unwrap();
    let mut filled = vec![0; 20 << 20];
    filled[7 << 20] = 1;
    std::fs::write(dir.path().join("two"), &filled).unwrap();
    assert!(verify(dir.path(), 0).contains("no difference"));
    filled[19 << 20] = 1;
    std::fs::write(dir.path().join("two"), &filled).unwrap();
    let text = verify(dir.path(), 1);
    assert_eq!(text, format!("one and two differ at byte {} (1 byte)\n", 19 * MIB));

    // To read them would take minutes.
    for name in ["one", "two"] {
        let file = File::create(dir.path().join(name)).unwrap();
        file.set_len(1 << 40).unwrap();
        file.write_all_at(b"end", (1 << 40) - 3).unwrap();
    }
    let started = Instant::now();
    assert!(verify(dir.path(), 0).contains("1 TiB"));
    assert!(started.elapsed() < PATIENCE / 4, "{:?}", started.elapsed());
}

#[test]
fn every_difference_of_two_trees_is_found() {
    let dir = dir();
    for tree in ["one", "two"] {
        let root = dir.path().join(tree);
        std::fs::create_dir_all(root.join("deep/er")).unwrap();
        for (seed, name) in (0u64..).zip(["same", "deep/same", "deep/er/other"]) {
            make_file(&root.join(name), seed, 5000);
        }
        symlink("same", root.join("link")).unwrap();
    }
    assert!(verify(dir.path(), 0).starts_with("no difference: 3 files, "));
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    std::fs::write(two.join("deep/er/other"), content(8, 5000)).unwrap();
    std::fs::write(one.join("only"), "").unwrap();
    std::fs::create_dir_all(two.join("deep/new/below")).unwrap();
    std::fs::remove_file(two.join("link")).unwrap();
    symlink("elsewhere", two.join("link")).unwrap();
    std::fs::remove_file(two.join("same")).unwrap();
    std::fs::create_dir(two.join("same")).unwrap();
    let mode = rustix::fs::Mode::RUSR;
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, one.join("pipe"), fifo, mode, 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(two.join("pipe")).unwrap();
    let text = verify(dir.path(), 1);
    let mut found: Vec<&str> = text.lines().collect();
    found.sort_unstable();
    let bytes = found.remove(0);
    assert!(
        bytes.starts_with("one/deep/er/other and two/deep/er/other differ at byte "),
        "{bytes}"
    );
    assert_eq!(
        found,
        [
            "one/deep/new does not exist",
            "one/pipe is a fifo, and two/pipe a socket",
            "one/same is a file, and two/same a directory",
            "the links one/link and two/link lead elsewhere",
            "two/only does not exist",
        ]
    );
    let text = run_to(1, dir.path(), ["verify", "--json", "one", "two"]);
    let document: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((&document["files"], &document["failures"]), (&2.into(), &0.into()));
    // A file and the directory that has it.
    let one_file = ["verify", "one/deep/same", "two/deep"];
    assert!(run_to(0, dir.path(), one_file).starts_with("no difference: 1 file"));
}

#[test]
fn what_cannot_be_read_is_a_failure_with_a_remedy() {
    let dir = dir();
    std::fs::write(dir.path().join("file"), "").unwrap();
    run(dir.path(), ["sum", "file"]);
    let fifo = dir.path().join("fifo");
    let mode = rustix::fs::Mode::RUSR;
    let kind = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, kind, mode, 0).unwrap();
    for words in [
        &["sum", "absent"][..],
        &["sum", "fifo"],
        &["sum", "file::/x"],
        &["sum", "--check", "absent"],
        &["verify", "file", "absent"],
        &["verify", "fifo", "file"],
        &["sum", "file", "--bs=1000"],
    ] {
        let output = run(dir.path(), words);
        assert_eq!(output.status.code(), Some(2), "{words:?}: {}", message(&output));
        assert_eq!(message(&output).lines().count(), 1, "{words:?}: {}", message(&output));
        assert!(message(&output).starts_with(&format!("dio {}: ", words[0])), "{words:?}");
    }
    // The others are still read.
    let output = run(dir.path(), ["sum", "absent", "file"]);
    assert_eq!(output.stdout, format!("{}  file\n", sum_of(b"")).as_bytes());
    assert_eq!(output.status.code(), Some(2));
}

/// A hole of 1 TiB takes minutes to hash. A copy hashes its holes for the document alone.
#[test]
fn a_signal_ends_a_sum_and_a_verified_copy_in_the_middle_of_a_hole() {
    let dir = dir();
    File::create(dir.path().join("huge")).unwrap().set_len(1 << 40).unwrap();
    let copy = &["cp", "--reflink=never", "--verify", "--json", "huge", "copy"];
    for words in [&["sum", "huge"][..], copy] {
        let mut child = command(dir.path())
            .args(words)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        // It uses the processor once it hashes.
        wait_for("the hash", || {
            let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
            let user = stat.rsplit(')').next().unwrap().split(' ').nth(12).unwrap();
            user.parse::<u64>().unwrap() > 20
        });
        let started = Instant::now();
        send(&child, rustix::process::Signal::TERM);
        let status = child.wait().unwrap();
        assert_eq!(status.code(), Some(143), "{words:?}");
        assert!(started.elapsed() < PATIENCE / 12, "{words:?}: {:?}", started.elapsed());
        println!("{} ended after {:?}", words[0], started.elapsed());
    }
    assert_eq!(names(dir.path()), ["huge"]);
}
