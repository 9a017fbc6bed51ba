//! `dio trace` in the guest: raw devices, the end of a file, every request of fio, and the report
//! of a kernel that allows no tracing. Before Linux 6.6 probes show what events show since.

use std::fs;

use serde_json::Value;

use crate::cp_support::{content, print_line};
use crate::devices::{NVME, Scsi};
use crate::guest_support::dio;
use crate::workload::{MOUNT, Mounted, Outcome, exists, succeeds, wait_for};

const MIB: u64 = 1 << 20;

fn traced(command: &[&str]) -> Value {
    let path = "/tmp/trace.json";
    let output = dio(&["trace", "--json", "-o", path, "--"]).args(command).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {message}");
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// Requests that are waited for, of a raw device.
pub fn raw() -> Outcome {
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

/// An event of direct I/O: a kernel that has it needs no probes.
const EVENT: &str = "/sys/kernel/tracing/events/iomap/iomap_dio_rw_begin";
/// Probes of a trace: of the begin of a request, and of both ends of its completion.
const PROBES: usize = 3;
/// Engines and patterns of fio.
const ENGINES: [&str; 3] = ["psync", "libaio", "io_uring"];
const PATTERNS: [&str; 3] = ["randread", "randwrite", "read"];
/// Requests of each job.
const REQUESTS: u64 = 400;

/// The requests of a trace are those that fio counts, on file systems and raw.
pub fn counts() {
    let device = Scsi::Emulated.device();
    let mut failed = 0;
    for kind in ["raw", "ext4", "xfs"] {
        let mounted = (kind != "raw").then(|| Mounted::new(&device, kind));
        let target = if mounted.is_some() { format!("{MOUNT}/file") } else { device.clone() };
        succeeds("dd", &["if=/dev/zero", &format!("of={target}"), "bs=1M", "count=16"]);
        succeeds("sync", &[]);
        for (engine, pattern) in ENGINES.iter().flat_map(|one| PATTERNS.map(|two| (*one, two))) {
            // One that differs does not keep the next from being counted.
            failed += u32::from(!is_counted(kind, &target, engine, pattern));
        }
    }
    assert_eq!(failed, 0, "jobs whose requests are not those of the trace");
    assert_eq!(probes(), "", "probes that stay");
    if !exists(EVENT) {
        probes_of_a_killed_trace_are_removed_by_the_next();
    }
}

fn probes_of_a_killed_trace_are_removed_by_the_next() {
    let mut killed = dio(&["trace", "-o", "/dev/null", "--", "sleep", "1000"]).spawn().unwrap();
    wait_for("the probes of a trace", || probes().lines().count() == PROBES);
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert_eq!(probes().lines().count(), PROBES, "{}", probes());
    traced(&["true"]);
    assert_eq!(probes(), "", "probes of a killed trace");
}

fn is_counted(kind: &str, target: &str, engine: &str, pattern: &str) -> bool {
    const REPORT: &str = "/tmp/fio.json";
    let job = format!(
        "fio --name=job --filename={target} --size=16M --direct=1 --thread=1 --overwrite=1 \
         --norandommap=1 --fallocate=none --ioengine={engine} --rw={pattern} --bs=4k \
         --iodepth=16 --number_ios={REQUESTS} --output-format=json --output={REPORT}"
    );
    let document = traced(&job.split_whitespace().collect::<Vec<_>>());
    let report = fs::read_to_string(REPORT).unwrap();
    let report: Value = serde_json::from_str(&report[report.find('{').unwrap()..]).unwrap();
    let of = |direction: &str| report["jobs"][0][direction]["total_ios"].as_u64().unwrap();
    let expected = of("read") + of("write");
    let file = &document["by_file"][0];
    print_line(&format!(
        "guest: {kind}, {engine}, {pattern}: {expected} requests, traced {}, unfinished {}, \
         lost events {}, doors {}, completions {}, findings {:?}, unknown {}",
        document["requests"],
        file["unfinished"],
        document["lost_events"],
        document["doors"],
        document["completions"],
        document["findings"].as_array().unwrap().iter().map(|one| &one["id"]).collect::<Vec<_>>(),
        document["unknown"]
    ));
    expected >= REQUESTS
        && document["requests"] == expected
        && file["unfinished"] == 0
        && document["completions"]["unknown"] == 0
        && document["lost_events"] == 0
        && document["raw_devices_are_known"] == true
}

/// The probes of the machine.
fn probes() -> String {
    fs::read_to_string("/sys/kernel/tracing/kprobe_events").unwrap_or_default()
}

pub fn locked_down() {
    let output = dio(&["trace", "--", "true"]).output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr);
    print_line(&format!("guest: {}", message.trim_end()));
    assert_eq!(output.status.code(), Some(125), "{message}");
    assert!(message.contains("locked down"), "{message}");
    assert!(message.contains("lockdown=confidentiality"), "{message}");
}
