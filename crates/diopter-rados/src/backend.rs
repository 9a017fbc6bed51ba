//! The engine's backend for objects of a cluster. A bio is moved to and from its own memory, with
//! one operation for each object that it touches. Writes are durable when they complete.

mod object;
mod sizer;

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use diopter_core::backend::{Backend, Capabilities, Completions, LentBio, Register, Wait};
use diopter_core::engine::Engine;
use diopter_core::error::BackendError;
use diopter_core::limits::{TEARDOWN_WAIT_MAX, WAIT_SLICE};
use diopter_core::policy::Policies;
use diopter_os::{
    BioId, BioResult, Errno, EventFd, FinishedBio, HeldBio, LentOnce, Op, RwFlags, Slab,
};

use object::{Need, Source};
pub use object::{Object, columns, target, target_of_objects};
use sizer::Sizer;

use crate::error::{Error, ErrorKind};
use crate::loader::{Transferred, Transfers};
use crate::striper::File;

/// Moves the bios of one slab.
pub struct Rados {
    slab: Slab,
    depth_max: u32,
    held: u32,
    transfers: Transfers,
    /// Finished bios, for the next turn.
    over: Vec<FinishedBio>,
    /// Bios that wait for the size of their file to be known or raised.
    waiting: HashMap<Key, Waiting>,
    /// The files, by their addresses, whose locks must be renewed before more is sent.
    renewals: HashSet<usize>,
    /// `None` until a bio waits.
    sizer: Option<Sizer>,
}

/// The address of a file, and the purpose of a question about it: a read does not fail because a
/// size could not be raised.
type Key = (usize, Purpose);

/// The purpose of a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Purpose {
    /// The size for reads.
    Read,
    /// The size raised for writes.
    Write,
    /// A lock that is held for long enough to send more parts of writes.
    Renewal,
}

/// The bios of a file whose size is being asked for, or those for which it is being raised. There
/// is one such question at a time; those that come meanwhile share the next one.
struct Waiting {
    file: Arc<File>,
    asked: Vec<HeldBio>,
    next: Vec<HeldBio>,
}

/// Creates an engine that serves [`target`]s of objects.
///
/// # Errors
/// Fails if the process has no descriptor left.
pub fn engine(policies: Policies) -> Result<Engine, Error> {
    let slab = Engine::slab();
    let backend = Rados::new(&slab, slab.shape().bios)?;
    Ok(Engine::on_backend(slab, Box::new(backend), policies))
}

impl Rados {
    /// Creates a backend for the bios of `slab`, of which it takes `depth_max` at once.
    ///
    /// # Errors
    /// Fails if the process has no descriptor left.
    pub fn new(slab: &Slab, depth_max: u32) -> Result<Rados, Error> {
        Ok(Rados {
            slab: slab.clone(),
            depth_max,
            held: 0,
            transfers: Transfers::new()?,
            over: Vec::new(),
            waiting: HashMap::new(),
            renewals: HashSet::new(),
            sizer: None,
        })
    }

    /// Starts a bio, unless that ends it.
    fn start(&mut self, bio: HeldBio, source: &Source) {
        let spec = bio.spec();
        let unsupported = RwFlags::APPEND.with(RwFlags::ATOMIC);
        let at_once = match spec.op {
            // Each write is durable already.
            Op::SyncData | Op::SyncAll => Some(Ok(0)),
            Op::Allocate(_) => Some(Err(Errno::EOPNOTSUPP)),
            Op::Read | Op::Write if spec.flags.without(unsupported) != spec.flags => {
                Some(Err(Errno::EOPNOTSUPP))
            }
            Op::Read | Op::Write => None,
        };
        if let Some(result) = at_once {
            return self.over.push(bio.finish(result));
        }
        match source.need(&spec) {
            Ok(Need::Ready(size)) => self.transfers.start(bio, source.bytes(&spec, size)),
            Ok(Need::Size(file)) => self.ask(&file, bio),
            Err(errno) => self.over.push(bio.finish(Err(errno))),
        }
    }

    /// Lets a bio wait for the size of its file.
    fn ask(&mut self, file: &Arc<File>, bio: HeldBio) {
        let is_write = bio.spec().op == Op::Write;
        let key = (address(file), if is_write { Purpose::Write } else { Purpose::Read });
        let waiting = self.waiting.entry(key).or_insert_with(|| Waiting {
            file: Arc::clone(file),
            asked: Vec::new(),
            next: Vec::new(),
        });
        waiting.next.push(bio);
    }

