//! All boots of a run: each kernel with each file system, as often as asked for, two at once. A
//! boot that fails is a result with its reason, not the end of the run.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::error::BootError;
use crate::fleet::Fleet;
use crate::guest::record::{CellReport, Report};
use crate::guest::{Assignment, script};
use crate::initramfs::Initramfs;
use crate::kernel::{Kernel, Presence};
use crate::machine::{BootOptions, Machine};
use crate::matrix::{Device, Engine, FileSystem, Plan};
use crate::measure::sample;
use diopter_bench::document::Sample;

/// Wall-clock time that a boot gets before its first job: the emulator may share its processor with
/// whatever else runs on the host.
const BOOT_LIMIT: Duration = Duration::from_secs(600);
/// And for each job.
const JOB_LIMIT: Duration = Duration::from_secs(180);

/// Why a boot that the user stopped has no figures.
pub const INTERRUPTED: &str = "interrupted";
/// Why one that had not begun by then has none.
pub const NOT_RUN: &str = "not run";

/// With what is booted.
#[derive(Clone, Copy, Debug)]
pub struct Lab<'a> {
    /// The emulator.
    pub machine: &'a Machine,
    /// Its processors.
    pub fleet: &'a Fleet,
    /// The archive of the guest's programs.
    pub programs: &'a Path,
    /// How guests are booted; processor and limit are set for each.
    pub options: &'a BootOptions,
}

/// One boot: a kernel and a file system.
#[derive(Clone, Copy, Debug)]
pub struct Boot<'a> {
    pub kernel: &'a Kernel,
    pub file_system: FileSystem,
}

/// The result of a boot.
#[derive(Clone, Debug, Default)]
pub struct Booted {
    /// The guest's report.
    pub report: Report,
    /// For each assignment of the file system, its figures or why there are none.
    pub cells: Vec<Result<Sample, String>>,
    /// Wall-clock time.
    pub wall: Duration,
}

/// How a run goes.
#[derive(Clone, Copy, Debug)]
pub enum BootProgress<'a> {
    /// A guest is booted.
    Begun(Boot<'a>),
    /// It finished; with the reason if it gave nothing.
    Ended(Boot<'a>, Duration, Option<&'a str>),
}

/// All boots of one kernel with one file system.
#[derive(Clone, Debug)]
pub struct Unit {
    /// Index of the kernel.
    pub kernel: usize,
    pub file_system: FileSystem,
    /// The measured cells.
    pub assignments: Vec<Assignment>,
    /// Its boots, in order of time.
    pub boots: Vec<Booted>,
}

/// The results of all boots.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// By kernel, then by file system in the order of the plan.
    pub units: Vec<Unit>,
    /// True if the user asked to stop before all was done.
    pub is_interrupted: bool,
}

impl Plan {
    /// The file systems of its jobs, in order.
    #[must_use]
    pub fn file_systems(&self) -> Vec<FileSystem> {
        let mut all: Vec<FileSystem> = Vec::new();
        for job in &self.jobs {
            let name = job.file_system.as_deref().unwrap_or("raw");
            let parsed = name.parse().expect("jobs of a plan are made with names that exist");
            if !all.contains(&parsed) {
                all.push(parsed);
            }
        }
        all
    }

    /// Returns the cells of one boot with a file system: its jobs, each by each engine.
    #[must_use]
    pub fn assignments(&self, file_system: FileSystem) -> Vec<Assignment> {
        let is_here = |job: &&diopter_bench::document::Job| {
            job.file_system.as_deref().unwrap_or("raw") == file_system.name()
        };
        let assigned = |job: &diopter_bench::document::Job| {
            let assignment = |engine: &Engine| Assignment { job: job.clone(), engine: *engine };
            self.engines.iter().map(assignment).collect::<Vec<_>>()
        };
        self.jobs.iter().filter(is_here).flat_map(assigned).collect()
    }
}

