//! A tree of pointers that is damaged further on: a request gets as far as the metadata is good,
//! says so, and ends.

use diopter_testkit::env::Capability;
use std::fs;
use std::path::Path;
use std::time::Duration;

use diopter::engine::PlanQuery;
use diopter::images::{Image, ImageErrorKind};
use diopter::{
    BackendKind, Engine, EngineOptions, Errno, Error, File, FinishedRequest, IoBuf, IoError,
    IoErrorKind, OpenOptions, Policies, RangeState, Request,
};

use super::agreement::BOUNDARIES;
use super::env;
use super::ground::{self, EXT4, Format, MIB, Volume, XFS};
use super::machine::{self, Loop};
use super::story::Story;

/// Where the damage begins, in bytes of the file.
const GOOD_TO: u64 = 1036 * 4096;

#[test]
fn damage_in_the_middle_of_a_tree_ends_a_request_there_and_the_outcome_says_so() {
    let _machine = machine::alone();
    let Some(story) = Story::new() else { return };
    let place = story.second_group();
    story.damage(place, &[0xff; 4096]);
    let words = format!(
        "a pointer outside the volume, to block 4294967295, inode {}, block {}; the metadata is",
        story.inode(),
        place / 4096
    );
    for backend in [BackendKind::Uring, BackendKind::Aio, BackendKind::Threads] {
        if !env::has(backend) {
            continue;
        }
        for boundary in BOUNDARIES {
            let policies = Policies { history: boundary.into(), ..Policies::default() };
            check(
                &story,
                EngineOptions { backend, policies, checked: true, ..EngineOptions::DEFAULT },
                &words,
            );
        }
    }
    machine::run("e2fsck", &["-fn", story.image.to_str().unwrap()]).unwrap_err();
}

fn check(story: &Story, options: EngineOptions, words: &str) {
    let engine = Engine::new(options).unwrap();
    let image = OpenOptions::new().read(true).write(true).clone();
    let image = Image::open_with(&story.image, &image).unwrap();
    let file = image.file(b"file").unwrap();
    let run = |request| {
        engine.start(&file, request).unwrap();
        engine.wait(Duration::from_secs(60)).unwrap().unwrap()
    };
    for start in [0, 40_960, 7, GOOD_TO - 4096, GOOD_TO - 700] {
        let mut memory = IoBuf::new(5 << 20).unwrap();
        memory.fill(0xa5);
        let finished = run(Request::read(start, memory));
        must_end(&finished, start, words);
        let outcome = finished.outcome();
        let memory = finished.memory.unwrap();
        for part in outcome.ranges().iter().filter(|part| part.state == RangeState::Done) {
            let (from, to) = (part.range.start(), part.range.end());
            let at = |at: u64| usize::try_from(at).unwrap();
            let read = &memory[at(from - start)..at(to - start)];
            assert!(*read == story.content[at(from)..at(to)], "{options:?}: {start}");
        }
    }
    // The same bytes once more, so that the next one finds the file as it was.
    for start in [57_344, GOOD_TO - 4096] {
        let from = usize::try_from(start).unwrap();
        let mut memory = IoBuf::new(4 << 20).unwrap();
        memory.copy_from_slice(&story.content[from..from + (4 << 20)]);
        must_end(&run(Request::write(start, memory)), start, words);
    }
}

fn must_end(finished: &FinishedRequest, start: u64, words: &str) {
    let error = finished.result.as_ref().unwrap_err();
    assert_eq!((error.errno, error.kind), (Errno::EUCLEAN, IoErrorKind::Corrupt), "{error}");
    assert_eq!(error.range.start(), GOOD_TO, "{error}");
    assert!(error.to_string().contains(words), "{error}, not: {words}");
    let outcome = finished.outcome();
    let done = outcome.ranges().iter().filter(|part| part.state == RangeState::Done);
    let done: u64 = done.map(|part| part.range.length()).sum();
    assert_eq!(done, GOOD_TO - start, "{:?}", finished.outcome());
    let tried = finished.outcome().ranges().iter().all(|part| {
        part.range.end() <= GOOD_TO && part.state == RangeState::Done
            || part.range.start() >= GOOD_TO && part.state == RangeState::NotTried
    });
    assert!(tried, "{:?}", finished.outcome());
}

