//! The `dio` command as a script sees it: words, documents, exit statuses. What `dio cp` does to
//! files is in the tests of its name.

mod command_output;
#[path = "cli/generated.rs"]
mod generated;
#[path = "cli/installed.rs"]
mod installed;
mod json_schema;
#[path = "cli/widths.rs"]
mod widths;

use diopter_testkit::env::{Capability, skip};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use command_output::Output;
use diopter_testkit::files::dir;
use serde_json::Value;
use snapbox::{assert_data_eq, file};

/// The command with a clean environment, in 80 columns.
fn dio(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.args(arguments).env_clear().env("COLUMNS", "80").stdin(Stdio::null());
    command
}

/// Returns the output of a run that must succeed silently.
fn stdout_of(arguments: &[&str]) -> String {
    let output = Output::of(&mut dio(arguments));
    assert_eq!((output.status, output.stderr.as_str()), (0, ""), "{arguments:?}");
    output.stdout
}

/// The message of a run that must fail with exit status 2 and print nothing else.
fn refusal_of(arguments: &[&str]) -> String {
    let output = Output::of(&mut dio(arguments));
    assert_eq!(
        (output.status, output.stdout.as_str()),
        (2, ""),
        "{arguments:?}: {}",
        output.stderr
    );
    output.stderr
}

/// A file of so many bytes, all of it a hole.
fn hole(dir: &tempfile::TempDir, bytes: u64) -> String {
    let path = dir.path().join("hole");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path.to_str().unwrap().to_owned()
}

fn json_of(arguments: &[&str]) -> Value {
    serde_json::from_str(&stdout_of(arguments)).unwrap()
}

fn schema_file(command: &str) -> PathBuf {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schema");
    docs.join(format!("{command}.json"))
}

#[test]
fn documents_are_as_their_schemas_say() {
    let dir = dir();
    let name = hole(&dir, 1 << 20);
    let copy = dir.path().join("copy");
    let copy = copy.to_str().unwrap();
    let (inside, striped) = (dir.path().to_str().unwrap(), dir.path().join("striped"));
    let striped = striped.to_str().unwrap();
    stdout_of(&["stripe", "create", striped, "--objects", inside, inside]);
    let range = ["--offset=7", "--length=100000", "--bio-bytes-max=16k", "--json"];
    for (command, arguments) in [
        ("explain", [&["explain", "write", &name], &range[..]].concat()),
        ("explain", [&["explain", "read", &name], &range[..]].concat()),
        ("explain", [&["explain", "write", striped], &range[..]].concat()),
        ("probe", vec!["probe", "--json", &name, inside, striped]),
        ("stripe", vec!["stripe", "info", "--json", striped]),
        ("cp", vec!["cp", "--json", &name, copy]),
    ] {
        let schema = json_of(&["schema", command]);
        let document = json_of(&arguments);
        let schema_name = format!("diopter.{command}/1");
        assert_eq!(document["schema"].as_str(), Some(schema_name.as_str()));
        assert_eq!(json_schema::mismatch(&schema, &document), None, "{arguments:?}");
    }
}

#[test]
fn explain_follows_a_route_and_says_what_is_cached() {
    let dir = dir();
    let name = hole(&dir, 1 << 20);
    let route_of = |policy: &str| {
        let range = ["--offset", "0", "--length", "64k"];
        let request = [&["explain", "read", &name, "--route", policy, "--json"], &range[..]];
        json_of(&request.concat())["route"].clone()
    };
    if route_of("direct")["direct"] != 65536 {
        return skip(Capability::Direct, "the file system of the directory has no direct I/O");
    }
    assert_eq!(route_of("adaptive")["direct"], 65536, "nothing is cached");
    assert_eq!(std::fs::read(&name).unwrap().len(), 1 << 20, "all of it is cached now");
    let route = route_of("adaptive");
    assert_eq!((route["buffered"].as_u64(), route["direct"].as_u64()), (Some(65536), Some(0)));
    assert_eq!(route["why"], serde_json::json!(["cached"]));
    assert_eq!(route_of("direct")["direct"], 65536, "the cache changes nothing");
    assert_eq!(route_of("buffered")["buffered"], 65536);
}

