//! The search between kernels, with what it is asked: which kernels there are, what is measured of
//! each, and the document of what was found.

use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::bisect::{self, Found, Measured, SearchError, Verdict};
use crate::build_tree;
use crate::catalog::{self, Package};
use crate::choice::Choice;
use crate::error::LabError;
use crate::kernel::Kernel;
use crate::matrix::{Device, Engine, Plan};
use crate::run::{self, Lab};
use crate::store::Store;
use crate::version;
use diopter_bench::document::{Job, Sample};

/// A figure of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Metric {
    /// Percent of completions that were deferred to a kworker.
    Contexts,
    /// Requests per virtual second.
    Iops,
    /// Instructions of the guest per request.
    Instructions,
}

/// A kernel that the search may boot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// Its upstream version, or its directory's name.
    pub label: String,
    /// How the store finds it.
    pub choice: Choice,
    /// True if its modules are available.
    pub has_modules: bool,
    /// By which kernels are in order.
    version: String,
    release: String,
}

/// The change to find.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    /// The figure to compare.
    pub metric: Metric,
    /// The job to measure.
    pub job: Job,
    /// By which engine.
    pub engine: Engine,
    /// A kernel as it should be, by series, version or release.
    pub good: String,
    /// One as it should not be.
    pub bad: String,
}

/// The result of a search. Fields are only ever added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "diopter.lab-bisect/1")]
pub struct Bisection {
    /// `diopter.lab-bisect/1`.
    pub schema: String,
    /// The figure that was compared.
    pub metric: Metric,
    /// The job.
    pub job: String,
    /// The engine that made its requests.
    pub engine: String,
    /// The last kernel on the good side of the change.
    pub good: String,
    /// The first on the bad side.
    pub bad: String,
    /// Kernels between the two, which could not be measured, or were not for lack of boots.
    pub between: Vec<String>,
    /// Kernels from one end to the other, both counted.
    pub kernel_count: usize,
    /// Boots that it took.
    pub boots: u32,
    /// Boots that it might have taken.
    pub boots_max: u32,
    /// True if the boots ran out before all kernels between the two were tried.
    pub is_exhausted: bool,
    /// The kernels that were looked at, in order.
    pub steps: Vec<BisectStep>,
}

/// A kernel that was looked at.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct BisectStep {
    /// Its label.
    pub kernel: String,
    /// Its side.
    pub verdict: Verdict,
    /// The measured figure; null for a skipped kernel.
    pub figure: Option<f64>,
    /// Why it was skipped, or that its figure is like neither end's.
    pub note: String,
}

impl Metric {
    /// All of them.
    pub const ALL: [Metric; 3] = [Metric::Contexts, Metric::Iops, Metric::Instructions];

    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Metric::Contexts => "contexts",
            Metric::Iops => "iops",
            Metric::Instructions => "instructions",
        }
    }

    /// Its figure of a sample; `None` where it was not measured.
    #[must_use]
    pub fn of(self, sample: &Sample) -> Option<f64> {
        match self {
            Metric::Contexts => sample.contexts.as_ref()?.deferred_percent(),
            Metric::Iops => {
                let directions = [&sample.read, &sample.write].into_iter().flatten();
                let iops: f64 = directions.map(|direction| direction.iops).sum();
                (iops > 0.0).then_some(iops)
            }
            Metric::Instructions => {
                let instructions = sample.guest.as_ref()?.instructions_per_io;
                (instructions > 0.0).then_some(instructions)
            }
        }
    }
}

/// The kernels of all suites and of the cache, in order; of each upstream version one.
///
/// # Errors
/// [`LabError`].
pub fn candidates(store: &mut Store) -> Result<Vec<Candidate>, LabError> {
    let builds = store.builds()?.to_vec();
    let cached = store.cached()?;
    let mut all: Vec<Candidate> = Vec::new();
    for build in catalog::distinct(&builds) {
        let is_it =
            |kernel: &&Kernel| kernel.release == build.release && kernel.version == build.version;
        let in_cache = cached.iter().find(is_it);
        all.push(Candidate {
            label: build.upstream().to_owned(),
            choice: Choice::Named(build.release.clone()),
            has_modules: build.has_modules
                || in_cache.is_some_and(|kernel| !kernel.modules.modules.is_empty()),
            version: build.version.clone(),
            release: build.release.clone(),
        });
    }
    for kernel in cached {
        let label = version::upstream(&kernel.version).to_owned();
        if all.iter().all(|known| known.label != label) {
            all.push(Candidate {
                label,
                choice: Choice::Named(kernel.release.clone()),
                has_modules: !kernel.modules.modules.is_empty(),
                version: kernel.version,
                release: kernel.release,
            });
        }
    }
    all.sort_by(|left, right| version::compare(&left.version, &right.version));
    Ok(all)
}

