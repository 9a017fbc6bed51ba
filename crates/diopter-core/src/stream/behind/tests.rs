//! The stream over a scripted file: which writes it starts and when, what it allocates, and what it
//! does with results that a simulator does not give.

use std::cell::RefCell;
use std::pin::Pin;
use std::rc::Rc;

use super::*;
use crate::error::{AdmitError, AdmitErrorKind, IoErrorKind};
use crate::outcome::{Route, StopReason, Transfer};
use crate::request::{RequestId, RequestOp};
use crate::units::Bytes;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

type Reply = Result<FinishedRequest, Box<Refused>>;

/// The writes that were started, with the results that they will have.
#[derive(Default)]
struct Script {
    started: Vec<(FileRange, RwFlags)>,
    memory: Vec<Option<IoBuf>>,
    replies: Vec<Option<Reply>>,
    allocated: Vec<(FileRange, Growth)>,
    settled: Vec<(u64, Option<u64>)>,
    /// Each allocation fails, after it has given the file this size.
    refuses: Option<u64>,
    /// The errno of those; ENOSPC without one.
    errno: Option<Errno>,
}

#[derive(Clone, Default)]
struct Scripted(Rc<RefCell<Script>>);

struct ScriptedWrite {
    script: Scripted,
    number: usize,
}

impl Future for ScriptedWrite {
    type Output = Reply;

    fn poll(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Reply> {
        let reply = self.script.0.borrow_mut().replies[self.number].take();
        reply.map_or(Poll::Pending, Poll::Ready)
    }
}

impl Sink for Scripted {
    type Write = ScriptedWrite;

    fn write(&mut self, request: Request) -> ScriptedWrite {
        let mut script = self.0.borrow_mut();
        let memory: IoBuf = request.memory.and_then(|memory| memory.downcast().ok()).unwrap();
        let start = request.offset.get();
        script.started.push((FileRange::new(start, start + to_u64(memory.len())), request.flags));
        script.memory.push(Some(memory));
        script.replies.push(None);
        ScriptedWrite { script: self.clone(), number: script.started.len() - 1 }
    }

    fn allocate(&mut self, range: FileRange, growth: Growth) -> Result<(), Errno> {
        let mut script = self.0.borrow_mut();
        script.allocated.push((range, growth));
        if script.refuses.is_some() {
            return Err(script.errno.unwrap_or(Errno::ENOSPC));
        }
        Ok(())
    }

    fn size(&self) -> Option<u64> {
        self.0.borrow().refuses
    }

    fn settle(&mut self, end: u64, grown_to: Option<u64>) -> Result<(), Errno> {
        self.0.borrow_mut().settled.push((end, grown_to));
        Ok(())
    }
}

impl Scripted {
    /// Finishes a write that has moved `moved` bytes of its range.
    fn finish(&self, number: usize, moved: u64) {
        let mut script = self.0.borrow_mut();
        let range = script.started[number].0;
        let end = range.start() + moved;
        let done =
            RangeOutcome { range: FileRange::new(range.start(), end), state: RangeState::Done };
        let name = (RequestId(to_u64(number)), RequestOp::Write);
        let memory = script.memory[number].take().map(diopter_os::AnyBuf::new);
        let outcome = Outcome::of_parts(range, &[done], 0);
        let transfer = match moved == range.length() {
            true => Transfer::Whole(Bytes::new(moved)),
            false => Transfer::Stopped { done: Bytes::new(moved), why: StopReason::NoSpace },
        };
        let (result, route) = (Ok(transfer), Route::all_direct(moved));
        let finished = FinishedRequest::whole(name, range, memory).ended(result, outcome, route);
        script.replies[number] = Some(Ok(finished));
    }

    fn finish_all(&self) {
        let ranges: Vec<_> = self.0.borrow().started.iter().map(|(range, _)| *range).collect();
        for (number, range) in ranges.into_iter().enumerate() {
            if self.0.borrow().memory[number].is_some() {
                self.finish(number, range.length());
            }
        }
    }

