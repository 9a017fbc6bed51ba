//! Limits of the process: descriptors, locked memory, address space, and its memory cgroup.

use std::fs::{self, File as StdFile, Permissions};
use std::io::IoSliceMut;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::os::unix::process::parent_id;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use diopter::{
    BackendKind, Engine, EngineOptions, Errno, Error, File, IoBuf, IoErrorKind, Request,
    use_for_this_thread,
};
use diopter_core::limits::AIO_CONTEXTS_MAX;
use diopter_os::testing::{Limit, become_user, is_own_process, is_root, set_limit};

use crate::bytes::{
    Dir, LONG, backends, bytes, check_blocking_calls, check_engine, content, dir, dir_in, engine,
    file_of, memory, own_process,
};
use crate::env::{self, Capability, skip};

const MIB: usize = 1 << 20;

/// `nobody` on every Linux.
const NOBODY: u32 = 65534;

/// A read of so many pieces apart in memory that it takes several bios.
fn check_several_bios(file: &File) {
    let mut buf = IoBuf::new(130 * 8192).expect("memory");
    let mut pieces: Vec<_> =
        buf.chunks_mut(8192).map(|piece| IoSliceMut::new(&mut piece[..4096])).collect();
    assert_eq!(file.read_vectored_at(&mut pieces, 4096).expect("a read"), 130 * 4096);
    for (n, piece) in (1..).zip(buf.chunks(8192)) {
        assert_eq!(piece[..4096], bytes(n * 4096, 4096)[..]);
    }
}

#[test]
fn without_a_free_descriptor_no_ring_serves_and_later_one_does() {
    let name = "without_a_free_descriptor_no_ring_serves_and_later_one_does";
    own_process(module_path!(), name, || {
        let dir = dir();
        let file = file_of(&dir, MIB);
        set_limit(Limit::OpenFiles, 32).expect("setrlimit");
        let mut taken = Vec::new();
        while let Ok(file) = StdFile::open("/") {
            taken.push(file);
        }
        check_several_bios(&file);
        let without = engine(BackendKind::Auto);
        let backend = without.backend();
        // A context of Linux AIO takes no descriptor.
        let instead = if env::has_aio() { "aio" } else { "threads" };
        assert_eq!(backend.name, instead, "{}", backend.why);
        assert!(backend.why.contains("EMFILE"), "{}", backend.why);
        check_engine(&without, &file, 0, 1);
        drop(taken);
        // The lack was of that moment: an engine made now has a ring, where rings are allowed.
        match engine(BackendKind::Auto).backend() {
            with if with.name == "uring" => {}
            with if with.why.contains("EPERM") || with.why.contains("ENOSYS") => {
                skip(Capability::Uring, with.why);
            }
            with => panic!("{}: {}", with.name, with.why),
        }
    });
}

#[test]
fn a_process_takes_a_share_of_the_machines_aio_entries_and_no_more() {
    let name = "a_process_takes_a_share_of_the_machines_aio_entries_and_no_more";
    own_process(module_path!(), name, || {
        if !env::has_aio() {
            return;
        }
        let options = EngineOptions { backend: BackendKind::Aio, ..EngineOptions::DEFAULT };
        let mut engines = Vec::new();
        let refused = loop {
            match Engine::new(options) {
                Ok(engine) => engines.push(engine),
                Err(refused) => break refused,
            }
            assert!(engines.len() <= AIO_CONTEXTS_MAX as usize, "one more would be too many");
        };
        assert_eq!(refused.errno, Errno::EAGAIN);
        assert_eq!(engines.len(), AIO_CONTEXTS_MAX as usize);
        engines.pop();
        engines.push(Engine::new(options).expect("one is free again"));
    });
}

