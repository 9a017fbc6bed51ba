//! XFS volumes for the tests: made, mounted and filled, then unmounted and opened by the reader.

use diopter_testkit::env::Capability;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;

use diopter::Errno;
use diopter_images::image::Source;
use diopter_images::xfs::Xfs;

use super::env;
use super::machine::{self, Dir, FileSystem, Loop, Mount};
use super::memory::Memory;

pub const MIB: u64 = 1 << 20;

/// How a volume is made.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    pub name: &'static str,
    pub mkfs: &'static [&'static str],
    pub block: u64,
    pub bytes: u64,
}

/// The defaults of mkfs.xfs.
pub const DEFAULT: Kind = Kind { name: "default", mkfs: &[], block: 4096, bytes: 160 * MIB };

/// Variants of the format, and many small allocation groups.
pub const KINDS: [Kind; 6] = [
    DEFAULT,
    Kind { name: "1k", mkfs: &["-b", "size=1024", "-d", "agcount=9"], block: 1024, ..DEFAULT },
    Kind {
        name: "2k-nrext64",
        mkfs: &["-b", "size=2048", "-i", "nrext64=1,size=1024"],
        block: 2048,
        ..DEFAULT
    },
    Kind {
        name: "4k-sectors",
        mkfs: &["-i", "nrext64=1", "-n", "size=16384", "-s", "size=4096", "-d", "agcount=7"],
        ..DEFAULT
    },
    Kind { name: "no-reflink", mkfs: &["-m", "reflink=0,rmapbt=1", "-l", "size=32m"], ..DEFAULT },
    Kind {
        name: "64k",
        mkfs: &["-b", "size=65536", "-l", "size=64m"],
        block: 65536,
        bytes: 400 * MIB,
    },
];

/// A mounted volume.
pub struct Live {
    mount: Mount,
    image: Image,
}

/// An unmounted one, removed with its owner.
pub struct Image {
    backing: PathBuf,
    _dir: Dir,
}

/// A file as the bytes of an image.
pub struct FileSource(fs::File);

/// Returns true if everything that a volume needs is here; prints a skip for what is not.
pub fn is_possible() -> bool {
    if let Some(why) = machine::loop_missing() {
        env::skip(Capability::Loop, why);
        return false;
    }
    if let Some((capability, why)) = (FileSystem::Xfs { extra: &[] }).missing() {
        env::skip(capability, why);
        return false;
    }
    true
}

impl Live {
    pub fn new(kind: Kind) -> Live {
        let dir = Dir::new("xfs-image").unwrap();
        let backing = dir.path().join("image");
        let device = Loop::over(&backing, kind.bytes, 512).unwrap();
        let mount = Mount::on(device, FileSystem::Xfs { extra: kind.mkfs }, "defaults").unwrap();
        Live { mount, image: Image { backing, _dir: dir } }
    }

    pub fn path(&self) -> &Path {
        self.mount.path()
    }

    /// Makes the volume read-only, so that what is asked of it from now on stays so.
    pub fn freeze(&self) {
        let at = self.path().to_str().unwrap();
        machine::run("mount", &["-o", "remount,ro", at]).unwrap();
    }

    /// Returns the image's content at this moment, still mounted.
    pub fn copy_of_device(&self) -> Memory {
        machine::run("sync", &["-f", self.path().to_str().unwrap()]).unwrap();
        Memory::read(self.mount.device().backing())
    }

    /// Unmounts it; `xfs_repair -n` finds nothing to mend.
    pub fn finish(self) -> Image {
        self.mount.finish().unwrap();
        self.image
    }
}

impl Image {
    pub fn path(&self) -> &Path {
        &self.backing
    }

    pub fn open(&self) -> Xfs {
        Xfs::open(Arc::new(FileSource::new(&self.backing))).unwrap()
    }
}

impl FileSource {
    pub fn new(path: &Path) -> FileSource {
        FileSource(fs::File::open(path).unwrap())
    }
}

impl Source for FileSource {
    fn size(&self) -> u64 {
        self.0.metadata().unwrap().len()
    }

    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> Result<(), Errno> {
        self.0.read_exact_at(buf, offset).map_err(|error| match error.raw_os_error() {
            Some(_) => Errno::EIO,
            None => Errno::ENODATA,
        })
    }
}

/// Gives commands to xfs_io, on one file.
pub fn xfs_io(path: &Path, commands: &[String]) {
    let mut child = Command::new("xfs_io")
        .arg("-f")
        .arg(path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let text = commands.join("\n") + "\n";
    // It writes while it reads, so its output must be taken meanwhile.
    let writer = std::thread::spawn(move || input.write_all(text.as_bytes()));
    let reported = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let errors = String::from_utf8_lossy(&reported.stderr).into_owned();
    assert!(reported.status.success() && errors.is_empty(), "{commands:?}: {errors}");
}