    fn starts(&self) -> Vec<(u64, u64)> {
        let script = self.0.borrow();
        script.started.iter().map(|(range, _)| (range.start(), range.end())).collect()
    }
}

fn shape(start: u64, buffer_bytes: u64, depth_max: u32) -> Shape {
    Shape { start, unit: 4096, buffer_bytes, depth_max }
}

fn stream(shape: Shape, space: Space) -> (Scripted, WriteBehind<Scripted>) {
    let script = Scripted::default();
    (script.clone(), WriteBehind::new(script, shape, space))
}

fn idle() -> Context<'static> {
    Context::from_waker(Waker::noop())
}

/// Gives bytes until they are all taken, or the stream is full or fails. Returns how many were.
fn give(stream: &mut WriteBehind<Scripted>, mut bytes: u64) -> u64 {
    let piece = vec![1; 64 << 10];
    let mut taken = 0;
    while bytes > 0 {
        let length = bytes.min(to_u64(piece.len()));
        match stream.poll_write(&mut idle(), &piece[..to_usize(length)]) {
            Poll::Ready(Ok(n)) => {
                bytes -= to_u64(n);
                taken += to_u64(n);
            }
            Poll::Ready(Err(_)) | Poll::Pending => break,
        }
    }
    taken
}

#[test]
fn writes_end_at_multiples_of_the_buffer_and_a_short_stream_needs_little_memory() {
    let (script, mut long) = stream(shape(0, 2 * MIB, 16), Space::OFF);
    give(&mut long, 5 * MIB);
    assert_eq!(script.starts(), [(0, 64 * KIB), (64 * KIB, 2 * MIB), (2 * MIB, 4 * MIB)]);
    let (script, mut odd) = stream(shape(5000, 64 * KIB, 16), Space::OFF);
    give(&mut odd, 200_000);
    assert_eq!(script.starts()[..3], [(5000, 8192), (8192, 65_536), (65_536, 131_072)]);
    assert_eq!(odd.position(), 205_000);
    let (script, mut short) = stream(shape(0, 2 * MIB, 16), Space::of_file(0));
    give(&mut short, 100);
    assert!(short.poll_flush(&mut idle()).is_pending());
    let script = script.0.borrow();
    assert_eq!(script.started, [(FileRange::new(0, 100), RwFlags::DONTCACHE)]);
    let mut memory = script.memory[0].as_ref().map(|memory| memory.len());
    assert_eq!(memory.take(), Some(100));
    assert_eq!(script.allocated, []);
}

#[test]
fn no_more_is_in_flight_than_the_depth() {
    let (script, mut stream) = stream(shape(0, 64 * KIB, 2), Space::OFF);
    assert_eq!(give(&mut stream, MIB), 3 * 64 * KIB, "two in flight, one full");
    assert_eq!((script.starts().len(), stream.bytes_behind()), (2, 3 * 64 * KIB));
    script.finish(1, 64 * KIB);
    assert_eq!(give(&mut stream, MIB), 64 * KIB);
    assert_eq!(script.starts().len(), 3);
    let states: Vec<_> = stream.outcome().ranges().iter().map(|part| part.state).collect();
    assert_eq!(states, [RangeState::NotTried, RangeState::Done, RangeState::NotTried]);
}

