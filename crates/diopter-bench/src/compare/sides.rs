//! Pairs columns, jobs and rounds for a comparison. Judges nothing.

use std::collections::BTreeSet;
use std::rc::Rc;

use super::environment;
use super::input::{CompareError, Named};
use super::judge::{Duplicates, Match};
use super::model::{ComparedColumn, EnvironmentDifference, Pairing};
use super::same_job::{FieldDifference, Jobs, Lookup};
use crate::document::{Bench, Cell, Column, Environment, Job, Row, Sample};

/// Largest number of notes of one kind, and of differences in one error, that are listed.
const LISTED_MAX: usize = 8;

/// The pairs to judge, and the notes to report with them.
#[derive(Default)]
pub struct Sides<'a> {
    /// Columns of all documents, bases first.
    pub columns: Vec<ComparedColumn>,
    pub jobs: Vec<Job>,
    /// Pairs of cells.
    pub matches: Vec<Match<'a>>,
    /// Differences of columns to their bases.
    pub environment_differences: Vec<EnvironmentDifference>,
    pub notes: Vec<String>,
    /// The pairs of environments already compared, with their column.
    seen: BTreeSet<(usize, usize, usize)>,
    /// Names of the documents whose notes are included.
    noted: BTreeSet<String>,
}

/// Pairs the columns of one document with its first.
pub fn of_columns(bench: &Bench) -> Sides<'_> {
    let mut sides = Sides::default();
    for (at, column) in bench.columns.iter().enumerate() {
        sides.columns.push(ComparedColumn {
            label: column.label.clone(),
            column: column.label.clone(),
            document: String::new(),
            base: (at > 0).then_some(0),
        });
    }
    let duplicate_columns = duplicate_columns(bench);
    for (job, row) in bench.rows.iter().enumerate() {
        sides.jobs.push(row.job.clone());
        let Some(base) = row.cells.first() else { continue };
        let duplicates = duplicates(&duplicate_columns, row);
        for (column, cell) in row.cells.iter().enumerate().skip(1) {
            let is_exact = is_exact(bench, base) && is_exact(bench, cell);
            let pairing = if is_exact { Pairing::Exact } else { Pairing::Interleaved };
            let (base, new) = ((0, base), (column, cell));
            sides.differ((bench, base.1), (bench, cell), column);
            sides.matches.push(Match {
                job_index: job,
                job: &row.job,
                base,
                new,
                pairing,
                is_virtual: bench.method.is_virtual,
                duplicates: vec![Rc::clone(&duplicates)],
                // The pair that measures the noise of duplicate columns is judged like any other.
                except: Some(cell),
            });
        }
    }
    sides.note_document(bench, "");
    sides
}

/// Pairs documents with the first.
pub fn of_documents(all: &[Named], is_partial: bool) -> Result<Sides<'_>, CompareError> {
    let [base, others @ ..] = all else {
        return Err(CompareError("nothing to compare; name a base and others".to_owned()));
    };
    let mut sides = Sides::default();
    sides.add_columns(base, |_| None);
    sides.jobs = base.bench.rows.iter().map(|row| row.job.clone()).collect();
    sides.note_document(&base.bench, &base.name);
    for new in others {
        sides.add_document(base, new, is_partial)?;
    }
    Ok(sides)
}

impl<'a> Sides<'a> {
    fn add_columns(&mut self, named: &Named, base: impl Fn(usize) -> Option<usize>) {
        for (at, column) in named.bench.columns.iter().enumerate() {
            let is_alone = named.bench.columns.len() == 1;
            let label = if is_alone {
                named.name.clone()
            } else {
                format!("{} {}", named.name, column.label)
            };
            let taken = self.columns.iter().filter(|other| other.label == label).count();
            let label = if taken > 0 { format!("{label} ({})", taken + 1) } else { label };
            self.columns.push(ComparedColumn {
                label,
                column: column.label.clone(),
                document: named.name.clone(),
                base: base(at),
            });
        }
    }

