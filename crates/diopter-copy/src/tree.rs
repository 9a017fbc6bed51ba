//! `dio cp -r`: the directories, links and nodes of a tree. Both trees are walked by descriptor:
//! nothing outside them is read or written, whatever another process renames or replaces. Only with
//! [`Follow::Always`] is something outside read: what a link leads to.

use std::ffi::OsStr;
use std::fs::Metadata;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use diopter::Errno;
use diopter_layouts::layout::MANIFEST_BYTES_MAX;

use crate::batch::{Batch, Level};
use crate::chattr;
use crate::dir::{Dir, Entry, Inode, Renaming};
use crate::failure::{Failure, Step, Stop};
use crate::file;
use crate::observer::Notice;
use crate::options::{Follow, Options, WhenThere};
use crate::place::Destination;
use crate::preserve;
use crate::session::Session;
use crate::source::Found;
use crate::temporary;
use crate::walk::{Event, Walk};

/// Permission bits that a new directory has of its source without `--preserve=mode`: those that
/// mkdir(2) takes.
const MODE_OF_DIRECTORY: u32 = 0o1777;

/// Descriptors that a directory needs while it is entered.
const DIRECTORY_DESCRIPTORS: usize = 6;

/// A bit that a directory inherits from the one that it is made in.
const SET_GROUP_ID: u32 = 0o2000;

/// The copy of one tree.
struct Tree<'s, 'a> {
    session: &'s mut Session<'a>,
    walk: Walk,
    levels: Vec<Rc<Level>>,
    batch: Batch,
}

/// Copies a directory and its content.
pub fn copy(session: &mut Session<'_>, source: Rc<Dir>, destination: Destination) -> Step<()> {
    let parent = match &destination {
        Destination::Named(entry) | Destination::Inside(entry) => Rc::clone(&entry.dir),
        Destination::Itself(dir) => Rc::clone(dir),
    };
    let options = session.options;
    let walk = Walk::of_names(options.follow == Follow::Always, &options.exclude);
    let batch = Batch::new(options, session.stop());
    let mut tree = Tree { session, walk, levels: Vec::new(), batch };
    tree.enter(source, destination)?;
    let mut ended = None;
    while let Some(event) = tree.walk.step() {
        let done = match event {
            Event::Found(entry, inode) => tree.copy_entry(&entry, &Arc::new(inode)),
            Event::Left => {
                tree.leave();
                Ok(())
            }
            Event::Failed(failure) => Err(failure.into()),
        };
        ended = tree.session.note(done);
        if ended.is_some() {
            break;
        }
    }
    // Each directory that was made gets its permissions, however the walk ended.
    while !tree.levels.is_empty() {
        tree.leave();
    }
    tree.batch.settle(tree.session);
    ended = ended.or(tree.session.stop().requested());
    let flushed = parent.flush();
    match ended {
        Some(signal) => Err(Stop::Signal(signal)),
        None => Ok(flushed?),
    }
}

/// Returns true if a file is left out because it comes with its striped file.
pub fn leave_out(session: &mut Session<'_>, inode: &Inode, path: impl Fn() -> PathBuf) -> bool {
    let is_object = inode.metadata().is_file() && session.objects.has(inode.id());
    if is_object {
        session.objects.leave_out(inode.id(), path());
    }
    is_object
}

/// Reports the first manifest that is copied as a plain file, as those of trees are.
pub fn note_layout(session: &mut Session<'_>, inode: &Inode, path: impl Fn() -> PathBuf) {
    let sizes = 1..=MANIFEST_BYTES_MAX;
    let options = session.options;
    let is_plain = options.recursive && !options.striped;
    let may_be = inode.metadata().is_file() && sizes.contains(&inode.metadata().len());
    if may_be && is_plain && !session.has_noted_layout && inode.is_manifest() {
        session.has_noted_layout = true;
        session.observer().notice(Notice::LayoutNotKept { source: &path() });
    }
}

