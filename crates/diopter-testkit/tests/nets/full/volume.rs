//! Small file systems whose free space is set by a filler, or by a quota.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

use diopter_testkit::env::{Capability, skip};
use diopter_testkit::machine::{FileSystem, Loop, Mount, run};
use rustix::fs::{FallocateFlags, fallocate, statvfs, syncfs};
use rustix::io::Errno;

const MIB: u64 = 1 << 20;

/// The project of a quota.
const PROJECT: &str = "7";

/// The least piece of a filler.
const FILLER_PIECE_MIN: u64 = 4096;

/// Files that fill the metadata of a file system, and the bytes that each of them takes there.
const FILES_MAX: u32 = 100_000;
const INLINE_BYTES: usize = 1900;

/// Small files that are removed for what a cell has before. btrfs reserves several times what a
/// change of names then takes.
const FILES_ROOM: u32 = 3000;

/// Small files that are removed where a cell is to have a little space.
const FILES_LITTLE: u32 = 50;

/// Bytes of space where space for metadata is scarce.
const SPACE_NEXT_TO_METADATA: u64 = 16 << 20;

/// The resource that is scarce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scarce {
    /// Blocks, by a file that takes the others.
    Space,
    /// Blocks of a project, by its quota.
    Quota,
    /// Space for inodes and small files, by small files.
    Metadata,
}

/// A file system to fill.
pub struct Kind {
    pub name: &'static str,
    pub scarce: Scarce,
    /// `None` is a tmpfs.
    file_system: Option<FileSystem>,
    bytes: u64,
    options: &'static str,
}

const fn ext4(extra: &'static [&'static str]) -> Option<FileSystem> {
    Some(FileSystem::Ext4 { block: 4096, extra })
}

const fn space(name: &'static str, file_system: Option<FileSystem>, bytes: u64) -> Kind {
    Kind { name, scarce: Scarce::Space, file_system, bytes, options: "defaults" }
}

pub const KINDS: &[Kind] = &[
    space("ext2", Some(FileSystem::Ext2), 40 * MIB),
    space("ext4", ext4(&["-m", "0", "-J", "size=4"]), 48 * MIB),
    space("xfs", Some(FileSystem::Xfs { extra: &["-m", "reflink=0"] }), 64 * MIB),
    space("btrfs", Some(FileSystem::Btrfs), 160 * MIB),
    space("tmpfs", None, 32 * MIB),
    Kind {
        scarce: Scarce::Quota,
        options: "prjquota",
        ..space("quota", ext4(&["-m", "0", "-O", "project,quota"]), 64 * MIB)
    },
    Kind {
        scarce: Scarce::Metadata,
        ..space("btrfs-metadata", Some(FileSystem::Btrfs), 160 * MIB)
    },
];

/// The kind of this name.
pub fn kind(name: &str) -> &'static Kind {
    KINDS.iter().find(|kind| kind.name == name).unwrap_or_else(|| panic!("no kind {name}"))
}

/// A mounted file system.
pub struct Volume {
    kind: &'static Kind,
    mount: Mount,
    /// Small files that fill the metadata, by number.
    small: Cell<u32>,
}

impl Volume {
    /// Makes it; `None`, and a skip, where a tool or the kernel's part is missing.
    pub fn new(kind: &'static Kind) -> Option<Volume> {
        if let Some((capability, why)) = kind.file_system.and_then(FileSystem::missing) {
            skip(capability, why);
            return None;
        }
        let mount = match kind.file_system {
            None => Mount::tmpfs(kind.bytes),
            // In memory: a flush of a cell does not wait for a disk.
            Some(file_system) => Loop::new_in(Path::new("/dev/shm"), kind.name, kind.bytes)
                .and_then(|device| Mount::on(device, file_system, kind.options)),
        };
        let mount = match mount {
            Err(why) if kind.scarce == Scarce::Quota => {
                skip(Capability::Quota, why);
                return None;
            }
            mount => mount.unwrap_or_else(|why| panic!("{why}")),
        };
        let volume = Volume { kind, mount, small: Cell::new(0) };
        if kind.scarce == Scarce::Quota && !volume.has_project() {
            return None;
        }
        Some(volume)
    }

