//! The documents of `dio lab` as text.

use std::collections::BTreeMap;

use diopter_lab::between::{Bisection, Metric};
use diopter_lab::bisect::Verdict;
use diopter_lab::listing::{KernelList, SeriesEntry};
use diopter_text::{Side, Table, untrusted};

use crate::output::{Look, put};
use crate::size::size_text;

const INDENT: usize = 12;

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
    let cache = format!("{}: {bytes} of at most {limit}", untrusted::name(&list.cache));
    text.push_str(&look.entry(INDENT, "cache", &cache));
    if !list.complaints.is_empty() {
        let failed = format!("some suites can't be read: {}", list.complaints);
        text.push_str(&look.entry(INDENT, "suites", &failed));
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

pub fn bisect(found: &Bisection, look: &Look) -> String {
    let unit = match found.metric {
        Metric::Contexts => "deferred %",
        Metric::Iops => "virtual IOPS",
        Metric::Instructions => "instructions per I/O",
    };
    let mut table = Table::new(&[
        ("kernel", Side::Right),
        ("is", Side::Left),
        (unit, Side::Right),
        ("note", Side::Left),
    ]);
    let mut skipped: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for step in &found.steps {
        let note = step.note.lines().next().unwrap_or_default();
        let (Some(figure), Verdict::Good | Verdict::Bad) = (step.figure, step.verdict) else {
            skipped.entry(note).or_default().push(&step.kernel);
            continue;
        };
        let verdict = if step.verdict == Verdict::Good { "good" } else { "bad" };
        let figure = format!("{figure:.1}");
        table.row(vec![step.kernel.clone(), verdict.to_owned(), figure, note.to_owned()]);
    }
    let mut text = look.table(0, &table);
    put(&mut text, "");
    let Bisection { good, bad, between, .. } = found;
    let change = if between.is_empty() {
        format!("between {good} (good) and {bad} (bad), which are adjacent")
    } else {
        let count = between.len();
        format!("between {good} (good) and {bad} (bad); {count} between them were not measured")
    };
    text.push_str(&look.entry(INDENT, "changed", &change));
    for (reason, kernels) in skipped {
        let skipped = format!("{}: {reason}", kernels.join(", "));
        text.push_str(&look.entry(INDENT, "skipped", &skipped));
    }
    text.push_str(&look.entry(INDENT, "job", &format!("{}, {}", found.job, found.engine)));
    let boots = format!(
        "{} of at most {}, among {} kernels",
        found.boots, found.boots_max, found.kernel_count
    );
    text.push_str(&look.entry(INDENT, "boots", &boots));
    text
}