#[test]
fn explain_tells_the_fields_of_the_contract_in_its_order() {
    let dir = dir();
    let name = hole(&dir, 1 << 20);
    let request = ["explain", "write", &name, "--offset", "0", "--length", "52k", "--json"];
    let output = stdout_of(&request);
    let document: Value = serde_json::from_str(&output).unwrap();
    if document["route"]["direct"] != 53248 {
        return skip(
            Capability::Direct,
            "the target directory is on a file system without direct I/O",
        );
    }
    let (engine, kernel) = output.split_once("  \"kernel\": {").expect("the kernel comes last");
    let masked: String = engine.lines().map(|line| masked(line) + "\n").collect();
    assert_data_eq!(masked, file!["golden/explain-write.json"].raw());
    let keys: Vec<&str> = kernel.lines().filter_map(|line| line.split('"').nth(1)).collect();
    let all = [
        "release",
        "is_running",
        "file_system",
        "queued",
        "context",
        "why",
        "waited",
        "context",
        "why",
        "device_requests_min",
        "device_requests_max",
        "bytes_max",
        "segments_max",
        "page_cache",
        "used",
        "why",
    ];
    assert_eq!(keys, all);
    assert_eq!(document["kernel"]["waited"]["context"], "task");
}

#[test]
fn explain_predicts_another_kernel_and_refuses_what_is_none() {
    let dir = dir();
    let name = hole(&dir, 1 << 20);
    let request = ["explain", "write", &name, "--offset", "0", "--length", "4k", "--json"];
    let of = |version| json_of(&[&request[..], &["--kernel", version]].concat());
    let old = of("6.1");
    assert_eq!(
        (&old["kernel"]["release"], &old["kernel"]["is_running"]),
        (&"6.1".into(), &false.into())
    );
    let file_system = old["kernel"]["file_system"].as_str().unwrap();
    if matches!(file_system, "ext4" | "xfs") {
        // A hole: its blocks are new.
        for version in ["6.1", "6.18", "7.2"] {
            assert_eq!(of(version)["kernel"]["queued"]["context"], "worker", "{version}");
        }
    }
    let message = refusal_of(&[&request[..], &["--kernel", "newest"]].concat());
    assert!(message.contains("invalid kernel version `newest`; write 6.1"), "{message}");
}

#[test]
fn a_request_without_a_bio_completes_in_the_submitting_task() {
    let dir = dir();
    let name = hole(&dir, 1 << 20);
    for request in [
        ["read", &name, "--offset=2M", "--length=4k"],
        ["read", &name, "--offset=0", "--length=0"],
        ["write", &name, "--offset=0", "--length=0"],
    ] {
        let document = json_of(&[&["explain", "--json"], &request[..]].concat());
        let kernel = &document["kernel"];
        assert_eq!(document["bios"], Value::Array(Vec::new()), "{request:?}");
        assert_eq!(kernel["queued"]["context"], "task", "{request:?}: {kernel:#}");
        assert_eq!(kernel["device_requests_max"], 0, "{request:?}: {kernel:#}");
    }
}

/// A line without what depends on the machine: names, the backend, alignments, the page.
fn masked(line: &str) -> String {
    let volatile = [
        "\"name\":",
        "\"memory\":",
        "\"offset_read\":",
        "\"offset_write\":",
        "\"source\":",
        "\"page_size\":",
    ];
    let is_backend = line.contains("\"why\": \"") && line.contains("io_uring");
    match line.split_once(':') {
        Some((key, value)) if is_backend || volatile.iter().any(|known| line.contains(known)) => {
            format!("{key}: MASKED{}", if value.ends_with(',') { "," } else { "" })
        }
        _ => line.to_owned(),
    }
}

#[test]
fn explaining_a_write_changes_nothing() {
    let dir = dir();
    let path = dir.path().join("file");
    std::fs::write(&path, vec![7; 100_000]).unwrap();
    let looked = |path: &Path| {
        let output = std::fs::metadata(path).unwrap();
        (std::fs::read(path).unwrap(), output.modified().unwrap(), output.len())
    };
    let before = looked(&path);
    for offset in ["0", "7", "99999", "1M"] {
        let name = path.to_str().unwrap();
        let output =
            stdout_of(&["explain", "write", name, "--offset", offset, "--length", "50000"]);
        assert!(output.contains("write 48.8 KiB (50000 B)"), "{output}");
    }
    assert!(looked(&path) == before);
}

#[test]
fn what_may_not_be_written_is_explained_for_reading() {
    // A program that runs may not be written, by root neither.
    let name = env!("CARGO_BIN_EXE_dio");
    let output = stdout_of(&["explain", "read", name, "--offset=0", "--length=4k"]);
    assert!(output.contains("read 4 KiB (4096 B)"), "{output}");
}

