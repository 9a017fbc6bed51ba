//! The library under valgrind, in which a program looks for memory errors of its code. valgrind
//! unmaps the vDSO: what looks for the auxiliary vector by itself ends there.

use std::process::Command;

use diopter::BackendKind;

use crate::bytes::{check_blocking_calls, check_engine, dir, engine, file_of};
use crate::env::{self, Capability, skip};

/// Set in the process under valgrind.
const UNDER_VALGRIND: &str = "DIOPTER_TEST_UNDER_VALGRIND";

#[test]
fn blocking_calls_and_engines_run_under_valgrind() {
    if std::env::var_os(UNDER_VALGRIND).is_some() {
        return use_library();
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        return skip(Capability::Valgrind, "valgrind is not here");
    }
    let test = std::env::current_exe().expect("its path");
    let name = "valgrind::blocking_calls_and_engines_run_under_valgrind";
    let output = Command::new("valgrind")
        .args(["-q", "--error-exitcode=99"])
        .arg(test)
        .args(["--exact", name, "--test-threads=1"])
        .env(UNDER_VALGRIND, "1")
        .output()
        .expect("it runs");
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "{stdout}");
}

/// valgrind does not know all calls of io_uring.
fn use_library() {
    let dir = dir();
    let file = file_of(&dir, 1 << 20);
    check_blocking_calls(&file, 65536, 1);
    for (start, backend) in [(0, BackendKind::Aio), (1 << 18, BackendKind::Threads)] {
        if env::has(backend) {
            check_engine(&engine(backend), &file, start, start);
        }
    }
}
