//! Where io_uring is forbidden: by a seccomp filter, by the sysctl, or from some moment on. Where
//! hints for the kernel are.

use std::fs;
use std::io::{IoSliceMut, Write};

use diopter::{BackendKind, Engine, EngineOptions, Errno, IoBuf, Request, use_for_this_thread};
use diopter_os::testing::{
    check_in_own_process, is_own_process, is_root, mask_ext_arg, refuse_aio, refuse_hints,
    refuse_limits, refuse_statfs, refuse_uring,
};

use crate::bytes::{
    LONG, backends, bytes, check_blocking_calls, check_engine, check_reads, dir, engine, file_of,
    machine_alone, memory, own_process, start_reads,
};
use crate::env::{self, Capability, skip};

const MIB: usize = 1 << 20;
const SYSCTL: &str = "/proc/sys/kernel/io_uring_disabled";

/// With io_uring refused by `errno`, `instead` serves everything, and reports why.
fn check_refused(errno: Errno, instead: &str) {
    let name = errno.name();
    let dir = dir();
    let file = file_of(&dir, MIB);
    let queued = engine(BackendKind::Auto);
    let backend = queued.backend();
    assert_eq!(backend.name, instead, "{}", backend.why);
    let text = format!("io_uring does not work here: set-up failed: {errno}; ");
    let (first, then) = backend.why.split_at(text.len());
    assert_eq!(first, text);
    assert!(then.contains(if instead == "aio" { "aio works here" } else { name }), "{then}");
    check_engine(&queued, &file, 0, 1);
    check_blocking_calls(&file, 65536, 2);
    let mut read = vec![0; 100_000];
    let mut pieces: Vec<_> = read.chunks_mut(1000).map(IoSliceMut::new).collect();
    assert_eq!(file.read_vectored_at(&mut pieces, 200_000).expect("a read"), 100_000);
    assert!(read == bytes(200_000, 100_000));
    let written = file.request(Request::write(500_001, memory(3, 5000))).expect("room").wait();
    assert!(written.result.is_ok());

    let options = EngineOptions { backend: BackendKind::Uring, ..EngineOptions::DEFAULT };
    let refused = Engine::new(options).map(|_| ()).expect_err("asked for by name");
    assert_eq!(refused.errno, errno);
    assert!(refused.to_string().contains(name), "{refused}");
    file.close().expect("a flush");
}

#[test]
fn under_a_seccomp_filter_aio_serves_and_reports_why() {
    own_process(module_path!(), "under_a_seccomp_filter_aio_serves_and_reports_why", || {
        refuse_uring(Errno::EPERM).expect("seccomp");
        check_refused(Errno::EPERM, instead());
    });
}

#[test]
fn with_aio_refused_as_well_threads_serve_and_both_reasons_are_reported() {
    let name = "with_aio_refused_as_well_threads_serve_and_both_reasons_are_reported";
    own_process(module_path!(), name, || {
        refuse_uring(Errno::EPERM).expect("seccomp");
        refuse_aio(Errno::EPERM).expect("seccomp");
        check_refused(Errno::EPERM, "threads");
        let options = EngineOptions { backend: BackendKind::Aio, ..EngineOptions::DEFAULT };
        let refused = Engine::new(options).map(|_| ()).expect_err("asked for by name");
        assert_eq!((refused.what, refused.errno), ("aio probe", Errno::EPERM));
        assert!(refused.to_string().contains("io_submit"), "what to do: {refused}");
    });
}

