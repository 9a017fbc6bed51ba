//! The document of `dio explain` as text. Sizes have their unit too.

use std::collections::BTreeMap;

use diopter_text::{Side, Table, untrusted};

use super::document::{Bio, Explain};
use crate::cmd::finding::number;
use crate::cmd::layout::Layout;
use crate::output::{Look, put};
use crate::size::size_text;

/// Limit of the rows of a table; the document has all.
const ROWS_MAX: usize = 24;

/// Limit of rows for stripes, which follow from the layout.
const STRIPES_MAX: usize = 8;

/// Column in which values begin.
const INDENT: usize = 13;

pub fn of(document: &Explain, look: &Look) -> String {
    let mut text = String::new();
    let entry = |text: &mut String, label: &str, value: &str| {
        text.push_str(&look.entry(INDENT, label, value));
    };
    let Explain { op, name, .. } = document;
    let length = size_text(document.length);
    let offset = size_text(document.offset);
    let address = document.address;
    entry(
        &mut text,
        "request",
        &format!("{op} {length} at offset {offset}, memory at {address:#x}"),
    );
    entry(&mut text, "name", &untrusted::name(name));
    if let Some(image) = &document.image {
        text.push_str(&image.text(INDENT, look));
    }
    entry(&mut text, "policies", &policies(document));
    let backend = &document.backend;
    entry(&mut text, "backend", &format!("{}: {}", backend.name, backend.why));
    entry(&mut text, "alignment", &alignment(document));
    let route = &document.route;
    let why =
        if route.why.is_empty() { String::new() } else { format!(" ({})", route.why.join(", ")) };
    let ways = [("direct", route.direct), ("bounced", route.bounced), ("buffered", route.buffered)];
    let ways = ways.into_iter().filter(|(_, bytes)| *bytes > 0);
    let mut ways: Vec<String> =
        ways.map(|(way, bytes)| format!("{way} {}", size_text(bytes))).collect();
    if ways.is_empty() {
        ways.push("no bytes to transfer".to_owned());
    }
    entry(&mut text, "route", &format!("{}{why}", ways.join(", ")));
    entry(&mut text, "waits", &waits(document));
    let completion = &document.completion;
    let (context, why) = (completion.context, completion.why);
    entry(&mut text, "completion", &format!("{context}, in the engine: {why}"));
    entry(&mut text, "page cache", &cached(document));
    for (at, line) in document.kernel.lines().iter().enumerate() {
        entry(&mut text, if at == 0 { "kernel" } else { "" }, line);
    }
    if let Some(layout) = &document.layout {
        text.push_str(&layout.text(INDENT, look));
        if layout.is_striped_file() && !document.bios.is_empty() {
            text.push_str(&look.entry(INDENT, "objects", &objects(&document.bios)));
        }
    }
    let is_striped = document.layout.as_ref().is_some_and(Layout::is_striped_file);
    let rows_max = if is_striped { STRIPES_MAX } else { ROWS_MAX };
    // That of a plain file is the whole range, whatever its blocks are: those are on the device.
    if is_striped || document.image.is_some() {
        let title = ("extents", document.extents.len());
        section(&mut text, look, title, (extents_table(document, rows_max), rows_max));
    }
    let title = ("bios", document.bios.len());
    section(&mut text, look, title, (bios_table(document), ROWS_MAX));
    match &document.device_extents {
        None if document.image.is_some() => {}
        None => {
            put(&mut text, "");
            entry(&mut text, "on device", "unknown: the file system has no FIEMAP");
        }
        Some(list) => {
            let title = ("on device", list.len());
            section(&mut text, look, title, (device_table(document, rows_max), rows_max));
            if document.device_extents_are_cut {
                put(&mut text, "  extent list truncated");
            }
        }
    }
    text
}

fn policies(document: &Explain) -> String {
    let all = &document.policies;
    format!(
        "{} (boundary {}, submit {}, completion {}, depth {}, wait {}, short {}, route {}, \
         merge {})",
        document.preset,
        all.boundary,
        all.submit,
        all.completion,
        all.depth,
        all.wait,
        all.short,
        all.route,
        all.merge
    )
}

fn alignment(document: &Explain) -> String {
    let all = &document.alignment;
    let [memory, read, write] =
        [all.memory, all.offset_read, all.offset_write].map(|bytes| size_text(bytes.into()));
    format!("memory {memory}, reads {read}, writes {write}; source: {}", all.source)
}

