//! The library, built once, and fio with it.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

use diopter_skip::{Capability, skip};
use serde_json::Value;

/// The repository.
pub const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The result of a run of fio.
pub struct Ran {
    pub is_success: bool,
    /// The part of fio's output that is JSON; null if there is none.
    pub json: Value,
    /// All output.
    pub text: String,
}

impl Ran {
    /// A number of the first job.
    pub fn number(&self, pointer: &str) -> f64 {
        let value = self.json.pointer(&format!("/jobs/0/{pointer}"));
        value.and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer} in {}", self.text))
    }

    /// Asserts that the job ended without an error, after reads and writes of as many bytes.
    pub fn assert_moved(&self, read_min: f64, written_min: f64) {
        assert!(self.is_success, "{}", self.text);
        assert!(self.number("error") == 0.0, "{}", self.text);
        assert!(self.number("read/io_bytes") >= read_min, "{}", self.text);
        assert!(self.number("write/io_bytes") >= written_min, "{}", self.text);
    }
}

/// Builds the library as `cargo xtask fio` does, with the profile of this test and more arguments.
pub fn build(arguments: &[&str]) -> Output {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let (profile, _) = diopter_testkit::built::profile();
    let mut command = Command::new(cargo);
    command.current_dir(ROOT).env_remove("FIO");
    command.args(["xtask", "fio", "--profile", &profile]).args(arguments);
    command.output().expect("cargo starts")
}

/// The path of the library; `None`, with a skip, if it cannot be built here.
pub fn library() -> Option<&'static Path> {
    static LIBRARY: OnceLock<Result<PathBuf, (Capability, String)>> = OnceLock::new();
    let built = LIBRARY.get_or_init(|| {
        if let Err(error) = Command::new("fio").arg("--version").output() {
            return Err((Capability::Fio, format!("fio does not start: {error}")));
        }
        if let Err(error) = Command::new("cc").arg("--version").output() {
            return Err((Capability::Cc, format!("cc does not start: {error}")));
        }
        let output = build(&[]);
        let (out, err) =
            (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        if err.contains("no source of fio") {
            return Err((Capability::FioSource, err.into_owned()));
        }
        assert!(output.status.success(), "{err}");
        Ok(PathBuf::from(out.lines().last().expect("the path of the library")))
    });
    match built {
        Ok(path) => Some(path),
        Err((capability, why)) => {
            skip(*capability, why);
            None
        }
    }
}

/// Runs a job of the engine on a file.
pub fn fio(library: &Path, file: &str, arguments: &[&str]) -> Ran {
    let mut command = Command::new("fio");
    command.args(["--name=test", "--output-format=json", "--eta=never", "--verify_state_save=0"]);
    command.arg(format!("--ioengine=external:{}", library.display()));
    command.arg(format!("--filename={}", file.replace(':', "\\:")));
    let output = command.args(arguments).output().expect("fio starts");
    let out = String::from_utf8_lossy(&output.stdout);
    let text = format!("{out}{}", String::from_utf8_lossy(&output.stderr));
    let json = out.find('{').and_then(|start| serde_json::from_str(&out[start..]).ok());
    Ran { is_success: output.status.success(), json: json.unwrap_or(Value::Null), text }
}
