//! The packages that lanes want, and how they come onto a Debian machine. Installs only what is
//! missing, and only as root on Debian; elsewhere it says what to install.

use crate::repo;
use diopter_skip::Capability;
use std::path::{Path, PathBuf};
use std::process::Command;

/// One tool, the package that ships it, and who wants it.
struct Tool {
    name: &'static str,
    package: &'static str,
    wanted_by: Capability,
}

/// The library of clang, which is not a program: bindings of an MPI library are made with it.
const LIBCLANG: &str = "libclang";

const TOOLS: [Tool; 32] = [
    // Debian builds losetup from util-linux's source and ships it in the package `mount`.
    Tool { name: "losetup", package: "mount", wanted_by: Capability::Loop },
    Tool { name: "mount", package: "mount", wanted_by: Capability::Loop },
    Tool { name: "blkid", package: "util-linux", wanted_by: Capability::Loop },
    Tool { name: "mkfs.ext4", package: "e2fsprogs", wanted_by: Capability::Ext4 },
    Tool { name: "mkfs.xfs", package: "xfsprogs", wanted_by: Capability::Xfs },
    Tool { name: "mkfs.btrfs", package: "btrfs-progs", wanted_by: Capability::Btrfs },
    Tool { name: "zsh", package: "zsh", wanted_by: Capability::Zsh },
    Tool { name: "fish", package: "fish", wanted_by: Capability::Fish },
    Tool { name: "man", package: "man-db", wanted_by: Capability::Man },
    Tool { name: "lintian", package: "lintian", wanted_by: Capability::Lintian },
    Tool { name: "mmdebstrap", package: "mmdebstrap", wanted_by: Capability::Mmdebstrap },
    Tool { name: "minisign", package: "minisign", wanted_by: Capability::Minisign },
    Tool { name: "chromium", package: "chromium", wanted_by: Capability::Chromium },
    Tool { name: "qemu-system-x86_64", package: "qemu-system-x86", wanted_by: Capability::Qemu },
    Tool { name: "fio", package: "fio", wanted_by: Capability::Fio },
    Tool { name: "c++", package: "g++", wanted_by: Capability::Cxx },
    Tool { name: "gcc", package: "gcc", wanted_by: Capability::Cc },
    Tool { name: "make", package: "make", wanted_by: Capability::Cc },
    Tool { name: "pkg-config", package: "pkg-config", wanted_by: Capability::Cc },
    Tool { name: "clang", package: "clang", wanted_by: Capability::Clang },
    Tool { name: "ld.lld", package: "lld", wanted_by: Capability::Lld },
    Tool { name: "ceph-mon", package: "ceph-mon", wanted_by: Capability::Ceph },
    Tool { name: "ceph-osd", package: "ceph-osd", wanted_by: Capability::Ceph },
    Tool { name: "rados", package: "ceph-common", wanted_by: Capability::Ceph },
    Tool { name: "setpriv", package: "util-linux", wanted_by: Capability::Ceph },
    Tool { name: "mpicc.openmpi", package: "libopenmpi-dev", wanted_by: Capability::OpenMpi },
    Tool { name: "mpirun.openmpi", package: "openmpi-bin", wanted_by: Capability::OpenMpi },
    Tool { name: "mpicc.mpich", package: "libmpich-dev", wanted_by: Capability::Mpich },
    Tool { name: "mpirun.mpich", package: "mpich", wanted_by: Capability::Mpich },
    Tool { name: LIBCLANG, package: "libclang-dev", wanted_by: Capability::Libclang },
    Tool { name: "valgrind", package: "valgrind", wanted_by: Capability::Valgrind },
    Tool { name: "strace", package: "strace", wanted_by: Capability::Strace },
];

/// Makes the tools of these capabilities available where that can be done, and says what is
/// missing where it cannot. A package that does not install is a message here and a missing
/// capability later.
pub fn provide(wanted: &[Capability]) {
    let packages = missing(wanted, |tool| match tool {
        LIBCLANG => has_libclang(),
        program => repo::tool(program).is_some(),
    });
    if packages.is_empty() {
        return;
    }
    let names = packages.join(" ");
    if !repo::is_root() || !Path::new("/etc/debian_version").exists() {
        println!("to install (names as in Debian): {names}");
        return;
    }
    println!("installing: {names}");
    if let Err(error) = install(&packages) {
        println!("to install by hand: {names} ({error})");
    }
}

