//! `copy`, `stripe_create`, `probe` and `explain`: what the commands of `dio` do. Documents are
//! JSON here, and dictionaries on Python's side.

use std::path::PathBuf;

use diopter::engine::{Plan, PlanQuery};
use diopter::layouts::{CreateOptions, ObjectPlace, StripedFile};
use diopter::probe::{Facts, Finding, Probe, probe};
use diopter::{BackendKind, OpenOptions, Policies};
use diopter_copy::{Options, Reflink, Signal, Sparse, StopFlag};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use serde_json::{Value, json};

use crate::error::{Failure, unsigned};
use crate::options::{open, path_of};
use crate::wait::{is_main_thread, wait_for_thread};

/// Copies as `dio cp` does; returns the report as JSON.
#[pyfunction]
#[pyo3(signature = (sources, target, *, recursive, verify, resume, overwrite, striped, sparse,
    reflink))]
#[allow(clippy::too_many_arguments, reason = "keywords of a Python function")]
pub fn copy_json(
    py: Python<'_>,
    sources: Vec<Bound<'_, PyAny>>,
    target: &Bound<'_, PyAny>,
    recursive: bool,
    verify: bool,
    resume: bool,
    overwrite: bool,
    striped: bool,
    sparse: &str,
    reflink: bool,
) -> PyResult<String> {
    let sources: Vec<PathBuf> = sources.iter().map(path_of).collect::<PyResult<_>>()?;
    if sources.is_empty() {
        return Err(PyValueError::new_err("no source: pass one or more"));
    }
    let target = path_of(target)?;
    let mut options = Options::new(sources, &target);
    options.recursive = recursive;
    options.verify = verify;
    options.resume = resume;
    options.overwrite = overwrite;
    options.striped = striped;
    options.reflink = if reflink { Reflink::Auto } else { Reflink::Never };
    options.sparse = match sparse {
        "auto" => Sparse::Auto,
        "always" => Sparse::Always,
        "never" => Sparse::Never,
        other => {
            let why = format!("invalid sparse `{other}`: use auto, always or never");
            return Err(PyValueError::new_err(why));
        }
    };
    let stop = StopFlag::default();
    let own = stop.clone();
    let run = move || {
        let outcome = diopter_copy::copy(&options, &own, &mut ());
        serde_json::to_string(&outcome.report).unwrap_or_default()
    };
    if !is_main_thread() {
        return Ok(py.detach(run));
    }
    // 2 is SIGINT; its handler raises in any case.
    wait_for_thread(py, &target, run, || stop.set(Signal { number: 2 }))
}

/// Creates a striped file with empty objects, durably.
#[pyfunction]
#[pyo3(signature = (path, objects, *, stripe_size, size))]
pub fn stripe_create(
    path: &Bound<'_, PyAny>,
    objects: Vec<Bound<'_, PyAny>>,
    stripe_size: u64,
    size: Option<u64>,
) -> PyResult<()> {
    let py = path.py();
    let manifest = path_of(path)?;
    let places: Vec<PathBuf> = objects.iter().map(path_of).collect::<PyResult<_>>()?;
    let made = py.detach(|| {
        let objects = places.iter().map(ObjectPlace::of).collect::<Result<Vec<_>, _>>();
        let objects = objects.map_err(diopter::Error::from)?;
        let options = CreateOptions { objects, stripe_size, size, ..CreateOptions::default() };
        StripedFile::create(&manifest, &options).map(drop)
    });
    made.map_err(|error| Failure::from(error).raise(py, path.as_unbound()))
}

/// Examines a path as `dio probe` does; returns JSON.
#[pyfunction]
pub fn probe_json(path: &Bound<'_, PyAny>) -> PyResult<String> {
    let (py, name) = (path.py(), path_of(path)?);
    let probed = py.detach(|| probe(&name, BackendKind::Auto));
    let Probe { facts, findings } =
        probed.map_err(|error| Failure::from(error).raise(py, path.as_unbound()))?;
    Ok(facts_json(&facts, &findings).to_string())
}

