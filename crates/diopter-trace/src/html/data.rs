//! The sample as JSON for the page's script: short names, since there are thousands.

use serde::Serialize;

use crate::findings::{context_name, op_name};
use crate::model::{Trace, TracedBio, TracedRequest};
use crate::phases::{Phases, end_of};
use crate::sample::{Sample, Why};

/// Bios of one request that are drawn. One that was cut finer is shown by their number.
const BIOS_MAX: usize = 64;

#[derive(Serialize)]
struct Data<'a> {
    files: Vec<&'a str>,
    requests: Vec<Request<'a>>,
}

/// One request. Times are nanoseconds from the begin of the trace.
#[derive(Serialize)]
struct Request<'a> {
    /// Its number.
    n: usize,
    /// Index of its file.
    f: usize,
    /// Thread, as `name id`.
    t: String,
    op: &'static str,
    /// Offset and length.
    o: u64,
    l: u64,
    /// Bytes moved, or a negative errno.
    r: Option<i64>,
    /// Where its completion ran, and what put it off.
    c: Option<&'static str>,
    d: Option<&'a str>,
    /// Begin, end.
    b: u64,
    e: Option<u64>,
    /// Lengths of the phases.
    p: [Option<u64>; 5],
    /// Why it is here.
    w: Vec<&'static str>,
    /// Other facts about it.
    k: Vec<&'static str>,
    /// Its bios, and how many there are.
    i: Vec<Bio>,
    m: usize,
}

/// Queued, issued, done, sector, bytes, pieces, context.
#[derive(Serialize)]
struct Bio(u64, Option<u64>, Option<u64>, u64, u64, u32, Option<&'static str>);

/// The sample as one line of JSON.
pub fn of(trace: &Trace, sample: &Sample) -> String {
    let requests = sample.requests.iter().map(|(at, why)| request(trace, *at, why)).collect();
    let files = trace.files.iter().map(|file| file.path.as_str()).collect();
    serde_json::to_string(&Data { files, requests }).expect("strings and numbers are JSON")
}

fn request<'a>(trace: &'a Trace, at: usize, why: &[Why]) -> Request<'a> {
    let request = &trace.requests[at];
    let bios = request.bios.iter().filter_map(|bio| trace.bios.get(*bio));
    Request {
        n: at,
        f: request.file,
        t: format!("{} {}", request.thread_name, request.thread),
        op: op_name(request.op),
        o: request.offset,
        l: request.length,
        r: request.result,
        c: request.context.map(context_name),
        d: request.deferred_by.as_deref(),
        b: request.times.begin,
        e: end_of(request),
        p: Phases::of(trace, request).in_order(),
        w: why.iter().map(|why| why.name()).collect(),
        k: known(request),
        i: bios.take(BIOS_MAX).map(bio).collect(),
        m: request.bios.len(),
    }
}

fn bio(bio: &TracedBio) -> Bio {
    let TracedBio { sector, bytes, pieces, queued, issued, done, context, .. } = *bio;
    Bio(queued, issued, done, sector, bytes, pieces, context.map(context_name))
}

fn known(request: &TracedRequest) -> Vec<&'static str> {
    let all = [
        (request.is_dsync, "durable"),
        (request.is_extending == Some(true), "past the end of the file"),
        (request.is_unwritten == Some(true), "into unwritten blocks"),
        (request.has_allocated, "with new blocks"),
        (request.has_cached_pages == Some(true), "with cached pages in the file"),
        (request.is_buffered, "through the page cache"),
        (request.is_punted, "by a worker of io_uring"),
        (request.waited_for_journal, "waited for the journal"),
    ];
    all.into_iter().filter(|(holds, _)| *holds).map(|(_, words)| words).collect()
}
