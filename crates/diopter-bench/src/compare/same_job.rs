//! Compares jobs for equality, and finds a document's job in another document.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::document::{Bench, Job, ReadWrite, Span};
use crate::number::float;

/// Fields that are for people, or do not affect the figures.
const NOT_COMPARED: [&str; 3] = ["name", "seed", "unknown"];

/// A field in which two jobs differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldDifference {
    pub field: String,
    /// Value at the base.
    pub base: String,
    /// Value at the other.
    pub new: String,
}

impl fmt::Display for FieldDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} against {}", self.field, self.base, self.new)
    }
}

/// Returns the fields that are known and different in both.
#[must_use]
pub fn differences(base: &Job, new: &Job) -> Vec<FieldDifference> {
    let (base_fields, new_fields) = (fields(base), fields(new));
    let both = base_fields.iter().filter_map(|(name, value)| {
        let other = new_fields.get(name)?;
        // `rw` has it, if both know `rw`.
        let is_known =
            name == "direction" && base_fields.contains_key("rw") && new_fields.contains_key("rw");
        (!is_known && value != other).then(|| FieldDifference {
            field: name.clone(),
            base: value.clone(),
            new: other.clone(),
        })
    });
    both.collect()
}

/// Returns the position of the same job in a document; among several, the one of the same name, or
/// the first.
#[must_use]
pub fn place_of(bench: &Bench, job: &Job) -> Option<usize> {
    let is_same = |at: &usize| differences(&bench.rows[*at].job, job).is_empty();
    let same: Vec<usize> = (0..bench.rows.len()).filter(is_same).collect();
    let named = same.iter().find(|at| bench.rows[**at].job.name == job.name);
    // A job known only by its direction may be any; only its name identifies it.
    let is_vague = job.unknown.iter().any(|field| field == "rw");
    named.or(same.first().filter(|_| !is_vague)).copied()
}

/// Returns the known fields of a job, by their names in the document.
pub fn fields(job: &Job) -> BTreeMap<String, String> {
    let value = serde_json::to_value(job).expect("strings and numbers are JSON");
    let Value::Object(object) = value else { return BTreeMap::new() };
    let is_mixed = matches!(job.rw, ReadWrite::Rw | ReadWrite::RandRw);
    let counts = |name: &str| match name {
        "read_percent" => is_mixed,
        "may_repeat_offsets" => job.rw.is_random(),
        name => !NOT_COMPARED.contains(&name) && !job.unknown.iter().any(|field| field == name),
    };
    let known = object.into_iter().filter(|(name, _)| counts(name));
    let mut fields: BTreeMap<String, String> = known
        .filter_map(|(name, value)| match value {
            _ if name == "span" => Some((name, words_of(job.span))),
            Value::Null => None,
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some((name, text)),
            other => Some((name, other.to_string())),
        })
        .collect();
    // A job that does not know if offsets were random still knows its directions.
    let way = match (job.rw.has_writes(), is_mixed) {
        (false, _) => "reads",
        (true, false) => "writes",
        (true, true) => "reads and writes",
    };
    fields.insert("direction".to_owned(), way.to_owned());
    fields
}

/// Returns the end of a round: `30 s`, `4096 bytes`.
fn words_of(span: Span) -> String {
    match span {
        Span::RuntimeNs(ns) => format!("{} s", float(ns) / 1e9),
        Span::IoBytes(bytes) => format!("{bytes} bytes"),
    }
}

/// An index of a document's jobs.
pub struct Jobs<'a> {
    all: Vec<&'a Job>,
    /// Positions of the jobs with equal fields.
    by_fields: BTreeMap<BTreeMap<String, String>, Vec<usize>>,
}

/// The result of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// The position of the same job.
    Same(usize),
    /// So many jobs match by all that is known, and none has its name.
    Several(usize),
    /// No job matches; these fields of the nearest one differ.
    Differs(Vec<FieldDifference>),
}

