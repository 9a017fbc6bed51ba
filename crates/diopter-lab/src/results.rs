//! From boots to a document: kernels are columns, jobs are rows, and what a kernel ran on is its
//! environment. Everything that is shown afterwards is made from the document alone.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::LabError;
use crate::kernel::Kernel;
use crate::matrix::Plan;
use crate::run::{self, Outcome, Unit};
use diopter_bench::document::{
    Bench, Cell, Column, Cpu, DeviceFacts, Environment, FileSystemFacts, Method, QueueFacts, Row,
    SCHEMA, Sample, Warning, WarningKind,
};
use diopter_bench::whole;

/// The facts of a document that are not from the boots.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// Version of dio.
    pub made_by: String,
    /// When the run began: nanoseconds since 1970.
    pub started_unix_ns: u64,
    /// The facts under which figures are comparable: the emulator, its flags, versions of the
    /// programs.
    pub facts: BTreeMap<String, String>,
    /// The guest's memory, in bytes.
    pub memory_bytes: u64,
}

/// The document of a run.
#[must_use]
pub fn bench(kernels: &[Kernel], plan: &Plan, outcome: &Outcome, about: &About) -> Bench {
    let environments =
        outcome.units.iter().map(|unit| environment(&kernels[unit.kernel], unit, about)).collect();
    let labels = labels(kernels);
    let mut columns = Vec::new();
    for (kernel, label) in kernels.iter().zip(labels) {
        columns.extend(plan.engines.iter().map(|engine| {
            let is_plain = plan.engines.len() == 1;
            let label = if is_plain { label.clone() } else { format!("{label} {}", engine.name()) };
            Column {
                label,
                program: "fio".to_owned(),
                program_version: program_version(outcome),
                preset: None,
                engine: engine.name().to_owned(),
                flags: Vec::new(),
                kernel: Some(kernel.series.clone()),
            }
        }));
    }
    let rows = plan.jobs.iter().map(|job| {
        let mut cells = Vec::new();
        for kernel in 0..kernels.len() {
            for engine in &plan.engines {
                let is_it = |(_, unit): &(usize, &Unit)| {
                    unit.kernel == kernel && unit.assignments.iter().any(|one| one.job == *job)
                };
                let found = outcome.units.iter().enumerate().find(is_it);
                let cell = found.and_then(|(environment, unit)| {
                    let mut all = unit.assignments.iter();
                    let at = all.position(|one| one.job == *job && one.engine == *engine)?;
                    Some(cell(environment, unit, at))
                });
                cells.push(cell.unwrap_or_default());
            }
        }
        Row { job: job.clone(), cells }
    });
    Bench {
        schema: SCHEMA.to_owned(),
        made_by: about.made_by.clone(),
        title: "The same jobs on several kernels".to_owned(),
        started_unix_ns: about.started_unix_ns,
        method: Method {
            rounds: plan.repeats.max(1),
            warmup_ns: 0,
            order: "none".to_owned(),
            seed: 1,
            effect_floor: 0.0,
            is_virtual: true,
        },
        environments,
        columns,
        rows: rows.collect(),
        is_interrupted: outcome.is_interrupted,
    }
}

/// Writes a text under a name: all of it, or nothing.
///
/// # Errors
/// [`LabError::File`].
pub fn write_whole(path: &Path, text: &str) -> Result<(), LabError> {
    whole::write(path, |out| out.write_all(text.as_bytes())).map_err(LabError::file("write", path))
}

/// Short and unique: the series, or the release where two kernels are of one series.
fn labels(kernels: &[Kernel]) -> Vec<String> {
    let is_alone =
        |kernel: &Kernel| kernels.iter().filter(|other| other.series == kernel.series).count() == 1;
    let label = |kernel: &Kernel| {
        if is_alone(kernel) { kernel.series.clone() } else { kernel.release.clone() }
    };
    kernels.iter().map(label).collect()
}

fn program_version(outcome: &Outcome) -> String {
    let mut reports = outcome.units.iter().flat_map(|unit| &unit.boots).map(|boot| &boot.report);
    let reported = reports.find_map(|report| report.kernel.as_ref());
    reported.map(|kernel| kernel.programs.trim_start_matches("fio-").to_owned()).unwrap_or_default()
}

