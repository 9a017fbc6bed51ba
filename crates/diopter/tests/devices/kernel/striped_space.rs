//! Striped files on file systems that are full: what of a write is there, what its result says, and
//! what needs no space. Each on two small file systems, of which the first is full.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;

use diopter::layouts::StripedFile;
use diopter::{BackendKind, Errno, File, RangeState, Request};
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use diopter_os::space::{fallocate_keep_size, free_bytes};

use diopter_testkit::memory::filled as memory;

use super::machine::{self, FileSystem, Mount};
use super::memory::{Skewed, difference};
use super::row::{both_ways, each_backend, has};

const MIB: u64 = 1 << 20;

const EXT4: FileSystem = FileSystem::Ext4 { block: 4096, extra: &["-m", "0"] };

/// In the format of ext2, which has no fallocate(2): space cannot be reserved.
const EXT2: FileSystem = FileSystem::Ext4 { block: 4096, extra: &["-m", "0", "-t", "ext2"] };

/// The smallest XFS that its tools make.
const XFS_BYTES: u64 = 300 * MIB;

/// Two file systems; the first one is to be full.
struct Ground {
    name: String,
    mounts: [Mount; 2],
    files: u32,
}

impl Ground {
    fn dir(&self, target: usize) -> &Path {
        self.mounts[target].path()
    }

    /// A new striped file with an object on each of these targets, in stripes of 1 MiB.
    fn striped(&mut self, targets: &[usize]) -> StripedFile {
        self.files += 1;
        let place = |target: &usize| ObjectPlace::Dir(self.dir(*target).to_owned());
        let objects = targets.iter().map(place).collect();
        let options = CreateOptions { objects, ..CreateOptions::default() };
        let path = self.dir(1).join(format!("file-{}", self.files));
        StripedFile::create(path, &options).unwrap()
    }

    /// Takes all space of the first file system.
    fn fill(&self) {
        let filler = self.dir(0).join("filler");
        let mut file = fs::OpenOptions::new().create(true).append(true).open(filler).unwrap();
        for piece in [64 * MIB, MIB, 64 << 10, 4096] {
            while let Ok(true) = fill_one(&mut file, piece) {}
        }
        file.sync_all().unwrap();
    }
}

/// Takes `piece` bytes at the end of the file; whether there was so much.
fn fill_one(file: &mut fs::File, piece: u64) -> Result<bool, Errno> {
    let end = file.metadata().unwrap().len();
    match fallocate_keep_size(file.as_fd(), end, piece) {
        Ok(()) => file.set_len(end + piece).unwrap(),
        Err(Errno::EOPNOTSUPP) => {
            let bytes = vec![7; usize::try_from(piece).unwrap()];
            let written = file.write_all(&bytes).and_then(|()| file.sync_data());
            if written.is_err() {
                return Ok(false);
            }
        }
        Err(Errno::ENOSPC) => return Ok(false),
        Err(errno) => return Err(errno),
    }
    Ok(true)
}

/// Each file system under each backend.
fn each_ground(test: impl Fn(&mut Ground)) {
    let _alone = machine::alone();
    for (name, kind, bytes) in [
        ("ext4", EXT4, 48 * MIB),
        ("ext2", EXT2, 48 * MIB),
        ("xfs", FileSystem::Xfs { extra: &[] }, XFS_BYTES),
    ] {
        if !has(Some(kind)) {
            continue;
        }
        each_backend(|backend: BackendKind| {
            let mounts = [(); 2].map(|()| Mount::new(kind, bytes, "defaults").unwrap());
            let mut ground = Ground { name: format!("{name} {backend}"), mounts, files: 0 };
            test(&mut ground);
            ground.mounts.into_iter().for_each(|mount| mount.finish().unwrap());
        });
    }
}

/// sanity 398k: objects on targets 0, 1, 0, 1 of which target 0 is full.
#[test]
fn without_space_for_the_first_stripe_nothing_is_written() {
    each_ground(|ground| {
        let file = ground.striped(&[0, 1, 0, 1]);
        ground.fill();
        for offset in [0, 100] {
            let error = file.write_at(&memory(8 * MIB, 7), offset).unwrap_err();
            assert_eq!(error.errno(), Errno::ENOSPC, "{}", ground.name);
            let sizes = file.object_sizes().unwrap();
            assert_eq!((sizes, file.size().unwrap()), (vec![0; 4], 0), "{} {offset}", ground.name);
        }
        let request = Request::write(0, memory(8 * MIB, 7));
        let finished = file.request(request).unwrap().wait();
        assert_eq!(finished.result.clone().map_err(|error| error.errno), Err(Errno::ENOSPC));
        let outcome = finished.outcome();
        let parts = outcome.ranges();
        assert_eq!(parts[0].state, RangeState::Failed(Errno::ENOSPC));
        assert!(parts[1..].iter().all(|part| part.state == RangeState::NotTried));
        assert_eq!(file.size().unwrap(), 0, "{}", ground.name);
    });
}