#[test]
fn with_every_aio_entry_taken_threads_serve_and_the_reason_names_what_to_raise() {
    let name = "with_every_aio_entry_taken_threads_serve_and_the_reason_names_what_to_raise";
    own_process(module_path!(), name, || {
        refuse_uring(Errno::EPERM).expect("seccomp");
        // The error of io_setup then.
        refuse_aio(Errno::EAGAIN).expect("seccomp");
        let dir = dir();
        let file = file_of(&dir, MIB);
        let without = engine(BackendKind::Auto);
        let backend = without.backend();
        assert_eq!(backend.name, "threads", "{}", backend.why);
        let text = format!("aio does not work here: set-up failed: {}", Errno::EAGAIN);
        assert!(backend.why.ends_with(&text), "{}", backend.why);
        check_engine(&without, &file, 0, 1);
        let options = EngineOptions { backend: BackendKind::Aio, ..EngineOptions::DEFAULT };
        let refused = Engine::new(options).map(|_| ()).expect_err("asked for by name");
        assert!(refused.to_string().contains("fs.aio-max-nr"), "what to do: {refused}");
    });
}

/// Returns the backend that serves instead of io_uring here.
fn instead() -> &'static str {
    if env::has_aio() { "aio" } else { "threads" }
}

#[test]
fn on_a_kernel_without_io_uring_aio_serves_and_reports_why() {
    let name = "on_a_kernel_without_io_uring_aio_serves_and_reports_why";
    own_process(module_path!(), name, || {
        refuse_uring(Errno::ENOSYS).expect("seccomp");
        check_refused(Errno::ENOSYS, instead());
    });
}

/// The sysctl at 2, which refuses io_uring to every process; as it was, with its owner.
struct Disabled {
    before: String,
}

impl Disabled {
    fn new() -> std::io::Result<Disabled> {
        let before = fs::read_to_string(SYSCTL)?;
        fs::write(SYSCTL, "2")?;
        Ok(Disabled { before })
    }
}

impl Drop for Disabled {
    fn drop(&mut self) {
        fs::write(SYSCTL, &self.before).expect("it could be written before");
    }
}

#[test]
fn with_the_sysctl_at_2_aio_serves_and_reports_why() {
    // It changes the whole machine: of this binary nothing else runs meanwhile, and under xtask,
    // which runs one queue at a time, nothing else of the others.
    if !is_root() || std::env::var_os("DIOPTER_HAVE").is_none() {
        return skip(Capability::Sysctl, "only as root, and only under `cargo xtask ci process`");
    }
    let _alone = if is_own_process() { None } else { Some(machine_alone()) };
    let disabled = if is_own_process() { None } else { Some(Disabled::new()) };
    if let Some(Err(error)) = disabled {
        return skip(Capability::Sysctl, format!("{SYSCTL}: {error}"));
    }
    check_in_own_process(module_path!(), "with_the_sysctl_at_2_aio_serves_and_reports_why", || {
        check_refused(Errno::EPERM, instead());
    });
}

#[test]
fn a_ring_that_is_forbidden_while_in_use_is_lost_and_the_next_calls_do_without() {
    let name = "a_ring_that_is_forbidden_while_in_use_is_lost_and_the_next_calls_do_without";
    own_process(module_path!(), name, || {
        let dir = dir();
        let file = file_of(&dir, MIB);
        let queued = engine(BackendKind::Auto);
        if queued.backend().name != "uring" {
            return skip(Capability::Uring, queued.backend().why);
        }
        // The thread's own engine gets its ring from a request that has to wait.
        let read = || Request::read(1, IoBuf::new(1000).expect("memory"));
        assert!(file.request(read()).expect("room").wait().result.is_ok());
        refuse_uring(Errno::EPERM).expect("seccomp");

        let mut memory = IoBuf::new(130 * 8192).expect("memory");
        let mut pieces: Vec<_> =
            memory.chunks_mut(8192).map(|piece| IoSliceMut::new(&mut piece[..4096])).collect();
        file.read_vectored_at(&mut pieces, 0).expect_err("several bios, and no ring for them");
        file.read_vectored_at(&mut pieces, 0).expect("by another backend now");

        queued.start(&file, read()).expect("room");
        let lost = queued.wait(LONG).expect("a result comes first").expect("in flight");
        assert_eq!(lost.result.map_err(|error| error.errno), Err(Errno::EPERM));
        assert_eq!(lost.memory.map(|buf| buf.len()), Some(1000), "the kernel never had it");
        let error = queued.wait(LONG).expect_err("the queue is broken");
        assert_eq!((error.backend, error.errno), ("uring", Errno::EPERM));

        check_blocking_calls(&file, 0, 1);
        assert!(file.request(read()).expect("room").wait().result.is_ok());
        check_engine(&engine(BackendKind::Auto), &file, 65536, 2);
    });
}

