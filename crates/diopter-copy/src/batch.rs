//! The small files of a tree and the directories that were left: written, in flight to the device
//! together, and complete once they are flushed. A file gets its name after its flush; a directory
//! its attributes after the names in it, and is flushed then. What waits is bounded, so that a tree
//! of any size fits.

use std::collections::BTreeMap;
use std::fs::Metadata;
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;

use diopter::Errno;
use diopter_os::limit::open_files_max;

use crate::dir::{Dir, Entry, Inode, SourceKey, id_of};
use crate::failure::{Failure, Step, Stop};
use crate::file;
use crate::flushes::{self, Alone, FlushId, Flushed, Flushes, Item};
use crate::options::{Follow, Options};
use crate::place::Destination;
use crate::preserve;
use crate::session::Session;
use crate::small::{self, DESCRIPTORS, Published, SMALL_BYTES_MAX, Small, Written};
use crate::source::Found;
use crate::stop::StopFlag;
use crate::together::Together;

/// Descriptors of everything that waits for a flush, at most. More make a journal's commit serve
/// more files, and the page cache hold more of them.
const OPEN_MAX: usize = 1536;

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
    /// Its bytes count for the limit on the rate.
    is_paid: bool,
}

/// A file that is copied alone: the thread has left it, or it got no name.
#[derive(Debug)]
struct LeftAlone {
    why: Alone,
    source: Metadata,
    target: Entry,
    level: Rc<Level>,
    links: Vec<(Entry, Rc<Level>)>,
}

/// Everything of a tree that is written and not durable yet.
pub struct Batch {
    options: Arc<Options>,
    flushes: Flushes<Written>,
    together: Together,
    /// The number of the file system of the flushes that begin next.
    group_device: Option<u64>,
    /// The system has refused to give a file without a name one.
    is_link_refused: bool,
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
    /// Files that are copied alone next.
    left_alone: Vec<LeftAlone>,
    /// The last file shares its blocks with its source: none of its bytes was read.
    shares_blocks: bool,
}

impl Batch {
    /// Begins with nothing.
    pub fn new(options: &Options, stop: &StopFlag) -> Batch {
        Batch {
            options: Arc::new(options.clone()),
            flushes: Flushes::new(flushes::flush, stop.clone()),
            together: Together::new(options.flush),
            group_device: None,
            is_link_refused: false,
            waiting: Vec::new(),
            free: Vec::new(),
            linked: BTreeMap::new(),
            left: Vec::new(),
            descriptors: 0,
            bytes: 0,
            open_files_max: usize::try_from(open_files_max()).unwrap_or(usize::MAX),
            left_alone: Vec::new(),
            shares_blocks: false,
        }
    }

