//! A skip leaves the process of a test that passes, and fails the test where its capability is
//! required. The tests run this binary again, with libtest's capture as cargo leaves it.

use std::process::{Command, Output};

use diopter_skip::{Capability, REQUIRE, skip};

/// The variable under which [`skips_each_capability`] skips; xtask sets it too.
const ORDER: &str = "DIOPTER_SKIP_EACH";

/// Skips once for each capability when the tests below or xtask order it.
#[test]
fn skips_each_capability() {
    if std::env::var_os(ORDER).is_some() {
        for capability in Capability::ALL {
            skip(*capability, format!("ordered\n  by {ORDER}"));
        }
        return;
    }
    let output = ordered("");
    assert!(output.status.success(), "{output:?}");
    let expected: String =
        Capability::ALL.iter().map(|it| format!("SKIP {it}: ordered by {ORDER}\n")).collect();
    assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
}

#[test]
fn a_skip_of_what_is_required_fails_its_test() {
    let output = ordered("xfs,zram");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{output:?}");
    assert!(report.contains("xfs is required and missing: ordered by"), "{report}");
}

#[test]
fn an_unknown_name_in_the_list_of_required_capabilities_fails_a_skip() {
    let output = ordered("ext5");
    let report = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success(), "{output:?}");
    assert!(report.contains("unknown capability `ext5`"), "{report}");
}

fn ordered(required: &str) -> Output {
    let mut command = Command::new(std::env::current_exe().expect("/proc"));
    command.args(["--exact", "skips_each_capability"]);
    command.env(ORDER, "1").env(REQUIRE, required).env("RUST_BACKTRACE", "0");
    command.output().expect("the test binary runs again")
}
