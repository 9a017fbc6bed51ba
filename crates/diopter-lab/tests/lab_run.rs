//! Whole runs over several kernels, with scripts in the emulator's place: one guest does what it
//! should, others panic, stop early or report other figures each time.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use diopter_bench::document::{Bench, ReadWrite, WarningKind};
use diopter_lab::between::Metric;
use diopter_lab::check::{Check, Place, Question, Subject, Verdict, check};
use diopter_lab::matrix::{Device, Engine, FileSystem, Plan, product};
use diopter_lab::results::{About, bench};
use diopter_lab::run::{Boot, BootProgress, Lab, run};
use diopter_lab::{
    BootOptions, Choice, Fleet, Kernel, LabError, Machine, ModuleSet, Programs, Store,
    StoreOptions, Watch, table,
};

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
'"ran":[["aio_complete_rw","'$place'",2000]],"queued":[]}'
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
         directory={}\nend=401000000\nplace=kworker\n{OUTPUT}\ncase $kernel in\n{cases}\nesac\n",
        dir.display()
    );
    let path = dir.join("qemu");
    diopter_testkit::files::script(&path, &script);
    // The emulator has no root, and these scripts write into the directory.
    fs::set_permissions(dir, fs::Permissions::from_mode(0o777)).unwrap();
    Machine::at(&path).unwrap()
}

fn kernel(dir: &Path, series: &str) -> Kernel {
    let image = dir.join(format!("image-{series}"));
    fs::write(&image, series).unwrap();
    let image_digest = blake3::hash(series.as_bytes()).to_hex().to_string();
    Kernel { series: series.to_owned(), image, image_digest, ..Kernel::default() }
}

fn ran(dir: &Path, kernels: &[Kernel], repeats: u32, cases: &str) -> Bench {
    let machine = emulator(dir, cases);
    observed(&machine, kernels, repeats, (&BootOptions::default(), &|_| ()))
}

/// Runs with options, and reports to an observer.
fn observed(
    machine: &Machine,
    kernels: &[Kernel],
    repeats: u32,
    (options, observe): (&BootOptions, &(dyn Fn(BootProgress<'_>) + Sync)),
) -> Bench {
    let dir = kernels[0].image.parent().unwrap();
    let programs: PathBuf = dir.join("programs.cpio");
    fs::write(&programs, b"").unwrap();
    let jobs = product(&[FileSystem::Ext4], &[ReadWrite::RandWrite], &[4096], &[64]);
    let engines = vec![Engine::Libaio];
    let plan = Plan { jobs, engines, device: Device::default(), repeats, is_traced: true };
    let fleet = Fleet::of_this_host().unwrap();
    let lab = Lab { machine, fleet: &fleet, programs: &programs, options };
    let outcome = run(lab, kernels, &plan, observe).unwrap();
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
    assert_eq!(failure(&bench, 3), "no module null_blk in this kernel");
    let reported = table::text(&bench);
    assert!(reported.contains("50000 (K)") && reported.contains("failed"), "{reported}");
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

#[test]
fn what_a_stop_interrupts_and_what_had_not_begun_are_distinguished() {
    let dir = tempfile::tempdir().unwrap();
    let kernels = ["1.0", "2.0", "3.0", "4.0"].map(|series| kernel(dir.path(), series));
    let stop = Arc::new(AtomicBool::new(false));
    let options = BootOptions { stop: Some(Arc::clone(&stop)), ..BootOptions::default() };
    let observe = |progress: BootProgress<'_>| {
        if let BootProgress::Begun(Boot { kernel, .. }) = progress {
            stop.fetch_or(kernel.series == "1.0", Ordering::Relaxed);
        }
    };
    let machine = emulator(dir.path(), "*) exec sleep 1000 ;;");
    let bench = observed(&machine, &kernels, 2, (&options, &observe));
    assert!(bench.is_interrupted);
    let reasons = [0, 2, 3].map(|column| failure(&bench, column));
    assert_eq!(reasons, ["interrupted", "not run", "not run"]);
    let reported = table::text(&bench);
    assert!(reported.contains("interrupted  ") && reported.contains("  not run"), "{reported}");
    assert!(!reported.contains("failed") && !reported.contains(" on ext4: "), "{reported}");
}

#[test]
fn a_guest_that_printed_nothing_is_not_quoted() {
    let dir = tempfile::tempdir().unwrap();
    let bench = ran(dir.path(), &[kernel(dir.path(), "1.0")], 1, "*) exit 0 ;;");
    let reason = failure(&bench, 0);
    assert_eq!(reason, "the guest ended before its script did, and printed nothing");
}

/// Kernels of files, with a cache, in an emulator that knows them by a word in their images.
struct Checks {
    dir: tempfile::TempDir,
    cache: tempfile::TempDir,
    machine: Machine,
}

impl Checks {
    fn new() -> Checks {
        let dir = tempfile::tempdir().unwrap();
        let cases = "*deferred*) well ;;
*inline*) place=hardirq; well ;;
*slow*) end=501000000; well ;;
*panics*) echo 'Kernel panic - not syncing: no root' >$console ;;";
        let machine = emulator(dir.path(), cases);
        Checks { machine, cache: tempfile::tempdir().unwrap(), dir }
    }

    /// An image, of which the emulator looks at the word alone.
    fn image(&self, name: &str, word: &str) -> PathBuf {
        let mut image = vec![b' '; 1 << 10];
        image[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image.extend(word.bytes());
        let path = self.dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, image).unwrap();
        path
    }

    fn check(&self, path: &Path, base: &Path, metric: Metric) -> Result<Check, LabError> {
        let archive = self.dir.path().join("programs.cpio");
        fs::write(&archive, b"").unwrap();
        let programs = Programs { archive, ..Programs::default() };
        let cache = Some(self.cache.path().to_owned());
        let store = StoreOptions { cache, ..StoreOptions::default() };
        let mut store = Store::open(store, Watch::default()).unwrap();
        let (fleet, options) = (Fleet::of_this_host().unwrap(), BootOptions::default());
        let (machine, programs_at) = (&self.machine, &programs.archive);
        let lab = Lab { machine, fleet: &fleet, programs: programs_at, options: &options };
        let jobs = product(&[FileSystem::Ext4], &[ReadWrite::RandWrite], &[4096], &[64]);
        let job = jobs.into_iter().next().unwrap();
        let question = Question { metric, job, engine: Engine::Libaio, tolerance: 0.05 };
        let place = Place { lab, programs: &programs };
        let subject = Subject::Path(path.to_owned());
        let base = Choice::Files(vec![base.to_owned()]);
        check(place, &mut store, (&subject, &base), &question, &|_| ())
    }
}

