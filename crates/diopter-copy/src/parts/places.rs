//! From a path below the roots to open directories, name by name; no link is followed.

use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::rc::Rc;

use super::part::Roots;
use crate::batch::Level;
use crate::dir::{Dir, Entry};
use crate::failure::Failure;

/// The open roots, and the directory that was used last.
#[derive(Debug)]
pub struct Places {
    source: Rc<Dir>,
    target: Rc<Dir>,
    last: Option<(PathBuf, Rc<Level>)>,
}

impl Places {
    /// Opens the roots; other directories than those of the planner are refused.
    pub fn open(roots: &Roots) -> Result<Places, Failure> {
        let open = |path: &Path, inode: u64| {
            let dir = Dir::open(path)?;
            if dir.metadata()?.ino() == inode {
                return Ok(dir);
            }
            let cause = "it is another directory than on rank 0";
            let remedy = "use a file system that all ranks share, and let nothing replace it";
            Err(Failure::of_rule("opening the directory", path, cause, remedy))
        };
        let source = open(&roots.source, roots.inodes.0)?;
        let target = open(&roots.target, roots.inodes.1)?;
        Ok(Places { source, target, last: None })
    }

    /// Returns a directory on both sides. `mode` is that of [`Level`].
    pub fn level(&mut self, path: &Path, mode: Option<u32>) -> Result<Rc<Level>, Failure> {
        if let Some((last, level)) = &self.last
            && last == path
        {
            return Ok(Rc::clone(level));
        }
        let level = Rc::new(self.open_level(path, mode)?);
        self.last = Some((path.to_owned(), Rc::clone(&level)));
        Ok(level)
    }

    /// Opens a directory on both sides.
    pub fn open_level(&self, path: &Path, mode: Option<u32>) -> Result<Level, Failure> {
        let source = below(&self.source, path)?;
        let target = below(&self.target, path)?;
        let metadata = source.metadata()?;
        Ok(Level { source, metadata, target, mode })
    }
}

fn below(root: &Rc<Dir>, path: &Path) -> Result<Rc<Dir>, Failure> {
    let mut dir = Rc::clone(root);
    for component in path.components() {
        let Component::Normal(name) = component else {
            let cause = "the path leads out of its root";
            return Err(Failure::of_rule("opening", path, cause, "report this as a fault"));
        };
        dir = Entry::new(&dir, name).open_dir()?;
    }
    Ok(dir)
}
