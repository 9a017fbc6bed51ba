//! A kernel that the user built: its image, and in a build tree its modules and configuration.
//! Names and sizes in it are the user's; reads are bounded, and nothing is run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

use crate::error::LabError;
use crate::kernel::canonical;
use crate::limited;

/// The image in a build tree.
const IMAGE: &str = "arch/x86/boot/bzImage";
const RELEASE: &str = "include/config/kernel.release";
const CONFIG: &str = ".config";
const ORDER: &str = "modules.order";
const BUILT_IN: &str = "modules.builtin";
/// No list of a build is larger.
const LIST_MAX: u64 = 16 << 20;
const RELEASE_MAX: u64 = 4 << 10;
/// Files and directories that are looked at in a tree without a list of its modules.
const ENTRIES_MAX: usize = 1 << 20;
/// Drivers and file systems of the lab, with their options.
const DRIVERS: [(&str, &str); 8] = [
    ("null_blk", "CONFIG_BLK_DEV_NULL_BLK"),
    ("nvme", "CONFIG_BLK_DEV_NVME"),
    ("configfs", "CONFIG_CONFIGFS_FS"),
    ("ext4", "CONFIG_EXT4_FS"),
    ("xfs", "CONFIG_XFS_FS"),
    ("btrfs", "CONFIG_BTRFS_FS"),
    ("f2fs", "CONFIG_F2FS_FS"),
    ("vfat", "CONFIG_VFAT_FS"),
];
/// Options without which no guest starts, reports or is measured.
const NEEDED: [&str; 9] = [
    "CONFIG_64BIT",
    "CONFIG_BLK_DEV_INITRD",
    "CONFIG_BINFMT_ELF",
    "CONFIG_BINFMT_SCRIPT",
    "CONFIG_DEVTMPFS",
    "CONFIG_PROC_FS",
    "CONFIG_SYSFS",
    "CONFIG_AIO",
    "CONFIG_SERIAL_8250_CONSOLE",
];

/// A built kernel, as its tree describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tree {
    pub image: PathBuf,
    /// The output of `uname -r` in it.
    pub release: Option<String>,
    /// The files of its modules, by name.
    pub modules: BTreeMap<String, PathBuf>,
    pub built_in: BTreeSet<String>,
}

/// Returns the build tree of a path: the directory itself, or that of an image in its place.
#[must_use]
pub fn of_path(path: &Path) -> Option<PathBuf> {
    if path.is_dir() {
        let is_tree = path.join("arch/x86").is_dir() || path.join("Makefile").is_file();
        return is_tree.then(|| path.to_owned());
    }
    let path = path.canonicalize().ok()?;
    let root = path.ancestors().nth(IMAGE.split('/').count())?;
    (path.ends_with(IMAGE) && root.join(CONFIG).is_file()).then(|| root.to_owned())
}

/// Reads a build tree.
///
/// # Errors
/// [`LabError::Unbuilt`] if it has no image or lacks what a guest needs; a file that can't be read.
pub fn read(root: &Path) -> Result<Tree, LabError> {
    let image = root.join(IMAGE);
    if !image.exists() {
        return Err(LabError::Unbuilt(format!(
            "{} has no {IMAGE}; make bzImage builds it",
            root.display()
        )));
    }
    check_image(&image)?;
    let mut tree = Tree { image, release: release(root)?, ..Tree::default() };
    let named = list(&root.join(BUILT_IN))?.unwrap_or_default();
    tree.built_in.extend(named.lines().filter_map(module_name));
    tree.modules = match list(&root.join(ORDER))? {
        Some(order) => ordered(root, &order),
        None => found(root)?,
    };
    if let Some(config) = list(&root.join(CONFIG))? {
        let enabled: BTreeMap<&str, &str> =
            config.lines().filter_map(|line| line.trim().split_once('=')).collect();
        check_config(root, &enabled)?;
        for (name, _) in DRIVERS.iter().filter(|(_, option)| enabled.get(option) == Some(&"y")) {
            tree.built_in.insert((*name).to_owned());
        }
        check_modules(&tree, &enabled)?;
    }
    Ok(tree)
}

/// Checks that a file starts as a kernel's image for x86 does (Documentation/arch/x86/boot.rst).
///
/// # Errors
/// [`LabError::Unbuilt`] for another file; [`LabError::Choice`] for a vmlinux, which no build of
/// another revision turns into an image.
pub fn check_image(path: &Path) -> Result<(), LabError> {
    const HEAD: u64 = 1 << 10;
    const BOOT_FLAG: (std::ops::Range<usize>, &[u8]) = (0x1fe..0x200, &[0x55, 0xaa]);
    const MAGIC: (std::ops::Range<usize>, &[u8]) = (0x202..0x206, b"HdrS");
    let mut options = File::options();
    // The name may be a pipe's, whose opening would wait for a writer.
    options.read(true).custom_flags(OFlags::NONBLOCK.bits().cast_signed());
    let file = options.open(path).map_err(LabError::file("open", path))?;
    let shown = path.display();
    let is_file = file.metadata().map_err(LabError::file("open", path))?.is_file();
    if !is_file {
        return Err(LabError::Choice(format!("{shown} is not a file; name a bzImage or a tree")));
    }
    let mut head = Vec::new();
    file.take(HEAD).read_to_end(&mut head).map_err(LabError::file("read", path))?;
    if head.starts_with(b"\x7fELF") {
        return Err(LabError::Choice(format!(
            "{shown} is a vmlinux, which does not boot by itself; name {IMAGE} of the same build"
        )));
    }
    let has = |(range, bytes): (std::ops::Range<usize>, &[u8])| head.get(range) == Some(bytes);
    if has(BOOT_FLAG) && has(MAGIC) {
        return Ok(());
    }
    Err(LabError::Unbuilt(format!("{shown} is not a bzImage for x86; build it again")))
}

