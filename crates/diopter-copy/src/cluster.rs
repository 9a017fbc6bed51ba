//! Striped objects of a Ceph cluster, whose names start with `rados:`: connections, and what is
//! open for reading.

use std::path::{Path, PathBuf};

use diopter::Errno;
use diopter_rados::name::Name;
use diopter_rados::striper;
use diopter_rados::{Cluster, Connect, Error, Library, Pool};

use crate::failure::Failure;

/// The clusters of a run, each connected once.
#[derive(Default)]
pub struct Clusters {
    connected: Vec<(Option<PathBuf>, Cluster)>,
}

impl Clusters {
    /// Returns the pool of a name.
    pub fn pool(&mut self, name: &Name) -> Result<Pool, Error> {
        let there = self.connected.iter().find(|(conf, _)| *conf == name.conf);
        let cluster = match there {
            Some((_, cluster)) => cluster.clone(),
            None => {
                let how = Connect { conf: name.conf.clone(), ..Connect::default() };
                let cluster = Cluster::connect(&Library::load(None)?, &how)?;
                self.connected.push((name.conf.clone(), cluster.clone()));
                cluster
            }
        };
        cluster.pool(&name.pool, name.namespace.as_deref())
    }
}

/// A striped object that is open for reading.
pub struct Object {
    pub file: striper::File,
    /// Its name, for messages.
    pub path: PathBuf,
    /// Its size when it was opened.
    pub size: u64,
    /// True if it had no mark then.
    is_complete: bool,
}

impl Object {
    /// Opens a striped object; one that is not complete only if `incomplete` is true. With a key
    /// that may only read it has no lock.
    pub fn open(
        clusters: &mut Clusters,
        (path, name): (&Path, &Name),
        incomplete: bool,
    ) -> Result<Object, Failure> {
        let failed = |error: Error| cannot("opening", path, &error);
        let pool = clusters.pool(name).map_err(failed)?;
        let file = striper::File::open_to_read(&pool, &name.name).map_err(failed)?;
        let is_complete = file.is_complete().map_err(failed)?;
        if !incomplete && !is_complete {
            let cause = "the copy that made it was interrupted, and it is not complete";
            let remedy = "copy it again, or read what there is with --incomplete";
            return Err(Failure::of_rule("opening", path, cause, remedy));
        }
        let size = file.size().map_err(failed)?;
        Ok(Object { file, path: path.to_owned(), size, is_complete })
    }

    /// Fails if the size or the mark is not what it was. The lock keeps the object from being
    /// truncated and removed, but not from being written; without it, it may be another one.
    pub fn check_unchanged(&self) -> Result<(), Failure> {
        let failed = |error: Error| cannot("reading", &self.path, &error);
        let cause = if self.file.size().map_err(failed)? != self.size {
            "its size changed while it was read"
        } else if self.file.is_complete().map_err(failed)? != self.is_complete {
            "another copy wrote it while it was read"
        } else {
            return Ok(());
        };
        let remedy = "end what writes to it, and try again";
        Err(Failure::of_rule("reading", &self.path, cause, remedy))
    }

    /// Reads a whole chunk.
    pub fn read(&self, offset: u64, chunk: &mut [u8]) -> Result<(), Failure> {
        read_whole((&self.file, &self.path), offset, chunk)
    }
}

/// Reads a whole chunk of an open striped object.
pub fn read_whole(
    (file, path): (&striper::File, &Path),
    offset: u64,
    chunk: &mut [u8],
) -> Result<(), Failure> {
    let read = file.read_at(offset, chunk).map_err(|error| cannot("reading", path, &error))?;
    if read == chunk.len() {
        return Ok(());
    }
    let end = offset + read as u64;
    let cause = format!("it ends at byte {end}: another client truncated it");
    Err(Failure::of_rule("reading", path, &cause, "try again"))
}

/// Parses a name; `None` if it does not start with `rados:`.
pub fn parse(path: &Path) -> Option<Result<Name, Failure>> {
    let parsed = Name::parse(path.as_os_str())?;
    Some(parsed.map_err(|error| cannot("opening", path, &error)))
}

/// The failure of an operation on a striped object.
pub fn cannot(what: &'static str, on: &Path, error: &Error) -> Failure {
    let mut cause = error.cause();
    if let Some(number) = error.errno() {
        // As in every other message of the copy.
        let standard = std::io::Error::from_raw_os_error(number).to_string();
        cause = cause.replace(&standard, &Errno::from_raw(number).to_string());
    }
    let usual = match is(error, Errno::ENOENT) {
        true => "check the name, and what is there with `ceph osd pool ls` and `rados ls`",
        false => "check the cluster with `ceph -s`",
    };
    let remedy = error.advice().unwrap_or(usual);
    Failure { is_unknown: error.is_unknown(), ..Failure::of_rule(what, on, &cause, remedy) }
}

pub fn is(error: &Error, errno: Errno) -> bool {
    error.errno() == Some(errno.raw())
}
