//! The small files of a tree and the directories that were left: written, in flight to the device
//! together, and complete once they are flushed. A file gets its name after its flush; a directory
//! its attributes after the names in it, and is flushed then. What waits is bounded, so that a tree
//! of any size fits.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::fd::AsFd;
use std::rc::Rc;

use diopter::Errno;
use diopter_os::limit::open_files_max;

use crate::dir::{Dir, Entry, Inode, SourceKey};
use crate::failure::{Failure, Stop};
use crate::flushes::{self, FlushId, Flushes};
use crate::preserve;
use crate::session::Session;
use crate::small::{self, Alone, DESCRIPTORS_MAX, SMALL_BYTES_MAX, Small};

/// Descriptors of everything that waits for a flush, at most. More make a journal's commit serve
/// more files, and the page cache hold more of them.
const OPEN_MAX: usize = 256;

/// Bytes of all files that wait for a flush, at most.
const BYTES_MAX: u64 = 64 << 20;

/// Descriptors of the process that are not counted here: standard streams, the engine, a file that
/// is copied alone.
const OTHER_DESCRIPTORS: usize = 24;

/// Descriptors of a level: source and target.
const LEVEL_DESCRIPTORS: usize = 2;

/// One flush in this many is waited for at once: a wait for each costs more than it frees.
const WAITS: usize = 8;

/// A file of this size takes longer to copy than the flushes in flight take to complete.
const LARGE_BYTES_MIN: u64 = 32 << 20;

/// A directory that is being filled.
#[derive(Debug)]
pub struct Level {
    pub source: Rc<Dir>,
    pub metadata: Metadata,
    pub target: Rc<Dir>,
    /// Permissions that it gets when it is complete, where the source's are not kept; `None` for
    /// one that existed before.
    pub mode: Option<u32>,
}

/// A file or a directory that waits for its flush.
#[derive(Debug)]
enum Waiting {
    File(Box<Named>),
    Dir(Rc<Dir>),
}

/// A small file, and the names that it gets when it is flushed.
#[derive(Debug)]
struct Named {
    small: Small,
    level: Rc<Level>,
    /// Further names, with the directories that they are in.
    links: Vec<(Entry, Rc<Level>)>,
}

/// Everything of a tree that is written and not durable yet.
pub struct Batch {
    flushes: Flushes,
    /// By the number of the flush.
    waiting: Vec<Option<Waiting>>,
    free: Vec<FlushId>,
    /// The flushes of files that have further names, by their sources.
    linked: BTreeMap<SourceKey, FlushId>,
    /// Directories that were left, until each file in them has its name.
    left: Vec<Rc<Level>>,
    /// Descriptors and bytes in `waiting`.
    descriptors: usize,
    bytes: u64,
    open_files_max: usize,
    buffer: Vec<u8>,
}

impl Batch {
    /// Begins with nothing.
    pub fn new() -> Batch {
        Batch {
            flushes: Flushes::new(flushes::flush),
            waiting: Vec::new(),
            free: Vec::new(),
            linked: BTreeMap::new(),
            left: Vec::new(),
            descriptors: 0,
            bytes: 0,
            open_files_max: usize::try_from(open_files_max()).unwrap_or(usize::MAX),
            buffer: Vec::new(),
        }
    }

    /// Writes a copy of a small file, which gets its name when it is flushed. Returns false for a
    /// file that is to be copied alone. `depth` is the number of levels.
    pub fn add(
        &mut self,
        session: &mut Session<'_>,
        (entry, inode): (&Entry, &Inode),
        (level, depth): (&Rc<Level>, usize),
    ) -> bool {
        if !small::is_small(session.options, inode) {
            return false;
        }
        self.make_room(session, depth, DESCRIPTORS_MAX);
        self.keep_pace(session);
        if session.stop().requested().is_some() {
            return true;
        }
        if self.room(depth) < DESCRIPTORS_MAX {
            return false;
        }
        let target = small::Target {
            entry: Entry::new(&level.target, &entry.name),
            is_in_new_dir: level.mode.is_some(),
        };
        let small = match small::write(session, (entry, inode), target, &mut self.buffer) {
            Ok(small) => small,
            Err(Alone::Simply) => return false,
            Err(Alone::Last) => {
                self.settle(session);
                return false;
            }
        };
        session.pace().pay(small.bytes_read());
        let file = small.share();
        self.descriptors += 1;
        self.bytes += small.size;
        let source = session.keeps_links_of(&small.source).then(|| SourceKey::of(&small.source));
        let named = Named { small, level: Rc::clone(level), links: Vec::new() };
        let id = self.enter(Waiting::File(Box::new(named)));
        self.linked.extend(source.map(|source| (source, id)));
        self.flushes.start(id, file);
        true
    }

    /// Takes another name of a file that waits for its flush. Returns false if there is no such
    /// file.
    pub fn add_link(&mut self, source: &Inode, target: &Entry, level: &Rc<Level>) -> bool {
        let Some(id) = self.linked.get(&SourceKey::of(source.metadata())) else { return false };
        let Some(Waiting::File(named)) = &mut self.waiting[*id] else {
            unreachable!("it is removed together with the file");
        };
        named.links.push((target.clone(), Rc::clone(level)));
        true
    }

    /// Takes a directory that is filled no longer: it gets its attributes, and is flushed, after
    /// its files have their names.
    pub fn leave(&mut self, session: &mut Session<'_>, level: Rc<Level>) {
        self.left.push(level);
        self.finish_left(session);
    }

