//! The guest's programs: busybox, fio, what makes file systems, and the libraries that these need,
//! from the packages of one suite. One archive, the same bytes each time.

use std::collections::BTreeMap;
use std::path::PathBuf;

use crate::cpio::Archive;
use crate::deb;
use crate::elf;
use crate::error::LabError;

/// Their suite: its mkfs makes file systems that a 5.10 kernel can mount.
pub const SUITE: &str = "bookworm";
/// The packages; the last ones hold libraries alone.
pub const PACKAGES: [&str; 18] = [
    "busybox-static",
    "fio",
    "e2fsprogs",
    "xfsprogs",
    "btrfs-progs",
    "f2fs-tools",
    "dosfstools",
    "libc6",
    "libaio1",
    "libnuma1",
    "zlib1g",
    "libext2fs2",
    "libcom-err2",
    "libblkid1",
    "libuuid1",
    "libudev1",
    "libinih1",
    "liburcu8",
];
/// The programs and their files: the package, and the path without `usr`.
const FILES: [(&str, &str); 9] = [
    ("busybox-static", "bin/busybox"),
    ("fio", "bin/fio"),
    ("e2fsprogs", "sbin/mke2fs"),
    ("e2fsprogs", "sbin/filefrag"),
    ("e2fsprogs", "etc/mke2fs.conf"),
    ("xfsprogs", "sbin/mkfs.xfs"),
    ("btrfs-progs", "sbin/mkfs.btrfs"),
    ("f2fs-tools", "sbin/mkfs.f2fs"),
    ("dosfstools", "sbin/mkfs.fat"),
];
const LINKS: [(&str, &str); 5] = [
    ("bin/sh", "busybox"),
    ("sbin/mkfs.ext2", "mke2fs"),
    ("sbin/mkfs.ext3", "mke2fs"),
    ("sbin/mkfs.ext4", "mke2fs"),
    ("sbin/mkfs.vfat", "mkfs.fat"),
];
const DIRS: [&str; 12] =
    ["bin", "sbin", "etc", "lib", "lib64", LIBRARIES, "dev", "proc", "sys", "tmp", "mnt", "lab"];
/// Where the dynamic linker looks.
const LIBRARIES: &str = "lib/x86_64-linux-gnu";
const LINKER: &str = "ld-linux-x86-64.so.2";
/// fio's engines for storage over a network and for persistent memory. With what they need these
/// are fifty libraries of 90 MB, which every start of fio would have to link.
const DROPPED: [&str; 12] = [
    "libgfapi",
    "libnbd",
    "libibverbs",
    "librdmacm",
    "librados",
    "librbd",
    "libpmem",
    "libpmemblk",
    "libnfs",
    "libzbc",
    "libcurl",
    "libisal",
];

/// The files of one package: paths without `usr` before them, with links resolved.
type Contents = BTreeMap<String, Vec<u8>>;

/// Makes the archive of packages, given by name.
///
/// # Errors
/// [`LabError::Layout`] when a program or a library is not where it always was.
pub fn archive(packages: &BTreeMap<String, PathBuf>) -> Result<Vec<u8>, LabError> {
    let mut contents: BTreeMap<&str, Contents> = BTreeMap::new();
    for (name, path) in packages {
        contents.insert(name, contents_of(path)?);
    }
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    let mut asked = vec![LINKER.to_owned()];
    for (package, path) in FILES {
        let found = contents.get_mut(package).and_then(|contents| contents.remove(path));
        let mut content = found.ok_or_else(|| lacks(packages, package, path))?;
        if path != "etc/mke2fs.conf" {
            asked.extend(linked(&mut content, package, path, packages)?);
        }
        files.insert(path.to_owned(), content);
    }
    // A library is asked for by each that needs it and taken once.
    while let Some(name) = asked.pop() {
        let path = format!("{LIBRARIES}/{name}");
        if files.contains_key(&path) {
            continue;
        }
        let found = contents.values_mut().find_map(|contents| contents.remove(&path));
        let mut content = found.ok_or_else(|| lacks(packages, "libc6", &name))?;
        asked.extend(linked(&mut content, "libc6", &name, packages)?);
        files.insert(path, content);
    }
    Ok(written(&files))
}

fn written(files: &BTreeMap<String, Vec<u8>>) -> Vec<u8> {
    let mut archive = Archive::default();
    for dir in DIRS {
        archive.dir(dir);
    }
    archive.device("dev/console", 5, 1);
    archive.link(&format!("lib64/{LINKER}"), &format!("../{LIBRARIES}/{LINKER}"));
    for (path, content) in files {
        archive.file(path, 0o755, content);
    }
    for (path, target) in LINKS {
        archive.link(path, target);
    }
    archive.finish()
}

/// The libraries that a file is linked with, after those that the lab does without are gone.
fn linked(
    content: &mut Vec<u8>,
    package: &str,
    path: &str,
    packages: &BTreeMap<String, PathBuf>,
) -> Result<Vec<String>, LabError> {
    let is_dropped = |library: &str| {
        let name = library.split(".so").next().unwrap_or(library);
        DROPPED.contains(&name)
    };
    let damaged =
        |damaged: elf::Damaged| lacks(packages, package, &format!("sound {path} ({})", damaged.0));
    if let Some(without) = elf::without_libraries(content, is_dropped).map_err(damaged)? {
        *content = without;
    }
    elf::libraries(content).map_err(damaged)
}

fn lacks(packages: &BTreeMap<String, PathBuf>, package: &str, what: &str) -> LabError {
    let file = packages.get(package).and_then(|path| path.file_stem()).unwrap_or_default();
    let package = format!("{package} ({})", file.display());
    LabError::Layout { package, lacks: what.to_owned() }
}

fn contents_of(package: &std::path::Path) -> Result<Contents, LabError> {
    let is_wanted = |path: &str| {
        let path = path.trim_start_matches("usr/");
        ["bin/", "sbin/", "etc/mke2fs", LIBRARIES].iter().any(|start| path.starts_with(start))
    };
    let mut contents = Contents::new();
    let mut links = Vec::new();
    for entry in deb::read(package, is_wanted)? {
        let path = entry.path.trim_start_matches("usr/").to_owned();
        match entry.link {
            Some(target) => links.push((path, target)),
            None => {
                contents.insert(path, entry.content);
            }
        }
    }
    for (path, target) in links {
        // Libraries link to their neighbours.
        let dir = path.rsplit_once('/').map_or("", |(dir, _)| dir);
        let file = target.rsplit('/').next().unwrap_or(&target);
        if let Some(content) = contents.get(&format!("{dir}/{file}")).cloned() {
            contents.insert(path, content);
        }
    }
    Ok(contents)
}
