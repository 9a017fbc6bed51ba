//! The simulator: seeded latency and faults in virtual time, on simulated media. Deterministic: one
//! thread, own generator, no real time. The same seed gives the same events.

pub mod disk;
pub mod fault;
pub mod null;
pub mod performance;
pub mod servers;

use std::collections::BTreeMap;
use std::time::Duration;

use diopter_os::{
    BioId, BioResult, BioSpec, Errno, Lent, LentOnce, LocalBio, Op, RwFlags, Slab, Span,
};

use crate::backend::{Backend, Capabilities, Completions, LentBio, Wait};
use crate::clock::Nanos;
use crate::error::BackendError;
use crate::prng::Prng;
use crate::units::{align_down, is_aligned, to_u64, to_usize};

pub use disk::{Disk, SimObject, World};
pub use fault::Faults;
use fault::{Effect, Fate};
pub use null::Null;
pub use performance::{Performance, Service};
pub use servers::Servers;

/// The behaviour of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimConfig {
    /// The seed of all randomness.
    pub seed: u64,
    pub depth_max: u32,
    /// Least time of a bio, in nanoseconds.
    pub latency_min_ns: u64,
    /// Random time on top of it, in nanoseconds, which reorders bios.
    pub latency_spread_ns: u64,
    /// Time for each MiB of a bio, in nanoseconds.
    pub mebibyte_ns: u64,
    pub faults: Faults,
    /// The only disk with faults; `None` for all.
    pub faulty: Option<u32>,
}

/// The completion of a bio: time, then order of arrival.
type Due = (u64, u64);

/// The time of a bio that never completes by itself.
const NEVER: u64 = u64::MAX;

struct Event {
    bio: LocalBio,
    effect: Effect,
    /// A buffered write's pages as they were when it started.
    pages: Option<(u64, Vec<u8>)>,
}

pub struct Sim {
    slab: Slab,
    world: World,
    config: SimConfig,
    latency: Prng,
    fates: Prng,
    now: u64,
    arrivals: u64,
    events: BTreeMap<Due, Event>,
    service: Option<Service>,
    servers: Option<Servers>,
}

impl Sim {
    /// Creates a device for the bios of `slab` on the disks of `world`.
    #[must_use]
    pub fn new(slab: &Slab, world: &World, config: SimConfig) -> Sim {
        let prng = Prng::new(config.seed);
        Sim {
            slab: slab.clone(),
            world: world.clone(),
            config,
            latency: prng.fork("latency"),
            fates: prng.fork("faults"),
            // A stamp of 0 means that there is none.
            now: 1,
            arrivals: 0,
            events: BTreeMap::new(),
            service: None,
            servers: None,
        }
    }

    /// Adds channels, bandwidth and a neighbour, on top of the latency of the config.
    #[must_use]
    pub fn with_performance(mut self, performance: Performance) -> Sim {
        self.service = Some(Service::new(performance, self.config.seed));
        self
    }

    /// Puts the disks on servers: those of one share its channels and bandwidth.
    #[must_use]
    pub fn with_servers(mut self, servers: Servers) -> Sim {
        self.servers = Some(servers);
        self
    }

    /// Returns the time that a bio takes, and its end.
    fn fate(&mut self, spec: &BioSpec) -> (u64, Effect) {
        let Some((number, _)) = disk::resolve(spec.object) else {
            return (self.config.latency_min_ns, Effect::Well);
        };
        let Fate { mut effect, mut slow } = self.config.faults.draw(&mut self.fates);
        if self.config.faulty.is_some_and(|faulty| faulty as usize != number) {
            (effect, slow) = (Effect::Well, false);
        }
        let spread = self.latency.below(self.config.latency_spread_ns.saturating_add(1));
        let moves = self.config.mebibyte_ns.saturating_mul(u64::from(spec.length())) >> 20;
        let mut takes = self.config.latency_min_ns + spread + moves;
        let server = self.servers.as_ref().map_or(number, |servers| servers.server_of(number));
        if let Some(service) = &mut self.service {
            let in_flight = u32::try_from(self.events.len() + 1).expect("at most `depth_max`");
            let due = service.due(server, self.now, (u64::from(spec.length()), in_flight));
            takes += due - self.now;
        }
        if let Some(servers) = &self.servers {
            match servers.time(server, takes) {
                Some(time) => takes = time,
                None => return (servers.patience_ns(), Effect::MovesNothing(Errno::ETIMEDOUT)),
            }
        }
        (if slow { takes.saturating_mul(1000) } else { takes }, effect)
    }

