//! Kernels out of a repository that the test makes: what apt, dpkg and the cache do with whole and
//! with broken packages.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use diopter_lab::{Choice, LabError, Presence, Store, StoreOptions, Watch};
use diopter_testkit::env::{Capability, skip};

const RELEASE: &str = "6.1.0-9-cloud-amd64";

/// A repository and a cache in one directory.
struct Bench {
    dir: tempfile::TempDir,
}

/// `None` without the tools of a Debian system.
fn bench() -> Option<Bench> {
    for tool in ["apt-get", "dpkg-deb"] {
        if Command::new(tool).arg("--version").output().is_err() {
            skip(Capability::Apt, format!("{tool} is not installed"));
            return None;
        }
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::create_dir(dir.path().join("repository")).unwrap();
    Some(Bench { dir })
}

impl Bench {
    fn repository(&self) -> PathBuf {
        self.dir.path().join("repository")
    }

    fn cache(&self) -> PathBuf {
        self.dir.path().join("cache")
    }

    /// Adds a package of files.
    fn package(&self, name: &str, version: &str, files: &[(&str, &[u8])]) -> PathBuf {
        let root = self.dir.path().join("build").join(name);
        fs::create_dir_all(root.join("DEBIAN")).unwrap();
        let control = format!(
            "Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: x <x@x>\n\
             Description: for a test\n"
        );
        fs::write(root.join("DEBIAN/control"), control).unwrap();
        for (path, content) in files {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }
        let file = self.repository().join(format!("{name}_{version}_amd64.deb"));
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.args(["--build", "--root-owner-group", "-Zgzip"]).arg(root).arg(&file);
        let output = dpkg.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        file
    }

    /// A kernel with a module that needs another.
    fn kernel(&self, release: &str, version: &str) -> PathBuf {
        let modules = format!("lib/modules/{release}");
        let (image, null_blk, configfs, list) = (
            format!("boot/vmlinuz-{release}"),
            format!("{modules}/kernel/drivers/null_blk.ko"),
            format!("{modules}/kernel/fs/configfs.ko"),
            format!("{modules}/modules.builtin"),
        );
        let files: [(&str, &[u8]); 4] = [
            (&image, b"an image"),
            (&null_blk, &module("configfs")),
            (&configfs, &module("")),
            (&list, b"kernel/fs/ext4/ext4.ko\n"),
        ];
        self.package(&format!("linux-image-{release}"), version, &files)
    }

    /// Writes the list of packages that are there now.
    fn index(&self) {
        let mut list = String::new();
        for entry in fs::read_dir(self.repository()).unwrap() {
            let path = entry.unwrap().path();
            let file = path.file_name().unwrap().to_str().unwrap().to_owned();
            let Some(stem) = file.strip_suffix("_amd64.deb") else { continue };
            let (name, version) = stem.split_once('_').unwrap();
            let sum = Command::new("sha256sum").arg(&path).output().unwrap().stdout;
            let sum = String::from_utf8(sum).unwrap();
            let sum = sum.split(' ').next().unwrap();
            let size = fs::metadata(&path).unwrap().len();
            write!(
                list,
                "Package: {name}\nVersion: {version}\nArchitecture: amd64\nMaintainer: x <x@x>\n\
                 Filename: ./{file}\nSize: {size}\nSHA256: {sum}\nDescription: for a test\n\n"
            )
            .unwrap();
        }
        fs::write(self.repository().join("Packages"), list).unwrap();
    }

    fn options(&self) -> StoreOptions {
        StoreOptions {
            cache: Some(self.cache()),
            sources: Some(format!("deb [trusted=yes] file:{} ./\n", self.repository().display())),
            ..StoreOptions::default()
        }
    }

    fn store(&self) -> Store {
        Store::open(self.options(), Watch::default()).unwrap()
    }

    fn left_behind(&self) -> usize {
        fs::read_dir(self.cache().join("tmp")).unwrap().count()
    }
}

/// An ELF file whose only section says what it needs.
fn module(needs: &str) -> Vec<u8> {
    let info = format!("license=GPL\0depends={needs}\0");
    let names = b"\0.modinfo\0.shstrtab\0";
    let (info_at, names_at) = (64, 64 + info.len());
    let sections_at = (names_at + names.len()).next_multiple_of(8);
    let mut file = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let put16 = |file: &mut Vec<u8>, number: u16| file.extend(number.to_le_bytes());
    put16(&mut file, 1);
    put16(&mut file, 62);
    file.extend(1_u32.to_le_bytes());
    file.extend([0; 16]);
    file.extend(u64::try_from(sections_at).unwrap().to_le_bytes());
    file.extend([0; 4]);
    for number in [64, 0, 0, 64, 3, 2] {
        put16(&mut file, number);
    }
    file.extend(info.as_bytes());
    file.extend(names);
    file.resize(sections_at + 64, 0);
    for (name, kind, at, size) in
        [(1_u32, 1_u32, info_at, info.len()), (10, 3, names_at, names.len())]
    {
        file.extend(name.to_le_bytes());
        file.extend(kind.to_le_bytes());
        for number in [0, 0, at, size, 0, 1, 0] {
            file.extend(u64::try_from(number).unwrap().to_le_bytes());
        }
        file.resize(file.len().next_multiple_of(8), 0);
    }
    file
}

#[test]
fn a_kernel_is_fetched_once_and_then_comes_from_the_cache() {
    let Some(bench) = bench() else { return };
    let package = bench.kernel(RELEASE, "6.1.90-1");
    bench.kernel("6.1.0-8-cloud-amd64", "6.1.80-1");
    bench.index();
    let kernel = bench.store().kernel("6.1").unwrap();
    assert_eq!((kernel.release.as_str(), kernel.version.as_str()), (RELEASE, "6.1.90-1"));
    assert_eq!(fs::read(&kernel.image).unwrap(), b"an image");
    let order = kernel.modules.load_order(&["null_blk", "ext4"]).unwrap();
    let names: Vec<&str> = order.iter().map(|module| module.name.as_str()).collect();
    assert_eq!(names, ["configfs", "null_blk"]);
    assert_eq!(kernel.modules.presence("xfs"), Presence::Absent);
    fs::remove_file(package).unwrap();
    assert_eq!(bench.store().kernel("6.1").unwrap(), kernel);
    assert_eq!(bench.left_behind(), 0);
}

#[test]
fn without_its_suites_the_cache_still_serves() {
    let Some(bench) = bench() else { return };
    bench.kernel(RELEASE, "6.1.90-1");
    bench.index();
    bench.store().kernel("6.1").unwrap();
    let options = StoreOptions {
        sources: Some("deb [trusted=yes] file:/nonexistent ./\n".to_owned()),
        ..bench.options()
    };
    let mut store = Store::open(options, Watch::default()).unwrap();
    assert_eq!(store.kernel("6.1").unwrap().release, RELEASE);
    assert!(store.complaints().contains("/nonexistent"), "{}", store.complaints());
}

#[test]
fn without_suites_and_cache_the_error_says_what_could_not_be_asked() {
    let Some(bench) = bench() else { return };
    let message = bench.store().kernel("6.1").unwrap_err().to_string();
    assert!(message.starts_with("no kernel 6.1 can be had ("), "{message}");
    assert!(message.contains("repository") && message.contains("look at the network"), "{message}");
}

#[test]
fn a_series_that_no_suite_has_is_reported_with_the_nearest() {
    let Some(bench) = bench() else { return };
    bench.kernel(RELEASE, "6.1.90-1");
    bench.kernel("6.12.5+deb13-cloud-amd64", "6.12.5-1");
    bench.index();
    let message = bench.store().kernel("6.6").unwrap_err().to_string();
    assert_eq!(message, "no kernel 6.6 can be had; there are 6.1, 6.12");
}

#[test]
fn a_package_whose_layout_changed_is_reported_and_leaves_nothing() {
    let Some(bench) = bench() else { return };
    let image = format!("usr/lib/{RELEASE}/kernel.img");
    bench.package(&format!("linux-image-{RELEASE}"), "6.1.90-1", &[(&image, b"an image")]);
    let image = "boot/vmlinuz-6.12.5+deb13-cloud-amd64";
    let name = "linux-image-6.12.5+deb13-cloud-amd64";
    bench.package(name, "6.12.5-1", &[(image, b"an image")]);
    bench.index();
    for (series, lacks) in [("6.1", "has no vmlinuz"), ("6.12", "has no modules")] {
        let message = bench.store().kernel(series).unwrap_err().to_string();
        assert!(message.contains(lacks) && message.contains("IMAGE:MODULES"), "{message}");
    }
    assert_eq!(bench.left_behind(), 0);
    assert!(bench.store().cached().unwrap().is_empty());
}

#[test]
fn a_package_that_is_not_what_its_list_says_is_refused() {
    let Some(bench) = bench() else { return };
    let package = bench.kernel(RELEASE, "6.1.90-1");
    bench.index();
    let mut content = fs::read(&package).unwrap();
    *content.last_mut().unwrap() ^= 1;
    fs::write(&package, content).unwrap();
    let error = bench.store().kernel("6.1").unwrap_err();
    assert!(matches!(error, LabError::Tool { .. }), "{error}");
    assert_eq!(bench.left_behind(), 0);
}

#[test]
fn what_was_used_least_recently_goes_and_what_is_in_use_stays() {
    let Some(bench) = bench() else { return };
    bench.kernel(RELEASE, "6.1.90-1");
    bench.kernel("6.12.5+deb13-cloud-amd64", "6.12.5-1");
    bench.index();
    drop(bench.store().kernel("6.1").unwrap());
    let options = StoreOptions { limit_bytes: 1, ..bench.options() };
    let mut other = bench.store();
    let used = other.kernel("6.12").unwrap();
    let mut store = Store::open(options, Watch::default()).unwrap();
    store.kernel("6.12").unwrap();
    let cached = store.cached().unwrap();
    assert_eq!(cached, [used], "6.1 is gone, and 6.12 is in use by two");
}

#[test]
fn two_runs_at_once_get_the_same_whole_kernel() {
    let Some(bench) = bench() else { return };
    bench.kernel(RELEASE, "6.1.90-1");
    bench.index();
    let kernels: Vec<_> = std::thread::scope(|scope| {
        let run = |_| scope.spawn(|| bench.store().kernel("6.1").unwrap());
        let runs: Vec<_> = (0..3).map(run).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert!(kernels.iter().all(|kernel| *kernel == kernels[0]));
    assert_eq!(fs::read(&kernels[0].image).unwrap(), b"an image");
    assert_eq!(bench.left_behind(), 0);
}

#[test]
fn a_kernel_of_files_is_a_package_or_an_image_with_its_modules() {
    let Some(bench) = bench() else { return };
    let package = bench.kernel(RELEASE, "6.1.90-1");
    let mut store = bench.store();
    let kernel = store.choose(&Choice::Files(vec![package])).unwrap();
    assert_eq!((kernel.series.as_str(), kernel.release.as_str()), ("6.1", RELEASE));
    assert_eq!(kernel.modules.modules.len(), 2);
    let root = bench.dir.path().join(format!("build/linux-image-{RELEASE}"));
    let image = root.join(format!("boot/vmlinuz-{RELEASE}"));
    let files = Choice::Files(vec![image.clone(), root.join("lib/modules")]);
    let refused = store.choose(&files).unwrap_err().to_string();
    assert!(refused.contains(&format!("{} is not a bzImage", image.display())), "{refused}");
    let mut content = vec![0; 1 << 10];
    content[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    content[0x202..0x206].copy_from_slice(b"HdrS");
    fs::write(&image, content).unwrap();
    let own = store.choose(&files).unwrap();
    assert_eq!(own.modules.modules.keys().collect::<Vec<_>>(), ["configfs", "null_blk"]);
    assert_eq!(own.series, "6.1");
    // A build that goes on changes neither the image that boots nor its digest.
    let before = fs::read(&image).unwrap();
    fs::write(&image, b"of the next build").unwrap();
    assert_eq!(fs::read(&own.image).unwrap(), before);
    assert_eq!(own.image_digest, blake3::hash(&before).to_hex().as_str());
    let missing = store.choose(&Choice::Files(vec![root.join("lib/modules")])).unwrap_err();
    assert!(missing.to_string().contains("has no vmlinuz"), "{missing}");
    let absent = store.choose(&Choice::Files(vec![root.join("x")])).unwrap_err();
    assert!(absent.to_string().contains("check the name"), "{absent}");
    drop(store);
    assert_eq!(bench.left_behind(), 0);
}

#[test]
fn what_a_killed_run_left_is_swept_and_what_is_in_use_is_not() {
    let Some(bench) = bench() else { return };
    let package = bench.kernel(RELEASE, "6.1.90-1");
    let mut store = bench.store();
    let own = store.choose(&Choice::Files(vec![package])).unwrap();
    fs::create_dir(bench.cache().join("tmp/left")).unwrap();
    let other = bench.store();
    assert_eq!(bench.left_behind(), 1);
    assert!(own.image.exists());
    drop((other, store));
    assert_eq!(bench.left_behind(), 0);
}

#[test]
fn a_run_that_is_to_stop_fetches_nothing() {
    let Some(bench) = bench() else { return };
    let stop = Arc::new(AtomicBool::new(false));
    let mut store = Store::open(bench.options(), Watch::new(|_| (), Arc::clone(&stop))).unwrap();
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    assert!(matches!(store.kernel("6.1"), Err(LabError::Stopped)));
}

/// A file system of so few bytes that a kernel does not fit, unmounted in every case.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn mount(path: &Path) -> Option<SmallDisk> {
        fs::create_dir(path).unwrap();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=1m,mode=755", "diopter-lab-test"]).arg(path);
        mount.output().is_ok_and(|output| output.status.success()).then(|| SmallDisk(path.into()))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        Command::new("umount").arg(&self.0).status().ok();
    }
}

#[test]
fn a_full_disk_is_reported_with_what_to_do() {
    let Some(bench) = bench() else { return };
    let image = format!("boot/vmlinuz-{RELEASE}");
    // Incompressible, so that neither the package nor the kernel fits.
    let mut content = vec![0; 4 << 20];
    diopter_core::prng::Prng::new(1).fill(&mut content);
    bench.package(&format!("linux-image-{RELEASE}"), "6.1.90-1", &[(&image, &content)]);
    bench.index();
    let Some(disk) = SmallDisk::mount(&bench.dir.path().join("small")) else {
        return skip(Capability::Mount, "mounting a tmpfs failed");
    };
    let options = StoreOptions { cache: Some(disk.0.clone()), ..bench.options() };
    let error = Store::open(options, Watch::default()).and_then(|mut store| store.kernel("6.1"));
    let message = error.unwrap_err().to_string();
    assert!(message.contains("--cache-limit"), "{message}");
    assert_eq!(fs::read_dir(disk.0.join("tmp")).unwrap().count(), 0);
}

/// The message of a cache that must be refused.
fn refusal(bench: &Bench) -> String {
    Store::open(bench.options(), Watch::default()).unwrap_err().to_string()
}

#[test]
fn a_cache_that_others_may_write_or_own_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let Some(bench) = bench() else { return };
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    drop(bench.store());
    mode(&bench.cache().join("kernels"), 0o777);
    let message = refusal(&bench);
    assert!(message.contains("kernels") && message.contains("--cache"), "{message}");
    mode(&bench.cache().join("kernels"), 0o755);
    mode(&bench.cache(), 0o1777);
    assert!(refusal(&bench).contains("other users may write"), "{}", refusal(&bench));
    mode(&bench.cache(), 0o755);
    drop(bench.store());
    if !is_root() {
        return skip(Capability::Root, "only root gives directories to other users");
    }
    std::os::unix::fs::chown(bench.cache(), Some(65_534), None).unwrap();
    assert!(refusal(&bench).contains("it belongs to user 65534"), "{}", refusal(&bench));
    std::os::unix::fs::chown(bench.cache(), Some(0), None).unwrap();
    let above = bench.dir.path();
    mode(above, 0o777);
    let message = refusal(&bench);
    let expected = format!("{}: other users may write to it (mode 0777)", above.display());
    assert!(message.contains(&expected), "{message}");
    mode(above, 0o700);
    drop(bench.store());
}

fn is_root() -> bool {
    Command::new("id").arg("-u").output().is_ok_and(|output| output.stdout == b"0\n")
}

#[test]
fn settings_of_apt_in_the_cache_are_not_read() {
    let Some(bench) = bench() else { return };
    bench.kernel(RELEASE, "6.1.90-1");
    bench.index();
    drop(bench.store());
    let ran = bench.dir.path().join("ran");
    let hook = format!("APT::Update::Pre-Invoke {{ \"touch {}\"; }};\n", ran.display());
    for dir in ["apt/etc/apt.conf.d", "apt/apt.conf.d"] {
        let dir = bench.cache().join(dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join("99hook"), &hook).unwrap();
    }
    fs::write(bench.cache().join("apt/etc/apt.conf"), &hook).unwrap();
    bench.store().kernel("6.1").unwrap();
    assert!(!ran.exists(), "a hook of the cache ran");
}

#[test]
fn a_cached_module_that_was_changed_is_not_used() {
    let Some(bench) = bench() else { return };
    bench.kernel(RELEASE, "6.1.90-1");
    bench.index();
    let kernel = bench.store().kernel("6.1").unwrap();
    assert_eq!(kernel.image_digest.len(), 64);
    let module = &kernel.modules.modules["null_blk"];
    let mut initramfs = diopter_lab::Initramfs::default();
    initramfs.add_modules(&kernel, &["null_blk"]).unwrap();
    fs::write(&module.path, b"another module").unwrap();
    let message = initramfs.add_modules(&kernel, &["null_blk"]).unwrap_err().to_string();
    assert!(message.contains("not what was fetched"), "{message}");
}
