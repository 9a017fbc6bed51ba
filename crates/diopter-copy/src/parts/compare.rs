//! Two trees compared by several processes, as `dio-mpi verify` does: [`Comparison`] walks both and
//! hands out parts, [`compare_parts`] compares them.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::part::{
    Collector, LARGE_BYTES_MIN, Part, Progress, RANGE_BYTES_MAX, Range, RangeDone, Roots,
};
use super::places::Places;
use super::work::{Next, Parts};
use crate::check::{CheckOptions, Checker, Difference, DifferenceKind, VerifyDocument};
use crate::dir::{Dir, Entry, Inode};
use crate::failure::{Failure, Step, Stop};
use crate::observer::{Notice, Observer};
use crate::stop::StopFlag;
use crate::walk::{Event, Walk};

/// A large file whose ranges are handed out.
#[derive(Debug)]
struct Large {
    dir: PathBuf,
    names: [OsString; 2],
    size: u64,
    next: u64,
}

/// The plan of one comparison.
pub struct Comparison<'a> {
    observer: &'a mut dyn Observer,
    each: &'a mut dyn FnMut(Difference),
    roots: Roots,
    dirs: [Rc<Dir>; 2],
    walk: Walk,
    /// The directories that the walk is in: the path, and the other tree's.
    levels: Vec<(PathBuf, Rc<Dir>)>,
    /// True in the walk over the second tree, which finds what only that has.
    is_second: bool,
    names: Collector,
    large: Option<Large>,
    /// Large files, and the failures of this process.
    found: VerifyDocument,
}

impl<'a> Comparison<'a> {
    /// Begins the comparison of two directories, or of two files.
    ///
    /// # Errors
    /// One of them could not be opened, or they are of different kinds.
    pub fn new(
        paths: [&Path; 2],
        observer: &'a mut dyn Observer,
        each: &'a mut dyn FnMut(Difference),
    ) -> Result<Comparison<'a>, Failure> {
        let mut large = None;
        let inode = |path: &Path| {
            Inode::of_path(path, true).map_err(|errno| Failure::of_errno("opening", path, errno))
        };
        let inodes = [inode(paths[0])?, inode(paths[1])?];
        let [is_dirs, is_files] = [
            inodes.iter().all(|inode| inode.metadata().is_dir()),
            inodes.iter().all(|inode| inode.metadata().is_file()),
        ];
        let dirs = if is_dirs {
            [Dir::open(paths[0])?, Dir::open(paths[1])?]
        } else if is_files {
            let real = |path: &Path| {
                let real = std::fs::canonicalize(path);
                let real = real.map_err(|error| Failure::of_io("looking up", path, &error))?;
                Entry::of_path(&real)
            };
            let [one, other] = [real(paths[0])?, real(paths[1])?];
            let sizes = [&inodes[0], &inodes[1]].map(|inode| inode.metadata().len());
            if sizes[0] == sizes[1] {
                let names = [one.name, other.name];
                large = Some(Large { dir: PathBuf::new(), names, size: sizes[0], next: 0 });
            } else {
                let paths = paths.map(Path::to_owned);
                each(Difference { paths, kind: DifferenceKind::Length(sizes) });
            }
            [one.dir, other.dir]
        } else {
            let cause = "they are not two directories or two files";
            return Err(Failure::of_rule("comparing", paths[1], cause, "use dio verify"));
        };
        let roots = Roots {
            source: dirs[0].path(),
            target: dirs[1].path(),
            inodes: (dirs[0].id().1, dirs[1].id().1),
        };
        let (mut walk, mut levels) = (Walk::default(), Vec::new());
        let found = VerifyDocument::default();
        if is_dirs {
            walk.enter(Rc::clone(&dirs[0]));
            levels.push((PathBuf::new(), Rc::clone(&dirs[1])));
        }
        let names = Collector::default();
        // Files have no second walk.
        let is_second = !is_dirs;
        Ok(Comparison { observer, each, roots, dirs, walk, levels, is_second, names, large, found })
    }

    /// The directories that the paths of all parts begin at.
    pub fn roots(&self) -> &Roots {
        &self.roots
    }

    /// Returns the next part; `None` if there are no more.
    pub fn next_part(&mut self) -> Option<Part> {
        loop {
            if let Some(part) = self.next_range().or_else(|| self.names.pop()) {
                return Some(part);
            }
            let done = match self.walk.step() {
                Some(Event::Found(entry, inode)) => self.find(&entry, &inode),
                Some(Event::Left) => {
                    self.names.close();
                    self.levels.pop();
                    Ok(())
                }
                Some(Event::Failed(failure)) => Err(failure),
                None if !self.is_second => {
                    self.is_second = true;
                    self.walk.enter(Rc::clone(&self.dirs[1]));
                    self.levels.push((PathBuf::new(), Rc::clone(&self.dirs[0])));
                    Ok(())
                }
                None => return None,
            };
            if let Err(failure) = done {
                self.fail(&failure);
            }
        }
    }

    /// Returns the number of large files, and that of failures of the plan itself.
    pub fn finish(mut self) -> VerifyDocument {
        if self.next_part().is_some() {
            // Each process has reported why it ended early.
            let cause = "no process is left that compares the rest";
            let on = self.roots.target.clone();
            self.fail(&Failure::of_rule("comparing", &on, cause, "see the messages before"));
        }
        self.found
    }

    fn fail(&mut self, failure: &Failure) {
        self.observer.notice(Notice::Failed(failure));
        self.found.failures += 1;
    }

    fn find(&mut self, entry: &Entry, inode: &Inode) -> Result<(), Failure> {
        let (path, other_dir) = self.levels.last().expect("the walk is in a directory");
        let other_entry = Entry::new(other_dir, &entry.name);
        let other = other_entry.look()?;
        let metadata = inode.metadata();
        if let Some(other) = &other
            && metadata.is_dir()
            && other.metadata().is_dir()
        {
            let path = path.join(&entry.name);
            self.names.close();
            self.walk.enter(entry.open_dir()?);
            self.levels.push((path, other_entry.open_dir()?));
            return Ok(());
        }
        if self.is_second {
            if other.is_none() {
                let paths = [other_entry.path(), entry.path()];
                (self.each)(Difference { paths, kind: DifferenceKind::OnlySecond });
            }
            return Ok(());
        }
        let size = metadata.len();
        let is_large = metadata.is_file()
            && size >= LARGE_BYTES_MIN
            && other.is_some_and(|it| it.metadata().is_file() && it.metadata().len() == size);
        if is_large {
            let names = [entry.name.clone(), entry.name.clone()];
            self.large = Some(Large { dir: path.clone(), names, size, next: 0 });
        } else {
            let bytes = if metadata.is_file() { size } else { 0 };
            self.names.add((path, false), entry.name.clone(), bytes);
        }
        Ok(())
    }

    fn next_range(&mut self) -> Option<Part> {
        let large = self.large.as_mut()?;
        let (start, size) = (large.next, large.size);
        let end = start.saturating_add(RANGE_BYTES_MAX).min(size);
        let [name, temporary] = large.names.clone();
        let dir = large.dir.clone();
        large.next = end;
        if end == size {
            self.large = None;
            self.found.files += 1;
        }
        Some(Part::Range(Range { dir, name, temporary, size, start, end, ..Range::default() }))
    }
}

