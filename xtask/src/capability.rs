//! The capabilities of this machine, found by trying them, and those that must not be missing
//! (`DIOPTER_REQUIRE`). It knows no lanes. The list of capabilities is that of diopter-skip.

use crate::{debian, interface, repo, tools};
use std::path::PathBuf;
use std::process::Command;

/// Size of the file that the loop probe attaches: any whole number of sectors would do.
const LOOP_PROBE_BYTES: u64 = 1 << 20;

pub use diopter_skip::{Capability, required};

/// The needs of the lane `packages` and of the campaign.
pub const PACKAGE_NEEDS: &[Capability] = &[
    Capability::Cc,
    Capability::Apt,
    Capability::CargoDeb,
    Capability::Lintian,
    Capability::Mmdebstrap,
    Capability::Minisign,
];

/// The result of one probe: `missing` is `None` if the capability is there, else the reason.
pub struct Probe {
    pub capability: Capability,
    pub missing: Option<String>,
}

/// Tries each capability once that can be tried without a test.
pub fn probe_all() -> Vec<Probe> {
    let tried = |capability: &Capability| {
        let missing = probe(*capability)?.err();
        Some(Probe { capability: *capability, missing })
    };
    Capability::ALL.iter().filter_map(tried).collect()
}

/// The value of `DIOPTER_HAVE`: the names of what was found.
pub fn have(probes: &[Probe]) -> String {
    let found = probes.iter().filter(|probe| probe.missing.is_none());
    found.map(|probe| probe.capability.name()).collect::<Vec<_>>().join(",")
}

/// `None` for a capability that only a test can try.
fn probe(capability: Capability) -> Option<Result<(), String>> {
    Some(match capability {
        Capability::Loop => attach_and_detach(),
        Capability::Ext4 => file_system("ext4"),
        Capability::Xfs => file_system("xfs"),
        Capability::Btrfs => file_system("btrfs"),
        Capability::Uring => uring_allowed(),
        Capability::Aio => aio_has_room(),
        Capability::Threads => Ok(()),
        Capability::Fuse => fuse_opens(),
        Capability::Chromium => installed("chromium"),
        Capability::Qemu => qemu_runs(),
        Capability::Nightly => nightly_runs(&["--version"]),
        Capability::Miri => nightly_runs(&["miri", "--version"]),
        Capability::Tracefs => instances_can_be_made(),
        Capability::Fio => fio_runs(),
        Capability::Cc => ["gcc", "make", "pkg-config"].into_iter().try_for_each(installed),
        Capability::Ceph => {
            ["ceph-mon", "ceph-osd", "ceph", "rados", "setpriv"].into_iter().try_for_each(installed)
        }
        Capability::OpenMpi => mpi_is_there("mpicc.openmpi", "mpirun.openmpi"),
        Capability::Mpich => mpi_is_there("mpicc.mpich", "mpirun.mpich"),
        Capability::Libclang => match debian::has_libclang() {
            true => Ok(()),
            false => Err("libclang-dev is not installed".to_owned()),
        },
        Capability::Cxx => installed("c++"),
        Capability::Bash
        | Capability::Zsh
        | Capability::Fish
        | Capability::Man
        | Capability::Lintian
        | Capability::Mmdebstrap
        | Capability::Minisign
        | Capability::Python
        | Capability::Strace => installed(capability.name()),
        Capability::Clang => installed("clang"),
        Capability::Lld => installed("ld.lld"),
        Capability::Valgrind => installed("valgrind"),
        Capability::Apt => ["apt-get", "dpkg-deb"].into_iter().try_for_each(installed),
        Capability::Msrv => interface::oldest_compiler_runs(),
        _ => return tools::probe(capability),
    })
}

/// A package of the compiler alone has no header.
fn mpi_is_there(compiler: &str, launcher: &str) -> Result<(), String> {
    installed(launcher)?;
    let mut command = Command::new(repo::tool(compiler).ok_or(format!("no {compiler}"))?);
    command.args(["-E", "-x", "c", "-include", "mpi.h", "/dev/null"]);
    repo::output_of(&mut command).map(drop)
}

/// Tracing needs a private instance; the global buffer is left alone.
fn instances_can_be_made() -> Result<(), String> {
    let event = std::path::Path::new("/sys/kernel/tracing/events/iomap/iomap_dio_rw_begin");
    if !repo::is_root() {
        return Err("trace events are for root".to_owned());
    }
    let text_of = |there: bool, why: &str| if there { Ok(()) } else { Err(why.to_owned()) };
    text_of(
        std::path::Path::new("/sys/kernel/tracing/instances").is_dir(),
        "no tracefs is mounted",
    )?;
    text_of(event.is_dir(), "the kernel has no events of direct I/O")
}

