//! Requests with the memory of other owners, on files of this machine and each backend: any type,
//! any address, any offset, and borrowed memory.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use diopter::engine::{AnyBuf, OwnedBuf, OwnedBufMut};
use diopter::{BackendKind, Engine, EngineOptions, File, IoBuf, Request};
use diopter_testkit::memory::content;
use diopter_testkit::{env, files};

const LONG: Duration = Duration::from_secs(30);
const LENGTH: usize = 70_000;

/// Offsets and lengths: whole blocks, parts of one, and the end of the file.
const RANGES: [(u64, usize); 5] = [(0, 65_536), (8192, 4096), (7, 100), (4000, 9001), (69_990, 10)];

struct Bench {
    engine: Engine,
    file: File,
    bytes: Vec<u8>,
    _dir: tempfile::TempDir,
}

fn on_each_backend(check: impl Fn(&mut Bench)) {
    for backend in [BackendKind::Uring, BackendKind::Aio, BackendKind::Threads] {
        if !env::has(backend) {
            continue;
        }
        let options = EngineOptions { backend, checked: true, ..EngineOptions::DEFAULT };
        let dir = files::dir();
        let path = dir.path().join("data");
        let bytes = content(LENGTH, diopter_core::prng::Prng::new(env::seed()));
        std::fs::write(&path, &bytes).unwrap();
        let file = File::options().read(true).write(true).open(path).unwrap();
        file.sync_all().unwrap();
        let engine = Engine::new(options).unwrap();
        check(&mut Bench { engine, file, bytes, _dir: dir });
    }
}

impl Bench {
    /// Runs a request, which moves all its bytes, and returns its memory.
    fn run<T: OwnedBuf>(&self, request: Request) -> T {
        self.engine.start(&self.file, request).unwrap();
        let done = self.engine.wait(LONG).unwrap().expect("one is in flight");
        let length = done.range.length();
        let (result, memory) = done.into_parts();
        assert_eq!(result.unwrap().get(), length);
        memory.expect("it comes back as what it was")
    }

    fn check_read<T: OwnedBufMut>(&self, make: impl Fn(usize) -> T) {
        for (offset, length) in RANGES {
            let buffer = AnyBuf::new(self.run::<T>(Request::read(offset, make(length))));
            let start = usize::try_from(offset).unwrap();
            assert!(*buffer == self.bytes[start..start + length], "{offset} {length}");
        }
    }

    fn check_write<T: OwnedBuf>(&mut self, make: impl Fn(Vec<u8>) -> T) {
        for (offset, length) in RANGES {
            let start = usize::try_from(offset).unwrap();
            self.bytes[start..start + length].rotate_left(length / 3);
            let new = self.bytes[start..start + length].to_vec();
            let buffer = AnyBuf::new(self.run::<T>(Request::write(offset, make(new))));
            assert!(*buffer == self.bytes[start..start + length], "the source stays as it was");
            let mut whole = vec![0; LENGTH];
            self.file.read_exact_at(&mut whole, 0).unwrap();
            assert!(whole == self.bytes, "{offset} {length}");
        }
    }
}

#[test]
fn every_owner_reads_and_writes_any_range() {
    on_each_backend(|bench| {
        bench.check_read(|length| vec![255; length]);
        bench.check_read(|length| vec![255; length].into_boxed_slice());
        bench.check_read(|length| IoBuf::new(length).unwrap());
        bench.check_read(|length| BytesMut::zeroed(length + 1).split_off(1));
        bench.check_write(|bytes| bytes);
        bench.check_write(Vec::into_boxed_slice);
        bench.check_write(|bytes| BytesMut::from(&bytes[..]));
        bench.check_write(Bytes::from);
        bench.check_write(Arc::<[u8]>::from);
        bench.check_write(|bytes| &*bytes.leak());
    });
}

#[test]
fn only_memory_at_an_unusable_address_is_copied() {
    on_each_backend(|bench| {
        let mut whole = BytesMut::zeroed(3 * 4096);
        let mut aligned = whole.split_off(whole.as_ptr().align_offset(4096));
        let mut odd = BytesMut::zeroed(2 * 4096).split_off(1);
        for (buffer, is_copied) in [(&mut aligned, false), (&mut odd, true)] {
            bench.engine.start(&bench.file, Request::read(0, buffer.split_to(4096))).unwrap();
            let done = bench.engine.wait(LONG).unwrap().expect("one is in flight");
            assert_eq!((done.route().bounced > 0, done.result.is_ok()), (is_copied, true));
        }
    });
}

#[test]
fn a_loop_reuses_memory_of_whatever_type() {
    on_each_backend(|bench| {
        let mut memory = AnyBuf::new(vec![0; 4096]);
        for block in 0..17 {
            memory = bench.run(Request::read(block * 4096, memory));
            let start = usize::try_from(block * 4096).unwrap();
            assert!(*memory == bench.bytes[start..start + 4096]);
        }
        let vector: Vec<u8> = memory.downcast().unwrap();
        assert_eq!(vector.len(), 4096);
    });
}

#[test]
fn a_scope_moves_borrowed_memory_many_times_over() {
    on_each_backend(|bench| {
        let mut whole = vec![0; LENGTH];
        bench.engine.scope(|scope| {
            let mut running = Vec::new();
            for (at, piece) in whole.chunks_mut(999).enumerate() {
                running.push(scope.read(&bench.file, piece, 999 * at as u64).unwrap());
            }
            for request in running {
                let done = request.wait();
                assert_eq!(done.result.unwrap().get(), done.range.length());
            }
        });
        assert!(whole == bench.bytes);
        whole.reverse();
        bench.engine.scope(|scope| {
            for (at, piece) in whole.chunks(4096 * 3).enumerate() {
                drop(scope.write(&bench.file, piece, 4096 * 3 * at as u64).unwrap());
            }
        });
        let mut read = vec![0; LENGTH];
        bench.file.read_exact_at(&mut read, 0).unwrap();
        assert!(read == whole);
    });
}

/// Whatever owns a file or refers to it is the file of a request.
#[test]
fn a_request_takes_a_file_by_any_pointer() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("data");
    std::fs::write(&path, [7; 100]).expect("room");
    let open = || File::open(&path).expect("it exists");
    let engine = Engine::new(EngineOptions::DEFAULT).expect("an engine");
    let read = || Request::read(0, vec![0; 100]);
    let (mut owned, shared) = (open(), Arc::new(open()));
    let started = [
        engine.start(&mut owned, read()),
        engine.start(owned, read()),
        engine.start(Box::new(open()), read()),
        engine.start(std::rc::Rc::new(open()), read()),
        engine.start(&shared, read()),
        engine.start(shared, read()),
    ];
    for started in started {
        started.expect("admitted");
        let finished = engine.wait(LONG).expect("a backend").expect("it ends");
        assert_eq!(finished.check_read().expect("read"), 100);
    }
}
