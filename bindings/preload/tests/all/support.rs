//! Runs programs with and without the library, and builds those that are in C.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};

use diopter_testkit::built::products;
use diopter_testkit::env::{Capability, skip};
use diopter_testkit::files;

/// The path of `dio`, next to the library.
pub fn dio() -> PathBuf {
    products().join("dio")
}

/// Returns `dio run OPTIONS --`, to which the program is added.
pub fn dio_run(options: &[&str]) -> Command {
    let mut command = Command::new(dio());
    command.arg("run").args(options).arg("--");
    for variable in ["DIOPTER_PRELOAD", "LD_PRELOAD", "OPEN_DIRECT"] {
        command.env_remove(variable);
    }
    command
}

/// Returns a command that runs these words, without or with `dio run`.
pub fn command(options: Option<&[&str]>, words: &[&str]) -> Command {
    let mut command = match options {
        None => {
            let mut command = Command::new(words[0]);
            command.args(&words[1..]);
            command
        }
        Some(options) => {
            let mut command = dio_run(options);
            command.args(words);
            command
        }
    };
    // Where the lane installs modules of Python.
    command.env("PYTHONPATH", tools().join("python"));
    command
}

/// Returns where the lane installs programs.
pub fn tools() -> PathBuf {
    files::on_disk().ancestors().nth(2).expect("below the target directory").join("tools")
}

/// Returns both outputs as text.
pub fn text(output: &Output) -> String {
    let out = String::from_utf8_lossy(&output.stdout);
    format!("{out}{}", String::from_utf8_lossy(&output.stderr))
}

/// Builds a C program or library of `tests/programs`, once; `None`, and a skip, without a compiler.
pub fn compiled(name: &str, options: &[&str]) -> Option<PathBuf> {
    static BUILT: Mutex<BTreeMap<String, PathBuf>> = Mutex::new(BTreeMap::new());
    let key = format!("{name}{}", options.concat());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(program) = built.get(&key) {
        return Some(program.clone());
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/programs/{name}.c"));
    let to = files::on_disk().join(format!("preload-{key}"));
    // One that another run of the tests uses stays until then.
    let new = files::on_disk().join(format!("preload-{key}-{}", std::process::id()));
    let mut compiler = Command::new("cc");
    compiler.args(["-O2", "-D_FORTIFY_SOURCE=2", "-w", "-pthread", "-o"]);
    let Ok(output) = compiler.arg(&new).arg(&source).args(options).output() else {
        skip(Capability::Cc, "no cc");
        return None;
    };
    assert!(output.status.success(), "{}", text(&output));
    fs::rename(&new, &to).expect("one directory");
    built.insert(key, to.clone());
    Some(to)
}

/// Returns true if a program runs with these words; prints a skip if not.
pub fn has(capability: Capability, words: &[&str]) -> bool {
    let output = command(None, words).output();
    let why = match output {
        Ok(output) if output.status.success() => return true,
        Ok(output) => text(&output),
        Err(error) => error.to_string(),
    };
    skip(capability, format!("{}: {why}", words[0]));
    false
}

/// Returns bytes that differ from block to block.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from((at * 7 + at / 256) % 251).expect("below 251")).collect()
}

/// Returns how much of a file is in the page cache, in per cent.
pub fn cached_percent(path: &Path) -> f64 {
    use std::os::fd::AsFd;
    let file = fs::File::open(path).expect("it is there");
    let size = file.metadata().expect("it has a size").len();
    let cache = diopter_os::residency::residency(file.as_fd(), 0, 0, size).expect("a page cache");
    let bytes = cache.pages_cached * u64::from(cache.page_size);
    100.0 * u32::try_from(bytes >> 10).map_or(f64::MAX, f64::from)
        / u32::try_from(size >> 10).map_or(1.0, f64::from)
}

/// Writes a file back and drops it from the page cache.
pub fn make_cold(path: &Path) {
    use std::os::fd::AsFd;
    let file = fs::File::open(path).expect("it is there");
    file.sync_all().expect("a flush");
    diopter_os::space::advise_dont_need(file.as_fd(), 0, 0).expect("a page cache");
}