    fn add_document(
        &mut self,
        base: &'a Named,
        new: &'a Named,
        is_partial: bool,
    ) -> Result<(), CompareError> {
        let rows = same_rows(base, new, is_partial)?;
        let columns = partners(base, new)?;
        let first = self.columns.len();
        self.add_columns(new, |at| columns.iter().find(|(_, own)| *own == at).map(|(b, _)| *b));
        self.note_document(&new.bench, &new.name);
        self.note_rows(base, new, &rows);
        let is_virtual = base.bench.method.is_virtual && new.bench.method.is_virtual;
        let mut is_apart = false;
        let duplicate_columns = [&base.bench, &new.bench].map(duplicate_columns);
        for (base_row, new_row) in rows {
            let (base_row_data, row) = (&base.bench.rows[base_row], &new.bench.rows[new_row]);
            let [of_base, of_new] = &duplicate_columns;
            let of_both = [duplicates(of_base, base_row_data), duplicates(of_new, row)];
            for (base_column, column) in &columns {
                let found = (base_row_data.cells.get(*base_column), row.cells.get(*column));
                let (Some(base_cell), Some(cell)) = found else { continue };
                if is_absent(base_cell) && is_absent(cell) {
                    continue;
                }
                let is_exact = is_exact(&base.bench, base_cell) && is_exact(&new.bench, cell);
                let at = first + column;
                self.differ((&base.bench, base_cell), (&new.bench, cell), at);
                let pairing = if is_exact {
                    Pairing::Exact
                } else if are_in_turn(base_cell, cell) {
                    Pairing::Interleaved
                } else {
                    Pairing::Apart
                };
                is_apart |= pairing == Pairing::Apart && !is_virtual;
                self.matches.push(Match {
                    job_index: base_row,
                    job: &base_row_data.job,
                    base: (*base_column, base_cell),
                    new: (at, cell),
                    pairing,
                    is_virtual,
                    duplicates: of_both.to_vec(),
                    except: None,
                });
            }
        }
        if is_apart {
            self.note(format!(
                "{} and {} were measured at different times, not interleaved: what changed \
                 between the two runs counts as a change",
                base.name, new.name
            ));
        }
        for (base_column, column) in &columns {
            let pair = (&base.bench.columns[*base_column], &new.bench.columns[*column]);
            let differences = environment::column_differences(pair.0, pair.1);
            self.add_differences(differences, first + column);
        }
        Ok(())
    }

    /// Adds the differences between the environments of two cells, once for each column.
    fn differ(&mut self, base: (&Bench, &Cell), new: (&Bench, &Cell), column: usize) {
        if !self.seen.insert((base.1.environment, new.1.environment, column)) {
            return;
        }
        let base = base.0.environments.get(base.1.environment);
        let new = new.0.environments.get(new.1.environment);
        let unknown = Environment::default();
        let differences =
            environment::differences(base.unwrap_or(&unknown), new.unwrap_or(&unknown));
        self.add_differences(differences, column);
    }

    fn add_differences(&mut self, differences: Vec<environment::Difference>, column: usize) {
        for (field, base, new) in differences {
            let difference = EnvironmentDifference { column, field, base, new };
            if !self.environment_differences.contains(&difference) {
                self.environment_differences.push(difference);
            }
        }
    }

    fn note_document(&mut self, bench: &Bench, name: &str) {
        // A run that is compared with itself is noted once.
        if !self.noted.insert(name.to_owned()) {
            return;
        }
        let of = if name.is_empty() { "the run".to_owned() } else { name.to_owned() };
        if bench.is_interrupted {
            self.notes.push(format!("{of} was interrupted: some figures are missing"));
        }
        let (mut warnings, mut noted) = (Vec::new(), BTreeSet::new());
        for (row, cell) in bench.rows.iter().flat_map(|row| row.cells.iter().map(move |c| (row, c)))
        {
            for warning in &cell.warnings {
                let kind = warning.kind.name();
                let note = format!("{of}, {}: {kind}: {}", row.job.name, warning.evidence);
                // A property of the machine appears in each of its columns.
                if noted.insert(note.clone()) {
                    warnings.push(note);
                }
            }
        }
        let left = warnings.len().saturating_sub(LISTED_MAX);
        self.notes.extend(warnings.into_iter().take(LISTED_MAX));
        if left > 0 {
            self.notes.push(format!("{of}: {left} more warnings of this kind"));
        }
    }