fn facts_json(facts: &Facts, findings: &[Finding]) -> Value {
    let direct = facts.direct.map(|direct| {
        json!({
            "memory_alignment": direct.alignment.memory,
            "read_alignment": direct.alignment.offset_read,
            "write_alignment": direct.alignment.offset_write,
            "alignment_source": direct.alignment.source.to_string(),
            "support": format!("{:?}", direct.support),
        })
    });
    let ability = |ability: &diopter::probe::Ability| {
        let is_available = ability.refusal.is_none();
        json!({"name": ability.name, "is_available": is_available})
    };
    let finding = |finding: &Finding| {
        json!({
            "id": finding.id,
            "severity": finding.severity.name(),
            "evidence": finding.evidence,
            "cause": finding.cause,
            "remedy": finding.remedy,
        })
    };
    json!({
        "name": facts.path.to_string_lossy(),
        "kind": facts.kind.name(),
        "size": facts.size,
        "kernel": facts.kernel.release,
        "file_system": facts.mount.as_ref().map(|mount| json!({
            "kind": mount.file_system,
            "mount_point": mount.point.to_string_lossy(),
            "source": mount.source.to_string_lossy(),
            "options": mount.options,
        })),
        "direct": direct,
        "backend": {"name": facts.backend.name, "why": facts.backend.why},
        "backends": facts.backends.iter().map(ability).collect::<Vec<_>>(),
        "cached_pages": facts.cache.as_ref().map(|cache| cache.pages_cached),
        "extents": facts.extents.as_ref().map(|extents| extents.pieces),
        "findings": findings.iter().map(finding).collect::<Vec<_>>(),
    })
}

/// Plans a request as `dio explain` does; returns JSON.
#[pyfunction]
#[pyo3(signature = (path, is_write, offset, length, *, address, striped, image))]
#[allow(clippy::too_many_arguments, reason = "keywords of a Python function")]
pub fn explain_json(
    path: &Bound<'_, PyAny>,
    is_write: bool,
    offset: i64,
    length: i64,
    address: u64,
    striped: bool,
    image: bool,
) -> PyResult<String> {
    let (py, name) = (path.py(), path_of(path)?);
    let query = PlanQuery {
        is_write,
        offset: unsigned(offset, "offset")?,
        length: unsigned(length, "length")?,
        address,
        policies: Policies::default(),
        bio_bytes_max: None,
        bio_vecs_max: None,
    };
    let planned = py.detach(|| {
        let options = |write| {
            let mut options = OpenOptions::new();
            options.read(true).write(write).striped(striped);
            options
        };
        let file = open(&name, &options(is_write), image);
        let file = file.or_else(|failure| match is_write {
            true => open(&name, &options(false), image),
            false => Err(failure),
        })?;
        Ok::<Plan, Failure>(file.plan(&query)?)
    });
    let plan = planned.map_err(|failure| failure.raise(py, path.as_unbound()))?;
    Ok(plan_json(&plan, &query).to_string())
}

fn plan_json(plan: &Plan, query: &PlanQuery) -> Value {
    let bio = |bio: &diopter::engine::PlannedBio| {
        json!({
            "offset": bio.draft.runs.start(),
            "length": bio.draft.runs.length(),
            "object": bio.draft.object.0,
            "object_offset": bio.draft.object_offset.get(),
            "segments": bio.segments,
            "way": bio.way,
            "is_edge_read": bio.is_edge_read,
            "ended_by": bio.draft.ended_by.name(),
        })
    };
    json!({
        "op": if query.is_write { "write" } else { "read" },
        "offset": query.offset,
        "length": query.length,
        "route": {
            "direct": plan.route.direct,
            "bounced": plan.route.bounced,
            "buffered": plan.route.buffered,
            "why": plan.route.why.iter().map(|why| why.name()).collect::<Vec<_>>(),
        },
        "waits": plan.waits,
        "completion": {"context": plan.completion.0, "why": plan.completion.1},
        "bios": plan.bios.iter().map(bio).collect::<Vec<_>>(),
    })
}
