//! The first table of a report: the absolute figures of each cell, with their units.

use super::figures::Figures;
use super::judged::figures_of;
use super::label::Labels;
use super::latency::{Curve, Kind, combination, curve, kind_of, sync_curve};
use super::numbers::{bytes, rate, time};
use super::table::{self, Block, Shown};
use crate::compare::Comparison;
use crate::document::{Bench, Cell, Direction};

/// The percentiles that have a column.
const SHOWN: [(f64, &str); 3] = [(50.0, "p50"), (99.0, "p99"), (99.9, "p99.9")];

/// Lines at most; the document has the others.
const LINES_MAX: usize = 60;

const DIRECTIONS: [(Direction, &str); 2] =
    [(Direction::Read, "reads"), (Direction::Write, "writes")];

/// Returns the tables of a report: this one first, then those relative to a base.
pub(super) fn blocks(bench: &Bench, comparison: Option<&Comparison>) -> Vec<Block> {
    let relative = (bench.columns.len() > 1).then(|| table::blocks(bench, comparison));
    let absolute = block(bench).into_iter().chain(syncs(bench));
    absolute.chain(relative.into_iter().flatten()).collect()
}

/// Returns the table; `None` if nothing was measured.
fn block(bench: &Bench) -> Option<Block> {
    let figures = figures_of(bench);
    if !figures.iter().flatten().any(|one| one.rounds > 0) {
        return None;
    }
    let kind = kind_of(bench);
    let labels = Labels::of(&bench.rows);
    let has_one_column = bench.columns.len() == 1;
    let mut lines = Vec::new();
    for (row, label) in labels.full.iter().enumerate() {
        if !has_one_column {
            lines.push((label.clone(), vec![Shown::default(); SHOWN.len() + 2]));
        }
        for (column, figures) in figures[row].iter().enumerate() {
            let cell = bench.rows[row].cells.get(column).filter(|_| figures.rounds > 0);
            let name = if has_one_column {
                label.clone()
            } else {
                format!("  {}", bench.columns[column].label)
            };
            lines.extend(lines_of(name, figures, cell, kind));
        }
    }
    let all = lines.len();
    lines.truncate(LINES_MAX);
    let mut heads = vec!["IOPS".to_owned(), "bandwidth".to_owned()];
    heads.extend(SHOWN.map(|(_, name)| name.to_owned()));
    Some(Block { title: title(bench, kind, all), corner: "", heads, lines })
}

fn title(bench: &Bench, kind: Option<Kind>, lines: usize) -> String {
    let latency = match kind {
        Some(Kind::Lat) => ", latency from start to completion",
        Some(Kind::Clat) => ", latency from submission to completion (clat)",
        Some(Kind::Slat) | None => "",
    };
    let rounds = match bench.method.rounds {
        0 | 1 => String::new(),
        rounds => {
            let percentiles = kind.and_then(|kind| combination(bench, kind));
            let names = SHOWN.map(|(_, name)| name).join(", ");
            let percentiles = percentiles.map(|how| format!("; {names} {how}"));
            format!("; medians of {rounds} rounds{}", percentiles.unwrap_or_default())
        }
    };
    let more = match lines.checked_sub(LINES_MAX) {
        Some(more) if more > 0 => format!("; {more} more lines are in the document"),
        _ => String::new(),
    };
    format!("IOPS, bandwidth{latency}{rounds}{more}")
}

/// Returns the line of a cell, and a second one if it has both reads and writes.
fn lines_of(
    name: String,
    figures: &Figures,
    cell: Option<&Cell>,
    kind: Option<Kind>,
) -> Vec<(String, Vec<Shown>)> {
    let of_cell = |figure: Option<String>| shown(figure.unwrap_or_else(|| "-".to_owned()));
    let mut rates = vec![
        of_cell(figures.iops.map(rate)),
        of_cell(figures.bytes_per_second.map(|rate| format!("{}/s", bytes(rate)))),
    ];
    let curve_of = |way| curve(cell?, way, kind?);
    let curves: Vec<(&str, Curve)> =
        DIRECTIONS.iter().filter_map(|(way, name)| Some((*name, curve_of(*way)?))).collect();
    match curves.as_slice() {
        [] => {
            rates.extend(SHOWN.map(|_| shown("-".to_owned())));
            vec![(name, rates)]
        }
        [(_, one)] => {
            rates.extend(percentiles(one));
            vec![(name, rates)]
        }
        several => {
            rates.extend(SHOWN.map(|_| Shown::default()));
            let indent = name.len() - name.trim_start().len() + 2;
            let mut lines = vec![(name, rates)];
            for (way, curve) in several {
                let cells = [Shown::default(), Shown::default()].into_iter();
                let cells = cells.chain(percentiles(curve)).collect();
                lines.push((format!("{:indent$}{way}", ""), cells));
            }
            lines
        }
    }
}