    /// Asks for the sizes that bios wait for, one question for each file.
    fn send_questions(&mut self) {
        for (key, waiting) in &mut self.waiting {
            if !waiting.asked.is_empty() || waiting.next.is_empty() {
                continue;
            }
            waiting.asked = std::mem::take(&mut waiting.next);
            let ends = waiting.asked.iter().map(|bio| {
                let object = self.slab.object(bio.id());
                object.and_then(|object| Some(object.as_remote::<Source>()?.end(&bio.spec())))
            });
            // The size that the furthest one needs is enough for all.
            let end = ends.flatten().max().unwrap_or(0);
            let sizer = self.sizer.get_or_insert_with(|| Sizer::new(self.transfers.waker()));
            sizer.ask(*key, Arc::clone(&waiting.file), end);
        }
    }

    /// Starts the bios whose size is known now; returns true if there are any.
    fn take_replies(&mut self) -> bool {
        let mut has_some = false;
        while let Some((key, reply)) = self.sizer.as_mut().and_then(Sizer::take) {
            has_some = true;
            if key.1 == Purpose::Renewal {
                self.renewals.remove(&key.0);
                continue;
            }
            let Some(waiting) = self.waiting.get_mut(&key) else { continue };
            let asked = std::mem::take(&mut waiting.asked);
            if waiting.next.is_empty() {
                self.waiting.remove(&key);
            }
            for bio in asked {
                let object = self.slab.object(bio.id());
                let source = object.as_ref().and_then(|object| object.as_remote::<Source>());
                let source = source.expect("only those of files wait");
                match &reply {
                    Ok(size) => {
                        let bytes = source.bytes(&bio.spec(), *size);
                        self.transfers.start(bio, bytes);
                    }
                    Err(error) => {
                        let errno = source.errno_of(error);
                        self.over.push(bio.finish(Err(errno)));
                    }
                }
            }
        }
        self.send_questions();
        has_some
    }

    /// Sends parts of what has started, as far as the connection has room.
    fn send(&mut self) {
        let (slab, mut held_up) = (&self.slab, Vec::new());
        self.transfers.send(|bio, bytes| {
            let object = slab.object(bio.id());
            let source = object.as_ref().and_then(|it| it.as_remote::<Source>());
            let part = source.ok_or(Errno::EBADF).and_then(|it| it.part(&bio.spec(), bytes));
            if let (Ok(None), Some(file)) = (&part, source.and_then(Source::file)) {
                held_up.push(Arc::clone(file));
            }
            part.map_err(|errno| -errno.raw())
        });
        for file in held_up {
            if self.renewals.insert(address(&file)) {
                let sizer = self.sizer.get_or_insert_with(|| Sizer::new(self.transfers.waker()));
                sizer.ask((address(&file), Purpose::Renewal), file, 0);
            }
        }
    }

    /// Ends the bios that were transferred.
    fn take_transferred(&mut self) {
        while let Some(transferred) = self.transfers.take() {
            let object = self.slab.object(transferred.bio.id());
            let source = object.as_ref().and_then(|it| it.as_remote::<Source>());
            let finished = match source {
                Some(source) => finish(source, transferred),
                None => transferred.bio.finish(Err(Errno::EBADF)),
            };
            self.over.push(finished);
        }
    }

    /// Ends what has completed, and starts what could not start before.
    fn collect(&mut self) {
        loop {
            // This takes the signal of a reply as well, so that replies are looked at after it.
            self.take_transferred();
            let has_replies = self.take_replies();
            self.send();
            if !has_replies && !self.transfers.has_over() {
                return;
            }
        }
    }

    /// Advances everything, and hands over the finished bios.
    fn advance(&mut self, done: &mut Completions) {
        self.collect();
        for finished in self.over.drain(..) {
            done.push(self.slab.give_back(finished));
            self.held -= 1;
        }
    }

    /// Takes a bio in. Its completion is not reported before the next turn.
    fn take_in(&mut self, id: BioId) {
        let object = self.slab.object(id);
        let bio = self.slab.hold_for_thread(id);
        match object.as_ref().and_then(|object| object.as_remote::<Source>()) {
            Some(source) => self.start(bio, source),
            None => self.over.push(bio.finish(Err(Errno::EBADF))),
        }
    }
}

fn address(file: &Arc<File>) -> usize {
    Arc::as_ptr(file).addr()
}

