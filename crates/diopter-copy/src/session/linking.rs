//! Names of a file that was copied under another name.

use std::fs::Metadata;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use super::Session;
use crate::dir::{Entry, Identity};
use crate::failure::Step;
use crate::observer::Pass;

impl Session<'_> {
    /// Returns true if another name of the file is to become another name of its copy.
    pub fn keeps_links_of(&self, source: &Metadata) -> bool {
        // A striped file has its objects once, and a copy of it in each place has others.
        self.options.preserve.keeps_links()
            && !self.options.striped
            && !source.is_dir()
            && source.nlink() > 1
    }

    /// Returns which file a copy is, if other names of its source are to become names of it. The
    /// copy does not have the name of the target yet: it is this process that holds it.
    pub fn identify(&self, source: &Metadata, copy: BorrowedFd<'_>) -> Option<Identity> {
        // Without the identity, the other names become separate files.
        self.keeps_links_of(source).then(|| Identity::of(copy).ok().flatten()).flatten()
    }

    /// Notes that the copy of a file has its name; `copy` is from [`identify`](Session::identify).
    pub fn note_copied(&mut self, source: &Metadata, target: &Entry, copy: Option<Identity>) {
        match copy {
            Some(copy) => self.links.note(source, target, copy),
            None if self.keeps_links_of(source) => self.counts.separate_links += 1,
            None => {}
        }
    }

    /// Gives the copy of a file another name, if there is one. Returns false if there is none.
    /// `path` is the name of the source, which is reported as those of files are.
    pub fn link(
        &mut self,
        source: &Metadata,
        path: impl Fn() -> PathBuf,
        target: &Entry,
    ) -> Step<bool> {
        if !self.keeps_links_of(source) {
            let is_separated = self.options.recursive && !self.options.striped;
            if is_separated && !source.is_dir() && source.nlink() > 1 {
                self.counts.separate_links += 1;
            }
            return Ok(false);
        }
        if !self.links.link(source, target, self.options.existing)? {
            return Ok(false);
        }
        target.note_made();
        self.begin_file();
        self.observer.begins(Pass::Copy, &path(), 0);
        self.observer.skips(source.len());
        self.counts.links += 1;
        self.flush_dir(&target.dir)?;
        Ok(true)
    }
}
