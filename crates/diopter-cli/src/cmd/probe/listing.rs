//! `dio probe` for an unmounted file system, as text: its facts, and a listing as in ls(1).

use diopter_text::{Side, Table, untrusted};

use super::document::{ListedEntry, Listing, ProbedImage, ProbedNode};
use crate::cmd::finding::number;
use crate::output::{Look, Tone, put};
use crate::size::size_text;

/// Limit of the names shown; the document has more.
const ROWS_MAX: usize = 200;

pub fn text(image: &ProbedImage, indent: usize, look: &Look) -> String {
    let mut text = String::new();
    let path = untrusted::name(&image.path);
    let block = size_text(image.block_size);
    let mut rows = vec![
        ("image", format!("{path}: {}, blocks of {block}", image.format)),
        ("features", image.features.join(", ")),
    ];
    if image.warnings.is_empty() {
        rows.push(("state", look.paint(Tone::Good, "clean")));
    }
    rows.extend(image.warnings.iter().map(|warning| ("state", look.paint(Tone::Warning, warning))));
    rows.extend(rows_of(&image.node, look));
    for (label, value) in rows.iter().filter(|(_, value)| !value.is_empty()) {
        text.push_str(&look.entry(indent, label, value));
    }
    if let Some(listing) = &image.node.listing {
        put(&mut text, "");
        add_listing(&mut text, listing, look);
    }
    text
}

fn rows_of(node: &ProbedNode, look: &Look) -> Vec<(&'static str, String)> {
    let mode = mode_text(Some(node.kind), node.mode);
    let links = number(node.links.into(), "link");
    let mut rows = vec![(
        "inode",
        format!("{} at {}: {mode}, {links}", node.inode, untrusted::name(&node.path)),
    )];
    if node.kind != "file" {
        return rows;
    }
    let place = match (&node.extents, node.is_inline) {
        (_, true) => "none: the bytes are in the inode".to_owned(),
        (Some(counts), _) => counts.text(),
        (None, _) => "unknown".to_owned(),
    };
    rows.push(("extents", place));
    for (label, refusal) in
        [("reading", &node.read_refusal), ("overwriting", &node.overwrite_refusal)]
    {
        rows.push((
            label,
            match refusal {
                None => look.paint(Tone::Good, "possible"),
                Some(why) => format!("refused: {why}"),
            },
        ));
    }
    rows
}

fn add_listing(text: &mut String, listing: &Listing, look: &Look) {
    let mut table = Table::new(&[
        ("mode", Side::Left),
        ("size", Side::Right),
        ("inode", Side::Right),
        ("name", Side::Left),
    ]);
    for entry in listing.entries.iter().take(ROWS_MAX) {
        let or_none = |number: Option<u64>| number.map_or("?".to_owned(), |it| it.to_string());
        table.row(vec![
            entry.mode.map_or("?".to_owned(), |mode| mode_text(entry.kind, mode)),
            or_none(entry.size),
            entry.inode.to_string(),
            name_text(entry),
        ]);
    }
    let listed = listing.entries.len();
    if listed == 0 {
        put(text, "  the directory is empty");
        return;
    }
    text.push_str(&look.fitted(2, &table, &["inode", "size"]));
    let more = listed.saturating_sub(ROWS_MAX) + listing.left_out;
    if more > 0 {
        let all = if listing.left_out == 0 { "lists all" } else { "lists 10000" };
        put(text, &format!("  and {more} more; --json {all}"));
    }
}

fn name_text(entry: &ListedEntry) -> String {
    let name = untrusted::name(&entry.name);
    let trouble = entry.trouble.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
    match &entry.target {
        Some(target) => format!("{name} -> {}{trouble}", untrusted::name(target)),
        None if entry.kind == Some("directory") => format!("{name}/{trouble}"),
        None => format!("{name}{trouble}"),
    }
}

/// Returns `drwxr-xr-x`; `?` for other kinds, which are not distinguished.
fn mode_text(kind: Option<&str>, mode: u32) -> String {
    let mut text = String::from(match kind {
        Some("file") => "-",
        Some("directory") => "d",
        Some("symlink") => "l",
        _ => "?",
    });
    let special = [(0o4000, 's', 'S'), (0o2000, 's', 'S'), (0o1000, 't', 'T')];
    for (who, (bit, with, without)) in [6, 3, 0].into_iter().zip(special) {
        let rights = mode >> who;
        text.push(if rights & 4 == 0 { '-' } else { 'r' });
        text.push(if rights & 2 == 0 { '-' } else { 'w' });
        text.push(match (mode & bit != 0, rights & 1 != 0) {
            (false, false) => '-',
            (false, true) => 'x',
            (true, true) => with,
            (true, false) => without,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_printed_as_ls_prints_them() {
        assert_eq!(mode_text(Some("directory"), 0o755), "drwxr-xr-x");
        assert_eq!(mode_text(Some("file"), 0o4640), "-rwSr-----");
        assert_eq!(mode_text(Some("directory"), 0o1777), "drwxrwxrwt");
        assert_eq!(mode_text(Some("file"), 0o2755), "-rwxr-sr-x");
        assert_eq!(mode_text(None, 0), "?---------");
    }

    fn entry(at: usize) -> ListedEntry {
        ListedEntry {
            name: format!("file{at}"),
            name_bytes: None,
            inode: 12,
            kind: Some("file"),
            size: Some(5),
            mode: Some(0o644),
            target: None,
            trouble: None,
        }
    }

    #[test]
    fn a_long_listing_is_cut_and_says_how_many_are_left_out() {
        let look = Look { is_coloured: false, width: 80, table_width: None };
        let text_of = |entries, left_out| {
            let mut text = String::new();
            let entries = (0..entries).map(entry).collect();
            add_listing(&mut text, &Listing { entries, left_out }, &look);
            text
        };
        assert!(text_of(200, 0).ends_with("file199\n"));
        assert!(text_of(203, 0).ends_with("  and 3 more; --json lists all\n"));
        assert!(text_of(203, 4).ends_with("  and 7 more; --json lists 10000\n"));
        assert_eq!(text_of(0, 0), "  the directory is empty\n");
    }
}
