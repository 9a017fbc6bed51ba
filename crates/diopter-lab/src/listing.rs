//! The available kernels as a document: by series, the newest of each, and the cached ones.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::catalog;
use crate::error::LabError;
use crate::store::Store;
use crate::version;

/// The name and version of the document.
pub const SCHEMA: &str = "diopter.lab-kernels/1";

/// The kernels that can be had. Fields are only ever added.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(title = "diopter.lab-kernels/1")]
pub struct KernelList {
    /// `diopter.lab-kernels/1`.
    pub schema: String,
    /// The cache's directory.
    pub cache: String,
    /// Bytes in it.
    pub cache_bytes: u64,
    /// Bytes that it may take.
    pub cache_limit_bytes: u64,
    /// The errors of suites; empty if all suites were reachable.
    pub complaints: String,
    /// By series, oldest first.
    pub series: Vec<SeriesEntry>,
}

/// A series.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct SeriesEntry {
    /// `6.1`.
    pub series: String,
    /// The kernel that `--kernel` with the series takes; null where only the cache has some.
    pub newest: Option<BuildEntry>,
    /// Upstream versions that can be had.
    pub version_count: usize,
    /// Kernels in the cache, oldest first.
    pub cached: Vec<CachedEntry>,
}

/// A kernel of a suite.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct BuildEntry {
    /// The output of `uname -r` in it.
    pub release: String,
    /// Version of its packages.
    pub version: String,
    /// Suites that have it.
    pub suites: Vec<String>,
    /// True if its modules are available: without them only what is inside its image works.
    pub has_modules: bool,
    /// True if it is in the cache.
    pub is_cached: bool,
}

/// A kernel of the cache.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct CachedEntry {
    /// The output of `uname -r` in it.
    pub release: String,
    /// Version of its packages.
    pub version: String,
}

/// The kernels of all suites and of the cache.
///
/// # Errors
/// [`LabError`].
pub fn list(store: &mut Store) -> Result<KernelList, LabError> {
    let builds = store.builds()?.to_vec();
    let mut by_series: BTreeMap<String, SeriesEntry> = BTreeMap::new();
    for kernel in store.cached()? {
        let entry = by_series.entry(kernel.series).or_default();
        entry.cached.push(CachedEntry { release: kernel.release, version: kernel.version });
    }
    for build in catalog::distinct(&builds) {
        by_series.entry(build.series.clone()).or_default().version_count += 1;
    }
    let mut series: Vec<SeriesEntry> = Vec::with_capacity(by_series.len());
    for (name, mut entry) in by_series {
        entry.newest = catalog::choose(&builds, &name).map(|build| BuildEntry {
            release: build.release.clone(),
            version: build.version.clone(),
            suites: build.suites.clone(),
            has_modules: build.has_modules,
            is_cached: entry
                .cached
                .iter()
                .any(|cached| cached.release == build.release && cached.version == build.version),
        });
        series.push(SeriesEntry { series: name, ..entry });
    }
    series.sort_by(|left, right| version::compare_series(&left.series, &right.series));
    Ok(KernelList {
        schema: SCHEMA.to_owned(),
        cache: store.root().display().to_string(),
        cache_bytes: store.size_bytes(),
        cache_limit_bytes: store.limit_bytes(),
        complaints: store.complaints().to_owned(),
        series,
    })
}
