//! A trace for the Perfetto UI: requests by thread, bios by device, completions by context, with
//! arrows from a request to its bios and from these to the completion. Slices of one track must
//! nest and requests overlap, so each group has as many tracks as were busy at once.

mod proto;

use std::collections::{BTreeMap, BTreeSet};

use prost::Message;

use crate::findings::{context_name, op_name};
use crate::model::{Trace, TracedBio, TracedRequest};
use crate::phases::{PHASE_NAMES, Phases, end_of};
use proto::{
    DebugAnnotation, EventKind, Ordering, PerfettoTrace, TracePacket, TrackDescriptor, TrackEvent,
};

/// Requests that are written; the UI gets slow with more slices than these make (a dozen each).
pub const REQUESTS_MAX: usize = 100_000;
/// Everything is one sequence of packets.
const SEQUENCE: u32 = 1;
/// The first packet says that nothing before it counts (`SEQ_INCREMENTAL_STATE_CLEARED`).
const IS_FIRST: u32 = 1;

/// A slice and the slices within it, in order and without overlap.
struct Slice {
    begin: u64,
    end: u64,
    name: String,
    category: &'static str,
    notes: Vec<(&'static str, Note)>,
    flows: Vec<u64>,
    ending_flows: Vec<u64>,
    within: Vec<(&'static str, u64, u64)>,
}

enum Note {
    Number(u64),
    Text(String),
}

/// Slices below one title.
struct Group {
    title: String,
    slices: Vec<Slice>,
}

/// The trace in Perfetto's protobuf format. Of more than [`REQUESTS_MAX`] requests it has the
/// first.
#[must_use]
pub fn perfetto(trace: &Trace) -> Vec<u8> {
    first_requests(trace, REQUESTS_MAX)
}

fn first_requests(trace: &Trace, most: usize) -> Vec<u8> {
    let requests = &trace.requests[..trace.requests.len().min(most)];
    let mut groups = requests_by_thread(trace, requests);
    groups.extend(bios_by_device(trace, requests));
    groups.extend(completions_by_context(trace, requests));
    let mut writer = Writer { packets: Vec::new(), tracks: 0 };
    for group in groups {
        writer.group(group);
    }
    if writer.packets.is_empty() {
        // A file without a packet is not a trace.
        writer.packets.push(TracePacket { sequence: Some(SEQUENCE), ..TracePacket::default() });
    }
    if let Some(first) = writer.packets.first_mut() {
        first.sequence_flags = Some(IS_FIRST);
    }
    PerfettoTrace { packets: writer.packets }.encode_to_vec()
}

fn requests_by_thread(trace: &Trace, requests: &[TracedRequest]) -> Vec<Group> {
    let mut threads: BTreeMap<(u32, &str), Vec<Slice>> = BTreeMap::new();
    for (at, request) in (0_u64..).zip(requests) {
        let key = (request.thread, request.thread_name.as_str());
        threads.entry(key).or_default().push(slice_of_request(trace, at, request));
    }
    let title = |(thread, name): (u32, &str)| format!("{name} {thread}: requests");
    threads.into_iter().map(|(key, slices)| Group { title: title(key), slices }).collect()
}

fn slice_of_request(trace: &Trace, at: u64, request: &TracedRequest) -> Slice {
    let phases = Phases::of(trace, request);
    let first = if phases.submit.is_none() { request.times.submitted } else { None };
    let mut from = first.unwrap_or(request.times.begin);
    let mut within = Vec::new();
    for (name, length) in PHASE_NAMES.into_iter().zip(phases.in_order()) {
        // A phase without events is a gap until the next one that has a length.
        let Some(length) = length else { continue };
        within.push((name, from, from + length));
        from += length;
    }
    let op = op_name(request.op);
    let path = trace.files.get(request.file).map_or("", |file| &file.path);
    let mut notes = vec![
        ("request", Note::Number(at)),
        ("file", Note::Text(path.to_owned())),
        ("offset", Note::Number(request.offset)),
        ("length", Note::Number(request.length)),
    ];
    if let Some(context) = request.context {
        notes.push(("completed in", Note::Text(context_name(context).to_owned())));
    }
    if let Some(function) = &request.deferred_by {
        notes.push(("deferred by", Note::Text(function.clone())));
    }
    Slice {
        begin: request.times.begin,
        end: end_of(request).unwrap_or(from).max(from),
        name: format!("{op} {} at {}", request.length, request.offset),
        category: "request",
        notes,
        flows: request.bios.iter().map(|bio| flow_to_bio(*bio)).collect(),
        ending_flows: Vec::new(),
        within,
    }
}

fn bios_by_device(trace: &Trace, requests: &[TracedRequest]) -> Vec<Group> {
    let mut devices: BTreeMap<(u32, u32), Vec<Slice>> = BTreeMap::new();
    for (at, request) in (0_u64..).zip(requests) {
        for index in &request.bios {
            let Some(bio) = trace.bios.get(*index) else { continue };
            let mut slice = slice_of_bio(bio);
            slice.ending_flows = vec![flow_to_bio(*index)];
            slice.flows = vec![flow_to_completion(at)];
            devices.entry(bio.device).or_default().push(slice);
        }
    }
    let title = |(major, minor)| format!("device {major}:{minor}: bios");
    devices.into_iter().map(|(key, slices)| Group { title: title(key), slices }).collect()
}

fn slice_of_bio(bio: &TracedBio) -> Slice {
    let end = bio.done.or(bio.issued).unwrap_or(bio.queued).max(bio.queued);
    let issued = bio.issued.map(|issued| issued.clamp(bio.queued, end));
    let within = issued
        .map_or(Vec::new(), |issued| vec![("queue", bio.queued, issued), ("device", issued, end)]);
    Slice {
        begin: bio.queued,
        end,
        name: format!("bio {} at sector {}", bio.bytes, bio.sector),
        category: "bio",
        notes: vec![
            ("bytes", Note::Number(bio.bytes)),
            ("sector", Note::Number(bio.sector)),
            ("pieces", Note::Number(bio.pieces.into())),
        ],
        flows: Vec::new(),
        ending_flows: Vec::new(),
        within,
    }
}

fn completions_by_context(trace: &Trace, requests: &[TracedRequest]) -> Vec<Group> {
    let mut contexts: BTreeMap<&str, Vec<Slice>> = BTreeMap::new();
    for (at, request) in (0_u64..).zip(requests) {
        let (Some(context), Some(completed)) = (request.context, request.times.completed) else {
            continue;
        };
        let begin = request.times.device_done.unwrap_or(completed).min(completed);
        contexts.entry(context_name(context)).or_default().push(Slice {
            begin,
            end: completed,
            name: format!("completion of request {at}"),
            category: "completion",
            notes: vec![("bios", Note::Number(bios_of(trace, request)))],
            flows: Vec::new(),
            ending_flows: vec![flow_to_completion(at)],
            within: Vec::new(),
        });
    }
    let title = |context: &str| format!("completions in {context}");
    contexts.into_iter().map(|(key, slices)| Group { title: title(key), slices }).collect()
}

fn bios_of(trace: &Trace, request: &TracedRequest) -> u64 {
    let known = request.bios.iter().filter(|bio| **bio < trace.bios.len()).count();
    u64::try_from(known).expect("a length fits 64 bits")
}

/// Arrows are even to a bio and odd to a completion, so that no two have the same number.
fn flow_to_bio(bio: usize) -> u64 {
    2 * u64::try_from(bio).expect("an index fits 64 bits") + 2
}

fn flow_to_completion(request: u64) -> u64 {
    2 * request + 1
}

/// Which tracks of a group are free: the first one that is takes the next slice.
#[derive(Default)]
struct Lanes {
    tracks: Vec<u64>,
    free: BTreeSet<usize>,
    busy: BTreeSet<(u64, usize)>,
}

impl Lanes {
    /// The lane of a slice. It may be one more than there are tracks.
    fn take(&mut self, begin: u64, end: u64) -> usize {
        while self.busy.first().is_some_and(|(until, _)| *until <= begin) {
            self.free.extend(self.busy.pop_first().map(|(_, lane)| lane));
        }
        let lane = self.free.pop_first().unwrap_or(self.tracks.len());
        // A slice of no length has its place to itself all the same.
        self.busy.insert((end.max(begin + 1), lane));
        lane
    }
}

struct Writer {
    packets: Vec<TracePacket>,
    tracks: u64,
}

impl Writer {
    fn group(&mut self, group: Group) {
        let Group { title, mut slices } = group;
        slices.sort_by_key(|slice| slice.begin);
        let parent = self.track(&title, None, 0);
        let mut lanes = Lanes::default();
        for slice in &slices {
            let lane = lanes.take(slice.begin, slice.end);
            if lane == lanes.tracks.len() {
                let rank = i32::try_from(lane).unwrap_or(i32::MAX);
                let track = self.track(&format!("{} at once", lane + 1), Some(parent), rank);
                lanes.tracks.push(track);
            }
            self.slice(slice, lanes.tracks[lane]);
        }
    }

    fn track(&mut self, name: &str, parent: Option<u64>, rank: i32) -> u64 {
        self.tracks += 1;
        let ordering = parent.is_none().then(|| Ordering::Explicit.into());
        self.packets.push(TracePacket {
            sequence: Some(SEQUENCE),
            track: Some(TrackDescriptor {
                uuid: Some(self.tracks),
                name: Some(name.to_owned()),
                parent,
                child_ordering: ordering,
                rank: Some(rank),
            }),
            ..TracePacket::default()
        });
        self.tracks
    }

    fn slice(&mut self, slice: &Slice, track: u64) {
        let event = TrackEvent {
            notes: slice.notes.iter().map(annotation).collect(),
            categories: vec![slice.category.to_owned()],
            name: Some(slice.name.clone()),
            flows: slice.flows.clone(),
            ending_flows: slice.ending_flows.clone(),
            ..TrackEvent::default()
        };
        self.event(slice.begin, track, EventKind::SliceBegin, event);
        for (name, begin, end) in &slice.within {
            let event = TrackEvent { name: Some((*name).to_owned()), ..TrackEvent::default() };
            self.event(*begin, track, EventKind::SliceBegin, event);
            self.event(*end, track, EventKind::SliceEnd, TrackEvent::default());
        }
        self.event(slice.end, track, EventKind::SliceEnd, TrackEvent::default());
    }

    fn event(&mut self, time: u64, track: u64, kind: EventKind, event: TrackEvent) {
        let event = TrackEvent { kind: Some(kind.into()), track: Some(track), ..event };
        self.packets.push(TracePacket {
            timestamp: Some(time),
            sequence: Some(SEQUENCE),
            event: Some(event),
            ..TracePacket::default()
        });
    }
}

fn annotation((name, note): &(&'static str, Note)) -> DebugAnnotation {
    let (number, text) = match note {
        Note::Number(number) => (Some(*number), None),
        Note::Text(text) => (None, Some(text.clone())),
    };
    DebugAnnotation { number, text, name: Some((*name).to_owned()) }
}

#[cfg(test)]
mod tests;