fn environment(kernel: &Kernel, unit: &Unit, about: &About) -> Environment {
    let reports = || unit.boots.iter().map(|boot| &boot.report);
    let reported = reports().find_map(|report| report.kernel.clone()).unwrap_or_default();
    let device = reports().find_map(|report| report.device.clone()).unwrap_or_default();
    let mut more = about.facts.clone();
    let mut fact = |name: &str, value: &str| {
        if !value.is_empty() {
            more.insert(name.to_owned(), value.to_owned());
        }
    };
    fact("kernel_package", &kernel.package);
    fact("kernel_package_version", &kernel.version);
    let release = if reported.release.is_empty() { &kernel.release } else { &reported.release };
    let is_raw = unit.file_system == super::matrix::FileSystem::Raw;
    let file_system = FileSystemFacts {
        kind: unit.file_system.name().to_owned(),
        mount_options: reports()
            .find_map(|report| report.mount_options.clone())
            .unwrap_or_default(),
        alignment_memory: 0,
        alignment_offset: 0,
    };
    Environment {
        kernel_release: release.clone(),
        kernel_version: reported.version,
        kernel_command_line: reported.command_line,
        host: "a virtual machine".to_owned(),
        cpu: Cpu { model: reported.cpu, online: 1, ..Cpu::default() },
        memory_bytes: about.memory_bytes,
        device: DeviceFacts {
            name: device.name,
            model: "null_blk".to_owned(),
            size: device.bytes,
            is_rotational: Some(false),
            queue: QueueFacts(device.queue),
            ..DeviceFacts::default()
        },
        file_system: (!is_raw).then_some(file_system),
        more,
        ..Environment::default()
    }
}

fn cell(environment: usize, unit: &Unit, at: usize) -> Cell {
    let mut cell = Cell { environment, ..Cell::default() };
    let is_repeatable = unit.is_repeatable(at);
    for (round, boot) in (0..).zip(&unit.boots) {
        match boot.cells.get(at) {
            Some(Ok(sample)) => {
                let mut sample = Sample { round, turn: round, ..sample.clone() };
                if let Some(guest) = &mut sample.guest {
                    guest.is_repeatable = is_repeatable;
                }
                cell.samples.push(sample);
            }
            Some(Err(reason)) => cell.failure = Some(reason.clone()),
            None => cell.failure = Some("the guest's output has no record of it".to_owned()),
        }
    }
    if unit.boots.is_empty() {
        cell.failure = Some(run::NOT_RUN.to_owned());
    }
    if is_repeatable == Some(false) {
        let times = cell.samples.iter().map(|sample| sample.elapsed_ns.to_string());
        let times = times.collect::<Vec<_>>().join(", ");
        let evidence = format!("the job took {times} virtual ns");
        cell.warnings.push(Warning { kind: WarningKind::NotRepeatable, evidence });
    }
    cell
}

