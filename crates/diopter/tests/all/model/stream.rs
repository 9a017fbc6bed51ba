//! A stream of bytes on the simulator, with faults: pieces of any size, flushes, syncs, and a crash
//! at every step. `DIOPTER_SEED=n` replays from seed n; `DIOPTER_SOAK=1` runs 100 000 seeds.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use diopter::{
    Errno, FileRange, FinishedRequest, Policies, RangeState, Refused, Request, RequestId,
};
use diopter_core::backend::Checked;
use diopter_core::backend::sim::{Disk, Faults, Sim, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, AsTarget, Blocks, Target, TargetRef};
use diopter_core::error::RequestError;
use diopter_core::map::Identity;
use diopter_core::prng::Prng;
use diopter_core::stream::behind::{Growth, Shape, Sink, Space, WriteBehind};

use super::{LOST_AFTER, Replay, rare, seeds, sim_config};

const CAPACITY: u64 = 32 << 10;
/// Bytes of a file before its stream.
const OLD: u8 = 0xfe;

/// The engine, and what is known of the writes.
struct Device {
    engine: Engine,
    target: TargetRef,
    world: World,
    finished: BTreeMap<RequestId, FinishedRequest>,
    in_flight: BTreeMap<RequestId, FileRange>,
    most_in_flight: usize,
    /// The stream has met a failure.
    has_failed: bool,
    /// By byte of the file.
    bytes: Vec<State>,
    /// Where the next write has to begin, and the furthest end that the file may have.
    next: u64,
    end_max: u64,
    /// The furthest end that it ever had: a crash may undo a truncation.
    end_ever: u64,
    /// Once in so many allocations, one fails; and one truncation.
    refuses: u64,
    prng: Prng,
}

/// The state of a byte of the stream.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Untouched,
    Open,
    Written,
    Synced,
}

type Shared = Rc<RefCell<Device>>;

struct SimSink(Shared);

struct SimWrite {
    device: Shared,
    request: Option<Request>,
    id: Option<RequestId>,
}

impl Future for SimWrite {
    type Output = Result<FinishedRequest, Box<Refused>>;

    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut device = this.device.borrow_mut();
        if let Some(request) = this.request.take() {
            let length = request.memory.as_ref().map_or(0, |memory| memory.len());
            let start = request.offset.get();
            let range = FileRange::new(start, start + u64::try_from(length).expect("small"));
            let id = device.engine.start(&device.target, request)?;
            device.begin(id, range);
            this.id = Some(id);
        }
        let finished = this.id.and_then(|id| device.finished.remove(&id));
        device.has_failed |= finished.as_ref().is_some_and(|finished| finished.result.is_err());
        finished.map_or(Poll::Pending, |finished| Poll::Ready(Ok(finished)))
    }
}

impl Sink for SimSink {
    type Write = SimWrite;

    fn write(&mut self, request: Request) -> SimWrite {
        SimWrite { device: Rc::clone(&self.0), request: Some(request), id: None }
    }

    fn allocate(&mut self, range: FileRange, growth: Growth) -> Result<(), Errno> {
        let mut device = self.0.borrow_mut();
        let refuses = device.refuses;
        let fails = refuses > 0 && device.prng.one_in(refuses) || range.end() > CAPACITY;
        // One that fails may have grown the file before, as on ext4.
        let most = range.end().min(CAPACITY);
        let to = if fails { device.prng.below(most + 1) } else { most };
        let target = device.target.as_target();
        if growth == Growth::Grows && target.size()? < to {
            target.set_size(to)?;
            device.note_end(to);
        }
        if fails { Err(Errno::ENOSPC) } else { Ok(()) }
    }

    fn size(&self) -> Option<u64> {
        self.0.borrow().target.as_target().size().ok()
    }