/// Returns true if libclang is there. Debian has it below a directory of each version.
pub fn has_libclang() -> bool {
    let dirs = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let dirs = dirs.flat_map(|entry| [entry.path(), entry.path().join("lib")]);
    let mut dirs = dirs.chain(["/usr/lib".into(), "/usr/lib64".into()]);
    std::env::var_os("LIBCLANG_PATH").is_some()
        || dirs.any(|dir: PathBuf| {
            let mut names = std::fs::read_dir(dir).into_iter().flatten().flatten();
            names.any(|entry| is_libclang(&entry.file_name().to_string_lossy()))
        })
}

/// Returns true for `libclang.so`, `libclang-14.so.1` and the like, but not for `libclang-cpp.so`.
fn is_libclang(name: &str) -> bool {
    let rest = name.strip_prefix("libclang").unwrap_or_default();
    let is_versioned = rest.strip_prefix('-').is_some_and(|it| it.starts_with(char::is_numeric));
    rest.starts_with(".so") || is_versioned && rest.contains(".so")
}

/// Installs those of the packages that are not installed.
pub fn ensure(packages: &[&'static str]) -> Result<(), String> {
    let is_absent = |package: &&str| {
        let mut query = Command::new("dpkg-query");
        query.args(["-W", "-f", "${db:Status-Status}", package]);
        repo::output_of(&mut query).map_or(true, |status| status != "installed")
    };
    let absent: Vec<&str> = packages.iter().copied().filter(is_absent).collect();
    if absent.is_empty() {
        return Ok(());
    }
    println!("installing: {}", absent.join(" "));
    install(&absent)
}

/// Fetches the source of a package, `name=version`, into a directory. The lists of source packages
/// are kept there too: a machine without them stays without.
pub fn fetch_source(package: &str, dir: &Path) -> Result<(), String> {
    let format = "deb-src $(REPO_URI) $(RELEASE) $(COMPONENT)";
    let mut targets = Command::new("apt-get");
    targets.args(["indextargets", "--format", format, "Created-By: Packages", "Origin: Debian"]);
    let sources = repo::output_of(&mut targets)?;
    let message = |error| format!("{}: {error}", dir.display());
    let (list, lists) = (dir.join("sources.list"), dir.join("lists"));
    std::fs::write(&list, sources + "\n").map_err(message)?;
    std::fs::create_dir_all(lists.join("partial")).map_err(message)?;
    let settings = [
        format!("Dir::Etc::sourcelist={}", list.display()),
        format!("Dir::State::lists={}", lists.display()),
        "Dir::Etc::sourceparts=/dev/null".to_owned(),
        "Dir::Cache::srcpkgcache=".to_owned(),
        "Dir::Cache::pkgcache=".to_owned(),
    ];
    let apt = |arguments: &[&str]| {
        let mut command = Command::new("apt-get");
        command.current_dir(dir).args(arguments);
        command.args(settings.iter().flat_map(|setting| ["-o", setting]));
        repo::output_of(&mut command)
    };
    apt(&["update"])?;
    apt(&["source", "--download-only", package]).map(drop)
}

fn missing(wanted: &[Capability], is_there: impl Fn(&str) -> bool) -> Vec<&'static str> {
    let absent = |tool: &&Tool| wanted.contains(&tool.wanted_by) && !is_there(tool.name);
    let mut packages: Vec<&str> = TOOLS.iter().filter(absent).map(|tool| tool.package).collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// Installs packages, if need be with new lists: they may be missing or old, as in a fresh
/// container.
fn install(packages: &[&str]) -> Result<(), String> {
    let once = || {
        let mut command = Command::new("apt-get");
        command.args(["install", "-y"]).args(packages).env("DEBIAN_FRONTEND", "noninteractive");
        repo::output_of(&mut command).map(drop)
    };
    once().or_else(|first| {
        let updated = repo::output_of(Command::new("apt-get").arg("update"));
        updated.and_then(|_| once()).map_err(|error| format!("{first}; then {error}"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_packages_of_missing_tools_that_a_lane_wants_are_named() {
        let has_blkid = |tool: &str| tool == "blkid";
        let all = [Capability::Loop, Capability::Xfs];
        assert_eq!(missing(&all, has_blkid), ["mount", "xfsprogs"]);
        assert!(missing(&[], |_| false).is_empty());
        assert_eq!(missing(&[Capability::Libclang], |_| false), ["libclang-dev"]);
        assert!(missing(&all, |_| true).is_empty());
    }

    #[test]
    fn the_library_of_clang_is_not_that_of_its_parts() {
        let is_all = |names: &[&str], expected| names.iter().all(|it| is_libclang(it) == expected);
        assert!(is_all(&["libclang.so", "libclang.so.1", "libclang-14.so.1"], true));
        assert!(is_all(&["libclang-cpp.so.14", "libclangBasic.a", "libc.so", "clang"], false));
    }
}
