//! One run of the command: what every file of it shares, and the walk over sources and folders.
//! Failures are told and counted here, and the run goes on with the next file.

use std::collections::BTreeSet;
use std::fs::{DirBuilder, Metadata};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use diopter::{Errno, File, OpenAs, StripedFile};
use rustix::fs::{CWD, FileType, Mode};
use walkdir::{DirEntry, WalkDir};

use super::CpOptions;
use super::failure::{Failure, Step, Stop, shown};
use super::fit::Wishes;
use super::pipeline::Pipeline;
use super::place;
use super::preserve;
use super::progress::Progress;
use super::report::Counts;
use super::signals::{Signal, Signals};
use super::source;
use super::temporary;

/// Permissions of a folder while it is filled; it has its own ones when it is full.
const FILLING_MODE: u32 = 0o700;

/// A run.
pub struct Copier<'a> {
    /// What was asked for.
    pub options: &'a CpOptions,
    /// Moves the bytes.
    pub pipeline: Pipeline,
    /// Tells when to end.
    pub signals: Signals,
    /// Shows how far it is.
    pub progress: Progress,
    /// Counts what was done.
    pub counts: Counts,
    /// The id of this boot.
    pub boot: String,
    /// The device that is being written, or was when the run ended.
    pub written_in_place: Option<PathBuf>,
    /// Whether the target in work is a striped file.
    pub writes_stripes: bool,
    /// With `--striped`: device and inode number of the objects of all striped files among the
    /// sources. They come with their file, and not as files of their own.
    objects: BTreeSet<(u64, u64)>,
    /// Folders that are open in the walk; each is flushed when it is left, and not after each file
    /// in it.
    folders: Vec<OpenFolder>,
    /// Which sizes of request files want.
    pub wishes: Wishes,
}

/// A folder that is being filled.
struct OpenFolder {
    source: PathBuf,
    metadata: Metadata,
    target: PathBuf,
    depth: usize,
}

