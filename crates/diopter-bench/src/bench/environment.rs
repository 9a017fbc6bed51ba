//! Describes the machine from /proc and /sys. A field that cannot be read stays empty.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use diopter::BackendKind;
use diopter::probe;
use diopter_os::dir::paths_in;

use crate::document::{CgroupLimits, Cpu, DeviceFacts, Environment, FileSystemFacts, QueueFacts};

/// Largest number of files read of a directory.
const FILES_MAX: usize = 64;

/// Prefixes of kernel parameters that affect figures. Other parameters may be secrets or names of
/// machines, which a result does not need.
const PARAMETERS: [&str; 34] = [
    "amd_iommu",
    "amd_pstate",
    "audit",
    "cgroup",
    "clocksource",
    "default_hugepagesz",
    "elevator",
    "hugepages",
    "idle",
    "init_on_",
    "intel_idle",
    "intel_iommu",
    "intel_pstate",
    "iommu",
    "irqaffinity",
    "isolcpus",
    "maxcpus",
    "mem=",
    "mitigations",
    "nohz",
    "nosmt",
    "nr_cpus",
    "numa",
    "nvme",
    "pci",
    "preempt",
    "processor.",
    "pti",
    "rcu",
    "scsi_mod",
    "spectre",
    "swiotlb",
    "threadirqs",
    "transparent_hugepage",
];

/// Returns the machine, and the file or device that a job runs on.
#[must_use]
pub fn of(path: &Path) -> Environment {
    let mut environment = Environment {
        kernel_release: text("/proc/sys/kernel/osrelease"),
        kernel_version: text("/proc/sys/kernel/version"),
        kernel_command_line: of_figures(&text("/proc/cmdline")),
        cpu: cpu(),
        memory_bytes: memory_bytes(&text("/proc/meminfo")),
        cgroup: cgroup(),
        container: container(),
        ..Environment::default()
    };
    if let Some(device) = device_number(path) {
        environment.device = device_facts(device);
    }
    environment.file_system = file_system(path);
    environment
}

/// Returns the parameters of a command line that affect figures.
fn of_figures(command_line: &str) -> String {
    let words = command_line.split_whitespace();
    let kept = words.filter(|word| PARAMETERS.iter().any(|name| word.starts_with(name)));
    kept.collect::<Vec<_>>().join(" ")
}

fn cpu() -> Cpu {
    let info = text("/proc/cpuinfo");
    let model = ["model name", "Model", "cpu model"].iter().find_map(|name| {
        let line = info.lines().find(|line| line.starts_with(name))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let smt = match text("/sys/devices/system/cpu/smt/active").as_str() {
        "1" => "on",
        "0" => "off",
        _ => "",
    };
    let online = std::thread::available_parallelism().map_or(0, std::num::NonZero::get);
    Cpu {
        model: model.unwrap_or_default(),
        online: u32::try_from(online).unwrap_or(u32::MAX),
        governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        smt: smt.to_owned(),
        mitigations: files(Path::new("/sys/devices/system/cpu/vulnerabilities")),
    }
}

fn memory_bytes(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Returns the text of a file of this process's control group (version 2), or of its nearest
/// ancestor that has one.
#[must_use]
pub fn cgroup_file(name: &str) -> Option<String> {
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let path = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let root = Path::new("/sys/fs/cgroup");
    let own = root.join(path.trim_start_matches('/'));
    let mut dirs = own.ancestors().take_while(|dir| dir.starts_with(root));
    dirs.find_map(|dir| fs::read_to_string(dir.join(name)).ok())
}

fn cgroup() -> CgroupLimits {
    let limit = |name: &str| cgroup_file(name).map(|text| text.trim().to_owned());
    let cpu = limit("cpu.max").filter(|text| !text.is_empty() && !text.starts_with("max"));
    let memory = limit("memory.max").and_then(|text| text.parse().ok());
    CgroupLimits { cpu, memory, io: limit("io.max").filter(|text| !text.is_empty()) }
}

fn container() -> String {
    if Path::new("/.dockerenv").exists() {
        return "docker".to_owned();
    }
    if Path::new("/run/.containerenv").exists() {
        return "podman".to_owned();
    }
    text("/run/systemd/container")
}

/// Returns the number of the block device that holds a file, or that is one.
fn device_number(path: &Path) -> Option<u64> {
    let metadata = fs::metadata(path).ok()?;
    let is_device = metadata.file_type().is_block_device();
    Some(if is_device { metadata.rdev() } else { metadata.dev() })
}

fn device_facts(number: u64) -> DeviceFacts {
    let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
    let link = PathBuf::from(format!("/sys/dev/block/{major}:{minor}"));
    let Ok(device) = fs::canonicalize(link) else { return DeviceFacts::default() };
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let disk = [Some(device.as_path()), device.parent()].into_iter().flatten();
    let disk = disk.into_iter().find(|dir| dir.join("queue").is_dir()).unwrap_or(&device);
    let firmware = ["device/firmware_rev", "device/rev"].map(|name| text(disk.join(name)));
    let queue = files(&disk.join("queue"));
    DeviceFacts {
        model: text(disk.join("device/model")),
        firmware: firmware.into_iter().find(|text| !text.is_empty()).unwrap_or_default(),
        size: text(device.join("size")).parse::<u64>().unwrap_or(0) * 512,
        is_rotational: queue.get("rotational").map(|value| value == "1"),
        queue: QueueFacts(queue),
        name,
    }
}

/// Returns the trimmed text of a file; empty if it cannot be read.
fn text(path: impl AsRef<Path>) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

/// Returns the files of a directory with their texts, except empty and unreadable ones.
fn files(dir: &Path) -> BTreeMap<String, String> {
    let name = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let facts = paths_in(dir).take(FILES_MAX).map(|path| (name(&path), text(path)));
    facts.filter(|(_, value)| !value.is_empty()).collect()
}

/// Returns the file system of a file or directory; `None` for a block device.
fn file_system(path: &Path) -> Option<FileSystemFacts> {
    let facts = probe::probe(path, BackendKind::Threads).ok()?.facts;
    let mount = facts.mount?;
    let alignment = facts.direct.map(|direct| direct.alignment);
    Some(FileSystemFacts {
        kind: mount.file_system,
        mount_options: mount.options.join(","),
        alignment_memory: alignment.map_or(0, |alignment| u64::from(alignment.memory)),
        alignment_offset: alignment.map_or(0, |alignment| u64::from(alignment.offset_read)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_a_kernel_processors_and_memory() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        fs::write(&path, b"content").unwrap();
        let environment = of(&path);
        assert!(!environment.kernel_release.is_empty());
        assert!(environment.cpu.online > 0 && environment.memory_bytes > 1 << 20);
        let file_system = environment.file_system.expect("a file is in a file system");
        assert!(!file_system.kind.is_empty() && !file_system.mount_options.is_empty());
    }

    #[test]
    fn a_result_has_no_host_name_and_only_parameters_that_have_a_bearing_on_figures() {
        let line = "root=/dev/vda1 mitigations=off luks.key=secret nohz_full=1-3 ip=10.0.0.1";
        assert_eq!(of_figures(line), "mitigations=off nohz_full=1-3");
        assert_eq!(of(Path::new("/")).host, "");
    }

    #[test]
    fn what_is_not_there_leaves_its_place_empty() {
        let environment = of(Path::new("/nowhere/at/all"));
        assert_eq!(environment.device, DeviceFacts::default());
        assert_eq!(environment.file_system, None);
        assert_eq!(memory_bytes("nothing"), 0);
        assert_eq!(memory_bytes("MemTotal:  16 kB"), 16384);
    }
}