impl Tree<'_, '_> {
    fn copy_entry(&mut self, entry: &Entry, inode: &Arc<Inode>) -> Step<()> {
        let is_temporary_name = temporary::is_usual_name(&entry.name);
        if is_temporary_name {
            // A file that waits for its flush may have this name in the target until then.
            self.batch.settle(self.session);
        }
        let depth = self.levels.len();
        let level = self.levels.last().expect("the walk is in a directory");
        let target = Entry::new(&level.target, &entry.name);
        let destination = Destination::Inside(target.clone());
        let metadata = inode.metadata();
        if metadata.is_dir() {
            if self.session.options.follow == Follow::Always && !entry.is(inode.id()) {
                // A link may lead into the target, where files that wait for their flush have the
                // names of temporaries.
                self.batch.settle(self.session);
            }
            return self.enter(self.walk.open_dir(entry, inode)?, destination);
        }
        if leave_out(self.session, inode, || entry.path()) {
            return Ok(());
        }
        if keeps(self.session, level, &destination, metadata)? {
            self.session.skip(if metadata.is_file() { metadata.len() } else { 0 });
            return Ok(());
        }
        note_layout(self.session, inode, || entry.path());
        if self.batch.add_link(inode, &target, level)
            || self.session.link(metadata, || entry.path(), &target)?
            || !is_temporary_name && self.batch.add(self.session, (entry, inode), (level, depth))
        {
            Ok(())
        } else if metadata.is_file() {
            self.batch.publish_before(self.session, metadata.len());
            let path = entry.path();
            let found = Found { inode, entry: Some(entry), path: &path };
            file::copy(self.session, found, destination)
        } else {
            copy_other(self.session, inode, &entry.path(), destination, &|| entry.follow())
        }
    }

    /// Makes a directory, or takes the existing one, to be filled next.
    fn enter(&mut self, source: Rc<Dir>, destination: Destination) -> Step<()> {
        let is_target = |level: &Rc<Level>| level.target.id() == source.id();
        if self.levels.iter().any(is_target) {
            return Err(is_own_target(&source.path()).into());
        }
        self.batch.make_room(self.session, self.levels.len(), DIRECTORY_DESCRIPTORS);
        let metadata = source.metadata()?;
        let Made { target, mode, .. } = make(self.session, &metadata, destination, |_| false)?;
        let is_on_first =
            self.levels.first().is_none_or(|first| first.source.id().0 == source.id().0);
        self.session.counts.dirs += 1;
        self.session.begin_dir(&target);
        let level = Level { source: Rc::clone(&source), metadata, target, mode };
        self.levels.push(Rc::new(level));
        if self.session.options.one_file_system && !is_on_first {
            // The directory of a mount point is copied without what is mounted there.
            self.leave();
            return Ok(());
        }
        self.walk.enter(source);
        Ok(())
    }

    /// Leaves the directory that was entered last, in which nothing more is written.
    fn leave(&mut self) {
        let Some(level) = self.levels.pop() else { return };
        self.session.end_dir();
        self.batch.leave(self.session, level);
    }
}

/// A directory of the target.
pub struct Made {
    pub target: Rc<Dir>,
    /// True if it did not exist.
    pub is_new: bool,
    /// Permissions that it gets when it is complete; `None` for one that keeps those it has.
    pub mode: Option<u32>,
}

/// Makes a directory of the target, or takes the existing one. One that is `unfinished`, of an
/// earlier run, gets permissions as a new one does.
pub fn make(
    session: &Session<'_>,
    source: &Metadata,
    destination: Destination,
    unfinished: impl Fn(&Metadata) -> bool,
) -> Result<Made, Failure> {
    let entry = match destination {
        Destination::Itself(target) => return Ok(Made { target, is_new: false, mode: None }),
        Destination::Named(entry) | Destination::Inside(entry) => entry,
    };
    let made = entry.make_or_open();
    let (target, is_new) = made.map_err(|failure| chattr::explained(&entry, failure))?;
    let found = target.metadata()?;
    let gets_mode = is_new || unfinished(&found);
    let usual = source.mode() & MODE_OF_DIRECTORY;
    let inherited = found.mode() & SET_GROUP_ID;
    let mode = || session.new_mode(&entry.dir, usual, 0o777) | inherited;
    Ok(Made { target, is_new, mode: gets_mode.then(mode) })
}

/// The failure of a directory that is the target of a directory above it.
pub fn is_own_target(path: &Path) -> Failure {
    let cause = "it is the target, which came to be in the source";
    Failure::of_rule("copying", path, cause, "choose a target outside")
}

