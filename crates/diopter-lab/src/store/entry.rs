//! Entries of the cache: a directory with its facts, written whole and read back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::catalog::Build;
use crate::error::LabError;
use crate::kernel::{Kernel, Module, ModuleSet};
use crate::trust;
use crate::unpack::{self, Parts};

/// Changes when what is unpacked changes; older entries are then made again.
const FORMAT: u32 = 5;
/// The same for the guest's programs.
pub(super) const PROGRAMS_FORMAT: u32 = 5;
pub(super) const FACTS: &str = "facts.json";
pub(super) const ARCHIVE: &str = "programs.cpio";

/// The guest's programs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Programs {
    /// A cpio archive.
    pub archive: PathBuf,
    /// Version by package.
    pub versions: BTreeMap<String, String>,
    /// BLAKE3 of the archive.
    #[serde(default)]
    pub digest: String,
}

/// A kernel in the cache, as its file describes it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct Facts {
    format: u32,
    series: String,
    release: String,
    package: String,
    version: String,
    /// BLAKE3 of the image.
    digest: String,
    /// The dependencies of each module, and its BLAKE3.
    modules: BTreeMap<String, (Vec<String>, Option<String>)>,
    built_in: BTreeSet<String>,
}

pub(super) fn write_kernel(parts: &Parts, build: &Build, dir: &Path) -> Result<(), LabError> {
    let package = format!("{} {}", build.packages.join(" "), build.version);
    let image = parts.image.as_ref().ok_or_else(|| LabError::Layout {
        package: package.clone(),
        lacks: "vmlinuz".to_owned(),
    })?;
    let path = dir.join(unpack::IMAGE);
    fs::write(&path, image).map_err(LabError::file("write", &path))?;
    let set = parts.write_modules(dir, &package)?;
    if build.has_modules && set.modules.is_empty() {
        return Err(LabError::Layout { package, lacks: "modules".to_owned() });
    }
    let facts = Facts {
        format: FORMAT,
        series: build.series.clone(),
        release: build.release.clone(),
        package: build.packages.first().cloned().unwrap_or_default(),
        version: build.version.clone(),
        digest: blake3::hash(image).to_hex().to_string(),
        modules: set
            .modules
            .into_iter()
            .map(|(name, module)| (name, (module.needs, module.digest)))
            .collect(),
        built_in: set.built_in,
    };
    write_json(dir, &facts)
}

pub(super) fn write_json(dir: &Path, facts: &impl Serialize) -> Result<(), LabError> {
    let path = dir.join(FACTS);
    let text = serde_json::to_vec_pretty(facts).expect("strings and numbers are JSON");
    fs::write(&path, text).map_err(LabError::file("write", &path))
}

pub(super) fn read_kernel(dir: &Path) -> Option<Kernel> {
    let facts: Facts = serde_json::from_slice(&trust::read_own(&dir.join(FACTS))?).ok()?;
    if facts.format != FORMAT {
        return None;
    }
    let module = |(name, (needs, digest))| {
        let path = dir.join("modules").join(format!("{name}.ko"));
        (String::clone(&name), Module { name, path, needs, digest })
    };
    let modules = facts.modules.into_iter().map(module).collect();
    Some(Kernel {
        series: facts.series,
        release: facts.release,
        package: facts.package,
        version: facts.version,
        image: dir.join(unpack::IMAGE),
        image_digest: facts.digest,
        modules: ModuleSet { modules, built_in: facts.built_in },
    })
}

pub(super) fn read_programs(dir: &Path) -> Option<Programs> {
    let facts = trust::read_own(&dir.join(FACTS))?;
    let programs: Programs = serde_json::from_slice(&facts).ok()?;
    let archive = dir.join(ARCHIVE);
    // An archive that was changed is made again.
    trust::read(&archive, Some(&programs.digest)).ok()?;
    Some(Programs { archive, ..programs })
}
