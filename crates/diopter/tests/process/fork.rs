//! A child of fork: it has its own engines and never touches those of its parent.

use diopter_testkit::env::{Capability, skip};
use std::cell::Cell;
use std::fs::read_to_string;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use diopter::engine::CompletionPolicy;
use diopter::{
    BackendKind, Completion, Engine, EngineOptions, File, InFlight, IoBuf, Policies, Request,
    use_for_this_thread,
};
use diopter_os::testing::{fork, mapped_bytes};

use crate::bytes::{
    LONG, backends, bytes, check_blocking_calls, check_engine, check_reads, content, dir, engine,
    file_of, memory, own_process, start_reads,
};

const MIB: usize = 1 << 20;
const PIECE: usize = 256 << 10;
const READS: [u64; 16] = {
    let mut offsets = [0; 16];
    let mut n = 1;
    while n < 16 {
        offsets[n] = offsets[n - 1] + (256 << 10);
        n += 1;
    }
    offsets
};

/// Whole blocks, and not.
const WRITES: [(u64, usize); 2] = [(9 << 19, 65536), ((9 << 19) + 100_001, 3000)];

/// Runs `child` in a child of this process, and `parent` meanwhile; both must end well.
fn check_fork(child: impl FnOnce(), parent: impl FnOnce()) {
    let forked = fork(child).expect("fork");
    parent();
    let status = forked.wait().expect("waitpid");
    assert!(status.success(), "the child: {status}");
}

fn ring_mappings() -> usize {
    let maps = read_to_string("/proc/self/maps").expect("/proc");
    maps.lines().filter(|line| line.contains("[io_uring]")).count()
}

#[test]
fn a_child_uses_the_same_file_while_its_parents_requests_finish() {
    let name = "a_child_uses_the_same_file_while_its_parents_requests_finish";
    own_process(module_path!(), name, || {
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        let parents = engine(BackendKind::Auto);
        start_reads(&parents, &file, &READS, PIECE);
        let on_this_thread = file.request(Request::read(1, IoBuf::new(PIECE).expect("memory")));
        let on_this_thread = Cell::new(Some(on_this_thread.expect("room")));
        let kept = Cell::new(Some(memory(5, MIB)));
        let of_child = Cell::new(Some(memory(6, MIB)));
        let address = address_in(&of_child);
        let child = || {
            assert_eq!(mapped_bytes(address, MIB), 0, "the parent's memory is not here");
            assert_eq!(ring_mappings(), 0, "nor is a ring");
            // One of these gets the address that the buffer has in the parent.
            let own: Vec<IoBuf> = (0..8).map(|n| memory(n, MIB)).collect();
            drop(of_child.take());
            assert!((0..).zip(&own).all(|(n, buf)| buf[..] == bytes(n, MIB)[..]));
            check_blocking_calls(&file, 5 << 20, 1);
            check_engine(&engine(BackendKind::Auto), &file, 6 << 20, 2);
            let written = file.request(Request::write(7 << 20, memory(3, 5000))).expect("room");
            assert!(written.wait().result.is_ok());
        };
        check_fork(child, || check_reads(&parents, READS.len()));
        let done = on_this_thread.take().expect("it was not taken").wait();
        assert_eq!(done.memory.expect("it comes back")[..], bytes(1, PIECE)[..]);
        check_blocking_calls(&file, 4 << 20, 4);
        let [kept, of_child] = [kept, of_child].map(|buf| buf.take().expect("the parent's"));
        assert_eq!((&kept[..], &of_child[..]), (&bytes(5, MIB)[..], &bytes(6, MIB)[..]));
        let now = content(&dir);
        for (start, seed, length) in [(5, 1, 65536), (7, 3, 5000), (4, 4, 65536)] {
            let start = start * MIB;
            assert_eq!(now[start..start + length], bytes(seed, length), "at {start}");
        }
    });
}

fn address_in(buf: &Cell<Option<IoBuf>>) -> usize {
    let taken = buf.take().expect("a buffer");
    let address = taken.as_ptr().addr();
    buf.set(Some(taken));
    address
}

/// Requests that a parent has in flight when it forks: on the thread's own engine, and on another.
struct Parent {
    file: Cell<Option<File>>,
    engine: Cell<Option<Engine>>,
    in_flight: Cell<Option<InFlight>>,
}

impl Parent {
    fn new(file: &File, backend: BackendKind) -> Parent {
        use_for_this_thread(EngineOptions { backend, ..EngineOptions::DEFAULT });
        let engine = engine(backend);
        start_reads(&engine, file, &READS, PIECE);
        let read = |length| Request::read(1, IoBuf::new(length).expect("memory"));
        let in_flight = file.request(read(PIECE)).expect("room");
        // The thread's own engine submits when it waits; the short read is back before the other.
        assert!(file.request(read(1)).expect("room").wait().result.is_ok());
        // The bytes that are there. The passes of these are left when their results are seen.
        for (offset, length) in WRITES {
            engine.start(file, Request::write(offset, memory(offset, length))).expect("room");
        }
        engine.tick();
        Parent {
            file: Cell::new(Some(file.clone())),
            engine: Cell::new(Some(engine)),
            in_flight: Cell::new(Some(in_flight)),
        }
    }