    fn start(&mut self, id: BioId) {
        let (takes, effect) = self.fate(&self.slab.spec(id));
        let due = if effect == Effect::Never { NEVER } else { self.now.saturating_add(takes) };
        let bio = self.slab.hold_local(id);
        let pages = self.pages_before(&bio.spec());
        self.events.insert((due, self.arrivals), Event { bio, effect, pages });
        self.arrivals += 1;
    }

    /// Reads the pages of a buffered write, which writes them back whole when it ends: changes of
    /// them meanwhile are lost, as on a real kernel with a dirty page.
    fn pages_before(&self, spec: &BioSpec) -> Option<(u64, Vec<u8>)> {
        let (number, is_buffered) = disk::resolve(spec.object)?;
        let disks = self.world.disks();
        (is_buffered && spec.op == Op::Write)
            .then(|| disks[number].pages(spec.offset, u64::from(spec.length())))
    }

    fn end(&mut self, event: Event) -> (BioId, BioResult) {
        let Event { bio, effect, pages } = event;
        let result = self.perform(&bio, effect, pages);
        bio.finish(result)
    }

    fn perform(
        &mut self,
        bio: &LocalBio,
        effect: Effect,
        pages: Option<(u64, Vec<u8>)>,
    ) -> BioResult {
        let spec = bio.spec();
        let (number, is_buffered) = disk::resolve(spec.object).ok_or(Errno::EBADF)?;
        let mut disks = self.world.disks();
        let disk = &mut disks[number];
        let length = u64::from(spec.length());
        if !spec.op.is_transfer() {
            return match effect {
                Effect::FailsMidway(errno) | Effect::MovesNothing(errno) => Err(errno),
                Effect::NoSpace if !spec.op.is_sync() => Err(Errno::ENOSPC),
                _ => no_transfer(disk, &spec),
            };
        }
        if !is_buffered && !is_aligned_for(disk, bio) {
            return Err(Errno::EINVAL);
        }
        if effect == Effect::TurnsBad {
            disk.turn_bad(spec.offset);
        }
        if disk.is_bad(spec.offset, length) {
            return Err(Errno::EIO);
        }
        if spec.op == Op::Write && (effect == Effect::NoSpace || !disk.fits(spec.offset, length)) {
            return Err(Errno::ENOSPC);
        }
        let moves = match effect {
            Effect::MovesNothing(errno) => return Err(errno),
            Effect::Short | Effect::FailsMidway(_) => {
                let unit = if is_buffered { 1 } else { u64::from(disk.block) };
                let moves = align_down(self.fates.below(length), unit);
                // A read of 0 bytes means the end of the file, which no device reports.
                if spec.op == Op::Read { moves.max(unit.min(length)) } else { moves }
            }
            _ => length,
        };
        let moved = transfer(disk, bio, moves, pages);
        match effect {
            Effect::FailsMidway(errno) => Err(errno),
            _ => Ok(moved),
        }
    }

    /// Returns the next due time within the wait, or the time of the clock after the wait without
    /// one.
    fn next_due(&self, wait: Wait) -> Result<u64, u64> {
        let limit = match wait {
            Wait::Poll => self.now,
            Wait::Block(timeout) => self.now.saturating_add(nanos(timeout)),
        };
        match self.events.first_key_value() {
            Some(((due, _), _)) if *due <= limit && *due != NEVER => Ok((*due).max(self.now)),
            _ => Err(limit),
        }
    }
}

