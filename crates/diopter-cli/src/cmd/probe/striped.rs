//! `dio probe` for a striped file: probes each object, and combines the results.

use std::collections::BTreeMap;
use std::path::Path;

use diopter::layouts::LayoutError;
use diopter::probe::{DirectFacts, Probe, probe};
use diopter::{BackendKind, File};
use diopter_layouts::layout::{Layout, Object, ObjectKind};

use super::document::{self, Name, PageCache, ProbedObject};
use crate::cmd::finding::FindingText;
use crate::cmd::layout;
use crate::cmd::stripe::survey::{self, SeenObject, Survey, listed};

pub fn name_of(path: &Path, backend: BackendKind) -> diopter::Result<Name> {
    let layout = Layout::open_marked(path)?;
    let survey = survey::of(&layout);
    let manifest = probe(path, backend)?;
    let probes: Vec<Option<Probe>> = survey
        .objects
        .iter()
        .map(|seen| seen.as_ref().ok().and_then(|seen| probe(&seen.path, backend).ok()))
        .collect();
    let options = File::options().read(true).striped(true).clone();
    let direct = options.open(path).ok().map(|file| DirectFacts {
        support: file.try_direct().support(file.direct_support()),
        states: file.try_direct(),
        alignment: file.alignment(),
        atomic_write: file.atomic_write(),
    });
    let mut name = document::name_of(&manifest);
    name.kind = "striped-file";
    name.size = survey.file_size;
    name.device = None;
    name.direct = direct.map(document::direct_of);
    name.extents = None;
    name.page_cache = page_cache(&probes);
    name.layout = Some(layout::of_striping(layout.manifest().striping()));
    name.objects = Some(objects_of(&layout, &survey, &probes));
    name.findings = survey.findings;
    name.findings.extend(shared_device(&probes));
    name.findings.extend(of_objects(&probes));
    name.findings.sort_by_key(FindingText::rank);
    Ok(name)
}

fn objects_of(layout: &Layout, survey: &Survey, probes: &[Option<Probe>]) -> Vec<ProbedObject> {
    let objects = layout.manifest().objects().iter().zip(&survey.objects).zip(probes);
    objects
        .enumerate()
        .map(|(index, ((object, seen), probe))| object_of(index, (layout, object), seen, probe))
        .collect()
}

fn object_of(
    index: usize,
    (layout, object): (&Layout, &Object),
    seen: &Result<SeenObject, LayoutError>,
    probe: &Option<Probe>,
) -> ProbedObject {
    let found = seen.as_ref().ok();
    let facts = probe.as_ref().map(|probe| &probe.facts);
    let mount = facts.and_then(|facts| facts.mount.as_ref());
    let path = found.map_or_else(|| layout.object_path(object), |found| found.path.clone());
    ProbedObject {
        index,
        path: path.display().to_string(),
        kind: match object.kind {
            ObjectKind::File { .. } => "file",
            ObjectKind::Device(_) => "block-device",
        },
        size: found.map(|found| found.size),
        file_system: mount.map(|mount| mount.file_system.clone()),
        mount_point: mount.map(|mount| mount.point.display().to_string()),
        device: facts.and_then(|facts| facts.queue.as_ref()).map(|queue| queue.name.clone()),
        alignment: found.map(|found| found.alignment.1),
        memory_alignment: found.map(|found| found.alignment.0),
        backend: facts.map(|facts| facts.backend.name),
        is_well: seen.is_ok(),
        trouble: seen.as_ref().err().map(|error| error.kind.to_string()),
    }
}

/// Returns the cached pages of all objects, if known for each.
fn page_cache(probes: &[Option<Probe>]) -> Option<PageCache> {
    let each = probes.iter().map(|probe| {
        let cache = probe.as_ref()?.facts.cache.as_ref();
        cache.map(document::page_cache_of)
    });
    let each: Option<Vec<PageCache>> = each.collect();
    each?.into_iter().reduce(|one, other| PageCache {
        pages: one.pages + other.pages,
        pages_dirty: one.pages_dirty.zip(other.pages_dirty).map(|(one, other)| one + other),
        page_size: one.page_size,
        source: one.source,
    })
}

/// Returns a finding about objects on the same device: by its queue, or by the mount source.
fn shared_device(probes: &[Option<Probe>]) -> Option<FindingText> {
    let mut by_device: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (index, probe) in probes.iter().enumerate() {
        let Some(facts) = probe.as_ref().map(|probe| &probe.facts) else { continue };
        let mounted = facts.mount.as_ref().map(|mount| mount.source.display().to_string());
        let device = facts.queue.as_ref().map(|queue| queue.name.clone()).or(mounted);
        if let Some(device) = device {
            by_device.entry(device).or_default().push(index);
        }
    }
    let shared: Vec<String> = by_device
        .into_iter()
        .filter(|(_, indices)| indices.len() > 1)
        .map(|(device, indices)| format!("{} are on {device}", which(&indices)))
        .collect();
    (!shared.is_empty()).then(|| FindingText {
        id: "objects-share-a-device",
        severity: "notice",
        evidence: listed(&shared),
        cause: "one device serves the stripes of several objects, and limits their speed",
        remedy: "if the stripes are for speed, put each object on a separate device".to_owned(),
    })
}

/// Returns the findings about each object; the same finding about several is reported once.
fn of_objects(probes: &[Option<Probe>]) -> Vec<FindingText> {
    let mut all: Vec<(FindingText, Vec<usize>)> = Vec::new();
    for (index, probe) in probes.iter().enumerate() {
        for finding in probe.iter().flat_map(|probe| &probe.findings) {
            let finding = FindingText::of(finding);
            match all.iter_mut().find(|(known, _)| *known == finding) {
                Some((_, indices)) => indices.push(index),
                None => all.push((finding, vec![index])),
            }
        }
    }
    let merged = |(finding, indices): (FindingText, Vec<usize>)| {
        let evidence = format!("{}: {}", which(&indices), finding.evidence);
        FindingText { evidence, ..finding }
    };
    all.into_iter().map(merged).collect()
}

/// Returns `object 3`, `objects 0 to 3` or `objects 0, 2`.
fn which(indices: &[usize]) -> String {
    let (first, last) = (indices[0], indices[indices.len() - 1]);
    let is_run = last - first + 1 == indices.len();
    match indices.len() {
        1 => format!("object {first}"),
        _ if is_run => format!("objects {first} to {last}"),
        _ => {
            let all: Vec<String> = indices.iter().map(ToString::to_string).collect();
            format!("objects {}", listed(&all).replace("; ", ", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_are_reported_as_a_range_where_they_are_one() {
        assert_eq!(which(&[3]), "object 3");
        assert_eq!(which(&[1, 2, 3]), "objects 1 to 3");
        assert_eq!(which(&[0, 2]), "objects 0, 2");
    }
}