/// The error of an I/O call.
#[track_caller]
fn io<T>(result: diopter::Result<T>) -> IoError {
    match result.err() {
        Some(Error::Io(error)) => error,
        other => panic!("{other:?} is not an error of an I/O call"),
    }
}

#[track_caller]
fn must_name(error: &IoError, kind: ImageErrorKind, words: &[&str]) {
    let finding = error.finding().unwrap_or_else(|| panic!("{error}: no finding"));
    assert_eq!((finding.kind, finding.errno()), (kind, error.errno), "{error}");
    let message = error.to_string();
    assert!(words.iter().all(|words| message.contains(words)), "{message}, not: {words:?}");
}

#[track_caller]
fn must_not_plan(file: &File, at: u64, kind: ImageErrorKind, words: &[&str]) {
    let query = PlanQuery {
        is_write: false,
        offset: at,
        length: 4096,
        address: 0,
        policies: Policies::default(),
        bio_bytes_max: None,
        bio_vecs_max: None,
    };
    must_name(&io(file.plan(&query)), kind, words);
}

/// Asserts what blocking calls and a queued request say of the same bytes.
#[track_caller]
fn must_find(file: &File, at: u64, kind: ImageErrorKind, words: &[&str]) {
    let engine = Engine::new(EngineOptions::DEFAULT).unwrap();
    engine.start(file, Request::read(at, IoBuf::new(4096).unwrap())).unwrap();
    let queued = engine.wait(Duration::from_secs(60)).unwrap().unwrap();
    let errors = [
        io(file.read_at(&mut vec![0; 4096], at)),
        io(file.read_at(&mut [0; 100], at + 7)),
        queued.result.unwrap_err(),
    ];
    errors.iter().for_each(|error| must_name(error, kind, words));
}

#[test]
fn an_image_that_was_cut_after_it_was_opened_is_reported_with_the_block_that_is_missing() {
    let _machine = machine::alone();
    let Some(story) = Story::new() else { return };
    let (place, inode) = (story.second_group(), format!("inode {}", story.inode()));
    let file = story.file();
    fs::File::options().write(true).open(&story.image).unwrap().set_len(place).unwrap();
    let block = format!("block {}", place / 4096);
    let words = ["the image ends before its file system", &inode, &block, "copy the image again"];
    must_find(&file, GOOD_TO, ImageErrorKind::Truncated, &words);
    must_not_plan(&file, GOOD_TO, ImageErrorKind::Truncated, &words);
    let mut read = vec![0; 4096];
    file.read_exact_at(&mut read, GOOD_TO - 4096).unwrap();
    let from = usize::try_from(GOOD_TO).unwrap() - 4096;
    assert!(read == story.content[from..from + 4096]);
    // Bytes of the file that are gone are not the end of the file.
    fs::File::options().write(true).open(&story.image).unwrap().set_len(place / 2).unwrap();
    let at = GOOD_TO - 4096;
    // Between the two lies the block that points to blocks of pointers.
    let block = format!("block {}", place / 4096 - 2);
    let words = ["the image ends at byte", &inode, &block, "copy the image again"];
    must_find(&file, at, ImageErrorKind::Truncated, &words);
}

/// A loop device has no bytes behind the end of its file, and says so as a broken disk does.
#[test]
fn a_device_that_fails_under_metadata_is_reported_with_the_block_that_was_read() {
    let _machine = machine::alone();
    if let Some(why) = machine::loop_missing() {
        return env::skip(Capability::Loop, why);
    }
    let Some(story) = Story::new() else { return };
    let (place, inode) = (story.second_group(), format!("inode {}", story.inode()));
    let device = Loop::over_image(&story.image, 512).unwrap();
    let image = Image::open(device.device()).unwrap();
    let file = image.file(b"file").unwrap();
    fs::File::options().write(true).open(&story.image).unwrap().set_len(place).unwrap();
    let block = format!("block {}", place / 4096);
    let words = ["the image can't be read", "EIO", &inode, &block];
    must_find(&file, GOOD_TO, ImageErrorKind::Io(Errno::EIO), &words);
    must_not_plan(&file, GOOD_TO, ImageErrorKind::Io(Errno::EIO), &words);
    let error = io(file.read_at(&mut vec![0; 4096], GOOD_TO));
    assert_eq!((error.errno, error.kind), (Errno::EIO, IoErrorKind::Device), "{error}");
    drop((file, image, device));
}