    fn check_finishes(&self) {
        let engine = self.engine.take().expect("the parent's");
        check_reads(&engine, READS.len() + WRITES.len());
        let done = self.in_flight.take().expect("the parent's").wait();
        assert_eq!(done.memory.expect("it comes back")[..], bytes(1, PIECE)[..]);
    }
}

#[test]
fn a_child_that_exits_leaves_the_inherited_engines_alone() {
    let name = "a_child_that_exits_leaves_the_inherited_engines_alone";
    own_process(module_path!(), name, || {
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        for backend in backends() {
            let parent = Parent::new(&file, backend);
            let started = Instant::now();
            check_fork(|| (), || ());
            assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
            parent.check_finishes();
        }
    });
}

#[test]
fn a_child_that_drops_what_it_inherited_leaves_it_to_its_parent() {
    let name = "a_child_that_drops_what_it_inherited_leaves_it_to_its_parent";
    own_process(module_path!(), name, || {
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        for backend in backends() {
            let parent = Parent::new(&file, backend);
            let child = || {
                let own: Vec<IoBuf> = (0..64).map(|n| memory(n, MIB)).collect();
                drop((parent.in_flight.take(), parent.file.take(), parent.engine.take()));
                for (n, buf) in (0..).zip(&own) {
                    assert!(buf[..] == bytes(n, MIB)[..], "memory of the child's is still there");
                }
                check_blocking_calls(&file, 5 << 20, 1);
                check_engine(&engine(backend), &file, 6 << 20, 2);
            };
            let started = Instant::now();
            check_fork(child, || ());
            assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
            parent.check_finishes();
        }
    });
}

#[test]
fn a_childs_writer_that_waits_for_another_does_not_reap_the_inherited_engines() {
    let name = "a_childs_writer_that_waits_for_another_does_not_reap_the_inherited_engines";
    own_process(module_path!(), name, || {
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        for backend in backends() {
            let parent = Parent::new(&file, backend);
            let child = || {
                let own = engine(backend);
                own.start(&file, Request::write(5 << 20, memory(5 << 20, 4096))).expect("room");
                file.write_all_at(b"between", (5 << 20) + 5000).expect("a write");
                assert!(own.wait(LONG).is_ok_and(|done| done.is_some()));
            };
            check_fork(child, || ());
            parent.check_finishes();
        }
        let now = content(&dir);
        assert_eq!(now[(5 << 20) + 5000..][..7], *b"between");
    });
}

#[test]
fn an_inherited_engine_returns_an_error_in_a_child() {
    let name = "an_inherited_engine_returns_an_error_in_a_child";
    own_process(module_path!(), name, || {
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        for backend in backends() {
            let parent = Parent::new(&file, backend);
            let child = || {
                let inherited = parent.engine.take().expect("the parent's");
                let refused = inherited.start(&file, Request::read(0, memory(7, 4096)));
                let back = refused.expect_err("refused").request.memory.expect("it comes back");
                assert_eq!(back[..], bytes(7, 4096)[..]);
                inherited.tick();
                assert!(inherited.wait(LONG).is_err());
            };
            check_fork(child, || ());
            parent.check_finishes();
        }
    });
}

/// Parent and child write to the same striped file, opened before the fork, side by side.
#[test]
fn a_child_uses_the_same_striped_file() {
    use diopter_layouts::layout::{CreateOptions, ObjectPlace};
    let name = "a_child_uses_the_same_striped_file";
    own_process(module_path!(), name, || {
        let dir = dir();
        let home = dir.file().with_file_name("");
        let objects = vec![ObjectPlace::Dir(home); 3];
        let options = CreateOptions { objects, stripe_size: 16 << 10, ..CreateOptions::default() };
        let Ok(striped) = diopter::layouts::StripedFile::create(dir.file(), &options) else {
            return skip(Capability::Xattr, "no user attributes in the target directory");
        };
        striped.write_all_at(&bytes(0, 8 * MIB), 0).expect("space");
        let parents = engine(BackendKind::Auto);
        start_reads(&parents, &striped, &READS, PIECE);
        let child = || {
            check_blocking_calls(&striped, 5 << 20, 1);
            check_engine(&engine(BackendKind::Auto), &striped, 6 << 20, 2);
        };
        check_fork(child, || {
            check_reads(&parents, READS.len());
            check_blocking_calls(&striped, 7 << 20, 3);
        });
        for (start, seed) in [(5, 1), (7, 3)] {
            let mut read = vec![0; 65536];
            striped.read_exact_at(&mut read, start << 20).expect("a read");
            assert_eq!(read, bytes(seed, 65536), "at {start} MiB");
        }
    });
}

