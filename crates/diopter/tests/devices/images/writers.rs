//! Several writers of one image in one process: no byte of any of them is lost.

use std::fs;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use diopter::images::Image;
use diopter::{BackendKind, EngineOptions, OpenOptions, use_for_this_thread};
use diopter_core::prng::Prng;

use super::env;
use super::ground::{self, Format, MIB, Volume};
use super::machine::{self, FileSystem};

/// Bytes that one writer has to itself: shorter than a sector, and on no edge of one.
const PART: usize = 77;
const WRITERS: usize = 4;
const ROUNDS: u8 = 30;
const FILES: usize = 3;

/// Blocks of 1 KiB, so that files share pages of the page cache.
const SMALL: Format = Format {
    name: "ext4 in 1k blocks",
    block: 1024,
    kind: FileSystem::Ext4 { block: 1024, extra: &[] },
    size_max: 0,
    bytes: 32 * MIB,
    has_clones: false,
};

/// Each ends within a block: the last part is behind the last whole sector.
const SIZE: usize = WRITERS * PART * 11;

#[test]
fn misaligned_writers_of_one_image_lose_nothing() {
    let _machine = machine::alone();
    if !ground::is_possible(SMALL.kind) {
        return;
    }
    let (volume, ()) = Volume::new(SMALL, |mount| {
        for file in 0..FILES {
            fs::write(mount.path().join(file.to_string()), vec![0; SIZE]).unwrap();
        }
    });
    for (turn, sector) in (0..).zip([None, Some(512), Some(4096)]) {
        let rounds = turn * ROUNDS..(turn + 1) * ROUNDS;
        let device = sector.map(|sector| volume.device(sector));
        let path = device.as_ref().map_or(volume.image(), |device| device.device());
        let options = OpenOptions::new().read(true).write(true).clone();
        let first = Image::open_with(path, &options).unwrap();
        // An image can be open twice; a device is held by one.
        let second = if device.is_none() {
            Image::open_with(path, &options).unwrap()
        } else {
            first.clone()
        };
        std::thread::scope(|scope| {
            for writer in 0..WRITERS {
                let image = if writer % 2 == 0 { &first } else { &second };
                let rounds = rounds.clone();
                scope.spawn(move || write_all(image, writer, rounds));
            }
        });
        for file in 0..FILES {
            let mut read = vec![0; SIZE];
            let opened = first.file(file.to_string().as_bytes()).unwrap();
            opened.read_exact_at(&mut read, 0).unwrap();
            let is_kept = read.iter().all(|byte| *byte == rounds.end);
            assert!(is_kept, "{sector:?}: file {file} lost something");
        }
        drop((first, second));
        volume.check(|root| {
            for file in 0..FILES {
                let mut read = vec![0; SIZE];
                let opened = fs::File::open(root.join(file.to_string())).unwrap();
                opened.read_exact_at(&mut read, 0).unwrap();
                assert!(read.iter().all(|byte| *byte == rounds.end), "{sector:?}: file {file}");
            }
        });
    }
}

/// Every part of this writer in every file, once a round, and each is still there in the next one.
fn write_all(image: &Image, writer: usize, rounds: Range<u8>) {
    let backend = if writer < 2 { BackendKind::Threads } else { BackendKind::Auto };
    use_for_this_thread(EngineOptions { backend, ..EngineOptions::DEFAULT });
    let mut prng = Prng::new(env::seed()).fork(&format!("writer {writer}"));
    let files: Vec<_> =
        (0..FILES).map(|file| image.file(file.to_string().as_bytes()).unwrap()).collect();
    let mut last = [[rounds.start; SIZE / PART]; FILES];
    for round in rounds.map(|round| round + 1) {
        let mut parts: Vec<(usize, usize)> = (0..FILES)
            .flat_map(|file| (writer..SIZE / PART).step_by(WRITERS).map(move |part| (file, part)))
            .collect();
        while !parts.is_empty() {
            let index = usize::try_from(prng.below(parts.len() as u64)).unwrap();
            let (file, part) = parts.swap_remove(index);
            let at = (part * PART) as u64;
            let mut before = [0; PART];
            files[file].read_exact_at(&mut before, at).unwrap();
            assert_eq!(before, [last[file][part]; PART], "file {file}, part {part} was lost");
            files[file].write_at(&[round; PART], at).unwrap();
            last[file][part] = round;
        }
    }
}
