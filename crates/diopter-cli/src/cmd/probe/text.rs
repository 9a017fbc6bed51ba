//! The document of `dio probe` as text. Sizes have their unit too.

use diopter_text::{Side, Table, untrusted};

use super::document::{Ability, Device, Direct, Document, Extents, Name, ProbedObject};
use super::listing;
use crate::cmd::finding::{self, number};
use crate::cmd::rados;
use crate::output::{Look, Tone, put};
use crate::size::size_text;

/// Column in which values begin.
const INDENT: usize = 15;

/// Limit of the objects of a striped file shown; the document has all.
const OBJECTS_MAX: usize = 24;

pub fn of(document: &Document, look: &Look) -> String {
    let names = document.names.iter().map(|name| block_of(name, look));
    let objects = document.striped_objects.iter().map(|facts| rados::of_facts(facts, look));
    let blocks: Vec<String> = names.chain(objects).collect();
    blocks.join("\n")
}

fn block_of(name: &Name, look: &Look) -> String {
    let size = name.size.map_or(String::new(), |size| format!(", {}", size_text(size)));
    let what = format!("{}{size}", name.kind.replace('-', " "));
    let mut text = look.title(&untrusted::name(&name.name), &what);
    put(&mut text, "");
    if let Some(image) = name.image.as_ref().filter(|_| name.kind.ends_with("-in-image")) {
        text.push_str(&listing::text(image, INDENT, look));
        return text;
    }
    for (label, value) in rows_of(name) {
        text.push_str(&look.entry(INDENT, label, &value));
    }
    if let Some(layout) = &name.layout {
        text.push_str(&layout.text(INDENT, look));
    }
    if let Some(image) = &name.image {
        text.push_str(&listing::text(image, INDENT, look));
    }
    if let Some(objects) = &name.objects {
        put(&mut text, "");
        text.push_str(&look.table(2, &objects_table(objects)));
        if objects.len() > OBJECTS_MAX {
            let more = objects.len() - OBJECTS_MAX;
            put(&mut text, &format!("  and {more} more; --json lists all"));
        }
    }
    put(&mut text, "");
    if name.findings.is_empty() {
        let none = look.paint(Tone::Good, "none: nothing slows direct I/O down here");
        text.push_str(&look.entry(INDENT, "findings", &none));
        return text;
    }
    text.push_str(&look.entry(INDENT, "findings", &finding::counts(&name.findings)));
    text.push_str(&finding::text(&name.findings, look));
    text
}

fn objects_table(objects: &[ProbedObject]) -> Table {
    let mut table = Table::new(&[
        ("#", Side::Right),
        ("size", Side::Right),
        ("device", Side::Left),
        ("file system", Side::Left),
        ("aligned to", Side::Right),
        ("backend", Side::Left),
        ("state", Side::Left),
        ("object", Side::Left),
    ]);
    let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    for object in objects.iter().take(OBJECTS_MAX) {
        let system = object.file_system.as_ref().zip(object.mount_point.as_ref());
        table.row(vec![
            object.index.to_string(),
            or_none(object.size.map(|size| size.to_string())),
            or_none(object.device.clone()),
            or_none(system.map(|(system, point)| format!("{system} at {point}"))),
            or_none(object.alignment.map(|bytes| bytes.to_string())),
            or_none(object.backend.map(str::to_owned)),
            if object.is_well { "ok" } else { "FAULTY" }.to_owned(),
            untrusted::name(&object.path),
        ]);
    }
    table
}

