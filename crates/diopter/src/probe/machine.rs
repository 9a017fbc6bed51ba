//! Properties of the machine and of this process, from /proc: the kernel's release, the memory that
//! may be locked. A missing file means a missing value.

/// The running kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The release as in uname(2): "6.18.44-generic"; empty without /proc.
    pub release: String,
}

impl Kernel {
    /// Returns the running kernel.
    #[must_use]
    pub fn running() -> Kernel {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        Kernel { release: release.trim().to_owned() }
    }

    /// Returns major and minor number: (6, 18).
    #[must_use]
    pub fn version(&self) -> Option<(u32, u32)> {
        let mut numbers = self.release.split(|byte: char| !byte.is_ascii_digit());
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    }
}

/// The memory that this process may lock (`RLIMIT_MEMLOCK`); registered buffers count against it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLock {
    /// Bytes; `None` for no limit, or without /proc.
    pub bytes_max: Option<u64>,
    /// True if CAP_IPC_LOCK lifts the limit.
    pub is_exempt: bool,
}

/// Number of CAP_IPC_LOCK, from linux/capability.h.
const CAP_IPC_LOCK: u32 = 14;

impl MemoryLock {
    /// Reads the limit of the calling process.
    #[must_use]
    pub fn of_this_process() -> MemoryLock {
        let read = |name| std::fs::read_to_string(name).unwrap_or_default();
        MemoryLock::parse(&read("/proc/self/limits"), &read("/proc/self/status"))
    }

    fn parse(limits: &str, status: &str) -> MemoryLock {
        let limit = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
        let soft = limit.and_then(|line| line.split_whitespace().next());
        let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let effective = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        MemoryLock {
            bytes_max: soft.and_then(|bytes| bytes.parse().ok()),
            is_exempt: effective.is_some_and(|mask| mask >> CAP_IPC_LOCK & 1 == 1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_first_two_numbers_of_the_release() {
        let version = |release: &str| Kernel { release: release.to_owned() }.version();
        assert_eq!(version("6.18.44-fc-v657"), Some((6, 18)));
        assert_eq!(version("6.19-rc1"), Some((6, 19)));
        assert_eq!(version("5.4"), Some((5, 4)));
        assert_eq!(version(""), None);
        assert!(Kernel::running().version().is_some());
    }

    #[test]
    fn the_soft_limit_and_the_capability_are_read() {
        let limits = "Limit                     Soft Limit           Hard Limit           Units\n\
                      Max locked memory         65536                8388608              bytes\n";
        let status = "Name:\tdio\nCapEff:\t0000000000004000\n";
        let both = MemoryLock { bytes_max: Some(65536), is_exempt: true };
        assert_eq!(MemoryLock::parse(limits, status), both);
        let none = MemoryLock { bytes_max: None, is_exempt: false };
        let unlimited = "Max locked memory         unlimited            unlimited            bytes";
        assert_eq!(MemoryLock::parse(unlimited, "CapEff:\t0000000000003fff"), none);
        assert_eq!(MemoryLock::parse("", ""), none);
    }
}
