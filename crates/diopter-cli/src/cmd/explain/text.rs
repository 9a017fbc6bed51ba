//! The document of `dio explain` as text for people. Every number of bytes is told in its unit too.

use super::document::{Bio, Explain};
use crate::output::{self, Look, Side, Table, put};
use crate::size::size_text;

/// Rows of a table that are shown; the document has them all.
const ROWS_MAX: usize = 24;

/// Column in which values begin.
const INDENT: usize = 13;

/// The text.
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
    entry(&mut text, "name", &output::shown(name));
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
        ways.push("no byte would move".to_owned());
    }
    entry(&mut text, "route", &format!("{}{why}", ways.join(", ")));
    entry(&mut text, "waits", &waits(document));
    let completion = &document.completion;
    entry(&mut text, "completion", &format!("{}: {}", completion.context, completion.why));
    entry(&mut text, "page cache", &cached(document));
    section(&mut text, look, ("extents", document.extents.len()), extents_table(document));
    section(&mut text, look, ("bios", document.bios.len()), bios_table(document));
    match &document.device_extents {
        None => {
            put(&mut text, "");
            entry(&mut text, "on device", "the file system does not tell");
        }
        Some(list) => {
            let title = ("on device", list.len());
            section(&mut text, look, title, device_table(document));
            if document.device_extents_are_cut {
                put(&mut text, "  the file system told no more than that; the range goes on");
            }
        }
    }
    text
}

fn policies(document: &Explain) -> String {
    let all = &document.policies;
    format!(
        "{} (boundary {}, submit {}, completion {}, depth {}, wait {}, short {}, route {})",
        document.preset,
        all.boundary,
        all.submit,
        all.completion,
        all.depth,
        all.wait,
        all.short,
        all.route
    )
}

fn alignment(document: &Explain) -> String {
    let all = &document.alignment;
    let [memory, read, write] =
        [all.memory, all.offset_read, all.offset_write].map(|bytes| size_text(bytes.into()));
    format!("memory {memory}, reads {read}, writes {write}; told by {}", all.source)
}

fn waits(document: &Explain) -> String {
    match document.waits {
        0 => "0: there is nothing to wait for".to_owned(),
        1 if document.bios.len() == 1 => "1: for its one bio".to_owned(),
        1 => "1: all bios are submitted, then waited for together".to_owned(),
        waits if document.policies.submit == "each-then-wait" => {
            format!("{waits}: each bio is waited for before the next is submitted")
        }
        waits => format!("{waits}: bios of one way are waited for together, before the next way"),
    }
}

fn cached(document: &Explain) -> String {
    let page = u64::from(document.page_size);
    let end = document.offset.saturating_add(document.length);
    let pages = end.div_ceil(page).saturating_sub(document.offset / page);
    match document.cached_pages {
        None => "the kernel does not tell".to_owned(),
        Some(0) => "no page of the range is cached".to_owned(),
        Some(cached) => {
            let bytes = size_text(cached.saturating_mul(page));
            let first = if document.op == "read" {
                "dirty ones are written back first"
            } else {
                "written back and dropped first"
            };
            format!("{cached} of the range's {pages} pages are cached, {bytes}: {first}")
        }
    }
}

/// A table under its title, cut at [`ROWS_MAX`].
fn section(text: &mut String, look: &Look, (title, rows): (&str, usize), table: Table) {
    put(text, "");
    if rows == 0 {
        text.push_str(&look.entry(INDENT, title, "none"));
        return;
    }
    text.push_str(&look.entry(INDENT, title, &rows.to_string()));
    text.push_str(&look.table(2, &table));
    if rows > ROWS_MAX {
        put(text, &format!("  and {} more; --json lists all", rows - ROWS_MAX));
    }
}

/// Bytes in two columns: exact, and in their unit.
fn bytes(bytes: u64) -> [String; 2] {
    let told = size_text(bytes);
    let unit = told.split_once(" (").map_or(String::new(), |(unit, _)| unit.to_owned());
    [bytes.to_string(), unit]
}

fn extents_table(document: &Explain) -> Table {
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
    for extent in extents.iter().take(ROWS_MAX) {
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
        ("way", Side::Left),
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
            way(bio),
            bio.ended_by.to_owned(),
        ]);
    }
    let is_plain =
        document.bios.iter().all(|bio| bio.object == 0 && bio.object_offset == bio.file_offset);
    table.without(|head| is_plain && (head == "object" || head == "at"))
}

fn way(bio: &Bio) -> String {
    if bio.is_edge_read { format!("{}, reads an edge", bio.way) } else { bio.way.to_owned() }
}

fn device_table(document: &Explain) -> Table {
    let mut table = Table::new(&[
        ("offset", Side::Right),
        ("", Side::Left),
        ("length", Side::Right),
        ("", Side::Left),
        ("device offset", Side::Right),
        ("", Side::Left),
        ("state", Side::Left),
    ]);
    for extent in document.device_extents.iter().flatten().take(ROWS_MAX) {
        let [offset, offset_unit] = bytes(extent.file_offset);
        let [length, length_unit] = bytes(extent.length);
        let [device, device_unit] = extent.device_offset.map_or(["-".into(), String::new()], bytes);
        let state = extent.state.to_owned();
        table.row(vec![offset, offset_unit, length, length_unit, device, device_unit, state]);
    }
    table
}