fn rows_of(name: &Name) -> Vec<(&'static str, String)> {
    let mut rows = vec![("kernel", format!("Linux {}", name.kernel.release))];
    let is_striped = name.objects.is_some();
    if let Some(system) = name.file_system.as_ref().filter(|_| !is_striped) {
        let where_ = format!("{} on {} at {}", system.kind, system.source, system.mount_point);
        rows.push(("file system", where_));
        rows.push(("", system.options.join(", ")));
    }
    if !name.mounted_at.is_empty() {
        rows.push(("mounted at", name.mounted_at.join(", ")));
    }
    match &name.device {
        Some(device) => add_device(&mut rows, device),
        None if is_striped => {}
        None => rows.push(("device", "no single block device below".to_owned())),
    }
    if let Some(direct) = &name.direct {
        add_direct(&mut rows, direct);
    }
    rows.push(("backend", format!("{}: {}", name.backend.name, name.backend.why)));
    if !name.backend.features.is_empty() {
        rows.push(("", features(name)));
    }
    let others: Vec<&Ability> =
        name.backends.iter().filter(|its| its.name != name.backend.name).collect();
    for (label, abilities) in
        [("other backends", others), ("on request", name.uring_options.iter().collect())]
    {
        let states: Vec<String> = abilities.into_iter().map(ability).collect();
        if !states.is_empty() {
            rows.push((label, states.join("; ")));
        }
    }
    if name.kind == "file" {
        rows.push(("extents", name.extents.as_ref().map_or("unknown".to_owned(), Extents::text)));
    }
    if name.kind == "file" || is_striped {
        rows.push(("page cache", page_cache(name)));
    }
    rows.push(("locked memory", locked_memory(name)));
    rows
}

