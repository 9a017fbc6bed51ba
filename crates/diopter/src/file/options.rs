//! How a file is opened, as std's `OpenOptions` with what direct I/O adds.

use std::os::fd::OwnedFd;
use std::path::Path;

use diopter_core::backend::BackingObject;
use diopter_core::backend::local::LocalObject;
use diopter_core::engine::target::{Access, Blocks, Target};
use diopter_core::error::SetupError;
use diopter_core::inodes::{InodeKey, inode_lock_of};
use diopter_core::map::Identity;
use diopter_core::policy::RoutePolicy;
use diopter_core::sync::Arc;
use diopter_os::file::{self, BufferedReason, DirectSupport, FileKind, OpenedFile};
use diopter_os::{Errno, IoPriority, RwFlags};

use crate::direct::{self, DirectStates};
use crate::error::Result;
#[cfg(feature = "layouts")]
use crate::file::striped;
use crate::file::{Facts, File, Inner, Sample, directness_of};

/// Options for opening a [`File`]; every one is off at first.
///
/// ```
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let directory = tempfile::tempdir()?;
/// # let path = directory.path().join("data");
/// let mut options = diopter::OpenOptions::new();
/// options.read(true).write(true).create(true);
/// let file = options.open(&path)?;
/// # assert_eq!(file.size()?, 0);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct OpenOptions {
    pub(super) sys: file::OpenOptions,
    pub(super) access: Access,
    /// Combinations that std refuses are left to open(2).
    as_open: bool,
    #[cfg(feature = "layouts")]
    striped: bool,
}

impl Default for OpenOptions {
    fn default() -> OpenOptions {
        OpenOptions::new()
    }
}

impl OpenOptions {
    /// Returns options with nothing set.
    #[must_use]
    pub fn new() -> OpenOptions {
        let sys = file::OpenOptions { read: false, mode: 0o666, ..file::OpenOptions::default() };
        OpenOptions {
            sys,
            access: Access::default(),
            as_open: false,
            #[cfg(feature = "layouts")]
            striped: false,
        }
    }

    /// Enables read access.
    pub fn read(&mut self, read: bool) -> &mut OpenOptions {
        self.access.read = read;
        self
    }

    /// Enables write access.
    pub fn write(&mut self, write: bool) -> &mut OpenOptions {
        self.access.write = write;
        self
    }

    /// Enables write access at the end of the file, whatever the offset; atomic between processes.
    pub fn append(&mut self, append: bool) -> &mut OpenOptions {
        self.access.append = append;
        self
    }

    /// Creates the file if it is not there.
    pub fn create(&mut self, create: bool) -> &mut OpenOptions {
        self.sys.create = create;
        self
    }

    /// Creates the file, and refuses one that is there.
    pub fn create_new(&mut self, create_new: bool) -> &mut OpenOptions {
        self.sys.create_new = create_new;
        self
    }

    /// Truncates the file to 0 bytes.
    pub fn truncate(&mut self, truncate: bool) -> &mut OpenOptions {
        self.sys.truncate = truncate;
        self
    }

    /// Sets the permission bits of a file that is created, before the umask; the default is 0o666.
    pub fn mode(&mut self, mode: u32) -> &mut OpenOptions {
        self.sys.mode = mode;
        self
    }

    /// Refuses, before any byte moves, every request that would go through the page cache even in
    /// part, and refuses to open a file that has no direct I/O.
    pub fn strict(&mut self, strict: bool) -> &mut OpenOptions {
        self.access.strict = strict;
        self
    }

    /// Other processes write the same blocks, and open with this option too: writes lock their
    /// blocks, by locks of open file descriptions (`F_OFD_SETLK` of fcntl(2)). A child of fork
    /// locks through a separate descriptor, which needs `/proc`. A POSIX lock (`F_SETLK`) of
    /// another process on these bytes makes a write wait. One of this process makes it fail with
    /// `LockedHere` after one second.
    pub fn shared_writers(&mut self, shared: bool) -> &mut OpenOptions {
        self.access.shared_writers = shared;
        self
    }

    /// Sets which of the file's requests bypass the page cache, in place of the policy of the
    /// engine that serves them.
    pub fn route(&mut self, route: RoutePolicy) -> &mut OpenOptions {
        self.access.route = Some(route);
        self
    }

    /// Sets the priority of the file's direct requests in the scheduler of the device, where they
    /// are queued on io_uring or Linux AIO; the last call counts. A blocking call that is one
    /// request, and requests of the backend `threads`, have the priority of their thread
    /// (ionice(1)). If the process may not use the class, a request on io_uring fails with `EPERM`,
    /// and Linux AIO makes it a plain call.
    pub fn io_priority(&mut self, priority: IoPriority) -> &mut OpenOptions {
        self.access.priority = Some(priority);
        self
    }

    /// Makes every write durable when its result is returned, with the metadata needed to read it
    /// (`RWF_DSYNC`).
    pub fn dsync(&mut self, dsync: bool) -> &mut OpenOptions {
        self.set_durability(RwFlags::DSYNC, dsync);
        self
    }

