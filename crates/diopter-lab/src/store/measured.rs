//! Figures that the cache keeps: an emulated guest repeats, so what determines a figure is its key.

use std::io::Read;
use std::path::PathBuf;

use diopter_bench::document::Sample;
use serde::{Deserialize, Serialize};

use super::Store;
use super::cache::publish;
use super::entry::{FACTS, write_json};
use crate::error::LabError;
use crate::kernel::Kernel;
use crate::trust;

/// Changes when what is kept changes.
const FORMAT: u32 = 1;

/// All that determines the figures of a kernel, by name.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Key<'a> {
    /// BLAKE3 of this program: it makes the guest's scripts, and reads what they print.
    pub program: &'a str,
    /// BLAKE3 of the guest's programs.
    pub programs: &'a str,
    /// The facts of the emulator under which figures are comparable.
    pub machine: &'a std::collections::BTreeMap<String, String>,
    /// [`identity`] of the kernel.
    pub kernel: &'a str,
    /// The job, the engine, the device and the tracing.
    pub plan: &'a str,
}

/// The content of an entry.
#[derive(Serialize, Deserialize)]
struct Kept {
    format: u32,
    /// For people; the entry's name is the digest of the key.
    kernel: String,
    sample: Sample,
}

impl Store {
    /// Returns the figures of a key, if they were kept.
    pub fn measured(&mut self, key: &Key<'_>) -> Result<Option<Sample>, LabError> {
        let dir = self.place_of(key);
        let _lock = self.cache.lock(&self.watch)?;
        let Some(facts) = trust::read_own(&dir.join(FACTS)) else {
            return Ok(None);
        };
        let Ok(kept) = serde_json::from_slice::<Kept>(&facts) else { return Ok(None) };
        if kept.format != FORMAT {
            return Ok(None);
        }
        self.cache.hold(&dir)?;
        Ok(Some(kept.sample))
    }

    /// Keeps figures under a key.
    ///
    /// # Errors
    /// The system's, writing.
    pub fn keep(&mut self, key: &Key<'_>, release: &str, sample: &Sample) -> Result<(), LabError> {
        let dir = self.place_of(key);
        let _lock = self.cache.lock(&self.watch)?;
        let ready = self.cache.temporary()?;
        let kept = Kept { format: FORMAT, kernel: release.to_owned(), sample: sample.clone() };
        write_json(ready.path(), &kept)?;
        publish(ready, &dir)?;
        self.cache.trim()
    }

    fn place_of(&self, key: &Key<'_>) -> PathBuf {
        let key = serde_json::to_vec(key).expect("strings are JSON");
        let name = blake3::hash(&key).to_hex();
        self.cache.root.join("measured").join(&name[..32])
    }
}

/// Returns what distinguishes a kernel from every other: its packages, and the digests of its image
/// and modules.
pub fn identity(kernel: &Kernel) -> String {
    let image = &kernel.image_digest;
    let set = &kernel.modules;
    let modules: Vec<_> =
        set.modules.values().map(|module| (&module.name, &module.digest, &module.needs)).collect();
    let facts = (&kernel.package, &kernel.version, &kernel.release, image, modules, &set.built_in);
    serde_json::to_string(&facts).expect("strings are JSON")
}

/// Returns the BLAKE3 of the running program.
///
/// # Errors
/// The system's, reading it.
pub fn program() -> Result<String, LabError> {
    let path = std::path::Path::new("/proc/self/exe");
    let failed = |error| LabError::File { doing: "read", path: path.to_owned(), error };
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut hasher = blake3::Hasher::new();
    let mut buffer = vec![0; 1 << 20];
    loop {
        let count = file.read(&mut buffer).map_err(failed)?;
        if count == 0 {
            return Ok(hasher.finalize().to_hex().to_string());
        }
        hasher.update(&buffer[..count]);
    }
}
