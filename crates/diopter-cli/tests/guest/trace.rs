//! `dio trace` in the guest: raw devices, the end of a file, and the reports of a kernel without
//! the events or the right to use them.

use std::fs;

use serde_json::Value;

use crate::cp_support::{content, print_line};
use crate::devices::{NVME, Scsi};
use crate::guest_support::dio;
use crate::workload::{MOUNT, Mounted, Outcome, exists, succeeds};

/// Events of direct I/O came with Linux 6.6.
const EVENT: &str = "/sys/kernel/tracing/events/iomap/iomap_dio_rw_begin";
const MIB: u64 = 1 << 20;

fn traced(command: &[&str]) -> Value {
    let path = "/tmp/trace.json";
    let output = dio(&["trace", "--json", "-o", path, "--"]).args(command).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {message}");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Refused where the kernel has no events of direct I/O.
fn refused_before_6_6() -> Outcome {
    if exists(EVENT) {
        return Ok(());
    }
    let output = dio(&["trace", "--", "true"]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(125), "{message}");
    assert!(message.contains("came with 6.6"), "{message}");
    Err("refused with the reason: no events of direct I/O before 6.6".to_owned())
}

/// Requests that are waited for, of a raw device.
pub fn raw() -> Outcome {
    refused_before_6_6()?;
    for block in ["64k", "8M"] {
        let block_size = format!("bs={block}");
        let input = format!("if={NVME}");
        let dd = ["dd", &input, "of=/dev/null", &block_size, "count=4", "iflag=direct"];
        let document = traced(&dd);
        assert_eq!(document["requests"], 4, "{block}: {document:#}");
        assert_eq!(document["raw_devices_are_known"], true, "{document:#}");
    }
    Ok(())
}

/// A file whose last read meets the end.
pub fn files() -> Outcome {
    refused_before_6_6()?;
    let _mounted = Mounted::new(&Scsi::Emulated.device(), "ext4");
    let file = format!("{MOUNT}/file");
    fs::write(&file, content(1, usize::try_from(8 * MIB).unwrap())).unwrap();
    succeeds("sync", &[]);
    let input = format!("if={file}");
    let document = traced(&["dd", &input, "of=/dev/null", "bs=1M", "iflag=direct"]);
    assert_eq!(document["requests"], 9, "the last one meets the end: {document:#}");
    assert_eq!(document["bytes"], 8 * MIB, "{document:#}");
    assert_eq!(document["by_file"][0]["unfinished"], 0, "{document:#}");
    Ok(())
}

pub fn locked_down() {
    let output = dio(&["trace", "--", "true"]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    print_line(&format!("guest: {}", message.trim_end()));
    assert_eq!(output.status.code(), Some(125), "{message}");
    assert!(message.contains("locked down"), "{message}");
    assert!(message.contains("lockdown=confidentiality"), "{message}");
}
