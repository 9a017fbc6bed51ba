//! The documents as text. Sizes have their unit too.

use diopter_text::{Side, Table, untrusted};

use super::document::{Explain, Facts, Info};
use crate::cmd::finding::number;
use crate::output::{Look, Tone, put};
use crate::size::size_text;

/// Limit of the rows shown; the document has all.
const ROWS_MAX: usize = 24;

/// Column in which values begin.
const INDENT: usize = 12;

/// Returns the text of `dio probe` for one name.
pub fn of_facts(facts: &Facts, look: &Look) -> String {
    let mut text = String::new();
    let title = look.paint(Tone::Head, &untrusted::name(&facts.name));
    put(&mut text, &format!("{title}: striped object, {}\n", size_text(facts.size)));
    let namespace = facts.namespace.as_ref().map(untrusted::name);
    let pool = untrusted::name(&facts.pool);
    let over = number(facts.stripe_count, "object");
    let state = match facts.is_complete {
        true => "complete",
        false => "not complete: the copy that made it was interrupted",
    };
    let lock = match facts.has_lock {
        true => "shared, while this command ran",
        false => "none: the key may only read",
    };
    let largest = facts.object_size_max.map_or("unknown".to_owned(), size_text);
    for (label, value) in [
        ("pool", namespace.map_or(pool.clone(), |name| format!("{pool}, namespace {name}"))),
        ("stripes", format!("{} over {over}", size_text(facts.stripe_unit))),
        ("objects", format!("{} of {}", facts.object_count, size_text(facts.object_size))),
        ("largest", format!("{largest} in an object, as the configuration says")),
        ("state", state.to_owned()),
        ("lock", lock.to_owned()),
        ("librados", facts.librados.clone()),
    ] {
        text.push_str(&look.entry(INDENT, label, &value));
    }
    text
}

/// Returns the text of `dio stripe info`.
pub fn of_info(info: &Info, look: &Look) -> String {
    let mut text = of_facts(&info.striped_object, look);
    put(&mut text, "");
    let heads =
        [("#", Side::Right), ("bytes", Side::Right), ("size", Side::Right), ("object", Side::Left)];
    let mut table = Table::new(&heads);
    for object in info.objects.iter().take(ROWS_MAX) {
        let size = object.size.map_or("missing".to_owned(), |size| size.to_string());
        let name = untrusted::name(&object.name);
        table.row(vec![object.index.to_string(), object.bytes.to_string(), size, name]);
    }
    text.push_str(&look.table(2, &table));
    put_more(&mut text, info.striped_object.object_count);
    text
}

/// Returns the text of `dio explain`.
pub fn of_explain(explain: &Explain, look: &Look) -> String {
    let mut text = of_facts(&explain.striped_object, look);
    put(&mut text, "");
    let Explain { op, offset, length, transferred, .. } = explain;
    let first = match (explain.new_size, *op) {
        (Some(size), _) => format!("the size is raised to {size} in the first object, then"),
        (None, "read") => {
            "the size is read from the first object if it is not known, then".to_owned()
        }
        (None, _) => "the size stays;".to_owned(),
    };
    let count = number(explain.operations.len() as u64, "operation");
    let request = format!("{op} of {length} bytes at {offset}: {transferred} are transferred");
    text.push_str(&look.entry(INDENT, "request", &request));
    text.push_str(&look.entry(INDENT, "order", &format!("{first} {count} at once")));
    put(&mut text, "");
    let heads = [
        ("#", Side::Right),
        ("offset", Side::Right),
        ("length", Side::Right),
        ("pieces", Side::Right),
        ("object", Side::Left),
    ];
    let mut table = Table::new(&heads);
    for operation in explain.operations.iter().take(ROWS_MAX) {
        table.row(vec![
            operation.object.to_string(),
            operation.object_offset.to_string(),
            operation.length.to_string(),
            operation.pieces.to_string(),
            untrusted::name(&operation.name),
        ]);
    }
    text.push_str(&look.table(2, &table));
    put_more(&mut text, explain.operations.len() as u64);
    text
}

fn put_more(text: &mut String, rows: u64) {
    let more = rows.saturating_sub(ROWS_MAX as u64);
    if more > 0 {
        put(text, &format!("  and {more} more; --json lists them"));
    }
}