impl<'a> Copier<'a> {
    /// Nothing copied yet.
    pub fn new(
        options: &'a CpOptions,
        pipeline: Pipeline,
        signals: Signals,
        progress: Progress,
    ) -> Copier<'a> {
        Copier {
            options,
            pipeline,
            signals,
            progress,
            counts: Counts::default(),
            boot: super::record::boot_id(),
            written_in_place: None,
            writes_stripes: false,
            objects: BTreeSet::new(),
            folders: Vec::new(),
            wishes: Wishes::default(),
        }
    }

    /// Copies every source; the signal that ended it early, if one did.
    pub fn run(&mut self) -> Option<Signal> {
        if self.options.striped {
            self.objects = source::objects_below(&self.options.sources);
        }
        self.add_up();
        let has_one_source = self.options.sources.len() == 1;
        let mut targets = BTreeSet::new();
        for source in &self.options.sources {
            let target = place::path_for(source, &self.options.target, has_one_source);
            let done = match target {
                // "a/." and "b/." both go into the folder itself.
                Ok(target) if target != self.options.target && !targets.insert(target.clone()) => {
                    let cause = "another source of this command has the same name";
                    let remedy = "copy them into two folders";
                    Err(Failure::of_rule("copying", source, cause, remedy).into())
                }
                Ok(target) => self.copy_source(source, &target),
                Err(failure) => Err(failure.into()),
            };
            let done = self.note(done);
            if done.is_some() {
                return done;
            }
        }
        None
    }

    /// Tells that verify read through the page cache.
    pub fn tell_buffered(&self, target: &Path, bytes: u64, why: &str) {
        let target = shown(target);
        self.progress.tell(&format!(
            "dio cp: verify read {bytes} bytes of {target} through the page cache ({why}), \
             which does not prove what the device holds"
        ));
    }

    /// Flushes a folder, unless the walk does when it leaves it.
    pub fn flush_folder(&self, folder: &Path) -> Result<(), Failure> {
        if self.folders.iter().any(|open| open.target == folder) {
            return Ok(());
        }
        let flushed = std::fs::File::open(folder).and_then(|opened| opened.sync_all());
        match flushed {
            // Some file systems (FUSE, SMB) flush no folders: they have no more to give.
            Err(error) if error.raw_os_error() == Some(Errno::EINVAL.raw()) => Ok(()),
            flushed => {
                flushed.map_err(|error| Failure::of_io("flushing the folder", folder, &error))
            }
        }
    }

    /// Tells and counts what went wrong. A signal is handed on, since it ends the run.
    pub fn note(&mut self, done: Step<()>) -> Option<Signal> {
        match done {
            Ok(()) => {}
            Err(Stop::Signal(signal)) => return Some(signal),
            Err(Stop::Failed(failure)) => {
                self.progress.tell(&format!("dio cp: {failure}"));
                self.counts.note_failure(&failure);
            }
            // Counted where both hashes are known.
            Err(Stop::Differs(mismatch)) => self.progress.tell(&format!("dio cp: {mismatch}")),
        }
        self.signals.arrived()
    }

    fn copy_source(&mut self, source: &Path, target: &Path) -> Step<()> {
        if let Some(done) = self.copy_image(source, target) {
            return done;
        }
        let is_recursive = self.options.recursive;
        let found = if is_recursive {
            std::fs::symlink_metadata(source)
        } else {
            std::fs::metadata(source)
        };
        let found = found.map_err(|error| Failure::of_io("opening", source, &error))?;
        let kind = found.file_type();
        let refused =
            |cause, remedy| Err(Failure::of_rule("copying", source, cause, remedy).into());
        if kind.is_dir() {
            if !is_recursive {
                return refused("it is a folder", "copy it with -r");
            }
            return self.copy_tree(source, &found, target);
        }
        if self.is_object(&found) {
            return Ok(());
        }
        if kind.is_file() || kind.is_block_device() {
            return self.copy_file(source, target);
        }
        if !is_recursive {
            return refused(
                "it is neither a file nor a block device",
                "-r makes fifos and links anew; `cat` reads what has no size",
            );
        }
        self.copy_other(source, &found, target)?;
        Ok(self.flush_folder(place::folder_of(target))?)
    }

    /// Copies a folder and all in it. Memory grows with the depth of the tree, not with its size.
    fn copy_tree(&mut self, source: &Path, found: &Metadata, target: &Path) -> Step<()> {
        if place::is_within(target, found) {
            let cause = "the target lies in the folder itself";
            let remedy = "choose a target outside";
            return Err(Failure::of_rule("copying", source, cause, remedy).into());
        }
        let mut walk = WalkDir::new(source).into_iter();
        let mut ended = None;
        while let Some(entry) = walk.next() {
            let done = match entry {
                Ok(entry) => {
                    self.leave_folders(entry.depth());
                    let done = self.copy_entry(&entry, source, target);
                    if done.is_err() && entry.file_type().is_dir() {
                        walk.skip_current_dir();
                    }
                    done
                }
                Err(error) => Err(walk_failure(&error, source).into()),
            };
            ended = self.note(done);
            if ended.is_some() {
                break;
            }
        }
        self.leave_folders(0);
        let flushed = self.flush_folder(place::folder_of(target));
        match ended {
            Some(signal) => Err(Stop::Signal(signal)),
            None => Ok(flushed?),
        }
    }

    fn is_object(&self, found: &Metadata) -> bool {
        found.is_file() && self.objects.contains(&(found.dev(), found.ino()))
    }

    fn copy_entry(&mut self, entry: &DirEntry, root: &Path, target: &Path) -> Step<()> {
        let within = entry.path().strip_prefix(root).expect("the walk stays below its root");
        let is_root = within.as_os_str().is_empty();
        let target = if is_root { target.to_owned() } else { target.join(within) };
        let metadata = entry.metadata().map_err(|error| walk_failure(&error, entry.path()))?;
        if metadata.is_dir() {
            Ok(self.enter_folder(entry, metadata, target)?)
        } else if self.is_object(&metadata) {
            Ok(())
        } else if metadata.is_file() {
            self.copy_file(entry.path(), &target)
        } else {
            Ok(self.copy_other(entry.path(), &metadata, &target)?)
        }
    }

    fn enter_folder(
        &mut self,
        entry: &DirEntry,
        metadata: Metadata,
        target: PathBuf,
    ) -> Result<(), Failure> {
        // A link to a folder is good enough for what the command line names, and for nothing below
        // it.
        let is_named = entry.depth() == 0;
        let there = if is_named { std::fs::metadata(&target) } else { target.symlink_metadata() };
        match there {
            Ok(there) if there.is_dir() => {}
            Ok(_) => {
                let cause = "something that is no folder is in the way";
                let remedy = "remove it, or choose another target";
                return Err(Failure::of_rule("making the folder", &target, cause, remedy));
            }
            Err(_) => {
                let made = DirBuilder::new().mode(FILLING_MODE).create(&target);
                made.map_err(|error| Failure::of_io("making the folder", &target, &error))?;
            }
        }
        let (source, depth) = (entry.path().to_owned(), entry.depth());
        self.counts.folders += 1;
        self.folders.push(OpenFolder { source, metadata, target, depth });
        Ok(())
    }

    /// Leaves the folders that an entry at `depth` is not in: they are complete.
    fn leave_folders(&mut self, depth: usize) {
        while let Some(folder) = self.folders.pop_if(|folder| folder.depth >= depth) {
            let OpenFolder { source, metadata, target, .. } = &folder;
            let done = preserve::copy_folder(source, metadata, target)
                .and_then(|()| self.flush_folder(target));
            // A signal is looked at by the walk.
            self.note(done.map_err(Stop::Failed));
        }
    }

    /// Makes a symbolic link or a fifo anew.
    fn copy_other(
        &mut self,
        source: &Path,
        metadata: &Metadata,
        target: &Path,
    ) -> Result<(), Failure> {
        let kind = metadata.file_type();
        if !kind.is_symlink() && !kind.is_fifo() {
            let cause = "it is a device or a socket";
            return Err(Failure::of_rule(
                "copying",
                source,
                cause,
                "make it anew with mknod or mkfifo",
            ));
        }
        if let Ok(there) = target.symlink_metadata() {
            let is_same = (there.dev(), there.ino()) == (metadata.dev(), metadata.ino());
            if is_same || there.is_dir() {
                let cause = if is_same { "it is the source" } else { "a folder is in the way" };
                return Err(Failure::of_rule("writing", target, cause, "choose another target"));
            }
        }
        let path = temporary::path_of(target)?;
        let made = |error: &std::io::Error| Failure::of_io("making", &path, error);
        if let Ok(old) = path.symlink_metadata()
            && (old.is_symlink() || old.file_type().is_fifo())
        {
            // An earlier run ended between making it and giving it its name.
            std::fs::remove_file(&path).map_err(|error| made(&error))?;
        }
        if kind.is_symlink() {
            let leads_to = std::fs::read_link(source)
                .map_err(|error| Failure::of_io("reading the link", source, &error))?;
            std::os::unix::fs::symlink(leads_to, &path).map_err(|error| made(&error))?;
        } else {
            let mode = Mode::from_bits_truncate(FILLING_MODE);
            rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0)
                .map_err(|errno| Failure::of_errno("making", &path, errno.into()))?;
        }
        let named = preserve::copy_unopened(metadata, &path).and_then(|()| {
            let renamed = std::fs::rename(&path, target);
            renamed.map_err(|error| Failure::of_io("renaming", target, &error))
        });
        if named.is_err() {
            // The reason is told; that it could not be cleaned up is of the same kind.
            std::fs::remove_file(&path).unwrap_or(());
        }
        named?;
        self.counts.others += 1;
        Ok(())
    }

    /// The size of a striped file that is copied as such.
    fn size_of_striped(&self, path: &Path) -> Option<u64> {
        let is_striped = self.options.open_as() == OpenAs::Striped && StripedFile::is_at(path);
        is_striped.then(|| File::open(path).and_then(|file| file.size()).ok())?
    }

    /// Adds the bytes of all sources up, for the bar. What cannot be looked at now is told when its
    /// turn comes.
    fn add_up(&self) {
        if !self.progress.is_shown() {
            return;
        }
        let mut bytes = 0u64;
        for source in &self.options.sources {
            bytes = bytes.saturating_add(Self::bytes_inside(source));
            for entry in WalkDir::new(source).into_iter().flatten() {
                let found = entry.metadata().ok().filter(Metadata::is_file);
                let size = found
                    .filter(|found| !self.is_object(found))
                    .map(|found| self.size_of_striped(entry.path()).unwrap_or(found.len()));
                bytes = bytes.saturating_add(size.unwrap_or(0));
            }
        }
        let passes = if self.options.verify { 2 } else { 1 };
        self.progress.set_total(bytes.saturating_mul(passes));
    }
}

fn walk_failure(error: &walkdir::Error, root: &Path) -> Failure {
    let on = error.path().unwrap_or(root);
    match error.io_error() {
        Some(error) => Failure::of_io("reading the folder", on, error),
        None => Failure::of_rule("reading the folder", on, &error.to_string(), "break the loop"),
    }
}
