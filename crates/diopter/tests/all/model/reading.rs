//! A file that is read ahead of a caller on the simulator, with faults: reads of any size, seeks,
//! and requests that never complete. `DIOPTER_SEED=n` replays from seed n; `DIOPTER_SOAK=1` runs
//! 100 000 seeds.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

use diopter::{FinishedRequest, Policies, Refused, Request, RequestId};
use diopter_core::backend::Checked;
use diopter_core::backend::sim::{Disk, Faults, Sim, World};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, AsTarget, Blocks, Target, TargetRef};
use diopter_core::error::{AdmitError, AdmitErrorKind, RequestError};
use diopter_core::map::Identity;
use diopter_core::prng::Prng;
use diopter_core::stream::ahead::{ReadAhead, Shape, Source, Urgency};

use super::{LOST_AFTER, Replay, seeds, sim_config};

const CAPACITY: u64 = 256 << 10;

struct Device {
    engine: Engine,
    target: TargetRef,
    finished: BTreeMap<RequestId, FinishedRequest>,
    in_flight: BTreeSet<RequestId>,
    /// Requests whose caller waits, or may.
    wanted: BTreeSet<RequestId>,
    most_wanted: usize,
}

type Shared = Rc<RefCell<Device>>;

struct SimSource {
    device: Shared,
    /// Reads ahead are refused now and then: those who serve them have no thread.
    refusals: Option<Prng>,
}

struct SimRead {
    device: Shared,
    started: Result<RequestId, Option<Request>>,
    is_refused: bool,
}

impl Future for SimRead {
    type Output = Result<FinishedRequest, Box<Refused>>;

    fn poll(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = &mut *self;
        let mut device = this.device.borrow_mut();
        if let Err(request) = &mut this.started {
            let request = request.take().expect("polled once before it has an id");
            if this.is_refused {
                let error = AdmitError::new(AdmitErrorKind::NoEngine, request.range(), "test");
                return Poll::Ready(Err(Box::new(Refused { error, request })));
            }
            let id = device.engine.start(&device.target, request)?;
            device.in_flight.insert(id);
            device.wanted.insert(id);
            device.most_wanted = device.most_wanted.max(device.wanted.len());
            this.started = Ok(id);
        }
        let finished = this.started.as_ref().ok().and_then(|id| device.finished.remove(id));
        finished.map_or(Poll::Pending, |finished| {
            device.wanted.remove(&finished.id);
            Poll::Ready(Ok(finished))
        })
    }
}

impl Drop for SimRead {
    fn drop(&mut self) {
        let Ok(id) = self.started else { return };
        let mut device = self.device.borrow_mut();
        device.wanted.remove(&id);
        device.finished.remove(&id);
        if device.in_flight.contains(&id) {
            device.engine.cancel(id);
        }
    }
}

impl Source for SimSource {
    type Read = SimRead;

    fn read(&mut self, request: Request, urgency: Urgency) -> SimRead {
        let refuses = |prng: &mut Prng| urgency == Urgency::Ahead && prng.one_in(5);
        let is_refused = self.refusals.as_mut().is_some_and(refuses);
        SimRead { device: Rc::clone(&self.device), started: Err(Some(request)), is_refused }
    }

    fn size(&self) -> Option<u64> {
        self.device.borrow().target.as_target().size().ok()
    }
}

impl Device {
    /// Lets virtual time pass until one read completes; a read that never does is cancelled.
    fn step(&mut self) {
        match self.engine.wait(LOST_AFTER).expect("the simulator does not break") {
            Some(finished) => {
                assert!(self.in_flight.remove(&finished.id), "a result that was not asked for");
                if self.wanted.contains(&finished.id) {
                    self.finished.insert(finished.id, finished);
                }
            }
            None => self.in_flight.iter().for_each(|id| self.engine.cancel(*id)),
        }
    }
}

fn small(n: u64) -> usize {
    usize::try_from(n).expect("small")
}

fn wide(n: usize) -> u64 {
    u64::try_from(n).expect("small")
}

struct Run {
    device: Shared,
    stream: ReadAhead<SimSource>,
    prng: Prng,
    content: Vec<u8>,
    has_faults: bool,
    errors: u32,
    shape: Shape,
}

