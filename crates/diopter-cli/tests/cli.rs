//! The `dio` command as a script sees it: words, documents, exit statuses. What `dio cp` does to
//! files is in the tests of its name.

mod golden_file;
mod json_schema;

use diopter_testkit::env::{Capability, skip};
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use diopter_testkit::files::dir;
use serde_json::Value;

/// Every command; the last four are hidden.
const COMMANDS: [&str; 22] = [
    "cp",
    "explain",
    "probe",
    "bench",
    "compare",
    "report",
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
    "bench-round",
    "man",
    "completions",
    "schema",
];

/// Every document that has a schema.
const SCHEMAS: [&str; 9] =
    ["bench", "compare", "cp", "explain", "probe", "stripe", "lab-kernels", "lab-bisect", "trace"];

/// The command with a clean environment, in 80 columns.
fn dio(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.args(arguments).env_clear().env("COLUMNS", "80").stdin(Stdio::null());
    command
}

struct Told {
    status: i32,
    stdout: String,
    stderr: String,
}

fn run(command: &mut Command) -> Told {
    let Output { status, stdout, stderr } = command.output().unwrap();
    Told {
        status: status.code().expect("dio is not ended by a signal"),
        stdout: String::from_utf8(stdout).unwrap(),
        stderr: String::from_utf8(stderr).unwrap(),
    }
}

/// Returns the output of a run that must succeed silently.
fn stdout_of(arguments: &[&str]) -> String {
    let told = run(&mut dio(arguments));
    assert_eq!((told.status, told.stderr.as_str()), (0, ""), "{arguments:?}");
    told.stdout
}

/// The message of a run that must fail with exit status 2 and print nothing else.
fn refusal_of(arguments: &[&str]) -> String {
    let told = run(&mut dio(arguments));
    assert_eq!((told.status, told.stdout.as_str()), (2, ""), "{arguments:?}: {}", told.stderr);
    told.stderr
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
fn help_of_every_command_is_as_it_was() {
    let long = golden_file::golden("help-dio.txt");
    golden_file::check(&long, &stdout_of(&["--help"]));
    golden_file::check(&golden_file::golden("h-dio.txt"), &stdout_of(&["-h"]));
    for command in COMMANDS {
        let words: Vec<&str> = command.split(' ').collect();
        let name = words.join("-");
        let long = golden_file::golden(&format!("help-{name}.txt"));
        golden_file::check(&long, &stdout_of(&[&words[..], &["--help"]].concat()));
        let short = golden_file::golden(&format!("h-{name}.txt"));
        golden_file::check(&short, &stdout_of(&[&words[..], &["-h"]].concat()));
    }
}

#[test]
fn help_fits_eighty_columns() {
    for command in COMMANDS {
        let words: Vec<&str> = command.split(' ').chain(["--help"]).collect();
        for line in stdout_of(&words).lines() {
            assert!(line.chars().count() <= 80, "{command}: {line}");
        }
    }
}

#[test]
fn the_version_tells_the_backends() {
    let version = env!("CARGO_PKG_VERSION");
    let long = format!("dio {version}\nbackends: uring, aio, threads, sim\n");
    assert_eq!(stdout_of(&["--version"]), long);
    assert_eq!(stdout_of(&["-V"]), format!("dio {version}\n"));
}

#[test]
fn schemas_are_those_of_the_documentation() {
    for command in SCHEMAS {
        golden_file::check(&schema_file(command), &stdout_of(&["schema", command]));
    }
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
fn explain_tells_the_fields_of_the_contract_in_its_order() {
    let dir = dir();
    let name = hole(&dir, 1 << 20);
    let request = ["explain", "write", &name, "--offset", "0", "--length", "52k", "--json"];
    let told = stdout_of(&request);
    let document: Value = serde_json::from_str(&told).unwrap();
    if document["route"]["direct"] != 53248 {
        return skip(
            Capability::Direct,
            "the target directory is on a file system without direct I/O",
        );
    }
    let told: Vec<String> = told.lines().map(masked).collect();
    golden_file::check(&golden_file::golden("explain-write.json"), &told.join("\n"));
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
        let told = std::fs::metadata(path).unwrap();
        (std::fs::read(path).unwrap(), told.modified().unwrap(), told.len())
    };
    let before = looked(&path);
    for offset in ["0", "7", "99999", "1M"] {
        let name = path.to_str().unwrap();
        let told = stdout_of(&["explain", "write", name, "--offset", offset, "--length", "50000"]);
        assert!(told.contains("write 48.8 KiB (50000 B)"), "{told}");
    }
    assert!(looked(&path) == before);
}

#[test]
fn what_may_not_be_written_is_explained_for_reading() {
    // A program that runs may not be written, by root neither.
    let name = env!("CARGO_BIN_EXE_dio");
    let told = stdout_of(&["explain", "read", name, "--offset=0", "--length=4k"]);
    assert!(told.contains("read 4 KiB (4096 B)"), "{told}");
}

#[test]
fn a_write_to_what_may_not_be_written_is_explained_or_refused_by_name() {
    let name = env!("CARGO_BIN_EXE_dio");
    let told = run(&mut dio(&["explain", "write", name, "--offset=0", "--length=4k"]));
    let is_explained = told.status == 0 && told.stdout.contains("write 4 KiB (4096 B)");
    let is_refused = told.status == 2 && told.stderr.contains("Text file busy (ETXTBSY)");
    assert!(is_explained || is_refused, "{} {}", told.stdout, told.stderr);
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
    let nothing = run(&mut dio(&[]));
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
        ("/nowhere", "open /nowhere: No such file or directory (ENOENT); check the path"),
        ("/dev/null", "open /dev/null: Invalid argument (EINVAL); "),
        ("disk.img::/etc", "no such file, and no image before `::/`: check the path"),
    ] {
        let told = refusal_of(&[&["explain", "read", name], &read[..]].concat());
        assert!(told.starts_with("dio explain: open ") && told.contains(words), "{told}");
        let told = run(&mut dio(&["probe", name]));
        assert_eq!((told.status, told.stdout.as_str()), (2, ""), "{}", told.stderr);
        assert!(told.stderr.starts_with("dio probe: open ") && told.stderr.contains(words));
    }
    let told = refusal_of(&[&["explain", "read", "/"], &read[..]].concat());
    assert!(told.contains("open /: Is a directory (EISDIR); name a file"), "{told}");
}

