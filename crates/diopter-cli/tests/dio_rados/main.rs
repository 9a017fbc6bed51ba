//! `dio` with striped objects of a Ceph cluster, next to Ceph's own tool.

mod bench;
mod check;
mod cp;
mod facts;
mod failures;
mod file;
mod names;
mod owners;

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use diopter_core::prng::Prng;
use diopter_testkit::ceph::Ceph;
use diopter_testkit::env;

const MIB: usize = 1 << 20;

/// Returns the cluster that tests share which stop no store; skips where Ceph is not installed. It
/// ends with the process.
fn shared() -> Option<&'static Ceph> {
    static CEPH: OnceLock<Option<Ceph>> = OnceLock::new();
    CEPH.get_or_init(|| Ceph::start(&[])).as_ref()
}

/// Returns the command, which finds the cluster.
fn dio(ceph: &Ceph, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.args(arguments).stdin(Stdio::null());
    command.env("CEPH_CONF", &ceph.conf).env_remove("CEPH_ARGS");
    command
}

/// Returns standard output of a run that must end with this status.
fn run_to(status: i32, ceph: &Ceph, arguments: &[&str]) -> String {
    let output = dio(ceph, arguments).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {message}");
    String::from_utf8(output.stdout).unwrap()
}

/// Fails unless the command refused with this text.
fn refused(output: &Output, text: &str) {
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{}: {message}", output.status);
    assert!(message.contains(text), "{message}");
}

/// The number of objects of a striped object.
fn objects(ceph: &Ceph, name: &str) -> usize {
    let all = String::from_utf8(ceph.rados(&["ls"])).unwrap();
    all.lines().filter(|object| object.starts_with(&format!("{name}."))).count()
}

fn bytes(length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    Prng::new(env::seed()).fill(&mut bytes);
    bytes
}

/// The path of a name in a directory, as an argument.
fn at(dir: &Path, name: &str) -> String {
    dir.join(name).to_str().unwrap().to_owned()
}
