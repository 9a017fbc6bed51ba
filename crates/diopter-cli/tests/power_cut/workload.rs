//! The guest's side: this test binary again, inside the virtual machine. It does its steps, and
//! acknowledges each one by a block at the end of the disk that is logged with all other writes.

use std::path::Path;

use diopter::File;
use diopter::layouts::StripedFile;

use crate::guest_support;
use crate::steps::{
    DURABLE, Kinds, OBJECTS, STRIPED, Step, WIDE, name_of, name_of_clone, name_of_tree, steps,
};

/// Seed, number and kinds of steps, separated by spaces.
pub const VARIABLE: &str = "DIOPTER_POWER_CUT";
/// Bytes of the disk that the file system has; acknowledgements lie behind it.
pub const FILE_SYSTEM_BYTES: u64 = 112 << 20;
/// Bytes of an acknowledgement.
const BLOCK: usize = 4096;
/// The first bytes of an acknowledgement; the step's number follows.
const MARK: &[u8; 8] = b"dio-ack\0";

const MOUNT: &str = "/mnt";
const DISK: &str = "/dev/vda";
const SOURCE: &str = "/tmp/source";

/// The number in a write, if it is an acknowledgement.
pub fn acknowledged(offset: u64, data: &[u8]) -> Option<u64> {
    let number = data.strip_prefix(MARK)?.first_chunk().copied()?;
    (offset == FILE_SYSTEM_BYTES).then(|| u64::from_le_bytes(number))
}

/// Does the steps that the environment names.
pub fn run(asked: &str) {
    let [seed, count, kinds] = asked.split(' ').collect::<Vec<_>>()[..] else {
        panic!("seed, count and kinds: {asked}");
    };
    let kinds = if kinds == "trees" { Kinds::Trees } else { Kinds::All };
    let disk = File::options().write(true).open(DISK).unwrap();
    let acknowledge = |number: u64| {
        let mut block = vec![0; BLOCK];
        block[..8].copy_from_slice(MARK);
        block[8..16].copy_from_slice(&number.to_le_bytes());
        disk.write_all_at(&block, FILE_SYSTEM_BYTES).unwrap();
    };
    let durable = Path::new(MOUNT).join(DURABLE);
    let durable = File::options().write(true).create(true).dsync(true).open(durable).unwrap();
    let objects = format!("{MOUNT}/{OBJECTS}");
    std::fs::create_dir(&objects).unwrap();
    // The names themselves are durable before anything is acknowledged.
    std::fs::File::open(MOUNT).unwrap().sync_all().unwrap();
    // What these make is durable when they end.
    for name in [STRIPED, WIDE] {
        let path = format!("{MOUNT}/{name}");
        let shape = ["--stripe-size", "64k", "--objects", MOUNT, &objects, MOUNT];
        succeed(&[&["stripe", "create", &path], &shape[..]].concat());
    }
    acknowledge(0);
    for (number, step) in (1..).zip(steps(kinds, seed.parse().unwrap(), count.parse().unwrap())) {
        match step {
            Step::Copy { target, is_resumed, .. } => {
                std::fs::write(SOURCE, step.bytes()).unwrap();
                copy(&format!("{MOUNT}/{}", name_of(target)), is_resumed);
            }
            Step::Write { offset, .. } => durable.write_all_at(&step.bytes(), offset).unwrap(),
            Step::StripedCopy { .. } => {
                std::fs::write(SOURCE, step.bytes()).unwrap();
                succeed(&["cp", SOURCE, &format!("{MOUNT}/{STRIPED}")]);
            }
            Step::StripedWrite { offset, is_sealed, .. } => {
                let options = File::options().read(true).write(true).dsync(true).clone();
                let wide = StripedFile::open_with(format!("{MOUNT}/{WIDE}"), &options).unwrap();
                wide.write_all_at(&step.bytes(), offset).unwrap();
                if is_sealed {
                    wide.seal().unwrap();
                }
            }
            Step::Tree { target, is_together, .. } => {
                let source = write_tree(&step);
                let target = format!("{MOUNT}/{}", name_of_tree(target));
                let flush = if is_together { "--flush=filesystem" } else { "--flush=files" };
                succeed(&["cp", "-r", "-T", flush, &source, &target]);
            }
            Step::Clone { clone } => {
                let clone = format!("{MOUNT}/{}", name_of_clone(clone));
                succeed(&["cp", "--striped", &format!("{MOUNT}/{WIDE}"), &clone]);
            }
        }
        acknowledge(number);
    }
}

/// Makes the source of a tree, in place of the one before.
fn write_tree(step: &Step) -> String {
    let source = format!("{SOURCE}-tree");
    std::fs::remove_dir_all(&source).unwrap_or(());
    for (name, content) in step.tree() {
        let path = Path::new(&source).join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    source
}

fn copy(target: &str, is_resumed: bool) {
    if is_resumed {
        let slow = ["cp", "--resume", "--bs=4k", "--iodepth=1", SOURCE, target];
        let mut child = guest_support::dio(&slow).spawn().unwrap();
        let temporary = target.replace("/target", "/.target") + ".dio-part";
        let has_begun = || std::fs::metadata(&temporary).is_ok_and(|found| found.len() > 0);
        while !has_begun() && child.try_wait().unwrap().is_none() {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
    }
    succeed(&["cp", "--resume", SOURCE, target]);
}

fn succeed(arguments: &[&str]) {
    let status = guest_support::dio(arguments).status().unwrap();
    assert!(status.success(), "{arguments:?}: {status}");
}