fn add_device(rows: &mut Vec<(&'static str, String)>, device: &Device) {
    let size = |bytes: Option<u64>| bytes.map_or("unknown".to_owned(), size_text);
    let model = device.model.as_ref().map_or(String::new(), |model| format!(", {model}"));
    let spins = if device.rotational == Some(true) { ", rotational" } else { "" };
    rows.push(("device", format!("{}{model}{spins}", device.name)));
    let (logical, physical) = (size(device.logical_block_size), size(device.physical_block_size));
    rows.push(("", format!("blocks of {logical}, physical {physical}")));
    let mut transfers = format!("transfers up to {}", size(device.transfer_bytes_max));
    if device.transfer_bytes_max_hardware > device.transfer_bytes_max {
        transfers.push_str(&format!("; hardware {}", size(device.transfer_bytes_max_hardware)));
    }
    rows.push(("", transfers));
    let mut limits = Vec::new();
    limits.extend(device.segments_max.map(|segments| format!("{segments} segments each")));
    // A RAID's chunk is more than a block of the device.
    let least = device.minimum_io_size.filter(|bytes| Some(*bytes) > device.physical_block_size);
    for (label, bytes) in [
        ("virt boundary", device.virt_boundary),
        ("chunks of", device.chunk_bytes),
        ("at least", least),
        ("best at", device.optimal_io_size),
    ] {
        limits
            .extend(bytes.filter(|bytes| *bytes > 0).map(|b| format!("{label} {}", size_text(b))));
    }
    limits.extend(device.nr_requests.map(|requests| format!("queue of {requests}")));
    limits.extend(device.scheduler.as_ref().map(|name| format!("scheduler {name}")));
    limits.extend(device.io_poll.filter(|polls| *polls).map(|_| "polled queues".to_owned()));
    rows.push(("", limits.join(", ")));
    let cache = match (device.write_cache.as_deref(), device.fua) {
        (Some("write back"), Some(true)) => "write back with FUA: durable writes need no flush",
        (Some("write back"), _) => "write back, no FUA: durable writes need a flush",
        (Some("write through"), _) => "write through: completed writes are durable",
        _ => "unknown",
    };
    rows.push(("write cache", cache.to_owned()));
}

fn add_direct(rows: &mut Vec<(&'static str, String)>, direct: &Direct) {
    let supported = match (direct.reads, direct.writes) {
        (true, true) => "reads and writes",
        (true, false) => "reads only",
        (false, true) => "writes only",
        (false, false) => "no",
    };
    let why = direct.why.as_ref().map_or(String::new(), |why| format!(": {why}"));
    rows.push(("direct I/O", format!("{supported}{why}")));
    if !direct.reads && !direct.writes {
        return;
    }
    let (reads, writes) = (direct.reads_state, direct.writes_state);
    let states = if reads == writes {
        format!("reads and writes {reads}")
    } else {
        format!("reads {reads}, writes {writes}")
    };
    rows.push(("trial", states));
    let [memory, read, write] = [direct.memory, direct.offset_read, direct.offset_write]
        .map(|bytes| size_text(bytes.into()));
    let source = &direct.source;
    rows.push((
        "alignment",
        format!("memory {memory}, reads {read}, writes {write}; source: {source}"),
    ));
    let atomic = direct.atomic_write.as_ref().map_or("none".to_owned(), |atomic| {
        let [least, most] = [atomic.unit_min, atomic.unit_max].map(|bytes| size_text(bytes.into()));
        format!("from {least} to {most}, {}", number(atomic.segments_max.into(), "segment"))
    });
    rows.push(("atomic writes", atomic));
}

fn ability(ability: &Ability) -> String {
    match &ability.why_not {
        None => format!("{} works", ability.name),
        Some(why) => format!("{} does not work: {why}", ability.name),
    }
}

fn features(name: &Name) -> String {
    let named = |is_on: bool| {
        let all = name.backend.features.iter().filter(|feature| feature.is_on == is_on);
        all.map(|feature| feature.name).collect::<Vec<_>>().join(", ")
    };
    let (on, off) = (named(true), named(false));
    match (on.is_empty(), off.is_empty()) {
        (false, true) => format!("on: {on}"),
        (true, _) => format!("refused: {off}"),
        (false, false) => format!("on: {on}; refused: {off}"),
    }
}

fn page_cache(name: &Name) -> String {
    let Some(cache) = &name.page_cache else { return "unknown".to_owned() };
    let page = u64::from(cache.page_size);
    let pages = name.size.unwrap_or(0).div_ceil(page);
    let dirty = match cache.pages_dirty {
        None | Some(0) => String::new(),
        Some(dirty) => format!(", {dirty} dirty"),
    };
    let bytes = size_text(cache.pages.saturating_mul(page));
    format!("{} of {pages} pages cached, {bytes}{dirty}; source: {}", cache.pages, cache.source)
}

fn locked_memory(name: &Name) -> String {
    let Some(limit) = name.memory_lock_bytes_max else { return "no limit".to_owned() };
    let limit = size_text(limit);
    if name.memory_lock_is_exempt {
        format!("no limit: CAP_IPC_LOCK lifts that of {limit}")
    } else {
        format!("at most {limit}")
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use diopter::probe::{
        DirectFacts, ExtentShare, ExtentSummary, Facts, Kernel, MemoryLock, Mount, NameKind, Probe,
        findings,
    };
    use diopter::{DirectState, DirectStates};
    use diopter_layouts::foreign::of_attributes;
    use diopter_os::file::{Alignment, AlignmentSource, AtomicWrite, DirectSupport};
    use diopter_os::queue::BlockQueue;
    use diopter_os::residency::{Residency, ResidencySource};

    use super::*;
    use crate::cmd::probe::document;
    use snapbox::{assert_data_eq, file};

    const LOOK: Look = Look { is_coloured: false, width: 80, table_width: None };

    fn disk() -> BlockQueue {
        BlockQueue {
            name: "nvme0n1p2".to_owned(),
            logical_block_size: Some(512),
            physical_block_size: Some(4096),
            max_sectors_kb: Some(128),
            max_hw_sectors_kb: Some(512),
            max_segments: Some(127),
            max_segment_size: Some(4_294_967_295),
            virt_boundary_mask: Some(4095),
            dma_alignment: Some(3),
            has_requests: true,
            nr_requests: Some(1023),
            chunk_sectors: Some(0),
            minimum_io_size: Some(4096),
            optimal_io_size: Some(0),
            write_cache: Some("write back".to_owned()),
            fua: Some(true),
            rotational: Some(false),
            scheduler: Some("none".to_owned()),
            io_poll: Some(true),
            model: Some("Samsung SSD 980".to_owned()),
        }
    }

    fn direct() -> DirectFacts {
        let source = AlignmentSource::Statx;
        let alignment = Alignment { memory: 4, offset_read: 512, offset_write: 512, source };
        let atomic_write = AtomicWrite { unit_min: 512, unit_max: 16384, segments_max: 1 };
        let support = DirectSupport::Full;
        let states = DirectStates { reads: DirectState::Proved, writes: DirectState::Unknown };
        DirectFacts { support, states, alignment, atomic_write: Some(atomic_write) }
    }

    /// A database's file on an older kernel.
    fn file() -> Facts {
        Facts {
            path: PathBuf::from("/srv/db/table 1"),
            kind: NameKind::File,
            size: Some(1 << 30),
            kernel: Kernel { release: "6.12.9-generic".to_owned() },
            mount: Some(Mount {
                id: 31,
                device: "259:2".to_owned(),
                file_system: "xfs".to_owned(),
                point: PathBuf::from("/srv"),
                source: PathBuf::from("/dev/nvme0n1p2"),
                options: ["rw", "relatime", "inode64", "noquota"].map(str::to_owned).to_vec(),
            }),
            device_mounts: Vec::new(),
            queue: Some(disk()),
            direct: Some(direct()),
            backend: diopter::engine::BackendChoice {
                name: "uring",
                why: "a ring was tried".to_owned(),
                features: vec![("single-issuer", true), ("registered-buffers", false)],
            },
            backends: vec![
                diopter::probe::Ability { name: "uring", refusal: None },
                diopter::probe::Ability {
                    name: "aio",
                    refusal: Some(diopter::internals::Choice {
                        step: "set-up",
                        errno: diopter::Errno::EAGAIN,
                    }),
                },
                diopter::probe::Ability { name: "threads", refusal: None },
            ],
            uring_options: vec![
                diopter::probe::Ability { name: "sqpoll", refusal: None },
                diopter::probe::Ability {
                    name: "iopoll",
                    refusal: Some(diopter::internals::Choice {
                        step: "polled read",
                        errno: diopter::Errno::EOPNOTSUPP,
                    }),
                },
            ],
            uring_refusal: None,
            extents: Some(ExtentSummary {
                all: ExtentShare { count: 2000, bytes: 1 << 29 },
                pieces: 1999,
                unwritten: ExtentShare { count: 3, bytes: 12288 },
                holes: ExtentShare { count: 1, bytes: 1 << 29 },
                ..ExtentSummary::default()
            }),
            cache: Some(Residency {
                pages_cached: 300,
                pages_dirty: Some(4),
                pages_writeback: Some(1),
                page_size: 4096,
                source: ResidencySource::Cachestat,
            }),
            memory_lock: MemoryLock { bytes_max: Some(8 << 20), is_exempt: false },
            layout: None,
        }
    }

    /// A file of another one's cluster.
    fn striped() -> Facts {
        let text = "stripe_unit=1048576 stripe_count=8 object_size=4194304 pool=fast";
        let layout =
            of_attributes(
                |name| Ok((name == "ceph.file.layout").then(|| text.as_bytes().to_vec())),
            );
        Facts {
            path: PathBuf::from("/mnt/big"),
            kind: NameKind::File,
            layout: layout.transpose(),
            ..device()
        }
    }

    /// The device below it, all of whose facts are as one wishes.
    fn device() -> Facts {
        Facts {
            path: PathBuf::from("/dev/nvme0n1"),
            kind: NameKind::BlockDevice,
            size: Some(1_000_204_886_016),
            mount: None,
            queue: Some(BlockQueue { max_sectors_kb: Some(2048), ..disk() }),
            extents: None,
            cache: None,
            memory_lock: MemoryLock { bytes_max: None, is_exempt: false },
            ..file()
        }
    }

    #[test]
    fn names_are_reported_as_they_were() {
        let judged = |facts: Facts| document::name_of(&Probe { findings: findings(&facts), facts });
        let text = of(&Document::of([file(), device()].map(judged).into(), Vec::new()), &LOOK);
        assert_data_eq!(text, file!["../../../tests/golden/probe.txt"].raw());
    }

    #[test]
    fn a_foreign_layout_is_reported_with_its_finding() {
        let facts = Facts { queue: None, size: Some(1 << 30), ..striped() };
        let name = document::name_of(&Probe { findings: findings(&facts), facts });
        let text = of(&Document::of(vec![name], Vec::new()), &LOOK);
        assert_data_eq!(text, file!["../../../tests/golden/probe-striped.txt"].raw());
    }
}