/// Two files: one to be broken, and a neighbour.
fn small(format: Format) -> Volume {
    let fill = |root: &Path| fs::write(root.join("plain"), vec![7; 20_000]).unwrap();
    Volume::new(format, |mount| fill(mount.path())).0
}

/// Opens the file for writing, and has all its bytes refused; nothing of the image is changed.
#[track_caller]
fn must_refuse(image: &Path, inode: u64, words: &str) {
    let before = fs::read(image).unwrap();
    let opened = OpenOptions::new().read(true).write(true).clone();
    let opened = Image::open_with(image, &opened).unwrap();
    let file = opened.file(b"plain").unwrap();
    for (at, length) in [(0, 4096), (0, 8192), (3, 100)] {
        let errors =
            [file.write_at(&vec![9; length], at), file.read_at(&mut vec![0; length], at)].map(io);
        for error in errors {
            assert_eq!((error.errno, error.kind), (Errno::EUCLEAN, IoErrorKind::Corrupt));
            let message = error.to_string();
            let inode = format!("inode {inode}, block ");
            assert!(message.contains(words) && message.contains(&inode), "{message}, not: {words}");
        }
    }
    assert!(fs::read(image).unwrap() == before, "refused, and the image is another: {words}");
}

#[test]
fn an_extent_over_the_metadata_of_ext4_is_neither_read_nor_written() {
    let _machine = machine::alone();
    if !ground::is_possible(EXT4.kind) {
        return;
    }
    let volume = small(Format { bytes: 32 * MIB, ..EXT4 });
    let image = volume.image().to_str().unwrap();
    let inode = Image::open(image).unwrap().find(b"plain").unwrap().inode;
    let bytes = fs::read(image).unwrap();
    let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
    let journal = machine::run("debugfs", &["-R", "bmap <8> 500", image]).unwrap();
    let journal: u32 = journal.trim().parse().unwrap();
    for (block, words) in [
        (1, "over the superblock and descriptors of group 0"),
        (word(4096), "over the block bitmap of group 0"),
        (word(4100), "over the inode bitmap of group 0"),
        (word(4104) + 3, "over the inode table of group 0"),
        (journal, "over the journal"),
    ] {
        // The start of the first extent in the inode; its checksum is made right.
        let set = format!("sif <{inode}> block[5] {block}");
        machine::run("debugfs", &["-w", "-R", &set, image]).unwrap();
        must_refuse(volume.image(), inode, words);
    }
}

#[test]
fn an_extent_over_the_metadata_of_xfs_is_neither_read_nor_written() {
    let _machine = machine::alone();
    if !ground::is_possible(XFS.kind) {
        return;
    }
    let volume = small(XFS);
    let image = volume.image().to_str().unwrap();
    let inode = Image::open(image).unwrap().find(b"plain").unwrap().inode;
    let look = |structure: &str, field: &str| {
        let output = machine::run("xfs_db", &["-r", "-c", structure, "-c", field, image]).unwrap();
        output.trim().rsplit(' ').next().unwrap().parse::<u64>().unwrap()
    };
    let own = |field: &str| look("agf 0", field);
    for (block, words) in [
        (0, "lies over the headers of its group"),
        (look("sb 0", "print logstart") + 2, "lies over the log"),
        (own("print bnoroot"), "over the root of a tree of group 0"),
        (own("print cntroot"), "over the root of a tree of group 0"),
        (look("agi 0", "print root"), "over the root of a tree of group 0"),
    ] {
        let go = format!("inode {inode}");
        let set = format!("write -d u3.bmx[0].startblock {block}");
        machine::run("xfs_db", &["-x", "-c", &go, "-c", &set, image]).unwrap();
        must_refuse(volume.image(), inode, words);
    }
}