fn waits(document: &Explain) -> String {
    match document.waits {
        0 => "0: nothing to wait for".to_owned(),
        1 if document.bios.len() == 1 => "1: for its one bio".to_owned(),
        1 => "1: all bios are submitted, then one wait for all".to_owned(),
        waits if document.policies.submit == "each-then-wait" => {
            format!("{waits}: one after each bio, before the next is submitted")
        }
        waits => format!("{waits}: one after each of {waits} groups of bios"),
    }
}

fn cached(document: &Explain) -> String {
    let page = u64::from(document.page_size);
    let end = document.offset.saturating_add(document.length);
    let pages = end.div_ceil(page).saturating_sub(document.offset / page);
    match document.cached_pages {
        None => "unknown".to_owned(),
        Some(0) => "no page of the range is cached".to_owned(),
        Some(cached) => {
            let bytes = size_text(cached.saturating_mul(page));
            let first = if document.op == "read" {
                "dirty pages are written back first"
            } else {
                "written back and dropped first"
            };
            format!("{cached} of the range's {pages} pages are cached, {bytes}: {first}")
        }
    }
}

/// Returns the bytes and bios of each object, in one line.
fn objects(bios: &[Bio]) -> String {
    let mut by_object: BTreeMap<u16, (u64, u64)> = BTreeMap::new();
    for bio in bios.iter().filter(|bio| !bio.is_edge_read) {
        let (count, bytes) = by_object.entry(bio.object).or_default();
        *count += 1;
        *bytes += bio.length;
    }
    let between = |least: Option<u64>, most: Option<u64>, text: fn(u64) -> String| {
        let (least, most) = (least.unwrap_or(0), most.unwrap_or(0));
        if least == most { text(most) } else { format!("{} to {}", text(least), text(most)) }
    };
    let bytes = || by_object.values().map(|(_, bytes)| *bytes);
    let counts = || by_object.values().map(|(count, _)| *count);
    let bytes = between(bytes().min(), bytes().max(), size_text);
    let bios = between(counts().min(), counts().max(), |count| count.to_string());
    let noun = if bios == "1" { "bio" } else { "bios" };
    let touched = u64::try_from(by_object.len()).unwrap_or(u64::MAX);
    format!("{}, {bytes} in {bios} {noun} on each", number(touched, "object"))
}

/// Adds a table of at most so many rows under its title.
fn section(
    text: &mut String,
    look: &Look,
    (title, rows): (&str, usize),
    (table, rows_max): (Table, usize),
) {
    put(text, "");
    if rows == 0 {
        text.push_str(&look.entry(INDENT, title, "none"));
        return;
    }
    text.push_str(&look.entry(INDENT, title, &rows.to_string()));
    text.push_str(&look.table(2, &table));
    if rows > rows_max {
        put(text, &format!("  and {} more; --json lists all", rows - rows_max));
    }
}

/// Returns bytes in two columns: exact, and in their unit.
fn bytes(bytes: u64) -> [String; 2] {
    let text = size_text(bytes);
    let unit = text.split_once(" (").map_or(String::new(), |(unit, _)| unit.to_owned());
    [bytes.to_string(), unit]
}

fn extents_table(document: &Explain, rows_max: usize) -> Table {
    let mut table = Table::new(&[
        ("offset", Side::Right),
        ("", Side::Left),
        ("length", Side::Right),
        ("", Side::Left),
        ("object", Side::Right),
        ("at", Side::Right),
        ("state", Side::Left),
        ("boundary", Side::Left),
    ]);
    let extents = &document.extents;
    for extent in extents.iter().take(rows_max) {
        let [offset, offset_unit] = bytes(extent.file_offset);
        let [length, length_unit] = bytes(extent.length);
        table.row(vec![
            offset,
            offset_unit,
            length,
            length_unit,
            extent.object.to_string(),
            extent.object_offset.to_string(),
            extent.state.to_owned(),
            if extent.boundary { "yes" } else { "" }.to_owned(),
        ]);
    }
    let is_plain = extents
        .iter()
        .all(|extent| extent.object == 0 && extent.object_offset == extent.file_offset);
    let has_boundary = extents.iter().any(|extent| extent.boundary);
    table.without(|head| match head {
        "object" | "at" => is_plain,
        "boundary" => !has_boundary,
        _ => false,
    })
}