/// Requests a second, both directions together; `None` where none were measured.
#[must_use]
pub fn iops_of(sample: &Sample) -> Option<f64> {
    let parts = [&sample.read, &sample.write];
    let mut iops = parts.into_iter().flatten().map(|direction| direction.iops);
    let first = iops.next()?;
    Some(first + iops.sum::<f64>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::matrix::{Device, Engine, FileSystem, product};
    use crate::run::Booted;
    use diopter_bench::document::{Guest, ReadWrite};

    fn kernel(series: &str) -> Kernel {
        Kernel {
            series: series.to_owned(),
            release: format!("{series}.0-test"),
            ..Kernel::default()
        }
    }

    fn plan() -> Plan {
        let jobs =
            product(&[FileSystem::Ext4, FileSystem::Raw], &[ReadWrite::RandWrite], &[4096], &[64]);
        let engines = vec![Engine::Libaio, Engine::IoUring];
        Plan { jobs, engines, device: Device::default(), repeats: 2, is_traced: true }
    }

    fn figures(elapsed_ns: u64) -> Result<Sample, String> {
        let guest = Some(Guest::default());
        Ok(Sample { elapsed_ns, guest, ..Sample::default() })
    }

    fn unit(plan: &Plan, kernel: usize, file_system: FileSystem, boots: Vec<Booted>) -> Unit {
        Unit { kernel, file_system, assignments: plan.assignments(file_system), boots }
    }

    fn booted(cells: Vec<Result<Sample, String>>) -> Booted {
        Booted { cells, ..Booted::default() }
    }

    #[test]
    fn each_cell_is_where_its_job_and_its_kernel_with_its_engine_cross() {
        let plan = plan();
        let two = |one, other| vec![booted(vec![figures(one), figures(other)])];
        let units = vec![
            unit(&plan, 0, FileSystem::Ext4, two(1, 2)),
            unit(&plan, 0, FileSystem::Raw, two(3, 4)),
            unit(&plan, 1, FileSystem::Ext4, two(5, 6)),
            unit(&plan, 1, FileSystem::Raw, two(7, 8)),
        ];
        let outcome = Outcome { units, is_interrupted: false };
        let bench = bench(&[kernel("6.1"), kernel("7.2")], &plan, &outcome, &About::default());
        let labels: Vec<&str> = bench.columns.iter().map(|one| one.label.as_str()).collect();
        assert_eq!(labels, ["6.1 libaio", "6.1 io_uring", "7.2 libaio", "7.2 io_uring"]);
        let elapsed: Vec<Vec<u64>> = bench
            .rows
            .iter()
            .map(|row| row.cells.iter().map(|cell| cell.samples[0].elapsed_ns).collect())
            .collect();
        assert_eq!(elapsed, [[1, 2, 5, 6], [3, 4, 7, 8]]);
        let release = |row: usize, column: usize| {
            bench.environments[bench.rows[row].cells[column].environment].kernel_release.clone()
        };
        assert_eq!((release(0, 1), release(1, 3)), ("6.1.0-test".into(), "7.2.0-test".into()));
        assert_eq!(bench.environments[1].file_system, None);
    }

    #[test]
    fn a_boot_that_failed_is_a_row_with_its_reason() {
        let plan = plan();
        let failed = booted(vec![Err("the kernel panicked".to_owned()); 2]);
        let units = vec![unit(&plan, 0, FileSystem::Ext4, vec![failed])];
        let outcome = Outcome { units, is_interrupted: false };
        let bench = bench(&[kernel("6.1")], &plan, &outcome, &About::default());
        assert_eq!(bench.rows[0].cells[0].failure.as_deref(), Some("the kernel panicked"));
    }

    #[test]
    fn figures_that_do_not_repeat_are_marked_on_every_round() {
        let plan = plan();
        let boots =
            vec![booted(vec![figures(1), figures(2)]), booted(vec![figures(1), figures(3)])];
        let units = vec![unit(&plan, 0, FileSystem::Ext4, boots)];
        let outcome = Outcome { units, is_interrupted: false };
        let bench = bench(&[kernel("6.1")], &plan, &outcome, &About::default());
        let [same, other] = &bench.rows[0].cells[..] else { panic!("two cells") };
        let marks = |cell: &Cell| {
            let marks = cell.samples.iter().map(|sample| sample.guest.unwrap().is_repeatable);
            marks.collect::<Vec<_>>()
        };
        assert_eq!(marks(same), [Some(true); 2]);
        assert_eq!(marks(other), [Some(false); 2]);
        assert_eq!(same.warnings, []);
        assert_eq!(other.warnings[0].kind, WarningKind::NotRepeatable);
    }

    #[test]
    fn a_file_is_written_whole_and_what_cannot_be_written_is_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("run.json");
        write_whole(&path, "one").unwrap();
        write_whole(&path, "two").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        let error = write_whole(&dir.path().join("none/run.json"), "").unwrap_err();
        assert!(error.to_string().contains("none/run.json: "), "{error}");
    }

    #[test]
    fn kernels_of_one_series_are_distinguished_by_their_release() {
        let other = Kernel { release: "6.1.9".to_owned(), ..kernel("6.1") };
        let reported = labels(&[kernel("6.1"), other, kernel("7.2")]);
        assert_eq!(reported, ["6.1.0-test", "6.1.9", "7.2"]);
    }
}
