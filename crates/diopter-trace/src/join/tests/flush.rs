//! Flushes: calls and returns, with ends and begins that no event shows.

use super::*;
use crate::event::FlushEvent;
use crate::totals::Totals;

const OTHER: u32 = 12;
const EIO: i64 = -5;

impl Script {
    fn call(&mut self, thread: u32) -> &mut Script {
        self.at(thread, What::Flush(FlushEvent::Called { descriptor: 3, is_data: false }))
    }

    fn call_data(&mut self, thread: u32) -> &mut Script {
        self.at(thread, What::Flush(FlushEvent::Called { descriptor: 4, is_data: true }))
    }

    fn back(&mut self, thread: u32, result: i64) -> &mut Script {
        self.at(thread, What::Flush(FlushEvent::Returned { result, is_data: false }))
    }

    fn back_data(&mut self, thread: u32, result: i64) -> &mut Script {
        self.at(thread, What::Flush(FlushEvent::Returned { result, is_data: true }))
    }

    fn other_thread(&mut self) -> &mut Script {
        let name = "b".to_owned();
        self.at(ROOT, What::TaskMade { task: OTHER, name, is_thread: true })
    }

    /// The flushes, and each file with how many there were of it.
    fn flushes(&mut self) -> (Totals, Vec<(String, u64)>) {
        let mut collector = Collector::default();
        std::mem::replace(self, Script::new()).join.finish(&mut collector);
        let files = collector.beyond.flushes.files.iter();
        let path = |number: &usize| collector.trace.flushed_files[*number].path.clone();
        let mut files: Vec<_> = files.map(|(number, file)| (path(number), file.flushes)).collect();
        files.sort();
        (collector.beyond, files)
    }
}

#[test]
fn a_flush_is_a_call_and_its_return_and_of_the_file_that_is_named_between() {
    let mut script = Script::new();
    script.other_thread().call(ROOT).call_data(OTHER);
    script.at(ROOT, What::SyncBegan(inode())).back_data(OTHER, EIO).back(ROOT, 0);
    let (totals, files) = script.flushes();
    let flushes = &totals.flushes;
    assert_eq!((flushes.fsync, flushes.fdatasync, flushes.threads()), (1, 1, 2));
    assert_eq!((flushes.unfinished, flushes.failures[&5]), (0, 1));
    let latency = flushes.latency().unwrap();
    assert_eq!((latency.count, latency.sum), (1, 4000));
    assert_eq!(files, [("4000:0:12".to_owned(), 1), ("descriptor 4".to_owned(), 1)]);
}

#[test]
fn a_durable_write_and_other_threads_flush_nothing() {
    let mut script = Script::new();
    script.at(ROOT, What::SyncBegan(inode())).at(ROOT, What::SyncEnded(inode()));
    // Its name is known, and it is not traced.
    script.at(KERNEL, What::TaskNamed { task: KERNEL, name: "kworker".to_owned() });
    script.call(KERNEL).at(KERNEL, What::SyncBegan(inode())).back(KERNEL, 0);
    assert_eq!(script.flushes().0.flushes.flushes(), 0);
}

#[test]
fn a_return_that_is_lost_makes_its_flush_unfinished_and_no_other() {
    let mut script = Script::new();
    script.call(ROOT).call(ROOT).back(ROOT, 0);
    let flushes = script.flushes().0.flushes;
    assert_eq!((flushes.fsync, flushes.unfinished), (2, 1));
    assert_eq!(flushes.latency().unwrap().sum, 1000, "from the second call");
    let mut script = Script::new();
    script.call(ROOT).back_data(ROOT, 0);
    let flushes = script.flushes().0.flushes;
    assert_eq!((flushes.fsync, flushes.unfinished, flushes.latency()), (1, 1, None));
}

#[test]
fn a_flush_in_flight_at_the_begin_is_missing_and_one_at_the_end_is_unfinished() {
    let mut script = Script::new();
    script.back(ROOT, 0).call(ROOT).back(ROOT, 0).back(ROOT, 0).call_data(ROOT);
    let flushes = script.flushes().0.flushes;
    assert_eq!((flushes.fsync, flushes.fdatasync, flushes.unfinished), (1, 1, 1));
}

#[test]
fn a_thread_that_ends_does_not_return_and_its_number_may_be_used_again() {
    let mut script = Script::new();
    script.other_thread().call(OTHER).at(OTHER, What::TaskEnded(OTHER));
    script.other_thread().back(OTHER, 0);
    let flushes = script.flushes().0.flushes;
    assert_eq!((flushes.fsync, flushes.unfinished, flushes.latency()), (1, 1, None));
}

#[test]
fn a_flush_of_a_ring_is_of_the_file_that_its_worker_flushes() {
    let mut script = Script::new();
    script.ring().worker().at(ROOT, What::Flush(FlushEvent::Entry(ENTRY)));
    script.at(ROOT, What::UringPunted(ENTRY)).at(WORKER, What::SyncBegan(inode()));
    script.at(WORKER, What::UringCompleted { entry: ENTRY, result: 0 });
    let (totals, files) = script.flushes();
    assert_eq!((totals.flushes.uring, totals.flushes.unfinished), (1, 0));
    assert_eq!(totals.flushes.latency().unwrap().sum, 3000);
    assert_eq!(files, [("4000:0:12".to_owned(), 1)]);
}

/// The entry of a flush is not that of the next request.
#[test]
fn a_flush_of_a_ring_does_not_end_a_request() {
    let mut script = Script::new();
    script.ring().worker().at(ROOT, What::UringSubmitted(1)).at(ROOT, What::UringPunted(1));
    script.at(ROOT, What::Flush(FlushEvent::Entry(2))).at(ROOT, What::UringPunted(2));
    script.begin(WORKER, 0).bio(WORKER).at(WORKER, What::BioDone(sectors(0))).complete(WORKER);
    script.at(WORKER, What::UringCompleted { entry: 2, result: 0 });
    script.at(WORKER, What::UringCompleted { entry: 1, result: 0 });
    let trace = script.end();
    assert_eq!((trace.requests.len(), trace.requests[0].times.woken), (1, Some(11_000)));
}

#[test]
fn with_devices_only_flushes_of_files_on_them_count() {
    for (wanted, count) in [(device(), 1), (Device::new(4001, 0), 0)] {
        let mut script = Script::new();
        script.join.devices = vec![wanted];
        script.call(ROOT).at(ROOT, What::SyncBegan(inode())).back(ROOT, 0);
        script.call(ROOT).back(ROOT, 0);
        assert_eq!(script.flushes().0.flushes.flushes(), count);
    }
}

/// The kernel uses the memory of a completed entry again.
#[test]
fn a_flush_of_a_ring_without_a_completion_ends_with_the_next_use_of_its_entry() {
    let mut script = Script::new();
    script.ring().at(ROOT, What::Flush(FlushEvent::Entry(ENTRY)));
    script.at(ROOT, What::UringPunted(ENTRY)).at(ROOT, What::Flush(FlushEvent::Entry(ENTRY)));
    script.at(ROOT, What::UringSubmitted(ENTRY)).begin(ROOT, 0).bio(ROOT);
    script.at(ROOT, What::BioDone(sectors(0))).complete(ROOT);
    script.at(ROOT, What::UringCompleted { entry: ENTRY, result: i64::from(LENGTH) });
    let mut collector = Collector::default();
    script.join.finish(&mut collector);
    let flushes = &collector.beyond.flushes;
    assert_eq!((flushes.uring, flushes.unfinished, flushes.latency()), (2, 2, None));
    assert_eq!(collector.trace.requests[0].times.woken, Some(9000));
}