    /// Begins the copy of a small file, which gets its name when it is flushed. Returns false for a
    /// file that is to be copied alone. `depth` is the number of levels.
    pub fn add(
        &mut self,
        session: &mut Session<'_>,
        (entry, inode): (&Entry, &Arc<Inode>),
        (level, depth): (&Rc<Level>, usize),
    ) -> bool {
        if !small::is_small(session.options, inode) {
            return false;
        }
        self.make_room(session, depth, DESCRIPTORS);
        self.keep_pace(session);
        if session.stop().requested().is_some() {
            return true;
        }
        if self.room(depth) < DESCRIPTORS {
            return false;
        }
        self.open_group(&level.target);
        let is_in_new_dir = level.mode.is_some();
        let target = small::Target {
            entry: Entry::new(&level.target, &entry.name),
            is_in_new_dir,
            may_be_nameless: is_in_new_dir
                && !self.is_link_refused
                && self.together.may_be_nameless(&level.target),
            is_written_back: !self.flushes.is_group_together(),
        };
        let (small, fill) = match small::begin(session, (inode, &self.options), target) {
            Ok(begun) => begun,
            Err(Alone::Simply) => return false,
            Err(Alone::Last) => {
                self.settle(session);
                return false;
            }
        };
        let size = inode.metadata().len();
        if !self.shares_blocks {
            session.pace().pay(size);
        }
        let file = small.share();
        self.descriptors += DESCRIPTORS;
        self.bytes += size;
        let source = session.keeps_links_of(&small.source).then(|| SourceKey::of(&small.source));
        let is_paid = !self.shares_blocks;
        let named = Named { small, level: Rc::clone(level), links: Vec::new(), is_paid };
        let id = self.enter(Waiting::File(Box::new(named)));
        self.linked.extend(source.map(|source| (source, id)));
        self.flushes.start(id, Item::File(fill), file);
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

    /// Sees to it that the flushes that begin next may include those of files in a directory, of
    /// which none is written yet.
    fn open_group(&mut self, dir: &Dir) {
        let device = dir.id().0;
        if self.flushes.is_group_empty() || self.group_device != Some(device) {
            let is_possible = self.flushes.may_be_together();
            let point = if is_possible { self.together.point(dir, self.bytes) } else { None };
            self.flushes.open_group(point);
            self.group_device = Some(device);
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
            self.descriptors -= DESCRIPTORS - 1;
            self.bytes -= named.small.source.len();
            self.linked.remove(&SourceKey::of(&named.small.source));
        }
        waiting
    }

    /// Waits for `least` flushes or a moment, and does what follows each that has completed.
    fn complete(&mut self, session: &mut Session<'_>, least: usize) {
        if session.stop().requested().is_some() {
            self.cancel(session);
        }
        for Flushed { id, written, flushed } in self.flushes.wait(least) {
            match (self.take(id), written) {
                // Its directories may be complete then.
                (Waiting::File(named), Some(Ok(written))) => {
                    self.shares_blocks = written.is_unread();
                    if !named.is_paid {
                        session.pace().pay(written.bytes_read());
                    }
                    if let Some((left, why)) = publish(session, *named, (written, flushed)) {
                        self.is_link_refused |= why == Published::LinkRefused;
                        self.left_alone.push(left);
                    }
                }
                (Waiting::File(named), Some(Err(why))) => {
                    let Named { small, level, links, .. } = *named;
                    let (source, target) = (small.source.clone(), small.target.clone());
                    small.discard();
                    self.left_alone.push(LeftAlone { why, source, target, level, links });
                }
                (Waiting::File(_), None) => unreachable!("a file is written"),
                (Waiting::Dir(dir), _) => {
                    dir.flushed(flushed).unwrap_or_else(|failure| session.note_failure(&failure));
                }
            }
        }
        session.counts.file_system_flushes += self.flushes.take_file_systems();
        self.copy_alone(session);
        self.finish_left(session);
    }

    fn copy_alone(&mut self, session: &mut Session<'_>) {
        for left in std::mem::take(&mut self.left_alone) {
            if left.why == Alone::Last {
                self.settle(session);
            }
            if session.stop().requested().is_none() {
                let copied = copy_alone(session, &left);
                session.note(copied);
                add_links(session, &left.source, left.links);
            }
        }
    }

    /// Removes the files whose flush has not started. Directories are flushed all the same: there
    /// are names in them.
    fn cancel(&mut self, session: &Session<'_>) {
        for id in self.flushes.cancel() {
            match self.take(id) {
                Waiting::File(named) => named.small.discard(),
                Waiting::Dir(dir) => self.flush_dir(session, dir),
            }
        }
    }

    fn flush_dir(&mut self, session: &Session<'_>, dir: Rc<Dir>) {
        // No flush of a file system begins after a signal.
        if session.stop().requested().is_none() {
            self.open_group(&dir);
        }
        let file = dir.share();
        self.descriptors += 1;
        let id = self.enter(Waiting::Dir(dir));
        self.flushes.start(id, Item::Dir, file);
    }

    /// Completes the directories in which no file waits for its name.
    fn finish_left(&mut self, session: &mut Session<'_>) {
        for level in std::mem::take(&mut self.left) {
            match Rc::try_unwrap(level) {
                Ok(level) => match set_attributes(session, &level) {
                    Ok(()) => self.flush_dir(session, level.target),
                    Err(failure) => session.note_failure(&failure),
                },
                Err(level) => self.left.push(level),
            }
        }
    }
}

/// Gives a flushed file its names, unless the run is to end. Returns a file that is copied alone,
/// and why.
fn publish(
    session: &mut Session<'_>,
    named: Named,
    written: (Written, Result<(), Errno>),
) -> Option<(LeftAlone, Published)> {
    let Named { small, level, links, .. } = named;
    if session.stop().requested().is_some() {
        small.discard();
        return None;
    }
    let (source, target) = (small.source.clone(), small.target.clone());
    let path = || Entry::new(&level.source, &target.name).path();
    let published = small.publish(session, &path, written);
    if let Ok(why @ (Published::Alone | Published::LinkRefused)) = published {
        return Some((LeftAlone { why: Alone::Simply, source, target, level, links }, why));
    }
    session.note(published.map(|_| ()));
    add_links(session, &source, links);
    None
}

/// Gives a file that was copied its further names.
fn add_links(session: &mut Session<'_>, source: &Metadata, links: Vec<(Entry, Rc<Level>)>) {
    for (target, level) in links {
        let path = || Entry::new(&level.source, &target.name).path();
        match session.link(source, path, &target) {
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

fn copy_alone(session: &mut Session<'_>, left: &LeftAlone) -> Step<()> {
    let LeftAlone { source, target, level, .. } = left;
    let entry = Entry::new(&level.source, &target.name);
    let found = match session.options.follow {
        Follow::Always => entry.follow().ok(),
        Follow::Usual | Follow::Never | Follow::Named => entry.look()?,
    };
    let found = found.filter(|found| found.id() == id_of(source));
    let inode = found.ok_or_else(|| entry.is_replaced("copying"))?;
    let path = entry.path();
    let found = Found { inode: &inode, entry: Some(&entry), path: &path };
    file::copy(session, found, Destination::Inside(target.clone()))
}

fn set_attributes(session: &mut Session<'_>, level: &Level) -> Result<(), Failure> {
    let Level { source, metadata, target, mode } = level;
    let attributes = (&*target.path(), session.attributes(*mode));
    let lost = preserve::copy(source.as_fd(), metadata, target.as_fd(), attributes)?;
    session.note_lost(&target.path(), &lost);
    Ok(())
}
