//! A cancelled request completes all the same, and its outcome says what became of it.

use std::fs;
use std::time::Duration;

use diopter::{FinishedRequest, IoBuf, IoErrorKind, RangeState, Request, RequestOp};
use diopter_core::prng::Prng;

use super::env;
use super::row::{Check, Row, both_ways, file_with};

pub const ON_FILES: &[Check] = &[
    ("a cancelled request says what was done", a_cancelled_request_says_what_was_done),
    ("a request that is cancelled at once is not tried", cancelled_at_once_is_not_tried),
    (
        "cancelling a completed request changes nothing",
        cancelling_a_completed_request_changes_nothing,
    ),
    ("an engine that is dropped finishes its writes", a_dropped_engine_finishes_its_writes),
];

const WAIT_MAX: Duration = Duration::from_secs(60);
const PIECE: usize = 64 << 10;
const PIECES: usize = 32;

/// Byte of the file before a write.
const BEFORE: u8 = 1;

/// Asserts that a finished write did to its range of `bytes` what its outcome says.
fn must_be_true(finished: &FinishedRequest, bytes: &[u8], after: u8) {
    let is_cancelled = finished.result.is_err();
    if let Err(error) = &finished.result {
        assert_eq!(error.kind, IoErrorKind::Cancelled);
    }
    let mut at = finished.range.start();
    for part in finished.outcome().ranges() {
        assert_eq!(part.range.start(), at, "the outcome has no gaps");
        at = part.range.end();
        let range = usize::try_from(part.range.start()).unwrap()..usize::try_from(at).unwrap();
        let part_bytes = &bytes[range];
        match part.state {
            RangeState::Done => assert!(part_bytes.iter().all(|byte| *byte == after)),
            RangeState::NotTried => {
                assert!(is_cancelled);
                assert!(part_bytes.iter().all(|byte| *byte == BEFORE), "said to be untouched");
            }
            RangeState::Unknown => assert!(is_cancelled),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(at, finished.range.end());
}

fn a_cancelled_request_says_what_was_done(row: &Row) {
    let mut prng = Prng::new(env::seed()).fork("cancel");
    for _ in 0..10 {
        let path = file_with(row, &vec![BEFORE; PIECES * PIECE]);
        let file = both_ways().open(&path).unwrap();
        let engine = row.engine();
        let mut ids = Vec::new();
        for (n, after) in (0..PIECES).zip(100_u8..) {
            // Some with ragged edges.
            let shift = if n % 3 == 0 { 100 } else { 0 };
            let mut memory = IoBuf::new(PIECE - 2 * shift).unwrap();
            memory.fill(after);
            let request = Request::write((n * PIECE + shift) as u64, memory);
            ids.push((engine.start(&file, request).unwrap(), after));
            if prng.one_in(3) {
                engine.tick();
            }
            if prng.one_in(2) {
                let (id, _) = ids[usize::try_from(prng.below(ids.len() as u64)).unwrap()];
                engine.cancel(id);
            }
        }
        let mut finished = Vec::new();
        while engine.in_flight() > 0 {
            finished.push(engine.wait(WAIT_MAX).unwrap().expect("a cancelled request ends"));
        }
        assert_eq!(finished.len(), PIECES);
        let bytes = fs::read(&path).unwrap();
        for request in finished {
            assert!(request.memory.is_some(), "the memory comes back");
            let (_, after) = ids.iter().find(|(id, _)| *id == request.id).unwrap();
            must_be_true(&request, &bytes, *after);
        }
    }
}

fn cancelled_at_once_is_not_tried(row: &Row) {
    let path = file_with(row, &vec![BEFORE; PIECE]);
    let file = both_ways().open(&path).unwrap();
    let engine = row.engine();
    for op in [RequestOp::Read, RequestOp::Write] {
        // A ragged one waits at least for its turn at the inode lock, so nothing of it has begun.
        let memory = IoBuf::new(1000).unwrap();
        let mut request = Request::write(7, memory);
        request.op = op;
        let id = engine.start(&file, request).unwrap();
        engine.cancel(id);
        let finished = engine.wait(WAIT_MAX).unwrap().unwrap();
        assert_eq!(finished.id, id);
        must_be_true(&finished, &fs::read(&path).unwrap(), 0);
        assert_eq!(finished.outcome().ranges()[0].state, RangeState::NotTried);
    }
    let sync = engine.start(&file, Request::sync_data()).unwrap();
    engine.cancel(sync);
    let finished = engine.wait(WAIT_MAX).unwrap().unwrap();
    assert!(finished.result.is_err_and(|error| error.kind == IoErrorKind::Cancelled));
    file.sync_data().unwrap();
}

fn cancelling_a_completed_request_changes_nothing(row: &Row) {
    let file = both_ways().open(file_with(row, &[BEFORE; 1000])).unwrap();
    let engine = row.engine();
    let id = engine.start(&file, Request::read(0, IoBuf::new(1000).unwrap())).unwrap();
    let finished = engine.wait(WAIT_MAX).unwrap().unwrap();
    engine.cancel(id);
    assert_eq!(finished.result.map(|bytes| bytes.get()), Ok(1000));
    let next = engine.start(&file, Request::read(0, IoBuf::new(1000).unwrap())).unwrap();
    engine.cancel(id);
    let finished = engine.wait(WAIT_MAX).unwrap().unwrap();
    assert_eq!((finished.id, finished.result.map(|bytes| bytes.get())), (next, Ok(1000)));
    let in_flight = file.request(Request::read(0, IoBuf::new(1000).unwrap())).unwrap();
    in_flight.cancel();
    let finished = in_flight.wait();
    assert!(finished.result.is_ok() || !finished.outcome().is_all_done());
}

fn a_dropped_engine_finishes_its_writes(row: &Row) {
    let path = file_with(row, &vec![BEFORE; PIECES * PIECE]);
    let file = both_ways().open(&path).unwrap();
    for (n, after) in (0..20).zip(100_u8..) {
        let engine = row.engine();
        for piece in 0..PIECES {
            // Some with ragged edges.
            let shift = if piece % 3 == 0 { 100 } else { 0 };
            let mut memory = IoBuf::new(PIECE - 2 * shift).unwrap();
            memory.fill(after);
            engine.start(&file, Request::write((piece * PIECE + shift) as u64, memory)).unwrap();
            if piece == n {
                engine.tick();
            }
        }
        drop(engine);
        let bytes = fs::read(&path).unwrap();
        for (piece, bytes) in bytes.chunks(PIECE).enumerate() {
            let shift = if piece % 3 == 0 { 100 } else { 0 };
            assert!(bytes[shift..PIECE - shift].iter().all(|byte| *byte == after), "{n}: {piece}");
        }
        file.sync_data().expect("nothing has failed");
        // No engine holds the blocks any more.
        file.write_all_at(&[2; 100], 50).unwrap();
    }
}
