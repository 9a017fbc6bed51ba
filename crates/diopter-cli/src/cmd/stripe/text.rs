//! The document of `dio stripe info` as text. Sizes have their unit too.

use std::path::Path;

use diopter_layouts::layout::{Layout, ObjectKind};
use diopter_text::{Side, Table, untrusted};

use super::document::{Stripe, StripeObject};
use crate::cmd::finding::{self, number};
use crate::output::{Look, Tone, put};
use crate::size::size_text;

/// Limit of the objects shown; the document has all, and findings name faulty ones.
const ROWS_MAX: usize = 24;

/// Column in which values begin.
const INDENT: usize = 12;

pub fn of(document: &Stripe, look: &Look) -> String {
    let size = document.size.map_or("size unknown".to_owned(), size_text);
    let name = untrusted::name(&document.name);
    let mut text = look.title(&name, &format!("striped file, {size}"));
    put(&mut text, "");
    let stripe_size = size_text(document.stripe_size);
    let count = u64::try_from(document.stripe_count).unwrap_or(u64::MAX);
    let over = number(count, "object");
    let mut rows = vec![
        ("manifest", untrusted::name(&document.manifest)),
        ("uuid", document.uuid.clone()),
        ("stripes", format!("{stripe_size} over {over}, {} a round", size_text(document.width))),
    ];
    if document.is_size_fixed {
        rows.push(("size", "fixed: a device is among the objects".to_owned()));
    }
    let sealed = if document.is_sealed {
        "yes: a change of an object's size is detected"
    } else {
        "no: a truncated object is not detected"
    };
    rows.push(("sealed", sealed.to_owned()));
    for (label, value) in rows {
        text.push_str(&look.entry(INDENT, label, &value));
    }
    put(&mut text, "");
    text.push_str(&look.table(2, &objects_table(document)));
    if document.objects.len() > ROWS_MAX {
        let more = document.objects.len() - ROWS_MAX;
        put(&mut text, &format!("  and {more} more; --json lists all"));
    }
    put(&mut text, "");
    if document.findings.is_empty() {
        let well = look.paint(Tone::Good, "none: all objects exist and match the manifest");
        text.push_str(&look.entry(INDENT, "findings", &well));
        return text;
    }
    text.push_str(&look.entry(INDENT, "findings", &finding::counts(&document.findings)));
    text.push_str(&finding::text(&document.findings, look));
    text
}

/// Returns the owner of a manifest and every object that it names, which a mark allows to use.
pub fn of_adoption(name: &Path, layout: &Layout) -> String {
    let manifest = layout.manifest();
    let (uuid, owner) = (manifest.uuid().hyphenated(), layout.owner());
    let mut text = String::new();
    let name = untrusted::name(name);
    put(&mut text, &format!("{name}: manifest of user {owner}, layout {uuid}"));
    for (index, object) in manifest.objects().iter().enumerate() {
        let path = untrusted::name(layout.object_path(object));
        let kind = match &object.kind {
            ObjectKind::File { .. } => "file".to_owned(),
            ObjectKind::Device(device) => untrusted::name(format!("device {device}")),
        };
        put(&mut text, &format!("  {index}  {path}  ({kind})"));
    }
    text
}

fn objects_table(document: &Stripe) -> Table {
    let mut table = Table::new(&[
        ("#", Side::Right),
        ("kind", Side::Left),
        ("size", Side::Right),
        ("", Side::Left),
        ("sealed", Side::Right),
        ("aligned to", Side::Right),
        ("state", Side::Left),
        ("object", Side::Left),
        ("id", Side::Left),
    ]);
    for object in document.objects.iter().take(ROWS_MAX) {
        table.row(row_of(object));
    }
    let has_id = document.objects.iter().any(|object| object.device_id.is_some());
    table.without(|head| match head {
        "sealed" => !document.is_sealed,
        "id" => !has_id,
        _ => false,
    })
}

fn row_of(object: &StripeObject) -> Vec<String> {
    let none = || "-".to_owned();
    let text = object.size.map(size_text).unwrap_or_default();
    let unit = text.split_once(" (").map_or(String::new(), |(unit, _)| unit.to_owned());
    vec![
        object.index.to_string(),
        object.kind.replace('-', " "),
        object.size.map_or_else(none, |size| size.to_string()),
        unit,
        object.sealed_size.map_or_else(none, |size| size.to_string()),
        object.alignment.map_or_else(none, |bytes| bytes.to_string()),
        if object.is_well { "ok" } else { "FAULTY" }.to_owned(),
        untrusted::name(&object.recorded_path),
        object.device_id.clone().unwrap_or_default(),
    ]
}
