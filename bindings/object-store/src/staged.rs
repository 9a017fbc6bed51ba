//! A file that is written under another name and then takes its place, as `LocalFileSystem` does
//! it: `NAME#1`, `NAME#2` and so on, which no listing has.

use std::fs::{self, File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use object_store::{Error, Result};

use crate::error;

/// The name of a staged file. It is removed unless it was published.
#[derive(Debug)]
pub(crate) struct Staged {
    path: PathBuf,
    destination: PathBuf,
    /// Names are made durable.
    is_durable: bool,
    is_published: bool,
}

/// The fate of an object with the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Existing {
    Replaced,
    Kept,
}

impl Staged {
    /// Creates a file next to `destination`, and the directories above it.
    pub fn create(destination: PathBuf, is_durable: bool) -> Result<(Staged, diopter::File)> {
        let mut number = 1;
        loop {
            let mut path = destination.clone().into_os_string();
            path.push(format!("#{number}"));
            let path = PathBuf::from(path);
            let opened =
                diopter::File::options().read(true).write(true).create_new(true).open(&path);
            match opened {
                Ok(file) => {
                    let is_published = false;
                    return Ok((Staged { path, destination, is_durable, is_published }, file));
                }
                Err(failed) => match failed.kind() {
                    ErrorKind::AlreadyExists => number += 1,
                    ErrorKind::NotFound => create_directories(&path, failed.into(), is_durable)?,
                    _ => return Err(error::of_file("Unable to open file", &path, failed)),
                },
            }
        }
    }

    /// Gives the file its name. The file itself is durable before that, if it has to be.
    pub fn publish(mut self, existing: Existing) -> Result<()> {
        match existing {
            Existing::Replaced => {
                let renamed = fs::rename(&self.path, &self.destination);
                renamed.map_err(|source| error::of_step("Unable to rename file", source))?;
                self.is_published = true;
            }
            Existing::Kept => self.link()?,
        }
        if self.is_durable { sync_parent(&self.destination) } else { Ok(()) }
    }

    fn link(&self) -> Result<()> {
        fs::hard_link(&self.path, &self.destination).map_err(|source| {
            if source.kind() == ErrorKind::AlreadyExists {
                let path = self.destination.to_string_lossy().into_owned();
                return Error::AlreadyExists { path, source: source.into() };
            }
            error::of_step("Unable to rename file", source)
        })
    }

    /// Removes the file.
    pub fn remove(mut self) -> Result<()> {
        self.is_published = true;
        fs::remove_file(&self.path)
            .map_err(|source| error::of_file("Unable to delete file", &self.path, source))
    }
}

impl Drop for Staged {
    /// Blocks for one system call.
    fn drop(&mut self) {
        if !self.is_published {
            // It may have been removed already, and a drop cannot report an error.
            fs::remove_file(&self.path).unwrap_or(());
        }
    }
}

/// Returns the entity tag of a file, the same as `LocalFileSystem` computes: a listing has it too.
pub(crate) fn e_tag(metadata: &Metadata) -> String {
    let modified = metadata.modified().ok();
    let since = modified.and_then(|modified| modified.duration_since(UNIX_EPOCH).ok());
    let micros = since.unwrap_or_default().as_micros();
    format!("\"{:x}-{micros:x}-{:x}\"", metadata.ino(), metadata.len())
}

fn create_directories(path: &Path, source: io::Error, is_durable: bool) -> Result<()> {
    let Some(parent) = path.parent() else {
        return Err(error::of_file("Unable to create file", path, source));
    };
    // The directories that get a new entry.
    let mut changed = Vec::new();
    for directory in parent.ancestors() {
        changed.push(directory);
        if directory.exists() {
            break;
        }
    }
    fs::create_dir_all(parent)
        .map_err(|source| error::of_file("Unable to create dir", parent, source))?;
    if is_durable {
        changed.into_iter().try_for_each(sync_directory)?;
    }
    Ok(())
}

fn sync_parent(path: &Path) -> Result<()> {
    path.parent().map_or(Ok(()), sync_directory)
}

fn sync_directory(path: &Path) -> Result<()> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|source| error::of_file("Unable to sync data to disk for", path, source))
}