/// The kernels of a directory of builds: packages, and directories with an image and modules; in
/// the order of their versions.
///
/// # Errors
/// The system's, reading the directory; [`LabError::Choice`] if it holds no builds.
pub fn candidates_of(dir: &Path) -> Result<Vec<Candidate>, LabError> {
    let entries = std::fs::read_dir(dir).map_err(LabError::file("open", dir))?;
    let paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    let name = |path: &Path| path.file_name().map(|name| name.display().to_string());
    let mut all = Vec::new();
    let mut has_builds = false;
    for path in paths.iter().filter(|path| path.is_dir()) {
        let Some(label) = name(path) else { continue };
        let image = ["bzImage", "vmlinuz"].map(|image| path.join(image));
        let image = image.into_iter().find(|image| image.is_file());
        // One that was not built is a candidate too, and skipped with the reason.
        has_builds |= image.is_some() || build_tree::of_path(path).is_some();
        let files = image.into_iter().chain([path.clone()]).collect();
        let version = label.trim_start_matches(['v', 'V']).to_owned();
        let choice = Choice::Files(files);
        all.push(Candidate { label, choice, has_modules: true, release: version.clone(), version });
    }
    let packages: Vec<(Package, &PathBuf)> =
        paths.iter().filter_map(|path| Some((package_of(&name(path)?)?, path))).collect();
    for (package, path) in &packages {
        let Some(release) = image_release(&package.name) else { continue };
        let is_part = |(other, _): &&(Package, &PathBuf)| {
            other.version == package.version
                && other.name != package.name
                && other.name.strip_prefix("linux-modules-") == Some(release)
        };
        let others = packages.iter().filter(is_part).map(|(_, path)| (*path).clone());
        let files = std::iter::once((*path).clone()).chain(others).collect();
        has_builds = true;
        all.push(Candidate {
            label: version::upstream(&package.version).to_owned(),
            choice: Choice::Files(files),
            has_modules: true,
            version: package.version.clone(),
            release: release.to_owned(),
        });
    }
    if !has_builds {
        return Err(LabError::Choice(format!(
            "{} has no builds; name a directory of packages, or of directories that hold an image \
             and its modules",
            dir.display()
        )));
    }
    all.sort_by(|left, right| version::compare(&left.version, &right.version));
    Ok(all)
}

/// The release of a package with an image.
fn image_release(name: &str) -> Option<&str> {
    let release = name.strip_prefix("linux-image-").or_else(|| name.strip_prefix("linux-binary-"));
    release.filter(|release| !release.ends_with("-dbg"))
}

/// `linux-image-6.9.0_6.9.0-1_amd64.deb`.
fn package_of(file: &str) -> Option<Package> {
    let (name, rest) = file.strip_suffix(".deb")?.split_once('_')?;
    let (version, _) = rest.rsplit_once('_')?;
    let version = version.replace("%3a", ":");
    Some(Package { name: name.to_owned(), version, suite: String::new() })
}

/// The place of a kernel among the candidates: the newest that is meant, with modules if there is
/// one.
///
/// # Errors
/// [`LabError::NoKernel`] with the nearest.
pub fn place_of(candidates: &[Candidate], asked: &str) -> Result<usize, LabError> {
    let is_meant = |candidate: &Candidate| {
        candidate.label == asked || catalog::is_meant(&candidate.release, &candidate.version, asked)
    };
    let meant = candidates.iter().enumerate().filter(|(_, candidate)| is_meant(candidate));
    let best = meant.max_by_key(|(index, candidate)| (candidate.has_modules, *index));
    best.map(|(index, _)| index).ok_or_else(|| {
        let series = candidates.iter().filter_map(|one| version::series(&one.version)).collect();
        let mut nearest = catalog::nearest(&series, asked);
        if nearest.is_empty() {
            // The directories of builds may have any names.
            nearest.extend(candidates.iter().map(|one| one.label.clone()));
        }
        LabError::NoKernel { asked: asked.to_owned(), nearest, because: String::new() }
    })
}