#[test]
fn a_write_to_what_may_not_be_written_is_explained_or_refused_by_name() {
    let name = env!("CARGO_BIN_EXE_dio");
    let output = Output::of(&mut dio(&["explain", "write", name, "--offset=0", "--length=4k"]));
    let is_explained = output.status == 0 && output.stdout.contains("write 4 KiB (4096 B)");
    let is_refused = output.status == 2 && output.stderr.contains("Text file busy (ETXTBSY)");
    assert!(is_explained || is_refused, "{} {}", output.stdout, output.stderr);
}

#[test]
fn a_policy_is_told_as_it_was_said() {
    let dir = dir();
    let name = hole(&dir, 1 << 20);
    let base = ["explain", "write", &name, "--offset=0", "--length=64k", "--bio-bytes-max=16k"];
    let all = json_of(&[&base[..], &["--json"]].concat());
    assert_eq!(all["bios"].as_array().unwrap().len(), 4);
    assert_eq!((&all["waits"], &all["preset"]), (&Value::from(1), &Value::from("diopter")));
    let each = ["--submit=each-then-wait", "--preset=linux-5.5", "--json"];
    let each = json_of(&[&base[..], &each].concat());
    assert_eq!((&each["waits"], &each["preset"]), (&Value::from(4), &Value::from("linux-5.5")));
    assert_eq!(each["policies"]["completion"], "linux-5.5");
    assert_eq!(each["completion"]["context"], "worker");
}

#[test]
fn a_wrong_command_line_is_exit_status_two_and_says_why() {
    for (arguments, words) in [
        (&["frobnicate"][..], "unrecognized subcommand 'frobnicate'"),
        (&["explain", "append", "f"], "invalid value 'append'"),
        (&["explain", "read", "f", "--offset", "0"], "--length <SIZE>"),
        (&["cp", "only-one"], "<DST>"),
        (&["cp", "a", "b", "--iodepth", "0"], "invalid depth `0`; write auto, or a number"),
        (&["probe", "f", "--log", "loud"], "--log: invalid level `loud`"),
        (&["probe", "f", "--backend", "spdk"], "auto, uring, aio, threads"),
        (&["man", "frobnicate"], "unknown command `frobnicate`"),
        (&["man", "--out", "/nowhere/at/all"], "write man pages to /nowhere/at/all"),
    ] {
        let message = refusal_of(arguments);
        assert!(message.contains(words), "{arguments:?}: {message}");
    }
    let nothing = Output::of(&mut dio(&[]));
    assert_eq!(nothing.status, 2);
    assert!(nothing.stderr.contains("Usage: dio"), "{}", nothing.stderr);
}

#[test]
fn an_unclear_size_is_refused_with_its_readings() {
    for (size, words) in [
        ("1mi", "`1mi` could mean 1 MiB (1048576 B) or 1 MB (1000000 B); write `1MiB` or `1MB`"),
        ("4x", "`4x` could mean 4 B or 4 KiB (4096 B); write `4B` or `4k`"),
        ("4KB", "`4KB` could mean 4 KiB (4096 B) or 4 kB (4000 B); write `4KiB` or `4kB`"),
        ("1.5M", "`1.5M` is a fraction; write `1536k`"),
        ("16E", "`16E` is too large"),
        ("-5", "`-5` is negative"),
        ("", "empty size; write"),
    ] {
        let message = refusal_of(&["explain", "read", "f", "--length", "1", "--offset", size]);
        assert!(message.contains(words), "{size}: {message}");
        let message = refusal_of(&["cp", "a", "b", &format!("--bs={size}")]);
        assert!(message.contains(words), "{size}: {message}");
    }
}

#[test]
fn a_name_that_cannot_be_opened_is_told_with_what_to_do() {
    let read = ["--offset=0", "--length=1"];
    for (name, words) in [
        ("/nowhere", "cannot open /nowhere: No such file or directory (ENOENT); check the path"),
        ("/dev/null", "cannot open /dev/null: Invalid argument (EINVAL); name a file"),
        ("disk.img::/etc", "no such file, and no image before `::/`: check the path"),
    ] {
        let output = refusal_of(&[&["explain", "read", name], &read[..]].concat());
        assert!(
            output.starts_with("dio explain: cannot open ") && output.contains(words),
            "{output}"
        );
        let output = Output::of(&mut dio(&["probe", name]));
        assert_eq!((output.status, output.stdout.as_str()), (2, ""), "{}", output.stderr);
        assert!(
            output.stderr.starts_with("dio probe: cannot open ") && output.stderr.contains(words)
        );
    }
    let output = refusal_of(&[&["explain", "read", "/"], &read[..]].concat());
    assert!(output.contains("cannot open /: Is a directory (EISDIR); name a file"), "{output}");
}

