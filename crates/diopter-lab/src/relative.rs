//! The summary of a document of several kernels: each cell relative to its row's first, with
//! the context of its completions. Made from the document alone; tables show it.

use crate::results::iops_of;
use diopter_bench::document::{Bench, Cell, Contexts, Sample};
use diopter_bench::number::float;

/// Where most completions of a cell ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a hard interrupt: at once.
    HardIrq,
    /// In a soft interrupt.
    SoftIrq,
    /// In a worker of a workqueue: deferred.
    Kworker,
    /// In a task, the submitter's mostly.
    Task,
}

/// One cell at a glance.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Glance {
    /// Requests a second; `None` where it was not measured.
    pub iops: Option<f64>,
    /// The ratio to the row's first cell.
    pub ratio: Option<f64>,
    /// Instructions of the guest per request; `None` where they cannot be known.
    pub instructions: Option<f64>,
    /// Context switches per request.
    pub switches: Option<f64>,
    /// Bios per request.
    pub bios: Option<f64>,
    /// Where most completions ran, and which part of them; `None` where it was not traced.
    pub place: Option<(Place, f64)>,
    /// The function that put most of them off.
    pub deferred_by: Option<String>,
    /// Bytes of the bios of one request, where there was more than one.
    pub bio_bytes: Vec<u64>,
    /// True if its boots gave other digits.
    pub is_doubtful: bool,
    /// Why there is nothing, or not all.
    pub failure: Option<String>,
}

impl Place {
    /// All of them.
    pub const ALL: [Place; 4] = [Place::HardIrq, Place::SoftIrq, Place::Kworker, Place::Task];

    /// For people.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Place::HardIrq => "hard irq",
            Place::SoftIrq => "soft irq",
            Place::Kworker => "kworker",
            Place::Task => "task",
        }
    }

    /// One letter, for tables.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Place::HardIrq => 'H',
            Place::SoftIrq => 'S',
            Place::Kworker => 'K',
            Place::Task => 'T',
        }
    }

    /// Where most completions ran, and which part; `None` where none was seen.
    #[must_use]
    pub fn of(contexts: &Contexts) -> Option<(Place, f64)> {
        let Contexts { hardirq, softirq, kworker, task, .. } = contexts;
        let counts = [*hardirq, *softirq, *kworker, *task];
        let all: u64 = counts.iter().sum();
        let most = counts.iter().zip(Place::ALL).max_by_key(|(count, _)| **count)?;
        (all > 0).then(|| (most.1, float(*most.0) / float(all)))
    }
}

/// A document's rows, each with a glance for every column.
#[must_use]
pub fn glances(bench: &Bench) -> Vec<Vec<Glance>> {
    let row = |cells: &Vec<Cell>| {
        let mut row: Vec<Glance> = cells.iter().map(glance).collect();
        let first = row.first().and_then(|first| first.iops).filter(|iops| *iops > 0.0);
        for glance in &mut row {
            glance.ratio = glance.iops.zip(first).map(|(iops, first)| iops / first);
        }
        row
    };
    bench.rows.iter().map(|bench_row| row(&bench_row.cells)).collect()
}

/// A cell by its first round: all others are the same, or it is doubtful.
fn glance(cell: &Cell) -> Glance {
    let mut glance = Glance {
        is_doubtful: !cell.warnings.is_empty(),
        failure: cell.failure.clone(),
        ..Glance::default()
    };
    let Some(sample) = cell.samples.first() else { return glance };
    glance.iops = iops_of(sample);
    if let Some(guest) = &sample.guest {
        let is_measured = glance.iops.is_some();
        glance.instructions = Some(guest.instructions_per_io).filter(|count| *count > 0.0);
        glance.switches = is_measured.then_some(guest.switches_per_io);
        glance.bios = guest.bios_per_io;
    }
    if let Some(contexts) = &sample.contexts {
        glance.place = Place::of(contexts);
        glance.deferred_by = contexts.deferred_by.first().map(|(by, _)| by.clone());
    }
    glance.bio_bytes = bios_of_one_request(sample);
    glance
}

/// The first bios, up to the bytes of one request; empty where each request is one bio.
fn bios_of_one_request(sample: &Sample) -> Vec<u64> {
    let bios = sample.guest.and_then(|guest| guest.bios_per_io).unwrap_or(1.0);
    let count =
        (1..=sample.bio_bytes.len()).find(|count| diopter_bench::number::count(*count) >= bios);
    match count {
        Some(count) if count > 1 => sample.bio_bytes[..count].to_vec(),
        _ => Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_bench::document::{DirectionSample, Guest, Row};

    fn cell(iops: f64, contexts: Contexts) -> Cell {
        let write = Some(DirectionSample { iops, ..DirectionSample::default() });
        let sample = Sample { write, contexts: Some(contexts), ..Sample::default() };
        Cell { samples: vec![sample], ..Cell::default() }
    }

    fn bench(cells: Vec<Cell>) -> Bench {
        Bench { rows: vec![Row { cells, ..Row::default() }], ..Bench::default() }
    }

    #[test]
    fn a_cell_is_relative_to_its_rows_first() {
        let deferred = Contexts {
            kworker: 3,
            task: 1,
            deferred_by: vec![("f".to_owned(), 3)],
            ..Contexts::default()
        };
        let inline = Contexts { hardirq: 4, ..Contexts::default() };
        let rows = glances(&bench(vec![cell(50.0, deferred), cell(70.0, inline)]));
        assert_eq!(rows[0][0].ratio, Some(1.0));
        assert_eq!(rows[0][1].ratio, Some(1.4));
        assert_eq!(rows[0][0].place, Some((Place::Kworker, 0.75)));
        assert_eq!(rows[0][0].deferred_by.as_deref(), Some("f"));
        assert_eq!(rows[0][1].place, Some((Place::HardIrq, 1.0)));
    }

    #[test]
    fn where_the_first_failed_there_are_figures_and_no_ratios() {
        let failed = Cell { failure: Some("panic".to_owned()), ..Cell::default() };
        let rows = glances(&bench(vec![failed, cell(70.0, Contexts::default())]));
        assert_eq!(rows[0][0].failure.as_deref(), Some("panic"));
        assert_eq!((rows[0][1].iops, rows[0][1].ratio), (Some(70.0), None));
        assert_eq!(rows[0][1].place, None);
    }

    #[test]
    fn sizes_are_those_of_the_first_request_and_only_where_it_was_cut() {
        let mut sample = Sample {
            bio_bytes: vec![10, 2, 10, 2],
            guest: Some(Guest { bios_per_io: Some(2.0), ..Guest::default() }),
            ..Sample::default()
        };
        assert_eq!(bios_of_one_request(&sample), [10, 2]);
        sample.guest = Some(Guest { bios_per_io: Some(1.0), ..Guest::default() });
        assert_eq!(bios_of_one_request(&sample), [] as [u64; 0]);
    }
}