/// Returns true if something has the name of a file or a link, and stays.
pub fn keeps(
    session: &Session<'_>,
    level: &Level,
    destination: &Destination,
    source: &Metadata,
) -> Step<bool> {
    let when = session.options.existing;
    // Nothing is in a directory that this run made.
    if when == WhenThere::Replace || level.mode.is_some() {
        return Ok(false);
    }
    if source.is_file() && session.options.striped {
        // It may be striped: decided where it is opened.
        return Ok(false);
    }
    let Destination::Inside(target) = destination else { return Ok(false) };
    let found = target.look()?;
    let stays = found.is_some_and(|found| stays(when, found.metadata(), source));
    if stays {
        target.refuse_other_name()?;
    }
    Ok(stays)
}

/// Returns true if a file or a link in a directory is not replaced. A link in place of a file says
/// nothing about the content's time.
fn stays(when: WhenThere, target: &Metadata, source: &Metadata) -> bool {
    let is_by_time = matches!(when, WhenThere::Update | WhenThere::Same);
    let is_replaced_link = is_by_time && target.is_symlink() && !source.is_symlink();
    !target.is_dir() && !is_replaced_link && when.keeps(target, source)
}

/// Makes a symbolic link like the source, a fifo or, as the options say, a socket or a device node.
/// `follow` looks up what a link leads to.
pub fn copy_other(
    session: &mut Session<'_>,
    source: &Inode,
    path: &Path,
    destination: Destination,
    follow: &dyn Fn() -> Result<Inode, Errno>,
) -> Step<()> {
    let kind = source.metadata().file_type();
    refuse_node(session.options, source, path)?;
    let in_the_way =
        |on: &Path, cause| Failure::of_rule("writing", on, cause, "choose another target");
    let target = match destination {
        Destination::Named(entry) | Destination::Inside(entry) => entry,
        Destination::Itself(dir) => {
            return Err(in_the_way(&dir.path(), "a directory is in the way").into());
        }
    };
    let when = session.options.existing;
    target.refuse_other_name()?;
    match target.look()? {
        Some(there) if stays(when, there.metadata(), source.metadata()) => {
            session.skip(0);
            return Ok(());
        }
        Some(there) if there.id() == source.id() => {
            return Err(in_the_way(&target.path(), "it is the source").into());
        }
        Some(there) if there.metadata().is_dir() => {
            return Err(in_the_way(&target.path(), "a directory is in the way").into());
        }
        // The link would take the place of the content that it leads to.
        Some(there) if kind.is_symlink() && follow().is_ok_and(|to| to.id() == there.id()) => {
            return Err(in_the_way(&target.path(), "the source is a link to it").into());
        }
        _ => {}
    }
    chattr::check(&target)?;
    if session.options.dry_run {
        target.dir.check_writable()?;
        if is_device(source.metadata()) && !may_make_devices() {
            return Err(no_device(&target.path()).into());
        }
        session.list_other(path);
        return Ok(());
    }
    let name = temporary::unused_name(&target)?;
    let made = make_other(source, path, (&name, &target))?;
    let named = name_other(session, source, (&name, &made), &target);
    if named.is_err() && name.is(made.id()) {
        // The reason is reported; a failure to clean up has the same one.
        name.remove().unwrap_or(());
    }
    named?;
    let copy = session.identify(source.metadata(), made.as_fd());
    session.note_copied(source.metadata(), &target, copy);
    session.counts.others += 1;
    Ok(session.flush_dir(&target.dir)?)
}

/// Refuses a device or a socket, unless nodes like those in the source are made.
pub fn refuse_node(options: &Options, source: &Inode, path: &Path) -> Result<(), Failure> {
    let kind = source.metadata().file_type();
    if kind.is_symlink() || kind.is_fifo() || options.nodes {
        return Ok(());
    }
    let cause = "it is a device or a socket";
    let remedy = "use -a to make a node like it, or leave it out with --exclude";
    Err(Failure::of_rule("copying", path, cause, remedy))
}

/// Gives a link or a node its attributes, and then the name of the target.
fn name_other(
    session: &mut Session<'_>,
    source: &Inode,
    (name, made): (&Entry, &Inode),
    target: &Entry,
) -> Result<(), Failure> {
    let metadata = source.metadata();
    let mode = session.new_mode(&target.dir, metadata.mode() & 0o777, 0o666);
    let path = target.path();
    let attributes = (&*path, session.attributes(Some(mode)));
    let lost = preserve::copy_unopened(source, made, attributes)?;
    session.note_lost(&path, &lost);
    let replaces = session.options.existing != WhenThere::Keep;
    name.rename_made(&Renaming { what: "renaming", id: made.id(), replaces }, target)?;
    if target.is(made.id()) { Ok(()) } else { Err(replaced(target)) }
}

