//! `split-by-size-limit`, `split-by-extent`, `split-by-extent-state`, `split-by-device-boundary`:
//! what makes several bios of a request, or several requests for the device of a bio.

use std::collections::BTreeSet;

use diopter::probe::known;

use super::{PER_MILLE_SPLIT, Shown, shown_times};
use crate::document::{Finding, Severity};
use crate::model;
use crate::model::{Trace, TracedBio, TracedFile, TracedRequest};

/// Pages of memory that one bio takes (`BIO_MAX_VECS`). Pages that lie apart, as most do, are a
/// segment each, so a bio that holds as many was ended by that limit.
const BIO_PAGES_MAX: u64 = 256;

/// A limit that cut a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    SizeLimit,
    /// The next block is elsewhere on the device.
    Extent,
    /// The next block is adjacent, and written where this one is not, or the reverse.
    ExtentState,
    DeviceBoundary,
}

pub(super) fn findings(trace: &Trace) -> Vec<Finding> {
    let all =
        [by_size_limit(trace), by_extent(trace), by_extent_state(trace), by_device_boundary(trace)];
    all.into_iter().flatten().collect()
}

fn by_size_limit(trace: &Trace) -> Option<Finding> {
    let shown = shown_by(trace, Cut::SizeLimit)?;
    let limit = files_of(trace, &shown).filter_map(|file| file.bio_bytes_limit).min();
    let length = longest(trace, &shown);
    let pieces = shown.requests.iter().map(|at| pieces_of(trace, &trace.requests[*at])).max();
    let segments = files_of(trace, &shown).filter_map(|file| file.segments_limit).min();
    let mut seen = format!(
        "{} were cut, the longest, of {}, into {}",
        shown.share("requests"),
        known_size(length),
        pieces.unwrap_or(0)
    );
    if let (Some(limit), Some(segments)) = (limit, segments) {
        let limit = known_size(limit);
        seen.push_str(&format!("; the device takes {limit} in {segments} pieces at once"));
    }
    let mut evidence = shown.evidence(trace, seen);
    evidence.figures.extend(limit.map(|limit| ("limit_bytes".to_owned(), limit)));
    evidence.figures.insert("pieces_max".to_owned(), pieces.unwrap_or(0));
    evidence.figures.extend(segments.map(|segments| ("limit_segments".to_owned(), segments)));
    let pages = segments.unwrap_or(BIO_PAGES_MAX).min(BIO_PAGES_MAX);
    let fits = limit.unwrap_or(u64::MAX).min(pages * page_bytes());
    Some(Finding {
        id: known::SPLIT_BY_SIZE_LIMIT.to_owned(),
        reason: None,
        severity: Severity::Notice,
        evidence,
        cause: format!(
            "a bio holds at most 256 pieces of memory ({} in single pages), and one that is \
             larger than the device's limits (queue/max_sectors_kb, queue/max_segments) is cut \
             again; the request is done when its last piece is",
            known_size(BIO_PAGES_MAX * page_bytes())
        ),
        remedy: format!(
            "{}; or memory in huge pages, and a larger queue/max_sectors_kb",
            known::remedy_smaller_requests(fits)
        ),
    })
}

fn by_extent(trace: &Trace) -> Option<Finding> {
    let shown = shown_by(trace, Cut::Extent)?;
    if !adds_a_tenth(trace, &shown) {
        return None;
    }
    let bios = shown.requests.iter().map(|at| trace.requests[*at].bios.len()).max().unwrap_or(0);
    let seen = format!(
        "{} lay in several places on the device; the worst became {bios} bios",
        shown.share("requests")
    );
    let mut evidence = shown.evidence(trace, seen);
    evidence.figures.insert("bios_max".to_owned(), super::count(bios));
    Some(Finding {
        id: known::SPLIT_BY_EXTENT.to_owned(),
        reason: None,
        severity: Severity::Warning,
        evidence,
        cause: "the file lies in pieces that are small compared with the requests, and a bio \
                never spans two pieces"
            .to_owned(),
        remedy: known::REMEDY_SPLIT_BY_EXTENT.to_owned(),
    })
}

fn by_extent_state(trace: &Trace) -> Option<Finding> {
    let shown = shown_by(trace, Cut::ExtentState)?;
    if !adds_a_tenth(trace, &shown) {
        return None;
    }
    let seen = format!(
        "{} began in written blocks and ended in unwritten ones, or the reverse",
        shown.share("requests")
    );
    Some(Finding {
        id: "split-by-extent-state".to_owned(),
        reason: None,
        severity: Severity::Notice,
        evidence: shown.evidence(trace, seen),
        cause: "the blocks were allocated (fallocate) and are not all written yet; they are \
                adjacent on the device, but a bio never spans written and unwritten ones"
            .to_owned(),
        remedy: known::REMEDY_UNWRITTEN_EXTENTS.to_owned(),
    })
}