#[test]
fn where_io_uring_has_no_time_limit_another_serves_and_the_remedy_is_a_newer_kernel() {
    let name = "where_io_uring_has_no_time_limit_another_serves_and_the_remedy_is_a_newer_kernel";
    // In its own process the first probe is the one under test.
    if !is_own_process() && !env::has_uring() {
        return;
    }
    own_process(module_path!(), name, || {
        mask_ext_arg(true);
        let dir = dir();
        let file = file_of(&dir, MIB);
        let auto = engine(BackendKind::Auto);
        let backend = auto.backend();
        assert_eq!(backend.name, instead(), "{}", backend.why);
        assert!(backend.why.contains("(IORING_FEAT_EXT_ARG) "), "{backend:?}");
        check_engine(&auto, &file, 0, 1);
        let options = EngineOptions { backend: BackendKind::Uring, ..EngineOptions::DEFAULT };
        let refused = Engine::new(options).map(|_| ()).expect_err("no ring");
        assert_eq!(refused.errno, Errno::EOPNOTSUPP);
        let message = refused.to_string();
        assert!(message.contains("Linux 5.11"), "{message}");
        assert!(!message.contains("io_uring_disabled"), "{message}");
    });
}

#[test]
fn where_hints_and_limits_are_refused_everything_is_served() {
    let name = "where_hints_and_limits_are_refused_everything_is_served";
    own_process(module_path!(), name, || {
        refuse_hints(Errno::EPERM).expect("seccomp");
        refuse_limits(Errno::EPERM).expect("seccomp");
        let dir = dir();
        let file = file_of(&dir, MIB);
        check_blocking_calls(&file, 65536, 1);
        check_engine(&engine(BackendKind::Auto), &file, 0, 2);
        // Allocates ahead, and truncates what was too much.
        let content = bytes(0, 6 * MIB);
        let mut writer = file.writer(0);
        writer.write_all(&content).expect("room");
        writer.sync().expect("a flush");
        assert!(writer.finish().1.is_all_done());
        assert!(fs::read(dir.file()).expect("the file") == content);
    });
}

/// Such a file counts as one of a server: its lengths are not trusted.
#[test]
fn where_the_type_of_a_file_system_is_not_reported_everything_is_served() {
    let name = "where_the_type_of_a_file_system_is_not_reported_everything_is_served";
    own_process(module_path!(), name, || {
        refuse_statfs(Errno::EPERM).expect("seccomp");
        for backend in backends() {
            let dir = dir();
            let file = file_of(&dir, MIB + 77);
            use_for_this_thread(EngineOptions { backend, ..EngineOptions::DEFAULT });
            check_blocking_calls(&file, 65536, 1);
            let engine = engine(backend);
            check_engine(&engine, &file, 0, 2);
            start_reads(&engine, &file, &[262_144, 262_145, 300_000, 524_288], MIB / 4);
            check_reads(&engine, 4);
            // Within a block, and past it.
            let end = MIB as u64 - 1000;
            let mut read = vec![0; 8192];
            assert_eq!(file.read_at(&mut read, end).expect("a read"), 1077);
            assert!(read[..1077] == bytes(end, 1077));
            engine.start(&file, Request::read(end, memory(0, 8192))).expect("room");
            let done = engine.wait(LONG).expect("the engine works").expect("in flight");
            assert_eq!(done.result.expect("a result").get(), 1077, "{backend:?}");
            assert!(done.memory.expect("it comes back")[..1077] == bytes(end, 1077));
        }
    });
}
