//! The try of `cargo install` from a clone, in a fresh Debian that has a toolchain of rustup, a
//! linker and the headers of C.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::{bootstrap, expect, make_dir, must_run, scratch};
use crate::package::VERSION;
use crate::repo;

/// Debian's packages that the build needs: a linker, and the C library to link with.
const PACKAGES: &str = "gcc,libc6-dev";

/// Where the script finds the clone, the toolchain and the crates in the root directory.
const CLONE: &str = "/src";
const RUST: &str = "/opt/rust";
const CRATES: &str = "/opt/cargo";

/// Installs from a clone, and runs what was installed.
pub fn try_cargo_install(profile: &str) -> Result<(), String> {
    let root = bootstrap("debian-rust", PACKAGES)?;
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    for path in [RUST, CRATES] {
        make_dir(&at(path))?;
    }
    let mut clone = Command::new("git");
    clone.args(["clone", "--quiet", "--depth=1"]).arg(format!("file://{}", repo::root().display()));
    must_run(clone.arg(at(CLONE)))?;
    copy_crates(&at(CRATES))?;
    let mut sysroot = Command::new("rustc");
    let sysroot = repo::output_of(sysroot.args(["--print", "sysroot"]))?;
    let mut install = inside_with(&root, Path::new(sysroot.trim()), &at(RUST));
    let script = format!(
        "cd {CLONE}; cargo install --offline --locked --profile {profile} \
         --path crates/diopter-cli --root /usr/local; dio --version; \
         dio cp --verify /usr/local/bin/dio /copy"
    );
    println!("   {script}");
    install.args(["/bin/sh", "-ec", &script]).env_clear().env("CARGO_HOME", CRATES);
    install.env("CARGO_TARGET_DIR", "/target").env("CARGO_INCREMENTAL", "0");
    install.env("PATH", format!("/usr/local/bin:{RUST}/bin:/usr/sbin:/usr/bin:/sbin:/bin"));
    let printed = repo::output_of(&mut install)?;
    expect(&printed, &format!("dio {VERSION}\n"))?;
    let removed = fs::remove_dir_all(scratch().join("debian-rust"));
    removed.map_err(|error| format!("remove the root directory of the try: {error}"))
}

/// Copies the crates that cargo has fetched: cargo locks and unpacks there.
fn copy_crates(to: &Path) -> Result<(), String> {
    must_run(repo::cargo().args(["fetch", "--locked"]))?;
    let home = std::env::var_os("CARGO_HOME").map(std::path::PathBuf::from);
    let home = home.or_else(|| Some(Path::new(&std::env::var_os("HOME")?).join(".cargo")));
    let home = home.ok_or("neither CARGO_HOME nor HOME is set")?;
    must_run(Command::new("cp").arg("--recursive").arg(home.join("registry")).arg(to))
}

/// A command in another root directory, with a directory of this system mounted in it as long as
/// the command runs.
fn inside_with(root: &Path, from: &Path, to: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--kill-child", "/bin/sh", "-ec"]);
    command.arg(
        "mount --bind \"$1\" \"$2\"; mount -o remount,bind,ro \"$2\"; \
         mount -t proc proc \"$3/proc\"; root=$3; shift 3; exec /usr/sbin/chroot \"$root\" \"$@\"",
    );
    command.arg("sh").args([from, to, root]);
    command
}