fn is_device(like: &Metadata) -> bool {
    like.file_type().is_block_device() || like.file_type().is_char_device()
}

/// Makes a link or a node under a name that nothing has, and holds it.
fn make_other(
    source: &Inode,
    path: &Path,
    (name, target): (&Entry, &Entry),
) -> Result<Inode, Failure> {
    let failed = |errno: Errno| Failure::of_errno("making", &name.path(), errno);
    let leads_to = match source.metadata().is_symlink() {
        true => Some(source.link_target()),
        false => None,
    };
    let leads_to = leads_to.transpose();
    let leads_to = leads_to.map_err(|errno| Failure::of_errno("reading the link", path, errno))?;
    let like = source.metadata();
    let is_device = is_device(like);
    match &leads_to {
        Some(leads_to) => name.make_link(leads_to),
        None => name.make_node(like),
    }
    .map_err(|errno| match (errno, &leads_to) {
        (Errno::EPERM, None) if is_device => no_device(&target.path()),
        (Errno::ENAMETOOLONG, Some(leads_to)) => too_long(&target.path(), leads_to),
        _ => failed(errno),
    })?;
    let held = hold_other(like, name, leads_to.as_deref());
    if held.is_err()
        && let Ok(Some(left)) = name.look()
        && left.metadata().file_type() == like.file_type()
        && name.is_own(&left) == Ok(true)
    {
        // The reason is reported; a failure to clean up has the same one.
        name.remove().unwrap_or(());
    }
    held
}

/// Returns what was just made under a name. symlinkat(2) and mknodat(2) return no descriptor: what
/// was moved to the name since must not get the attributes of the copy.
fn hold_other(like: &Metadata, name: &Entry, leads_to: Option<&OsStr>) -> Result<Inode, Failure> {
    let made = name.look()?.ok_or_else(|| replaced(name))?;
    let is_device = is_device(like);
    let is_alike = made.metadata().file_type() == like.file_type()
        && (!is_device || made.metadata().rdev() == like.rdev())
        && leads_to.is_none_or(|leads_to| is_link_to(&made, leads_to));
    let is_own = name.is_own(&made);
    let is_own = is_own.map_err(|errno| Failure::of_errno("making", &name.path(), errno))?;
    if is_alike && is_own { Ok(made) } else { Err(replaced(name)) }
}

/// Returns true if a link that was just made leads there. A file system that makes links and does
/// not let them be read (a server that forbids absolute ones) is believed.
fn is_link_to(made: &Inode, leads_to: &OsStr) -> bool {
    match made.link_target() {
        Ok(found) => found == leads_to,
        Err(errno) => matches!(
            errno,
            Errno::EPERM | Errno::EACCES | Errno::ENOSYS | Errno::EOPNOTSUPP | Errno::EIO
        ),
    }
}

/// The failure of a symbolic link whose content the file system of the target does not hold.
fn too_long(target: &Path, leads_to: &OsStr) -> Failure {
    let cause =
        format!("it leads to a path of {} bytes, too long for the file system", leads_to.len());
    let remedy = "choose a target elsewhere, or leave the link out with --exclude";
    Failure::of_rule("making the link", target, &cause, remedy)
}

/// The failure of a device node that the kernel does not make.
fn no_device(target: &Path) -> Failure {
    let (cause, remedy) = if may_make_devices() {
        // Of a user namespace the capability counts there only.
        let cause = "the file system has no device nodes, or this user namespace may not make them";
        (cause, "choose a target elsewhere, or leave it out with --exclude")
    } else {
        let cause = "only a process with CAP_MKNOD may make a device node";
        (cause, "copy as root, or leave it out with --exclude")
    };
    Failure::of_rule("making", target, cause, remedy)
}

/// Returns true if this thread has CAP_MKNOD; see capabilities(7).
fn may_make_devices() -> bool {
    const CAP_MKNOD: u64 = 1 << 27;
    let status = std::fs::read_to_string("/proc/thread-self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    effective.is_some_and(|bits| bits & CAP_MKNOD != 0)
}

fn replaced(name: &Entry) -> Failure {
    let cause = "another process replaced it";
    let remedy = "let nothing else write to the target's directory, and copy again";
    Failure::of_rule("making", &name.path(), cause, remedy)
}
