//! The end of a request after its bios: the journal, the flush of the device, the wake-up.

use super::*;

/// A durable write whose file system flushes the device by itself, or not.
fn durable_write(flushes_itself: bool, during: What) -> bool {
    let mut script = Script::new();
    let write = Begin { is_write: true, is_async: false, flags: 2 | IOCB_WRITE, ..begin() };
    let sectors = Sectors { flow: Flow::Write, ..sectors(0) };
    script.at(ROOT, What::Begin(write)).at(ROOT, What::BioQueued(sectors));
    script.interrupt(0, ROOT, What::BioDone(sectors)).at(ROOT, What::SyncBegan(inode()));
    script.at(KERNEL, What::JournalCommits(device())).at(ROOT, during);
    if flushes_itself {
        let flush = Sectors { start: 0, count: 0, flow: Flow::Other, ..sectors };
        script.at(ROOT, What::BioQueued(flush));
    }
    script.at(KERNEL, What::JournalCommits(device()));
    script.at(ROOT, What::SyncEnded(inode())).complete(ROOT);
    script.end().requests[0].waited_for_journal
}

#[test]
fn a_commit_of_others_is_not_waited_for_by_who_flushes_the_device() {
    let nothing = || What::TaskNamed { task: ROOT, name: "fio".to_owned() };
    assert!(durable_write(false, nothing()));
    assert!(!durable_write(true, nothing()));
    assert!(durable_write(true, What::LogForced), "by the thread itself");
    assert!(durable_write(true, What::LogSlept));
}

#[test]
fn a_commit_during_an_earlier_flush_is_none_of_a_request() {
    let mut script = Script::new();
    script.at(ROOT, What::SyncBegan(inode())).at(KERNEL, What::JournalCommits(device()));
    script.at(ROOT, What::SyncEnded(inode())).begin(ROOT, 0).bio(ROOT);
    script.at(ROOT, What::BioDone(sectors(0))).complete(ROOT);
    assert!(!script.end().requests[0].waited_for_journal);
}

#[test]
fn a_raw_request_whose_thread_an_interrupt_wakes_has_no_known_wake_up() {
    let raw = What::RawBio { request: 1, is_first: true, is_waited_for: Some(true) };
    let mut script = Script::new();
    script.bio(ROOT).at(ROOT, raw.clone()).interrupt(0, 0, What::BioDone(sectors(0)));
    let request = script.end().requests[0].clone();
    assert_eq!((request.context, request.times.woken), (Some(Context::Task), None));
    assert_eq!(request.times.completed, request.times.device_done);
    script.bio(ROOT).at(ROOT, raw).at(ROOT, What::BioDone(sectors(0)));
    let times = script.end().requests[0].times;
    assert!(times.woken.is_some() && times.woken == times.completed);
}

#[test]
fn shared_blocks_that_a_worker_replaces_are_seen() {
    let mut script = Script::new();
    let write = Begin { is_write: true, ..begin() };
    let sectors = Sectors { flow: Flow::Write, ..sectors(0) };
    script.at(ROOT, What::Begin(write)).at(ROOT, What::BioQueued(sectors));
    script.interrupt(0, 0, What::BioDone(sectors));
    script.at(KERNEL, What::CopiedOnWrite(inode())).complete(KERNEL);
    assert!(script.end().requests[0].is_copied_on_write);
}

#[test]
fn bios_that_the_block_layer_merges_are_one_request_for_the_device() {
    let mut script = Script::new();
    let second = Sectors { start: 2048 + u64::from(LENGTH / 512), ..sectors(0) };
    let both = Sectors { count: 2 * LENGTH / 512, ..sectors(0) };
    script.begin(ROOT, 0).bio(ROOT);
    script.at(ROOT, What::Begin(Begin { position: u64::from(LENGTH), ..begin() }));
    script.at(ROOT, What::BioQueued(second)).at(ROOT, What::Issued(both));
    let trace = script.end();
    assert_eq!(trace.bios.iter().map(|bio| bio.merged).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(crate::summary::summary(&trace).device_requests, 1);
}