    /// Makes every write durable with all metadata when its result is returned (`RWF_SYNC`).
    pub fn sync(&mut self, sync: bool) -> &mut OpenOptions {
        self.set_durability(RwFlags::SYNC, sync);
        self
    }

    /// Sets or clears one of two independent flags, dsync and sync; if both are set, sync applies.
    fn set_durability(&mut self, flag: RwFlags, is_set: bool) {
        let others = self.access.durability.without(flag);
        self.access.durability = if is_set { others.with(flag) } else { others };
    }

    /// Permits the combinations of options that open(2) permits and std refuses, for callers with
    /// the flags of open(2).
    #[doc(hidden)]
    pub fn as_open(&mut self, as_open: bool) -> &mut OpenOptions {
        self.as_open = as_open;
        self
    }

    /// Refuses a block device that is mounted or otherwise held (`O_EXCL`).
    pub fn exclusive(&mut self, exclusive: bool) -> &mut OpenOptions {
        self.sys.exclusive = exclusive;
        self
    }

    /// Refuses a symbolic link as the last part of the path.
    pub fn no_follow(&mut self, no_follow: bool) -> &mut OpenOptions {
        self.sys.no_follow = no_follow;
        self
    }

    /// Opens a striped file by the name of its manifest. Every other file is opened as without this
    /// option; to recognize a manifest, a regular file of at most 16 MiB is read up to its 22nd
    /// byte. A manifest needs its mark (the extended attribute `user.diopter.manifest`): a file
    /// that only has the content of one is refused. For writing only, nothing is read and the mark
    /// alone decides.
    #[cfg(feature = "layouts")]
    pub fn striped(&mut self, striped: bool) -> &mut OpenOptions {
        self.striped = striped;
        self
    }

    /// Opens the file.
    ///
    /// # Errors
    /// `SetupError` with the path, the errno and what to do; `LayoutError` for a striped file.
    pub fn open(&self, path: impl AsRef<Path>) -> Result<File> {
        let path = path.as_ref();
        let opened = self.open_sys(path)?;
        #[cfg(feature = "layouts")]
        if self.striped
            && !self.sys.create_new
            && striped::is_manifest_in(&opened, self.access.read, path)?
        {
            return striped::open(self, striped::same_layout(&opened, path)?);
        }
        let examined = self.examine(opened);
        self.check_strict(examined.direct, Some(path))?;
        let file = self.assemble(examined, None);
        if self.sys.truncate && file.kind() == FileKind::Regular && file.size()? > 0 {
            file.set_len(0)?;
        }
        Ok(file)
    }

    /// Makes a file of a descriptor, which the caller opened as the options say.
    #[cfg(feature = "images")]
    pub(super) fn take_descriptor(&self, fd: OwnedFd) -> Result<File> {
        let opened = file::inspect(fd)
            .map_err(|failure| SetupError::new(failure.what, None, failure.errno, ""))?;
        let examined = self.examine(opened);
        self.check_strict(examined.direct, None)?;
        Ok(self.assemble(examined, None))
    }

    /// Finds out whether direct I/O on an open file is direct, as far as these options need it.
    pub(super) fn examine(&self, opened: OpenedFile) -> Examined {
        let states = direct::examine(&opened, self.access, self.sys.truncate);
        Examined { direct: states.support(opened.direct), states, opened }
    }

    /// Returns true if opening may make or truncate the file.
    #[cfg(feature = "images")]
    pub(super) fn changes_file(&self) -> bool {
        self.sys.create || self.sys.create_new || self.sys.truncate
    }

    fn writes(&self) -> bool {
        self.access.write || self.access.append
    }

    /// Opens the file and inspects it. Does not truncate yet: the file may be a manifest, which
    /// must not be truncated.
    pub(super) fn open_sys(&self, path: &Path) -> Result<OpenedFile> {
        let fail =
            |what, errno, remedy| SetupError::new(what, Some(path.to_owned()), errno, remedy);
        if !self.access.read && !self.writes() {
            return Err(fail("open", Errno::EINVAL, "set read, write or append").into());
        }
        // What std refuses: one of the options would have no effect, or a surprising one.
        if self.sys.truncate && !self.writes() {
            let remedy = "set write, or do not truncate";
            return Err(fail("truncate without write:", Errno::EINVAL, remedy).into());
        }
        if (self.sys.create || self.sys.create_new) && !self.writes() && !self.as_open {
            let remedy = "set write or append, or do not create";
            return Err(fail("create without write:", Errno::EINVAL, remedy).into());
        }
        let keeps_new = self.sys.create_new || self.as_open;
        if self.sys.truncate && self.access.append && !keeps_new {
            let remedy = "set write in place of append, or do not truncate";
            return Err(fail("truncate with append:", Errno::EINVAL, remedy).into());
        }
        let (read, write) = (self.access.read, self.writes());
        let sys = file::OpenOptions { read, write, truncate: false, ..self.sys.clone() };
        let opened = file::open(path, &sys);
        let refused = |failure: file::OpenFailure| {
            fail(failure.what, failure.errno, remedy_of(failure.errno)).into()
        };
        opened.map_err(refused)
    }

