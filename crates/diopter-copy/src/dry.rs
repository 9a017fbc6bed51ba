//! A dry run: what would be copied, with the same rules and refusals. Nothing is made, written or
//! removed.

use std::rc::Rc;

use crate::chattr;
use crate::dir::{Dir, Entry, Inode};
use crate::failure::{Failure, Step, Stop};
use crate::file;
use crate::options::Follow;
use crate::place::Destination;
use crate::session::Session;
use crate::source::{Found, Source};
use crate::tree;
use crate::walk::{Event, Walk};

/// Lists a directory and its content.
pub fn list_tree(session: &mut Session<'_>, source: Rc<Dir>, destination: Destination) -> Step<()> {
    let options = session.options;
    let first = source.id().0;
    let mut walk = Walk::of_names(options.follow == Follow::Always, &options.exclude);
    // Those that are there: a directory that is to be made has no content yet.
    let mut targets = vec![enter(session, &source, Some(destination))?];
    walk.enter(source);
    while let Some(event) = walk.step() {
        let target = targets.last().and_then(Option::as_ref);
        let done = match event {
            Event::Left => {
                targets.pop();
                Ok(())
            }
            Event::Failed(failure) => Err(failure.into()),
            Event::Found(entry, inode) if inode.metadata().is_dir() => {
                let destination =
                    target.map(|dir| Destination::Inside(Entry::new(dir, &entry.name)));
                let entered = walk.open_dir(&entry, &inode).and_then(|dir| {
                    let target = enter(session, &dir, destination)?;
                    Ok((dir, target))
                });
                entered.map_err(Into::into).map(|(dir, target)| {
                    if !options.one_file_system || dir.id().0 == first {
                        targets.push(target);
                        walk.enter(dir);
                    }
                })
            }
            Event::Found(entry, inode) => list_entry(session, (&entry, &inode), target),
        };
        if let Some(signal) = session.note(done) {
            return Err(Stop::Signal(signal));
        }
    }
    Ok(())
}

/// Lists a directory if it is to be made; returns the one that is there.
fn enter(
    session: &mut Session<'_>,
    source: &Rc<Dir>,
    destination: Option<Destination>,
) -> Result<Option<Rc<Dir>>, Failure> {
    session.counts.dirs += 1;
    let there = match destination {
        Some(Destination::Itself(dir)) => return Ok(Some(dir)),
        Some(Destination::Named(entry) | Destination::Inside(entry)) => {
            let there = entry.existing_dir()?;
            if there.is_none() {
                chattr::check(&entry)?;
                entry.dir.check_writable()?;
            }
            there
        }
        None => None,
    };
    if there.is_none() {
        // With a slash at its end.
        session.observer().lists(&source.path().join(""));
    }
    Ok(there)
}

fn list_entry(
    session: &mut Session<'_>,
    (entry, inode): (&Entry, &Inode),
    target: Option<&Rc<Dir>>,
) -> Step<()> {
    let path = entry.path();
    if tree::leave_out(session, inode, || path.clone()) {
        return Ok(());
    }
    let found = Found { inode, entry: Some(entry), path: &path };
    let is_file = inode.metadata().is_file();
    if session.lists_link(inode) {
        return Ok(());
    }
    match target.map(|dir| Destination::Inside(Entry::new(dir, &entry.name))) {
        Some(destination) if is_file => file::copy(session, found, destination),
        Some(destination) => {
            tree::copy_other(session, inode, &path, destination, &|| entry.follow())
        }
        None if is_file => {
            let source = Source::open(found, session.options.open_as())?;
            session.list_file(&source);
            Ok(())
        }
        None => {
            tree::refuse_node(session.options, inode, &path)?;
            session.list_other(&path);
            Ok(())
        }
    }
}
