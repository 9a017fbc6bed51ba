//! Paths inside unmounted file systems, for every command: how they are opened, and the messages of
//! what can't be opened. The commands use them.

mod extents;

use std::path::{Path, PathBuf};

use diopter::images::{Image, ImageError, ImageErrorKind};
use diopter::probe::probe;
use diopter::{BackendKind, Error, File, FileRange, SetupError};
use diopter_images::image::walk::ExtentWalk;
use diopter_images::image::{Node, NodeKind, Use};
use rustix::fs::{Mode, OFlags};

pub use diopter::images::{InsideName, split_name as split};
pub use extents::{DataRanges, ExtentCounts, MappedBytes, check_overwrite};

/// An open image, and a path in it.
pub struct Inside {
    /// The image.
    pub image: Image,
    /// The path of the image.
    pub image_path: PathBuf,
    /// The path inside the image.
    pub path: Vec<u8>,
    /// The inode of that path.
    pub node: Node,
}

/// Opens an image, and finds the path in it.
///
/// # Errors
/// The library's, each with a remedy.
pub fn open(name: &InsideName, purpose: Use) -> diopter::Result<Inside> {
    let is_write = purpose == Use::Overwrite;
    let options = File::options().read(true).write(is_write).clone();
    find(name, Image::open_with(&name.image, &options))
}

/// Like [`open`] for overwriting, but does not open the image for writing: nothing is written.
///
/// # Errors
/// As [`open`].
pub fn open_to_plan(name: &InsideName) -> diopter::Result<Inside> {
    find(name, Image::open_to_plan(&name.image))
}

fn find(name: &InsideName, image: diopter::Result<Image>) -> diopter::Result<Inside> {
    let failed = |error| if_mounted(&name.image, with_remedy(error));
    let image = image.map_err(|error| failed(if_disk(&name.image, error)))?;
    let node = image.find(&name.path).map_err(failed)?;
    Ok(Inside { image, image_path: name.image.clone(), path: name.path.clone(), node })
}

impl Inside {
    /// Opens the named file, in the mode of the image.
    ///
    /// # Errors
    /// The library's, each with a remedy: it is not a file, or may not be used so.
    pub fn file(&self) -> diopter::Result<File> {
        if self.node.kind == NodeKind::File {
            return self.image.file_of(self.node.inode).map_err(with_remedy);
        }
        let what = format!("it is {}, not a regular file", with_article(self.node.kind));
        let remedy = match self.node.kind {
            NodeKind::Directory => {
                "name a file in it, which `dio probe` lists; `dio cp -r` copies the directory out"
            }
            _ => "mount the image to use it",
        };
        Err(ImageError::new(ImageErrorKind::NotAFile, what).with_remedy(remedy).into())
    }

    /// Returns a copy of the file's bytes if they are in its inode.
    ///
    /// # Errors
    /// `Corrupt`, `Io`.
    pub fn inline_data(&self) -> Result<Option<Vec<u8>>, ImageError> {
        self.image.volume().inline_data(self.node.inode)
    }

    /// Refuses a file that maps more in `range` than its volume can hold.
    ///
    /// # Errors
    /// `Refused`, and the volume's errors.
    pub fn check_mapped(&self, range: FileRange) -> Result<(), ImageError> {
        let end = range.end().min(self.node.size);
        if range.start() >= end {
            return Ok(());
        }
        let range = FileRange::new(range.start(), end);
        ExtentWalk::new(self.image.volume(), self.node.inode, range)
            .try_for_each(|extent| extent.map(drop))
    }

    /// Refuses a write to bytes that are shared or not written.
    ///
    /// # Errors
    /// `Refused` with the first such range, and the volume's errors.
    pub fn check_overwrite(&self, range: FileRange) -> diopter::Result<()> {
        Ok(check_overwrite(self.image.volume(), &self.node, range)?)
    }
}

/// Returns the kind of a node as in JSON.
pub fn kind_name(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::File => "file",
        NodeKind::Directory => "directory",
        NodeKind::Symlink => "symlink",
        NodeKind::Other => "other",
    }
}

fn with_article(kind: NodeKind) -> &'static str {
    match kind {
        NodeKind::File => "a regular file",
        NodeKind::Directory => "a directory",
        NodeKind::Symlink => "a symbolic link",
        NodeKind::Other => "a device, fifo or socket",
    }
}