fn no_transfer(disk: &mut Disk, spec: &BioSpec) -> BioResult {
    match spec.op {
        Op::Allocate(length) if !disk.fits(spec.offset, length) => Err(Errno::ENOSPC),
        Op::Allocate(_) => Ok(0),
        Op::SyncData | Op::SyncAll | Op::Read | Op::Write => {
            disk.flush();
            Ok(0)
        }
    }
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

fn is_aligned_for(disk: &Disk, bio: &LocalBio) -> bool {
    let spec = bio.spec();
    let block = u64::from(disk.block);
    is_aligned(spec.offset, block)
        && is_aligned(u64::from(spec.length()), block)
        && is_aligned(to_u64(bio.address_bits()), u64::from(disk.memory))
}

/// Moves the first `moves` bytes of a bio; returns the number of moved bytes.
fn transfer(disk: &mut Disk, bio: &LocalBio, moves: u64, pages: Option<(u64, Vec<u8>)>) -> u32 {
    let spec = bio.spec();
    let moved = if spec.op == Op::Read {
        let data = disk.read(spec.offset, moves);
        bio.fill(0, data);
        to_u64(data.len())
    } else {
        let mut data = vec![0; to_usize(moves)];
        bio.take(0, &mut data);
        if let Some((start, mut pages)) = pages {
            let at = to_usize(spec.offset - start);
            pages[at..at + data.len()].copy_from_slice(&data);
            // Only up to the end of the file: a page's tail past it is not data.
            let end = disk.size().max(spec.offset + moves).min(start + to_u64(pages.len()));
            disk.write(start, &pages[..to_usize(end - start)]);
        } else {
            disk.drop_cached(spec.offset, moves);
            disk.write(spec.offset, &data);
        }
        if spec.flags.has(RwFlags::DSYNC) || spec.flags.has(RwFlags::SYNC) {
            disk.write_through(spec.offset, moves);
        }
        moves
    };
    u32::try_from(moved).expect("at most the bio's length")
}

impl Backend for Sim {
    fn capabilities(&self) -> Capabilities {
        Capabilities { name: "sim", depth_max: self.config.depth_max }
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        let room = self.config.depth_max as usize - self.events.len();
        for id in ids.iter().take(room) {
            self.start(*id);
        }
        u32::try_from(ids.len().min(room)).expect("at most `depth_max`")
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        match self.next_due(wait) {
            Ok(due) => self.now = due,
            Err(limit) => {
                // Time passes only while there is something to wait for.
                self.now = if self.events.is_empty() { self.now } else { limit };
                return Ok(());
            }
        }
        while let Some(entry) = self.events.first_entry() {
            if entry.key().0 > self.now {
                break;
            }
            let event = entry.remove();
            let ended = self.end(event);
            done.push(ended);
        }
        Ok(())
    }

    /// A synchronous call always returns, so `never` is not drawn here.
    fn run_now(&mut self, id: BioId) -> BioResult {
        let (takes, effect) = self.fate(&self.slab.spec(id));
        let effect = if effect == Effect::Never { Effect::Well } else { effect };
        let bio = self.slab.hold_local(id);
        let pages = self.pages_before(&bio.spec());
        self.now = self.now.saturating_add(takes);
        self.end(Event { bio, effect, pages }).1
    }

    /// Goes through the slab like any other bio, so that it meets the same faults.
    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        let LentBio { object, offset, flags, memory } = bio;
        let length = u32::try_from(memory.length()).map_err(|_| Errno::EINVAL)?;
        let (op, lent) = match memory {
            LentOnce::Fill(range) => (Op::Read, Lent::Fill(range)),
            LentOnce::Take(range) => (Op::Write, Lent::Take(range)),
        };
        let slab = self.slab.clone();
        let run = |sim: &mut Sim, memory| {
            let span = Some(Span::new(memory, 0, length));
            let id = slab.build(BioSpec { op, object, offset, span, flags });
            let id = id.ok_or(Errno::EAGAIN)?;
            let result = sim.run_now(id);
            slab.retire(id);
            result
        };
        slab.lend(lent, self, run, |_| false).map_err(|_full| Errno::EAGAIN)?
    }

    fn held(&self) -> u32 {
        u32::try_from(self.events.len()).expect("at most `depth_max`")
    }

    /// Cancels a bio that never completes by itself: at random before or after it reached the
    /// media.
    fn cancel(&mut self, id: BioId) {
        let found = self.events.iter().find(|(due, event)| event.bio.id() == id && due.0 == NEVER);
        let Some(key) = found.map(|(key, _)| *key) else { return };
        let mut event = self.events.remove(&key).expect("found above");
        let reached = self.fates.one_in(2);
        event.effect = if reached {
            Effect::FailsMidway(Errno::ECANCELED)
        } else {
            Effect::MovesNothing(Errno::ECANCELED)
        };
        self.events.insert((self.now, key.1), event);
    }

    fn now(&self) -> Nanos {
        Nanos(self.now)
    }
}
