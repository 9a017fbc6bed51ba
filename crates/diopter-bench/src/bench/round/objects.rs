//! The objects of a Ceph cluster that a round runs on: whole objects with the names `NAME.0`,
//! `NAME.1` and so on, which a file is striped over. Not the format of `rados --striper`.

use diopter::internals::Striping;
use diopter::internals::TargetRef;
use diopter_rados::backend::{self, Object};
use diopter_rados::name::Name;
use diopter_rados::{Cluster, Connect, Error, Library, Pool};
use serde::{Deserialize, Serialize};

/// The objects of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ObjectsPlace {
    /// The name of a striped object, before which the objects' names begin.
    pub name: String,
    pub count: usize,
    /// Bytes.
    pub stripe_size: u64,
}

impl ObjectsPlace {
    /// Connects to the cluster, and opens the objects.
    ///
    /// # Errors
    /// There is no librados, no cluster or no pool.
    pub fn open(&self) -> Result<TargetRef, String> {
        let (pool, names) = self.pool().map_err(|error| error.to_string())?;
        let striping = Striping::new(self.stripe_size, self.count)
            .ok_or_else(|| format!("no file is striped over {} objects", self.count))?;
        let objects: Result<Vec<Object>, Error> =
            names.iter().map(|name| Object::whole(&pool, name)).collect();
        let objects = objects.map_err(|error| error.to_string())?;
        Ok(backend::target_of_objects(objects, striping))
    }

    /// Returns the pool, and the names of the objects.
    ///
    /// # Errors
    /// There is no librados, no cluster or no pool.
    pub fn pool(&self) -> Result<(Pool, Vec<Vec<u8>>), Error> {
        let name = Name::parse(self.name.as_ref()).expect("it was parsed before")?;
        let how = Connect { conf: name.conf.clone(), ..Connect::default() };
        let cluster = Cluster::connect(&Library::load(None)?, &how)?;
        let pool = cluster.pool(&name.pool, name.namespace.as_deref())?;
        let names =
            (0..self.count).map(|part| [&name.name[..], format!(".{part}").as_bytes()].concat());
        Ok((pool, names.collect()))
    }
}