    fn settle(&mut self, end: u64, grown_to: Option<u64>) -> Result<(), Errno> {
        let mut device = self.0.borrow_mut();
        assert!(device.in_flight.is_empty(), "truncated during a write");
        let refuses = device.refuses;
        if refuses > 0 && device.prng.one_in(refuses) {
            return Err(Errno::EIO);
        }
        let target = device.target.as_target();
        if Some(target.size()?) == grown_to {
            target.set_size(end)?;
            device.end_max = end;
        }
        Ok(())
    }
}

impl Device {
    fn begin(&mut self, id: RequestId, range: FileRange) {
        assert!(!self.has_failed, "a write after one that failed");
        assert_eq!(range.start(), self.next, "writes start in order, without gaps");
        self.next = range.end();
        self.note_end(range.end());
        self.mark(range, State::Open);
        self.in_flight.insert(id, range);
        self.most_in_flight = self.most_in_flight.max(self.in_flight.len());
    }

    fn note_end(&mut self, end: u64) {
        self.end_max = self.end_max.max(end);
        self.end_ever = self.end_ever.max(end);
    }

    fn mark(&mut self, range: FileRange, state: State) {
        self.bytes[super::indices(range)].fill(state);
    }

    /// Lets virtual time pass until one write completes; a write that never does is cancelled.
    fn step(&mut self) {
        match self.engine.wait(LOST_AFTER).expect("the simulator does not break") {
            Some(finished) => {
                self.in_flight.remove(&finished.id);
                for part in finished.outcome().ranges() {
                    match part.state {
                        RangeState::Done => self.mark(part.range, State::Written),
                        RangeState::NotTried => self.mark(part.range, State::Untouched),
                        _ => {}
                    }
                }
                self.finished.insert(finished.id, finished);
            }
            None => self.in_flight.keys().for_each(|id| self.engine.cancel(*id)),
        }
    }
}

struct Run {
    device: Shared,
    stream: WriteBehind<SimSink>,
    prng: Prng,
    start: u64,
    size: u64,
    content: Vec<u8>,
    /// The first error, and how many calls have failed with ECANCELED after it.
    errors: Vec<RequestError>,
    shape: Shape,
}

fn small(n: u64) -> usize {
    usize::try_from(n).expect("small")
}

impl Run {
    fn new(seed: u64, faults: Option<Faults>) -> Run {
        let root = Prng::new(seed);
        let mut prng = root.fork("stream");
        let block = if prng.one_in(2) { 512 } else { 4096 };
        let size = if prng.one_in(3) { 0 } else { prng.below(CAPACITY / 4) };
        let is_full_soon = faults.is_none() && prng.one_in(6);
        let mut disk = Disk::new(if is_full_soon { CAPACITY / 2 } else { CAPACITY }, block, 512);
        disk.load(&vec![OLD; small(size)]);
        let world = World::new(vec![disk]);
        let faults = faults.unwrap_or_else(|| rare(Faults::swarm(&mut prng), &mut prng));
        let config = sim_config(seed, prng.below(100_000), faults);
        let blocks =
            Blocks { read: u64::from(block), write: u64::from(block), memory: 512, page: 4096 };
        let access = Access { read: true, write: true, ..Access::default() };
        let target = Target::alone(world.object(0), Identity, blocks, access);
        let slab = Engine::slab();
        let sim = Box::new(Sim::new(&slab, &world, config));
        let backend = Box::new(Checked::new(sim, &slab));
        let engine = Engine::on_backend(slab.clone(), backend, Policies::default());
        let start = if prng.one_in(2) { size } else { prng.below(CAPACITY / 4) };
        let unit = u64::from(block);
        let shape = Shape {
            start,
            unit,
            buffer_bytes: unit * (1 + prng.below(4)),
            depth_max: 1 + u32::try_from(prng.below(6)).expect("small"),
        };
        let mut space = if prng.one_in(4) { Space::OFF } else { Space::of_file(size) };
        if prng.one_in(3) {
            space = space.expecting(start + prng.below(CAPACITY));
        }
        if prng.one_in(3) {
            space = space.in_steps(1 + prng.below(CAPACITY / 2));
        }
        let mut content = vec![0; small(prng.below(CAPACITY / 2))];
        prng.fork("content").fill(&mut content);
        // A byte of the stream is neither an old one nor one of a hole.
        content.iter_mut().for_each(|byte| *byte = 1 + *byte % 0xf0);
        let has_faults = faults != Faults::NONE;
        let device = Rc::new(RefCell::new(Device {
            engine,
            target,
            world,
            finished: BTreeMap::new(),
            in_flight: BTreeMap::new(),
            most_in_flight: 0,
            has_failed: false,
            bytes: vec![State::Untouched; small(CAPACITY)],
            next: start,
            end_max: size,
            end_ever: size,
            refuses: if has_faults { prng.below(8) } else { 0 },
            prng: root.fork("device"),
        }));
        let stream = WriteBehind::new(SimSink(Rc::clone(&device)), shape, space);
        Run { device, stream, prng, start, size, content, errors: Vec::new(), shape }
    }

