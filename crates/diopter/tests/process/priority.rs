//! The priority of a file's requests reaches the kernel: it refuses a class that the thread may not
//! use.

use std::thread;
use std::time::Duration;

use diopter::{BackendKind, Engine, EngineOptions, Errno, File, IoBuf, IoPriority, Request};
use diopter_testkit::env;
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

/// Drops what a real-time class needs, for this thread alone.
fn drop_capabilities() {
    let sets = capabilities(None).unwrap();
    let needed = CapabilitySet::SYS_NICE | CapabilitySet::SYS_ADMIN;
    let effective = sets.effective.difference(needed);
    set_capabilities(None, CapabilitySets { effective, ..sets }).unwrap();
}

fn read(engine: &Engine, file: &File) -> Result<(), Errno> {
    engine.start(file, Request::read(0, IoBuf::new(4096).unwrap())).unwrap();
    let finished = engine.wait(Duration::from_secs(60)).unwrap().expect("a result");
    finished.check_whole().map_err(|error| error.errno)
}

#[test]
fn a_class_that_the_thread_may_not_use_is_refused_by_the_kernel() {
    let named = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(named.path(), [7; 4096]).unwrap();
    let open = |priority: Option<IoPriority>| {
        let mut options = File::options();
        options.read(true).write(true);
        priority.into_iter().for_each(|priority| drop(options.io_priority(priority).clone()));
        options.open(named.path()).unwrap()
    };
    let check = |backend: BackendKind| {
        drop_capabilities();
        let engine = Engine::new(EngineOptions { backend, ..EngineOptions::DEFAULT }).unwrap();
        for allowed in [
            None,
            Some(IoPriority::BestEffort(0)),
            Some(IoPriority::BestEffort(200)),
            Some(IoPriority::Idle),
        ] {
            assert_eq!(read(&engine, &open(allowed)), Ok(()), "{backend:?} {allowed:?}");
        }
        let refused = read(&engine, &open(Some(IoPriority::RealTime(0))));
        // What Linux AIO refuses with EPERM, as a sandbox does, is a plain call.
        let expected = if backend == BackendKind::Aio { Ok(()) } else { Err(Errno::EPERM) };
        assert_eq!(refused, expected, "{backend:?}");
    };
    for backend in [BackendKind::Uring, BackendKind::Aio] {
        if env::has(backend) {
            thread::scope(|scope| scope.spawn(|| check(backend)).join().unwrap());
        }
    }
}
