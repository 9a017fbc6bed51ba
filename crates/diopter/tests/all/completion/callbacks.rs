//! Callbacks: what they get, where they run, what they may do, and what becomes of one that panics.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::mpsc::{channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use diopter::engine::{CompletionPlace, CompletionPolicy, CompletionReason};
use diopter::history::{LINUX_5_5, LINUX_7_0};
use diopter::{AdmitErrorKind, Completion, FinishedRequest, Request};
use diopter_core::engine::Engine;
use diopter_core::engine::target::TargetRef;
use diopter_core::limits::{COMPLETION_BUDGET, REQUESTS_MAX};

use super::bench::{Bench, LONG, MIB, memory};

#[test]
fn a_callback_gets_its_result_once_and_no_other_caller_does() {
    for (policy, inline) in [
        // Those that had no time left are in a worker.
        (CompletionPolicy::Auto, 1..=100),
        (CompletionPolicy::Inline, 100..=100),
        (CompletionPolicy::Deferred, 0..=0),
        (LINUX_5_5, 0..=0),
    ] {
        let bench = Bench::new(policy);
        let (sender, receiver) = channel();
        for at in 0..100 {
            let sender = sender.clone();
            let completion = Completion::quick(move |done: FinishedRequest| {
                let memory = done.memory.expect("it comes with the result");
                sender
                    .send((done.id, done.result, memory[0], thread::current().id()))
                    .expect("the test listens");
            });
            bench.start_with(Request::write(at * 4096, memory(4096, 7)), completion);
        }
        assert_eq!(bench.finish(), 0, "`wait` returns none of them");
        drop(sender);
        let mut got: Vec<_> = receiver.into_iter().collect();
        got.sort_by_key(|(id, ..)| *id);
        got.dedup_by_key(|(id, ..)| *id);
        assert_eq!(got.len(), 100, "each once under {policy:?}");
        let mut here = 0;
        for (_, result, byte, at) in got {
            assert_eq!((result.map(|moved| moved.get()), byte), (Ok(4096), 7));
            here += u64::from(at == thread::current().id());
        }
        let counters = bench.engine.completions();
        assert!(inline.contains(&here), "{policy:?}: {here}");
        assert_eq!(counters.at(CompletionPlace::Inline), here, "{counters:?}");
        assert_eq!(counters.at(CompletionPlace::Worker), 100 - here, "{counters:?}");
    }
}

#[test]
fn one_that_is_declared_as_blocking_runs_in_a_worker_and_keeps_no_caller_from_its_results() {
    let bench = Bench::new(CompletionPolicy::Auto);
    let (go, wait) = sync_channel::<()>(0);
    let here = thread::current().id();
    bench.start_with(
        Request::write(0, memory(4096, 1)),
        Completion::blocking(move |_| {
            assert_ne!(thread::current().id(), here);
            wait.recv().expect("the test releases it");
        }),
    );
    for at in 1..50 {
        let done = bench.run(Request::write(at * 4096, memory(4096, 1)));
        assert!(done.result.is_ok(), "while the callback sleeps");
    }
    assert_eq!(bench.engine.in_flight(), 1);
    go.send(()).expect("it waits");
    assert_eq!(bench.finish(), 0);
    assert_eq!(bench.count(CompletionReason::DeclaredBlocking), 1);
    assert_eq!(bench.count(CompletionReason::NothingBlocks), 49);
}

#[test]
fn callbacks_that_took_their_time_send_those_after_them_to_a_worker() {
    for (policy, inline) in [(CompletionPolicy::Auto, 1), (CompletionPolicy::Inline, 20)] {
        let bench = Bench::new(policy);
        for at in 0..20 {
            let busy = Completion::quick(|_| {
                let started = Instant::now();
                while started.elapsed() < COMPLETION_BUDGET {
                    std::hint::spin_loop();
                }
            });
            bench.start_with(Request::write(at * 4096, memory(4096, 1)), busy);
        }
        bench.finish();
        let counters = bench.engine.completions();
        assert_eq!(counters.at(CompletionPlace::Inline), inline, "{counters:?}");
        assert_eq!(counters.of(CompletionReason::BudgetSpent), 20 - inline);
    }
}

thread_local! {
    static HERE: RefCell<Option<Rc<(Engine, TargetRef)>>> = const { RefCell::new(None) };
}

/// Writes block after block, each from the callback of the one before.
fn write_on(left: u64) {
    HERE.with_borrow(|here| {
        let (engine, target) = &**here.as_ref().expect("set by the test");
        let next = Completion::quick(move |done: FinishedRequest| {
            assert!(done.result.is_ok());
            if left > 0 {
                write_on(left - 1);
            }
        });
        let write = Request::write(left * 4096, memory(4096, 5));
        engine.start_with(target, write, next).expect("admitted");
    });
}