#[test]
fn a_child_lets_go_of_completions_that_are_with_its_parents_workers() {
    let name = "a_child_lets_go_of_completions_that_are_with_its_parents_workers";
    own_process(module_path!(), name, || {
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        let policies = Policies { completion: CompletionPolicy::Deferred, ..Policies::default() };
        let parents = Engine::new(EngineOptions { policies, ..EngineOptions::DEFAULT });
        let parents = Cell::new(Some(parents.expect("an engine")));
        let runs = Arc::new(AtomicU32::new(0));
        let own = parents.take().expect("it is there");
        for offset in READS {
            let runs = Arc::clone(&runs);
            let count = Completion::quick(move |done| {
                assert!(done.result.is_ok());
                runs.fetch_add(1, Ordering::SeqCst);
            });
            let memory = IoBuf::new(PIECE).expect("memory");
            own.start_with(&file, Request::read(offset, memory), count).expect("room");
            own.tick();
        }
        parents.set(Some(own));
        let child = || {
            let inherited = parents.take().expect("it is there");
            assert!(inherited.wait(LONG).is_err(), "its workers do not run here");
            assert_eq!(inherited.in_flight(), 0);
            let started = Instant::now();
            drop(inherited);
            assert!(started.elapsed() < Duration::from_secs(5), "it waits for no thread");
        };
        let parent = || {
            let own = parents.take().expect("it is there");
            while own.in_flight() > 0 {
                assert!(own.wait(LONG).expect("the parent's backend").is_none());
            }
            assert_eq!(runs.load(Ordering::SeqCst), 16);
        };
        check_fork(child, parent);
    });
}

/// Records that share blocks, each written by one child, pass after pass.
#[test]
fn children_of_fork_that_share_writers_lose_nothing() {
    const RECORD: usize = 700;
    const RECORDS: usize = 24;
    const CHILDREN: usize = 4;
    const PASSES: u8 = 31;
    const ROUNDS: usize = 10;
    let value = |record: usize, pass: u8| u8::try_from(record % 8).expect("small") * 32 + pass;
    let name = "children_of_fork_that_share_writers_lose_nothing";
    own_process(module_path!(), name, || {
        let dir = dir();
        drop(file_of(&dir, RECORD * RECORDS));
        let options = File::options().read(true).write(true).shared_writers(true).clone();
        let file = options.open(dir.file()).expect("it is there");
        // Used before as well: its locks are the parent's.
        file.write_all_at(&[0; 7], 3).expect("a write");
        let go = dir.file().with_file_name("go");
        let write = |child: usize| {
            // All at the same time.
            while !go.exists() {
                std::thread::yield_now();
            }
            for pass in (0..ROUNDS).flat_map(|_| 0..PASSES) {
                for record in (child..RECORDS).step_by(CHILDREN) {
                    let memory = [value(record, pass); RECORD];
                    file.write_all_at(&memory, (record * RECORD) as u64).expect("a write");
                }
            }
        };
        let children: Vec<_> =
            (0..CHILDREN).map(|child| fork(|| write(child)).expect("fork")).collect();
        std::fs::write(&go, b"").expect("space");
        for child in children {
            let status = child.wait().expect("waitpid");
            assert!(status.success(), "a child: {status}");
        }
        let now = content(&dir);
        let lost = (0..RECORDS).filter(|record| {
            let bytes = &now[record * RECORD..][..RECORD];
            bytes.iter().any(|byte| *byte != value(*record, PASSES - 1))
        });
        assert_eq!(lost.collect::<Vec<usize>>(), [0; 0], "records that lost a write");
    });
}

#[test]
fn a_posix_lock_of_the_same_process_is_named_soon() {
    let name = "a_posix_lock_of_the_same_process_is_named_soon";
    own_process(module_path!(), name, || {
        let dir = dir();
        drop(file_of(&dir, 8192));
        let options = File::options().read(true).write(true).shared_writers(true).clone();
        let file = options.open(dir.file()).expect("it is there");
        let plain = std::fs::File::options().read(true).write(true).open(dir.file());
        let plain = plain.expect("it is there");
        let lock = rustix::fs::FlockOperation::NonBlockingLockExclusive;
        rustix::fs::fcntl_lock(&plain, lock).expect("a lock");
        let started = Instant::now();
        let error = file.write_at(&[1; 100], 50).expect_err("locked");
        assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
        let text = error.to_string();
        assert!(text.contains("POSIX lock of this process"), "{text}");
        drop(plain);
        file.write_at(&[1; 100], 50).expect("the lock went with its descriptor");
    });
}