/// Checks every kind of request as an ordinary user with this limit of locked memory. What is
/// registered by use alone is left out without an error.
fn check_with_locked_memory(name: &str, limit: u64, is_refused: bool) {
    if !is_root() {
        return skip(Capability::Root, "becoming another user");
    }
    own_process(module_path!(), name, || {
        let dir = dir_in(&std::env::temp_dir());
        let parent = dir.file().parent().expect("a directory").to_owned();
        fs::set_permissions(parent, Permissions::from_mode(0o777)).expect("its owner");
        set_limit(Limit::LockedMemory, limit).expect("setrlimit");
        become_user(NOBODY).expect("root may");
        let file = file_of(&dir, 4 * MIB);
        for backend in backends() {
            let engine = engine(backend);
            let mut large = memory(7, MIB);
            let registered = engine.register_buffers(&mut [&mut large]);
            let expected = match (engine.backend().name, is_refused) {
                ("uring", true) => Err(Errno::ENOMEM),
                ("uring", false) => Ok(()),
                _ => Err(Errno::EOPNOTSUPP),
            };
            assert_eq!(registered, expected);
            engine.start(&file, Request::write(2 << 20, large)).expect("room");
            let done = engine.wait(LONG).expect("it works").expect("in flight");
            assert_eq!(done.result.map(|moved| moved.get()), Ok(1 << 20));
            // Often enough to be registered by use, if that is possible.
            let mut memory = Some(memory(0, 4096));
            for _ in 0..200 {
                let buf = memory.take().expect("the memory comes back");
                engine.start(&file, Request::read(0, buf)).expect("room");
                let done = engine.wait(LONG).expect("it works").expect("in flight");
                let (moved, buf) = done.into_parts::<IoBuf>();
                assert_eq!(moved.map(|moved| moved.get()), Ok(4096));
                memory = buf;
            }
            check_engine(&engine, &file, 0, 1);
            // As large as there are: a ring or a context for less, where this has no room.
            let options = EngineOptions { backend, ..EngineOptions::DEFAULT };
            let largest = options.in_flight(EngineOptions::IN_FLIGHT_MAX);
            check_engine(
                &Engine::new(largest).expect("it has what the usual one has"),
                &file,
                0,
                1,
            );
            check_blocking_calls(&file, 1 << 20, 2);
            check_several_bios_of(&file, 2 << 20, 7);
        }
    });
}

#[test]
fn an_ordinary_user_without_locked_memory_has_no_registered_buffers_and_all_the_rest() {
    let name = "an_ordinary_user_without_locked_memory_has_no_registered_buffers_and_all_the_rest";
    check_with_locked_memory(name, 0, true);
}

#[test]
fn an_ordinary_user_with_little_locked_memory_has_no_registered_buffers_and_all_the_rest() {
    let name =
        "an_ordinary_user_with_little_locked_memory_has_no_registered_buffers_and_all_the_rest";
    check_with_locked_memory(name, 64 << 10, true);
}

#[test]
fn an_ordinary_user_with_the_usual_locked_memory_has_registered_buffers() {
    let name = "an_ordinary_user_with_the_usual_locked_memory_has_registered_buffers";
    check_with_locked_memory(name, 8 << 20, false);
}

/// As [`check_several_bios`], on the bytes of `seed` from `start` on.
fn check_several_bios_of(file: &File, start: u64, seed: u64) {
    let mut read = vec![0; 100_000];
    let mut pieces: Vec<_> = read.chunks_mut(1000).map(IoSliceMut::new).collect();
    assert_eq!(file.read_vectored_at(&mut pieces, start).expect("a read"), 100_000);
    assert!(read == bytes(seed, 100_000));
}

/// Bytes of address space in use.
fn address_space() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("/proc");
    let pages: u64 = statm.split(' ').next().expect("a number").parse().expect("a number");
    pages * 4096
}

#[test]
fn without_memory_for_a_bounce_buffer_smaller_ones_serve_and_then_it_is_an_error() {
    let name = "without_memory_for_a_bounce_buffer_smaller_ones_serve_and_then_it_is_an_error";
    own_process(module_path!(), name, || {
        let dir = dir();
        let file = file_of(&dir, 4 * MIB);
        let (mut aligned, mut unaligned) = (memory(0, 65536), vec![0; 300_000]);
        // From here on the thread has its engine, and no bounce buffer.
        file.read_exact_at(&mut aligned, 65536).expect("a read");
        let before = address_space();
        let mut outcome = Vec::new();
        for room in [0, 40 << 10, 200 << 10, 2 << 20] {
            set_limit(Limit::AddressSpace, before + room).expect("setrlimit");
            outcome.push(file.read_exact_at(&mut unaligned, 1001));
            file.read_exact_at(&mut aligned, 0).expect("an aligned read needs no memory");
            file.write_all_at(&aligned, 0).expect("an aligned write needs no memory");
            set_limit(Limit::AddressSpace, u64::MAX).expect("setrlimit");
        }
        assert!(unaligned == bytes(1001, 300_000));
        let refused = outcome.remove(0).expect_err("no room at all");
        let Error::Io(error) = refused else { panic!("{refused}") };
        assert_eq!((error.kind, error.errno), (IoErrorKind::OutOfMemory, Errno::ENOMEM));
        assert!(outcome.iter().all(Result::is_ok), "{outcome:?}");
    });
}

