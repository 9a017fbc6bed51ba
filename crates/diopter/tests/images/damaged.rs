//! A tree of pointers that is damaged further on: a request gets as far as the metadata is good,
//! says so, and ends.

use std::time::Duration;

use diopter::{
    BackendKind, Engine, EngineOptions, Errno, FinishedRequest, Image, IoBuf, IoErrorKind,
    OpenOptions, Policies, RangeState, Request,
};

use crate::agreement::BOUNDARIES;
use crate::env;
use crate::machine;
use crate::story::Story;

/// Where the damage begins, in bytes of the file.
const GOOD_TO: u64 = 1036 * 4096;

#[test]
fn damage_in_the_middle_of_a_tree_ends_a_request_there_and_the_outcome_says_so() {
    let _machine = machine::alone();
    let Some(story) = Story::new() else { return };
    story.damage(story.second_group(), &[0xff; 4096]);
    for backend in [BackendKind::Uring, BackendKind::Threads] {
        if backend == BackendKind::Uring && !env::has_uring() {
            continue;
        }
        for boundary in BOUNDARIES {
            let policies = Policies { boundary, ..Policies::default() };
            check(&story, EngineOptions { backend, policies, checked: true });
        }
    }
    machine::run("e2fsck", &["-fn", story.image.to_str().unwrap()]).unwrap_err();
}

fn check(story: &Story, options: EngineOptions) {
    let engine = Engine::new(options).unwrap();
    let image = OpenOptions::new().read(true).write(true);
    let image = Image::open_with(&story.image, &image).unwrap();
    let file = image.file(b"file").unwrap();
    let run = |request| {
        engine.start(&file, request).unwrap();
        engine.wait(Duration::from_secs(60)).unwrap().unwrap()
    };
    for start in [0, 40_960, 7, GOOD_TO - 4096, GOOD_TO - 700] {
        let mut memory = IoBuf::new(5 << 20).unwrap();
        memory.fill(0xa5);
        let finished = run(Request::read(start, memory));
        must_end(&finished, start);
        let memory = finished.memory.unwrap();
        for part in finished.outcome.ranges().iter().filter(|part| part.state == RangeState::Done) {
            let (from, to) = (part.range.start(), part.range.end());
            let at = |at: u64| usize::try_from(at).unwrap();
            let read = &memory[at(from - start)..at(to - start)];
            assert!(*read == story.content[at(from)..at(to)], "{options:?}: {start}");
        }
    }
    // The same bytes once more, so that the next one finds the file as it was.
    for start in [57_344, GOOD_TO - 4096] {
        let from = usize::try_from(start).unwrap();
        let mut memory = IoBuf::new(4 << 20).unwrap();
        memory.copy_from_slice(&story.content[from..from + (4 << 20)]);
        must_end(&run(Request::write(start, memory)), start);
    }
}

fn must_end(finished: &FinishedRequest, start: u64) {
    let error = finished.result.as_ref().unwrap_err();
    assert_eq!((error.errno, error.kind), (Errno::EUCLEAN, IoErrorKind::Corrupt), "{error}");
    assert_eq!(error.range.start(), GOOD_TO, "{error}");
    let done = finished.outcome.ranges().iter().filter(|part| part.state == RangeState::Done);
    let done: u64 = done.map(|part| part.range.length()).sum();
    assert_eq!(done, GOOD_TO - start, "{:?}", finished.outcome);
    let tried = finished.outcome.ranges().iter().all(|part| {
        part.range.end() <= GOOD_TO && part.state == RangeState::Done
            || part.range.start() >= GOOD_TO && part.state == RangeState::NotTried
    });
    assert!(tried, "{:?}", finished.outcome);
}
