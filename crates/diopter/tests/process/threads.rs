//! Threads that end, and more threads than the process has descriptors for.

use std::cell::RefCell;
use std::io::IoSliceMut;
use std::sync::Barrier;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use diopter::{File, Request};
use diopter_os::testing::{Limit, set_limit};

use crate::bytes::{
    backends, bytes, check_blocking_calls, check_engine, content, dir, engine, file_of, memory,
    own_process,
};

const MIB: usize = 1 << 20;

thread_local! {
    static LAST: RefCell<Option<LastWords>> = const { RefCell::new(None) };
}

/// How many of them did all that they do.
static FINISHED: AtomicU32 = AtomicU32::new(0);

/// Makes a panic of any thread the end of the process, so that no thread waits for that one.
fn end_with_any_thread() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        std::process::abort();
    }));
}

/// Uses the engine when its thread destroys it. A panic there ends the process.
struct LastWords {
    file: File,
    start: u64,
}

impl Drop for LastWords {
    fn drop(&mut self) {
        check_blocking_calls(&self.file, self.start, 3);
        for backend in backends() {
            check_engine(&engine(backend), &self.file, self.start + 65536, 4);
        }
        let start = self.start + 2 * 65536;
        let writes = [0, 8192].map(|offset| Request::write(start + offset, memory(offset, 5000)));
        let writes = writes.map(|write| self.file.request(write).expect("room"));
        drop(self.file.request(Request::sync_data()).expect("room"));
        for write in writes {
            assert!(write.wait().result.is_ok());
        }
        self.file.set_len(4 * (1 << 20)).expect("space");
        self.file.sync_all().expect("a flush");
        FINISHED.fetch_add(1, Ordering::Relaxed);
    }
}

#[test]
fn an_engine_serves_while_its_thread_is_torn_down() {
    own_process(module_path!(), "an_engine_serves_while_its_thread_is_torn_down", || {
        let dir = dir();
        let file = file_of(&dir, 4 * MIB);
        let speak_at_the_end = |start| {
            let words = LastWords { file: file.clone(), start };
            LAST.with_borrow_mut(|last| *last = Some(words));
        };
        // What a thread uses first is destroyed last: before or after its engine.
        for (start, is_first) in [(0, true), (1 << 20, false)] {
            let speak_at_the_end = &speak_at_the_end;
            let file = &file;
            thread::scope(|scope| {
                let run = move || {
                    if is_first {
                        speak_at_the_end(start);
                    }
                    check_blocking_calls(file, 2 << 20, 1);
                    if !is_first {
                        speak_at_the_end(start);
                    }
                };
                scope.spawn(run).join().expect("no panic");
            });
        }
        assert_eq!(FINISHED.load(Ordering::Relaxed), 2);
        let now = content(&dir);
        for start in [0, 1 << 20] {
            assert_eq!(now[start..start + 65536], bytes(3, 65536));
            assert_eq!(now[start + 2 * 65536 + 8192..][..5000], bytes(8192, 5000));
        }
    });
}

#[test]
fn a_thousand_threads_with_few_descriptors_all_get_their_bytes() {
    const THREADS: usize = 1000;
    const SHARE: usize = 10_001;
    let name = "a_thousand_threads_with_few_descriptors_all_get_their_bytes";
    own_process(module_path!(), name, || {
        end_with_any_thread();
        let dir = dir();
        let file = file_of(&dir, 0);
        file.set_len(u64::try_from(THREADS * SHARE).expect("small")).expect("space");
        set_limit(Limit::OpenFiles, 64).expect("setrlimit");
        let (all_there, file) = (&Barrier::new(THREADS), &file);
        thread::scope(|scope| {
            for n in 0..THREADS {
                let run = move || {
                    let start = u64::try_from(n * SHARE).expect("small");
                    // Two edge blocks are read, as two bios: through a ring, or without one.
                    file.write_all_at(&bytes(start, SHARE), start).expect("a write");
                    // No engine goes before every thread has one.
                    all_there.wait();
                    if n == 0 {
                        let open = || std::fs::File::open("/").expect("one is left");
                        assert_eq!([(); 10].map(|()| open()).len(), 10);
                    }
                    check_many_pieces(file, start, SHARE);
                };
                let thread = thread::Builder::new().stack_size(256 << 10);
                thread.spawn_scoped(scope, run).expect("a thread");
            }
        });
        assert!(content(&dir) == bytes(0, THREADS * SHARE));
    });
}

/// A read of so many pieces that it takes several bios.
fn check_many_pieces(file: &File, start: u64, length: usize) {
    let mut read = vec![0; length];
    let mut pieces: Vec<_> = read.chunks_mut(100).map(IoSliceMut::new).collect();
    assert_eq!(file.read_vectored_at(&mut pieces, start).expect("a read"), length);
    assert!(read == bytes(start, length), "at {start}");
}