/// sanity 398l: objects on targets 1, 0, 1, 0 of which target 0 is full.
#[test]
fn without_space_for_the_second_stripe_the_first_is_written() {
    each_ground(|ground| {
        let files = [0, 100].map(|skip| (skip, ground.striped(&[1, 0, 1, 0])));
        ground.fill();
        for (skip, file) in files {
            let wanted = memory(8 * MIB, 7);
            let done = file.write_at(&wanted, skip).unwrap();
            assert_eq!((done as u64, file.size().unwrap()), (MIB - skip, MIB), "{}", ground.name);
            assert_eq!(file.object_sizes().unwrap(), [MIB, 0, 0, 0], "{}", ground.name);
            let mut bytes = vec![1; usize::try_from(2 * MIB).unwrap()];
            assert_eq!(file.read_at(&mut bytes, 0).unwrap() as u64, MIB);
            let from = usize::try_from(skip).unwrap();
            let expected = [vec![0; from], vec![7; done]].concat();
            assert_eq!(difference(&bytes[..expected.len()], &expected), None);
            let error = file.write_all_at(&wanted, skip).unwrap_err();
            assert_eq!(error.errno(), Errno::ENOSPC, "{}: the rest says so", ground.name);
            assert_eq!(file.size().unwrap(), MIB);
        }
    });
}

/// conf-sanity 127: what has its space needs none.
#[test]
fn an_overwrite_on_a_full_file_system_succeeds() {
    each_ground(|ground| {
        let file = ground.striped(&[0, 1, 0, 1]);
        file.write_all_at(&memory(8 * MIB, 7), 0).unwrap();
        file.sync_all().unwrap();
        ground.fill();
        let mut expected = vec![7; usize::try_from(8 * MIB).unwrap()];
        // The second time nothing is known of its space.
        let again = both_ways().open(ground.dir(1).join("file-1")).unwrap();
        for (value, file) in [(8, &*file), (9, &again)] {
            for (offset, length) in [(0, 8 * MIB), (100, 3 * MIB), (MIB - 10, 20)] {
                let bytes = memory(length, value);
                assert_eq!(file.write_at(&bytes, offset).unwrap() as u64, length);
                let start = usize::try_from(offset).unwrap();
                expected[start..start + bytes.len()].fill(value);
            }
            let mut bytes = Skewed::new(expected.len(), 0);
            file.read_exact_at(bytes.as_mut(), 0).unwrap();
            assert_eq!(difference(&bytes, &expected), None, "{}", ground.name);
        }
    });
}

/// Space that a failed write had reserved and did not need may be freed by cutting the file.
#[test]
fn a_write_that_found_no_space_leaves_room_for_others_once_it_is_cut() {
    each_ground(|ground| {
        let before = free(ground, 1);
        let file = ground.striped(&[0, 1, 0, 1]);
        ground.fill();
        file.write_at(&memory(16 * MIB, 7), 0).unwrap_err();
        file.set_len(0).unwrap();
        let after = free(ground, 1);
        assert!(before - after < MIB, "{}: {before} bytes free, then {after}", ground.name);
    });
}

fn free(ground: &Ground, target: usize) -> u64 {
    let dir = fs::File::open(ground.dir(target)).unwrap();
    free_bytes(dir.as_fd()).unwrap()
}

/// Appends meet the end of the space as writes do.
#[test]
fn an_append_without_space_for_its_first_stripe_changes_nothing() {
    each_ground(|ground| {
        let file = ground.striped(&[1, 0]);
        file.write_all_at(&memory(MIB, 7), 0).unwrap();
        let path = ground.dir(1).join("file-1");
        ground.fill();
        let append = File::options().append(true).striped(true).open(path).unwrap();
        let error = append.write_at(&memory(2 * MIB, 7), 0).unwrap_err();
        assert_eq!((error.errno(), file.size().unwrap()), (Errno::ENOSPC, MIB), "{}", ground.name);
    });
}
