//! A striped file as a file: how it is opened, sealed and unsealed, and what is refused.

use std::fs;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use diopter::layouts::{LayoutErrorKind, StripedFile};
use diopter::{AdmitErrorKind, Errno, Error, File, IoBuf, Request};
use diopter_layouts::layout::{Layout, OBJECT_ATTRIBUTE};
use diopter_os::space::sync_file_range_wait;

use super::memory::{Skewed, difference};
use super::row::{Check, Row, as_it_is, both_ways};
use super::subject::Subject;

pub const ON_FILES: &[Check] = &[
    ("a sealed file names the object that is not as it was", a_sealed_file_names_the_object),
    ("the first write that makes an object larger unseals", the_first_growing_write_unseals),
    ("a manifest opens as the file or as itself", a_manifest_opens_as_the_file_or_as_itself),
    ("a striped file is opened for what is asked", a_striped_file_is_opened_for_what_is_asked),
    ("no striped file is longer than a file can be", no_striped_file_is_longer_than_a_file_can_be),
    (
        "reading an object during a write meets no error",
        reading_an_object_during_a_write_meets_no_error,
    ),
];

const STRIPE_SIZE: u64 = 64 << 10;

/// A new striped file over three objects that ends at byte `size`, of which all bytes are 1.
fn striped(row: &Row, size: u64) -> Subject {
    let subject = Subject::striped(row, STRIPE_SIZE, 3);
    let file = both_ways().open(&subject.path).unwrap();
    file.write_all_at(&vec![1; usize::try_from(size).unwrap()], 0).unwrap();
    subject
}

fn seal(path: &Path) {
    StripedFile::open(path).unwrap().seal().unwrap();
}

fn is_sealed(path: &Path) -> bool {
    Layout::open(path).unwrap().manifest().is_sealed()
}

fn refusal(path: &Path) -> diopter::layouts::LayoutError {
    match as_it_is().read(true).open(path) {
        Err(Error::Layout(error)) => error,
        other => panic!("{other:?}"),
    }
}

fn a_sealed_file_names_the_object(row: &Row) {
    let subject = striped(row, 5 * STRIPE_SIZE + 700);
    let (path, objects) = (&subject.path, &subject.objects);
    seal(path);
    assert_eq!(as_it_is().read(true).open(path).unwrap().size().unwrap(), 5 * STRIPE_SIZE + 700);
    let object = fs::OpenOptions::new().write(true).open(&objects[1]).unwrap();
    for found in [2 * STRIPE_SIZE - 1, 0, 2 * STRIPE_SIZE + 1] {
        object.set_len(found).unwrap();
        let error = refusal(path);
        let expected = LayoutErrorKind::SealedSize { recorded: 2 * STRIPE_SIZE, found };
        assert_eq!((error.kind, &error.path), (expected, &objects[1]));
    }
    object.set_len(2 * STRIPE_SIZE).unwrap();
    drop(as_it_is().read(true).open(path).unwrap());

    let aside = path.with_extension("aside");
    fs::rename(&objects[0], &aside).unwrap();
    let error = refusal(path);
    assert_eq!((error.kind, &error.path), (LayoutErrorKind::Missing, &objects[0]));
    fs::rename(&objects[2], &objects[0]).unwrap();
    fs::rename(&aside, &objects[2]).unwrap();
    let error = refusal(path);
    assert!(matches!(error.kind, LayoutErrorKind::Foreign { .. }), "{error}");
    assert_eq!(error.path, objects[0], "the first that was exchanged");
    fs::remove_file(&objects[0]).unwrap();
    fs::write(&objects[0], vec![1; 1000]).unwrap();
    let error = refusal(path);
    assert!(matches!(error.kind, LayoutErrorKind::Foreign { found: None, .. }), "{error}");
    assert!(error.to_string().contains(OBJECT_ATTRIBUTE), "{error}");
}

/// Seals a file, lets `change` loose on it, and asks whether it is sealed then. Sealed or not, it
/// opens again.
fn stays_sealed(
    subject: &Subject,
    open: &diopter::OpenOptions,
    change: impl FnOnce(&File),
) -> bool {
    seal(&subject.path);
    assert!(is_sealed(&subject.path));
    let file = open.open(&subject.path).unwrap();
    change(&file);
    drop(file);
    let size = as_it_is().read(true).open(&subject.path).unwrap().size().unwrap();
    drop(subject.content(size));
    is_sealed(&subject.path)
}

