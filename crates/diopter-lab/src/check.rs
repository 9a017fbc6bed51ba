//! One kernel against a base, for `git bisect run`: good, bad, or unknown. The caller maps them
//! to exit statuses.

use std::cmp::Ordering;
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::between::Metric;
use crate::bisect::Measured;
use crate::build_tree;
use crate::choice::Choice;
use crate::error::LabError;
use crate::kernel::{Kernel, Presence};
use crate::matrix::{Device, Engine, FileSystem, Plan};
use crate::run::{self, Lab};
use crate::store::{Key, Programs, Store, identity, program};
use diopter_bench::document::Job;

/// The name and version of the document.
pub const SCHEMA: &str = "diopter.lab-check/1";

/// The kernel to check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subject {
    /// A package: a series, an upstream version or a release.
    Version(String),
    /// An image, or a build tree.
    Path(PathBuf),
}

/// The figure to compare, its job, and the difference that is allowed.
#[derive(Clone, Debug, PartialEq)]
pub struct Question {
    pub metric: Metric,
    pub job: Job,
    pub engine: Engine,
    /// A fraction: 0.05 is 5 %, or 5 percentage points of completions.
    pub tolerance: f64,
}

/// The verdict about a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// As the base, or better.
    Good,
    /// Completions run elsewhere than in the base, or the figure is worse.
    Bad,
    /// The kernel was not built, lacks a driver, or does not boot.
    Unknown,
}

/// The result of a check. Fields are only ever added.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "diopter.lab-check/1")]
pub struct Check {
    /// `diopter.lab-check/1`.
    pub schema: String,
    pub verdict: Verdict,
    /// The figure that was compared.
    pub metric: Metric,
    /// The job.
    pub job: String,
    /// The engine that made its requests.
    pub engine: String,
    /// The difference that is allowed, as a fraction; of contexts, 0.05 is 5 percentage points.
    pub tolerance: f64,
    /// The kernel that was checked.
    pub kernel: Checked,
    /// The kernel that it was compared with; null if the kernel could not be measured.
    pub base: Option<Checked>,
    /// Why there is no verdict; empty if there is one.
    pub reason: String,
    /// Guests that were booted, without those whose figures the cache had.
    pub boots: u32,
}

/// A kernel of a check.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Checked {
    /// As it was named.
    pub name: String,
    /// The output of `uname -r` in it; empty if that is unknown.
    pub release: String,
    /// Version of its package; empty for files of the user.
    pub version: String,
    /// Percent of completions that were deferred to a kworker, requests per virtual second, or
    /// instructions per request; null if it was not measured.
    pub figure: Option<f64>,
    /// True if the figure is from the cache.
    pub is_cached: bool,
}

/// Where and with which programs guests run.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    pub lab: Lab<'a>,
    pub programs: &'a Programs,
}

impl Metric {
    /// Returns the verdict about a figure. Contexts have no order: a change in either direction is
    /// bad. Of the others only a worse figure is, by the factor of [`diopter_bench::compare`]. Two
    /// figures of 0 have no factor.
    #[must_use]
    pub fn verdict(self, base: f64, figure: f64, tolerance: f64) -> Verdict {
        let (found, limit) = match self {
            Metric::Contexts => ((figure - base).abs(), tolerance * 100.0),
            Metric::Iops => (base / figure, 1.0 + tolerance),
            Metric::Instructions => (figure / base, 1.0 + tolerance),
        };
        match found.partial_cmp(&limit) {
            Some(Ordering::Greater) => Verdict::Bad,
            Some(_) => Verdict::Good,
            None => Verdict::Unknown,
        }
    }
}