fn release(root: &Path) -> Result<Option<String>, LabError> {
    let path = root.join(RELEASE);
    let text = text(&path, RELEASE_MAX)?;
    let release = text.as_deref().map(str::trim).filter(|release| !release.is_empty());
    Ok(release.map(str::to_owned))
}

fn check_config(root: &Path, enabled: &BTreeMap<&str, &str>) -> Result<(), LabError> {
    let missing: Vec<&str> =
        NEEDED.into_iter().filter(|option| enabled.get(option) != Some(&"y")).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let (root, missing) = (root.display(), missing.join(", "));
    Err(LabError::Unbuilt(format!("{root}/{CONFIG} lacks {missing}; enable them and build again")))
}

/// Checks that the drivers which are modules were built.
fn check_modules(tree: &Tree, enabled: &BTreeMap<&str, &str>) -> Result<(), LabError> {
    let is_missing = |(name, option): &&(&str, &str)| {
        enabled.get(option) == Some(&"m") && !tree.modules.contains_key(*name)
    };
    match DRIVERS.iter().find(is_missing) {
        None => Ok(()),
        Some((name, option)) => Err(LabError::Unbuilt(format!(
            "the tree has {option}=m and no {name}.ko; make modules builds it"
        ))),
    }
}

/// The modules of a list: `fs/ext4/ext4.ko`, in older trees `kernel/fs/ext4/ext4.ko`, in newer ones
/// `fs/ext4/ext4.o`. Those outside the tree and those that are not built are left out.
fn ordered(root: &Path, order: &str) -> BTreeMap<String, PathBuf> {
    let mut modules = BTreeMap::new();
    for line in order.lines() {
        let Some(name) = module_name(line) else { continue };
        let file = Path::new(line.strip_prefix("kernel/").unwrap_or(line)).with_extension("ko");
        let is_inside =
            file.components().all(|part| matches!(part, std::path::Component::Normal(_)));
        let file = root.join(file);
        if is_inside && file.is_file() {
            modules.insert(name, file);
        }
    }
    modules
}

/// The modules anywhere in a tree.
fn found(root: &Path) -> Result<BTreeMap<String, PathBuf>, LabError> {
    let mut modules = BTreeMap::new();
    let mut dirs = vec![root.to_owned()];
    let mut seen = 0_usize;
    // Links are not followed, and the entries are counted.
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).map_err(LabError::file("open", &dir))? {
            let entry = entry.map_err(LabError::file("read", &dir))?;
            seen += 1;
            if seen > ENTRIES_MAX {
                return Err(LabError::Choice(format!(
                    "{} has more than {ENTRIES_MAX} files and no {ORDER}; name a build tree",
                    root.display()
                )));
            }
            let path = entry.path();
            let kind = entry.file_type().map_err(LabError::file("look at", &path))?;
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() && path.extension().is_some_and(|ending| ending == "ko") {
                let name = path.file_name().and_then(|name| module_name(name.to_str()?));
                modules.extend(name.map(|name| (name, path)));
            }
        }
    }
    Ok(modules)
}

/// `dm_delay` of `drivers/md/dm-delay.ko` and of `drivers/md/dm-delay.o`.
fn module_name(line: &str) -> Option<String> {
    let file = line.trim().rsplit('/').next()?;
    let name = file.strip_suffix(".ko").or_else(|| file.strip_suffix(".o"))?;
    (!name.is_empty()).then(|| canonical(name))
}

fn list(path: &Path) -> Result<Option<String>, LabError> {
    text(path, LIST_MAX)
}

