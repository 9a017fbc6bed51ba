//! Objects of a Ceph cluster on the bench.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use diopter_core::backend::BackingObject;
use diopter_os::OpenObject;
use diopter_rados::backend::{self, Object};
use diopter_rados::striper::{Access, File, Layout, Open};
use diopter_rados::{Cluster, Connect, Library, Pool};
use diopter_testkit::ceph::Ceph;

/// Bytes of a stripe unit, and of an object: a column continues in the next set.
const UNIT: u64 = 65_536;
const UNIT_BYTES: usize = 65_536;
const OBJECT: u64 = 131_072;

/// A wait that no working cluster needs.
const SOON: Duration = Duration::from_secs(60);

/// An object of a cluster.
pub struct Remote {
    object: Object,
    storage: Storage,
}

/// Where its bytes are, past the backend.
enum Storage {
    Whole(Pool, Vec<u8>),
    /// The first of two columns.
    Column(Arc<File>),
}

/// Returns the pool of the tests; skips where Ceph is not installed.
pub fn pool() -> Option<Pool> {
    static CLUSTER: OnceLock<Option<(Ceph, Pool)>> = OnceLock::new();
    let cluster = CLUSTER.get_or_init(|| {
        let ceph = Ceph::start(&[])?;
        let how = Connect { conf: Some(ceph.conf.clone()), ..Connect::default() };
        let cluster = Cluster::connect(&Library::load(None).expect("librados"), &how);
        let pool = cluster.expect("a cluster").pool(b"data", None).expect("a pool");
        Some((ceph, pool))
    });
    cluster.as_ref().map(|(_, pool)| pool.clone())
}

fn name() -> Vec<u8> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("contract-{}", COUNT.fetch_add(1, Ordering::Relaxed)).into_bytes()
}

impl Remote {
    /// A whole object with these bytes.
    pub fn whole(bytes: &[u8]) -> Remote {
        let (pool, name) = (pool().expect("it works here"), name());
        pool.write(&name, 0, bytes).unwrap();
        Remote { object: Object::whole(&pool, &name).unwrap(), storage: Storage::Whole(pool, name) }
    }

    /// The first column of a striped object, with these bytes: every other unit of the file.
    pub fn column(bytes: &[u8]) -> Remote {
        let layout = Layout::new(UNIT, 2, OBJECT).unwrap();
        let lease = Open::new(Access::Write).lease;
        let file = File::create(&pool().expect("it works here"), &name(), layout, lease).unwrap();
        for (place, unit) in (0..).step_by(2).zip(bytes.chunks(UNIT_BYTES)) {
            file.write_at(place * UNIT, unit).unwrap();
        }
        let file = Arc::new(file);
        let object = backend::columns(&file).unwrap().1.swap_remove(0);
        Remote { object, storage: Storage::Column(file) }
    }

    pub fn object(&self) -> &OpenObject {
        self.object.direct()
    }

    /// Its bytes, past the backend.
    pub fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(self.object.size().unwrap()).unwrap()];
        match &self.storage {
            Storage::Whole(pool, name) => {
                assert_eq!(pool.read(name, 0, &mut bytes).unwrap(), bytes.len());
            }
            Storage::Column(file) => {
                for (place, unit) in (0..).step_by(2).zip(bytes.chunks_mut(UNIT_BYTES)) {
                    assert_eq!(file.read_at(place * UNIT, unit).unwrap(), unit.len());
                }
            }
        }
        bytes
    }
}

/// Through the crate's own module, as a program does it.
#[test]
fn a_program_reads_what_it_wrote_by_an_engine_of_the_cluster() {
    use diopter::rados::{self, StripedObject, Target};
    let Some(pool) = pool() else { return };
    let (name, layout) = (name(), Layout::new(UNIT, 2, OBJECT).unwrap());
    let lease = Open::new(Access::Write).lease;
    let object = Arc::new(StripedObject::create(&pool, &name, layout, lease).unwrap());
    let engine = rados::engine(diopter::Policies::default()).unwrap();
    let target = Target::striped(&object).unwrap();
    let bytes: Vec<u8> = (0..300_001_u32).map(|at| at.to_le_bytes()[0]).collect();
    engine.start(&target, diopter::Request::write(0, bytes.clone())).unwrap();
    let wait = || engine.wait(SOON).unwrap().expect("one is in flight");
    assert_eq!(wait().result.unwrap().get(), 300_001);
    let (sender, results) = std::sync::mpsc::channel();
    let callback = diopter::Completion::quick(move |done| sender.send(done).unwrap());
    let read = diopter::Request::read(7, vec![0; 300_000]);
    engine.start_with(&target, read, callback).map_err(|(refused, _)| refused).unwrap();
    assert!(engine.wait(SOON).unwrap().is_none(), "the callback has it");
    let done = results.recv().unwrap();
    assert_eq!(done.result.as_ref().unwrap().get(), 299_994);
    assert_eq!(done.memory.expect("it comes back")[..299_994], bytes[7..]);
    assert_eq!(engine.in_flight(), 0);
    // A file is not the cluster's, and every other engine serves an object of the cluster.
    let dir = diopter_testkit::files::dir();
    let file = diopter::File::create(dir.path().join("file")).unwrap();
    engine.start(&file, diopter::Request::write(0, vec![1; 4096])).unwrap();
    assert_eq!(wait().result.unwrap_err().errno, diopter::Errno::EBADF);
    let local = diopter::Engine::new(diopter::EngineOptions::DEFAULT).unwrap();
    local.start(&target, diopter::Request::read(0, vec![0; 4096])).unwrap();
    let done = local.wait(SOON).unwrap().expect("one is in flight");
    assert_eq!(done.result.as_ref().unwrap().get(), 4096);
    assert_eq!(done.memory.expect("it comes back")[..], bytes[..4096]);
    drop((engine, target));
    let object = Arc::into_inner(object).expect("no other owner");
    object.remove(&|| true).unwrap();
}