#[test]
fn a_callback_may_use_its_own_engine_and_none_runs_inside_it() {
    let Bench { world, engine, target } = Bench::new(CompletionPolicy::Inline);
    let here = Rc::new((engine, target));
    HERE.set(Some(Rc::clone(&here)));
    write_on(99);
    while here.0.in_flight() > 0 {
        assert!(here.0.wait(LONG).expect("there").is_none());
    }
    assert!(world.with_disk(0, |disk| disk.live() == [5; 100 * 4096]));
    // And it may wait, for results, while another callback is ready.
    for at in 0..2 {
        let inner = Completion::quick(move |_| {
            HERE.with_borrow(|here| {
                let (engine, target) = &**here.as_ref().expect("set by the test");
                engine.start(target, Request::read(0, memory(4096, 0))).expect("admitted");
                let done = engine.wait(LONG).expect("there").expect("a result");
                assert_eq!(done.result.map(|moved| moved.get()), Ok(4096));
                assert!(engine.wait(Duration::ZERO).expect("there").is_none());
            });
        });
        here.0.start_with(&here.1, Request::write(at * 4096, memory(4096, 6)), inner).expect("in");
    }
    while here.0.in_flight() > 0 {
        assert!(here.0.wait(LONG).expect("there").is_none());
    }
    HERE.set(None);
}

#[test]
fn a_callback_may_cancel_its_own_request_and_others_of_its_engine_and_more_than_once() {
    for policy in [CompletionPolicy::Inline, CompletionPolicy::Auto] {
        let Bench { engine, target, .. } = Bench::new(policy);
        let here = Rc::new((engine, target));
        HERE.set(Some(Rc::clone(&here)));
        let other = here.0.start(&here.1, Request::read(1, memory(3 * MIB, 0))).expect("admitted");
        let cancels = Completion::quick(move |done: FinishedRequest| {
            HERE.with_borrow(|here| {
                let (engine, _) = &**here.as_ref().expect("set by the test");
                for id in [done.id, other, done.id, other] {
                    engine.cancel(id);
                }
            });
        });
        let write = Request::write(8 * MIB, memory(4096, 5));
        let own = here.0.start_with(&here.1, write, cancels).expect("admitted");
        let done = here.0.wait(LONG).expect("there").expect("the read comes back");
        assert_eq!((done.id, done.result.is_err()), (other, true), "{policy:?}");
        assert!(here.0.wait(LONG).expect("there").is_none(), "its callback has the result");
        here.0.cancel(own);
        here.0.cancel(other);
        assert_eq!((here.0.in_flight(), here.0.held()), (0, (0, 0)));
        let read = Request::read(0, memory(4096, 0));
        here.0.start(&here.1, read).expect("admitted");
        assert!(here.0.wait(LONG).expect("there").expect("a result").result.is_ok());
        HERE.set(None);
    }
}

#[test]
fn an_engine_may_be_dropped_in_a_callback_of_another() {
    let Bench { world, engine, target } = Bench::new(CompletionPolicy::Inline);
    for at in 0..20 {
        engine.start(&target, Request::write(at * 4096, memory(4096, 7))).expect("admitted");
    }
    HERE.set(Some(Rc::new((engine, target))));
    let other = Bench::new(CompletionPolicy::Inline);
    // The handle is the last of the engine, whose writes are in flight.
    let drops = Completion::quick(|_| drop(HERE.take()));
    other.start_with(Request::write(0, memory(4096, 1)), drops);
    other.finish();
    assert!(world.with_disk(0, |disk| disk.live()[..20 * 4096] == [7; 20 * 4096]));
    assert_eq!(other.engine.completions().panics, 0);
    assert!(other.run(Request::read(0, memory(4096, 0))).result.is_ok());
}

