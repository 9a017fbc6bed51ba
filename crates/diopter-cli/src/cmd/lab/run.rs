//! `dio lab run`: runs the same jobs on several kernels.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use diopter_bench::document::Bench;
use diopter_bench::report;
use diopter_lab::matrix::{self, Plan};
use diopter_lab::results::{self, About};
use diopter_lab::run::{self, BootProgress, Lab};
use diopter_lab::{BootOptions, Fleet, Kernel, LabError, Machine, Progress, table};

use super::stop::Stop;
use super::store;
use crate::args::RunArgs;
use crate::log;
use crate::output::{self, DONE, TROUBLE};

/// Runs the command, and returns the exit status.
pub fn run(args: &RunArgs, stop: &Stop) -> Result<u8, LabError> {
    let started = SystemTime::now();
    let plan = plan_of(args);
    let machine = Machine::find().map_err(LabError::Machine)?;
    let fleet = fleet()?;
    let mut store = store::open(&args.store, stop)?;
    let mut kernels: Vec<Kernel> = Vec::new();
    for selection in &args.kernel {
        kernels.extend(store.select(selection)?);
    }
    let programs = store.programs()?;
    let booting = BootOptions { stop: Some(stop.flag()), ..BootOptions::default() };
    let lab =
        Lab { machine: &machine, fleet: &fleet, programs: &programs.archive, options: &booting };

    let repeats = usize::try_from(plan.repeats).unwrap_or(1);
    let boots = kernels.len() * plan.file_systems().len() * repeats;
    let ended = AtomicUsize::new(0);
    let watch = store.watch();
    let observe = |progress: BootProgress<'_>| match progress {
        BootProgress::Begun(boot) => {
            let at = ended.load(Ordering::Relaxed);
            let (series, system) = (&boot.kernel.series, boot.file_system.name());
            watch.report(Progress::Booting(format!(
                "{series} on {system} ({at} of {boots} boots done)"
            )));
        }
        BootProgress::Ended(..) => {
            ended.fetch_add(1, Ordering::Relaxed);
        }
    };
    let outcome = run::run(lab, &kernels, &plan, &observe).map_err(LabError::Machine)?;

    let mut facts = machine.facts(&booting);
    facts.extend(
        programs
            .versions
            .iter()
            .map(|(name, version)| (format!("package_{name}"), version.clone())),
    );
    let since_1970 = started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let about = About {
        made_by: concat!("dio ", env!("CARGO_PKG_VERSION")).to_owned(),
        started_unix_ns: u64::try_from(since_1970.as_nanos()).unwrap_or(u64::MAX),
        facts,
        memory_bytes: booting.memory_bytes,
    };
    let bench = results::bench(&kernels, &plan, &outcome, &about);
    print(args, &bench, stop)
}

/// Returns the processors for guests.
pub fn fleet() -> Result<Fleet, LabError> {
    Fleet::of_this_host().map_err(|error| {
        LabError::Choice(format!("read the processors: {error}; run dio without a cpuset"))
    })
}

fn plan_of(args: &RunArgs) -> Plan {
    let (jobs, device) = match args.job {
        Some(job) => job.jobs(&args.fs),
        None => {
            let jobs = matrix::product(&args.fs, &args.rw, &args.bs, &args.iodepth);
            (jobs, matrix::Device::default())
        }
    };
    Plan { jobs, engines: args.engine.clone(), device, repeats: args.repeat, is_traced: true }
}

fn print(args: &RunArgs, bench: &Bench, stop: &Stop) -> Result<u8, LabError> {
    if let Some(path) = &args.json_out {
        let text = serde_json::to_string_pretty(bench).expect("strings and numbers are JSON");
        results::write_whole(path, &(text + "\n"))?;
    }
    if let Some(path) = &args.html {
        results::write_whole(path, &report::html(bench, None))?;
    }
    let has_figures =
        bench.rows.iter().flat_map(|row| &row.cells).any(|cell| !cell.samples.is_empty());
    let status = match stop.arrived() {
        Some(signal) if bench.is_interrupted => {
            log::fail("lab run", &format!("ended by {}", signal.name()));
            signal.exit_status()
        }
        _ if has_figures => DONE,
        _ => TROUBLE,
    };
    Ok(if args.json {
        output::print_document(bench, status)
    } else {
        output::print(&table::text(bench), status)
    })
}
