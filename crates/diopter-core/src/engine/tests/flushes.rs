//! The flushes of a durable write of several bios.

use super::*;

use diopter_os::RwFlags;

use crate::extent::{Extent, ExtentState, ObjectIndex};
use crate::map::Mapper;
use crate::units::{FileRange, ObjectOffset};

const LENGTH: u64 = 2 << 20;

/// Extents of a MiB; from a moment on it cannot find where a byte is.
struct Forgets(Arc<AtomicU32>);

impl Mapper for Forgets {
    fn map(&self, range: FileRange) -> Result<Extent, Errno> {
        if range.length() == 1 && self.0.load(Ordering::Relaxed) > 0 {
            return Err(Errno::EIO);
        }
        let end = range.end().min((range.start() | ((1 << 20) - 1)) + 1);
        Ok(Extent {
            range: FileRange::new(range.start(), end),
            object: ObjectIndex(0),
            object_offset: ObjectOffset::new(range.start()),
            state: ExtentState::Mapped,
            boundary: true,
        })
    }

    fn name(&self) -> &'static str {
        "forgets"
    }
}

#[test]
fn a_flush_that_cannot_be_built_fails_the_write_with_its_error_and_is_not_tried_again() {
    let world = World::new(vec![Disk::new(8 << 20, 512, 512)]);
    let slab = Slab::new(crate::engine::core::slab_shape(16));
    let config = SimConfig {
        seed: 1,
        depth_max: 16,
        latency_min_ns: 1000,
        latency_spread_ns: 0,
        mebibyte_ns: 0,
        faults: Faults::NONE,
        faulty: None,
    };
    let device = Box::new(Sim::new(&slab, &world, config));
    let forgets = Arc::new(AtomicU32::new(0));
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let access =
        Access { read: true, write: true, durability: RwFlags::DSYNC, ..Access::default() };
    let mapper = Forgets(Arc::clone(&forgets));
    let target = Target::alone(world.object(0), mapper, blocks, access);
    let engine = Engine::on_backend(slab, device, Policies::default());
    forgets.store(1, Ordering::Relaxed);
    let memory = IoBuf::new(usize::try_from(LENGTH).expect("small")).expect("memory");
    engine.start(&target, Request::write(0, memory)).expect("room");
    let done = engine.wait(LONG).expect("there").expect("in flight");
    let error = done.result.expect_err("its flush cannot be made");
    assert_eq!((error.errno, error.kind), (Errno::EIO, IoErrorKind::Device));
    engine.start(&target, Request::sync_data()).expect("room");
    let sync = engine.wait(LONG).expect("there").expect("in flight");
    assert_eq!(sync.result.expect_err("it was latched").errno, Errno::EIO);
}
