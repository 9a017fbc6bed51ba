//! Rows that no device has a part in: virtual time on the simulator, and counts of bios.

use std::sync::Arc;
use std::time::Duration;

use diopter::engine::MergePolicy;
use diopter::history::{EACH_THEN_WAIT, History};
use diopter::{FileRange, IoBuf, Policies, Request};
use diopter_core::backend::BackingObject;
use diopter_core::backend::sim::{Disk, Faults, Sim, SimConfig, World};
use diopter_core::bio::builder::{BioLimits, Builder, Fit, Piece};
use diopter_core::engine::Engine;
use diopter_core::engine::target::{Access, Blocks, Target};
use diopter_core::extent::{Extent, ExtentState, ObjectIndex};
use diopter_core::map::Table;
use diopter_core::prng::Prng;
use diopter_core::stripe::{StridedRange, Striping};
use diopter_core::units::ObjectOffset;

use crate::result::{Finding, Measured};
use crate::rows::Bench;
use crate::side::count;

const MIB: u64 = 1 << 20;
const OBJECTS: usize = 4;
const BYTES: u64 = 64 * MIB;
const BLOCK: u64 = 512;
const LAYOUTS: u64 = 2000;

pub fn striped(_bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    let all = nanos_of_64_mib(History::TODAY)?;
    let each = nanos_of_64_mib(EACH_THEN_WAIT)?;
    let millis = |nanos| count(nanos) / 1e6;
    let measured = Measured::new(vec![(millis(all), millis(each))]);
    Ok(vec![Ok(measured.note("virtual time, 1 ms for each MiB, any number at once"))])
}

/// How long the device has a write of 64 MiB over space that is there.
fn nanos_of_64_mib(history: History) -> Result<u64, String> {
    let world = World::new(vec![Disk::new(BYTES, 512, 512); OBJECTS]);
    let slab = Engine::slab();
    let config = SimConfig {
        seed: 1,
        depth_max: 128,
        latency_min_ns: 0,
        latency_spread_ns: 0,
        mebibyte_ns: 1_000_000,
        faults: Faults::NONE,
        faulty: None,
    };
    let sim = Box::new(Sim::new(&slab, &world, config));
    let policies = Policies { history, merge: MergePolicy::PerStripe, ..Policies::default() };
    let engine = Engine::on_backend(slab, sim, policies);
    let striping = Striping::new(MIB, OBJECTS).ok_or("no striping")?;
    let blocks = Blocks { read: 512, write: 512, memory: 512, page: 4096 };
    let backings =
        [0, 1, 2, 3].map(|number| Arc::new(world.object(number)) as Arc<dyn BackingObject>);
    let access = Access { read: true, write: true, ..Access::default() };
    let target = Target::striped(backings.into(), striping, blocks, access);
    let mut nanos = 0;
    // The first write makes the space.
    for _ in 0..2 {
        let length = usize::try_from(BYTES).map_err(|error| error.to_string())?;
        let memory = IoBuf::new(length).map_err(|errno| errno.to_string())?;
        engine.start(&target, Request::write(0, memory)).map_err(|it| it.error.to_string())?;
        let done = engine.wait(Duration::from_secs(3600)).map_err(|error| error.to_string())?;
        let done = done.ok_or("the simulator did not end")?;
        match done.result {
            Ok(moved) if moved.get() == BYTES => {}
            other => return Err(format!("{other:?}")),
        }
        nanos = done.timing().unwrap().reaped.since(done.timing().unwrap().submitted);
    }
    Ok(nanos)
}

/// The builder over random layouts, against the least number of bios, found by trying every way to
/// cut.
pub fn bios(_bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    let mut prng = Prng::new(1);
    let (mut made, mut least) = (0, 0);
    for layout in 0..LAYOUTS {
        let (table, size) = layout_of(&mut prng);
        let range = FileRange::new(0, size);
        let blocks_max = 1 + prng.below(29);
        let (its, fewest) =
            (made_of(&table, range, blocks_max)?, least_of(&table, range, blocks_max)?);
        if its < fewest {
            return Err(format!("layout {layout}: {its} bios, but none can do with {fewest}"));
        }
        made += its;
        least += fewest;
    }
    let measured = Measured::new(vec![(count(made), count(least))]);
    Ok(vec![Ok(measured.note(format!("{LAYOUTS} random layouts, limits of 1 to 29 blocks")))])
}

/// Up to 20 extents, adjacent on the object or not, some of them holes, some ending at a boundary.
fn layout_of(prng: &mut Prng) -> (Table, u64) {
    let (mut at, mut on_object) = (0, MIB);
    let mut extents = Vec::new();
    for _ in 0..1 + prng.below(19) {
        let end = at + BLOCK * (1 + prng.below(19));
        on_object += BLOCK * prng.below(3);
        let is_hole = prng.one_in(5);
        extents.push(Extent {
            range: FileRange::new(at, end),
            object: ObjectIndex(0),
            object_offset: ObjectOffset::new(on_object),
            state: if is_hole { ExtentState::Hole } else { ExtentState::Mapped },
            boundary: !is_hole && prng.one_in(2),
        });
        on_object += end - at;
        at = end;
    }
    (Table::new(extents).expect("they follow each other"), at)
}

fn made_of(table: &Table, range: FileRange, blocks_max: u64) -> Result<u64, String> {
    let limits = BioLimits::new(blocks_max * BLOCK, BLOCK);
    let builder = Builder { mapper: table, limits, writes: false };
    let (mut at, mut bios) = (range.start(), 0);
    while at < range.end() {
        let strided = StridedRange::one(FileRange::new(at, range.end()));
        let piece = builder.next(strided, |runs| Fit::in_segments(runs.length()));
        at = match piece.map_err(|error| format!("{error:?}"))? {
            Piece::Zeros(hole) | Piece::Refused(hole, _) => hole.end(),
            Piece::Bio(draft) => {
                bios += 1;
                draft.runs.end()
            }
        };
    }
    Ok(bios)
}

/// Each block's own best: the least over every first block that the bio ending with it may have.
fn least_of(table: &Table, range: FileRange, blocks_max: u64) -> Result<u64, String> {
    use diopter_core::map::Mapper;
    let starts = (range.start()..range.end()).step_by(512);
    let blocks = starts.map(|at| table.map(FileRange::new(at, at + BLOCK)));
    let blocks: Vec<Extent> =
        blocks.collect::<Result<_, _>>().map_err(|error| format!("{error:?}"))?;
    let mut least = vec![0; blocks.len() + 1];
    for end in 1..=blocks.len() {
        if !blocks[end - 1].state.has_bytes() {
            least[end] = least[end - 1];
            continue;
        }
        let mut best = least[end - 1] + 1;
        let mut start = end - 1;
        while start > 0 && goes_on(&blocks[start - 1], &blocks[start]) {
            start -= 1;
            if u64::try_from(end - start).expect("64 bits at most") > blocks_max {
                break;
            }
            best = best.min(least[start] + 1);
        }
        least[end] = best;
    }
    Ok(least[blocks.len()])
}

/// Returns true if one bio may hold both blocks.
fn goes_on(before: &Extent, after: &Extent) -> bool {
    let is_next = before.object_offset.get() + BLOCK == after.object_offset.get();
    before.state.has_bytes() && after.state.has_bytes() && !before.boundary && is_next
}