#[test]
fn without_memory_for_a_ring_or_a_thread_the_caller_serves_itself() {
    let name = "without_memory_for_a_ring_or_a_thread_the_caller_serves_itself";
    own_process(module_path!(), name, || {
        let dir = dir();
        let file = file_of(&dir, 4 * MIB);
        let mut buf = IoBuf::new(130 * 8192).expect("memory");
        let mut pieces: Vec<_> =
            buf.chunks_mut(8192).map(|piece| IoSliceMut::new(&mut piece[..4096])).collect();
        file.read_exact_at(&mut pieces[0], 0).expect("a read");
        set_limit(Limit::AddressSpace, address_space()).expect("setrlimit");
        let read = file.read_vectored_at(&mut pieces, 4096);
        set_limit(Limit::AddressSpace, u64::MAX).expect("setrlimit");
        assert_eq!(read.expect("a read"), 130 * 4096);
        for (n, piece) in (1..).zip(buf.chunks(8192)) {
            assert_eq!(piece[..4096], bytes(n * 4096, 4096)[..]);
        }
    });
}

/// A write that is made where files may have `limit` bytes.
#[derive(Debug)]
struct Limited {
    /// Bytes in the file before.
    size: usize,
    limit: u64,
    offset: u64,
    length: usize,
    append: bool,
}

/// Whole blocks, parts of blocks and both, that start before a limit, at it and after it.
fn limited_writes() -> Vec<Limited> {
    let mut all = Vec::new();
    for limit in [100_000_u64, 98_304] {
        let near = [0, 1, 100, 4096, 5000].map(|distance| limit - distance);
        let past = [limit + 1, limit + 3000, limit.next_multiple_of(4096), 1000, 4096];
        for offset in near.into_iter().chain(past).chain([90_003, 94_208]) {
            for (size, length) in [
                (90_003, 30_001),
                (90_003, 8192),
                (100_000, 8192),
                (150_000, 100),
                (150_000, 3 << 20),
                (0, 130_000),
            ] {
                all.push(Limited { size, limit, offset, length, append: false });
            }
        }
        for size in [90_003, 94_208, usize::try_from(limit).expect("small"), 150_000] {
            for length in [100, 8192, 30_001] {
                all.push(Limited { size, limit, offset: 0, length, append: true });
            }
        }
    }
    all
}

/// Makes a write with the limit by `write`: its result, whether the signal came, and the file.
fn limited(
    (it, path, seen): (&Limited, &Path, &AtomicBool),
    write: impl FnOnce(&[u8]) -> Result<usize, Errno>,
) -> (Result<usize, Errno>, bool, Vec<u8>) {
    seen.store(false, Ordering::SeqCst);
    let memory = memory(9, it.length);
    set_limit(Limit::FileSize, it.limit).expect("setrlimit");
    let written = write(&memory);
    set_limit(Limit::FileSize, u64::MAX).expect("setrlimit");
    (written, seen.load(Ordering::SeqCst), fs::read(path).expect("the file"))
}

