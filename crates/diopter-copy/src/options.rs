//! The options of a run.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter::BackendKind;

use crate::exclude::Pattern;
use crate::preserve::Preserve;

/// How holes are copied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sparse {
    /// The copy has holes where the source has them.
    #[default]
    Auto,
    /// The copy also has holes in place of blocks of zeros.
    Always,
    /// The copy has no holes.
    Never,
}

/// When a copy shares blocks with its source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reflink {
    /// Where the file system supports it.
    #[default]
    Auto,
    /// Never: every byte is copied.
    Never,
}

/// How the small files of a tree are made durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlushBy {
    /// As [`FlushBy::FileSystem`] while other programs have few bytes to be written.
    #[default]
    Auto,
    /// With one fsync(2) for each file and directory.
    Files,
    /// With one syncfs(2) for a group of them on ext4, XFS and btrfs; elsewhere as
    /// [`FlushBy::Files`].
    FileSystem,
}

/// The treatment of a target that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WhenThere {
    /// It is replaced.
    #[default]
    Replace,
    /// It is replaced if it was changed before its source was.
    Update,
    /// It is replaced unless it has the size of its source, and was not changed before it.
    Same,
    /// It is left as it is.
    Keep,
}

impl WhenThere {
    /// Returns true if a target is left as it is.
    pub(super) fn keeps(self, target: &Metadata, source: &Metadata) -> bool {
        let changed = |metadata: &Metadata| (metadata.mtime(), metadata.mtime_nsec());
        match self {
            WhenThere::Replace => false,
            WhenThere::Update => changed(target) >= changed(source),
            WhenThere::Same => {
                target.len() == source.len()
                    && target.file_type() == source.file_type()
                    && changed(target) >= changed(source)
            }
            WhenThere::Keep => true,
        }
    }
}

/// The symbolic links among the sources that are followed. Those before the last part of a path of
/// the command line always are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Follow {
    /// All without [`Options::recursive`], none with it.
    #[default]
    Usual,
    /// None: a link is copied as a link.
    Never,
    /// Those that the command line names.
    Named,
    /// All. A link to a directory that it is in is a failure.
    Always,
}

/// One run of the copy engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Files, and with `recursive` directories; at least one.
    pub sources: Vec<PathBuf>,
    /// A name, or the directory that takes the sources.
    pub target: PathBuf,
    /// Fails if the target is not a directory.
    pub into_directory: bool,
    /// Copies directories with their content.
    pub recursive: bool,
    /// The links that are followed.
    pub follow: Follow,
    /// Names below the sources that are not copied.
    pub exclude: Vec<Pattern>,
    /// Makes device nodes and sockets in the target like those in a source.
    pub nodes: bool,
    /// Attributes that a copy keeps besides the content.
    pub preserve: Preserve,
    /// Does not enter directories of other file systems.
    pub one_file_system: bool,
    /// Takes the target as a name, even where it is a directory.
    pub no_target_directory: bool,
    /// Reads each target back and compares.
    pub verify: bool,
    /// With `verify`, reports the BLAKE3 of each content; its holes are hashed as zeros. Without
    /// it, contents are compared by a hash of their data, and holes cost nothing.
    pub hashes: bool,
    /// Resumes an interrupted copy, and keeps the temporary of one that is interrupted.
    pub resume: bool,
    /// How holes are copied.
    pub sparse: Sparse,
    /// When blocks are shared.
    pub reflink: Reflink,
    /// How the small files of a tree are made durable.
    pub flush: FlushBy,
    /// Allows targets that are written in place: a device, a file inside an image, or with
    /// `target_offset` a file.
    pub overwrite: bool,
    /// The byte of the source that the copy begins with.
    pub offset: u64,
    /// Bytes that are copied; `None` for all that follow.
    pub length: Option<u64>,
    /// Lists what would be copied, and copies nothing.
    pub dry_run: bool,
    /// The bytes that standard input has; with any other number the copy fails.
    pub expect_size: Option<u64>,
    /// Writes into an existing file or device from this byte on, in place; `None` for a new file.
    pub target_offset: Option<u64>,
    /// Copies striped files to striped files, in directories too.
    pub striped: bool,
    /// Bytes of one request; `None` for the measured default.
    pub bs: Option<u64>,
    /// Requests in flight at most; `None` for as many as copy fastest.
    pub iodepth: Option<u32>,
    /// The treatment of files that exist already.
    pub existing: WhenThere,
    /// Bytes that are read each second at most; `None` for no limit.
    pub bytes_per_second: Option<u64>,
    /// Allows devices as sources that are mounted read-write.
    pub mounted: bool,
    /// Reads striped objects of a cluster whose copy was interrupted.
    pub incomplete: bool,
    /// The backend that moves the bytes.
    pub backend: BackendKind,
}

/// How the name of a manifest is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAs {
    /// As the striped file.
    Striped,
    /// As the manifest, a plain file.
    Plain,
}

impl Options {
    /// Copies `sources` to `target` with the defaults of `dio cp`.
    #[must_use]
    pub fn new(sources: impl IntoIterator<Item = PathBuf>, target: &Path) -> Options {
        Options {
            sources: sources.into_iter().collect(),
            target: target.to_owned(),
            into_directory: false,
            recursive: false,
            follow: Follow::default(),
            exclude: Vec::new(),
            nodes: false,
            preserve: Preserve::default(),
            one_file_system: false,
            no_target_directory: false,
            verify: false,
            hashes: true,
            resume: false,
            sparse: Sparse::default(),
            reflink: Reflink::default(),
            flush: FlushBy::default(),
            overwrite: false,
            offset: 0,
            length: None,
            dry_run: false,
            expect_size: None,
            target_offset: None,
            striped: false,
            bs: None,
            iodepth: None,
            existing: WhenThere::default(),
            bytes_per_second: None,
            mounted: false,
            incomplete: false,
            backend: BackendKind::default(),
        }
    }

    /// Returns true if a part of the source is copied, or to a part of the target.
    #[must_use]
    pub fn has_part(&self) -> bool {
        self.offset > 0 || self.length.is_some() || self.target_offset.is_some()
    }

    /// Returns true if a link that the command line names is followed.
    pub(super) fn follows_named(&self) -> bool {
        match self.follow {
            Follow::Usual => !self.recursive,
            Follow::Never => false,
            Follow::Named | Follow::Always => true,
        }
    }

    /// Returns how a manifest among sources and targets is opened. In a tree that is copied whole,
    /// manifests and objects are plain files unless `striped` is set.
    pub(super) fn open_as(&self) -> OpenAs {
        if self.recursive && !self.striped { OpenAs::Plain } else { OpenAs::Striped }
    }
}
