//! Striped objects of a Ceph cluster, whose names start with `rados:`: connections, and what is
//! open for reading.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use diopter::rados::{self, Cluster, Connect, Error, Library, Pool, StripedObject};
use diopter::{Errno, File};
use diopter_rados::name::Name;

use crate::failure::Failure;
use crate::source::Content;

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
    object: Arc<StripedObject>,
    file: File,
    /// Its name, for messages.
    path: PathBuf,
    /// Its size when it was opened.
    size: u64,
    /// True if it had no mark then.
    is_complete: bool,
    /// The failure that the last look has found.
    change: RefCell<Option<Failure>>,
}

impl Object {
    /// Opens a striped object; one that is not complete only if `incomplete` is true. With a key
    /// that may only read it has no lock.
    pub fn open(
        clusters: &mut Clusters,
        (path, name): (&Path, &Name),
        incomplete: bool,
    ) -> Result<Object, Failure> {
        let failed = |error: Error| Failure::of_cluster("opening", path, &error);
        let pool = clusters.pool(name).map_err(failed)?;
        let object = StripedObject::open_to_read(&pool, &name.name).map_err(failed)?;
        let is_complete = object.is_complete().map_err(failed)?;
        if !incomplete && !is_complete {
            let cause = "the copy that made it was interrupted, and it is not complete";
            let remedy = "copy it again, or read what there is with --incomplete";
            return Err(Failure::of_rule("opening", path, cause, remedy));
        }
        let size = object.size().map_err(failed)?;
        let object = Arc::new(object);
        let file = rados::file(&object).map_err(failed)?;
        let (path, change) = (path.to_owned(), RefCell::default());
        Ok(Object { object, file, path, size, is_complete, change })
    }

    /// Returns what has changed since it was opened. The lock keeps the object from being truncated
    /// and removed, but not from being written; without it, it may be another one.
    fn change(&self) -> Result<Option<&'static str>, Error> {
        if self.object.size()? != self.size {
            return Ok(Some("its size changed while it was read"));
        }
        let is_same = self.object.is_complete()? == self.is_complete;
        Ok((!is_same).then_some("another copy wrote it while it was read"))
    }
}

impl Content for Object {
    fn file(&self) -> &File {
        &self.file
    }

    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> u64 {
        self.size
    }

    fn is_unchanged(&self) -> bool {
        let (path, remedy) = (&self.path, "end what writes to it, and try again");
        let change = match self.change() {
            Ok(cause) => cause.map(|cause| Failure::of_rule("reading", path, cause, remedy)),
            Err(error) => Some(Failure::of_cluster("reading", path, &error)),
        };
        *self.change.borrow_mut() = change;
        self.change.borrow().is_none()
    }

    fn has_changed(&self) -> Failure {
        let cause = "it changed while it was read";
        let remedy = "end what writes to it, and try again";
        let unknown = || Failure::of_rule("reading", &self.path, cause, remedy);
        self.change.take().unwrap_or_else(unknown)
    }

    fn changed_in_check(&self) -> Failure {
        self.has_changed()
    }

    fn ended_early(&self) -> Failure {
        let cause = "it ended before its size: another client truncated it";
        Failure::of_rule("reading", &self.path, cause, "try again")
    }

    fn ended_early_in_check(&self) -> Failure {
        self.ended_early()
    }
}

/// Parses a name; `None` if it does not start with `rados:`.
pub fn parse(path: &Path) -> Option<Result<Name, Failure>> {
    let parsed = Name::parse(path.as_os_str())?;
    Some(parsed.map_err(|error| Failure::of_cluster("opening", path, &error)))
}

pub fn is(error: &Error, errno: Errno) -> bool {
    error.errno() == Some(errno.raw())
}
