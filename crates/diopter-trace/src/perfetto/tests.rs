//! The needs of the Perfetto UI: tracks, nesting, arrows.

use std::collections::BTreeSet;

use super::*;
use crate::model::Context;
use crate::synthetic::Job;

fn packets(job: &Job) -> Vec<TracePacket> {
    let bytes = perfetto(&job.trace());
    PerfettoTrace::decode(bytes.as_slice()).unwrap().packets
}

fn job() -> Job {
    Job::overwrite(|job| {
        job.bios = 2;
        job.length = 8192;
    })
}

fn tracks(packets: &[TracePacket]) -> Vec<&TrackDescriptor> {
    packets.iter().filter_map(|packet| packet.track.as_ref()).collect()
}

#[test]
fn slices_of_a_track_nest_and_all_end() {
    for job in [job(), Job::default(), Job::with(|job| job.depth = 1)] {
        let mut open: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        let mut last: BTreeMap<u64, u64> = BTreeMap::new();
        for packet in packets(&job) {
            let Some(event) = packet.event else { continue };
            let (track, time) = (event.track.unwrap(), packet.timestamp.unwrap());
            assert!(last.insert(track, time).is_none_or(|before| before <= time), "{track} {time}");
            let stack = open.entry(track).or_default();
            match EventKind::try_from(event.kind.unwrap()).unwrap() {
                EventKind::SliceBegin => stack.push(time),
                EventKind::SliceEnd => assert!(stack.pop().unwrap() <= time),
                EventKind::Unspecified => panic!("an event without a kind"),
            }
        }
        assert!(open.values().all(Vec::is_empty));
    }
}

#[test]
fn every_event_is_on_a_track_that_was_declared_before() {
    let packets = packets(&job());
    let mut known = BTreeSet::new();
    assert_eq!(packets[0].sequence_flags, Some(IS_FIRST));
    for packet in &packets {
        assert_eq!(packet.sequence, Some(SEQUENCE));
        if let Some(track) = &packet.track {
            assert!(track.parent.is_none_or(|parent| known.contains(&parent)));
            assert!(known.insert(track.uuid.unwrap()), "a track has one number");
        }
        if let Some(event) = &packet.event {
            assert!(known.contains(&event.track.unwrap()));
        }
    }
}

#[test]
fn as_many_tracks_as_were_busy_at_once() {
    let packets = packets(&job());
    let parent = |title: &str| {
        let found = tracks(&packets).into_iter().find(|it| it.name.as_deref() == Some(title));
        found.unwrap().uuid
    };
    let lanes = |title| tracks(&packets).iter().filter(|it| it.parent == parent(title)).count();
    assert_eq!(lanes("fio 100: requests"), 16);
    assert_eq!(lanes("device 253:0: bios"), 32);
    assert!(lanes("completions in kworker") >= 1);
}

#[test]
fn arrows_lead_from_a_request_to_its_bios_and_to_its_completion() {
    let packets = packets(&job());
    let events = || packets.iter().filter_map(|packet| packet.event.as_ref());
    let begun: BTreeSet<u64> = events().flat_map(|event| event.flows.clone()).collect();
    let ended: BTreeSet<u64> = events().flat_map(|event| event.ending_flows.clone()).collect();
    assert_eq!(begun, ended);
    assert_eq!(begun.len(), 200 * 2 + 200);
    let request = events().find(|event| event.categories == ["request"]).unwrap();
    assert_eq!(request.flows, [2, 4]);
}

#[test]
fn requests_whose_end_was_not_seen_are_there_all_the_same() {
    let mut trace = job().trace();
    for request in &mut trace.requests {
        request.times.completed = None;
        request.times.woken = None;
        request.context = None::<Context>;
    }
    let bytes = perfetto(&trace);
    let packets = PerfettoTrace::decode(bytes.as_slice()).unwrap().packets;
    let events = packets.iter().filter_map(|packet| packet.event.as_ref());
    assert_eq!(events.filter(|event| event.categories == ["request"]).count(), 200);
}

#[test]
fn of_very_many_requests_the_first_are_written() {
    let bytes = first_requests(&Job::default().trace(), 150);
    let packets = PerfettoTrace::decode(bytes.as_slice()).unwrap().packets;
    let events = packets.iter().filter_map(|packet| packet.event.as_ref());
    let requests = events.filter(|event| event.categories == ["request"]).count();
    assert_eq!(requests, 150);
}

#[test]
fn a_trace_without_requests_is_a_trace() {
    let bytes = perfetto(&Trace::default());
    let packets = PerfettoTrace::decode(bytes.as_slice()).unwrap().packets;
    assert_eq!(packets.len(), 1);
    assert_eq!((packets[0].sequence, packets[0].sequence_flags), (Some(SEQUENCE), Some(IS_FIRST)));
}
