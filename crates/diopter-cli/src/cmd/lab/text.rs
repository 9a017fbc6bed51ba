//! The documents of `dio lab` as text for people.

use diopter_lab::kernels::listing::{KernelList, SeriesEntry};

use crate::output::{self, Look, Side, Table, put};
use crate::size::size_text;

const INDENT: usize = 12;

/// The kernels.
pub fn kernels(list: &KernelList, look: &Look) -> String {
    let mut table = Table::new(&[
        ("series", Side::Right),
        ("newest", Side::Left),
        ("modules", Side::Left),
        ("cached", Side::Left),
        ("versions", Side::Right),
        ("suites", Side::Left),
    ]);
    for entry in &list.series {
        table.row(row(entry));
    }
    let mut text = look.table(0, &table);
    put(&mut text, "");
    let (bytes, limit) = (size_text(list.cache_bytes), size_text(list.cache_limit_bytes));
    let cache = format!("{}: {bytes} of at most {limit}", output::shown(&list.cache));
    text.push_str(&look.entry(INDENT, "cache", &cache));
    if !list.complaints.is_empty() {
        let told = format!("not all suites answered: {}", list.complaints);
        text.push_str(&look.entry(INDENT, "suites", &told));
    }
    text
}

fn row(entry: &SeriesEntry) -> Vec<String> {
    let newest = entry.newest.as_ref();
    let cached = entry.cached.last();
    let is_newest_cached = newest.is_some_and(|newest| newest.is_cached);
    vec![
        entry.series.clone(),
        newest.map_or("-", |newest| &newest.release).to_owned(),
        newest.map_or("-", |newest| if newest.has_modules { "yes" } else { "no" }).to_owned(),
        match cached {
            _ if is_newest_cached => "yes".to_owned(),
            Some(cached) => cached.release.clone(),
            None => "no".to_owned(),
        },
        entry.version_count.to_string(),
        newest.map_or(String::new(), |newest| newest.suites.join(" ")),
    ]
}