/// Checks a kernel against a base. The base is measured once: the cache keeps its figures.
///
/// # Errors
/// [`LabError`] for what another revision does not cure either: the host, the network, the base.
pub fn check(
    place: Place<'_>,
    store: &mut Store,
    (subject, base): (&Subject, &Choice),
    question: &Question,
    observe: &dyn Fn(&str),
) -> Result<Check, LabError> {
    let base_kernel = store.choose(base).map_err(|error| of_base(base, &error))?;
    let name = subject.to_string();
    let mut check = Check {
        schema: SCHEMA.to_owned(),
        verdict: Verdict::Unknown,
        metric: question.metric,
        job: question.job.name.clone(),
        engine: question.engine.name().to_owned(),
        tolerance: question.tolerance,
        kernel: Checked { name, ..Checked::default() },
        base: None,
        reason: String::new(),
        boots: 0,
    };
    let kernel = match kernel_of(store, subject) {
        Ok(kernel) => kernel,
        Err(error) if is_of_revision(&error) => {
            check.reason = error.to_string();
            return Ok(check);
        }
        Err(error) => return Err(error),
    };
    let program = program()?;
    let mut bench = Bench { place, store, question, program: &program, boots: 0 };
    observe(&format!("the base, {base}"));
    let (mut checked, measured) = bench.measure(&base_kernel, base.to_string())?;
    let base_figure = match measured {
        Measured::Figure(figure) => figure,
        Measured::Skipped { reason, .. } => return Err(of_base(base, &reason)),
    };
    checked.figure = Some(base_figure);
    check.base = Some(checked);
    observe(&check.kernel.name);
    let (mut checked, measured) = bench.measure(&kernel, check.kernel.name.clone())?;
    match measured {
        Measured::Figure(figure) => {
            checked.figure = Some(figure);
            check.verdict = question.metric.verdict(base_figure, figure, question.tolerance);
            if check.verdict == Verdict::Unknown {
                check.reason = "both figures are 0".to_owned();
            }
        }
        Measured::Skipped { reason, .. } => check.reason = reason,
    }
    check.kernel = checked;
    check.boots = bench.boots;
    Ok(check)
}

/// The error of a base that can't be had or measured, which no other revision cures.
fn of_base(base: &Choice, why: &dyn std::fmt::Display) -> LabError {
    LabError::Choice(format!("the base {base} can't be measured: {why}; take another one"))
}

/// Returns true for an error of the revision, not of the host: another one may do.
fn is_of_revision(error: &LabError) -> bool {
    match error {
        LabError::Layout { .. } | LabError::Unbuilt(_) => true,
        // A version that the suites do not have; a network that is away is the host's.
        LabError::NoKernel { because, .. } => because.is_empty(),
        _ => false,
    }
}

fn kernel_of(store: &mut Store, subject: &Subject) -> Result<Kernel, LabError> {
    match subject {
        Subject::Version(version) => store.kernel(version),
        Subject::Path(path) => kernel_at(store, path),
    }
}

/// The kernel of an image or a build tree. An image that is missing was not built; another name
/// is a mistake.
fn kernel_at(store: &mut Store, path: &Path) -> Result<Kernel, LabError> {
    let shown = path.display();
    let is_image_name = path.file_name().is_some_and(|name| {
        let name = name.to_string_lossy();
        name == "bzImage" || name.starts_with("vmlinuz")
    });
    if !path.exists() {
        return Err(if is_image_name {
            LabError::Unbuilt(format!("there is no {shown}; make bzImage builds it"))
        } else {
            LabError::Choice(format!("there is no {shown}; name a bzImage or a build tree"))
        });
    }
    if let Some(root) = build_tree::of_path(path) {
        return store.kernel_of_files(&[root]);
    }
    if path.is_dir() {
        return Err(LabError::Choice(format!(
            "{shown} is not a kernel's build tree: it has no arch/x86; name one, or a bzImage"
        )));
    }
    build_tree::check_image(path)?;
    store.kernel_of_files(&[path.to_owned()])
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Subject::Version(version) => f.write_str(version),
            Subject::Path(path) => path.display().fmt(f),
        }
    }
}

struct Bench<'a> {
    place: Place<'a>,
    store: &'a mut Store,
    question: &'a Question,
    program: &'a str,
    boots: u32,
}