    fn note(&mut self, note: String) {
        if !self.notes.contains(&note) {
            self.notes.push(note);
        }
    }

    fn note_rows(&mut self, base: &Named, new: &Named, rows: &[(usize, usize)]) {
        for (from, other, is_base) in [(base, new, true), (new, base, false)] {
            let own = rows.iter().map(|(base, new)| if is_base { *base } else { *new });
            let missing = from.bench.rows.len() - own.collect::<BTreeSet<usize>>().len();
            if missing > 0 {
                let (name, other) = (&from.name, &other.name);
                self.note(format!("{missing} jobs of {name} are not in {other}"));
            }
        }
    }
}

/// Returns true if a job was not meant to run this way: nothing was measured, and nothing failed.
fn is_absent(cell: &Cell) -> bool {
    cell.samples.is_empty() && cell.failure.is_none()
}

/// Returns true if the rounds of two documents were nevertheless run in turn: by their time stamps,
/// each is next to the round of its number.
fn are_in_turn(base: &Cell, new: &Cell) -> bool {
    if base.samples.len() != new.samples.len() || base.samples.len() < 2 {
        return false;
    }
    let pairs: Vec<(&Sample, &Sample)> = base.samples.iter().zip(&new.samples).collect();
    let times = |pair: &(&Sample, &Sample)| {
        let (a, b) = (pair.0.started_unix_ns, pair.1.started_unix_ns);
        (a.min(b), a.max(b))
    };
    pairs.iter().all(|(a, b)| a.round == b.round && a.started_unix_ns > 0 && b.started_unix_ns > 0)
        && pairs.windows(2).all(|next| times(&next[0]).1 < times(&next[1]).0)
}

/// Returns true if a cell's figures repeat exactly.
fn is_exact(bench: &Bench, cell: &Cell) -> bool {
    let repeats = |guest: &crate::document::Guest| guest.is_repeatable == Some(true);
    bench.method.is_virtual
        && !cell.samples.is_empty()
        && cell.samples.iter().all(|sample| sample.guest.as_ref().is_some_and(repeats))
}

/// Returns the pairs of columns that are duplicates: equal except for their labels.
fn duplicate_columns(bench: &Bench) -> Vec<(usize, usize)> {
    let are_duplicates =
        |a: &Column, b: &Column| *a == Column { label: a.label.clone(), ..b.clone() };
    let first_of = |second: usize| {
        let column = &bench.columns[second];
        let first = bench.columns[..second].iter().position(|other| are_duplicates(other, column));
        first.map(|first| (first, second))
    };
    (0..bench.columns.len()).filter_map(first_of).collect()
}

/// Returns the cells of one row in duplicate columns.
fn duplicates<'a>(columns: &[(usize, usize)], row: &'a Row) -> Rc<Duplicates<'a>> {
    let cells = |(a, b): &(usize, usize)| row.cells.get(*a).zip(row.cells.get(*b));
    Duplicates::new(columns.iter().filter_map(cells).collect())
}

/// Returns the pairs of matching columns.
fn partners(base: &Named, new: &Named) -> Result<Vec<(usize, usize)>, CompareError> {
    let labels = |named: &Named| -> Vec<String> {
        named.bench.columns.iter().map(|column| column.label.clone()).collect()
    };
    let (base_labels, new_labels) = (labels(base), labels(new));
    if base_labels.len() == 1 {
        return Ok((0..new_labels.len()).map(|at| (0, at)).collect());
    }
    let own = new_labels.iter().enumerate();
    let found: Vec<(usize, usize)> = own
        .filter_map(|(at, label)| Some((base_labels.iter().position(|one| one == label)?, at)))
        .collect();
    if found.is_empty() {
        return Err(CompareError(format!(
            "{} has the columns {}, {} has {}; compare documents with a column of the same name, \
             or a base with one column",
            base.name,
            base_labels.join(", "),
            new.name,
            new_labels.join(", ")
        )));
    }
    Ok(found)
}