/// Ends a bio of which no part is in flight.
fn finish(source: &Source, transferred: Transferred) -> FinishedBio {
    let Transferred { mut bio, bytes, is_sent, missing, failure } = transferred;
    let spec = bio.spec();
    let is_write = spec.op == Op::Write;
    // Without the lock another client may have removed objects meanwhile. It is unknown whether
    // what was written is there, as after a write without a reply.
    let failure = match failure {
        _ if is_sent && source.prove().is_err() => {
            Some(if is_write { Errno::ETIMEDOUT } else { Errno::ESTALE })
        }
        code => code.map(|code| Errno::from_raw(code.saturating_neg())),
    };
    if let Some(errno) = failure {
        if is_write && matches!(errno, Errno::ETIMEDOUT | Errno::ESHUTDOWN) {
            source.note_unknown(errno);
        }
        return bio.finish(Err(errno));
    }
    if is_write {
        source.note_written(&spec);
        return bio.finish(Ok(spec.length()));
    }
    let first_missing = missing.iter().map(|bytes| bytes.start).min();
    let moved = source.bytes_read(bytes, first_missing);
    for bytes in missing.into_iter().filter(|bytes| bytes.start < moved) {
        bio.fill_zeros(bytes);
    }
    bio.finish(u32::try_from(moved).map_err(|_| Errno::EOVERFLOW))
}

/// The errno of what failed before a bio was sent.
fn errno_of(error: &Error) -> Errno {
    match (error.kind(), error.errno()) {
        (_, Some(libc::ESHUTDOWN)) => Errno::ESHUTDOWN,
        _ if error.is_unknown() => Errno::ETIMEDOUT,
        (ErrorKind::Lease, _) => Errno::ENOLCK,
        (_, Some(number)) => Errno::from_raw(number),
        (ErrorKind::Damaged, None) => Errno::EUCLEAN,
        _ => Errno::EBADF,
    }
}

impl Backend for Rados {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "rados", depth_max: self.depth_max }
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let room = self.depth_max - self.held;
        let accepted = u32::try_from(ids.len()).unwrap_or(u32::MAX).min(room);
        for id in &ids[..accepted as usize] {
            self.take_in(*id);
        }
        self.held += accepted;
        self.send_questions();
        self.send();
        if !self.over.is_empty() || self.transfers.has_over() {
            self.transfers.waker().wake();
        }
        accepted
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        let before = done.len();
        self.advance(done);
        if let Wait::Block(time) = wait
            && self.held > 0
            && done.len() == before
        {
            self.transfers.wait(time);
            self.advance(done);
        }
        Ok(())
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.take_in(id);
        self.send_questions();
        loop {
            self.collect();
            if let Some(place) = self.over.iter().position(|finished| finished.id() == id) {
                let finished = self.over.swap_remove(place);
                if !self.over.is_empty() {
                    // The next turn has them.
                    self.transfers.waker().wake();
                }
                return self.slab.give_back(finished).1;
            }
            // The cluster's time limit for an operation bounds the wait.
            self.transfers.wait(WAIT_SLICE);
        }
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        let Some(source) = bio.object.as_remote::<Source>() else { return Err(Errno::EBADF) };
        let unsupported = RwFlags::APPEND.with(RwFlags::ATOMIC);
        if bio.flags.without(unsupported) != bio.flags {
            return Err(Errno::EOPNOTSUPP);
        }
        let moved = match bio.memory {
            LentOnce::Fill(buffer) => source.read_now(bio.offset, buffer)?,
            LentOnce::Take(bytes) => source.write_now(bio.offset, bytes)?,
        };
        u32::try_from(moved).map_err(|_| Errno::EOVERFLOW)
    }

    fn held(&self) -> u32 {
        self.held
    }

    /// An operation ends by itself, or by the cluster's time limit.
    fn cancel(&mut self, _id: BioId) {}

    fn register(&mut self, what: Register<'_, '_>) -> Result<(), Errno> {
        match what {
            Register::Notify(event) => {
                let is_first = self.transfers.signal_also(EventFd::of(event)?);
                if is_first { Ok(()) } else { Err(Errno::EBUSY) }
            }
            Register::File(_) | Register::Buffers(_) | Register::Arena(_) => Err(Errno::EOPNOTSUPP),
            Register::Forget(_) => Ok(()),
        }
    }
}

impl Drop for Rados {
    /// Waits for what is in flight. A bio that librados keeps for longer stays held: the slab keeps
    /// its memory.
    fn drop(&mut self) {
        let (mut done, begin) = (Vec::new(), Instant::now());
        loop {
            self.advance(&mut done);
            let left = TEARDOWN_WAIT_MAX.saturating_sub(begin.elapsed());
            if self.held == 0 || left.is_zero() {
                break;
            }
            self.transfers.wait(left.min(WAIT_SLICE));
        }
        // Their slab keeps their files open for ever.
        let waiting = self.waiting.values().flat_map(|it| it.asked.iter().chain(&it.next));
        for bio in self.transfers.bios().chain(waiting) {
            let object = self.slab.object(bio.id());
            if let Some(source) = object.as_ref().and_then(|it| it.as_remote::<Source>()) {
                source.give_up();
            }
        }
    }
}
