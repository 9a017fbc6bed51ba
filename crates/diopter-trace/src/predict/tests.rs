//! The rules, against what was seen on running kernels, and predictions next to traces.

use super::*;
use crate::synthetic::Job;

const WRITE: RequestFacts<'static> = RequestFacts {
    version: Some((6, 18)),
    file_system: "ext4",
    is_write: true,
    is_queued: true,
    is_extending: Some(false),
    is_unwritten: Some(false),
    has_cached_pages: Some(false),
    is_dsync: false,
    needs_flush: Some(true),
};

fn place(facts: RequestFacts<'_>) -> Place {
    context(&facts).0
}

/// The contexts of the lab: what 5.10, 6.1, 6.12, 6.18, 7.2 and 7.3 do.
#[test]
fn the_rules_give_what_was_seen_on_running_kernels() {
    for minor in [(5, 10), (6, 1), (6, 12), (6, 18), (7, 2), (7, 3)] {
        let is_old = minor < (6, 19);
        let on = |file_system| RequestFacts { version: Some(minor), file_system, ..WRITE };
        let deferred = if is_old { Place::Worker } else { Place::Interrupt };
        for file_system in ["ext4", "xfs"] {
            let facts = on(file_system);
            assert_eq!(place(facts), deferred, "{minor:?}");
            assert_eq!(place(RequestFacts { is_write: false, ..facts }), Place::Interrupt);
            assert_eq!(place(RequestFacts { is_queued: false, ..facts }), Place::Task);
            let cached = RequestFacts { has_cached_pages: Some(true), ..facts };
            assert_eq!(place(cached), Place::Worker);
            assert_eq!(place(RequestFacts { is_unwritten: Some(true), ..facts }), Place::Worker);
            assert_eq!(place(RequestFacts { is_dsync: true, ..facts }), Place::Worker);
            let is_ext4 = file_system == "ext4";
            let extending = place(RequestFacts { is_extending: Some(true), ..facts });
            assert_eq!(extending, if is_ext4 { Place::Task } else { Place::Worker });
        }
        assert_eq!(place(on("raw")), Place::Interrupt);
        assert_eq!(place(on("vfat")), Place::Interrupt);
        let cached = RequestFacts { has_cached_pages: Some(true), ..on("vfat") };
        assert_eq!(place(cached), Place::Worker);
    }
}

#[test]
fn ext4_before_its_move_to_iomap_looks_at_cached_pages() {
    let on = |version| RequestFacts { version: Some(version), ..WRITE };
    assert_eq!(place(on((4, 15))), Place::Interrupt);
    assert_eq!(place(on((5, 4))), Place::Interrupt);
    assert_eq!(place(on((5, 5))), Place::Worker);
    let cached = |version| RequestFacts { has_cached_pages: Some(true), ..on(version) };
    assert_eq!(place(cached((4, 15))), Place::Worker);
    assert_eq!(place(cached((3, 16))), Place::Interrupt);
    assert_eq!(place(on((3, 8))), Place::Unknown);
}

#[test]
fn what_is_not_known_is_unknown() {
    for facts in [
        RequestFacts { version: None, ..WRITE },
        RequestFacts { version: Some((7, 4)), ..WRITE },
        RequestFacts { version: Some((9, 9)), is_write: false, ..WRITE },
        RequestFacts { file_system: "btrfs", ..WRITE },
        RequestFacts { file_system: "", ..WRITE },
        RequestFacts { is_extending: None, ..WRITE },
        RequestFacts { version: Some((7, 0)), is_unwritten: None, ..WRITE },
        RequestFacts { version: Some((7, 0)), has_cached_pages: None, ..WRITE },
        RequestFacts { version: Some((7, 0)), is_dsync: true, needs_flush: None, ..WRITE },
        RequestFacts { version: Some((4, 9)), file_system: "xfs", ..WRITE },
        RequestFacts { version: Some((5, 4)), file_system: "raw", ..WRITE },
    ] {
        assert_eq!(place(facts), Place::Unknown, "{facts:?}");
    }
    let through = RequestFacts { is_dsync: true, needs_flush: Some(false), ..WRITE };
    let through = RequestFacts { version: Some((7, 0)), ..through };
    assert_eq!(place(through), Place::Interrupt);
}

#[test]
fn each_kind_of_request_has_its_expectation_next_to_what_was_seen() {
    let mut trace = Job::overwrite(|job| job.pieces = 2).trace();
    for request in trace.requests.iter_mut().take(50) {
        request.is_extending = Some(true);
    }
    trace.requests[60].context = Some(Context::SoftIrq);
    let predictions = predictions(&trace);
    assert_eq!(predictions.len(), 2);
    let [plain, extending] = &predictions[..] else { panic!("{predictions:?}") };
    assert_eq!((plain.requests, plain.as_expected), (150, 149));
    assert_eq!(plain.expected_context, "worker");
    assert_eq!(plain.properties, [""; 0]);
    assert_eq!((plain.device_requests_min, plain.device_requests_max), (2, 2));
    assert_eq!(extending.properties, ["extending"]);
    assert_eq!((extending.expected_context.as_str(), extending.as_expected), ("task", 0));
    assert_eq!(unexpected(&predictions), 51);
}

#[test]
fn ranges_are_cut_by_the_limits_of_the_device() {
    let queue = BlockQueue {
        has_requests: true,
        max_sectors_kb: Some(512),
        max_segments: Some(254),
        max_segment_size: Some(65536),
        ..BlockQueue::default()
    };
    let limits = DeviceLimits::of(&queue);
    let trace = Job::with(|job| (job.length, job.bios) = (2 << 20, 2)).trace();
    let bios: Vec<&TracedBio> =
        trace.requests[0].bios.iter().map(|bio| &trace.bios[*bio]).collect();
    let (least, most) = device_requests(&bios, &limits).unwrap();
    assert_eq!(least, 4, "2 MiB in pieces of 512 KiB");
    assert!(most >= 4, "{most}");
    assert_eq!(device_requests(&bios, &DeviceLimits::NONE), None);
}