/// Returns the places of the good and the bad end.
fn ends_of(candidates: &[Candidate], question: &Question) -> Result<(usize, usize), LabError> {
    let ends = (place_of(candidates, &question.good)?, place_of(candidates, &question.bad)?);
    if ends.0 == ends.1 {
        return Err(LabError::Choice(format!(
            "{} is both the good and the bad end; name two kernels",
            candidates[ends.0].label
        )));
    }
    Ok(ends)
}

/// Searches, and reports each kernel before it is measured.
///
/// # Errors
/// [`LabError`]: an end that can't be found or measured, ends that do not differ, no emulator.
pub fn search(
    lab: Lab<'_>,
    store: &mut Store,
    candidates: &[Candidate],
    question: &Question,
    observe: &(dyn Fn(&str) + Sync),
) -> Result<Bisection, LabError> {
    let ends = ends_of(candidates, question)?;
    let plan = Plan {
        jobs: vec![question.job.clone()],
        engines: vec![question.engine],
        device: Device::default(),
        repeats: 1,
        is_traced: question.metric == Metric::Contexts,
    };
    let found = bisect::search(ends, |index| {
        let candidate = &candidates[index];
        observe(&candidate.label);
        measure(lab, store, candidate, &plan, question.metric)
    });
    let found = found.map_err(|error| match error {
        SearchError::Measure(error) => error,
        SearchError::End(index, why) => LabError::Choice(format!(
            "{} is an end of the search and can't be measured: {why}; take another kernel",
            candidates[index].label
        )),
        SearchError::NoDifference(good, bad) => LabError::Choice(format!(
            "{} ({good:.2}) and {} ({bad:.2}) do not differ in {}: there is nothing to search \
             for; take another metric, job or kernel",
            candidates[ends.0].label,
            candidates[ends.1].label,
            question.metric.name()
        )),
    })?;
    Ok(bisection(candidates, question, ends, found))
}

/// Measures one kernel. Its own trouble is a reason to skip it. One whose modules are gone still
/// shows where completions run, on a device whose driver is inside its image.
fn measure(
    lab: Lab<'_>,
    store: &mut Store,
    candidate: &Candidate,
    plan: &Plan,
    metric: Metric,
) -> Result<Measured, LabError> {
    let skipped = |reason: String, has_booted| Ok(Measured::Skipped { reason, has_booted });
    let is_nvme = !candidate.has_modules;
    if is_nvme && metric != Metric::Contexts {
        return skipped("its modules are in no suite any more".to_owned(), false);
    }
    let kernel = match store.choose(&candidate.choice) {
        Ok(kernel) => kernel,
        Err(
            error @ (LabError::Layout { .. } | LabError::Unbuilt(_) | LabError::NoKernel { .. }),
        ) => {
            return skipped(error.to_string(), false);
        }
        Err(error) => return Err(error),
    };
    let plan = Plan { device: Device { is_nvme, ..plan.device }, ..plan.clone() };
    let outcome = run::run(lab, std::slice::from_ref(&kernel), &plan, &|_| ());
    let outcome = outcome.map_err(LabError::Machine)?;
    if outcome.is_interrupted {
        return Err(LabError::Stopped);
    }
    let boot = outcome.units.first().and_then(|unit| unit.boots.first());
    match boot.and_then(|boot| boot.cells.first()) {
        Some(Ok(sample)) => match metric.of(sample) {
            Some(figure) => Ok(Measured::Figure(figure)),
            None => skipped(format!("its {} is unknown", metric.name()), true),
        },
        Some(Err(reason)) => skipped(reason.clone(), true),
        None => skipped("its output has no measurement".to_owned(), true),
    }
}