    /// The name of its kind.
    pub fn name(&self) -> &'static str {
        self.kind.name
    }

    /// Where cells have their files. Files next to it are fillers.
    pub fn dir(&self) -> PathBuf {
        self.project().join("cell")
    }

    fn project(&self) -> PathBuf {
        self.mount.path().join("project")
    }

    fn has_project(&self) -> bool {
        fs::create_dir(self.project()).unwrap();
        let project = self.project();
        let name = project.to_str().expect("UTF-8");
        let set = run("chattr", &["-p", PROJECT, name]).and_then(|_| run("chattr", &["+P", name]));
        match set.and_then(|_| self.limit(self.kind.bytes / 2)) {
            Ok(()) => true,
            Err(why) => {
                skip(Capability::Quota, why);
                false
            }
        }
    }

    fn limit(&self, bytes: u64) -> Result<(), String> {
        let mount = self.mount.path().to_str().expect("UTF-8");
        let blocks = (bytes / 1024).max(1).to_string();
        run("setquota", &["-P", PROJECT, "0", &blocks, "0", "0", mount]).map(drop)
    }

    /// Gives all space back.
    pub fn release(&self) {
        if self.kind.scarce == Scarce::Quota {
            return self.limit(self.kind.bytes / 2).unwrap();
        }
        if self.kind.scarce == Scarce::Metadata {
            self.remove_small(FILES_ROOM);
            return self.sync();
        }
        let filler = self.filler();
        let removed = fs::remove_dir_all(&filler);
        if let Err(error) = removed
            && error.kind() != ErrorKind::NotFound
        {
            panic!("{}: {error}", filler.display());
        }
        fs::create_dir_all(&filler).unwrap();
        self.sync();
    }

    /// Takes space until about so many bytes are left.
    pub fn leave(&self, bytes: u64) {
        self.sync();
        let filler = self.filler();
        match self.kind.scarce {
            Scarce::Quota => {
                let found = statvfs(self.project()).unwrap();
                let used = (found.f_blocks - found.f_bavail) * found.f_frsize;
                return self.limit(used + bytes).unwrap();
            }
            Scarce::Space => fill(&filler.join("space"), bytes),
            Scarce::Metadata => {
                // All chunks are taken, so that those of metadata are full at some point.
                let space = filler.join("space");
                if !space.exists() {
                    fs::create_dir_all(&filler).unwrap();
                    fill(&space, SPACE_NEXT_TO_METADATA);
                }
                self.add_small();
                self.remove_small(if bytes == 0 { 0 } else { FILES_LITTLE });
            }
        }
        self.sync();
    }

    fn filler(&self) -> PathBuf {
        self.project().join("filler")
    }

    fn small(&self, number: u32) -> PathBuf {
        self.filler().join(number.to_string())
    }

    /// Makes small files, whose bytes are next to their names, until there is no space for another.
    fn add_small(&self) {
        let bytes = [7; INLINE_BYTES];
        while self.small.get() < FILES_MAX {
            let name = self.small(self.small.get());
            if fs::write(&name, bytes).is_err() {
                // It may be there, without its bytes.
                return fs::remove_file(&name).unwrap_or(());
            }
            self.small.set(self.small.get() + 1);
        }
    }

    fn remove_small(&self, count: u32) {
        for _ in 0..count.min(self.small.get()) {
            self.small.set(self.small.get() - 1);
            fs::remove_file(self.small(self.small.get())).unwrap();
        }
    }

    /// A full file system may have no space for its journal: the next call finds that.
    pub fn sync(&self) {
        let synced = File::open(self.mount.path()).map(syncfs);
        assert!(matches!(synced, Ok(Ok(()) | Err(Errno::NOSPC))), "{synced:?}");
    }

    pub fn finish(self) {
        self.mount.finish().unwrap_or_else(|why| panic!("{}: {why}", self.kind.name));
    }
}

/// Writes or allocates a file until nothing is left, and cuts `left` bytes of it off.
fn fill(path: &Path, left: u64) {
    let mut file = File::create(path).unwrap();
    let zeros = vec![0; usize::try_from(MIB).expect("a MiB")];
    let (mut end, mut piece) = (0, 16 * MIB);
    while piece >= FILLER_PIECE_MIN {
        match fallocate(&file, FallocateFlags::empty(), end, piece) {
            Ok(()) => end += piece,
            Err(Errno::OPNOTSUPP) => {
                while file.write(&zeros).is_ok_and(|count| count > 0) {}
                end = file.metadata().unwrap().len();
                break;
            }
            Err(_) => piece /= 2,
        }
    }
    // What a failed allocation may have left behind the end goes, too.
    file.set_len(end.saturating_sub(left)).unwrap();
    file.sync_all().unwrap();
}
