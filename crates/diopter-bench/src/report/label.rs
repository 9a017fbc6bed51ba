//! Short names for jobs: their requests, and all that distinguishes them from the other jobs of the
//! same document.

use super::numbers::{bytes, time};
use crate::document::{Job, Row, Span};
use crate::fio::units::short_size;
use crate::number::float;

/// A part of a job that a label may name, in the order of the label.
type Part = fn(&Job) -> String;

const PARTS: [Part; 13] = [
    |job| job.file_system.clone().unwrap_or_default(),
    |job| if job.iodepth == 0 { String::new() } else { format!("depth {}", job.iodepth) },
    |job| format!("numjobs {}", job.numjobs),
    |job| if job.is_direct { "direct" } else { "buffered" }.to_owned(),
    |job| if job.rw.is_mixed() { format!("{}% reads", job.read_percent) } else { String::new() },
    |job| bytes(float(job.size)),
    |job| if job.offset == 0 { String::new() } else { format!("at {}", short_size(job.offset)) },
    |job| match job.span {
        Span::RuntimeNs(ns) => time(float(ns)),
        Span::IoBytes(count) => format!("to {}", bytes(float(count))),
    },
    |job| job.durability.clone(),
    pace_of,
    |job| job.layout.clone(),
    |job| if job.may_repeat_offsets { "repeating".to_owned() } else { String::new() },
    |job| format!("seed {}", job.seed),
];

/// Index of the file system among the parts: tables have it in the name of the line.
const FILE_SYSTEM: usize = 0;

/// The names of a document's jobs, in the order of its rows.
pub(super) struct Labels {
    /// The complete label: `randread 4k ext4 depth 64`.
    pub(super) full: Vec<String>,
    /// The label without the file system: `randread 4k depth 64`.
    pub(super) without_file_system: Vec<String>,
    /// The file system if the document has more than one, else empty.
    pub(super) file_system: Vec<String>,
}

impl Labels {
    /// Labels rows. No two complete labels are equal.
    pub(super) fn of(rows: &[Row]) -> Labels {
        let varying: Vec<usize> = (0..PARTS.len()).filter(|&at| is_varying(rows, at)).collect();
        let name = |job: &Job, parts: &[usize]| {
            let mut words = vec![section_of(job), target_of(job).to_owned()];
            words.extend([job.rw.name().to_owned(), short_size(job.block_bytes)]);
            words.extend(parts.iter().map(|&at| PARTS[at](job)));
            words.retain(|word| !word.is_empty());
            words.join(" ")
        };
        let others: Vec<usize> = varying.iter().copied().filter(|&at| at != FILE_SYSTEM).collect();
        let has_file_systems = varying.contains(&FILE_SYSTEM);
        let file_system = |job: &Job| match &job.file_system {
            Some(name) if has_file_systems => name.clone(),
            _ => String::new(),
        };
        let mut full = rows.iter().map(|row| name(&row.job, &varying)).collect();
        number_duplicates(&mut full);
        Labels {
            full,
            without_file_system: rows.iter().map(|row| name(&row.job, &others)).collect(),
            file_system: rows.iter().map(|row| file_system(&row.job)).collect(),
        }
    }
}

/// Returns what a job does besides its requests: syncs, pauses, a limit of its rate.
fn pace_of(job: &Job) -> String {
    let mut words = Vec::new();
    for (name, count) in [
        ("fsync", job.fsync_every),
        ("fdatasync", job.fdatasync_every),
        ("rate", job.rate_iops),
        ("zeros %", job.compress_percent.into()),
    ] {
        if count > 0 {
            words.push(format!("{name} {count}"));
        }
    }
    if job.think_ns > 0 {
        words.push(format!("thinks {}", time(float(job.think_ns))));
    }
    words.join(" ")
}

/// Returns `hot:` for the section `hot` of a job file: the name of its job begins with it.
fn section_of(job: &Job) -> String {
    job.name.split_once(": ").map_or_else(String::new, |(section, _)| format!("{section}:"))
}

/// Returns `striped` or `image`: always shown, since the default is a plain file.
fn target_of(job: &Job) -> &str {
    job.target.split(':').next().unwrap_or_default()
}

fn is_varying(rows: &[Row], part: usize) -> bool {
    let mut words = rows.iter().map(|row| PARTS[part](&row.job));
    let first = words.next();
    words.any(|word| Some(word) != first)
}

/// Numbers the labels that are equal to a previous one.
fn number_duplicates(labels: &mut Vec<String>) {
    let mut seen = std::collections::HashMap::new();
    for label in labels {
        let count = seen.entry(label.clone()).and_modify(|count| *count += 1).or_insert(1);
        if *count > 1 {
            *label = format!("{label} #{count}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::document::ReadWrite;

    fn job(rw: ReadWrite, file_system: &str, iodepth: u32) -> Row {
        let file_system = Some(file_system.to_owned());
        let job = Job { rw, block_bytes: 4096, file_system, iodepth, ..Job::default() };
        Row { job, ..Row::default() }
    }

    #[test]
    fn a_label_names_what_distinguishes_jobs_and_no_more() {
        let rows = [job(ReadWrite::Read, "ext4", 64), job(ReadWrite::Write, "ext4", 64)];
        assert_eq!(Labels::of(&rows).full, ["read 4k", "write 4k"]);
        let rows = [job(ReadWrite::Read, "ext4", 1), job(ReadWrite::Read, "xfs", 64)];
        let labels = Labels::of(&rows);
        assert_eq!(labels.full, ["read 4k ext4 depth 1", "read 4k xfs depth 64"]);
        assert_eq!(labels.without_file_system, ["read 4k depth 1", "read 4k depth 64"]);
        assert_eq!(labels.file_system, ["ext4", "xfs"]);
    }

    #[test]
    fn the_label_of_a_job_on_a_striped_file_says_striped() {
        let mut striped = job(ReadWrite::Write, "ext4", 1);
        striped.job.target = "striped:4x1048576".to_owned();
        assert_eq!(Labels::of(std::slice::from_ref(&striped)).full, ["striped write 4k"]);
        let rows = [job(ReadWrite::Write, "ext4", 64), striped];
        assert_eq!(Labels::of(&rows).full, ["write 4k depth 64", "striped write 4k depth 1"]);
    }

    #[test]
    fn the_section_of_a_job_file_is_part_of_the_label() {
        let mut rows = [job(ReadWrite::Read, "ext4", 64), job(ReadWrite::Read, "ext4", 64)];
        rows[0].job.name = "hot: ext4 read 4k depth 64".to_owned();
        rows[1].job.name = "cold: ext4 read 4k depth 64".to_owned();
        let labels = Labels::of(&rows);
        assert_eq!(labels.full, ["hot: read 4k", "cold: read 4k"]);
        assert_eq!(labels.without_file_system, labels.full);
    }

    #[test]
    fn jobs_that_are_the_same_are_numbered() {
        let rows = [job(ReadWrite::Read, "ext4", 64), job(ReadWrite::Read, "ext4", 64)];
        assert_eq!(Labels::of(&rows).full, ["read 4k", "read 4k #2"]);
    }
}
