//! On what a run was measured: what must be the same for two figures to be compared, and what
//! explains why they are not.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One machine, with what the job ran on. An empty string is "not known".
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Environment {
    /// The kernel's release: `6.18.44`.
    pub kernel_release: String,
    /// Its version line, with the build.
    pub kernel_version: String,
    /// Of its command line, the parameters that have a bearing on figures.
    pub kernel_command_line: String,
    /// Name of the machine; empty in what `dio bench` measures.
    pub host: String,
    /// The processors.
    pub cpu: Cpu,
    /// Memory of the machine, in bytes.
    pub memory_bytes: u64,
    /// The device at the bottom.
    pub device: DeviceFacts,
    /// The file system; `None` on a raw device.
    pub file_system: Option<FileSystemFacts>,
    /// What the control group allows.
    pub cgroup: CgroupLimits,
    /// What kind of container, if one was recognised.
    pub container: String,
    /// Anything else, by name: flags of an emulator, versions of tools.
    pub more: BTreeMap<String, String>,
}

/// Processors.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default)]
pub struct Cpu {
    /// Model name.
    pub model: String,
    /// How many are online.
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
    /// Whether it spins.
    pub is_rotational: Option<bool>,
    /// Its queue, as sysfs has it.
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
    /// What direct I/O must be a multiple of: memory, and offsets.
    pub alignment_memory: u64,
    /// Offsets.
    pub alignment_offset: u64,
}

/// Limits of a control group; `None` is no limit.
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
