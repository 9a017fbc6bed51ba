//! Striped objects of a Ceph cluster: their sums, and the comparison with another one or a file.
//! Both sides are read in the same chunks.

use std::future::Future;
use std::path::Path;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use std::thread;
use std::time::Duration;

use diopter::internals::EngineRequest;
use diopter::{Engine, File, FileRange, IoBuf, Request};

use super::compare::first_difference;
use super::{Checker, Difference, DifferenceKind, Opened, Sum, check_unchanged, stopped};
use crate::cluster::{self, Object};
use crate::content::WholeHash;
use crate::failure::{Failure, Step, Stop};
use crate::flow::RouteTotals;
use crate::observer::Pass;
use crate::pipeline::{self, Interruption};
use crate::read_ahead::{Chunk, OBJECT_THREADS, Read, ReadAhead, length_at};
use crate::read_from::ReadFrom;
use crate::source::Content;
use crate::watched::Watched;

/// Longest wait for a request before a signal is looked for.
const WAIT_SLICE: Duration = Duration::from_millis(100);

/// One side of a comparison.
pub enum Side {
    Object(Box<Object>),
    File(Opened),
}

impl Side {
    fn path(&self) -> &Path {
        match self {
            Side::Object(object) => &object.path,
            Side::File(opened) => opened.content().path(),
        }
    }

    /// Returns the open file; none of a striped object.
    fn file(&self) -> Option<&File> {
        match self {
            Side::Object(_) => None,
            Side::File(opened) => Some(opened.content().file()),
        }
    }

    fn size(&self) -> u64 {
        match self {
            Side::Object(object) => object.size,
            Side::File(opened) => opened.content().size(),
        }
    }

    /// Fails if it changed while it was read.
    fn check_unchanged(&self) -> Result<(), Failure> {
        match self {
            Side::Object(object) => object.check_unchanged(),
            Side::File(opened) => check_unchanged(opened.content()),
        }
    }
}

impl Checker<'_> {
    /// Opens a striped object; returns `None` for any other name.
    pub fn open_object(&mut self, name: &Path) -> Option<Result<Object, Failure>> {
        let incomplete = self.options.incomplete;
        let open = |parsed| Object::open(&mut self.clusters, (name, &parsed), incomplete);
        Some(cluster::parse(name)?.and_then(open))
    }

    pub fn sum_of_object(&mut self, object: &Object) -> Step<Sum> {
        let Object { path, size, .. } = object;
        self.observer.begins(Pass::Read, path, *size);
        let mut hash = WholeHash::default();
        let read: &Read<'_> = &|offset, chunk: &mut [u8]| object.read(offset, chunk);
        let (stop, observer) = (self.stop, &mut *self.observer);
        thread::scope(|scope| -> Step<()> {
            let mut ahead = ReadAhead::start(scope, (path, *size), read, (OBJECT_THREADS, 0))?;
            loop {
                if let Some(signal) = stop.requested() {
                    return Err(Stop::Signal(signal));
                }
                let Some(chunk) = ahead.next()? else { return Ok(()) };
                hash.update(chunk.offset, chunk.bytes());
                observer.moved(chunk.end() - chunk.offset);
                observer.reached(chunk.end());
                ahead.give_back(chunk);
            }
        })?;
        self.count(*size);
        object.check_unchanged()?;
        let read_from = Some(ReadFrom::Server);
        self.places.extend(read_from);
        Ok(Sum { path: path.clone(), bytes: *size, hash: hash.finish(*size), read_from })
    }

    /// Compares two sides, one of which is a striped object at least.
    pub fn verify_sides(
        &mut self,
        sides: [&Side; 2],
        each: &mut dyn FnMut(Difference),
    ) -> Step<()> {
        let limit = self.options.bytes_max.unwrap_or(u64::MAX);
        let sizes = sides.map(Side::size);
        let bytes = sizes[0].min(sizes[1]).min(limit);
        for side in sides {
            if let Side::File(opened) = side {
                self.flush(opened.content())?;
            }
        }
        self.observer.begins(Pass::Read, sides[1].path(), bytes);
        let found = self.compare_sides(sides, bytes)?;
        self.count(bytes);
        for side in sides {
            side.check_unchanged()?;
        }
        let kind = match found {
            Some(range) => DifferenceKind::Bytes(range),
            None if sizes[0].min(limit) != sizes[1].min(limit) => DifferenceKind::Length(sizes),
            None => return Ok(()),
        };
        each(Difference { paths: sides.map(|side| side.path().to_owned()), kind });
        Ok(())
    }

    fn compare_sides(&mut self, sides: [&Side; 2], bytes: u64) -> Step<Option<FileRange>> {
        let reads = sides.map(|side| {
            move |offset: u64, chunk: &mut [u8]| match side {
                Side::Object(object) => object.read(offset, chunk),
                Side::File(_) => unreachable!("a file is read by the engine"),
            }
        });
        let (engine, _) = self.pipeline.idle();
        let (stop, observer) = (self.stop, &mut *self.observer);
        let files = sides.map(Side::file);
        let watched = files.map(|file| file.map(Watched::begin));
        let mut totals = [RouteTotals::default(), RouteTotals::default()];
        let found = thread::scope(|scope| -> Step<Option<FileRange>> {
            let start = |side: usize| -> Step<Chunks<'_>> {
                Ok(match sides[side] {
                    Side::Object(object) => {
                        let of = (&*object.path, bytes);
                        let threads = (OBJECT_THREADS, 0);
                        Chunks::Ahead(ReadAhead::start(scope, of, &reads[side], threads)?)
                    }
                    Side::File(opened) => {
                        Chunks::Engine(EngineReads::new(engine, opened.content(), bytes))
                    }
                })
            };
            let mut both = [start(0)?, start(1)?];
            let found = loop {
                if let Some(signal) = stop.requested() {
                    return Err(Stop::Signal(signal));
                }
                let (Some(first), Some(second)) = (both[0].next()?, both[1].next()?) else {
                    break None;
                };
                if let Some(found) = first_difference(first.bytes(), second.bytes()) {
                    let at = |index: usize| first.offset + index as u64;
                    break Some(FileRange::new(at(found.start), at(found.end)));
                }
                observer.moved(first.end() - first.offset);
                observer.reached(first.end());
                both[0].give_back(first);
                both[1].give_back(second);
            };
            totals = both.each_ref().map(Chunks::reads);
            Ok(found)
        });
        for ((watched, file), reads) in watched.into_iter().zip(files).zip(&mut totals) {
            let from = match (watched, file) {
                (Some(watched), Some(file)) => watched.end(file, reads),
                _ => ReadFrom::Server,
            };
            self.places.insert(from);
            self.buffered += reads.buffered;
        }
        found
    }
}