fn fio_runs() -> Result<(), String> {
    let fio = repo::tool("fio").ok_or("fio is not installed")?;
    repo::output_of(Command::new(fio).arg("--version")).map(drop)
}

fn attach_and_detach() -> Result<(), String> {
    if !repo::is_root() {
        return Err("attaching a loop device needs root".to_owned());
    }
    let losetup = repo::tool("losetup").ok_or("losetup is not installed")?;
    let backing = LoopFile::create()?;
    let device =
        repo::output_of(Command::new(&losetup).args(["--find", "--show"]).arg(&backing.path))?;
    repo::output_of(Command::new(&losetup).args(["--detach", &device]))?;
    Ok(())
}

/// Returns why a file system cannot be made here, if so.
pub fn file_system(name: &str) -> Result<(), String> {
    let mkfs = format!("mkfs.{name}");
    repo::tool(&mkfs).ok_or_else(|| format!("{mkfs} is not installed"))?;
    let list = std::fs::read_to_string("/proc/filesystems")
        .map_err(|error| format!("/proc/filesystems: {error}"))?;
    if list.lines().any(|line| line.trim_start() == name) {
        return Ok(());
    }
    Err(format!("this kernel lists no {name} in /proc/filesystems; `modprobe {name}` may add it"))
}

/// The sysctl came with Linux 6.6; without it, nothing forbids the rings. A container may still
/// forbid them, which only a real set-up shows: the tests do that and print their own skips.
fn uring_allowed() -> Result<(), String> {
    match std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled") {
        Ok(value) if value.trim() != "0" => {
            Err(format!("kernel.io_uring_disabled is {}", value.trim()))
        }
        _ => Ok(()),
    }
}

/// Entries that the tests may have at once: a few contexts of 128.
const AIO_ENTRIES_MIN: u64 = 8192;

/// AIO's own files in /proc: without them the kernel was built without it. A container may still
/// forbid it, which only a real set-up shows: the tests do that and print their own skips.
fn aio_has_room() -> Result<(), String> {
    let number = |name: &str| -> Result<u64, String> {
        let path = format!("/proc/sys/fs/{name}");
        let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
        text.trim().parse().map_err(|error| format!("{path}: {error}"))
    };
    let (most, used) = (number("aio-max-nr")?, number("aio-nr")?);
    if most.saturating_sub(used) < AIO_ENTRIES_MIN {
        return Err(format!("fs.aio-max-nr is {most}, of which {used} are used"));
    }
    Ok(())
}

/// Root mounts without help of fusermount, which then need not be installed.
fn fuse_opens() -> Result<(), String> {
    if !repo::is_root() {
        return Err("mounting needs root".to_owned());
    }
    let opened = std::fs::File::options().read(true).write(true).open("/dev/fuse");
    opened.map(drop).map_err(|error| format!("/dev/fuse: {error}"))
}

fn installed(tool: &str) -> Result<(), String> {
    repo::tool(tool).map(drop).ok_or_else(|| format!("{tool} is not installed"))
}

/// The emulator, and apt for kernels to run in it. Whether these can be had, the tests find out.
fn qemu_runs() -> Result<(), String> {
    for name in ["qemu-system-x86_64", "apt-get", "dpkg-deb"] {
        repo::tool(name).ok_or_else(|| format!("{name} is not installed"))?;
    }
    Ok(())
}

/// A nightly compiler, for the sanitizers.
fn nightly_runs(arguments: &[&str]) -> Result<(), String> {
    repo::output_of(repo::nightly_cargo().args(arguments)).map(drop)
}

/// A file in the temporary directory that goes away with its owner.
struct LoopFile {
    path: PathBuf,
}

impl LoopFile {
    fn create() -> Result<LoopFile, String> {
        let path = std::env::temp_dir().join(format!("diopter-loop-probe-{}", std::process::id()));
        let message = |error| format!("{}: {error}", path.display());
        let file = std::fs::File::create(&path).map_err(message)?;
        file.set_len(LOOP_PROBE_BYTES).map_err(message)?;
        Ok(LoopFile { path })
    }
}

impl Drop for LoopFile {
    fn drop(&mut self) {
        // Nothing can be done about it here, and the file is 1 MiB of nothing.
        std::fs::remove_file(&self.path).ok();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_is_listed_by_name() {
        let probes = [
            Probe { capability: Capability::Loop, missing: Some("no".to_owned()) },
            Probe { capability: Capability::Ext4, missing: None },
            Probe { capability: Capability::Threads, missing: None },
        ];
        assert_eq!(have(&probes), "ext4,threads");
    }
}