impl Run {
    fn new(seed: u64, faults: Option<Faults>) -> Run {
        let root = Prng::new(seed);
        let mut prng = root.fork("reading");
        let block = if prng.one_in(2) { 512 } else { 4096 };
        let mut content = vec![0; small(prng.below(CAPACITY))];
        prng.fork("content").fill(&mut content);
        let mut disk = Disk::new(CAPACITY, block, 512);
        disk.load(&content);
        let world = World::new(vec![disk]);
        let faults = faults.unwrap_or_else(|| Faults::swarm(&mut prng));
        let config = sim_config(seed, prng.below(100_000), faults);
        let block = u64::from(block);
        let blocks = Blocks { read: block, write: block, memory: 512, page: 4096 };
        let access = Access { read: true, ..Access::default() };
        let target = Target::alone(world.object(0), Identity, blocks, access);
        let slab = Engine::slab();
        let sim = Box::new(Sim::new(&slab, &world, config));
        let backend = Box::new(Checked::new(sim, &slab));
        let engine = Engine::on_backend(slab.clone(), backend, Policies::default());
        let unit = block * (1 + prng.below(2));
        let shape = Shape {
            requests: 1 + small(prng.below(6)),
            buffer_bytes: unit * (1 + prng.below(4)),
            unit,
            block,
        };
        let device = Rc::new(RefCell::new(Device {
            engine,
            target,
            finished: BTreeMap::new(),
            in_flight: BTreeSet::new(),
            wanted: BTreeSet::new(),
            most_wanted: 0,
        }));
        let start = prng.below(wide(content.len()) + 5000);
        let refusals = prng.one_in(3).then(|| root.fork("refusals"));
        let source = SimSource { device: Rc::clone(&device), refusals };
        let stream = ReadAhead::new(source, shape, start);
        let has_faults = faults != Faults::NONE;
        Run { device, stream, prng, content, has_faults, errors: 0, shape }
    }

    /// Waits for bytes, and returns how many are there.
    fn fill(&mut self, wanted: usize) -> Result<usize, RequestError> {
        let mut cx = Context::from_waker(Waker::noop());
        let at = self.stream.position();
        loop {
            match self.stream.poll_fill(&mut cx, wanted) {
                Poll::Pending => self.device.borrow_mut().step(),
                Poll::Ready(filled) => {
                    assert_eq!(self.stream.position(), at, "a fill moves nothing");
                    return filled.map(|()| self.stream.rest().len());
                }
            }
        }
    }

    /// Takes some of the bytes that are there, and compares them with the file.
    fn take(&mut self, there: usize) {
        let at = small(self.stream.position());
        let expected = self.content.get(at..).unwrap_or(&[]);
        assert!(there <= expected.len(), "bytes past the end of the file");
        assert!(there > 0 || expected.is_empty(), "no bytes at {at} of {}", self.content.len());
        assert!(self.stream.rest() == &expected[..there], "bytes from {at} on");
        let taken = small(self.prng.below(wide(there) + 1)).max(usize::from(there > 0));
        self.stream.consume(taken);
        assert_eq!(small(self.stream.position()), at + taken);
    }

    fn go(&mut self) {
        for _ in 0..60 {
            if self.prng.one_in(12) {
                let to = self.prng.below(wide(self.content.len()) + 5000);
                self.stream.seek(to);
                assert_eq!((self.stream.position(), self.stream.bytes_ahead()), (to, 0));
            }
            if self.prng.one_in(6) && !self.device.borrow().in_flight.is_empty() {
                self.device.borrow_mut().step();
            }
            let wanted = small(self.prng.below(20_000));
            match self.fill(wanted) {
                Ok(there) => self.take(there),
                Err(RequestError::Io(error)) => {
                    assert!(self.has_faults, "{error}");
                    let at = self.stream.position();
                    let block = error.range.blocks(self.shape.block);
                    assert!(block.start() <= at && at < block.end(), "{error} at {at}");
                    assert!(block.length() <= self.shape.block, "{error} is that of a block");
                    self.errors += 1;
                    if self.prng.one_in(2) {
                        self.stream.seek(at + self.shape.block);
                    }
                }
                Err(RequestError::Admit(error)) => panic!("{error}"),
            }
        }
        let most = self.shape.requests + 1;
        assert!(self.device.borrow().most_wanted <= most, "{} requests", self.shape.requests);
        let (at, there) = (small(self.stream.position()), self.content.len());
        if !self.has_faults && at < there {
            while let Ok(there) = self.fill(0)
                && there > 0
            {
                self.take(there);
            }
            assert_eq!(small(self.stream.position()), there, "to the end");
        }
    }
}

#[test]
fn a_reading_with_faults_gives_the_bytes_of_the_file_or_an_error_at_their_block() {
    let seeds = seeds();
    let count = seeds.end - seeds.start;
    let mut errors = 0;
    for seed in seeds {
        let replay = Replay(seed);
        let faults = if seed % 3 == 0 { Some(Faults::NONE) } else { None };
        let mut run = Run::new(seed, faults);
        run.go();
        errors += run.errors;
        std::mem::forget(replay);
    }
    assert!(errors > 0 || count < 100, "faults are met");
}