fn percentiles(curve: &Curve) -> impl Iterator<Item = Shown> {
    SHOWN.into_iter().map(|(percent, _)| at(curve, percent))
}

fn at(curve: &Curve, percent: f64) -> Shown {
    shown(curve.at(percent).map_or("-".to_owned(), time))
}

/// Returns the table of the syncs; `None` if no job has any.
fn syncs(bench: &Bench) -> Option<Block> {
    let labels = Labels::of(&bench.rows);
    let mut lines = Vec::new();
    for (row, label) in bench.rows.iter().zip(&labels.full) {
        for (column, cell) in bench.columns.iter().zip(&row.cells) {
            let Some(curve) = sync_curve(cell) else { continue };
            let name = match bench.columns.len() {
                1 => label.clone(),
                _ => format!("{label}, {}", column.label),
            };
            let mut cells = vec![shown(curve.count.to_string())];
            cells.extend(percentiles(&curve).chain([at(&curve, 100.0)]));
            lines.push((name, cells));
        }
    }
    if lines.is_empty() {
        return None;
    }
    let more = match lines.len().checked_sub(LINES_MAX) {
        Some(more) if more > 0 => format!("; {more} more lines are in the document"),
        _ => String::new(),
    };
    lines.truncate(LINES_MAX);
    let rounds = if bench.method.rounds > 1 { ", of all rounds" } else { "" };
    let title = format!("Syncs{rounds}, latency from start to completion{more}");
    let heads = ["count"].into_iter().chain(SHOWN.map(|(_, name)| name)).chain(["max"]);
    let heads = heads.map(str::to_owned).collect();
    Some(Block { title, corner: "", heads, lines })
}

