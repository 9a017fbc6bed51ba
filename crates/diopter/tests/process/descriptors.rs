//! Descriptors: what may still run refers to no number that another file can get.

use std::fs::Permissions;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;

use diopter::{BackendKind, Engine, Errno, File, Request};
use diopter_os::testing::{become_user, fork, is_root};
use rustix::fs::{OFlags, fcntl_getfl};

use crate::bytes::{LONG, bytes, content, dir, engine, file_of, memory, own_process};
use crate::env::{Capability, skip};

const BLOCK: usize = 4096;

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path).expect("it is there")
}

fn write_block(engine: &Engine, file: &File, seed: u64) {
    engine.start(file, Request::write(0, memory(seed, BLOCK))).expect("room");
    let done = engine.wait(LONG).expect("it works").expect("in flight");
    assert_eq!(done.result.map(|moved| moved.get()), Ok(4096));
}

#[test]
fn a_registered_file_that_is_closed_gets_no_bytes_of_the_next_one() {
    let name = "a_registered_file_that_is_closed_gets_no_bytes_of_the_next_one";
    own_process(module_path!(), name, || {
        let [first, second] = [(); 2].map(|()| dir());
        drop([&first, &second].map(|dir| file_of(dir, BLOCK)));
        let engine = engine(BackendKind::Auto);
        let file = open(&first.file());
        if let Err(errno) = engine.register_file(&file) {
            return skip(Capability::Uring, format!("this kernel registers no files: {errno}"));
        }
        let before = content(&first);
        let number = file.local_fd().unwrap().as_raw_fd();
        drop(file);
        let next = open(&second.file());
        eprintln!("descriptor {number}, then {}", next.local_fd().unwrap().as_raw_fd());
        write_block(&engine, &next, 9);
        assert!(content(&first) == before, "the bytes are in the file that was closed");
        assert!(content(&second) == bytes(9, BLOCK), "the bytes are in the file that was named");
    });
}

#[test]
fn a_file_is_closed_with_its_last_request_and_not_kept_by_the_engine() {
    let name = "a_file_is_closed_with_its_last_request_and_not_kept_by_the_engine";
    own_process(module_path!(), name, || {
        let dir = dir();
        drop(file_of(&dir, 4 * BLOCK));
        for backend in crate::bytes::backends() {
            let engine = engine(backend);
            let file = open(&dir.file());
            let number = file.local_fd().unwrap().as_raw_fd();
            for offset in [0, 4096, 77] {
                engine.start(&file, Request::read(offset, memory(1, BLOCK))).expect("room");
            }
            drop(file);
            assert!(is_open(number), "requests of it are in flight");
            for _ in 0..3 {
                let done = engine.wait(LONG).expect("it works").expect("in flight");
                assert!(done.result.is_ok());
            }
            assert!(!is_open(number), "{backend}");
        }
    });
}

#[test]
fn a_file_that_cannot_be_opened_again_is_served_by_its_direct_descriptor_alone() {
    const NOBODY: u32 = 65534;
    let name = "a_file_that_cannot_be_opened_again_is_served_by_its_direct_descriptor_alone";
    if !is_root() {
        return skip(Capability::Root, "becoming another user");
    }
    own_process(module_path!(), name, || {
        let dir = dir();
        drop(file_of(&dir, BLOCK));
        std::fs::set_permissions(dir.file(), Permissions::from_mode(0o600)).expect("its owner");
        let open = |flags: OFlags| {
            let flags = i32::try_from(flags.bits()).expect("low bits");
            let mut options = std::fs::File::options();
            options.read(true).write(true).custom_flags(flags).open(dir.file()).expect("direct I/O")
        };
        let direct = open(OFlags::DIRECT);
        let unusable = [open(OFlags::empty()), open(OFlags::DIRECT | OFlags::APPEND)];
        // As root the same file is opened again.
        let own = File::try_from(direct.try_clone().expect("room")).expect("root may");
        assert!(is_open(own.local_fd().unwrap().as_raw_fd()) && own.descriptors().count() == 2);
        let child = fork(|| {
            become_user(NOBODY).expect("root may");
            for given in unusable {
                let refused = File::try_from(given).expect_err("no permission");
                assert_eq!(refused.errno(), Errno::EACCES);
            }
            let number = direct.as_raw_fd();
            let file = File::try_from(direct).expect("it is usable as it is");
            assert_eq!(file.local_fd().unwrap().as_raw_fd(), number);
            assert!(fcntl_getfl(file.local_fd().unwrap()).expect("open").contains(OFlags::DIRECT));
            file.write_all_at(&memory(9, BLOCK), 0).expect("a whole block");
        });
        assert!(child.expect("fork").wait().expect("its status").success());
        assert!(content(&dir) == bytes(9, BLOCK));
    });
}

/// `true` where this process, which opens no file meanwhile, has a descriptor of this number.
fn is_open(number: i32) -> bool {
    std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok()
}