/// Compares parts until there are no more. `each` gets the differences. Returns what was compared,
/// without a list of differences.
pub fn compare_parts(
    options: CheckOptions,
    (roots, parts): (&Roots, &mut dyn Parts),
    observer: &mut dyn Observer,
    each: &mut dyn FnMut(Difference),
) -> VerifyDocument {
    let stop = StopFlag::default();
    let opened = Places::open(roots);
    let made = match opened {
        Ok(places) => match Checker::new(options, &stop, &mut *observer) {
            Ok(checker) => Ok((places, checker)),
            Err(failure) => Err(failure),
        },
        Err(failure) => Err(failure),
    };
    let (mut places, mut checker) = match made {
        Ok(made) => made,
        Err(failure) => {
            observer.notice(Notice::Failed(&failure));
            return VerifyDocument { failures: 1, ..VerifyDocument::default() };
        }
    };
    let mut range = None;
    loop {
        let (files, bytes) = (checker.files(), checker.bytes());
        let mut progress = Progress { files, bytes, range };
        let next = parts.next(&mut progress);
        range = progress.range;
        let done = match next {
            Next::Part(part) => compare_part(&mut checker, &mut places, &part, each),
            Next::Later => continue,
            Next::End => {
                let mut counted = VerifyDocument::default();
                counted.count(&checker);
                return counted;
            }
        };
        range = range.or(done);
    }
}

fn compare_part(
    checker: &mut Checker<'_>,
    places: &mut Places,
    part: &Part,
    each: &mut dyn FnMut(Difference),
) -> Option<RangeDone> {
    match part {
        Part::Names(part) => {
            let level = match places.level(&part.dir, None) {
                Ok(level) => level,
                Err(failure) => {
                    checker.note(Err(failure.into()));
                    return None;
                }
            };
            for name in &part.names {
                let done = checker.verify_name([&level.source, &level.target], name, each);
                checker.note(done);
            }
            None
        }
        Part::Range(part) => {
            let done = compare_range(checker, places, part, each);
            let is_copied = done.is_ok();
            checker.note(done);
            let Range { file, start, end, .. } = *part;
            Some(RangeDone { file, start, end, is_copied, hole_bytes: 0 })
        }
    }
}

fn compare_range(
    checker: &mut Checker<'_>,
    places: &mut Places,
    part: &Range,
    each: &mut dyn FnMut(Difference),
) -> Step<()> {
    let level = places.level(&part.dir, None).map_err(Stop::Failed)?;
    let entries =
        [&Entry::new(&level.source, &part.name), &Entry::new(&level.target, &part.temporary)];
    checker.verify_range(entries, part.start..part.end, each)
}
