//! Findings about the environment of a file: the kernel, the device, the limits of this process.

use diopter_os::Errno;
use diopter_os::file::DirectSupport;

use super::known;
use crate::probe::{Facts, Finding, NameKind, Severity, UringRefusal, size_text};

/// A smaller `max_sectors_kb` cuts a transfer of this size; larger ones gain nothing on most
/// devices.
const TRANSFER_KB: u64 = 1024;

/// Bytes of the buffers that `dio cp` registers: its ring of 16 buffers of 1 MiB.
const REGISTERED_BYTES: u64 = 16 << 20;

/// Chunks from this size on are a RAID's; a smaller one is a block of one disk.
const CHUNK_BYTES_MIN: u64 = 16 << 10;

pub(super) fn mounted_device(facts: &Facts) -> Option<Finding> {
    if facts.kind != NameKind::BlockDevice || facts.device_mounts.is_empty() {
        return None;
    }
    let points: Vec<String> =
        facts.device_mounts.iter().map(|point| point.display().to_string()).collect();
    Some(Finding {
        id: "mounted-device",
        severity: Severity::Severe,
        evidence: format!("it, or a partition of it, is mounted at {}", points.join(", ")),
        cause: "a write to a mounted device corrupts the file system, whose cache does not see it; \
                a read may be older than what its files hold",
        remedy: "read or write the files instead, or unmount it first".to_owned(),
    })
}

pub(super) fn uring_unavailable(facts: &Facts) -> Option<Finding> {
    let UringRefusal { step, errno, sysctl } = facts.uring_refusal?;
    let mut evidence = format!("io_uring: {step} failed: {errno}");
    if let Some(value) = sysctl {
        evidence.push_str(&format!("; kernel.io_uring_disabled is {value}"));
    }
    let remedy = match (errno, sysctl) {
        (Errno::EPERM, Some(1 | 2)) => "sysctl kernel.io_uring_disabled=0",
        (Errno::EPERM | Errno::EACCES, _) => {
            "a seccomp filter forbids it: let the container's profile allow io_uring_setup, \
             io_uring_enter and io_uring_register"
        }
        (Errno::ENOSYS, _) => "a kernel built with CONFIG_IO_URING",
        (Errno::ENOMEM, _) => "raise RLIMIT_MEMLOCK (ulimit -l) or the memory limit",
        (Errno::EMFILE | Errno::ENFILE, _) => "raise RLIMIT_NOFILE (ulimit -n)",
        _ => "--backend aio or threads chooses the fallback openly",
    };
    let has_aio = facts.backends.iter().any(|its| its.name == "aio" && its.refusal.is_none());
    let cause = if has_aio {
        "Linux AIO serves instead: it registers neither files nor buffers, takes up to two system \
         calls where io_uring takes one, and the caller itself does what goes through the page \
         cache"
    } else {
        "each bio in flight takes a worker thread, and two context switches"
    };
    Some(Finding {
        id: "uring-unavailable",
        severity: Severity::Warning,
        evidence,
        cause,
        remedy: remedy.to_owned(),
    })
}

pub(super) fn deferred_completions(facts: &Facts) -> Option<Finding> {
    let version = facts.kernel.version()?;
    let kind = facts.mount.as_ref()?.file_system.as_str();
    let is_direct = facts.direct.is_none_or(|direct| direct.support == DirectSupport::Full);
    if !known::defers_every_write(kind, version) || !is_direct {
        return None;
    }
    Some(Finding {
        id: known::DEFERRED_COMPLETION,
        severity: Severity::Warning,
        evidence: format!("{kind} on Linux {}", facts.kernel.release),
        cause: "async writes complete in a worker on this kernel: each one costs a hand-over and a \
                wake-up, which shows in small writes at depth (4 KiB: up to a fifth); reads and \
                blocking calls are not affected",
        remedy: known::REMEDY_DEFERRED_BY_KERNEL.to_owned(),
    })
}