    /// Waits until so many descriptors may be opened, or nothing waits for a flush.
    pub fn make_room(&mut self, session: &mut Session<'_>, depth: usize, descriptors: usize) {
        while self.flushes.in_flight() > 0
            && (self.room(depth) < descriptors || self.bytes + SMALL_BYTES_MAX > BYTES_MAX)
        {
            let least = self.flushes.in_flight().div_ceil(WAITS);
            self.complete(session, least);
        }
    }

    /// Gives files that are flushed their names before a file of this size is copied alone: they do
    /// not wait for it.
    pub fn publish_before(&mut self, session: &mut Session<'_>, size: u64) {
        if size >= LARGE_BYTES_MIN || session.options.bytes_per_second.is_some() {
            return self.settle(session);
        }
        self.flushes.begin();
        self.complete(session, 0);
    }

    /// Begins all flushes, and completes what has been flushed, without waiting.
    pub fn advance(&mut self, session: &mut Session<'_>) {
        self.flushes.begin();
        self.complete(session, 0);
    }

    /// Waits for the limit on the rate, if there is one. What is written meanwhile is flushed.
    fn keep_pace(&mut self, session: &mut Session<'_>) {
        while !session.pace().is_paid() && session.stop().requested().is_none() {
            if self.flushes.in_flight() > 0 {
                self.complete(session, usize::MAX);
            } else {
                session.pace().wait();
            }
        }
    }

    /// Waits until nothing waits for a flush.
    pub fn settle(&mut self, session: &mut Session<'_>) {
        while self.flushes.in_flight() > 0 {
            self.complete(session, usize::MAX);
        }
    }

    /// Returns how many descriptors may be opened in a tree of this depth.
    fn room(&self, depth: usize) -> usize {
        let levels = LEVEL_DESCRIPTORS * depth + OTHER_DESCRIPTORS;
        let open_max = OPEN_MAX.min(self.open_files_max.saturating_sub(levels));
        open_max.saturating_sub(self.descriptors + LEVEL_DESCRIPTORS * self.left.len())
    }

    fn enter(&mut self, waiting: Waiting) -> FlushId {
        let id = self.free.pop().unwrap_or_else(|| {
            self.waiting.push(None);
            self.waiting.len() - 1
        });
        self.waiting[id] = Some(waiting);
        id
    }

    /// Takes what waits for a flush.
    fn take(&mut self, id: FlushId) -> Waiting {
        let waiting = self.waiting[id].take().expect("a flush completes once");
        self.free.push(id);
        self.descriptors -= 1;
        if let Waiting::File(named) = &waiting {
            self.bytes -= named.small.size;
            self.linked.remove(&SourceKey::of(&named.small.source));
        }
        waiting
    }

    /// Waits for `least` flushes or a moment, and does what follows each that has completed.
    fn complete(&mut self, session: &mut Session<'_>, least: usize) {
        if session.stop().requested().is_some() {
            self.cancel();
        }
        for (id, flushed) in self.flushes.wait(least) {
            match self.take(id) {
                // Its directories may be complete then.
                Waiting::File(named) => publish(session, *named, flushed),
                Waiting::Dir(dir) => {
                    dir.flushed(flushed).unwrap_or_else(|failure| session.note_failure(&failure));
                }
            }
        }
        self.finish_left(session);
    }

    /// Removes the files whose flush has not started. Directories are flushed all the same: there
    /// are names in them.
    fn cancel(&mut self) {
        for id in self.flushes.cancel() {
            match self.take(id) {
                Waiting::File(named) => named.small.discard(),
                Waiting::Dir(dir) => self.flush_dir(dir),
            }
        }
    }

    fn flush_dir(&mut self, dir: Rc<Dir>) {
        let file = dir.share();
        self.descriptors += 1;
        let id = self.enter(Waiting::Dir(dir));
        self.flushes.start(id, file);
    }

    /// Completes the directories in which no file waits for its name.
    fn finish_left(&mut self, session: &mut Session<'_>) {
        for level in std::mem::take(&mut self.left) {
            match Rc::try_unwrap(level) {
                Ok(level) => match set_attributes(session, &level) {
                    Ok(()) => self.flush_dir(level.target),
                    Err(failure) => session.note_failure(&failure),
                },
                Err(level) => self.left.push(level),
            }
        }
    }
}

/// Gives a flushed file its names, unless the run is to end.
fn publish(session: &mut Session<'_>, named: Named, flushed: Result<(), Errno>) {
    let Named { small, level: _level, links } = named;
    if session.stop().requested().is_some() {
        return small.discard();
    }
    let source = small.source.clone();
    if let Err(failure) = small.publish(session, flushed) {
        session.note_failure(&failure);
    }
    for (target, level) in links {
        let path = || Entry::new(&level.source, &target.name).path();
        match session.link(&source, path, &target) {
            Ok(true) => {}
            Ok(false) => {
                let cause = "the copy of the file under its first name failed";
                let remedy = "see the error of that name";
                let failure = Failure::of_rule("linking", &target.path(), cause, remedy);
                session.note_failure(&failure);
            }
            Err(Stop::Failed(failure)) => session.note_failure(&failure),
            Err(Stop::Signal(_) | Stop::Differs(_)) => {}
        }
    }
}

fn set_attributes(session: &mut Session<'_>, level: &Level) -> Result<(), Failure> {
    let Level { source, metadata, target, mode } = level;
    let attributes = (&*target.path(), session.attributes(*mode));
    let lost = preserve::copy(source.as_fd(), metadata, target.as_fd(), attributes)?;
    session.note_lost(&target.path(), &lost);
    Ok(())
}