fn bios_table(document: &Explain) -> Table {
    let mut table = Table::new(&[
        ("#", Side::Right),
        ("offset", Side::Right),
        ("", Side::Left),
        ("length", Side::Right),
        ("", Side::Left),
        ("object", Side::Right),
        ("at", Side::Right),
        ("segments", Side::Right),
        ("requests", Side::Right),
        ("path", Side::Left),
        ("ended by", Side::Left),
    ]);
    for (number, bio) in document.bios.iter().enumerate().take(ROWS_MAX) {
        let [offset, offset_unit] = bytes(bio.file_offset);
        let [length, length_unit] = bytes(bio.length);
        table.row(vec![
            number.to_string(),
            offset,
            offset_unit,
            length,
            length_unit,
            bio.object.to_string(),
            bio.object_offset.to_string(),
            bio.segments.to_string(),
            requests(bio),
            way(bio),
            bio.ended_by.to_owned(),
        ]);
    }
    let is_plain =
        document.bios.iter().all(|bio| bio.object == 0 && bio.object_offset == bio.file_offset);
    let are_known = document.bios.iter().any(|bio| bio.device_requests_max.is_some());
    table.without(|head| match head {
        "object" | "at" => is_plain,
        "requests" => !are_known,
        _ => false,
    })
}

/// Returns the number of requests that the kernel sends for a bio, which depends on its memory.
fn requests(bio: &Bio) -> String {
    let Some(most) = bio.device_requests_max else { return String::new() };
    match bio.device_requests_min.unwrap_or(1) {
        least if least == most => most.to_string(),
        least => format!("{least} to {most}"),
    }
}

fn way(bio: &Bio) -> String {
    if bio.is_edge_read { "edge read".to_owned() } else { bio.way.to_owned() }
}

fn device_table(document: &Explain, rows_max: usize) -> Table {
    let mut table = Table::new(&[
        ("offset", Side::Right),
        ("", Side::Left),
        ("length", Side::Right),
        ("", Side::Left),
        ("object", Side::Right),
        ("device offset", Side::Right),
        ("", Side::Left),
        ("state", Side::Left),
    ]);
    let is_striped = document.layout.as_ref().is_some_and(Layout::is_striped_file);
    for extent in document.device_extents.iter().flatten().take(rows_max) {
        let [offset, offset_unit] = bytes(extent.file_offset);
        let [length, length_unit] = bytes(extent.length);
        let [device, device_unit] = extent.device_offset.map_or(["-".into(), String::new()], bytes);
        let state = extent.state.to_owned();
        let object = extent.object.to_string();
        let place = vec![object, device, device_unit, state];
        table.row([vec![offset, offset_unit, length, length_unit], place].concat());
    }
    table.without(|head| head == "object" && !is_striped)
}

#[cfg(test)]
mod tests {
    use diopter_layouts::foreign::of_attributes;

    use super::*;
    use crate::cmd::explain::device::DeviceExtent;
    use crate::cmd::explain::document::{
        Alignment, Backend, Completion, Extent, PolicyNames, RouteBytes,
    };
    use crate::cmd::explain::kernel::{Kernel, KernelCompletion, PageCache};
    use snapbox::{assert_data_eq, file};

    const LOOK: Look = Look { is_coloured: false, width: 80, table_width: None };

    fn extent(file_offset: u64, length: u64, object_offset: u64, boundary: bool) -> Extent {
        Extent { file_offset, length, object: 0, object_offset, state: "mapped", boundary }
    }

    fn kernel() -> Kernel {
        Kernel {
            release: "6.18.44".to_owned(),
            is_running: true,
            file_system: "ext4".to_owned(),
            queued: KernelCompletion { context: "worker", why: "this kernel defers every write" },
            waited: KernelCompletion { context: "task", why: "the caller waits" },
            device_requests_min: Some(1),
            device_requests_max: Some(4),
            bytes_max: Some(1280 << 10),
            segments_max: Some(254),
            page_cache: PageCache { used: "no", why: "the file has no cached pages" },
        }
    }

    fn bio(file_offset: u64, length: u64, object_offset: u64, ended_by: &'static str) -> Bio {
        Bio {
            object: 0,
            object_offset,
            length,
            segments: 1,
            ended_by,
            file_offset,
            way: "direct",
            is_edge_read: false,
            device_requests_max: None,
            device_requests_min: None,
        }
    }

