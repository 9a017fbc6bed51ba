//! Jobs whose bytes went through the page cache: their figures are not those of the disk. A fio job
//! is buffered unless it has `direct=1`, so it says so in each form of a report.

use super::label::Labels;
use crate::document::{Bench, Cell, Column, Job};
use crate::number::{float, total};

/// The engines of fio that read and write files.
const FILE_ENGINES: [&str; 9] =
    ["sync", "psync", "vsync", "pvsync", "pvsync2", "libaio", "io_uring", "posixaio", "mmap"];

/// Places that a note names; more are counted.
const PLACES_MAX: usize = 5;

/// Returns a note for the jobs that did not ask for direct I/O, and one for those that did and
/// moved most bytes through the page cache; nothing without any.
pub(super) fn notes(bench: &Bench, labels: &Labels) -> Vec<String> {
    let (mut asked, mut fell_back) = (Vec::new(), Vec::new());
    for (row, label) in bench.rows.iter().zip(&labels.full) {
        let cells: Vec<(&Column, &Cell)> = bench
            .columns
            .iter()
            .zip(&row.cells)
            .filter(|(column, cell)| is_buffered(column, &row.job, cell))
            .collect();
        if cells.is_empty() {
            continue;
        }
        let measured = row.cells.iter().filter(|cell| !cell.samples.is_empty()).count();
        let place = match cells.len() == measured {
            true => label.clone(),
            false => {
                let columns: Vec<_> = cells.iter().map(|(column, _)| &*column.label).collect();
                format!("{label}, {}", columns.join(", "))
            }
        };
        let places = if row.job.is_direct { &mut fell_back } else { &mut asked };
        places.push(place);
    }
    let why = |places: &[String], one: &str, several: &str| {
        let why = if places.len() == 1 { one } else { several };
        (!places.is_empty()).then(|| format!("{} went through the page cache: {why}", list(places)))
    };
    let asked = why(
        &asked,
        "the job has no direct=1; these are not figures of the disk",
        "these jobs have no direct=1; their figures are not those of the disk",
    );
    let fell_back = why(
        &fell_back,
        "most bytes of this direct job; these are not figures of the disk",
        "most bytes of these direct jobs; their figures are not those of the disk",
    );
    asked.into_iter().chain(fell_back).collect()
}

/// Returns true if most bytes of a measured cell went through the page cache. The routes of fio are
/// not known: there the job decides, for the engines that have a page cache.
fn is_buffered(column: &Column, job: &Job, cell: &Cell) -> bool {
    if cell.samples.is_empty() {
        return false;
    }
    let routes = || cell.samples.iter().filter_map(|sample| sample.route);
    let buffered = float(total(routes().map(|route| route.buffered)));
    let direct = float(total(routes().flat_map(|route| [route.direct, route.bounced])));
    if buffered + direct > 0.0 {
        return buffered > direct;
    }
    let has_cache = column.program == "fio" && FILE_ENGINES.contains(&&*column.engine);
    has_cache && !job.is_direct && !job.unknown.iter().any(|name| name == "is_direct")
}

fn list(places: &[String]) -> String {
    let named = &places[..places.len().min(PLACES_MAX)];
    match places.len() - named.len() {
        0 => named.join(" and "),
        more => format!("{} and {more} more", named.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{RouteSample, Row, Sample};

    /// The name of a section, whether it is direct, and its bytes by direct I/O and buffered.
    type Measured<'a> = (&'a str, bool, Option<(u64, u64)>);

    /// Rows of one measured cell.
    fn bench(rows: &[Measured<'_>]) -> Bench {
        let row = |(name, is_direct, bytes): &Measured<'_>| {
            let route =
                bytes.map(|(direct, buffered)| RouteSample { direct, bounced: 0, buffered });
            let samples = vec![Sample { route, ..Sample::default() }];
            let name = format!("{name}: read 4k");
            let job = Job { name, is_direct: *is_direct, block_bytes: 4096, ..Job::default() };
            Row { job, cells: vec![Cell { samples, ..Cell::default() }] }
        };
        let [label, program, engine] = ["fio:psync", "fio", "psync"].map(str::to_owned);
        let columns = vec![Column { label, program, engine, ..Column::default() }];
        Bench { columns, rows: rows.iter().map(row).collect(), ..Bench::default() }
    }

    fn notes_of(bench: &Bench) -> Vec<String> {
        notes(bench, &Labels::of(&bench.rows))
    }

    #[test]
    fn a_job_without_direct_is_named_with_the_reason() {
        let found = notes_of(&bench(&[("oltp", false, Some((0, 4096)))]));
        let expected = "oltp: read 4k went through the page cache: the job has no direct=1; these \
                        are not figures of the disk";
        assert_eq!(found, [expected]);
        let found = notes_of(&bench(&[("oltp", false, None), ("scan", false, None)]));
        assert!(found[0].starts_with("oltp: read 4k and scan: read 4k went"), "{found:?}");
    }

    #[test]
    fn the_routes_decide_where_they_are_known() {
        let rows = [("a", true, Some((4096, 100))), ("b", false, Some((4096, 0)))];
        assert_eq!(notes_of(&bench(&rows)), Vec::<String>::new());
        let found = notes_of(&bench(&[("a", true, Some((100, 4096)))]));
        assert!(found[0].contains("most bytes of this direct job"), "{found:?}");
    }

    #[test]
    fn what_was_not_measured_or_is_not_known_has_no_note() {
        let mut bench = bench(&[("oltp", false, None)]);
        bench.rows[0].job.unknown = vec!["is_direct".to_owned()];
        assert_eq!(notes_of(&bench), Vec::<String>::new());
        bench.rows[0].job.unknown.clear();
        bench.rows[0].cells[0].samples.clear();
        assert_eq!(notes_of(&bench), Vec::<String>::new());
    }

    #[test]
    fn an_engine_without_a_page_cache_and_a_column_that_was_direct_are_not_named() {
        let mut of_fio = bench(&[("oltp", false, None)]);
        of_fio.columns[0].engine = "io_uring_cmd".to_owned();
        assert_eq!(notes_of(&of_fio), Vec::<String>::new());
        let mut several = bench(&[("oltp", false, Some((0, 4096)))]);
        let direct = bench(&[("oltp", false, Some((4096, 0)))]).rows[0].cells[0].clone();
        several.columns.push(Column { label: "other".to_owned(), ..Column::default() });
        several.rows[0].cells.push(direct);
        let found = notes_of(&several);
        assert!(found[0].starts_with("oltp: read 4k, fio:psync went"), "{found:?}");
    }

    #[test]
    fn many_jobs_are_counted() {
        let rows: Vec<_> =
            ["a", "b", "c", "d", "e", "f", "g"].map(|name| (name, false, None)).into();
        let found = notes_of(&bench(&rows));
        assert!(found[0].contains("e: read 4k and 2 more went through"), "{found:?}");
    }
}