    pub(super) fn check_strict(&self, direct: DirectSupport, path: Option<&Path>) -> Result<()> {
        let (true, DirectSupport::None(reason)) = (self.access.strict, direct) else {
            return Ok(());
        };
        let what = match reason {
            BufferedReason::MemoryFileSystem => "a memory file system has no direct I/O: open",
            BufferedReason::RefusedByOpen => "this file system refuses O_DIRECT: open",
            _ => "this file has no direct I/O: open",
        };
        let (path, remedy) = (path.map(Path::to_owned), "open it without strict");
        Err(SetupError::new(what, path, Errno::EOPNOTSUPP, remedy).into())
    }

    /// Makes a file of what was opened; `given` is the caller's descriptor if `opened` has a
    /// different one.
    pub(super) fn assemble(&self, examined: Examined, given: Option<OwnedFd>) -> File {
        let Examined { opened, direct, states } = examined;
        let facts = Facts {
            alignment: opened.alignment,
            atomic_write: opened.atomic_write,
            direct,
            states,
        };
        let blocks = Blocks {
            read: u64::from(opened.alignment.offset_read),
            write: u64::from(opened.alignment.offset_write),
            memory: u64::from(opened.alignment.memory),
            page: u64::from(opened.cache_unit),
        };
        let directness = directness_of(direct);
        let inode = (opened.kind == FileKind::Regular).then_some(opened.inode);
        let key = InodeKey::OfFile { device: opened.device, inode };
        let read = self.access.read;
        let OpenedFile { fd, kind, file_system, .. } = opened;
        let object = LocalObject::new(fd, kind, file_system, read, self.writes());
        let object = Arc::new(object.with_priority(self.access.priority));
        let backing: Arc<dyn BackingObject> = Arc::clone(&object) as Arc<dyn BackingObject>;
        let mapper = Box::new(Identity);
        let inode_lock = Box::new(move || inode_lock_of(key));
        let target = Target::new(vec![backing], mapper, blocks, self.access, inode_lock);
        let target = Arc::new(target.with_directness(directness));
        // The inode lock is found now, so that opening, not the first write, pays for it.
        target.inode_lock();
        let objects = Box::new([object]);
        let inner = Inner {
            target,
            objects,
            #[cfg(feature = "layouts")]
            layout: None,
            #[cfg(feature = "rados")]
            cluster: None,
            facts,
            sample: Sample::new(),
            given,
        };
        File { inner: Arc::new(inner) }
    }
}

/// An open file, and how much of its I/O is direct.
pub(super) struct Examined {
    pub(super) opened: OpenedFile,
    pub(super) direct: DirectSupport,
    pub(super) states: DirectStates,
}

pub(super) fn remedy_of(errno: Errno) -> &'static str {
    match errno {
        Errno::ENOENT => "check the path",
        Errno::EACCES | Errno::EPERM => "check the permissions of the file and its directory",
        Errno::EISDIR => "name a file",
        Errno::EMFILE => "close files, or raise RLIMIT_NOFILE (ulimit -n)",
        Errno::ENOSPC => "free space on the file system",
        Errno::EROFS => "the file system is mounted read-only",
        Errno::EBUSY => "it is mounted or in use: unmount it",
        Errno::EEXIST => "remove it, or open it without create_new",
        _ => "",
    }
}

#[cfg(all(test, not(diopter_loom)))]
mod tests {
    use super::*;

    #[test]
    fn options_that_std_refuses_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        for bits in 0..64_u32 {
            let has = |bit: u32| bits & (1 << bit) != 0;
            let (read, write, append) = (has(0), has(1), has(2));
            let (truncate, create, create_new) = (has(3), has(4), has(5));
            let mut std = std::fs::OpenOptions::new();
            std.read(read).write(write).append(append);
            std.truncate(truncate).create(create).create_new(create_new);
            let mut ours = OpenOptions::new();
            ours.read(read).write(write).append(append);
            ours.truncate(truncate).create(create).create_new(create_new);
            let ready = || match create_new {
                true => std::fs::remove_file(&path).unwrap_or(()),
                false => std::fs::write(&path, b"content").unwrap(),
            };
            ready();
            let expected = std.open(&path).map(|_| ()).map_err(|error| error.kind());
            ready();
            let opened = ours.open(&path).map(|_| ()).map_err(|error| error.kind());
            assert_eq!(opened, expected, "{ours:?}");
        }
    }

    #[test]
    fn dsync_and_sync_are_set_and_cleared_each_by_itself() {
        let check = |options: &mut OpenOptions, dsync: bool, sync: bool| {
            let durability = options.access.durability;
            assert_eq!(durability.has(RwFlags::DSYNC), dsync, "{durability:?}");
            assert_eq!(durability.has(RwFlags::SYNC), sync, "{durability:?}");
        };
        let new = OpenOptions::new;
        check(&mut new(), false, false);
        check(new().dsync(true).sync(false), true, false);
        check(new().sync(true).dsync(false), false, true);
        check(new().sync(true).dsync(true), true, true);
        check(new().dsync(true).sync(true).sync(false), true, false);
        check(new().dsync(true).dsync(false), false, false);
    }
}