/// Returns the pairs of matching jobs.
fn same_rows(
    base: &Named,
    new: &Named,
    is_partial: bool,
) -> Result<Vec<(usize, usize)>, CompareError> {
    if base.bench.rows.is_empty() || new.bench.rows.is_empty() {
        let name = if base.bench.rows.is_empty() { &base.name } else { &new.name };
        return Err(CompareError(format!("{name}: no job was measured; run it again")));
    }
    let jobs = Jobs::of(&base.bench);
    let mut found = Vec::new();
    let mut refused: Option<(usize, Vec<FieldDifference>)> = None;
    for (at, row) in new.bench.rows.iter().enumerate() {
        match jobs.look_up(&row.job) {
            Lookup::Same(same) => found.push((same, at)),
            Lookup::Several(several) => {
                return Err(CompareError(format!(
                    "{}: the job `{}` may be any of {several} jobs of {}; give the same jobs the \
                     same names in both",
                    new.name, row.job.name, base.name
                )));
            }
            Lookup::Differs(differences) => {
                if refused.as_ref().is_none_or(|(_, least)| differences.len() < least.len()) {
                    refused = Some((at, differences));
                }
            }
        }
    }
    let is_left_out = |interrupted: bool| is_partial || interrupted;
    let lacks_new = refused.is_some() && !is_left_out(base.bench.is_interrupted);
    let seen: BTreeSet<usize> = found.iter().map(|(base, _)| *base).collect();
    let lacks_base = seen.len() < base.bench.rows.len() && !is_left_out(new.bench.is_interrupted);
    match refused {
        Some((at, differences)) if found.is_empty() || lacks_new => {
            Err(not_the_same((base, new), at, &differences, found.is_empty()))
        }
        _ if lacks_base => Err(CompareError(format!(
            "{} has jobs that are not in {}; measure all of them, or compare what both have with \
             --partial",
            base.name, new.name
        ))),
        _ => Ok(found),
    }
}

fn not_the_same(
    (base, new): (&Named, &Named),
    at: usize,
    differences: &[FieldDifference],
    is_nothing_shared: bool,
) -> CompareError {
    let listed: Vec<String> =
        differences.iter().take(LISTED_MAX).map(ToString::to_string).collect();
    let more = differences.len().saturating_sub(LISTED_MAX);
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    let job = &new.bench.rows[at].job.name;
    let remedy = if is_nothing_shared {
        "run the same job: none is in both"
    } else {
        "run the same job, or leave out what only one has with --partial"
    };
    CompareError(format!(
        "{}: the job `{job}` is not in {}: {}{more}; {remedy}",
        new.name,
        base.name,
        listed.join(", "),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One row with a cell in each of these columns.
    fn bench(engines: &[&str]) -> Bench {
        let column = |(nth, engine): (usize, &&str)| Column {
            label: nth.to_string(),
            engine: (*engine).to_owned(),
            ..Column::default()
        };
        let columns: Vec<Column> = engines.iter().enumerate().map(column).collect();
        let row = Row { cells: vec![Cell::default(); columns.len()], ..Row::default() };
        Bench { columns, rows: vec![row], ..Bench::default() }
    }

    #[test]
    fn all_columns_of_a_row_share_its_duplicates() {
        let bench = bench(&["uring", "uring", "aio", "uring"]);
        assert_eq!(duplicate_columns(&bench), [(0, 1), (0, 3)]);
        let matches = of_columns(&bench).matches;
        assert_eq!(matches.len(), 3);
        for one in &matches {
            assert!(Rc::ptr_eq(&one.duplicates[0], &matches[0].duplicates[0]));
            assert!(one.except.is_some_and(|except| std::ptr::eq(except, one.new.1)));
        }
    }
}
