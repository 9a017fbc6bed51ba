//! Whether two jobs are the same, and which job of one document is which of another.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value;

use crate::document::{Job, ReadWrite};

/// What is for people, or changes nothing that is measured.
const NOT_COMPARED: [&str; 3] = ["name", "seed", "unknown"];

/// A field in which two jobs are not the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldDifference {
    /// Its name.
    pub field: String,
    /// At the base.
    pub base: String,
    /// At the other.
    pub new: String,
}

impl fmt::Display for FieldDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} against {}", self.field, self.base, self.new)
    }
}

/// The fields that both know and that are not the same.
#[must_use]
pub fn differences(base: &Job, new: &Job) -> Vec<FieldDifference> {
    let (base_fields, new_fields) = (fields(base), fields(new));
    let both = base_fields.iter().filter_map(|(name, value)| {
        let other = new_fields.get(name)?;
        (value != other).then(|| FieldDifference {
            field: name.clone(),
            base: value.clone(),
            new: other.clone(),
        })
    });
    both.collect()
}

/// What a job says, by the names of the document.
fn fields(job: &Job) -> BTreeMap<String, String> {
    let value = serde_json::to_value(job).expect("strings and numbers are JSON");
    let Value::Object(object) = value else { return BTreeMap::new() };
    let is_mixed = matches!(job.rw, ReadWrite::Rw | ReadWrite::RandRw);
    let counts = |name: &str| match name {
        "read_percent" => is_mixed,
        "may_repeat_offsets" => job.rw.is_random(),
        name => !NOT_COMPARED.contains(&name) && !job.unknown.iter().any(|field| field == name),
    };
    let known = object.into_iter().filter(|(name, _)| counts(name));
    known
        .filter_map(|(name, value)| match value {
            Value::Null => None,
            Value::String(text) if text.is_empty() => None,
            Value::String(text) => Some((name, text)),
            other => Some((name, other.to_string())),
        })
        .collect()
}

/// Which job of `base` is the same as `job`: the first one, or the one that differs least.
pub fn nearest(base: &[&Job], job: &Job) -> Option<(usize, Vec<FieldDifference>)> {
    let all = base.iter().enumerate().map(|(at, other)| (at, differences(other, job)));
    all.min_by_key(|(at, differences)| (differences.len(), *at))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::Span;

    fn job() -> Job {
        Job {
            name: "a".to_owned(),
            rw: ReadWrite::RandWrite,
            block_bytes: 4096,
            iodepth: 64,
            numjobs: 1,
            size: 2 << 30,
            span: Span::RuntimeNs(100),
            is_direct: true,
            file_system: Some("ext4".to_owned()),
            ..Job::default()
        }
    }

    fn told(new: Job) -> String {
        let told: Vec<String> = differences(&job(), &new).iter().map(ToString::to_string).collect();
        told.join(", ")
    }

    #[test]
    fn names_and_seeds_are_not_the_job() {
        assert_eq!(told(Job { name: "b".to_owned(), seed: 9, ..job() }), "");
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let other = Job { block_bytes: 8192, is_direct: false, ..job() };
        assert_eq!(told(other), "block_bytes 4096 against 8192, is_direct true against false");
        let other = Job { span: Span::IoBytes(100), ..job() };
        let expected = r#"span {"runtime_ns":100} against {"io_bytes":100}"#;
        assert_eq!(told(other), expected);
    }

    #[test]
    fn what_one_does_not_know_is_not_compared() {
        assert_eq!(told(Job { file_system: None, ..job() }), "");
        let unknown = vec!["iodepth".to_owned(), "rw".to_owned()];
        assert_eq!(told(Job { iodepth: 1, rw: ReadWrite::Write, unknown, ..job() }), "");
        assert_eq!(told(Job { read_percent: 30, ..job() }), "", "it writes only");
        let mixed = Job { rw: ReadWrite::RandRw, read_percent: 70, ..job() };
        let other = Job { rw: ReadWrite::RandRw, read_percent: 30, ..job() };
        assert_eq!(differences(&mixed, &other).len(), 1);
    }

    #[test]
    fn the_nearest_job_is_the_same_or_differs_least() {
        let others = [Job { iodepth: 1, size: 7, ..job() }, Job { iodepth: 1, ..job() }, job()];
        let others: Vec<&Job> = others.iter().collect();
        assert_eq!(nearest(&others, &job()).map(|(at, _)| at), Some(2));
        assert_eq!(nearest(&others[..2], &job()).map(|(at, _)| at), Some(1));
        assert_eq!(nearest(&[], &job()), None);
    }
}