/// Adds a remedy to an error of an image that has none.
fn with_remedy(error: Error) -> Error {
    match error {
        Error::Image(error) if error.remedy.is_empty() => {
            let remedy = remedy_of(error.kind);
            error.with_remedy(remedy).into()
        }
        other => other,
    }
}

/// Returns an error that names the format of a disk of a virtual machine, if the file has one.
fn if_disk(image: &Path, error: Error) -> Error {
    let is_unknown = |error: &ImageError| {
        matches!(error.kind, ImageErrorKind::NotAnImage | ImageErrorKind::Truncated)
    };
    let format = match &error {
        Error::Image(error) if is_unknown(error) => disk_format(image),
        _ => None,
    };
    let Some(format) = format else { return error };
    let what = format!("it is a {format} image, which is not read");
    let remedy = "convert it with `qemu-img convert -O raw`; of a disk with partitions, name the \
                  partition (losetup --partscan makes them)";
    ImageError::new(ImageErrorKind::NotAnImage, what).with_remedy(remedy).into()
}

/// Returns the format of a disk of a virtual machine, by its first bytes.
fn disk_format(image: &Path) -> Option<&'static str> {
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(image, flags, Mode::empty()).ok()?;
    let mut first = [0u8; 21];
    let length = rustix::io::pread(&fd, &mut first[..], 0).ok()?;
    let formats: [(&[u8], &str); 4] = [
        (b"QFI\xfb", "qcow2"),
        (b"vhdxfile", "VHDX"),
        (b"KDMV", "VMDK"),
        (b"# Disk DescriptorFile", "VMDK"),
    ];
    let its = formats.iter().find(|(magic, _)| first[..length].starts_with(magic));
    its.map(|(_, format)| *format)
}

/// Returns an error that says that the device, or a loop device over the image, is mounted, if it
/// is: that explains all others.
fn if_mounted(image: &Path, error: Error) -> Error {
    let facts = match &error {
        Error::Image(error) if error.kind != ImageErrorKind::NotFound => {
            probe(image, BackendKind::Threads).ok()
        }
        _ => None,
    };
    let points = facts.map(|reported| reported.facts.device_mounts).unwrap_or_default();
    let Some(point) = points.first() else { return error };
    let what = format!("its file system is mounted at {}", point.display());
    let remedy = "use the files there, or unmount it first";
    ImageError::new(ImageErrorKind::Refused, what).with_remedy(remedy).into()
}

/// Returns the remedy for an error of an image.
pub fn remedy_of(kind: ImageErrorKind) -> &'static str {
    match kind {
        ImageErrorKind::NotAnImage => {
            "name an ext2, ext3, ext4 or XFS image or device; of a disk with partitions, name the \
             partition (losetup --partscan makes them)"
        }
        ImageErrorKind::Truncated => "the image is truncated: fetch or copy it again",
        ImageErrorKind::Corrupt => "check it with `e2fsck -n` or `xfs_repair -n`",
        ImageErrorKind::NotFound | ImageErrorKind::NotADirectory => {
            "list the directory with `dio probe IMAGE::/`"
        }
        ImageErrorKind::NotAFile => "name a regular file",
        ImageErrorKind::Io(_) => "the kernel's log names the device and the sector",
        _ => "mount it, and use the mounted files",
    }
}

/// Returns why something inside an image can't be used: the cause, and the remedy.
pub fn cause_and_remedy(error: &Error) -> (String, String) {
    let (cause, remedy) = match error {
        Error::Image(error) => {
            let bare = ImageError { remedy: "", ..error.clone() };
            (bare.to_string(), error.remedy)
        }
        Error::Setup(SetupError { what, errno, remedy, .. }) => {
            let what = if *what == "open" { String::new() } else { format!("{what} it: ") };
            (format!("{what}{errno}"), *remedy)
        }
        other => (other.to_string(), ""),
    };
    let remedy = if remedy.is_empty() { "check the image" } else { remedy };
    (cause, remedy.to_owned())
}

/// Returns a name inside an image for messages and documents.
pub fn shown(image: &Path, path: &[u8]) -> String {
    format!("{}::{}", image.display(), String::from_utf8_lossy(path))
}
