//! An [`object_store::ObjectStore`] of local directories. `LocalFileSystem` serves names,
//! conditions and listings; the data is read and written here.
//!
#![doc = include_str!("../README.md")]
#![forbid(unsafe_code)]
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod blocking;
mod error;
mod pressure;

mod cache;
mod read;
mod staged;
mod write;

#[cfg(test)]
mod tests;

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use diopter::engine::RoutePolicy;
use diopter::internals::is_adaptive_by_default;
use futures_util::stream::BoxStream;
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore,
    PutMode, PutMultipartOptions, PutOptions, PutPayload, PutResult, RenameOptions, Result,
};

use crate::blocking::blocking;
use crate::cache::Recent;
use crate::error::named;
use crate::pressure::Pressure;
use crate::read::{Ranges, Residents};
use crate::staged::Existing;
use crate::write::Upload;

/// The most bytes of a range, or of an object that is written, that may go through the page cache.
const SMALL_BYTES_MAX: u64 = 1 << 20;

/// Which data goes through the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// Ranges that are in the page cache are read from it, and a small range that is read a second
    /// time is read into it, unless memory is short. Everything else is direct. Small objects are
    /// written through the page cache, unless memory is short.
    #[default]
    Hybrid,
    /// Nothing, except the last block of an object, where it is not full.
    Direct,
    /// Everything, as with `LocalFileSystem`.
    Cached,
}

/// A directory as an [`ObjectStore`], whose data goes by direct I/O.
///
/// Names, listings, entity tags and conditions are those of
/// [`LocalFileSystem`]: both can serve the same directory.
#[derive(Clone, Debug)]
pub struct DiopterFileSystem {
    /// Serves everything but data.
    names: LocalFileSystem,
    route: Route,
    is_durable: bool,
    residents: Arc<Residents>,
}

impl fmt::Display for DiopterFileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.names.to_string();
        let root = names.trim_start_matches("LocalFileSystem(").trim_end_matches(')');
        write!(f, "DiopterFileSystem({root})")
    }
}

impl Default for DiopterFileSystem {
    fn default() -> DiopterFileSystem {
        DiopterFileSystem::new()
    }
}

impl From<LocalFileSystem> for DiopterFileSystem {
    /// Serves the same directory, by the route that `DIOPTER_ROUTE` of the environment says
    /// ([`diopter::engine::default_route`]): hybrid for `adaptive` or none, else direct. Set
    /// [`DiopterFileSystem::with_fsync`] again.
    fn from(names: LocalFileSystem) -> DiopterFileSystem {
        let route = if is_adaptive_by_default() { Route::Hybrid } else { Route::Direct };
        let residents = residents(route, SMALL_BYTES_MAX);
        DiopterFileSystem { names, route, is_durable: false, residents }
    }
}

fn residents(route: Route, small_bytes_max: u64) -> Arc<Residents> {
    let (bytes_max, route) = match route {
        Route::Hybrid => (small_bytes_max, RoutePolicy::Adaptive),
        Route::Direct | Route::Cached => (0, RoutePolicy::Direct),
    };
    let (recent, pressure) = (Recent::default(), Pressure::of_this_machine());
    Arc::new(Residents { bytes_max, route, recent, pressure })
}

impl DiopterFileSystem {
    /// Returns a store of the whole file system.
    #[must_use]
    pub fn new() -> DiopterFileSystem {
        LocalFileSystem::new().into()
    }

    /// Returns a store of a directory, whose path comes before all names.
    ///
    /// # Errors
    /// As [`LocalFileSystem::new_with_prefix`]: the directory does not exist.
    pub fn new_with_prefix(prefix: impl AsRef<std::path::Path>) -> Result<DiopterFileSystem> {
        Ok(LocalFileSystem::new_with_prefix(prefix).map_err(named)?.into())
    }

    /// Returns the absolute path of an object.
    ///
    /// # Errors
    /// As [`LocalFileSystem::path_to_filesystem`]: a name that ends in `#` and digits.
    pub fn path_to_filesystem(&self, location: &Path) -> Result<PathBuf> {
        self.names.path_to_filesystem(location).map_err(named)
    }