impl<'a> Jobs<'a> {
    /// Indexes a document.
    pub fn of(bench: &'a Bench) -> Jobs<'a> {
        let all: Vec<&Job> = bench.rows.iter().map(|row| &row.job).collect();
        let mut by_fields: BTreeMap<BTreeMap<String, String>, Vec<usize>> = BTreeMap::new();
        for (at, job) in all.iter().enumerate() {
            by_fields.entry(fields(job)).or_default().push(at);
        }
        Jobs { all, by_fields }
    }

    /// Looks a job up: one with equal fields, or else one without a known difference. Among
    /// several, the one of the same name.
    pub fn look_up(&self, job: &Job) -> Lookup {
        let mut nearest = None;
        let same = match self.by_fields.get(&fields(job)) {
            Some(same) => same.clone(),
            None => {
                let mut same = Vec::new();
                for (at, other) in self.all.iter().enumerate() {
                    let found = differences(other, job);
                    if found.is_empty() {
                        same.push(at);
                    }
                    let is_nearer = |least: &Vec<FieldDifference>| found.len() < least.len();
                    if nearest.as_ref().is_none_or(is_nearer) {
                        nearest = Some(found);
                    }
                }
                same
            }
        };
        let named = same.iter().find(|at| self.all[**at].name == job.name);
        match (named, &same[..]) {
            (Some(at), _) => Lookup::Same(*at),
            (None, [at]) => Lookup::Same(*at),
            (None, []) => Lookup::Differs(nearest.unwrap_or_default()),
            (None, several) => Lookup::Several(several.len()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Row;

    fn job() -> Job {
        Job {
            name: "a".to_owned(),
            rw: ReadWrite::RandWrite,
            block_bytes: 4096,
            iodepth: 64,
            numjobs: 1,
            size: 2 << 30,
            span: Span::RuntimeNs(200_000_000),
            is_direct: true,
            file_system: Some("ext4".to_owned()),
            ..Job::default()
        }
    }

    fn differing(new: Job) -> String {
        let all: Vec<String> = differences(&job(), &new).iter().map(ToString::to_string).collect();
        all.join(", ")
    }

    #[test]
    fn names_and_seeds_are_not_the_job() {
        assert_eq!(differing(Job { name: "b".to_owned(), seed: 9, ..job() }), "");
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let other = Job { block_bytes: 8192, is_direct: false, ..job() };
        assert_eq!(differing(other), "block_bytes 4096 against 8192, is_direct true against false");
        let other = Job { span: Span::IoBytes(100), ..job() };
        assert_eq!(differing(other), "span 0.2 s against 100 bytes");
    }

    #[test]
    fn what_one_does_not_know_is_not_compared() {
        assert_eq!(differing(Job { file_system: None, ..job() }), "");
        let unknown = vec!["iodepth".to_owned(), "rw".to_owned()];
        assert_eq!(differing(Job { iodepth: 1, rw: ReadWrite::Write, unknown, ..job() }), "");
        assert_eq!(differing(Job { read_percent: 30, ..job() }), "", "it writes only");
        let mixed = Job { rw: ReadWrite::RandRw, read_percent: 70, ..job() };
        let other = Job { rw: ReadWrite::RandRw, read_percent: 30, ..job() };
        assert_eq!(differences(&mixed, &other).len(), 1);
    }

    fn bench(jobs: &[Job]) -> Bench {
        let rows = jobs.iter().map(|job| Row { job: job.clone(), cells: Vec::new() });
        Bench { rows: rows.collect(), ..Bench::default() }
    }

    #[test]
    fn the_same_job_is_found_among_others_and_of_equals_the_one_of_its_name() {
        let deep = Job { iodepth: 1, ..job() };
        let named = Job { name: "b".to_owned(), ..job() };
        let bench = bench(&[deep.clone(), job(), named.clone()]);
        let jobs = Jobs::of(&bench);
        assert_eq!(jobs.look_up(&deep), Lookup::Same(0));
        assert_eq!(jobs.look_up(&job()), Lookup::Same(1));
        assert_eq!(jobs.look_up(&named), Lookup::Same(2));
        assert_eq!(jobs.look_up(&Job { name: "c".to_owned(), ..job() }), Lookup::Several(2));
        let unknown = Job { unknown: vec!["iodepth".to_owned()], ..job() };
        assert_eq!(jobs.look_up(&unknown), Lookup::Same(0), "the first of its name");
        let Lookup::Differs(nearest) = jobs.look_up(&Job { size: 7, ..job() }) else {
            panic!("no job has this size")
        };
        assert_eq!(nearest.len(), 1);
    }

    #[test]
    fn who_does_not_know_the_offsets_still_knows_reads_from_writes() {
        let unknown = vec!["rw".to_owned()];
        let write = Job { rw: ReadWrite::Write, unknown: unknown.clone(), ..job() };
        assert_eq!(differing(write), "");
        let read = Job { rw: ReadWrite::Read, unknown, ..job() };
        assert_eq!(differing(read), "direction writes against reads");
    }
}
