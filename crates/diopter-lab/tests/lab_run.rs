//! Whole runs over several kernels, with scripts in the emulator's place: one guest does what it
//! should, others panic, stop early or report other figures each time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use diopter_bench::document::{Bench, ReadWrite, WarningKind};
use diopter_lab::matrix::{Device, Engine, FileSystem, Plan, product};
use diopter_lab::results::{About, bench};
use diopter_lab::run::{Lab, run};
use diopter_lab::{BootOptions, Fleet, Kernel, Machine, ModuleSet, table};

/// The output of a guest for its only cell: `$end` is the clock after the measured pass.
const OUTPUT: &str = r#"
say() { echo "$1" >>$results; }
pass() {
  say '{"kind":"run","cell":0,"pass":"'$1'","ios":'$2',"now_ns":[0,'$3'],"idle_ns":[0,0],'\
'"switches":[0,'$2'],"fio":{"jobs":[{"write":{"total_ios":'$2',"io_bytes":0}}]}}'
}
well() {
  pass base 64 1000000
  pass run 20064 $end
  say '{"kind":"trace","cell":0,"ios":2000,"bios":2000,"bio_bytes":[4096],'\
'"ran":[["aio_complete_rw","kworker",2000]],"queued":[]}'
  echo 'lab: end 0' >>$console
}
"#;

/// An emulator whose kernels are their series.
fn emulator(dir: &Path, cases: &str) -> Machine {
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *--version) echo 'QEMU emulator version 7.2'; exit;; esac\n\
         for word; do case $word in\n\
         file:*) [ \"$console\" ] && results=${{word#file:}} || console=${{word#file:}};;\n\
         esac; [ \"$last\" = -kernel ] && kernel=$(cat $word); last=$word; done\n\
         directory={}\nend=401000000\n{OUTPUT}\ncase $kernel in\n{cases}\nesac\n",
        dir.display()
    );
    let path = dir.join("qemu");
    fs::write(&path, script).unwrap();
    // The emulator has no root, and these scripts write into the directory.
    for path in [path.as_path(), dir] {
        fs::set_permissions(path, fs::Permissions::from_mode(0o777)).unwrap();
    }
    Machine::at(&path).unwrap()
}

fn kernel(dir: &Path, series: &str) -> Kernel {
    let image = dir.join(format!("image-{series}"));
    fs::write(&image, series).unwrap();
    Kernel { series: series.to_owned(), image, ..Kernel::default() }
}

fn ran(dir: &Path, kernels: &[Kernel], repeats: u32, cases: &str) -> Bench {
    let programs: PathBuf = dir.join("programs.cpio");
    fs::write(&programs, b"").unwrap();
    let jobs = product(&[FileSystem::Ext4], &[ReadWrite::RandWrite], &[4096], &[64]);
    let engines = vec![Engine::Libaio];
    let plan = Plan { jobs, engines, device: Device::default(), repeats, is_traced: true };
    let (machine, options) = (emulator(dir, cases), BootOptions::default());
    let fleet = Fleet::of_this_host().unwrap();
    let lab = Lab { machine: &machine, fleet: &fleet, programs: &programs, options: &options };
    let outcome = run(lab, kernels, &plan, &|_| ()).unwrap();
    bench(kernels, &plan, &outcome, &About::default())
}

fn failure(bench: &Bench, column: usize) -> &str {
    bench.rows[0].cells[column].failure.as_deref().unwrap_or_default()
}

#[test]
fn a_kernel_that_fails_is_reported_with_its_reason_and_the_others_are_measured() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut lacking = kernel(dir, "4.0");
    lacking.modules = ModuleSet { built_in: ["ext4".to_owned()].into(), ..ModuleSet::default() };
    let kernels = ["1.0", "2.0", "3.0"].map(|series| kernel(dir, series));
    let kernels = [&kernels[..], &[lacking]].concat();
    let cases = r#"
1.0) well ;;
2.0) echo 'Kernel panic - not syncing: no root' >$console ;;
3.0) say '{"kind":"failure","what":"mount of ext4: no such device"}'
  echo 'lab: end 1' >$console ;;
4.0) well ;;"#;
    let bench = ran(dir, &kernels, 1, cases);
    let write = bench.rows[0].cells[0].samples[0].write.as_ref().unwrap();
    assert!((write.iops - 50_000.0).abs() < 1e-6);
    assert!(failure(&bench, 1).ends_with("Kernel panic - not syncing: no root"));
    assert_eq!(failure(&bench, 2), "mount of ext4: no such device");
    assert_eq!(failure(&bench, 3), "no module null_blk in this kernel's packages");
    let reported = table::text(&bench);
    assert!(reported.contains("50000 K") && reported.contains("failed"), "{reported}");
}

#[test]
fn two_boots_with_the_same_digits_are_two_rounds_without_doubt() {
    let dir = tempfile::tempdir().unwrap();
    let kernels = [kernel(dir.path(), "1.0")];
    let bench = ran(dir.path(), &kernels, 2, "*) well ;;");
    let cell = &bench.rows[0].cells[0];
    let marks = cell.samples.iter().map(|sample| sample.guest.unwrap().is_repeatable);
    assert_eq!(marks.collect::<Vec<_>>(), [Some(true); 2]);
    assert_eq!(cell.warnings, []);
}

#[test]
fn boots_that_differ_are_done_once_more_and_marked() {
    let dir = tempfile::tempdir().unwrap();
    let kernels = [kernel(dir.path(), "1.0")];
    // The first to make its directory takes a nanosecond more.
    let cases = "*) mkdir $directory/first 2>/dev/null && end=401000001; well ;;";
    let bench = ran(dir.path(), &kernels, 2, cases);
    let cell = &bench.rows[0].cells[0];
    let marks = cell.samples.iter().map(|sample| sample.guest.unwrap().is_repeatable);
    assert_eq!(marks.collect::<Vec<_>>(), [Some(false); 3]);
    assert_eq!(cell.warnings[0].kind, WarningKind::NotRepeatable);
    let evidence = &cell.warnings[0].evidence;
    assert_eq!(evidence.matches("400000000").count(), 2, "{evidence}");
    assert_eq!(evidence.matches("400000001").count(), 1, "{evidence}");
}
