//! From packages, or a directory of the user, to a kernel's image and the modules that jobs
//! need: uncompressed, without signatures, with what each of them needs.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use crate::build_tree::Tree;
use crate::deb;
use crate::elf;
use crate::error::LabError;
use crate::kernel::{Module, ModuleSet, canonical};
use crate::limited::{self, Limited};

/// The modules that jobs ask for; those that they need come with them.
const WANTED: [&str; 32] = [
    "null_blk",
    "scsi_debug",
    "dm_delay",
    "loop",
    "nvme",
    "virtio_blk",
    "virtio_pci",
    "virtio_scsi",
    "sd_mod",
    "brd",
    "ext4",
    "ext2",
    "xfs",
    "vfat",
    "btrfs",
    "f2fs",
    "jfs",
    "reiserfs",
    "nilfs2",
    "exfat",
    "ntfs3",
    "nls_cp437",
    "nls_ascii",
    "nls_utf8",
    "nls_iso8859_1",
    "crc32c_generic",
    "crc32c_intel",
    "crc32c_cryptoapi",
    "crc32_generic",
    "libcrc32c",
    "bfq",
    "configfs",
];
/// Memory of an xz decoder; `xz -9` needs 65 MiB.
const DICTIONARY_KIB_MAX: u32 = 256 << 10;
/// The kernel's image in the directory of an unpacked kernel.
pub const IMAGE: &str = "vmlinuz";
const MODULES: &str = "modules";
/// A module of a build with all debugging information is smaller.
const MODULE_MAX: u64 = 256 << 20;
/// No list of modules is larger.
const LIST_MAX: u64 = 16 << 20;

/// The parts of a kernel, still compressed.
#[derive(Debug, Default)]
pub struct Parts {
    /// The image, if it was there.
    pub image: Option<Vec<u8>>,
    /// The output of `uname -r`: from the image's name or its directory of modules.
    pub release: Option<String>,
    /// Modules by name: the file's name, and its content.
    modules: BTreeMap<String, (String, Content)>,
    built_in: BTreeSet<String>,
}

/// The content of a module: a build has thousands, of which a job needs a few.
#[derive(Debug)]
enum Content {
    Held(Vec<u8>),
    /// Read when it is needed.
    At(PathBuf),
}

/// Takes a kernel's parts out of packages.
///
/// # Errors
/// [`LabError::Tool`] for one that can't be read.
pub fn parts_of(packages: &[PathBuf]) -> Result<Parts, LabError> {
    let mut parts = Parts::default();
    for package in packages {
        for entry in deb::read(package, is_part)? {
            parts.take(&entry.path, entry.content);
        }
    }
    Ok(parts)
}

/// Takes modules out of a directory that is laid out like `/lib/modules/RELEASE`, or has modules
/// anywhere in it.
///
/// # Errors
/// The system's, with the file.
pub fn add_dir(parts: &mut Parts, dir: &Path) -> Result<(), LabError> {
    let mut dirs = vec![dir.to_owned()];
    // Links are not followed, so the file system's depth bounds the loop.
    while let Some(dir) = dirs.pop() {
        let entries = fs::read_dir(&dir).map_err(LabError::file("open", &dir))?;
        for entry in entries {
            let entry = entry.map_err(LabError::file("read", &dir))?;
            let path = entry.path();
            let kind = entry.file_type().map_err(LabError::file("look at", &path))?;
            let name = path.to_string_lossy().into_owned();
            if kind.is_dir() {
                dirs.push(path);
            } else if kind.is_file() && is_part(&name) {
                parts.take_file(&name, path)?;
            }
        }
    }
    Ok(())
}

fn is_part(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    name.starts_with("vmlinuz") || name == "modules.builtin" || module_name(name).is_some()
}

/// `ext4` of `ext4.ko.xz`.
fn module_name(file: &str) -> Option<String> {
    let (name, rest) = file.split_once(".ko")?;
    matches!(rest, "" | ".xz" | ".zst" | ".gz").then(|| canonical(name))
}

/// Takes the modules of a build tree.
pub fn add_tree(parts: &mut Parts, tree: &Tree) {
    parts.release.clone_from(&tree.release);
    parts.built_in.extend(tree.built_in.iter().cloned());
    parts.modules.extend(tree.modules.iter().map(|(name, path)| {
        let file = format!("{name}.ko");
        (name.clone(), (file, Content::At(path.clone())))
    }));
}

impl Parts {
    /// Takes a file of a directory; a module's content is read when it is needed.
    fn take_file(&mut self, name: &str, path: PathBuf) -> Result<(), LabError> {
        let file = name.rsplit('/').next().unwrap_or(name);
        let max = if file == "modules.builtin" { LIST_MAX } else { MODULE_MAX };
        if let Some(module) = module_name(file) {
            if let Some(release) = release_of(name) {
                self.release.get_or_insert(release);
            }
            self.modules.insert(module, (file.to_owned(), Content::At(path)));
            return Ok(());
        }
        let content = limited::read_file(&path, max).map_err(LabError::file("read", &path))?;
        self.take(name, content);
        Ok(())
    }

    fn take(&mut self, path: &str, content: Vec<u8>) {
        let file = path.rsplit('/').next().unwrap_or(path);
        if let Some(release) = release_of(path) {
            self.release.get_or_insert(release);
        }
        if file.starts_with("vmlinuz") {
            if !content.is_empty() {
                self.image = Some(content);
            }
        } else if file == "modules.builtin" {
            let lines = String::from_utf8_lossy(&content).into_owned();
            let names = lines.lines().filter_map(|line| line.rsplit('/').next());
            self.built_in.extend(names.filter_map(module_name));
        } else if let Some(name) = module_name(file) {
            self.modules.insert(name, (file.to_owned(), Content::Held(content)));
        }
    }