    /// 52 KiB across the first boundary of a file of indirect blocks.
    fn across_a_boundary() -> Explain {
        Explain {
            kernel: kernel(),
            schema: "diopter.explain/1",
            name: "data.bin".to_owned(),
            name_bytes: None,
            op: "write",
            offset: 0,
            length: 53248,
            preset: "diopter",
            policies: PolicyNames {
                boundary: "v5.12",
                submit: "all-then-wait",
                completion: "auto",
                depth: "auto".to_owned(),
                wait: "block",
                short: "resubmit",
                route: "direct",
                merge: "per-object",
            },
            backend: Backend { name: "uring", why: "a ring was tried".to_owned() },
            alignment: Alignment {
                memory: 512,
                offset_read: 512,
                offset_write: 4096,
                source: "statx".to_owned(),
            },
            route: RouteBytes { direct: 53248, bounced: 0, buffered: 0, why: Vec::new() },
            extents: vec![extent(0, 49152, 8192, true), extent(49152, 4096, 61440, false)],
            bios: vec![bio(0, 49152, 8192, "boundary"), bio(49152, 4096, 61440, "end-of-request")],
            waits: 1,
            completion: Completion { context: "inline", why: "overwrite of mapped blocks" },
            device_extents: None,
            device_extents_are_cut: false,
            cached_pages: Some(0),
            page_size: 4096,
            address: 0,
            bio_bytes_max: None,
            layout: None,
            image: None,
            bio_vecs_max: None,
        }
    }

    /// An unaligned write that is cut into many bios, on a file that is partly cached.
    fn in_many_pieces() -> Explain {
        let route = RouteBytes {
            direct: 0,
            bounced: 409_600,
            buffered: 7,
            why: vec!["misaligned-range", "unaligned-end-of-file"],
        };
        let mut bios: Vec<Bio> =
            (0..30).map(|at| bio(at * 4096, 4096, at * 4096, "size-limit")).collect();
        bios[0].is_edge_read = true;
        bios[0].way = "bounced";
        let device = |file_offset, length, device_offset, state| DeviceExtent {
            file_offset,
            length,
            device_offset,
            state,
            object: 0,
        };
        Explain {
            offset: 3,
            length: 409_607,
            route,
            extents: vec![extent(3, 409_607, 3, false)],
            bios,
            waits: 3,
            device_extents: Some(vec![
                device(3, 4093, Some(1 << 40), "mapped"),
                device(4096, 1 << 20, None, "hole"),
            ]),
            device_extents_are_cut: true,
            cached_pages: Some(12),
            ..across_a_boundary()
        }
    }

    #[test]
    fn a_request_across_a_boundary_is_reported_as_it_was() {
        let text = of(&across_a_boundary(), &LOOK);
        assert_data_eq!(text, file!["../../../tests/golden/explain-boundary.txt"].raw());
    }

    #[test]
    fn a_request_in_many_pieces_is_reported_as_it_was_and_cut() {
        let text = of(&in_many_pieces(), &LOOK);
        assert_data_eq!(text, file!["../../../tests/golden/explain-pieces.txt"].raw());
    }

    #[test]
    fn a_foreign_layout_is_reported_after_the_page_cache() {
        let text = b"stripe_unit=65536 stripe_count=3 object_size=262144 pool=data".to_vec();
        let read = of_attributes(|name| Ok((name == "ceph.file.layout").then(|| text.clone())));
        let layout = read.transpose().map(|read| crate::cmd::layout::of(&read, None));
        let reported = of(&Explain { layout, ..across_a_boundary() }, &LOOK);
        assert!(reported.contains("\nlayout       ceph: stripes of 64 KiB"), "{reported}");
        assert!(reported.contains("best in requests of 192 KiB"), "{reported}");
    }

    #[test]
    fn a_request_that_moves_nothing_says_so() {
        let route = RouteBytes { direct: 0, bounced: 0, buffered: 0, why: Vec::new() };
        let nothing =
            Explain { length: 0, route, bios: Vec::new(), waits: 0, ..across_a_boundary() };
        let text = of(&nothing, &LOOK);
        assert!(text.contains("no bytes to transfer") && text.contains("0: nothing to wait"));
    }

    #[test]
    fn a_request_that_waits_for_each_bio_says_so() {
        let mut document = across_a_boundary();
        document.policies.submit = "each-then-wait";
        document.waits = 2;
        let report = of(&document, &LOOK);
        assert!(report.contains("2: one after each bio"), "{report}");
    }
}