fn the_first_growing_write_unseals(row: &Row) {
    let size = 4 * STRIPE_SIZE + 1000;
    let subject = striped(row, size);
    let both = both_ways();
    let write = |offset: u64, length: usize| {
        move |file: &File| file.write_all_at(&vec![2; length], offset).unwrap()
    };
    for (offset, length) in [(0, 4096), (100, 50), (size - 1000, 1000), (size - 1, 1), (7, 200_000)]
    {
        let what = format!("an overwrite of {offset}+{length}");
        assert!(stays_sealed(&subject, &both, write(offset, length)), "{what}");
    }
    assert!(stays_sealed(&subject, &both, |file| file.sync_all().unwrap()));
    assert!(stays_sealed(&subject, &both, |file| file.write_all_at(&[], 1 << 40).unwrap()));
    assert!(!stays_sealed(&subject, &both, write(size, 1)), "one byte more");
    assert!(!stays_sealed(&subject, &both, write(4 * STRIPE_SIZE, 65_536)), "the last stripe");
    assert!(!stays_sealed(&subject, &both, |file| {
        let memory = IoBuf::new(4096).unwrap();
        file.request(Request::write(8 * STRIPE_SIZE, memory))
            .unwrap()
            .wait()
            .check_whole()
            .unwrap();
    }));
    let append = as_it_is().append(true).clone();
    assert!(!stays_sealed(&subject, &append, write(0, 10)), "an append");
    assert!(stays_sealed(&subject, as_it_is().read(true), |file| {
        file.read_at(&mut [0; 10], 0).unwrap();
    }));
    for size in [8 * STRIPE_SIZE + 4106, 1000, 20 * STRIPE_SIZE] {
        assert!(!stays_sealed(&subject, &both, |file| file.set_len(size).unwrap()), "{size}");
    }
    let truncate = both_ways().truncate(true).clone();
    assert!(!stays_sealed(&subject, &truncate, |file| assert_eq!(file.size().unwrap(), 0)));

    // Holes: the first object ends within a block, and so does nothing of the file.
    let file = both.open(&subject.path).unwrap();
    file.write_all_at(&[1; 1000], 0).unwrap();
    file.write_all_at(&[1; 4096], STRIPE_SIZE).unwrap();
    drop(file);
    assert!(stays_sealed(&subject, &both, |file| file.write_all_at(&[3; 400], 100).unwrap()));
    assert!(!stays_sealed(&subject, &both, write(1000, 1)), "into a hole");
    assert!(!stays_sealed(&subject, &both, write(STRIPE_SIZE + 8192, 512)), "behind a hole");
    // Whose last block is written whole where the file goes on.
    let hole = Subject::striped(row, STRIPE_SIZE, 2);
    let file = both.open(&hole.path).unwrap();
    file.write_all_at(&[1; 1000], 0).unwrap();
    file.write_all_at(&[1; 4096], STRIPE_SIZE).unwrap();
    drop(file);
    stays_sealed(&hole, &both, write(0, 900));
    stays_sealed(&hole, &both, |file| {
        let mut memory = IoBuf::new(900).unwrap();
        memory.fill(2);
        file.request(Request::write(0, memory)).unwrap().wait().check_whole().unwrap();
    });
}

fn a_manifest_opens_as_the_file_or_as_itself(row: &Row) {
    let subject = striped(row, 3000);
    let path = &subject.path;
    let striped = as_it_is().read(true).open(path).unwrap();
    assert_eq!(striped.striping().map(|it| it.object_count()), Some(3));
    assert_eq!((striped.size().unwrap(), striped.object_descriptors().len()), (3000, 3));
    let plain = File::open(path).unwrap();
    assert_eq!(plain.striping(), None);
    let manifest = fs::read(path).unwrap();
    let mut bytes = vec![0; manifest.len() + 1];
    assert_eq!(plain.read_at(&mut bytes, 0).unwrap(), manifest.len());
    assert!(bytes.starts_with(&manifest));
    let link = path.with_extension("link");
    symlink(path, &link).unwrap();
    assert!(as_it_is().read(true).open(&link).unwrap().striping().is_some());
    let refused = as_it_is().read(true).no_follow(true).open(&link).unwrap_err();
    assert_eq!(refused.errno(), Errno::ELOOP);
    fs::remove_file(&link).unwrap();
    let exists = both_ways().create_new(true).open(path).unwrap_err();
    assert_eq!(exists.errno(), Errno::EEXIST);
    let created = both_ways().truncate(true).open(path).unwrap();
    assert_eq!((created.striping().is_some(), created.size().unwrap()), (true, 0));
    assert_eq!(fs::read(path).unwrap(), manifest, "its bytes went, not the manifest's");
    let ends = |path: &PathBuf| fs::metadata(path).unwrap().len();
    assert!(subject.objects.iter().all(|object| ends(object) == 0));
}

