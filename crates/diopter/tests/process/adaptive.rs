//! Adaptive reads next to another process and of another user's file.

use std::fs::{self, OpenOptions, Permissions};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use diopter::engine::{AdaptiveCounters, RoutePolicy};
use diopter::{File, IoBuf};
use diopter_core::prng::Prng;
use diopter_os::file::DirectSupport;
use diopter_os::testing::{become_user, end_after, fork, is_root};
use diopter_testkit::env::{self, Capability, skip};

use crate::bytes::{bytes, dir, dir_in, file_of, own_process};

const MIB: usize = 1 << 20;
const NOBODY: u32 = 65534;
const BLOCK: usize = 4096;

/// No test takes longer. A million reads take about five minutes.
const SECONDS_MAX: u32 = 1200;

/// Few enough that a block is read and written at the same time.
const BLOCKS: u64 = 64;

fn adaptive(path: &Path) -> File {
    File::options().read(true).route(RoutePolicy::Adaptive).open(path).expect("it may be read")
}

#[test]
fn the_pages_of_another_users_file_cannot_be_seen_and_its_reads_are_direct() {
    if !is_root() {
        return skip(Capability::Root, "becoming another user");
    }
    let name = "the_pages_of_another_users_file_cannot_be_seen_and_its_reads_are_direct";
    own_process(module_path!(), name, || {
        let dir = dir_in(&std::env::temp_dir());
        let path = dir.file();
        let parent = path.parent().expect("a directory").to_owned();
        fs::set_permissions(parent, Permissions::from_mode(0o755)).expect("its owner");
        drop(file_of(&dir, MIB));
        fs::set_permissions(&path, Permissions::from_mode(0o644)).expect("its owner");
        assert_eq!(fs::read(&path).expect("it is there").len(), MIB, "all of it is cached");
        let read = |file: &File| {
            let mut buf = vec![0; BLOCK];
            file.read_exact_at(&mut buf, 0).expect("a read");
            assert_eq!(buf, bytes(0, BLOCK));
            file.adaptive_counters()
        };
        if adaptive(&path).direct_support() != DirectSupport::Full {
            return skip(Capability::Direct, "no direct I/O in the directory for temporary files");
        }
        assert_eq!(read(&adaptive(&path)), AdaptiveCounters { looks: 1, found: 1 });
        become_user(NOBODY).expect("root may");
        assert_eq!(read(&adaptive(&path)), AdaptiveCounters::default());
    });
}

/// A version in each word of a block.
fn fill(block: &mut [u8], version: u64) {
    block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&version.to_le_bytes()));
}

fn word(bytes: &[u8]) -> u64 {
    u64::from_le_bytes(bytes.try_into().expect("8 bytes"))
}

/// Writes blocks, directly and through the page cache, and says after each which version it has.
/// Ends once `says` has a byte behind the versions.
fn write_versions(path: &Path, says: &fs::File) {
    let buffered = OpenOptions::new().read(true).write(true).open(path).expect("it is there");
    let flag = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let mut options = OpenOptions::new();
    let direct = options.write(true).custom_flags(flag).open(path).expect("direct I/O");
    let mut prng = Prng::new(env::seed()).fork("versions");
    let mut memory = IoBuf::new(BLOCK).expect("memory");
    let mut version = 0;
    let mut stop = [0];
    while says.read_at(&mut stop, BLOCKS * 8).expect("a byte") == 0 {
        let number = prng.below(BLOCKS);
        let at = number * BLOCK as u64;
        version += 1;
        fill(&mut memory, version);
        if prng.one_in(8) {
            // So that the page cache has some of what is written next.
            buffered.read_exact_at(&mut memory, at).expect("a read");
            fill(&mut memory, version);
        }
        let file = if prng.one_in(2) { &direct } else { &buffered };
        file.write_all_at(&memory, at).expect("a write");
        says.write_all_at(&version.to_le_bytes(), number * 8).expect("a word");
    }
}

#[test]
fn a_read_sees_what_another_process_had_written_before_it_began() {
    let name = "a_read_sees_what_another_process_had_written_before_it_began";
    own_process(module_path!(), name, || {
        let dir = dir();
        let path = dir.file();
        fs::write(&path, vec![0; BLOCK * usize::try_from(BLOCKS).expect("few")]).expect("space");
        let says = path.with_file_name("says");
        fs::write(&says, vec![0; 8 * usize::try_from(BLOCKS).expect("few")]).expect("space");
        let says = OpenOptions::new().read(true).write(true).open(says).expect("just made");
        if adaptive(&path).direct_support() != DirectSupport::Full {
            return skip(Capability::Direct, "no direct I/O where the tests are built");
        }
        // An alarm is not a child's.
        let writer = fork(|| {
            end_after(SECONDS_MAX);
            write_versions(&path, &says);
        });
        let writer = writer.expect("fork");
        end_after(SECONDS_MAX);
        let file = adaptive(&path);
        let mut prng = Prng::new(env::seed()).fork("reads");
        let reads = if env::is_soak() { 1_000_000 } else { 20_000 };
        let mut memory = IoBuf::new(BLOCK).expect("memory");
        let mut said = [0; 8];
        for _ in 0..reads {
            let number = prng.below(BLOCKS);
            says.read_exact_at(&mut said, number * 8).expect("a word");
            file.read_exact_at(&mut memory, number * BLOCK as u64).expect("a read");
            let oldest = memory.chunks_exact(8).map(word).min().expect("512 words");
            assert!(oldest >= word(&said), "block {number}: {oldest}, written {}", word(&said));
        }
        says.write_all_at(&[1], BLOCKS * 8).expect("a byte");
        assert!(writer.wait().expect("waitpid").success());
        let AdaptiveCounters { looks, found } = file.adaptive_counters();
        assert!(found > 0 && found < looks, "{found} of {looks}: both paths were tried");
    });
}