fn bisection(
    candidates: &[Candidate],
    question: &Question,
    ends: (usize, usize),
    found: Found,
) -> Bisection {
    let label = |index: usize| candidates[index].label.clone();
    let kernel_count = ends.0.abs_diff(ends.1) + 1;
    Bisection {
        schema: bisect::SCHEMA.to_owned(),
        metric: question.metric,
        job: question.job.name.clone(),
        engine: question.engine.name().to_owned(),
        good: label(found.good),
        bad: label(found.bad),
        between: found.between().map(label).collect(),
        kernel_count,
        boots: found.boots,
        boots_max: bisect::boots_max(kernel_count),
        is_exhausted: found.is_exhausted,
        steps: found
            .steps
            .into_iter()
            .map(|step| BisectStep {
                kernel: label(step.index),
                verdict: step.verdict,
                figure: step.figure,
                note: step.note,
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_bench::document::{Contexts, DirectionSample, Guest};

    fn candidate(version: &str, has_modules: bool) -> Candidate {
        Candidate {
            label: version::upstream(version).to_owned(),
            choice: Choice::Named(version.to_owned()),
            has_modules,
            version: version.to_owned(),
            release: format!("{version}-cloud-amd64"),
        }
    }

    #[test]
    fn a_series_is_its_newest_kernel_with_modules() {
        let all = [
            candidate("6.18.15-1", true),
            candidate("7.2.9-1", true),
            candidate("7.2.13-1", false),
            candidate("7.3.1-1", false),
        ];
        assert_eq!(place_of(&all, "7.2").unwrap(), 1);
        assert_eq!(place_of(&all, "7.2.13").unwrap(), 2);
        assert_eq!(place_of(&all, "7.3").unwrap(), 3);
        let message = place_of(&all, "6.12").unwrap_err().to_string();
        assert!(message.contains("there are 6.18, 7.2"), "{message}");
    }

    #[test]
    fn a_kernel_that_is_both_ends_is_refused() {
        let all = [candidate("6.18.15-1", true), candidate("7.2.9-1", true)];
        let job = Job::default();
        let question = |good: &str, bad: &str| Question {
            metric: Metric::Contexts,
            job: job.clone(),
            engine: Engine::Libaio,
            good: good.to_owned(),
            bad: bad.to_owned(),
        };
        assert_eq!(ends_of(&all, &question("7.2", "6.18")).unwrap(), (1, 0));
        let message = ends_of(&all, &question("7.2", "7.2.9")).unwrap_err().to_string();
        assert!(message.contains("7.2.9 is both the good and the bad end"), "{message}");
    }

    #[test]
    fn a_dir_of_builds_is_in_the_order_of_versions() {
        let dir = tempfile::tempdir().unwrap();
        for file in [
            "linux-image-6.10.0_6.10.0-1_amd64.deb",
            "linux-image-6.9.0_6.9.0-1_amd64.deb",
            "linux-modules-6.9.0_6.9.0-1_amd64.deb",
            "linux-image-6.9.0-dbg_6.9.0-1_amd64.deb",
            "linux-libc-dev_6.9.0-1_amd64.deb",
        ] {
            std::fs::write(dir.path().join(file), "").unwrap();
        }
        std::fs::create_dir(dir.path().join("v6.9.5")).unwrap();
        std::fs::write(dir.path().join("v6.9.5/bzImage"), "").unwrap();
        let all = candidates_of(dir.path()).unwrap();
        let labels: Vec<&str> = all.iter().map(|one| one.label.as_str()).collect();
        assert_eq!(labels, ["6.9.0", "v6.9.5", "6.10.0"]);
        let count = |at: usize| match &all[at].choice {
            Choice::Files(files) => files.len(),
            Choice::Named(_) => 0,
        };
        assert_eq!((count(0), count(1), count(2)), (2, 2, 1));
    }

    #[test]
    fn a_dir_without_the_builds_is_reported_with_what_it_has() {
        let dir = tempfile::tempdir().unwrap();
        let message = candidates_of(dir.path()).unwrap_err().to_string();
        assert!(message.contains("has no builds; name a directory"), "{message}");
        std::fs::create_dir(dir.path().join("mine")).unwrap();
        assert!(candidates_of(dir.path()).is_err(), "a directory is not a build");
        std::fs::write(dir.path().join("mine/bzImage"), "").unwrap();
        let all = candidates_of(dir.path()).unwrap();
        let message = place_of(&all, "6.9").unwrap_err().to_string();
        assert_eq!(message, "no kernel 6.9 can be had; there are mine");
    }

    #[test]
    fn each_metric_has_its_figure_or_none() {
        let contexts = Contexts { kworker: 1, hardirq: 3, ..Contexts::default() };
        let guest = Guest { instructions_per_io: 18_000.0, ..Guest::default() };
        let write = DirectionSample { iops: 5.0, ..DirectionSample::default() };
        let sample = Sample {
            contexts: Some(contexts),
            guest: Some(guest),
            write: Some(write),
            ..Sample::default()
        };
        let figures = Metric::ALL.map(|metric| metric.of(&sample));
        assert_eq!(figures, [Some(25.0), Some(5.0), Some(18_000.0)]);
        assert_eq!(Metric::ALL.map(|metric| metric.of(&Sample::default())), [None; 3]);
    }
}
