//! Signals: the library installs no handler, and a storm of them changes nothing.

use std::time::Duration;

use diopter::{BackendKind, EngineOptions, use_for_this_thread};
use diopter_os::testing::{SignalStorm, signal_actions};
use diopter_testkit::env::{Capability, skip};

use crate::bytes::{
    backends, check_blocking_calls, check_engine, check_reads, dir, engine, file_of, own_process,
    start_reads,
};

const MIB: usize = 1 << 20;

#[test]
fn the_library_installs_no_signal_handler() {
    own_process(module_path!(), "the_library_installs_no_signal_handler", || {
        let before = signal_actions();
        let dir = dir();
        for backend in backends() {
            use_for_this_thread(EngineOptions { backend, checked: true, ..EngineOptions::DEFAULT });
            let file = file_of(&dir, MIB);
            check_blocking_calls(&file, 0, 1);
            check_engine(&engine(backend), &file, 65536, 2);
            assert_eq!(signal_actions(), before, "while it is used");
            file.close().expect("a flush");
        }
        assert_eq!(signal_actions(), before);
        assert!(before.len() > 50, "all signals were asked for");
    });
}

#[test]
fn a_storm_of_signals_from_the_first_call_on_changes_nothing() {
    let name = "a_storm_of_signals_from_the_first_call_on_changes_nothing";
    own_process(module_path!(), name, || {
        let dir = dir();
        let file = file_of(&dir, 8 * MIB);
        let storm = SignalStorm::start(Duration::from_micros(50)).expect("a timer");
        let first = engine(BackendKind::Auto).backend();
        if first.name != "uring" {
            let is_refused = first.why.contains("EPERM") || first.why.contains("ENOSYS");
            assert!(is_refused, "{}", first.why);
            skip(Capability::Uring, first.why);
        }
        for backend in backends() {
            use_for_this_thread(EngineOptions { backend, ..EngineOptions::DEFAULT });
            let engine = engine(backend);
            let mut round = 0;
            let seen = storm.seen();
            while round < 4 || storm.seen() < seen + 1000 {
                check_blocking_calls(&file, 4 << 20, round);
                check_engine(&engine, &file, 5 << 20, round);
                start_reads(&engine, &file, &[0, 1 << 20, 2 << 20, 3 << 20], MIB);
                check_reads(&engine, 4);
                round += 1;
            }
        }
    });
}