/// The chunks of one side, in order.
enum Chunks<'f> {
    Ahead(ReadAhead),
    Engine(EngineReads<'f>),
}

impl Chunks<'_> {
    fn next(&mut self) -> Step<Option<Chunk>> {
        match self {
            Chunks::Ahead(ahead) => Ok(ahead.next()?),
            Chunks::Engine(reads) => reads.next(),
        }
    }

    fn give_back(&mut self, chunk: Chunk) {
        match self {
            Chunks::Ahead(ahead) => ahead.give_back(chunk),
            Chunks::Engine(reads) => reads.free.push(chunk.memory),
        }
    }

    fn reads(&self) -> RouteTotals {
        match self {
            Chunks::Ahead(_) => RouteTotals::default(),
            Chunks::Engine(reads) => reads.totals.clone(),
        }
    }
}

/// The chunks of a file, by requests of an engine, of which one is in flight ahead of the user.
struct EngineReads<'f> {
    engine: &'f Engine,
    content: &'f dyn Content,
    size: u64,
    /// The chunk in flight is here; the first one is not yet in flight.
    position: u64,
    in_flight: Option<EngineRequest<'f>>,
    free: Vec<IoBuf>,
    totals: RouteTotals,
}

impl<'f> EngineReads<'f> {
    fn new(engine: &'f Engine, content: &'f dyn Content, size: u64) -> EngineReads<'f> {
        let (free, totals) = (Vec::new(), RouteTotals::default());
        EngineReads { engine, content, size, position: 0, in_flight: None, free, totals }
    }

    fn next(&mut self) -> Step<Option<Chunk>> {
        if self.position == self.size {
            return Ok(None);
        }
        let mut read = match self.in_flight.take() {
            Some(read) => read,
            None => self.start()?,
        };
        let mut cx = Context::from_waker(Waker::noop());
        let ended = loop {
            if let Poll::Ready(ended) = Pin::new(&mut read).poll(&mut cx) {
                break ended;
            }
            self.engine.turn(WAIT_SLICE);
        };
        let failed =
            |error| self.stopped(Interruption::Read(pipeline::named(self.content.file(), error)));
        let finished = ended.map_err(|refused| failed(refused.error.into()))?;
        let route = finished.route();
        let read = finished.check_read();
        let memory = finished.into_parts().1;
        let (offset, length) = (self.position, length_at(self.position, self.size));
        let bytes = read.map_err(|error| failed(error.into()))?;
        if bytes < length as u64 {
            return Err(self.stopped(Interruption::SourceChanged));
        }
        let memory = memory.expect("memory comes back from a read that went well");
        self.totals.add(&route);
        self.position += length as u64;
        if self.position < self.size {
            self.in_flight = Some(self.start()?);
        }
        Ok(Some(Chunk { offset, length, memory }))
    }

    fn start(&mut self) -> Step<EngineRequest<'f>> {
        let length = length_at(self.position, self.size);
        // The end of a file is read with the whole block around it: an aligned read is direct.
        let unit = usize::try_from(self.content.file().alignment().offset_read).unwrap_or(1);
        let whole = length.next_multiple_of(unit.max(1));
        let mut memory = match self.free.pop() {
            Some(memory) => memory,
            None => IoBuf::new(whole).map_err(|errno| self.stopped(Interruption::Memory(errno)))?,
        };
        memory.truncate(whole);
        let request = Request::read(self.position, memory);
        Ok(EngineRequest::start(self.engine, self.content.file(), request))
    }

    fn stopped(&self, why: Interruption) -> Stop {
        stopped(why, self.content.path())
    }
}