#[test]
fn wait_reports_a_panic_once_and_the_engine_continues() {
    for policy in [CompletionPolicy::Auto, CompletionPolicy::Deferred] {
        let bench = Bench::new(policy);
        let fails = || {
            Completion::quick(|done: FinishedRequest| {
                assert!(done.result.is_err(), "a callback that fails");
            })
        };
        bench.start_with(Request::write(0, memory(4096, 1)), fails());
        bench.start_with(Request::write(4096, memory(4096, 1)), fails());
        bench.start(Request::write(8192, memory(4096, 1)));
        let (mut panics, mut results) = (0, 0);
        for _ in 0..100 {
            match catch_unwind(AssertUnwindSafe(|| bench.engine.wait(LONG))) {
                Ok(result) => results += usize::from(result.expect("there").is_some()),
                Err(what) => {
                    let what = what.downcast::<&str>().expect("its own words");
                    assert_eq!(*what, "a callback that fails");
                    panics += 1;
                }
            }
        }
        assert_eq!((panics, results), (2, 1), "{policy:?}");
        assert_eq!(bench.engine.completions().panics, 2);
        assert_eq!((bench.engine.in_flight(), bench.engine.held()), (0, (0, 0)));
        assert!(bench.run(Request::read(0, memory(4096, 0))).result.is_ok());
    }
}

#[test]
fn a_full_engine_gives_request_and_callback_back() {
    let bench = Bench::new(CompletionPolicy::Auto);
    let (sender, receiver) = channel();
    let completion = |sender: &std::sync::mpsc::Sender<u64>| {
        let sender = sender.clone();
        Completion::quick(move |done| sender.send(done.id.number()).expect("the test listens"))
    };
    for at in 0..u64::from(REQUESTS_MAX) {
        bench.start_with(Request::write(at * 4096, memory(4096, 1)), completion(&sender));
    }
    let write = Request::write(3, memory(4096, 5));
    let refused = bench.engine.start_with(&bench.target, write, completion(&sender));
    let (refused, completion) = refused.expect_err("no room");
    assert_eq!(refused.error.kind, AdmitErrorKind::Full);
    assert_eq!(receiver.try_iter().count(), 0, "nothing ran yet");
    bench.finish();
    assert_eq!(receiver.try_iter().count(), usize::try_from(REQUESTS_MAX).expect("small"));
    bench.start_with(refused.request, completion);
    bench.finish();
    assert_eq!(receiver.try_iter().count(), 1);
}

#[test]
fn deferred_results_come_out_of_wait_as_they_went_in() {
    let bench = Bench::new(CompletionPolicy::Deferred);
    for round in 0..5_u8 {
        for at in 0..u64::from(REQUESTS_MAX) {
            bench.start(Request::write(at * 4096, memory(4096, round)));
        }
        let refused = bench.engine.start(&bench.target, Request::write(0, memory(512, 0)));
        assert_eq!(refused.expect_err("full").error.kind, AdmitErrorKind::Full);
        for left in (0..REQUESTS_MAX).rev() {
            let done = bench.engine.wait(LONG).expect("there").expect("one more");
            let timing = done.timing().unwrap();
            assert!(timing.finished >= timing.reaped);
            assert!(done.memory.expect("comes back").iter().all(|byte| *byte == round));
            assert_eq!(bench.engine.in_flight(), usize::try_from(left).expect("small"));
        }
        assert!(bench.engine.wait(LONG).expect("there").is_none());
    }
    assert_eq!(bench.engine.held(), (0, 0));
    assert_eq!(bench.count(CompletionReason::PolicyDeferred), 5 * u64::from(REQUESTS_MAX));
}

#[test]
fn a_large_bounced_read_is_copied_by_a_worker_and_a_small_one_is_not() {
    for (policy, length, large) in [
        (CompletionPolicy::Auto, 500_000, 9),
        (CompletionPolicy::Auto, 3 * MIB + 77, 0),
        (CompletionPolicy::Auto, 3 * MIB - 77, 9),
        (CompletionPolicy::Auto, 4096, 0),
        (CompletionPolicy::Inline, 500_000, 0),
        (LINUX_5_5, 500_000, 0),
        (LINUX_7_0, 500_000, 9),
    ] {
        let bench = Bench::new(policy);
        let content: Vec<u8> =
            (0..8 * MIB).map(|at| u8::try_from(at % 251).expect("small")).collect();
        bench.world.with_disk(0, |disk| disk.load(&content));
        for skip in 1..10 {
            bench.start(Request::read(skip, memory(length, 0)));
        }
        while bench.engine.in_flight() > 0 {
            let done = bench.engine.wait(LONG).expect("there").expect("one more");
            assert_eq!(done.route().bounced, length);
            let at = usize::try_from(done.range.start()).expect("small");
            let memory = done.memory.expect("comes back");
            assert!(memory[..] == content[at..at + memory.len()], "{policy:?} {length} at {at}");
        }
        let reasons = [CompletionReason::LargeCopy, CompletionReason::CopiedBack];
        let copies: u64 = reasons.into_iter().map(|why| bench.count(why)).sum();
        assert_eq!(copies, large, "{policy:?} {length}");
    }
}