fn shown(figure: String) -> Shown {
    Shown { figure, ..Shown::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::{
        Column, DirectionSample, Latencies, Latency, Percentile, ReadWrite, Row, Sample,
    };

    fn direction(iops: f64, ns: u64) -> DirectionSample {
        let percentiles =
            vec![Percentile { percent: 50.0, ns }, Percentile { percent: 99.0, ns: 3 * ns }];
        let clat = Latency { count: 10_000, percentiles, ..Default::default() };
        let latencies = Some(Latencies { clat: Some(clat), ..Default::default() });
        let ios = 10_000;
        DirectionSample { ios, bytes: ios * 4096, iops, latencies, ..Default::default() }
    }

    fn bench(samples: Vec<Sample>, columns: usize) -> Bench {
        let cell = Cell { samples, ..Default::default() };
        let cells = vec![cell; columns];
        let mut row = Row { cells, ..Default::default() };
        row.job.rw = ReadWrite::RandRead;
        row.job.block_bytes = 4096;
        let columns = (0..columns)
            .map(|number| Column { label: format!("way {number}"), ..Default::default() })
            .collect();
        Bench { rows: vec![row], columns, ..Default::default() }
    }

    fn texts(block: &Block) -> Vec<String> {
        let line = |(name, cells): &(String, Vec<Shown>)| {
            let cells: Vec<&str> = cells.iter().map(|cell| cell.figure.as_str()).collect();
            format!("{name}|{}", cells.join("|"))
        };
        block.lines.iter().map(line).collect()
    }

    fn sample(read: Option<DirectionSample>, write: Option<DirectionSample>) -> Sample {
        Sample { elapsed_ns: 1_000_000_000, read, write, ..Default::default() }
    }

    #[test]
    fn each_cell_has_a_line_with_units_below_its_job() {
        let read = sample(Some(direction(10_000.0, 58_000)), None);
        let block = block(&bench(vec![read], 2)).unwrap();
        assert_eq!(block.title, "IOPS, bandwidth, latency from submission to completion (clat)");
        assert_eq!(block.heads, ["IOPS", "bandwidth", "p50", "p99", "p99.9"]);
        let figures = "10.0 k|39.1 MiB/s|58.0 us|174 us|-";
        let expected = ["randread 4k|||||".to_owned(), format!("  way 0|{figures}")];
        assert_eq!(texts(&block)[..2], expected);
        assert_eq!(block.lines.len(), 3);
    }

    #[test]
    fn the_latency_is_one_that_has_percentiles_as_clat_of_fio() {
        let mut read = direction(10_000.0, 58_000);
        let mean = Latency { count: 10_000, mean_ns: 60_000.0, ..Default::default() };
        read.latencies.as_mut().unwrap().lat = Some(mean.clone());
        let found = block(&bench(vec![sample(Some(read.clone()), None)], 1)).unwrap();
        assert!(found.title.ends_with("to completion (clat)"), "{}", found.title);
        assert_eq!(texts(&found), ["randread 4k|10.0 k|39.1 MiB/s|58.0 us|174 us|-"]);
        read.latencies = Some(Latencies { lat: Some(mean), ..Default::default() });
        let found = block(&bench(vec![sample(Some(read), None)], 1)).unwrap();
        assert_eq!(found.title, "IOPS, bandwidth, latency from start to completion");
    }

    #[test]
    fn reads_and_writes_of_one_job_have_their_own_latencies() {
        let both = sample(Some(direction(7000.0, 10_000)), Some(direction(3000.0, 20_000)));
        let block = block(&bench(vec![both], 1)).unwrap();
        let expected = [
            "randread 4k|10.0 k|78.1 MiB/s|||",
            "  reads|||10.0 us|30.0 us|-",
            "  writes|||20.0 us|60.0 us|-",
        ];
        assert_eq!(texts(&block), expected);
    }

    #[test]
    fn syncs_have_a_table_of_their_latencies_in_all_rounds() {
        let percentiles = [(50.0, 200_000), (99.0, 500_000)]
            .map(|(percent, ns)| Percentile { percent, ns })
            .to_vec();
        let sync = Latency { count: 2500, max_ns: 9_000_000, percentiles, ..Default::default() };
        let write = sample(None, Some(direction(3000.0, 20_000)));
        let samples = vec![Sample { sync: Some(sync), ..write.clone() }; 2];
        let mut bench = bench(samples, 2);
        bench.method.rounds = 2;
        bench.rows[0].cells[1].samples = vec![write];
        let all = blocks(&bench, None);
        assert_eq!(all[1].title, "Syncs, of all rounds, latency from start to completion");
        assert_eq!(all[1].heads, ["count", "p50", "p99", "p99.9", "max"]);
        assert_eq!(texts(&all[1]), ["randread 4k, way 0|5000|200 us|500 us|-|9.00 ms"]);
        bench.rows[0].cells[0].samples.iter_mut().for_each(|sample| sample.sync = None);
        assert!(syncs(&bench).is_none());
    }

    #[test]
    fn the_heading_says_what_is_a_median_and_what_is_of_all_rounds() {
        let with = |hdr: Option<&str>| {
            let mut read = direction(10_000.0, 58_000);
            let latencies = read.latencies.as_mut().unwrap();
            latencies.clat.as_mut().unwrap().hdr = hdr.map(str::to_owned);
            sample(Some(read), None)
        };
        let title = |samples: [Sample; 2]| {
            let mut bench = bench(Vec::new(), 2);
            bench.method.rounds = 6;
            for (cell, sample) in bench.rows[0].cells.iter_mut().zip(samples) {
                cell.samples = vec![sample; 6];
            }
            block(&bench).unwrap().title
        };
        let all = title([with(Some("")), with(Some(""))]);
        let end = "; medians of 6 rounds; p50, p99, p99.9 of all rounds together";
        assert!(all.ends_with(end), "{all}");
        let some = title([with(Some("")), with(None)]);
        assert!(some.ends_with(&format!("{end} where rounds have histograms")), "{some}");
        let none = title([with(None), with(None)]);
        assert!(none.ends_with("; medians of 6 rounds"), "{none}");
    }

    #[test]
    fn without_rounds_there_is_no_table() {
        assert!(block(&bench(Vec::new(), 2)).is_none());
    }
}