#[test]
fn a_check_boots_what_it_has_not_seen_and_compares_it_with_its_base() {
    let checks = Checks::new();
    let base = checks.image("vmlinuz-base", "deferred");
    let same = checks.image("vmlinuz-same", "deferred");
    let other = checks.image("vmlinuz-other", "inline");
    let seen = |path: &Path, metric| {
        let check = checks.check(path, &base, metric).unwrap();
        let figures = (check.base.unwrap().figure.unwrap(), check.kernel.figure.unwrap());
        (check.verdict, figures, check.boots)
    };
    let contexts = Metric::Contexts;
    assert_eq!(seen(&same, contexts), (Verdict::Good, (100.0, 100.0), 2));
    assert_eq!(seen(&other, contexts), (Verdict::Bad, (100.0, 0.0), 1));
    assert_eq!(seen(&other, contexts), (Verdict::Bad, (100.0, 0.0), 0));
    // The same name with other content is another kernel; another metric is another plan.
    checks.image("vmlinuz-other", "deferred again");
    assert_eq!(seen(&other, contexts), (Verdict::Good, (100.0, 100.0), 1));
    let slow = checks.image("vmlinuz-slow", "slow");
    assert_eq!(seen(&slow, Metric::Iops), (Verdict::Bad, (50_000.0, 40_000.0), 2));
}

#[test]
fn a_revision_that_is_not_built_or_does_not_boot_has_no_verdict() {
    let checks = Checks::new();
    let base = checks.image("vmlinuz-base", "deferred");
    let panics = checks.image("vmlinuz-panics", "panics");
    let reason = |path: &Path| {
        let check = checks.check(path, &base, Metric::Contexts).unwrap();
        assert_eq!((check.verdict, check.kernel.figure), (Verdict::Unknown, None), "{path:?}");
        (check.reason, check.boots)
    };
    let (why, boots) = reason(&panics);
    assert!(why.contains("the kernel panicked"), "{why}");
    assert_eq!((boots, reason(&panics).1), (2, 1), "a guest that failed is booted again");
    let tree = checks.dir.path().join("linux");
    fs::create_dir_all(tree.join("arch/x86/boot")).unwrap();
    let (why, boots) = reason(&tree);
    assert!(why.contains("has no arch/x86/boot/bzImage") && boots == 0, "{why}");
    assert!(reason(&tree.join("arch/x86/boot/bzImage")).0.contains("make bzImage"));
    checks.image("linux/arch/x86/boot/bzImage", "inline");
    let check = checks.check(&tree, &base, Metric::Contexts).unwrap();
    assert_eq!(check.verdict, Verdict::Bad);
    fs::write(tree.join(".config"), "CONFIG_64BIT=y\n").unwrap();
    assert!(reason(&tree).0.contains("lacks CONFIG_BLK_DEV_INITRD"));
    fs::remove_file(tree.join(".config")).unwrap();
    fs::write(tree.join("modules.builtin"), "kernel/drivers/nvme/host/nvme.ko\n").unwrap();
    assert_eq!(reason(&tree), ("no module ext4 in this kernel".to_owned(), 0));
}

#[test]
fn a_mistake_and_a_base_without_figures_are_errors_of_every_revision() {
    let checks = Checks::new();
    let good = checks.image("vmlinuz-good", "inline");
    let panics = checks.image("vmlinuz-panics", "panics");
    let vmlinux = checks.dir.path().join("vmlinux");
    fs::write(&vmlinux, b"\x7fELF").unwrap();
    let (none, dir) = (checks.dir.path().join("none"), checks.cache.path().to_owned());
    for (path, base, expected) in [
        (&none, &good, "name a bzImage or a build tree"),
        (&dir, &good, "is not a kernel's build tree"),
        (&vmlinux, &good, "does not boot by itself"),
        (&good, &none, "can't be measured"),
        (&good, &panics, "the kernel panicked"),
    ] {
        let message = checks.check(path, base, Metric::Contexts).unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}
