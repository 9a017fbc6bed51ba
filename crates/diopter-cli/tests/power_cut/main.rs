//! Power cuts. A virtual machine copies plain and striped files with `dio cp` (also killed and
//! resumed) and makes durable writes, on a disk whose writes and flushes are logged. The log is
//! replayed to random points, as a prefix, with unflushed writes dropped, and torn at 4 KiB. Each
//! disk is mounted: every target is the old or the complete new file, and all that was acknowledged
//! is there.
//!
//! `DIOPTER_SOAK` judges more disks of each log. Needs root, QEMU, and a kernel package or a filled
//! cache; what is missing is skipped by name.

mod boot;
#[path = "../cp_support/mod.rs"]
mod cp_support;
#[path = "../guest_support/mod.rs"]
mod guest_support;
mod judge;
mod states;
mod steps;
mod workload;
mod write_log;

use diopter_testkit::machine;

use boot::{Format, record};
use cp_support::{Capability, Numbers, dir, print_line, seed, skip};
use guest_support::Host;
use judge::{Moment, judge};
use states::{CUTS, Disk};
use steps::Kinds;
use write_log::WriteLog;

/// The kernel of the guest, and how much it does in one boot.
const SERIES: &str = "6.1";
const STEPS: usize = 26;
/// Disks that are made of each log.
const STATES: usize = 15;
const STATES_OF_A_SOAK: usize = 300;

#[test]
fn a_power_cut_leaves_the_old_or_the_new_file_and_all_that_was_acknowledged() {
    if let Some(why) = machine::loop_missing() {
        return skip(Capability::Loop, why);
    }
    let host = match Host::find(SERIES) {
        Ok(host) => host,
        Err((capability, why)) => return skip(capability, why),
    };
    let is_soak = std::env::var_os("DIOPTER_SOAK").is_some();
    let states = if is_soak { STATES_OF_A_SOAK } else { STATES };
    let mut seeds = Numbers::new(seed());
    // A soak has as many disks of trees alone.
    let kinds: &[Kinds] = if is_soak { &[Kinds::All, Kinds::Trees] } else { &[Kinds::All] };
    for kinds in kinds {
        for format in [Format::Ext4, Format::Xfs] {
            campaign(&host, format, (*kinds, seeds.next() >> 1), states);
            print_line(&format!("TRIED power-cut: {states} states"));
        }
    }
}

/// Records one boot and judges `count` disks of it.
fn campaign(host: &Host, format: Format, (kinds, seed): (Kinds, u64), count: usize) {
    let directory = dir();
    let recording = record(host, format, (kinds, seed, STEPS), directory.path()).unwrap();
    let log = WriteLog::open(&recording.log).unwrap();
    let steps = steps::steps(kinds, seed, STEPS);
    // After each entry, how many steps are done; `None` before the first acknowledgement.
    let mut done = vec![None];
    for entry in &log.entries {
        let acknowledged = workload::acknowledged(entry.offset, &log.data(entry));
        done.push(acknowledged.or(*done.last().unwrap()));
    }
    let last = u64::try_from(STEPS).unwrap();
    assert_eq!(done.last().unwrap(), &Some(last), "every step of the guest is acknowledged");
    let first = done.iter().position(Option::is_some).unwrap();
    let mut numbers = Numbers::new(seed);
    let range = u64::try_from(done.len() - first).unwrap();
    let mut point = || first + usize::try_from(numbers.next() % range).unwrap();
    let mut points: Vec<usize> = (0..count).map(|_| point()).collect();
    points.sort_unstable();
    let mut disk = Disk::new(&log, &recording.base, &directory.path().join("durable"));
    let at = directory.path().join("state");
    for (index, point) in points.into_iter().enumerate() {
        let cut = CUTS[index % CUTS.len()];
        disk.cut(point, cut, &mut numbers, &at);
        let finished = usize::try_from(done[point].unwrap()).unwrap();
        let moment = Moment { done: &steps[..finished], under_way: steps.get(finished) };
        if let Err(why) = judge(format, &at, &moment) {
            let under_way = moment.under_way;
            panic!(
                "{} {kinds:?} seed {seed}, {cut:?} at entry {point} of {}, {finished} steps done, \
                 {under_way:?} under way: {why}",
                format.name(),
                log.entries.len()
            );
        }
    }
}

/// The guest's side of the test above; nothing to do on the host.
#[test]
fn guest() {
    if let Ok(asked) = std::env::var(workload::VARIABLE) {
        workload::run(&asked);
    }
}