impl Bench<'_> {
    /// Measures a kernel, or takes its figures from the cache.
    fn measure(&mut self, kernel: &Kernel, name: String) -> Result<(Checked, Measured), LabError> {
        let metric = self.question.metric;
        let mut checked = Checked {
            name,
            release: kernel.release.clone(),
            version: kernel.version.clone(),
            ..Checked::default()
        };
        let skipped = |reason: String, has_booted| Measured::Skipped { reason, has_booted };
        let device = match device_of(kernel, metric) {
            Ok(device) => device,
            Err(reason) => return Ok((checked, skipped(reason, false))),
        };
        let plan = Plan {
            jobs: vec![self.question.job.clone()],
            engines: vec![self.question.engine],
            device,
            repeats: 1,
            is_traced: metric == Metric::Contexts,
        };
        let wanted = plan.file_systems().into_iter().flat_map(FileSystem::modules);
        let wanted: Vec<&str> = wanted.copied().collect();
        if let Err(missing) = kernel.modules.load_order(&wanted) {
            return Ok((checked, skipped(missing.to_string(), false)));
        }
        let figure = |sample| match metric.of(sample) {
            Some(figure) => Measured::Figure(figure),
            None => skipped(format!("its {} is unknown", metric.name()), true),
        };
        let lab = self.place.lab;
        let key = Key {
            program: self.program,
            programs: &self.place.programs.digest,
            machine: &lab.machine.facts(lab.options),
            kernel: &identity(kernel),
            plan: &format!("{plan:?}"),
        };
        if let Some(sample) = self.store.measured(&key)? {
            checked.is_cached = true;
            return Ok((checked, figure(&sample)));
        }
        let outcome = run::run(lab, std::slice::from_ref(kernel), &plan, &|_| ());
        let outcome = outcome.map_err(LabError::Machine)?;
        if outcome.is_interrupted {
            return Err(LabError::Stopped);
        }
        self.boots += 1;
        let boot = outcome.units.first().and_then(|unit| unit.boots.first());
        if let Some(reported) = boot.and_then(|boot| boot.report.kernel.as_ref()) {
            checked.release.clone_from(&reported.release);
        }
        Ok((
            checked,
            match boot.and_then(|boot| boot.cells.first()) {
                Some(Ok(sample)) => {
                    self.store.keep(&key, &kernel.release, sample)?;
                    figure(sample)
                }
                Some(Err(reason)) => skipped(reason.clone(), true),
                None => skipped("its output has no measurement".to_owned(), true),
            },
        ))
    }
}

/// The device for a kernel. One without the module still shows on an emulated NVMe device where
/// completions run; its time is the host's, so nothing else is measured there.
fn device_of(kernel: &Kernel, metric: Metric) -> Result<Device, String> {
    let is_nvme = match (kernel.modules.presence("null_blk"), metric) {
        (Presence::Module | Presence::BuiltIn, _) => false,
        (Presence::Unknown | Presence::Absent, Metric::Contexts) => true,
        (Presence::Unknown, _) => false,
        (Presence::Absent, _) => return Err("it has no null_blk, and is not timed".to_owned()),
    };
    Ok(Device { is_nvme, ..Device::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_context_may_not_change_and_a_rate_may_not_get_worse() {
        use Verdict::{Bad, Good, Unknown};
        for (metric, base, figure, expected) in [
            (Metric::Contexts, 100.0, 95.0, Good),
            (Metric::Contexts, 100.0, 94.9, Bad),
            (Metric::Contexts, 0.0, 5.1, Bad),
            (Metric::Contexts, 0.0, 0.0, Good),
            (Metric::Iops, 105.0, 100.0, Good),
            (Metric::Iops, 105.1, 100.0, Bad),
            (Metric::Iops, 100.0, 200.0, Good),
            (Metric::Instructions, 100.0, 105.0, Good),
            (Metric::Instructions, 100.0, 105.1, Bad),
            (Metric::Instructions, 200.0, 100.0, Good),
            (Metric::Iops, 0.0, 0.0, Unknown),
            (Metric::Instructions, 0.0, 0.0, Unknown),
        ] {
            assert_eq!(metric.verdict(base, figure, 0.05), expected, "{metric:?} {base} {figure}");
        }
    }

    #[test]
    fn a_version_that_no_suite_has_is_skipped_only_if_the_suites_were_asked() {
        let absent = |because: &str| LabError::NoKernel {
            asked: "6.6".to_owned(),
            nearest: Vec::new(),
            because: because.to_owned(),
        };
        assert!(is_of_revision(&absent("")));
        assert!(!is_of_revision(&absent("no network")));
        assert!(!is_of_revision(&LabError::Stopped));
    }

    #[test]
    fn without_null_blk_only_the_context_is_measured() {
        let mut kernel = Kernel::default();
        let is_nvme =
            |kernel: &Kernel, metric| device_of(kernel, metric).map(|device| device.is_nvme);
        assert_eq!(is_nvme(&kernel, Metric::Contexts), Ok(true));
        assert_eq!(is_nvme(&kernel, Metric::Iops), Ok(false));
        kernel.modules.built_in.insert("ext4".to_owned());
        assert_eq!(is_nvme(&kernel, Metric::Contexts), Ok(true));
        assert!(is_nvme(&kernel, Metric::Iops).unwrap_err().contains("null_blk"));
        kernel.modules.built_in.insert("null_blk".to_owned());
        assert_eq!(is_nvme(&kernel, Metric::Contexts), Ok(false));
    }
}