    /// Polls to the end; checks the file at every step, and after every crash that is possible.
    fn drive<T>(
        &mut self,
        mut poll: impl FnMut(
            &mut WriteBehind<SimSink>,
            &mut Context<'_>,
        ) -> Poll<Result<T, RequestError>>,
    ) -> Option<T> {
        loop {
            let polled = poll(&mut self.stream, &mut Context::from_waker(Waker::noop()));
            self.check_file();
            match polled {
                Poll::Pending => self.device.borrow_mut().step(),
                Poll::Ready(Ok(value)) => return Some(value),
                Poll::Ready(Err(error)) => {
                    self.errors.push(error);
                    return None;
                }
            }
        }
    }

    /// The byte of the stream at an offset of the file.
    fn new_byte(&self, at: u64) -> Option<u8> {
        let at = at.checked_sub(self.start)?;
        self.content.get(small(at)).copied()
    }

    fn old_byte(&self, at: u64) -> u8 {
        if at < self.size { OLD } else { 0 }
    }

    /// The process may be killed now, or the power fail.
    fn check_file(&mut self) {
        let device = self.device.borrow();
        let disk = device.world.with_disk(0, |disk| disk.clone());
        let mut crashed = disk.clone();
        crashed.crash(&mut self.prng);
        let written_end = |least: &[State]| {
            let last = device.bytes.iter().rposition(|state| least.contains(state));
            last.map_or(0, |last| u64::try_from(last).expect("small") + 1)
        };
        let check = |media: &[u8], certain: &[State], end_max: u64| {
            let size = u64::try_from(media.len()).expect("small");
            let least = self.size.max(written_end(certain));
            assert!((least..=end_max).contains(&size), "{size}, not {least} to {end_max}");
            for (at, byte) in (0..).zip(media) {
                let (old, state) = (self.old_byte(at), device.bytes[small(at)]);
                let is_right = match self.new_byte(at).filter(|_| state != State::Untouched) {
                    None => *byte == old,
                    Some(new) if certain.contains(&state) => *byte == new,
                    // Of a block that the file had not, a crash may leave zeros.
                    Some(new) => [new, old].contains(byte),
                };
                assert!(is_right, "byte {at} is {byte}, not {:?}", self.new_byte(at));
            }
        };
        check(disk.live(), &[State::Written, State::Synced], device.end_max);
        check(crashed.live(), &[State::Synced], device.end_ever);
    }

    fn sync(&mut self) {
        if self.drive(WriteBehind::poll_flush).is_none() {
            return;
        }
        let mut device = self.device.borrow_mut();
        let id = device.engine.start(&device.target, Request::sync_data()).expect("room for one");
        let result = loop {
            match device.engine.wait(LOST_AFTER).expect("the simulator does not break") {
                Some(finished) => break finished.result,
                None => device.engine.cancel(id),
            }
        };
        if result.is_ok() {
            let written = device.bytes.iter_mut().filter(|state| **state == State::Written);
            written.for_each(|state| *state = State::Synced);
        }
    }

