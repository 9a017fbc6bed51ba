//! The guest's side: the script that runs a file system's jobs inside the virtual machine. What
//! comes back is in [`record`]; nothing is measured or judged here.

pub mod record;

use std::fmt::Write;

use crate::matrix::{BASE_IOS, Device, Engine, FileSystem, TRACED_IOS, ios_of};
use diopter_bench::document::Job;

/// The library of the scripts.
const LIBRARY: &str = include_str!("lab.sh");
/// Adds up a trace.
const TRACE: &str = include_str!("trace.awk");
/// No traced pass moves more than this: each bio is an event.
const TRACED_BYTES_MAX: u64 = 64 << 20;

/// One measurement of a boot. The guest's output has its index as `cell`.
#[derive(Clone, Debug, PartialEq)]
pub struct Assignment {
    pub job: Job,
    /// The engine that makes the requests.
    pub engine: Engine,
}

/// The requests of one pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Passes {
    base: u64,
    measured: u64,
    traced: u64,
}

impl Assignment {
    fn passes(&self) -> Passes {
        let ios = ios_of(&self.job);
        let base = BASE_IOS.min(ios / 16).max(1);
        let traced = TRACED_IOS.min(ios).min(TRACED_BYTES_MAX / self.job.block_bytes.max(1)).max(1);
        Passes { base, measured: base + ios, traced }
    }

    /// Returns true if only its first time counts: it can be traced, and not measured.
    fn is_once(&self) -> bool {
        self.job.layout == "none"
    }

    /// Returns the arguments of the library.
    fn words(&self) -> String {
        let Job { rw, block_bytes, iodepth, offset, size, .. } = &self.job;
        let engine = self.engine.name();
        format!("job {engine} {} {block_bytes} {iodepth} {offset} {size}", rw.name())
    }
}

/// The script for one boot: all assignments on one file system, measured first, then traced.
///
/// Only names and numbers of this crate are in it, so nothing has to be quoted.
#[must_use]
pub fn script(
    file_system: FileSystem,
    device: Device,
    assignments: &[Assignment],
    is_traced: bool,
) -> String {
    let Device { megabytes, completion_ns, megabytes_per_second, is_nvme } = device;
    let mut text = format!("{LIBRARY}\ncat >/tmp/trace.awk <<'END'\n{TRACE}END\n");
    let mut line = |words: String| writeln!(text, "{words}").expect("a String takes all");
    line("tell_kernel".to_owned());
    line(if is_nvme {
        format!("find_device nvme0n1 {megabytes}")
    } else {
        format!("make_device {megabytes} {completion_ns} {megabytes_per_second}")
    });
    line(format!("make_file_system {}", file_system.name()));
    let repeated = || assignments.iter().enumerate().filter(|(_, one)| !one.is_once());
    let bytes = repeated().map(|(_, one)| one.job.offset + one.job.size).max();
    if let Some(bytes) = bytes {
        line(format!("write_file {}", bytes.div_ceil(4096) * 4));
    }
    for (cell, one) in repeated().filter(|_| !is_nvme) {
        let passes = one.passes();
        line(one.words());
        line(format!("measure {cell} base {}", passes.base));
        line(format!("measure {cell} run {}", passes.measured));
    }
    if is_traced {
        line("watch_completions".to_owned());
        for (cell, one) in repeated() {
            let ios = one.passes().traced;
            line(one.words());
            line(format!("trace {cell} {ios} run_fio {ios}"));
        }
        for (cell, one) in assignments.iter().enumerate().filter(|(_, one)| one.is_once()) {
            line(format!("TARGET=/mnt/once{cell}"));
            line(format!("write_file {}", one.job.offset.div_ceil(4096) * 4));
            line(one.words());
            line(format!("trace {cell} 1 write_once"));
        }
    }
    line("exit 0".to_owned());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{NamedJob, product};
    use diopter_bench::document::ReadWrite;

    fn assigned(jobs: Vec<Job>) -> Vec<Assignment> {
        jobs.into_iter().map(|job| Assignment { job, engine: Engine::Libaio }).collect()
    }

    fn calls(script: &str) -> Vec<&str> {
        let at = script.find("\ntell_kernel\n").expect("the calls follow the library");
        script[at..].lines().skip(1).collect()
    }

    #[test]
    fn everything_is_measured_before_anything_is_traced() {
        let jobs =
            product(&[FileSystem::Ext4], &[ReadWrite::RandRead, ReadWrite::Write], &[4096], &[64]);
        let script = script(FileSystem::Ext4, Device::default(), &assigned(jobs), true);
        let expected = [
            "tell_kernel",
            "make_device 320 10000 0",
            "make_file_system ext4",
            "write_file 64512",
            "job libaio randread 4096 64 0 66060288",
            "measure 0 base 64",
            "measure 0 run 20064",
            "job libaio write 4096 64 0 66060288",
            "measure 1 base 64",
            "measure 1 run 20064",
            "watch_completions",
            "job libaio randread 4096 64 0 66060288",
            "trace 0 2000 run_fio 2000",
            "job libaio write 4096 64 0 66060288",
            "trace 1 2000 run_fio 2000",
            "exit 0",
        ];
        assert_eq!(calls(&script), expected);
    }

    #[test]
    fn what_counts_only_once_is_traced_on_a_file_of_its_own_and_never_measured() {
        let (jobs, device) = NamedJob::Ext3Boundary.jobs(&[]);
        let script = script(FileSystem::Ext3, device, &assigned(jobs), true);
        let calls = calls(&script);
        assert!(!calls.iter().any(|call| call.starts_with("measure 0")));
        let at = calls.iter().position(|call| *call == "TARGET=/mnt/once0").unwrap();
        let expected = [
            "TARGET=/mnt/once0",
            "write_file 48",
            "job libaio write 4194304 1 49152 4194304",
            "trace 0 1 write_once",
        ];
        assert_eq!(calls[at..at + 4], expected);
    }

    #[test]
    fn the_script_is_one_that_a_shell_can_read() {
        let script = script(FileSystem::Raw, Device::default(), &[], true);
        let mut shell = std::process::Command::new("sh");
        let status = shell.arg("-n").arg("-c").arg(&script).status().unwrap();
        assert!(status.success());
    }
}