fn a_striped_file_is_opened_for_what_is_asked(row: &Row) {
    let size = 4 * STRIPE_SIZE + 1000;
    let subject = striped(row, size);
    let path = &subject.path;
    let write_only = as_it_is().write(true).open(path).unwrap();
    let mut expected = vec![1; usize::try_from(size).unwrap()];
    for (offset, length) in [(0, 4096), (STRIPE_SIZE - 77, 500), (70_001, 150_000), (size - 5, 5)] {
        write_only.write_all_at(&vec![2; length], offset).unwrap();
        let start = usize::try_from(offset).unwrap();
        expected[start..start + length].fill(2);
    }
    assert_eq!(difference(&subject.content(size), &expected), None);
    let admit = |error: Error| match error {
        Error::Admit(error) => error.kind,
        error => panic!("{error}"),
    };
    let not_open = AdmitErrorKind::NotOpenedForThis;
    assert_eq!(admit(write_only.read_at(&mut [0], 0).unwrap_err()), not_open);
    seal(path);
    let read_only = as_it_is().read(true).open(path).unwrap();
    assert_eq!(admit(read_only.write_at(&[1], 0).unwrap_err()), not_open);
    for size in [0, size, 2 * size] {
        assert_eq!(read_only.set_len(size).unwrap_err().errno(), Errno::EINVAL);
    }
    assert!(is_sealed(path), "what it may not change it does not take off the record");
    let strict = both_ways().strict(true).open(path);
    if !row.is_direct() {
        assert_eq!(strict.unwrap_err().errno(), Errno::EOPNOTSUPP);
        return;
    }
    let strict = strict.unwrap();
    let block = usize::try_from(strict.alignment().offset_write).unwrap();
    let memory = Skewed::new(6 * block, 0);
    assert_eq!(strict.write_at(&memory[..5 * block], 0).unwrap(), 5 * block);
    assert_eq!(strict.write_at(&memory[..100], 5).unwrap(), 100);
    let refused = strict.write_at(&memory[..100], size).unwrap_err();
    assert_eq!(admit(refused), AdmitErrorKind::WouldBuffer);
    assert_eq!(strict.size().unwrap(), size);
}

fn no_striped_file_is_longer_than_a_file_can_be(row: &Row) {
    let subject = striped(row, 1000);
    let file = both_ways().open(&subject.path).unwrap();
    for size in [1 << 63, u64::MAX] {
        assert_eq!(file.set_len(size).unwrap_err().errno(), Errno::EINVAL, "{size}");
        assert_eq!(file.size().unwrap(), 1000);
    }
    let too_far = file.write_at(&[1; 10], (1 << 63) - 5).unwrap_err();
    assert!(matches!(too_far, Error::Admit(error) if error.kind == AdmitErrorKind::TooFar));
    assert_eq!(file.read_at(&mut [0; 10], u64::MAX - 5).unwrap(), 0);
}

/// Plain readers, one of each object, during a writer's requests of all kinds.
fn reading_an_object_during_a_write_meets_no_error(row: &Row) {
    let size = 6 * STRIPE_SIZE;
    let subject = striped(row, size);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for object in &subject.objects {
            let is_over = &is_over;
            scope.spawn(move || {
                let plain = fs::File::open(object).unwrap();
                let mut bytes = vec![0; 10_000];
                for n in 0.. {
                    plain.read_at(&mut bytes, n * 7777 % (2 * STRIPE_SIZE)).unwrap();
                    if is_over.load(Ordering::Relaxed) {
                        break;
                    }
                }
            });
        }
        let file = both_ways().open(&subject.path).unwrap();
        for round in 0..60 {
            file.write_all_at(&vec![round; usize::try_from(size).unwrap()], 0).unwrap();
            file.write_all_at(&vec![round; 100_000], 5000 + u64::from(round)).unwrap();
            file.write_all_at(&[round; 10], STRIPE_SIZE - 5).unwrap();
        }
        file.sync_all().unwrap();
        is_over.store(true, Ordering::Relaxed);
    });
    for object in &subject.objects {
        let witness = fs::File::open(object).unwrap();
        assert_eq!(sync_file_range_wait(witness.as_fd(), 1 << 40, 1), Ok(()));
    }
    let file = as_it_is().read(true).open(&subject.path).unwrap();
    let mut bytes = vec![0; usize::try_from(size).unwrap()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 59));
}