    fn go(&mut self) {
        let (mut at, mut calls) = (0, 0);
        while at < self.content.len() && calls < 200 {
            let most = [3, 700, 5000, 20_000][small(self.prng.below(4))];
            let piece = 1 + small(self.prng.below(most));
            let piece = self.content[at..self.content.len().min(at + piece)].to_vec();
            let taken = self.drive(|stream, cx| stream.poll_write(cx, &piece));
            at += taken.unwrap_or(0);
            assert!(taken != Some(0), "an empty write");
            assert_eq!(self.stream.position(), self.start + u64::try_from(at).expect("small"));
            calls += 1;
            match self.prng.below(24) {
                0 => self.sync(),
                1 => drop(self.drive(WriteBehind::poll_flush)),
                2 => drop(self.drive(WriteBehind::poll_close)),
                3..8 if !self.device.borrow().in_flight.is_empty() => {
                    self.device.borrow_mut().step();
                    self.check_file();
                }
                _ => {}
            }
        }
        let closed = self.drive(WriteBehind::poll_close).is_some();
        self.check_end(at, closed);
    }

    fn check_end(&mut self, taken: usize, closed: bool) {
        let device = self.device.borrow();
        assert!(device.in_flight.is_empty() && device.finished.is_empty());
        assert!(device.most_in_flight <= small(u64::from(self.shape.depth_max)));
        let outcome = self.stream.outcome();
        let end = self.start + u64::try_from(taken).expect("small");
        let mut at = self.start;
        for part in outcome.ranges() {
            assert_eq!(part.range.start(), at, "a gap");
            at = part.range.end();
            let states = &device.bytes[super::indices(part.range)];
            let expected: &[State] = match part.state {
                RangeState::Done => &[State::Written, State::Synced],
                RangeState::NotTried => &[State::Untouched],
                _ => &[State::Open],
            };
            assert!(states.iter().all(|state| expected.contains(state)), "{part:?}");
        }
        assert_eq!(at, end, "every byte that was taken");
        let is_first = |error: &RequestError| errno_of(error) != Errno::ECANCELED;
        let reported = self.errors.iter().filter(|error| is_first(error)).count();
        // One that was cancelled here because it never completed has the same errno.
        assert!(reported <= 1, "{:?}", self.errors);
        assert_eq!(closed, self.errors.is_empty(), "{:?}", self.errors);
        if closed {
            assert!(outcome.is_all_done() || taken == 0, "{outcome:?}");
            let size = device.world.with_disk(0, |disk| disk.live().len());
            let expected = if taken == 0 { self.size } else { self.size.max(end) };
            assert_eq!(u64::try_from(size).expect("small"), expected, "the exact length");
            assert_eq!(taken, self.content.len());
        }
    }
}

fn errno_of(error: &RequestError) -> Errno {
    match error {
        RequestError::Admit(error) => error.errno(),
        RequestError::Io(error) => error.errno,
    }
}

#[test]
fn a_stream_with_faults_and_crashes_is_right_at_every_step() {
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    let (mut whole, mut failed) = (0, 0);
    for seed in seeds {
        let replay = Replay(seed);
        let mut run = Run::new(seed, None);
        run.go();
        *if run.errors.is_empty() { &mut whole } else { &mut failed } += 1;
        std::mem::forget(replay);
    }
    eprintln!("TRIED stream model: {whole} whole, {failed} failed");
    assert!(count < 100 || whole.min(failed) > count / 10, "both kinds: {whole}, {failed}");
}

#[test]
fn a_stream_without_faults_is_written_whole() {
    for seed in 0..500 {
        let replay = Replay(seed);
        let mut run = Run::new(seed, Some(Faults::NONE));
        run.go();
        assert_eq!(run.errors, [], "seed {seed}");
        std::mem::forget(replay);
    }
}
