//! Further names of files, with `--preserve=links`: the first name of a file is copied, and the
//! planner links the others to that copy when all parts are done. What is in memory is one name of
//! each file of which names are still to come; the further names are in a file without a name.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::places::Places;
use super::spool::{Spool, changed};
use super::work;
use crate::dir::{Entry, FileId, Inode, SourceKey, id_of};
use crate::failure::Failure;
use crate::links;
use crate::options::WhenThere;

/// A name below the roots.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The directory, from the roots.
    pub dir: PathBuf,
    pub name: OsString,
}

/// The name under which a file is copied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct First {
    pub place: Place,
    /// The file or link that had this name in the target before.
    pub before: Option<FileId>,
}

/// A name that becomes a link.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Further {
    pub place: Place,
    /// The file, in the source.
    pub source: FileId,
    pub first: First,
}

/// The further names of all files of a tree.
#[derive(Debug)]
pub struct FurtherNames {
    /// By the file in the source, with the number of names that were not met yet.
    firsts: BTreeMap<SourceKey, (First, u64)>,
    spool: Spool,
}

impl FurtherNames {
    /// Begins with none, in this file, which no other process uses.
    pub fn new(file: File) -> FurtherNames {
        FurtherNames { firsts: BTreeMap::new(), spool: Spool::new(file) }
    }

    /// Takes a name of a file. Returns false if it is the first one, which is copied; `before` is
    /// what has this name in the target.
    pub fn take(
        &mut self,
        source: &Metadata,
        place: Place,
        before: impl FnOnce() -> Option<FileId>,
    ) -> io::Result<bool> {
        let (key, id) = (SourceKey::of(source), id_of(source));
        let Some((first, left)) = self.firsts.get_mut(&key) else {
            let first = First { place, before: before() };
            self.firsts.insert(key, (first, source.nlink().saturating_sub(1)));
            return Ok(false);
        };
        self.spool.push(&encode((&place, id), first))?;
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.firsts.remove(&key);
        }
        Ok(true)
    }

    /// Returns one of the names; `None` after the last.
    pub fn pop(&mut self) -> io::Result<Option<Further>> {
        self.spool.pop()?.map(|record| decode(&record).ok_or_else(changed)).transpose()
    }
}

/// Four numbers, and four strings with a zero byte between.
fn encode((place, source): (&Place, FileId), first: &First) -> Vec<u8> {
    // No file has the inode number 0.
    let before = first.before.unwrap_or((0, 0));
    let numbers = [source.0, source.1, before.0, before.1];
    let mut record = numbers.map(u64::to_le_bytes).concat();
    let strings = [place, &first.place]
        .map(|place| [place.dir.as_os_str().as_bytes(), b"\0", place.name.as_bytes()].concat());
    record.extend(strings.join(&b'\0'));
    record
}

fn decode(record: &[u8]) -> Option<Further> {
    let (numbers, strings) = record.split_at_checked(32)?;
    let (numbers, _) = numbers.as_chunks::<8>();
    let [dev, ino, before_dev, before_ino] = numbers else { return None };
    let number = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes);
    let mut strings = strings.split(|byte| *byte == 0).map(|it| OsString::from_vec(it.to_owned()));
    let mut place = || Some(Place { dir: strings.next()?.into(), name: strings.next()? });
    let (name, first) = (place()?, place()?);
    let before = (number(before_dev), number(before_ino));
    let before = (before.1 != 0).then_some(before);
    let source = (number(dev), number(ino));
    Some(Further { place: name, source, first: First { place: first, before } })
}

/// Gives the copy of a file another name. Returns the bytes of the file if it has that name.
pub fn link(
    [firsts, names]: &mut [Places; 2],
    further: &Further,
    existing: WhenThere,
) -> Result<Option<u64>, Failure> {
    let level = names.level(&further.place.dir, None)?;
    let source = work::looked_up(&Entry::new(&level.source, &further.place.name))?;
    let target = Entry::new(&level.target, &further.place.name);
    if source.id() != further.source {
        return Err(work::replaced(&level.source.path().join(&further.place.name)));
    }
    let first = &further.first;
    let copy_entry = Entry::new(&firsts.level(&first.place.dir, None)?.target, &first.place.name);
    // What was there before is a copy only if it was to stay.
    let is_copy = |copy: &Inode| {
        copy.metadata().is_file()
            && (first.before != Some(copy.id())
                || existing.keeps(copy.metadata(), source.metadata()))
    };
    let Some(copy) = copy_entry.look()?.filter(is_copy) else {
        let cause = "the copy of the file under its first name failed";
        let remedy = "see the error of that name";
        return Err(Failure::of_rule("linking", &target.path(), cause, remedy));
    };
    if target.is(copy.id()) {
        return Ok(Some(source.metadata().len()));
    }
    links::make(&copy, &target, existing)?;
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_name_is_copied_and_the_others_come_back_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        for name in ["b", "c"] {
            std::fs::hard_link(&file, dir.path().join(name)).unwrap();
        }
        let source = file.metadata().unwrap();
        let place = |dir: &str, name: &[u8]| Place {
            dir: dir.into(),
            name: OsString::from_vec(name.to_owned()),
        };
        let mut names = FurtherNames::new(tempfile::tempfile().unwrap());
        let first = First { place: place("", b"a\xff"), before: Some((7, u64::MAX)) };
        assert!(!names.take(&source, first.place.clone(), || first.before).unwrap());
        for other in [place("d/e", b"b"), place("", b"c\n")] {
            assert!(names.take(&source, other, || unreachable!()).unwrap());
        }
        assert!(names.firsts.is_empty(), "all names were met");
        for other in [place("", b"c\n"), place("d/e", b"b")] {
            let (source, first) = (id_of(&source), first.clone());
            assert_eq!(names.pop().unwrap(), Some(Further { place: other, source, first }));
        }
        assert_eq!(names.pop().unwrap(), None);
    }
}