#[test]
fn a_name_that_cannot_be_probed_does_not_keep_the_others_from_it() {
    let dir = dir();
    let name = hole(&dir, 4096);
    let output = Output::of(&mut dio(&["probe", "/nowhere", &name, "--json"]));
    assert_eq!(output.status, 2);
    assert!(output.stderr.starts_with("dio probe: cannot open /nowhere: "), "{}", output.stderr);
    let document: Value = serde_json::from_str(&output.stdout).unwrap();
    assert_eq!(document["names"].as_array().unwrap().len(), 1);
    assert_eq!(document["names"][0]["name"], name.as_str());
}

#[test]
fn a_name_that_is_not_utf8_has_its_bytes_in_every_document() {
    let dir = dir();
    let [plain, below, striped] = [&b"n\xff"[..], b"d\xff", b"d\xff/s"].map(OsStr::from_bytes);
    File::create(dir.path().join(plain)).unwrap().set_len(4096).unwrap();
    std::fs::create_dir(dir.path().join(below)).unwrap();
    let create = ["stripe", "create", "s", "--objects", ".", "."];
    let created = Output::of(dio(&create).current_dir(dir.path().join(below)));
    assert_eq!((created.status, created.stderr.as_str()), (0, ""));
    let run_in = |words: &[&OsStr]| Output::of(dio(&[]).args(words).current_dir(dir.path()));
    for (line, name, pointer, expected) in [
        ("probe --json", plain, "/names/0/name_bytes", "bv8="),
        ("probe --json", striped, "/names/0/name_bytes", "ZP8vcw=="),
        ("explain --offset=0 --length=1 --json read", plain, "/name_bytes", "bv8="),
        ("stripe info --json", striped, "/name_bytes", "ZP8vcw=="),
    ] {
        let words: Vec<&OsStr> = line.split(' ').map(OsStr::new).chain([name]).collect();
        let printed = run_in(&words);
        assert_eq!((printed.status, printed.stderr.as_str()), (0, ""), "{line}");
        let document: Value = serde_json::from_str(&printed.stdout).unwrap();
        assert_eq!(document.pointer(pointer), Some(&Value::from(expected)), "{line}: {document}");
        let command = line.split(' ').next().unwrap();
        let schema: Value =
            serde_json::from_str(&std::fs::read_to_string(schema_file(command)).unwrap()).unwrap();
        assert_eq!(json_schema::mismatch(&schema, &document), None, "{line}");
    }
    let name = hole(&dir, 4096);
    assert_eq!(json_of(&["probe", "--json", &name])["names"][0].get("name_bytes"), None);
}

#[test]
fn probe_tells_a_file_and_a_dir() {
    let dir = dir();
    let name = hole(&dir, 8192);
    let directory = dir.path().to_str().unwrap();
    let document = json_of(&["probe", "--json", &name, directory]);
    let (file, dir) = (&document["names"][0], &document["names"][1]);
    assert_eq!((&file["kind"], &file["size"]), (&Value::from("file"), &Value::from(8192)));
    assert_eq!(file["extents"]["holes"]["bytes"], 8192);
    assert_eq!((&dir["kind"], &dir["size"]), (&Value::from("directory"), &Value::Null));
    assert_eq!(file["file_system"], dir["file_system"]);
    let text = stdout_of(&["probe", &name, directory]);
    assert!(text.contains(": file, 8 KiB (8192 B)\n") && text.contains(": directory\n"), "{text}");
    for line in text.lines() {
        let is_torn = line.chars().count() <= 80 || line.contains(directory);
        assert!(is_torn, "{line}");
    }
}

#[test]
fn probe_finds_that_a_file_in_memory_is_never_direct() {
    let Ok(file) = tempfile::NamedTempFile::new_in("/dev/shm") else {
        return skip(Capability::Tmpfs, "/dev/shm is missing or read-only");
    };
    let document = json_of(&["probe", "--json", file.path().to_str().unwrap()]);
    let name = &document["names"][0];
    assert_eq!(name["direct"]["reads"], false);
    assert_eq!(name["findings"][0]["id"], "no-direct-io");
    assert_eq!(name["findings"][0]["severity"], "severe");
    assert_eq!(name["findings"].as_array().unwrap().len(), 1, "{name}");
}

