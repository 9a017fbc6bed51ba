//! Where completions ran and who put them off, from the counts of a traced pass.

use crate::guest::record::TraceRecord;
use crate::matrix::Engine;
use diopter_bench::document::Contexts;

/// Where an engine's completions ran. All zero where none was seen.
#[must_use]
pub fn contexts(trace: &TraceRecord, engine: Engine) -> Contexts {
    let is_seen = |name: &&&str| trace.ran.iter().any(|(function, _, _)| function == **name);
    let Some(reporter) = engine.completions().iter().find(is_seen) else {
        return Contexts::default();
    };
    let mut contexts = Contexts::default();
    for (_, place, count) in trace.ran.iter().filter(|(function, _, _)| function == reporter) {
        match place.as_str() {
            "hardirq" => contexts.hardirq += count,
            "softirq" | "ksoftirqd/0" => contexts.softirq += count,
            "kworker" => contexts.kworker += count,
            _ => contexts.task += count,
        }
    }
    let completions = trace.queued.iter().filter(|(work, _, _)| is_completion(work));
    contexts.deferred_by = completions.map(|(_, by, count)| (by.clone(), *count)).collect();
    contexts.deferred_by.sort_by(|one, other| other.1.cmp(&one.1).then(one.0.cmp(&other.0)));
    contexts
}

/// Returns true if a workqueue's function completes direct I/O: `iomap_dio_complete_work`,
/// `dio_aio_complete_work`, `xfs_end_io`, `btrfs_end_bio_work`, whatever they will be called next.
fn is_completion(work: &str) -> bool {
    ["dio_", "end_io", "endio", "end_bio", "bio_complete"].iter().any(|part| work.contains(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(rows: &[(&str, &str, u64)]) -> Vec<(String, String, u64)> {
        rows.iter().map(|(a, b, count)| ((*a).to_owned(), (*b).to_owned(), *count)).collect()
    }

    #[test]
    fn only_the_function_that_notifies_the_engine_counts() {
        let ran = counted(&[
            ("iomap_dio_complete", "kworker", 1999),
            ("aio_complete_rw", "kworker", 1990),
            ("aio_complete_rw", "fio", 10),
            ("io_complete_rw", "hardirq", 3),
        ]);
        let queued = counted(&[
            ("iomap_dio_complete_work", "iomap_dio_bio_end_io", 1990),
            ("blk_mq_timeout_work", "call_timer_fn", 1),
        ]);
        let trace = TraceRecord { ran, queued, ..TraceRecord::default() };
        let found = contexts(&trace, Engine::Libaio);
        let expected = Contexts {
            kworker: 1990,
            task: 10,
            deferred_by: vec![("iomap_dio_bio_end_io".to_owned(), 1990)],
            ..Contexts::default()
        };
        assert_eq!(found, expected);
        assert_eq!(contexts(&trace, Engine::IoUring).hardirq, 3);
    }

    #[test]
    fn where_nothing_was_seen_nothing_is_claimed() {
        assert_eq!(contexts(&TraceRecord::default(), Engine::Psync), Contexts::default());
    }
}
