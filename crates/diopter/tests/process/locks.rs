//! Record locks of the process (fcntl(2), F_SETLK): the kernel releases them when any descriptor of
//! the file is closed, so opening a file must not close one.

use std::fs;
use std::os::fd::AsFd;

use diopter::{File, OpenOptions};
use diopter_os::space;
use rustix::fs::{FlockOperation, fcntl_lock};

use crate::bytes::dir;

#[test]
fn opening_a_file_keeps_the_record_locks_of_the_process() {
    let dir = dir();
    let path = dir.file();
    fs::write(&path, [b'a'; 4096]).expect("a file");
    let holder = fs::File::options().read(true).write(true).open(&path).expect("it is there");
    let witness = fs::File::options().read(true).write(true).open(&path).expect("it is there");
    fcntl_lock(&holder, FlockOperation::NonBlockingLockExclusive).expect("no other locks it");
    let ways: [OpenOptions; 6] = [
        File::options().write(true).clone(),
        File::options().read(true).clone(),
        File::options().read(true).write(true).create(true).clone(),
        File::options().append(true).clone(),
        File::options().write(true).striped(true).clone(),
        File::options().read(true).write(true).striped(true).clone(),
    ];
    let mut open = Vec::new();
    for options in &ways {
        open.push(options.open(&path).expect("it opens"));
        // A lock of an open file description conflicts with the process's own record locks too.
        let taken = space::lock_range(witness.as_fd(), true, 0, 1, false);
        assert_eq!(taken, Ok(false), "{options:?} released the lock");
    }
    for file in &open {
        drop(file.read_at(&mut [0; 7], 1));
        drop(file.write_at(&[1; 7], 1));
        let taken = space::lock_range(witness.as_fd(), true, 0, 1, false);
        assert_eq!(taken, Ok(false), "a transfer released the lock");
        let _states = file.try_direct();
        let taken = space::lock_range(witness.as_fd(), true, 0, 1, false);
        assert_eq!(taken, Ok(false), "a trial of direct I/O released the lock");
    }
}

#[test]
fn a_file_from_a_descriptor_keeps_the_record_locks_until_it_is_closed() {
    let dir = dir();
    let path = dir.file();
    fs::write(&path, [b'a'; 8192]).expect("a file");
    let both = || fs::File::options().read(true).write(true).open(&path).expect("it is there");
    let witness = both();
    let given = both();
    fcntl_lock(&given, FlockOperation::NonBlockingLockExclusive).expect("no other locks it");
    let is_free = || space::lock_range(witness.as_fd(), true, 0, 1, false).expect("it can ask");
    let file = File::try_from(given).expect("a regular file");
    assert!(!is_free(), "the conversion released the lock");
    let clone = file.try_clone().expect("no descriptor is needed");
    file.write_all_at(&[1; 7], 1).expect("it is open for writing");
    file.write_all_at(&[2; 4096], 4096).expect("it is open for writing");
    assert_eq!(file.read_at(&mut [0; 7], 1).expect("it is open for reading"), 7);
    drop(file);
    assert!(!is_free(), "a clone is there");
    clone.close().expect("a flush");
    assert!(is_free(), "the last handle keeps the lock");
}
