//! Parts that the file systems of the tests share: a mount of FUSE that ends when it is dropped,
//! attributes, and replies of bytes. Knows no file.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use fuser::{
    BackgroundSession, Config, Errno, FileAttr, FileType, Filesystem, INodeNo, MountOption,
    ReplyXattr, Session,
};

use crate::machine::{self, Dir};

/// Threads that take requests out of the kernel: a write's bytes are copied meanwhile.
const TAKERS: usize = 2;

/// A mounted file system; gone when dropped.
pub(crate) struct Mount {
    session: Option<BackgroundSession>,
    at: PathBuf,
    _dir: Dir,
}

impl Mount {
    /// Mounts a file system on a new directory.
    pub fn new(name: &str, files: impl Filesystem) -> Result<Mount, String> {
        let say = |what: &'static str| move |error: io::Error| format!("{what}: {error}");
        let dir = Dir::new(name)?;
        let at = dir.path().join("mnt");
        std::fs::create_dir(&at).map_err(say("mount point"))?;
        let mut config = Config::default();
        config.mount_options = vec![MountOption::FSName(format!("diopter-{name}"))];
        config.n_threads = Some(TAKERS);
        let session = Session::new(files, &at, &config).map_err(say("mount"))?;
        let session = session.spawn().map_err(say("thread"))?;
        Ok(Mount { session: Some(session), at, _dir: dir })
    }

    pub fn path(&self) -> &Path {
        &self.at
    }

    /// Unmounts it and waits for its threads, once.
    pub fn end(&mut self) -> Result<(), String> {
        let Some(session) = self.session.take() else { return Ok(()) };
        // By the program and patiently: an engine's last reference to a file goes after the engine.
        // Otherwise joining its threads would not end; they end with the process.
        machine::unmount(&self.at)?;
        session.join().map_err(|error| error.to_string())
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.end().unwrap_or_else(|message| eprintln!("{message}"));
    }
}

pub(crate) fn attributes_of(number: INodeNo, kind: FileType, perm: u16, size: u64) -> FileAttr {
    let (time, blocks) = (SystemTime::UNIX_EPOCH, size.div_ceil(512));
    FileAttr {
        ino: number,
        size,
        blocks,
        atime: time,
        mtime: time,
        ctime: time,
        crtime: time,
        kind,
        perm,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: 4096,
        flags: 0,
    }
}

/// Writes at an offset of a file, which grows as needed.
pub(crate) fn write_at(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let start = to_usize(offset);
    let end = start + bytes.len();
    if file.len() < end {
        file.resize(end, 0);
    }
    file[start..end].copy_from_slice(bytes);
}

/// Returns up to `length` bytes from an offset of a file on.
pub(crate) fn read_at(file: &[u8], offset: u64, length: usize) -> &[u8] {
    let start = to_usize(offset).min(file.len());
    &file[start..(start + length).min(file.len())]
}

/// Replies with bytes of an extended attribute, or their number where `size` is 0.
pub(crate) fn give(reply: ReplyXattr, size: u32, result: Result<Vec<u8>, Errno>) {
    match result {
        Err(errno) => reply.error(errno),
        Ok(bytes) if size == 0 => reply.size(u32::try_from(bytes.len()).expect("64 KiB at most")),
        Ok(bytes) if bytes.len() > to_usize(size.into()) => reply.error(Errno::ERANGE),
        Ok(bytes) => reply.data(&bytes),
    }
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub(crate) fn to_usize(value: u64) -> usize {
    usize::try_from(value).expect("64-bit only")
}
