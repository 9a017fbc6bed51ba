//! A real kernel of a real suite runs a real job, and the document says what is known of it. Needs
//! QEMU, and the suites or a filled cache.

use std::sync::Arc;

use diopter_bench::document::ReadWrite;
use diopter_lab::matrix::{Device, Engine, FileSystem, Plan, product};
use diopter_lab::relative::{Place, glances};
use diopter_lab::results::{About, bench};
use diopter_lab::run::{Lab, run};
use diopter_lab::{
    BootOptions, Fleet, Kernel, LabError, Machine, Programs, Progress, Store, StoreOptions, Watch,
};
use diopter_testkit::env::{Capability, skip};

/// Completions of overwrites are deferred on this one; any kernel with the older iomap would do.
const SERIES: &str = "6.1";

fn packages() -> Result<(Kernel, Programs, Store), LabError> {
    let report = |progress| {
        if let Progress::Note(_) | Progress::Unpacking(_) = progress {
            println!("{progress:?}");
        }
    };
    let mut store = Store::open(StoreOptions::default(), Watch::new(report, Arc::default()))?;
    Ok((store.kernel(SERIES)?, store.programs()?, store))
}

#[test]
fn an_overwrite_on_ext4_is_one_bio_whose_completion_6_1_puts_off() {
    let machine = match Machine::find() {
        Ok(machine) => machine,
        Err(error) => return skip(Capability::Qemu, error),
    };
    let (kernel, programs, _store) = match packages() {
        Ok(found) => found,
        Err(error) => return skip(Capability::KernelPackages, error),
    };
    let jobs = product(&[FileSystem::Ext4], &[ReadWrite::RandWrite], &[4096], &[64]);
    let engines = vec![Engine::Libaio];
    let plan = Plan { jobs, engines, device: Device::default(), repeats: 1, is_traced: true };
    let options = BootOptions::default();
    let fleet = Fleet::of_this_host().unwrap();
    let lab =
        Lab { machine: &machine, fleet: &fleet, programs: &programs.archive, options: &options };
    let outcome = run(lab, std::slice::from_ref(&kernel), &plan, &|_| ()).unwrap();
    let bench = bench(&[kernel], &plan, &outcome, &About::default());

    let cell = &bench.rows[0].cells[0];
    assert_eq!(cell.failure, None);
    let glance = &glances(&bench)[0][0];
    assert_eq!(glance.place, Some((Place::Kworker, 1.0)));
    assert_eq!(glance.deferred_by.as_deref(), Some("iomap_dio_bio_end_io"));
    assert_eq!(glance.bios, Some(1.0));
    // A worker and back for each request; a cost that another build of the kernel changes little.
    let switches = glance.switches.unwrap();
    assert!((1.9..2.1).contains(&switches), "{switches}");
    let instructions = glance.instructions.unwrap();
    assert!((10_000.0..40_000.0).contains(&instructions), "{instructions}");
    let release = &bench.environments[0].kernel_release;
    assert!(release.starts_with("6.1."), "{release}");
}