#[test]
fn space_follows_the_options() {
    let allocated = |space: Space, refuses: Option<u64>| {
        let (script, mut stream) = stream(shape(0, 256 * KIB, 100), space);
        script.0.borrow_mut().refuses = refuses;
        give(&mut stream, 3 * MIB);
        script.finish_all();
        assert!(stream.poll_close(&mut idle()).is_ready());
        let script = script.0.borrow();
        let ranges = script.allocated.iter().map(|(range, growth)| {
            (range.start() / KIB, range.end() / KIB, *growth == Growth::Grows)
        });
        (ranges.collect::<Vec<_>>(), script.settled.clone())
    };
    let kept = |start, end| (start, end, false);
    let grown = |start, end| (start, end, true);
    assert_eq!(allocated(Space::OFF, None), (vec![], vec![]));
    // In the file there is space already.
    assert_eq!(allocated(Space::of_file(3 * MIB), None), (vec![], vec![]));
    let doubling = vec![kept(256, 512), kept(512, 1024), kept(1024, 2048), kept(2048, 4096)];
    assert_eq!(allocated(Space::of_file(0), None), (doubling, vec![(3 * MIB, None)]));
    let hint = Space::of_file(MIB).expecting(4 * MIB);
    let settled = vec![(3 * MIB, Some(4 * MIB))];
    assert_eq!(allocated(hint, None), (vec![grown(1024, 4096)], settled));
    let exact = Space::of_file(0).expecting(3 * MIB);
    assert_eq!(allocated(exact, None), (vec![grown(0, 3072)], vec![]));
    let steps = Space::of_file(0).in_steps(2 * MIB);
    let settled = vec![(3 * MIB, Some(4 * MIB))];
    assert_eq!(allocated(steps, None), (vec![grown(0, 2048), grown(2048, 4096)], settled));
    // A file that is longer than the stream keeps its length.
    let inside = Space::of_file(8 * MIB).expecting(9 * MIB);
    assert_eq!(allocated(inside, None), (vec![], vec![]));

    // One that fails is the last, and what it has changed before is taken back.
    let kept_once = vec![kept(256, 512)];
    assert_eq!(allocated(Space::of_file(0), Some(0)), (kept_once.clone(), vec![]));
    let far = Space::of_file(0).in_steps(64 * MIB);
    let tried = vec![grown(0, 64 * 1024)];
    assert_eq!(allocated(far.clone(), Some(0)), (tried.clone(), vec![(3 * MIB, None)]));
    let settled = vec![(3 * MIB, Some(33 * MIB))];
    assert_eq!(allocated(far.clone(), Some(33 * MIB)), (tried.clone(), settled));
    // Past what was asked for it has another writer's bytes.
    assert_eq!(allocated(far, Some(65 * MIB)), (tried, vec![(3 * MIB, None)]));
}

#[test]
fn an_allocation_that_is_not_possible_leaves_the_file_alone() {
    for errno in [Errno::EOPNOTSUPP, Errno::ENOSYS, Errno::EPERM, Errno::EINVAL] {
        for space in [Space::of_file(0), Space::of_file(0).in_steps(64 * MIB)] {
            let (script, mut stream) = stream(shape(0, 256 * KIB, 100), space);
            // A server may say that the file is shorter than it is, or longer.
            script.0.borrow_mut().refuses = Some(33 * MIB);
            script.0.borrow_mut().errno = Some(errno);
            give(&mut stream, 3 * MIB);
            script.finish_all();
            assert!(matches!(stream.poll_close(&mut idle()), Poll::Ready(Ok(()))));
            let script = script.0.borrow();
            assert_eq!((script.allocated.len(), script.settled.clone()), (1, vec![]), "{errno:?}");
        }
    }
}

#[test]
fn a_write_that_is_short_is_out_of_space() {
    let (script, mut stream) = stream(shape(0, 64 * KIB, 2), Space::OFF);
    give(&mut stream, 128 * KIB);
    script.finish(1, 64 * KIB);
    script.finish(0, 4096);
    let Poll::Ready(Err(RequestError::Io(error))) = stream.poll_flush(&mut idle()) else {
        panic!("both have finished")
    };
    assert_eq!((error.kind, error.errno), (IoErrorKind::NoSpace, Errno::ENOSPC));
    assert_eq!(error.range, FileRange::new(4096, 64 * KIB));
    let states: Vec<_> = stream.outcome().ranges().iter().map(|part| part.state).collect();
    assert_eq!(states, [RangeState::Done, RangeState::NotTried, RangeState::Done]);
}

#[test]
fn a_request_that_is_refused_ends_the_stream() {
    let (script, mut stream) = stream(shape(0, 64 * KIB, 2), Space::OFF);
    give(&mut stream, 64 * KIB + 5);
    let error = AdmitError::new(AdmitErrorKind::TooFar, FileRange::new(0, 1), "");
    let request = Request::sync_data();
    script.0.borrow_mut().replies[0] = Some(Err(Box::new(Refused { error, request })));
    assert!(!stream.has_reported());
    let refused = Poll::Ready(Err(RequestError::Admit(error)));
    assert_eq!(stream.poll_close(&mut idle()), refused);
    assert!(stream.has_reported());
    assert_eq!(script.starts().len(), 1, "what was taken after it is dropped");
    assert!(matches!(stream.poll_write(&mut idle(), &[1]), Poll::Ready(Err(RequestError::Io(_)))));
}