/// The text of a file; `None` if there is no such file.
fn text(path: &Path, max: u64) -> Result<Option<String>, LabError> {
    match limited::read_file(path, max) {
        Ok(content) => Ok(Some(String::from_utf8_lossy(&content).into_owned())),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(LabError::file("read", path)(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Write as _;

    /// A tree in which nothing is built but what a test adds.
    struct Made(tempfile::TempDir);

    impl Made {
        fn new() -> Made {
            let made = Made(tempfile::tempdir().unwrap());
            made.add("Makefile", b"");
            made
        }

        fn add(&self, name: &str, content: &[u8]) {
            let path = self.0.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, content).unwrap();
        }

        /// A whole build, with drivers as modules or inside.
        fn built(drivers: &str) -> Made {
            let made = Made::new();
            made.add(IMAGE, &image());
            made.add(RELEASE, b"6.19.0-rc1+\n");
            made.config(drivers);
            made
        }

        fn config(&self, drivers: &str) {
            let mut config = String::new();
            for option in NEEDED {
                writeln!(config, "{option}=y").unwrap();
            }
            for (_, option) in DRIVERS {
                writeln!(config, "{option}={drivers}").unwrap();
            }
            self.add(CONFIG, config.as_bytes());
        }

        fn refusal(&self) -> String {
            read(self.0.path()).unwrap_err().to_string()
        }
    }

    fn image() -> Vec<u8> {
        let mut image = vec![0; 1 << 10];
        image[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image
    }

    #[test]
    fn modules_are_found_by_the_lists_of_every_age() {
        for (prefix, ending) in [("kernel/", "ko"), ("", "ko"), ("", "o")] {
            let made = Made::built("m");
            let mut order = String::new();
            for name in ["ext4", "null-blk", "nvme", "configfs", "xfs", "btrfs", "f2fs", "vfat"] {
                writeln!(order, "{prefix}drivers/{name}.{ending}").unwrap();
                made.add(&format!("drivers/{name}.ko"), b"");
            }
            // Names that lead out of the tree, if only to come back, are not followed.
            made.add("odd.ko", b"");
            let root = made.0.path();
            let again = Path::new("..").join(root.file_name().unwrap());
            for outside in [root, &again] {
                writeln!(order, "{}/odd.ko", outside.display()).unwrap();
            }
            writeln!(order, "not/built.ko").unwrap();
            made.add(ORDER, order.as_bytes());
            let tree = read(made.0.path()).unwrap();
            assert_eq!(tree.release.as_deref(), Some("6.19.0-rc1+"));
            let names: Vec<&str> = tree.modules.keys().map(String::as_str).collect();
            assert_eq!(
                names,
                ["btrfs", "configfs", "ext4", "f2fs", "null_blk", "nvme", "vfat", "xfs"]
            );
            assert_eq!(tree.modules["null_blk"], made.0.path().join("drivers/null-blk.ko"));
        }
    }

    #[test]
    fn without_a_list_the_tree_is_searched_and_links_are_not_followed() {
        let made = Made::built("y");
        made.add("fs/ext4/ext4.ko", b"");
        std::os::unix::fs::symlink("..", made.0.path().join("fs/up")).unwrap();
        let tree = read(made.0.path()).unwrap();
        assert_eq!(tree.modules.len(), 1);
        assert!(tree.built_in.contains("null_blk") && tree.built_in.contains("xfs"));
    }

    #[test]
    fn a_tree_that_is_not_built_says_what_to_build() {
        let made = Made::new();
        assert!(made.refusal().contains("has no arch/x86/boot/bzImage; make bzImage"));
        let made = Made::built("m");
        let message = made.refusal();
        assert!(message.contains("CONFIG_BLK_DEV_NULL_BLK=m and no null_blk.ko; make modules"));
        made.add(CONFIG, b"CONFIG_64BIT=y\nCONFIG_DEVTMPFS=m\n");
        let message = made.refusal();
        assert!(message.contains("lacks CONFIG_BLK_DEV_INITRD, "), "{message}");
        assert!(message.contains(", CONFIG_DEVTMPFS, "), "{message}");
        assert!(!message.contains("64BIT"), "{message}");
    }

    #[test]
    fn a_file_that_is_no_image_is_refused_by_what_it_is() {
        let made = Made::built("y");
        made.add(IMAGE, b"half of an image");
        assert!(matches!(read(made.0.path()), Err(LabError::Unbuilt(_))));
        made.add(IMAGE, b"\x7fELF");
        let error = read(made.0.path()).unwrap_err();
        assert!(matches!(&error, LabError::Choice(what) if what.contains("is a vmlinux")));
        let pipe = made.0.path().join("pipe");
        rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RUSR).unwrap();
        assert!(matches!(check_image(&pipe), Err(LabError::Choice(_))));
    }

    #[test]
    fn a_list_beyond_every_build_is_refused_unread() {
        let made = Made::built("y");
        let config = File::options().write(true).open(made.0.path().join(CONFIG)).unwrap();
        config.set_len(LIST_MAX + 1).unwrap();
        let message = made.refusal();
        assert!(message.contains(".config: it has more than 16777216 bytes"), "{message}");
    }

    #[test]
    fn an_image_in_its_place_has_its_tree() {
        let made = Made::built("y");
        let root = made.0.path().canonicalize().unwrap();
        assert_eq!(of_path(&root.join(IMAGE)), Some(root.clone()));
        assert_eq!(of_path(&root), Some(root.clone()));
        made.add("bzImage", &image());
        assert_eq!(of_path(&root.join("bzImage")), None);
        assert_eq!(of_path(&root.join("drivers")), None);
    }
}
