//! Input of other users: names and documents with terminal escapes, links and pipes
//! where root's `dio bench` works. Nothing of it acts on a terminal; nothing outside is touched.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use diopter_testkit::env::{Capability, is_root, say, skip};
use diopter_testkit::files::dir;
use diopter_testkit::machine::{self, Loop};

const NOBODY: u32 = 65_534;
/// A title for the terminal, C1 control, bidirectional override and isolate, a hidden character, a
/// line that looks like the program's.
const HOSTILE: &str =
    "=x\u{1b}]0;owned\u{7}\u{1b}[31m\u{9b}2J\u{202e}fdp\u{2066}y\u{200b}\ndio: all fine";

fn dio(dir: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.current_dir(dir).stdin(Stdio::null());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn run<S: AsRef<OsStr>>(dir: &Path, arguments: &[S]) -> Output {
    dio(dir).args(arguments).output().unwrap()
}

/// Fails for what a terminal or a reader of text would be misled by.
fn check(what: &str, bytes: &[u8]) {
    let text = String::from_utf8(bytes.to_vec()).unwrap();
    let bad = |it: char| {
        it.is_control() && it != '\n' && it != '\t'
            || ('\u{200b}'..='\u{200f}').contains(&it)
            || ('\u{202a}'..='\u{202e}').contains(&it)
            || ('\u{2066}'..='\u{2069}').contains(&it)
    };
    let found: String = text.chars().filter(|it| bad(*it)).collect();
    assert_eq!(found, "", "{what}: {text:?}");
}

/// Fails for a line that another user wrote.
fn check_lines(what: &str, bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    assert!(!text.lines().any(|line| line.starts_with("dio: all fine")), "{what}: {text}");
}

/// Keys of a result that may have any text.
const TEXTS: [&str; 18] = [
    "label",
    "name",
    "title",
    "made_by",
    "program",
    "program_version",
    "preset",
    "engine",
    "kernel",
    "failure",
    "evidence",
    "model",
    "kernel_release",
    "kernel_version",
    "host",
    "kernel_command_line",
    "mount_options",
    "container",
];

/// Puts hostile text before every text of a document.
fn poison(value: &mut serde_json::Value, key: &str) {
    match value {
        serde_json::Value::String(text) if TEXTS.contains(&key) => text.insert_str(0, HOSTILE),
        serde_json::Value::Array(all) => all.iter_mut().for_each(|one| poison(one, key)),
        serde_json::Value::Object(all) => {
            all.iter_mut().for_each(|(key, one)| poison(one, key));
        }
        _ => {}
    }
}

/// A result with hostile text in every string.
fn hostile_run(dir: &Path, name: &str) -> PathBuf {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("../diopter-bench/tests/data/reports");
    let recorded = data.join("iomap-original-dio.json");
    let output = run(dir, &["report", "--json", recorded.to_str().unwrap()]);
    let mut document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    poison(&mut document, "");
    let path = dir.join(name);
    fs::write(&path, document.to_string()).unwrap();
    path
}

#[test]
fn hostile_text_in_names_and_documents_reaches_no_output_as_it_is() {
    let dir = dir();
    let dir = dir.path();
    // Names of files cannot have a slash.
    let name = HOSTILE.replace('/', "");
    let run_one = hostile_run(dir, &format!("{name}.json"));
    let run_two = hostile_run(dir, "two.json");
    let [one, two] = [&run_one, &run_two].map(|path| path.to_str().unwrap());
    let file = dir.join(&name);
    fs::write(&file, vec![7; 8192]).unwrap();
    let file = file.to_str().unwrap();
    let missing = dir.join(format!("missing{name}"));
    let missing = missing.to_str().unwrap();
    let manifest = dir.join(format!("manifest{name}"));
    let made = run(dir, &["stripe", "create", "-c", "2", manifest.to_str().unwrap()]);
    check("stripe create", &made.stdout);
    check("stripe create", &made.stderr);
    let manifest = manifest.to_str().unwrap();
    let copy = format!("{file}.copy");
    let not_image = format!("{file}::/{name}");
    let commands: Vec<Vec<&str>> = vec![
        vec!["report", one],
        vec!["report", "--markdown", one],
        vec!["report", "--csv", one],
        vec!["report", "--json", one],
        vec!["report", one, two],
        vec!["report", missing],
        vec!["report", file],
        vec!["compare", one, two],
        vec!["compare", "--json", one, two],
        vec!["compare", missing, two],
        vec!["compare", file, two],
        vec!["probe", file],
        vec!["probe", "--json", file],
        vec!["probe", missing],
        vec!["probe", manifest],
        vec!["probe", &not_image],
        vec!["explain", file],
        vec!["explain", "--json", file],
        vec!["explain", missing],
        vec!["explain", manifest],
        vec!["explain", &not_image],
        vec!["stripe", "show", manifest],
        vec!["stripe", "show", file],
        vec!["stripe", "show", missing],
        vec!["cp", file, &copy],
        vec!["cp", "--json", file, &copy],
        vec!["cp", missing, &copy],
        vec!["cp", &not_image, &copy],
        vec!["bench", missing],
        vec!["bench", "--job", HOSTILE, "."],
        vec!["bench", "--job", file, "."],
        vec!["bench", "--rw", HOSTILE, "."],
        vec!["bench", "--preset", HOSTILE, "."],
        vec!["bench", "--bs", HOSTILE, "."],
        vec!["cp", "--exclude", HOSTILE, file, &copy],
        vec!["stripe", "info", manifest],
        vec!["stripe", "info", missing],
        vec!["sum", missing],
        vec!["sum", "--check", missing],
        vec!["verify", file, missing],
        vec!["lab", "run", HOSTILE],
        vec!["man", HOSTILE],
        vec!["trace", "--", missing],
        vec![HOSTILE],
        vec!["cp", HOSTILE],
    ];
    let seen = checked(dir, &commands);
    say(&format!("{seen} outputs of {} commands had the text, escaped", commands.len()));
    assert!(seen >= 12, "only {seen} outputs had the text");
}

/// Checks the outputs of commands; returns how many had the hostile text, escaped.
fn checked(dir: &Path, commands: &[Vec<&str>]) -> usize {
    let mut seen = 0;
    for words in commands {
        let output = run(dir, words);
        for bytes in [&output.stdout, &output.stderr] {
            check(&format!("{words:?}"), bytes);
            check_lines(&format!("{words:?}"), bytes);
            let text = String::from_utf8_lossy(bytes);
            let marks = ["u{1b}", "u001b", "u{202e}", "u202e"];
            seen += usize::from(marks.iter().any(|mark| text.contains(mark)));
        }
    }
    seen
}

#[test]
fn fields_that_a_spreadsheet_would_evaluate_are_text_and_pages_have_no_hidden_characters() {
    let dir = dir();
    let one = hostile_run(dir.path(), "one.json");
    let one = one.to_str().unwrap();
    let output = run(dir.path(), &["report", "--csv", one]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("'=x"), "{text}");
    assert!(!text.contains(",=x") && !text.contains(",\"=x"), "{text}");
    assert_eq!(run(dir.path(), &["report", "--html", "page.html", one]).status.code(), Some(0));
    check("page.html", &fs::read(dir.path().join("page.html")).unwrap());
    let output = run(dir.path(), &["report", "--json", one]);
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document.to_string().contains('\u{202e}'), "a document keeps what was written");
}