#[test]
fn a_name_that_cannot_be_probed_does_not_keep_the_others_from_it() {
    let dir = dir();
    let name = hole(&dir, 4096);
    let told = run(&mut dio(&["probe", "/nowhere", &name, "--json"]));
    assert_eq!(told.status, 2);
    assert!(told.stderr.starts_with("dio probe: open /nowhere: "), "{}", told.stderr);
    let document: Value = serde_json::from_str(&told.stdout).unwrap();
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
    let created = run(dio(&create).current_dir(dir.path().join(below)));
    assert_eq!((created.status, created.stderr.as_str()), (0, ""));
    let run_in = |words: &[&OsStr]| run(dio(&[]).args(words).current_dir(dir.path()));
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
        let told = run(command.env("DIOPTER_BACKEND", variable));
        assert_eq!(told.status, 0, "{}", told.stderr);
        let document: Value = serde_json::from_str(&told.stdout).unwrap();
        document["names"][0]["backend"]["name"].as_str().unwrap().to_owned()
    };
    assert_eq!(backend(&[], "threads"), "threads");
    assert_eq!(backend(&["--backend=threads"], "nonsense"), "threads");
    assert_ne!(backend(&[], ""), "", "an empty variable is none");
    let told = run(dio(&["probe", &name]).env("DIOPTER_BACKEND", "spdk"));
    let words = "dio: DIOPTER_BACKEND: invalid backend `spdk`; use auto, uring, aio or threads\n";
    assert_eq!((told.status, told.stderr.as_str()), (2, words));
}

#[test]
fn each_backend_is_told_to_work_or_why_not_and_aio_serves_where_it_is_said_to() {
    let dir = dir();
    let name = hole(&dir, 4096);
    let told = run(&mut dio(&["probe", "--json", &name]));
    let document: Value = serde_json::from_str(&told.stdout).unwrap();
    let backends = document["names"][0]["backends"].as_array().unwrap();
    let names: Vec<_> = backends.iter().map(|its| its["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["uring", "aio", "threads"]);
    for its in backends {
        assert_eq!(its["works"].as_bool().unwrap(), its["why_not"].is_null(), "{its}");
    }
    let served = run(&mut dio(&["probe", "--json", "--backend", "aio", &name]));
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
        let told = run(dio(&["probe", &name]).envs(pairs.iter().copied()));
        assert_eq!(told.status, 0);
        told.stderr
    };
    let words = "dio: warning: DIOPTER_BACKEN in the environment is unknown and has no effect; \
                 dio reads DIOPTER_BACKEND and DIOPTER_LOG\n";
    assert_eq!(with(&[("DIOPTER_BACKEN", "threads")]), words);
    assert_eq!(with(&[("DIOPTER_BACKEN", "threads"), ("DIOPTER_LOG", "error")]), "");
    let tests = ["BLESS", "CHECK", "HAVE", "REQUIRE", "SEED", "SEEDS", "SOAK"];
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
        let told = run(&mut dio(&[&["probe", &name], arguments].concat()));
        told.stdout.contains('\u{1b}')
    };
    assert!(!is_coloured(&[]));
    assert!(!is_coloured(&["--color=never"]));
    assert!(is_coloured(&["--color=always"]));
    assert!(run(&mut dio(&["--color=always", "--help"])).stdout.contains('\u{1b}'));
    assert!(!run(&mut dio(&["--help"])).stdout.contains('\u{1b}'));
}

#[test]
fn output_that_nobody_takes_is_told_by_the_exit_status() {
    let dir = dir();
    let name = hole(&dir, 4096);
    for arguments in [&["probe", &name][..], &["probe", "--json", &name], &["schema", "cp"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let told = run(dio(arguments).stdout(writer));
        assert_eq!((told.status, told.stderr.as_str()), (141, ""), "{arguments:?}");
        let full = File::options().write(true).open("/dev/full").unwrap();
        let told = run(dio(arguments).stdout(full));
        assert_eq!(told.status, 2, "{arguments:?}");
        assert!(
            told.stderr.starts_with("dio: write to standard output: No space"),
            "{}",
            told.stderr
        );
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
        "dio-lab-kernels.1",
        "dio-lab-run.1",
        "dio-lab.1",
        "dio-probe.1",
        "dio-report.1",
        "dio-stripe-adopt.1",
        "dio-stripe-create.1",
        "dio-stripe-info.1",
        "dio-stripe-rm.1",
        "dio-stripe-seal.1",
        "dio-stripe-unseal.1",
        "dio-stripe.1",
        "dio-trace.1",
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
