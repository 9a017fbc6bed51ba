//! A ring that polls, on a disk with a queue for that. On Linux 6.1 it never sees the end of a
//! request that the kernel had to cut, such as 1 MiB on a disk of 512 KiB at once, unless the
//! engine cuts it before.

use std::fs;
use std::time::{Duration, Instant};

use diopter::engine::UringOptions;
use diopter::{Engine, EngineOptions, File, IoBuf, Request};

use crate::cp_support::print_line;
use crate::devices::NVME;
use crate::guest_support;
use crate::workload::{Outcome, PATIENCE, VARIABLE, processes};

/// Below and above what the disk takes at once.
const LENGTHS: [usize; 4] = [4096, 512 << 10, 1 << 20, (3 << 20) + 512];
const REQUESTS_OF_A_LENGTH: u64 = 8;

/// A child that polls: it cannot be trusted to end.
pub fn check() -> Outcome {
    let queue = "/sys/block/nvme0n1/queue";
    let polls = fs::read_to_string(format!("{queue}/io_poll")).unwrap();
    assert_eq!(polls.trim(), "1", "the NVMe disk has no queue for polling: nvme.poll_queues");
    let mut child = guest_support::this(VARIABLE, "poll").spawn().unwrap();
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if started.elapsed() > PATIENCE {
            print_line(&processes());
            // It may hang in the kernel, so it is not waited for; the machine ends anyway.
            child.kill().unwrap();
            panic!("a polled request did not come back within {PATIENCE:?}");
        }
        std::thread::park_timeout(Duration::from_millis(1));
    };
    assert!(status.success(), "{status}");
    Ok(())
}

/// Writes and reads, and counts the interrupts of the disk meanwhile.
pub fn poll() {
    let uring = UringOptions { iopoll: true, ..UringOptions::DEFAULT };
    let engine = Engine::new(EngineOptions { uring, ..EngineOptions::DEFAULT }).unwrap();
    assert!(engine.backend().features.contains(&("iopoll", true)), "{:?}", engine.backend());
    let file = File::options().read(true).write(true).open(NVME).unwrap();
    let before = interrupts();
    for length in LENGTHS {
        let mut memory = IoBuf::new(length).unwrap();
        memory.fill(7);
        for at in 0..REQUESTS_OF_A_LENGTH {
            let request = if at % 2 == 0 {
                Request::write(4096, memory)
            } else {
                Request::read(4096, IoBuf::new(length).unwrap())
            };
            engine.start(&file, request).unwrap();
            let done = engine.wait(PATIENCE).unwrap();
            let done = done.unwrap_or_else(|| panic!("{length} bytes did not come back"));
            assert_eq!(done.result.unwrap().get(), u64::try_from(length).unwrap());
            memory = done.memory.unwrap().downcast().unwrap();
            assert!(memory.iter().all(|byte| *byte == 7), "{length} bytes");
        }
    }
    let count = interrupts() - before;
    let requests = REQUESTS_OF_A_LENGTH * u64::try_from(LENGTHS.len()).unwrap();
    print_line(&format!("guest: {count} interrupts of the disk for {requests} polled requests"));
    assert!(count < requests, "{count} interrupts for {requests} requests: nothing was polled");
}

/// Interrupts of the disk so far.
fn interrupts() -> u64 {
    let text = fs::read_to_string("/proc/interrupts").unwrap();
    let of_disk = text.lines().filter(|line| line.contains("nvme0q"));
    of_disk.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum()
}
