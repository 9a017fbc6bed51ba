//! The end of a request after its bios: the journal, the flush of the device, the wake-up.

use super::*;

/// A durable write, with these events between its last bio and its end; true if it waited for the
/// journal.
fn waited(events: &[(u32, What)]) -> bool {
    let mut script = Script::new();
    let write = Begin { is_write: true, is_async: false, flags: 2 | IOCB_WRITE, ..begin() };
    script.at(ROOT, What::Begin(write)).at(ROOT, What::BioQueued(written()));
    script.interrupt(0, ROOT, What::BioDone(written())).at(ROOT, What::SyncBegan(inode()));
    for (thread, what) in events {
        script.at(*thread, what.clone());
    }
    script.at(ROOT, What::SyncEnded(inode())).complete(ROOT);
    script.end().requests[0].waited_for_journal
}

fn written() -> Sectors {
    Sectors { flow: Flow::Write, ..sectors(0) }
}

fn commit() -> (u32, What) {
    (KERNEL, What::JournalCommits(device()))
}

/// The flush of the device by a file system.
fn flush() -> (u32, What) {
    (ROOT, What::BioQueued(Sectors { start: 0, count: 0, flow: Flow::Other, ..written() }))
}

#[test]
fn a_commit_of_others_is_not_waited_for_by_who_flushes_the_device() {
    let forced = || (ROOT, What::LogForced);
    assert!(waited(&[commit()]));
    assert!(!waited(&[flush(), commit()]));
    assert!(waited(&[commit(), flush()]), "too late for the commit to flush the data too");
    assert!(!waited(&[(KERNEL, What::JournalCommits(Device::new(4001, 0)))]));
    assert!(waited(&[forced()]));
    assert!(waited(&[flush(), forced()]), "XFS with a log on another device");
    assert!(!waited(&[(KERNEL, What::LogForced)]));
    assert!(waited(&[flush(), (ROOT, What::LogSlept)]));
}

#[test]
fn what_an_earlier_flush_waited_for_is_none_of_a_request() {
    for event in [commit(), (ROOT, What::LogForced)] {
        let mut script = Script::new();
        script.at(ROOT, What::SyncBegan(inode())).at(event.0, event.1);
        // XFS shows no end of it.
        script.begin(ROOT, 0).at(KERNEL, What::JournalCommits(device())).bio(ROOT);
        script.at(ROOT, What::BioDone(sectors(0))).complete(ROOT);
        assert!(!script.end().requests[0].waited_for_journal);
    }
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
fn a_raw_request_of_several_bios_is_woken_like_one_of_one() {
    let raw = |is_first| What::RawBio { request: 1, is_first, is_waited_for: None };
    let wakes = |context: &dyn Fn(&mut Script, What)| {
        let mut script = Script::new();
        script.bio(ROOT).at(ROOT, raw(true));
        let second = Sectors { start: 2048 + u64::from(LENGTH / 512), ..sectors(0) };
        script.at(ROOT, What::BioQueued(second)).at(ROOT, raw(false));
        for done in [sectors(0), second] {
            context(&mut script, What::BioDone(done));
        }
        let request = script.end().requests[0].clone();
        assert_eq!((request.door, request.context), (Door::Syscall, Some(Context::Task)));
        request.times.woken
    };
    assert_eq!(wakes(&|script, what| _ = script.interrupt(0, 0, what)), None);
    assert!(wakes(&|script, what| _ = script.at(ROOT, what)).is_some());
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