#[test]
fn a_write_across_the_limit_of_a_file_s_size_is_that_of_the_kernel() {
    let name = "a_write_across_the_limit_of_a_file_s_size_is_that_of_the_kernel";
    own_process(module_path!(), name, || {
        let seen = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, Arc::clone(&seen))
            .expect("a handler");
        let dirs = [dir(), dir()];
        let [first, second] = dirs.each_ref().map(Dir::file);
        for it in limited_writes() {
            for path in [&first, &second] {
                fs::write(path, bytes(1, it.size)).expect("room");
            }
            let mut options = StdFile::options();
            options.read(true).write(true).append(it.append);
            let plain = options.open(&first).expect("it is there");
            let by_kernel = |bytes: &[u8]| {
                let written = plain.write_at(bytes, it.offset);
                written.map_err(|error| Errno::from_raw(error.raw_os_error().expect("a call")))
            };
            let expected = limited((&it, &first, &seen), by_kernel);
            let mut options = File::options();
            let file = options.read(true).write(true).append(it.append).open(&second);
            let file = file.expect("it is there");
            let by_engine =
                |bytes: &[u8]| file.write_at(bytes, it.offset).map_err(|error| error.errno());
            let got = limited((&it, &second, &seen), by_engine);
            assert_eq!((&got.0, got.1), (&expected.0, expected.1), "{it:?}");
            assert!(got.2 == expected.2, "{it:?}: the bytes differ");
            for backend in backends() {
                fs::write(&second, bytes(1, it.size)).expect("room");
                let engine = engine(backend);
                let queued = |_: &[u8]| {
                    let write = Request::write(it.offset, memory(9, it.length));
                    engine.start(&file, write).expect("room");
                    let done = engine.wait(LONG).expect("it works").expect("in flight");
                    let moved = done.result.map_err(|error| error.errno)?;
                    Ok(usize::try_from(moved.get()).expect("small"))
                };
                // The signal is of the thread that made the call.
                let got = limited((&it, &second, &seen), queued);
                assert_eq!(got.0, expected.0, "{it:?}, {backend}");
                assert!(got.2 == expected.2, "{it:?}, {backend}: the bytes differ");
            }
        }
    });
}

#[test]
fn pieces_behind_the_limit_of_a_file_s_size_fail_and_those_before_it_are_written() {
    let name = "pieces_behind_the_limit_of_a_file_s_size_fail_and_those_before_it_are_written";
    own_process(module_path!(), name, || {
        let seen = Arc::new(AtomicBool::new(false));
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, seen).expect("a handler");
        let dir = dir();
        let file = file_of(&dir, 0);
        set_limit(Limit::FileSize, 10_000).expect("setrlimit");
        // One request; the third piece crosses the limit, and is before the second in the file.
        let pieces = [(0, bytes(0, 9000)), (10_500, bytes(7, 500)), (9000, bytes(9, 1500))];
        let results = file.write_ranges(&pieces);
        let errnos: Vec<Option<Errno>> =
            results.iter().map(|it| it.as_ref().err().map(Error::errno)).collect();
        assert_eq!(errnos, [None, Some(Errno::EFBIG), Some(Errno::EFBIG)]);
        let written = fs::read(dir.file()).expect("it is there");
        assert!(written == [&pieces[0].1[..], &pieces[2].1[..1000]].concat());
    });
}

#[test]
fn a_piece_that_ends_at_the_limit_of_a_file_s_size_is_not_sent_again_from_there() {
    let name = "a_piece_that_ends_at_the_limit_of_a_file_s_size_is_not_sent_again_from_there";
    own_process(module_path!(), name, || {
        let seen = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&seen);
        signal_hook::flag::register(signal_hook::consts::SIGXFSZ, flag).expect("a handler");
        let dir = dir();
        let file = file_of(&dir, 0);
        set_limit(Limit::FileSize, 10_000).expect("setrlimit");
        let piece = (0, bytes(0, 12_000));
        let results = file.write_ranges(std::slice::from_ref(&piece));
        let errnos: Vec<Option<Errno>> =
            results.iter().map(|it| it.as_ref().err().map(Error::errno)).collect();
        assert_eq!(errnos, [Some(Errno::EFBIG)]);
        assert!(!seen.load(Ordering::SeqCst), "a write started at the limit");
        assert!(fs::read(dir.file()).expect("it is there") == piece.1[..10_000]);
    });
}

const CGROUPS: &str = "/sys/fs/cgroup";

/// A memory cgroup, removed with its owner.
struct Cgroup(PathBuf);

