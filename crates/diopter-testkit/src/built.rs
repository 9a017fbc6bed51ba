//! The programs and libraries of the workspace, for tests that run them as a user does.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use crate::files;

/// The name of the profile that this test was built with, and the target directory.
pub fn profile() -> (String, PathBuf) {
    let directory = files::on_disk().parent().expect("a profile's directory").to_owned();
    let name = directory.file_name().and_then(OsStr::to_str).expect("a profile's name");
    let profile = if name == "debug" { "dev" } else { name };
    (profile.to_owned(), directory.parent().expect("the target directory").to_owned())
}

/// The directory of `dio`, the other programs and the libraries, which this builds as the tests are
/// built: as lanes do, without the name of a package, so that dependencies are not built again.
pub fn products() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let (profile, target) = profile();
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "--lib", "--bins", "--examples", "--profile", &profile]);
        build.arg("--target-dir").arg(target).stdin(Stdio::null());
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let built = build.current_dir(root).status();
        assert!(built.expect("cargo runs").success(), "the workspace is built");
        files::on_disk().parent().expect("a profile's directory").to_owned()
    })
}