    /// Writes the modules that jobs need into a directory, and returns them.
    ///
    /// # Errors
    /// The system's, writing; [`LabError::Layout`] for a module that can't be read.
    pub fn write_modules(&self, dir: &Path, package: &str) -> Result<ModuleSet, LabError> {
        let dir = dir.join(MODULES);
        fs::create_dir_all(&dir).map_err(LabError::file("create", &dir))?;
        let mut set = ModuleSet { modules: BTreeMap::new(), built_in: self.built_in.clone() };
        let mut asked: Vec<String> = WANTED.iter().map(|name| (*name).to_owned()).collect();
        // Every module's needs are asked for once.
        while let Some(name) = asked.pop() {
            let Some((file, packed)) = self.modules.get(&name) else { continue };
            if set.modules.contains_key(&name) {
                continue;
            }
            let layout = |lacks: String| LabError::Layout { package: package.to_owned(), lacks };
            let packed = match packed {
                Content::Held(content) => Cow::Borrowed(&content[..]),
                Content::At(path) => {
                    let read = limited::read_file(path, MODULE_MAX);
                    Cow::Owned(read.map_err(LabError::file("read", path))?)
                }
            };
            let content = unpacked(file, &packed)
                .map_err(|error| layout(format!("readable module {file} ({error})")))?;
            let content = elf::without_signature(&content);
            let needs = elf::module_needs(content)
                .ok_or_else(|| layout(format!("module {file} with a list of its needs")))?;
            let needs: Vec<String> = needs.iter().map(|need| canonical(need)).collect();
            let path = dir.join(format!("{name}.ko"));
            fs::write(&path, content).map_err(LabError::file("write", &path))?;
            asked.extend(needs.iter().cloned());
            let digest = Some(blake3::hash(content).to_hex().to_string());
            set.modules.insert(name.clone(), Module { name, path, needs, digest });
        }
        Ok(set)
    }
}

/// `6.1.0-56-cloud-amd64` of `boot/vmlinuz-6.1.0-56-cloud-amd64` and of
/// `lib/modules/6.1.0-56-cloud-amd64/...`.
fn release_of(path: &str) -> Option<String> {
    let (_, behind) = path.split_once("lib/modules/").or_else(|| path.split_once("vmlinuz-"))?;
    let release = behind.split('/').next().unwrap_or_default();
    (!release.is_empty()).then(|| release.to_owned())
}

fn unpacked(file: &str, packed: &[u8]) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    let size = u64::try_from(packed.len()).map_err(io::Error::other)?;
    if file.ends_with(".xz") {
        let decoder = lzma_rust2::XzReader::new_mem_limit(packed, true, DICTIONARY_KIB_MAX);
        Limited::new(decoder, size).read_to_end(&mut content)?;
    } else if file.ends_with(".zst") {
        let decoder = ruzstd::decoding::StreamingDecoder::new(packed);
        let decoder = decoder.map_err(|error| io::Error::other(error.to_string()))?;
        Limited::new(decoder, size).read_to_end(&mut content)?;
    } else if file.ends_with(".gz") {
        return Err(io::Error::other("gzip is not known here"));
    } else {
        content.extend_from_slice(packed);
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use super::*;
    use diopter_testkit::env::{Capability, skip};

    #[test]
    fn modules_are_known_by_their_files_however_packed() {
        for file in ["dm-delay.ko", "dm-delay.ko.xz", "dm-delay.ko.zst"] {
            assert_eq!(module_name(file).as_deref(), Some("dm_delay"), "{file}");
        }
        assert_eq!(module_name("modules.order"), None);
        assert_eq!(module_name("x.ko.bz2"), None);
    }

    #[test]
    fn the_release_is_read_off_the_image_or_the_modules_dir() {
        let release = Some("7.2.13+deb14-cloud-amd64".to_owned());
        assert_eq!(release_of("boot/vmlinuz-7.2.13+deb14-cloud-amd64"), release);
        assert_eq!(release_of("usr/lib/modules/7.2.13+deb14-cloud-amd64/vmlinuz"), release);
        assert_eq!(release_of("usr/share/doc/x"), None);
    }

    #[test]
    fn a_module_that_unpacks_to_gigabytes_is_refused_early() {
        // One MiB of zeros is 148 bytes; xz joins streams.
        let mut packed = Vec::new();
        let mut xz = std::process::Command::new("xz");
        let command = xz.args(["-c", "-T1"]).stdin(std::process::Stdio::piped());
        let Ok(mut child) = command.stdout(std::process::Stdio::piped()).spawn() else {
            return skip(Capability::Xz, "xz is not installed");
        };
        let mut stdin = child.stdin.take().unwrap();
        let feed = std::thread::spawn(move || {
            io::copy(&mut io::repeat(0).take(32 << 20), &mut stdin).unwrap();
        });
        child.stdout.take().unwrap().read_to_end(&mut packed).unwrap();
        feed.join().unwrap();
        assert!(child.wait().unwrap().success() && packed.len() < 64 << 10);
        let error = unpacked("x.ko.xz", &packed).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::FileTooLarge, "{error}");
    }

    #[test]
    fn what_is_built_in_is_read_from_its_list() {
        let mut parts = Parts::default();
        parts.take("lib/modules/1/modules.builtin", b"kernel/fs/ext4/ext4.ko\n".to_vec());
        assert!(parts.built_in.contains("ext4"));
    }
}