impl Cgroup {
    /// A group that may have `bytes` of memory, or why there is none.
    fn new(bytes: usize) -> Result<Cgroup, String> {
        let path = Cgroup::path_of(std::process::id());
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let group = Cgroup(path);
        let limit = group.0.join(if Cgroup::is_version_2() {
            "memory.max"
        } else {
            "memory.limit_in_bytes"
        });
        let limited = fs::write(&limit, bytes.to_string());
        limited.map_err(|error| format!("{}: {error}", limit.display()))?;
        Ok(group)
    }

    fn is_version_2() -> bool {
        Path::new(CGROUPS).join("cgroup.controllers").exists()
    }

    /// The group that the process `id` made.
    fn path_of(id: u32) -> PathBuf {
        let root = Path::new(CGROUPS);
        let root = if Cgroup::is_version_2() { root.to_owned() } else { root.join("memory") };
        root.join(format!("diopter-{id}"))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Empty by now; if not, one that stays does no harm.
        fs::remove_dir(&self.0).unwrap_or(());
    }
}

#[test]
fn a_copy_of_unaligned_pieces_fits_a_memory_cgroup_of_32_mib() {
    let name = "a_copy_of_unaligned_pieces_fits_a_memory_cgroup_of_32_mib";
    // The group goes with the test's own process, and the copy runs in a child of that.
    let group = if is_own_process() { None } else { Some(Cgroup::new(32 * MIB)) };
    if let Some(Err(why)) = group {
        return skip(Capability::Cgroup, why);
    }
    own_process(module_path!(), name, || {
        let group = Cgroup::path_of(parent_id());
        fs::write(group.join("cgroup.procs"), std::process::id().to_string()).expect("its owner");
        let dir = dir();
        let file = file_of(&dir, 0);
        for backend in backends() {
            use_for_this_thread(EngineOptions { backend, ..EngineOptions::DEFAULT });
            copy_unaligned(&dir, &file);
        }
    });
}

/// Writes 96 MiB in unaligned pieces, several at a time, and reads them again.
fn copy_unaligned(dir: &Dir, file: &File) {
    const PIECE: usize = MIB + 13;
    let at = |n: usize| u64::try_from(n * PIECE).expect("small");
    for round in 0..24 {
        let starts = [0, 1, 2, 3].map(|n| at(round * 4 + n));
        let writes = starts.map(|start| file.request(Request::write(start, memory(start, PIECE))));
        for write in writes {
            assert!(write.expect("room").wait().result.is_ok());
        }
    }
    let mut piece = vec![0; PIECE];
    for n in 0..96 {
        file.read_exact_at(&mut piece, at(n)).expect("a read");
        assert!(piece == bytes(at(n), PIECE), "piece {n}");
    }
    let length = fs::metadata(dir.file()).expect("it is there").len();
    assert_eq!(length, at(96));
}

/// io_uring gives a write that extends its file, and a flush, to a worker thread, and cancels it
/// where it can make none.
#[test]
fn a_user_who_may_have_no_further_thread_is_served_soon() {
    if !is_root() {
        return skip(Capability::Root, "becoming another user");
    }
    own_process(module_path!(), "a_user_who_may_have_no_further_thread_is_served_soon", || {
        let dir = dir_in(&std::env::temp_dir());
        let parent = dir.file().parent().expect("a directory").to_owned();
        fs::set_permissions(parent, Permissions::from_mode(0o777)).expect("its owner");
        set_limit(Limit::Processes, 0).expect("setrlimit");
        become_user(NOBODY).expect("root may");
        let started = Instant::now();
        for backend in backends() {
            let file = file_of(&dir, 0);
            let engine = engine(backend);
            check_engine(&engine, &file, 0, 1);
            for n in 0..4 {
                let offset = n << 20;
                engine.start(&file, Request::write(offset, memory(offset, MIB))).expect("room");
            }
            engine.start(&file, Request::sync_all()).expect("room");
            for _ in 0..5 {
                let done = engine.wait(LONG).expect("the engine works").expect("in flight");
                assert!(done.result.is_ok(), "{done:?}");
            }
            assert!(content(&dir) == bytes(0, 4 * MIB), "{backend:?}");
        }
        assert!(started.elapsed() < Duration::from_secs(30), "{:?}", started.elapsed());
    });
}
