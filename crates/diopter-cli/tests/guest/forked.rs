//! A fork while reads are in the device. Before Linux 6.3 a direct read does not pin its pages in a
//! way that fork respects: the process that writes to a page first gets a copy of it, without the
//! bytes that arrive later. An `IoBuf` is not mapped in the child, and loses nothing on any kernel.

use std::io::{Read, Write};

use bytes::BytesMut;
use diopter::engine::AnyBuf;
use diopter::{Engine, EngineOptions, File, IoBuf, Request};
use diopter_os::testing::fork;

use crate::cp_support::print_line;
use crate::devices::NVME;
use crate::workload::{Outcome, PATIENCE};

const PAGE: usize = 4096;
const HALF: usize = PAGE / 2;
const READS: usize = 128;
const ROUNDS: usize = 40;
const CONTENT: u8 = 0x5a;
/// The first Linux, major and minor, whose direct reads pin their pages.
const PINS: (u32, u32) = (6, 3);

pub fn check() -> Outcome {
    let file = File::options().read(true).write(true).open(NVME).unwrap();
    file.write_all_at(&[CONTENT; HALF], 0).unwrap();
    let own = || (AnyBuf::new(IoBuf::new(HALF).unwrap()), None);
    let own: usize = (0..ROUNDS).map(|_| lost(&file, own)).sum();
    let heap: usize = (0..ROUNDS).map(|_| lost(&file, half_of_a_page)).sum();
    let reads = ROUNDS * READS;
    print_line(&format!("guest: a fork lost {own} of {reads} reads into IoBuf, {heap} into heap"));
    assert_eq!(own, 0, "an IoBuf is not mapped in a child");
    assert!(heap == 0 || release() < PINS, "this kernel pins the pages of a direct read");
    Ok(())
}

/// The first half of a page for a read, and the second for the process.
fn half_of_a_page() -> (AnyBuf, Option<BytesMut>) {
    let mut whole = BytesMut::zeroed(2 * PAGE);
    let mut page = whole.split_off(whole.as_ptr().align_offset(PAGE));
    let other = page.split_off(HALF);
    (AnyBuf::new(page), Some(other))
}

/// Forks while reads are in the device, writes to the pages that they fill, and returns the number
/// of reads whose bytes are missing.
fn lost(file: &File, make: impl Fn() -> (AnyBuf, Option<BytesMut>)) -> usize {
    let engine = Engine::new(EngineOptions::default()).unwrap();
    let mut others = Vec::new();
    for _ in 0..READS {
        let (memory, other) = make();
        engine.start(file, Request::read(0, memory)).unwrap();
        others.extend(other);
    }
    engine.tick();
    let (mut receiver, mut sender) = std::io::pipe().unwrap();
    // The pages stay shared until the parent has written to them.
    let child = fork(|| receiver.read_exact(&mut [0]).unwrap()).unwrap();
    for other in &mut others {
        other.fill(1);
    }
    let mut lost = 0;
    for _ in 0..READS {
        let done = engine.wait(PATIENCE).unwrap().expect("it is in flight");
        assert_eq!(usize::try_from(done.result.unwrap().get()), Ok(HALF));
        lost += usize::from(done.memory.unwrap().iter().any(|byte| *byte != CONTENT));
    }
    sender.write_all(&[0]).unwrap();
    assert!(child.wait().unwrap().success());
    lost
}

/// The major and minor number of this kernel.
fn release() -> (u32, u32) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|number| number.parse().unwrap());
    (numbers.next().unwrap(), numbers.next().unwrap())
}
