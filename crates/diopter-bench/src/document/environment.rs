//! The environment of a run: facts that must be the same for two figures to be comparable, and
//! facts that explain a difference.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One machine, with the job's file system and device. An empty string is "not known".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Environment {
    /// The kernel's release: `6.18.44`.
    pub kernel_release: String,
    /// The kernel's version line, with the build.
    pub kernel_version: String,
    /// The parameters of its command line that affect figures.
    pub kernel_command_line: String,
    /// Name of the machine; empty in what `dio bench` measures.
    pub host: String,
    /// The processors.
    pub cpu: Cpu,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// The lowest device.
    pub device: DeviceFacts,
    /// The file system; `None` on a raw device.
    pub file_system: Option<FileSystemFacts>,
    /// The limits of the control group.
    pub cgroup: CgroupLimits,
    /// The kind of container, if one was recognised.
    pub container: String,
    /// Other facts, by name: flags of an emulator, versions of tools.
    pub more: BTreeMap<String, String>,
}

/// Processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cpu {
    /// Model name.
    pub model: String,
    /// Number of processors online.
    pub online: u32,
    /// Frequency governor.
    pub governor: String,
    /// `on`, `off`, or empty.
    pub smt: String,
    /// Mitigations, by vulnerability.
    pub mitigations: BTreeMap<String, String>,
}

/// A block device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct DeviceFacts {
    /// Name: `nvme0n1`.
    pub name: String,
    /// Model.
    pub model: String,
    /// Firmware.
    pub firmware: String,
    /// Bytes.
    pub size: u64,
    /// True for a rotating disk.
    pub is_rotational: Option<bool>,
    /// Its queue, as in sysfs.
    pub queue: QueueFacts,
}

/// A device's queue: sysfs's names and values.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct QueueFacts(pub BTreeMap<String, String>);

/// A file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct FileSystemFacts {
    /// `ext4`.
    pub kind: String,
    /// Mount options.
    pub mount_options: String,
    /// Required alignment of memory for direct I/O.
    pub alignment_memory: u64,
    /// Required alignment of offsets for direct I/O.
    pub alignment_offset: u64,
}

/// Limits of a control group; `None` means unlimited.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct CgroupLimits {
    /// `cpu.max`.
    pub cpu: Option<String>,
    /// `memory.max`, bytes.
    pub memory: Option<u64>,
    /// `io.max`, lines.
    pub io: Option<String>,
}