/// Boots every kernel with every file system of a plan. Where the repeats of a boot differ in a
/// figure, it is done once more.
///
/// # Errors
/// [`BootError::NoQemu`] and [`BootError::Emulator`], which no other boot would survive either.
pub fn run(
    lab: Lab<'_>,
    kernels: &[Kernel],
    plan: &Plan,
    observe: &(dyn Fn(BootProgress<'_>) + Sync),
) -> Result<Outcome, BootError> {
    let mut units: Vec<Unit> = Vec::new();
    for kernel in 0..kernels.len() {
        units.extend(plan.file_systems().into_iter().map(|file_system| Unit {
            kernel,
            file_system,
            assignments: plan.assignments(file_system),
            boots: Vec::new(),
        }));
    }
    let repeats = plan.repeats.max(1);
    // Repeats of one boot lie apart in time, so that what disturbs one leaves the other alone.
    let mut todo: Vec<usize> = Vec::new();
    for _ in 0..repeats {
        todo.extend(0..units.len());
    }
    for is_last in [false, true] {
        if is_last {
            let differing = (0..units.len()).filter(|unit| units[*unit].differs());
            todo = differing.collect();
        }
        let stop = lab.options.stop.as_ref();
        let booted = lab.fleet.each(&todo, |unit, cpu| {
            if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return None;
            }
            let unit = &units[*unit];
            let kernel = &kernels[unit.kernel];
            let boot = Boot { kernel, file_system: unit.file_system };
            observe(BootProgress::Begun(boot));
            let booted = boot_once(lab, kernel, unit, plan, cpu);
            if let Ok(booted) = &booted {
                let failure = booted.cells.iter().find_map(|cell| cell.as_ref().err());
                observe(BootProgress::Ended(boot, booted.wall, failure.map(String::as_str)));
            }
            Some(booted)
        });
        let mut is_interrupted = false;
        for (unit, booted) in todo.iter().zip(booted) {
            match booted {
                Some(Ok(booted)) => units[*unit].boots.push(booted),
                Some(Err(BootError::Stopped)) => {
                    is_interrupted = true;
                    units[*unit].interrupt();
                }
                None => is_interrupted = true,
                Some(Err(error)) => return Err(error),
            }
        }
        if is_interrupted {
            return Ok(Outcome { units, is_interrupted });
        }
    }
    Ok(Outcome { units, is_interrupted: false })
}

impl Unit {
    /// Returns true if its boots gave different figures for a cell.
    #[must_use]
    pub fn differs(&self) -> bool {
        (0..self.assignments.len()).any(|cell| self.is_repeatable(cell) == Some(false))
    }

    /// Gives a reason to its cells, if no boot has figures.
    fn interrupt(&mut self) {
        if self.boots.is_empty() {
            let cells = vec![Err(INTERRUPTED.to_owned()); self.assignments.len()];
            self.boots.push(Booted { cells, ..Booted::default() });
        }
    }

    /// Returns true if all boots gave the same figures for a cell, exactly; `None` for fewer
    /// than two.
    #[must_use]
    pub fn is_repeatable(&self, cell: usize) -> Option<bool> {
        let mut figures = self.boots.iter().filter_map(|boot| boot.cells.get(cell));
        let first = figures.next()?;
        let mut others = figures.peekable();
        others.peek()?;
        Some(others.all(|other| other == first))
    }
}

/// One boot. A guest's own trouble is in the result.
fn boot_once(
    lab: Lab<'_>,
    kernel: &Kernel,
    unit: &Unit,
    plan: &Plan,
    cpu: Option<usize>,
) -> Result<Booted, BootError> {
    let count = unit.assignments.len();
    let failed = |reason: String, report: Report, wall: Duration| {
        Ok(Booted { report, cells: vec![Err(reason); count], wall })
    };
    let initramfs = match initramfs(lab.programs, kernel, unit.file_system, plan.device) {
        Ok(initramfs) => initramfs,
        Err(reason) => return failed(reason, Report::default(), Duration::ZERO),
    };
    let text = script(unit.file_system, plan.device, &unit.assignments, plan.is_traced);
    let jobs = u32::try_from(count).unwrap_or(u32::MAX);
    let limit = BOOT_LIMIT.saturating_add(JOB_LIMIT.saturating_mul(jobs));
    let nvme_bytes = plan.device.is_nvme.then_some(plan.device.megabytes << 20);
    let options = BootOptions { cpu, limit, nvme_bytes, ..lab.options.clone() };
    let console = match lab.machine.boot(kernel, &initramfs, &text, &options) {
        Ok(console) => console,
        Err(
            error @ (BootError::Panic(_)
            | BootError::Hang(..)
            | BootError::Quiet(..)
            | BootError::Flood(..)
            | BootError::Silent(_)),
        ) => {
            let reason = match error.last_lines() {
                "" => format!("{error}, and printed nothing"),
                lines => format!("{error}; it said last:\n{lines}"),
            };
            return failed(reason, Report::default(), Duration::ZERO);
        }
        Err(error) => return Err(error),
    };
    let report = Report::read(&console.results);
    if let Some(what) = report.failure.clone().or_else(|| report.unread.clone()) {
        return failed(what, report, console.wall);
    }
    if console.status != 0 {
        let reason = format!("the guest's script ended with status {}", console.status);
        return failed(reason, report, console.wall);
    }
    let none = CellReport::default();
    let shift = lab.options.shift;
    let cells = unit.assignments.iter().enumerate().map(|(cell, assignment)| {
        let reported = report.cells.get(&cell).unwrap_or(&none);
        sample(assignment, reported, plan.device, shift)
    });
    let cells = cells.collect();
    Ok(Booted { report, cells, wall: console.wall })
}

/// The guest's memory for a kernel with a file system, or why there can be none.
fn initramfs(
    programs: &Path,
    kernel: &Kernel,
    file_system: FileSystem,
    device: Device,
) -> Result<Initramfs, String> {
    let wanted_too = file_system.modules_if_present().iter();
    let present = wanted_too.filter(|name| kernel.modules.presence(name) == Presence::Module);
    let driver = if device.is_nvme { "nvme" } else { "null_blk" };
    let mut wanted: Vec<&str> = vec![driver];
    wanted.extend(present.copied());
    wanted.extend(file_system.modules());
    let mut initramfs =
        Initramfs::on(programs).map_err(|error| format!("read {}: {error}", programs.display()))?;
    initramfs.add_modules(kernel, &wanted).map_err(|error| error.to_string())?;
    Ok(initramfs)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Device, product};
    use diopter_bench::document::ReadWrite;

    fn unit(figures: &[u64]) -> Unit {
        let boot = |elapsed_ns: &u64| Booted {
            cells: vec![Ok(Sample { elapsed_ns: *elapsed_ns, ..Sample::default() })],
            ..Booted::default()
        };
        let assignments = plan().assignments(FileSystem::Ext4);
        let boots = figures.iter().map(boot).collect();
        Unit { kernel: 0, file_system: FileSystem::Ext4, assignments, boots }
    }

    fn plan() -> Plan {
        let systems = [FileSystem::Ext4, FileSystem::Raw];
        let jobs = product(&systems, &[ReadWrite::RandWrite], &[4096, 16384], &[64]);
        let engines = vec![Engine::Libaio, Engine::IoUring];
        Plan { jobs, engines, device: Device::default(), repeats: 2, is_traced: true }
    }

    #[test]
    fn a_boot_measures_the_jobs_of_its_file_system_by_every_engine() {
        let plan = plan();
        assert_eq!(plan.file_systems(), [FileSystem::Ext4, FileSystem::Raw]);
        let assignments = plan.assignments(FileSystem::Raw);
        let reported: Vec<(u64, &str)> =
            assignments.iter().map(|one| (one.job.block_bytes, one.engine.name())).collect();
        let expected =
            [(4096, "libaio"), (4096, "io_uring"), (16384, "libaio"), (16384, "io_uring")];
        assert_eq!(reported, expected);
    }

    #[test]
    fn boots_repeat_when_every_figure_is_the_same_to_the_digit() {
        assert_eq!(unit(&[]).is_repeatable(0), None);
        assert_eq!(unit(&[5]).is_repeatable(0), None);
        assert_eq!(unit(&[5, 5]).is_repeatable(0), Some(true));
        assert_eq!(unit(&[5, 6]).is_repeatable(0), Some(false));
        assert_eq!(unit(&[5, 5, 6]).is_repeatable(0), Some(false));
        assert!(unit(&[5, 6]).differs());
    }
}
