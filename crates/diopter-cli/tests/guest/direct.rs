//! Direct reads of btrfs on this kernel: from the device or through the page cache, and whether
//! `dio` reports the same. Kernels have changed that more than once, also in stable series.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{Advice, OFlags, fadvise};
use serde_json::Value;

use crate::cp_support::cached_bytes;
use crate::devices::NVME;
use crate::workload::{MOUNT, Mounted, Outcome, dio_well};

/// Bytes of each file: several extents where they are compressed.
const BYTES: usize = 1 << 20;

/// A page of a file is in the page cache after a direct read only if the kernel has put it there.
pub fn btrfs() -> Outcome {
    for options in ["datasum", "nodatasum", "compress=zstd"] {
        let mounted = Mounted::new(NVME, "btrfs");
        let remount = format!("remount,{options}");
        crate::workload::succeeds("mount", &["-o", &remount, MOUNT]);
        let [one, other] = ["one", "other"].map(|name| format!("{MOUNT}/{name}"));
        for path in [&one, &other] {
            fs::write(path, vec![7; BYTES]).unwrap();
            File::open(path).unwrap().sync_all().unwrap();
        }
        let Some(is_buffered) = is_buffered(Path::new(&one)) else {
            return Err("only cachestat reports which pages are cached (since 6.5)".to_owned());
        };
        for path in [&one, &other] {
            leave_cache(Path::new(path));
        }
        let found: Value = serde_json::from_str(&dio_well(&["sum", "--json", &one])).unwrap();
        let sent = if is_buffered { BYTES } else { 0 };
        assert_eq!(found["buffered_bytes"], sent, "{options}: {found:#}");
        assert_eq!(found["read_from"], "device", "{options}: {found:#}");
        let verified: Value =
            serde_json::from_str(&dio_well(&["verify", "--json", &one, &other])).unwrap();
        assert_eq!(verified["read_from"], "device", "{options}: {verified:#}");
        assert_eq!(cached_bytes(Path::new(&one)) + cached_bytes(Path::new(&other)), 0, "{options}");
        let how = if is_buffered { "buffered" } else { "direct" };
        crate::cp_support::print_line(&format!("guest: btrfs, {options}: reads are {how}"));
        drop(mounted);
    }
    Ok(())
}

/// Returns true if a direct read, made without diopter, goes through the page cache; `None` if this
/// kernel does not report it.
fn is_buffered(path: &Path) -> Option<bool> {
    leave_cache(path);
    let direct = i32::try_from(OFlags::DIRECT.bits()).expect("a flag");
    let file = File::options().read(true).custom_flags(direct).open(path).unwrap();
    let mut memory = diopter::IoBuf::new(BYTES).unwrap();
    file.read_exact_at(&mut memory, 0).unwrap();
    assert!(memory.iter().all(|byte| *byte == 7));
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split('.').filter_map(|part| part.parse::<u32>().ok());
    let version = (numbers.next()?, numbers.next()?);
    (version >= (6, 5)).then(|| cached_bytes(path) > 0)
}

fn leave_cache(path: &Path) {
    let file = File::open(path).unwrap();
    fadvise(file.as_fd(), 0, None, Advice::DontNeed).unwrap();
    assert_eq!(cached_bytes(path), 0, "clean pages leave");
}
