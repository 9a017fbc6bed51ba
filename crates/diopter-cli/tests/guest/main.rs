//! `dio` on other kernels and devices: a virtual machine with an NVMe disk that is polled, SCSI
//! disks of 4096-byte blocks and of 512 emulated on 4096, disks that fail at one sector, and disks
//! that are removed. The guest copies, explains, traces and compares; `workload.rs` is its part.
//!
//! One kernel runs always, the others with `DIOPTER_SOAK`. `DIOPTER_CHECK` is a part of the name of
//! the checks to make. Needs QEMU, and kernel packages or a filled cache; what is missing is
//! skipped by name.

mod bisect;
mod checks;
#[path = "../cp_support/mod.rs"]
mod cp_support;
mod devices;
mod direct;
mod faults;
mod forked;
#[path = "../guest_support/mod.rs"]
mod guest_support;
mod polled;
mod trace;
mod workload;

use std::time::Duration;

use cp_support::{Capability, dir, print_line, skip};
use devices::Disks;
use diopter_lab::BootOptions;
use diopter_testkit::machine;
use guest_support::{Host, line};
use workload::{CHECK, VARIABLE};

/// The kernel that always runs, and the others.
const SERIES: &str = "6.1";
const OTHERS: [&str; 3] = ["5.10", "6.12", "7.2"];
/// Two kernels without events of direct I/O, and one with them.
const TRACED: [&str; 3] = ["5.10", "6.1", "6.12"];
/// The whole of a boot, on a machine with other work.
const BOOT_LIMIT: Duration = Duration::from_secs(1800);
/// The guest prints a line after each check: when it prints nothing for so long it hangs.
const QUIET_LIMIT: Duration = Duration::from_secs(240);
/// A failure shows the whole console.
const CONSOLE_LINES: usize = 2000;

/// Modules that a kernel may have inside its image.
const OPTIONAL: [&str; 6] = ["crc32c_generic", "crc32c_intel", "nvme", "ext4", "configfs", "btrfs"];
const NEEDED: [&str; 5] = ["virtio_pci", "virtio_blk", "virtio_scsi", "sd_mod", "xfs"];

#[test]
fn dio_serves_the_devices_of_a_common_kernel() {
    if boot(Host::find(SERIES), "all", "") {
        print_line("TRIED guest: 1 kernels");
    }
}

#[test]
fn dio_serves_the_devices_of_older_and_newer_kernels() {
    if std::env::var_os("DIOPTER_SOAK").is_none() {
        return skip(Capability::Soak, "the other kernels take several minutes: set DIOPTER_SOAK");
    }
    // A kernel that fails does not keep the next from being tried.
    let others = OTHERS.map(|series| (series, Host::find as fn(&str) -> _));
    let kernels = others.into_iter().chain([("the newest", (|_| Host::newest()) as fn(&str) -> _)]);
    let mut failed = Vec::new();
    for (name, find) in kernels {
        match std::panic::catch_unwind(|| boot(find(name), "all", "")) {
            Ok(true) => print_line("TRIED guest: 1 kernels"),
            Ok(false) => {}
            Err(_) => failed.push(name),
        }
    }
    assert!(failed.is_empty(), "failed on {}", failed.join(", "));
}

#[test]
fn dio_serves_no_trace_where_a_kernel_is_locked_down() {
    if std::env::var_os("DIOPTER_SOAK").is_none() {
        return skip(Capability::Soak, "another boot: set DIOPTER_SOAK");
    }
    boot(Host::find("6.12"), "locked-down", "lockdown=confidentiality");
}

#[test]
fn dio_traces_the_requests_that_fio_counts() {
    if std::env::var_os("DIOPTER_SOAK").is_none() {
        return skip(Capability::Soak, "three boots more: set DIOPTER_SOAK");
    }
    let mut failed = Vec::new();
    for series in TRACED {
        let tried = std::panic::catch_unwind(|| boot(Host::find(series), "trace-counts", ""));
        failed.extend(tried.is_err().then_some(series));
    }
    assert!(failed.is_empty(), "failed on {}", failed.join(", "));
}

/// The guest's side of the tests above; nothing to do on the host.
#[test]
fn guest() {
    if let Ok(part) = std::env::var(VARIABLE) {
        workload::run(&part);
    }
}

/// Boots a kernel and does a part of the guest; false where there is no kernel or emulator.
fn boot(host: Result<Host, (Capability, String)>, part: &str, append: &str) -> bool {
    let host = match host {
        Ok(host) => host,
        Err((capability, why)) => {
            skip(capability, why);
            return false;
        }
    };
    let directory = dir();
    let disks = Disks::make(directory.path());
    let options = BootOptions {
        limit: BOOT_LIMIT,
        quiet_limit: Some(QUIET_LIMIT),
        tail_lines: CONSOLE_LINES,
        devices: disks.words(),
        inherited: disks.files(),
        append: format!("nvme.poll_queues=1 {append}"),
        ..BootOptions::default()
    };
    let initramfs = host.initramfs(&NEEDED, &OPTIONAL).unwrap();
    let only = std::env::var(CHECK).unwrap_or_default();
    let script = format!("export {CHECK}='{only}'\n{}", line(VARIABLE, part));
    let release = &host.kernel().release;
    let ended = host.boot(&initramfs, &script, &options).unwrap_or_else(|why| {
        panic!("Linux {release}: {why}");
    });
    for line in ended.console.lines().filter_map(|line| line.split_once("guest: ")) {
        print_line(&format!("Linux {release}: {}", line.1));
    }
    assert!(ended.console.contains(&format!("guest: {part} done")), "{}", ended.console);
    print_line(&format!("Linux {release}: booted and checked in {} s", ended.wall.as_secs()));
    true
}