    /// Removes directories that a delete has left empty. Off by default.
    #[must_use]
    pub fn with_automatic_cleanup(mut self, automatic_cleanup: bool) -> DiopterFileSystem {
        self.names = self.names.with_automatic_cleanup(automatic_cleanup);
        self
    }

    /// Makes objects and their names durable before a put, the end of an upload, a copy or a rename
    /// returns. Off by default, and not for a delete, as in `LocalFileSystem`.
    #[must_use]
    pub fn with_fsync(mut self, fsync: bool) -> DiopterFileSystem {
        self.names = self.names.with_fsync(fsync);
        self.is_durable = fsync;
        self
    }

    /// Sets which data goes through the page cache.
    #[must_use]
    pub fn with_route(mut self, route: Route) -> DiopterFileSystem {
        self.route = route;
        self.residents = residents(route, SMALL_BYTES_MAX);
        self
    }

    /// Selects the hybrid route with another limit for what is small, in bytes; 1 MiB without it.
    #[must_use]
    pub fn with_small_bytes_max(mut self, bytes: u64) -> DiopterFileSystem {
        self.route = Route::Hybrid;
        self.residents = residents(self.route, bytes);
        self
    }

    /// Returns true if an object of this length is written through the page cache.
    fn writes_cached(&self, length: usize) -> bool {
        match self.route {
            Route::Direct => false,
            Route::Cached => true,
            Route::Hybrid => {
                let residents = &self.residents;
                length as u64 <= residents.bytes_max && !residents.pressure.is_high()
            }
        }
    }
}

#[async_trait]
impl ObjectStore for DiopterFileSystem {
    async fn put_opts(
        &self,
        location: &Path,
        payload: PutPayload,
        opts: PutOptions,
    ) -> Result<PutResult> {
        let existing = match opts.mode {
            PutMode::Overwrite => Some(Existing::Replaced),
            PutMode::Create => Some(Existing::Kept),
            PutMode::Update(_) => None,
        };
        let existing = existing.filter(|_| opts.attributes.is_empty());
        match existing {
            Some(existing) if !self.writes_cached(payload.content_length()) => {
                let (path, is_durable) = (self.path_to_filesystem(location)?, self.is_durable);
                blocking(move || write::put(path, &payload, existing, is_durable)).await
            }
            // LocalFileSystem refuses what it does not implement.
            _ => self.names.put_opts(location, payload, opts).await.map_err(named),
        }
    }

    async fn put_multipart_opts(
        &self,
        location: &Path,
        opts: PutMultipartOptions,
    ) -> Result<Box<dyn MultipartUpload>> {
        if self.route == Route::Cached || !opts.attributes.is_empty() {
            return self.names.put_multipart_opts(location, opts).await.map_err(named);
        }
        let (path, is_durable) = (self.path_to_filesystem(location)?, self.is_durable);
        let upload = blocking(move || Upload::create(path, is_durable)).await?;
        Ok(Box::new(upload))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        let is_head = options.head;
        let got = self.names.get_opts(location, options).await.map_err(named)?;
        if is_head || self.route == Route::Cached {
            return Ok(got);
        }
        let residents = Arc::clone(&self.residents);
        blocking(move || Ok(read::direct_payload(got, &residents))).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<Bytes>> {
        if self.route != Route::Cached {
            let path = self.path_to_filesystem(location)?;
            let (wanted, residents) = (ranges.to_vec(), Arc::clone(&self.residents));
            if let Some(begun) = blocking(move || Ranges::begin(path, wanted, &residents)).await? {
                return begun.finish().await;
            }
        }
        self.names.get_ranges(location, ranges).await.map_err(named)
    }

    fn delete_stream(
        &self,
        locations: BoxStream<'static, Result<Path>>,
    ) -> BoxStream<'static, Result<Path>> {
        self.names.delete_stream(locations)
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.names.list(prefix)
    }

    fn list_with_offset(
        &self,
        prefix: Option<&Path>,
        offset: &Path,
    ) -> BoxStream<'static, Result<ObjectMeta>> {
        self.names.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.names.list_with_delimiter(prefix).await.map_err(named)
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.names.copy_opts(from, to, options).await.map_err(named)
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.names.rename_opts(from, to, options).await.map_err(named)
    }
}