#[test]
fn outputs_replace_links_that_others_placed_under_their_names() {
    let dir = dir();
    let secret = dir.path().join("secret");
    fs::write(&secret, b"mine").unwrap();
    fs::write(dir.path().join("f"), vec![7; 4 << 20]).unwrap();
    let one = hostile_run(dir.path(), "one.json");
    for name in ["dio-bench.html", "page.html"] {
        symlink(&secret, dir.path().join(name)).unwrap();
    }
    let output = run(dir.path(), &["report", "--html", "page.html", one.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0));
    let output = run(dir.path(), &[&["bench", "f", "--rw=randread"][..], &SHORT].concat());
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(&secret).unwrap(), b"mine");
    for name in ["dio-bench.html", "page.html"] {
        let found = dir.path().join(name).symlink_metadata().unwrap();
        assert!(found.is_file() && found.len() > 1000, "{name}");
    }
}

/// Rounds that are as short as may be.
const SHORT: [&str; 6] =
    ["--rounds=1", "--runtime=60ms", "--warmup=5ms", "--size=4M", "--quiet", "--preset=diopter"];

fn mounts() -> String {
    fs::read_to_string("/proc/self/mountinfo").unwrap()
}

/// The targets of an attacker: root's mount, which is busy, and root's loop device.
struct Victim {
    dir: tempfile::TempDir,
    device: Loop,
    _busy: fs::File,
}