#[test]
fn the_backend_is_that_of_the_flag_then_of_the_environment() {
    let dir = dir();
    let name = hole(&dir, 4096);
    let backend = |arguments: &[&str], variable: &str| {
        let mut command = dio(&[&["probe", "--json", &name], arguments].concat());
        let output = Output::of(command.env("DIOPTER_BACKEND", variable));
        assert_eq!(output.status, 0, "{}", output.stderr);
        let document: Value = serde_json::from_str(&output.stdout).unwrap();
        document["names"][0]["backend"]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(backend(&[], "threads"), "threads");
    assert_eq!(backend(&["--backend=threads"], "nonsense"), "threads");
    assert_ne!(backend(&[], ""), "", "an empty variable is none");
    let output = Output::of(dio(&["probe", &name]).env("DIOPTER_BACKEND", "spdk"));
    let words = "dio: DIOPTER_BACKEND: invalid backend `spdk`; use auto, uring, aio or threads\n";
    assert_eq!((output.status, output.stderr.as_str()), (2, words));
}

#[test]
fn each_backend_is_told_to_work_or_why_not_and_aio_serves_where_it_is_said_to() {
    let dir = dir();
    let name = hole(&dir, 4096);
    let output = Output::of(&mut dio(&["probe", "--json", &name]));
    let document: Value = serde_json::from_str(&output.stdout).unwrap();
    let backends = document["names"][0]["backends"].as_array().unwrap();
    let names: Vec<_> = backends.iter().map(|its| its["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["uring", "aio", "threads"]);
    for its in backends {
        assert_eq!(its["works"].as_bool().unwrap(), its["why_not"].is_null(), "{its}");
    }
    let served = Output::of(&mut dio(&["probe", "--json", "--backend", "aio", &name]));
    if backends[1]["works"] == true {
        let document: Value = serde_json::from_str(&served.stdout).unwrap();
        assert_eq!(document["names"][0]["backend"]["name"], "aio");
    } else {
        assert!(served.status == 2 && served.stderr.contains("aio probe"), "{}", served.stderr);
    }
}

#[test]
fn an_unknown_variable_is_warned_about_and_changes_nothing() {
    let dir = dir();
    let name = hole(&dir, 4096);
    let with = |pairs: &[(&str, &str)]| {
        let output = Output::of(dio(&["probe", &name]).envs(pairs.iter().copied()));
        assert_eq!(output.status, 0);
        output.stderr
    };
    let words = "dio: warning: DIOPTER_BACKEN in the environment is unknown and has no effect; \
                 dio reads DIOPTER_BACKEND, DIOPTER_LOG, DIOPTER_PRELOAD and DIOPTER_ROUTE\n";
    assert_eq!(with(&[("DIOPTER_BACKEN", "threads")]), words);
    assert_eq!(with(&[("DIOPTER_BACKEN", "threads"), ("DIOPTER_LOG", "error")]), "");
    let tests = ["CHECK", "HAVE", "REQUIRE", "SEED", "SEEDS", "SOAK"];
    let tests: Vec<String> = tests.iter().map(|name| format!("DIOPTER_{name}")).collect();
    let pairs: Vec<(&str, &str)> = tests.iter().map(|name| (name.as_str(), "1")).collect();
    assert_eq!(with(&pairs), "");
    assert!(with(&[("DIOPTER_LOG", "probe=debug")]).starts_with("dio: probing "));
}

#[test]
fn colours_come_when_they_are_asked_for_and_never_into_a_pipe() {
    let dir = dir();
    let name = hole(&dir, 4096);
    let is_coloured = |arguments: &[&str]| {
        let output = Output::of(&mut dio(&[&["probe", &name], arguments].concat()));
        output.stdout.contains('\u{1b}')
    };
    assert!(!is_coloured(&[]));
    assert!(!is_coloured(&["--color=never"]));
    assert!(is_coloured(&["--color=always"]));
    assert!(Output::of(&mut dio(&["--color=always", "--help"])).stdout.contains('\u{1b}'));
    assert!(!Output::of(&mut dio(&["--help"])).stdout.contains('\u{1b}'));
}

#[test]
fn output_that_nobody_takes_is_told_by_the_exit_status() {
    let dir = dir();
    let name = hole(&dir, 4096);
    for arguments in [&["probe", &name][..], &["probe", "--json", &name], &["schema", "cp"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = Output::of(dio(arguments).stdout(writer));
        assert_eq!((output.status, output.stderr.as_str()), (141, ""), "{arguments:?}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = Output::of(dio(arguments).stdout(full));
        assert_eq!(output.status, 2, "{arguments:?}");
        assert!(
            output.stderr.starts_with("dio: write to standard output: No space"),
            "{}",
            output.stderr
        );
    }
}