pub(super) fn small_max_sectors(facts: &Facts) -> Option<Finding> {
    let queue = facts.queue.as_ref()?;
    let (now, most) = (queue.max_sectors_kb?, queue.max_hw_sectors_kb?);
    if now >= TRANSFER_KB || most <= now {
        return None;
    }
    Some(Finding {
        id: known::SPLIT_BY_SIZE_LIMIT,
        severity: Severity::Warning,
        evidence: format!("max_sectors_kb is {now}; the device takes {most} (max_hw_sectors_kb)"),
        cause: "the kernel cuts every larger bio into transfers of that size",
        remedy: known::remedy_max_sectors(most.min(TRANSFER_KB), &queue.name),
    })
}

pub(super) fn volatile_write_cache_without_fua(facts: &Facts) -> Option<Finding> {
    let queue = facts.queue.as_ref()?;
    if queue.write_cache.as_deref() != Some("write back") || queue.fua != Some(false) {
        return None;
    }
    Some(Finding {
        id: known::VOLATILE_WRITE_CACHE_WITHOUT_FUA,
        severity: Severity::Notice,
        evidence: format!("{}: write_cache is \"write back\", fua is 0", queue.name),
        cause: "a durable write (dsync) cannot be marked as such: each one flushes the device's \
                whole cache",
        remedy: known::REMEDY_FLUSHES.to_owned(),
    })
}

pub(super) fn memlock_low(facts: &Facts) -> Option<Finding> {
    let limit = facts.memory_lock.bytes_max?;
    if facts.memory_lock.is_exempt || facts.backend.name != "uring" || limit >= REGISTERED_BYTES {
        return None;
    }
    Some(Finding {
        id: "memlock-low",
        severity: Severity::Notice,
        evidence: format!(
            "RLIMIT_MEMLOCK is {}; dio cp registers {}",
            size_text(limit),
            size_text(REGISTERED_BYTES)
        ),
        cause: "buffers past the limit are not registered with the kernel, which then pins their \
                pages for every bio",
        remedy: format!(
            "ulimit -l {} (or memlock in limits.conf, LimitMEMLOCK= of a service)",
            REGISTERED_BYTES >> 10
        ),
    })
}

pub(super) fn physical_blocks(facts: &Facts) -> Option<Finding> {
    let queue = facts.queue.as_ref()?;
    let (logical, physical) = (queue.logical_block_size?, queue.physical_block_size?);
    let aligned = facts.direct.map_or(logical, |direct| direct.alignment.offset_write.into());
    if aligned >= physical || logical >= physical {
        return None;
    }
    Some(Finding {
        id: "emulated-blocks",
        severity: Severity::Notice,
        evidence: format!(
            "{}: blocks of {}, on physical blocks of {}",
            queue.name,
            size_text(logical),
            size_text(physical)
        ),
        cause: "the disk reads, changes and writes back a physical block for a write that covers \
                a part of it, which can take a turn of the disk; such a write is still direct",
        remedy: format!("make offset and length of writes multiples of {}", size_text(physical)),
    })
}

pub(super) fn rotational(facts: &Facts) -> Option<Finding> {
    let queue = facts.queue.as_ref().filter(|queue| queue.rotational == Some(true))?;
    Some(Finding {
        id: "rotational",
        severity: Severity::Notice,
        evidence: format!("{}: the queue says rotational", queue.name),
        cause: "on a spindle every jump costs milliseconds, and depth hides little of it; a \
                virtual disk often says so without one",
        remedy: "use large requests in file order; on a virtual disk, ignore it".to_owned(),
    })
}

pub(super) fn striped_device(facts: &Facts) -> Option<Finding> {
    let queue = facts.queue.as_ref()?;
    let (chunk, full) = (queue.minimum_io_size?, queue.optimal_io_size?);
    // A disk may report a preferred size as well; a stripe is several whole chunks.
    if chunk == 0 || full <= chunk || !full.is_multiple_of(chunk) || chunk < CHUNK_BYTES_MIN {
        return None;
    }
    Some(Finding {
        id: "striped-device",
        severity: Severity::Notice,
        evidence: format!(
            "{} is striped: chunks of {}, a full stripe of {}",
            queue.name,
            size_text(chunk),
            size_text(full)
        ),
        cause: "a smaller request leaves disks idle; on RAID 5 and 6 a write of less than a full \
                stripe first reads what the parity needs",
        remedy: format!(
            "requests of {}, or a multiple, that begin at a multiple of that",
            size_text(full)
        ),
    })
}