impl Victim {
    fn new() -> Result<Victim, String> {
        if !is_root() {
            return Err("the attack is on root".to_owned());
        }
        let dir = dir();
        let (mount, image) = (dir.path().join("victim"), dir.path().join("victim.img"));
        fs::create_dir(&mount).unwrap();
        let device = Loop::over(&image, 64 << 20, 512)?;
        machine::run("mount", &["-t", "tmpfs", "victim", mount.to_str().unwrap()]).unwrap();
        fs::write(mount.join("precious"), b"precious").unwrap();
        let busy = fs::File::open(mount.join("precious")).unwrap();
        Ok(Victim { dir, device, _busy: busy })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn check(&self) {
        let mount = self.path("victim");
        assert!(mounts().contains(mount.to_str().unwrap()), "the mount is gone");
        let left: Vec<_> =
            fs::read_dir(&mount).unwrap().map(|it| it.unwrap().file_name()).collect();
        assert_eq!(left, ["precious"]);
        let image = self.path("victim.img");
        let attached = machine::run("losetup", &["-j", image.to_str().unwrap()]).unwrap();
        let device = self.device.device().to_str().unwrap();
        assert!(attached.starts_with(device), "the loop device is gone: {attached}");
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        let mount = self.path("victim");
        machine::run("umount", &["--lazy", mount.to_str().unwrap()]).map(drop).unwrap_or(());
    }
}

/// Places files of another user in a directory, for every name that a sweep could believe.
fn plant(within: &Path, victim: &Victim) {
    let targets = [("mount", victim.path("victim")), ("file-system", victim.path("victim.img"))];
    for (at, (name, target)) in targets.into_iter().enumerate() {
        let scratch = within.join(format!(".dio-bench-evil{at}"));
        fs::create_dir(&scratch).unwrap();
        fs::write(scratch.join("lock"), b"").unwrap();
        symlink(target, scratch.join(name)).unwrap();
        for path in [scratch.clone(), scratch.join("lock"), scratch.join(name)] {
            lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
        }
    }
    let pipe = within.join(".dio-bench-pipe");
    fs::create_dir(&pipe).unwrap();
    machine::run("mkfifo", &[pipe.join("lock").to_str().unwrap()]).unwrap();
    for path in [pipe.clone(), pipe.join("lock")] {
        lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    }
}

#[test]
fn what_others_placed_in_the_temporary_directory_is_not_touched() {
    let victim = match Victim::new() {
        Ok(victim) => victim,
        Err(why) => return skip(Capability::Loop, why.trim()),
    };
    let temporary = victim.path("tmp");
    fs::create_dir(&temporary).unwrap();
    fs::set_permissions(&temporary, fs::Permissions::from_mode(0o1777)).unwrap();
    plant(&temporary, &victim);
    fs::write(victim.path("f"), vec![7; 4 << 20]).unwrap();
    let mut command = dio(victim.dir.path());
    command.args(["bench", "f", "--rw=randread"]).args(SHORT).env("TMPDIR", &temporary);
    let child = command.spawn().unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    victim.check();
    let left = fs::read_dir(&temporary).unwrap().count();
    assert_eq!(left, 3, "what was placed stays, and nothing of the run does");
}

/// Replaces scratch directories by links to the victim until it is stopped; returns how often.
fn swap(within: &Path, target: &Path, stop: &AtomicBool) -> u32 {
    let mut swaps = 0;
    let aside = within.join("aside");
    while !stop.load(Ordering::Relaxed) {
        for entry in fs::read_dir(within).unwrap().flatten() {
            let path = entry.path();
            let is_scratch = entry.file_name().to_string_lossy().starts_with(".dio-bench-");
            let is_new = is_scratch && !entry.file_type().is_ok_and(|kind| kind.is_symlink());
            if is_new && fs::rename(&path, aside.join(swaps.to_string())).is_ok() {
                // The run may have removed its directory meanwhile.
                symlink(target, &path).unwrap_or(());
                swaps += 1;
            }
        }
        std::thread::yield_now();
    }
    swaps
}

#[test]
fn a_directory_whose_owner_swaps_the_scratch_directory_leads_nowhere_else() {
    let victim = match Victim::new() {
        Ok(victim) => victim,
        Err(why) => return skip(Capability::Loop, why.trim()),
    };
    let within = victim.path("theirs");
    fs::create_dir(&within).unwrap();
    fs::create_dir(within.join("aside")).unwrap();
    lchown(&within, Some(NOBODY), Some(NOBODY)).unwrap();
    let is_soak = std::env::var_os("DIOPTER_SOAK").is_some();
    let until = Instant::now() + Duration::from_secs(if is_soak { 30 } else { 2 });
    let stop = AtomicBool::new(false);
    let target = victim.path("victim");
    let (runs, swaps) = std::thread::scope(|scope| {
        let attacker = scope.spawn(|| swap(&within, &target, &stop));
        let mut runs = 0;
        while runs == 0 || Instant::now() < until {
            let fresh = if runs % 2 == 0 { &["--fs=ext4"][..] } else { &[] };
            let words = [&["bench", "theirs", "--rw=randwrite", "--json-out=r.json"][..], fresh];
            run(victim.dir.path(), &[&words.concat()[..], &SHORT].concat());
            runs += 1;
        }
        stop.store(true, Ordering::Relaxed);
        (runs, attacker.join().unwrap())
    });
    say(&format!("{runs} runs of root, {swaps} scratch directories swapped"));
    assert!(swaps > 0, "the attack never met a scratch directory");
    victim.check();
    let theirs = within.to_str().unwrap();
    assert!(!mounts().contains(theirs), "nothing stays mounted");
}