fn by_device_boundary(trace: &Trace) -> Option<Finding> {
    let shown = shown_by(trace, Cut::DeviceBoundary)?;
    let boundary = files_of(trace, &shown).filter_map(|file| file.boundary_bytes).min()?;
    let every = known_size(boundary);
    let seen = format!("{} crossed a multiple of {every} on the device", shown.share("requests"));
    let mut evidence = shown.evidence(trace, seen);
    evidence.figures.insert("boundary_bytes".to_owned(), boundary);
    Some(Finding {
        id: "split-by-device-boundary".to_owned(),
        reason: None,
        severity: Severity::Warning,
        evidence,
        cause: format!(
            "a request for the device must not cross a multiple of {every} (queue/chunk_sectors: \
             a RAID's chunk, an NVMe namespace's boundary, a zone), so the kernel cut them there"
        ),
        remedy: format!(
            "requests whose size divides {every} and whose offsets are multiples of that size; \
             partitions and file systems that begin at a multiple of {every}"
        ),
    })
}

fn shown_by(trace: &Trace, cut: Cut) -> Option<Shown> {
    let has_bios = |request: &TracedRequest| !request.bios.is_empty();
    let times = |request: &TracedRequest| {
        super::count(cuts_of(trace, request).into_iter().filter(|one| *one == cut).count())
    };
    shown_times(trace, PER_MILLE_SPLIT, has_bios, times)
}

/// Returns the limits that cut a request: between its bios, and within each.
fn cuts_of(trace: &Trace, request: &TracedRequest) -> Vec<Cut> {
    let bios: Vec<&TracedBio> =
        request.bios.iter().filter_map(|bio| trace.bios.get(*bio)).collect();
    let between = bios.windows(2).map(|pair| cut_between(request, pair[0], pair[1]));
    let file = trace.files.get(request.file);
    let within = bios.iter().filter_map(|bio| cut_within(bio, file?));
    between.chain(within).collect()
}

/// Why a bio ended where it did and another followed.
fn cut_between(request: &TracedRequest, before: &TracedBio, after: &TracedBio) -> Cut {
    let is_contiguous =
        before.device == after.device && before.sector + before.bytes / 512 == after.sector;
    // A bio that is not full although the device goes on was ended by the file's mapping.
    match is_contiguous {
        true if before.bytes >= (BIO_PAGES_MAX - 1) * page_bytes() => Cut::SizeLimit,
        true if request.is_unwritten == Some(true) => Cut::ExtentState,
        _ => Cut::Extent,
    }
}

/// Why the block layer cut a bio, if it did.
fn cut_within(bio: &TracedBio, file: &TracedFile) -> Option<Cut> {
    if bio.pieces < 2 {
        return None;
    }
    let by_size = file.bio_bytes_limit.map_or(1, |limit| bio.bytes.div_ceil(limit.max(1)));
    let is_explained_by_size = u64::from(bio.pieces) <= by_size;
    let crosses = file.boundary_bytes.is_some_and(|boundary| crosses(bio, boundary));
    Some(if crosses && !is_explained_by_size { Cut::DeviceBoundary } else { Cut::SizeLimit })
}

fn crosses(bio: &TracedBio, boundary: u64) -> bool {
    let first = bio.sector * 512;
    let last = first + bio.bytes.saturating_sub(1);
    first.checked_div(boundary) != last.checked_div(boundary)
}

/// Returns true if these cuts make the bios of their files a tenth more. For requests of several
/// bios anyway, a cut now and then is none.
fn adds_a_tenth(trace: &Trace, shown: &Shown) -> bool {
    let files: BTreeSet<usize> = shown.requests.iter().map(|at| trace.requests[*at].file).collect();
    let requests = trace.requests.iter().filter(|request| files.contains(&request.file));
    let bios: u64 = requests.map(|request| super::count(request.bios.len())).sum();
    shown.times * 10 >= bios.saturating_sub(shown.times)
}

fn pieces_of(trace: &Trace, request: &TracedRequest) -> u64 {
    let bios = request.bios.iter().filter_map(|bio| trace.bios.get(*bio));
    bios.map(|bio: &model::TracedBio| u64::from(bio.pieces.max(1))).sum()
}

fn files_of<'a>(trace: &'a Trace, shown: &'a Shown) -> impl Iterator<Item = &'a TracedFile> {
    shown.requests.iter().filter_map(|at| trace.files.get(trace.requests[*at].file))
}

fn longest(trace: &Trace, shown: &Shown) -> u64 {
    shown.requests.iter().map(|at| trace.requests[*at].length).max().unwrap_or(0)
}

/// Bytes of a page of memory, on the machine that is traced.
fn page_bytes() -> u64 {
    u64::from(diopter_os::residency::page_size())
}

fn known_size(bytes: u64) -> String {
    diopter::probe::size_text(bytes)
}
