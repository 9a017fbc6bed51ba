//! Kernels and the guest's programs as they come: from suites, from the cache, from files. The
//! cache is bounded, whole at every moment, and safe for several runs at once.

mod cache;
mod entry;

mod measured;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use crate::apt::Apt;
use crate::build_tree;
use crate::catalog::{self, Build};
use crate::choice::{Choice, Flavour, Selection};
use crate::error::LabError;
use crate::kernel::Kernel;
use crate::programs;
use crate::trust;
use crate::unpack;
use crate::version;
use crate::watch::{Progress, Watch};
use cache::{Cache, publish, used_at};
pub use entry::Programs;
use entry::{ARCHIVE, PROGRAMS_FORMAT, read_kernel, read_programs, write_json, write_kernel};
pub use measured::{Key, identity, program};

/// Bytes that the cache may take where nothing else was said.
pub const CACHE_LIMIT: u64 = 2 << 30;

/// Where things are kept, and what may be fetched.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The cache's directory; `None` for `$XDG_CACHE_HOME/diopter`.
    pub cache: Option<PathBuf>,
    /// Bytes that it may take; what was used least recently goes.
    pub limit_bytes: u64,
    /// Lines of a sources.list, in place of Debian's suites.
    pub sources: Option<String>,
    /// Fetch the lists of packages even if they are young.
    pub must_update: bool,
}

/// Kernels by name.
#[derive(Debug)]
pub struct Store {
    cache: Cache,
    options: StoreOptions,
    watch: Watch,
    apt: Apt,
    builds: Option<Vec<Build>>,
    /// Why the suites could not be asked, or not all.
    complaints: String,
    /// Kernels from files of the user, unpacked until the end of the run.
    own: Vec<tempfile::TempDir>,
}

impl Default for StoreOptions {
    fn default() -> StoreOptions {
        StoreOptions { cache: None, limit_bytes: CACHE_LIMIT, sources: None, must_update: false }
    }
}

impl Store {
    /// Opens the cache, or makes it.
    ///
    /// # Errors
    /// [`LabError::File`] where it can't be written.
    pub fn open(options: StoreOptions, watch: Watch) -> Result<Store, LabError> {
        let cache = Cache::open(options.cache.clone(), options.limit_bytes)?;
        let store = Store {
            apt: Apt::prepare(&cache.root.join("apt"), options.sources.as_deref())?,
            cache,
            options,
            watch,
            builds: None,
            complaints: String::new(),
            own: Vec::new(),
        };
        store.cache.sweep(&store.watch)?;
        Ok(store)
    }

    /// The cache's directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.cache.root
    }

    /// Returns the watch of the caller.
    #[must_use]
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Bytes in the cache.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        self.cache.size_bytes()
    }

    /// Bytes that it may take.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.cache.limit_bytes
    }

    /// Returns the kernel that the user named.
    ///
    /// # Errors
    /// As [`Store::kernel`] and [`Store::kernel_of_files`].
    pub fn choose(&mut self, choice: &Choice) -> Result<Kernel, LabError> {
        match choice {
            Choice::Named(name) => self.kernel(name),
            Choice::Files(files) => self.kernel_of_files(files),
        }
    }

    /// Returns the kernels that the user named, in order.
    ///
    /// # Errors
    /// As [`Store::choose`]; [`LabError::NoKernel`] if no series has modules.
    pub fn select(&mut self, selection: &Selection) -> Result<Vec<Kernel>, LabError> {
        match selection {
            Selection::One(choice) => Ok(vec![self.choose(choice)?]),
            Selection::Each(flavour) => self.each(*flavour),
        }
    }

    /// The best kernel of each series that has modules, in the suites or in the cache.
    fn each(&mut self, flavour: Flavour) -> Result<Vec<Kernel>, LabError> {
        let builds = self.builds()?.to_vec();
        let mut names: BTreeMap<String, String> = self
            .cached()?
            .into_iter()
            .filter(|kernel| !kernel.modules.modules.is_empty() && flavour.has(&kernel.release))
            .map(|kernel| (kernel.series, kernel.release))
            .collect();
        let best = catalog::each(&builds, flavour).into_iter();
        names.extend(best.map(|build| (build.series.clone(), build.release.clone())));
        if names.is_empty() {
            return Err(self.no_kernel("of any series with modules"));
        }
        let mut names: Vec<(String, String)> = names.into_iter().collect();
        names.sort_by(|left, right| version::compare_series(&left.0, &right.0));
        names.iter().map(|(_, release)| self.kernel(release)).collect()
    }

    /// Returns all kernels of all suites, oldest first; none if no suite is reachable.
    ///
    /// # Errors
    /// [`LabError`]; not for a network that is away, which [`Store::complaints`] reports.
    pub fn builds(&mut self) -> Result<&[Build], LabError> {
        if self.builds.is_none() {
            let _lock = self.cache.lock(&self.watch)?;
            let fetched = self.apt.fetched().filter(|_| !self.options.must_update);
            self.complaints = fetched.map_or_else(|| self.apt.update(&self.watch), Ok)?;
            self.builds = Some(catalog::builds(&self.apt.kernel_packages(&self.watch)?));
        }
        Ok(self.builds.as_deref().unwrap_or_default())
    }

    /// Returns the errors of suites; empty if all suites were reachable.
    #[must_use]
    pub fn complaints(&self) -> &str {
        &self.complaints
    }

    /// The kernels in the cache, oldest first.
    ///
    /// # Errors
    /// The system's, reading the directory.
    pub fn cached(&self) -> Result<Vec<Kernel>, LabError> {
        let dir = self.cache.root.join("kernels");
        let entries = fs::read_dir(&dir).map_err(LabError::file("open", &dir))?;
        let dirs = entries.filter_map(|entry| Some(entry.ok()?.path()));
        let mut kernels: Vec<Kernel> = dirs.filter_map(|dir| read_kernel(&dir)).collect();
        kernels.sort_by(|left, right| version::compare(&left.version, &right.version));
        Ok(kernels)
    }

    /// The kernel of a name: the newest of a series (`6.1`), an upstream version (`6.18.15`), a
    /// release (`5.10.0-46-amd64`).
    ///
    /// # Errors
    /// [`LabError`]: no suite has it, it can't be fetched, its packages have an unknown layout.
    pub fn kernel(&mut self, asked: &str) -> Result<Kernel, LabError> {
        let build = catalog::choose(self.builds()?, asked).cloned();
        let Some(build) = build else {
            return self.cached_kernel(asked)?.ok_or_else(|| self.no_kernel(asked));
        };
        match self.kernel_of(&build) {
            Err(LabError::Tool { doing, cause, remedy }) => match self.cached_kernel(asked)? {
                Some(kernel) => {
                    let note = format!("{doing}: {cause}; {} of the cache is used", kernel.release);
                    self.watch.report(Progress::Note(note));
                    Ok(kernel)
                }
                None => Err(LabError::Tool { doing, cause, remedy }),
            },
            other => other,
        }
    }

    /// The kernel of a build, from the cache or fetched.
    ///
    /// # Errors
    /// As [`Store::kernel`].
    pub fn kernel_of(&mut self, build: &Build) -> Result<Kernel, LabError> {
        let name = format!("{}_{}", build.release, build.version.replace(':', "%3a"));
        let dir = self.cache.root.join("kernels").join(name);
        let lock = self.cache.lock(&self.watch)?;
        if read_kernel(&dir).is_none() {
            let packages = build.packages.iter().map(|name| (name.clone(), build.version.clone()));
            let packages: Vec<(String, String)> = packages.collect();
            let work = self.cache.temporary()?;
            let files = self.apt.download(&packages, work.path(), &self.watch)?;
            self.watch.report(Progress::Unpacking(build.release.clone()));
            let parts = unpack::parts_of(&files)?;
            let ready = self.cache.temporary()?;
            write_kernel(&parts, build, ready.path())?;
            self.watch.check()?;
            publish(ready, &dir)?;
        }
        let kernel = self.take_into_use(&dir)?;
        self.cache.trim()?;
        drop(lock);
        kernel.ok_or_else(|| LabError::Layout {
            package: build.packages.join(" "),
            lacks: "kernel".to_owned(),
        })
    }

    /// Opens a kernel from files of the user: an image, a directory of modules, Debian packages.
    ///
    /// # Errors
    /// [`LabError`]: a file that can't be read, or no image among them.
    pub fn kernel_of_files(&mut self, files: &[PathBuf]) -> Result<Kernel, LabError> {
        let names =
            files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(":");
        self.watch.report(Progress::Unpacking(names.clone()));
        let is_package = |file: &&PathBuf| file.extension().is_some_and(|ending| ending == "deb");
        let packages: Vec<PathBuf> = files.iter().filter(is_package).cloned().collect();
        let mut parts = unpack::parts_of(&packages)?;
        let mut image = None;
        for file in files.iter().filter(|file| !is_package(file)) {
            let facts = fs::metadata(file).map_err(LabError::file("open", file))?;
            if let Some(root) = build_tree::of_path(file) {
                let tree = build_tree::read(&root)?;
                unpack::add_tree(&mut parts, &tree);
                image = Some(tree.image);
            } else if facts.is_dir() {
                unpack::add_dir(&mut parts, file)?;
            } else {
                build_tree::check_image(file)?;
                image = Some(fs::canonicalize(file).map_err(LabError::file("open", file))?);
            }
        }
        let lock = self.cache.lock(&self.watch)?;
        let dir = self.cache.temporary()?;
        self.cache.mark(dir.path())?;
        drop(lock);
        // A copy: a build that goes on meanwhile changes neither what boots nor its identity.
        let content = match &image {
            Some(path) => Some(trust::read(path, None).map_err(LabError::file("read", path))?),
            None => parts.image.take(),
        };
        let Some::<Vec<u8>>(content) = content else {
            return Err(LabError::Layout { package: names, lacks: "vmlinuz".to_owned() });
        };
        let file = image.as_deref().unwrap_or(Path::new(unpack::IMAGE));
        let file_name = file.file_name().map(|name| name.display().to_string());
        let image = dir.path().join(unpack::IMAGE);
        fs::write(&image, &content).map_err(LabError::file("write", &image))?;
        let image_digest = blake3::hash(&content).to_hex().to_string();
        let modules = parts.write_modules(dir.path(), &names)?;
        self.own.push(dir);
        let release = parts.release.clone().or(file_name).unwrap_or_default();
        let series = version::series(&release).unwrap_or_else(|| release.clone());
        let package = if packages.is_empty() { String::new() } else { names };
        let version = String::new();
        Ok(Kernel { series, release, package, version, image, image_digest, modules })
    }

    /// The guest's programs, from the cache or fetched.
    ///
    /// # Errors
    /// [`LabError`]: they can't be fetched, or their packages are not as they always were.
    pub fn programs(&mut self) -> Result<Programs, LabError> {
        self.builds()?;
        let names: Vec<String> = programs::PACKAGES.iter().map(|name| (*name).to_owned()).collect();
        let lock = self.cache.lock(&self.watch)?;
        let known = self.apt.packages(&names, &self.watch)?;
        let best = |name: &String| {
            let of_name = known.iter().filter(|package| package.name == *name);
            of_name.max_by(|left, right| {
                let rank = |suite: &str| suite == programs::SUITE;
                rank(&left.suite)
                    .cmp(&rank(&right.suite))
                    .then_with(|| version::compare(&left.version, &right.version))
            })
        };
        let chosen: Option<Vec<(String, String)>> = names
            .iter()
            .map(|name| best(name).map(|package| (name.clone(), package.version.clone())))
            .collect();
        let Some(chosen) = chosen else {
            let cached = self.cached_programs()?;
            return cached.ok_or_else(|| self.no_kernel("for the guest's programs"));
        };
        let key = chosen.iter().map(|(name, version)| format!("{name}={version}\n"));
        let key = format!("{PROGRAMS_FORMAT}\n{}", key.collect::<String>());
        let key = blake3::hash(key.as_bytes()).to_hex();
        let dir = self.cache.root.join("programs").join(&key[..16]);
        if read_programs(&dir).is_none() {
            self.make_programs(&chosen, &dir)?;
        }
        self.cache.hold(&dir)?;
        self.cache.trim()?;
        drop(lock);
        read_programs(&dir).ok_or_else(|| self.no_kernel("for the guest's programs"))
    }

    fn make_programs(&self, chosen: &[(String, String)], dir: &Path) -> Result<(), LabError> {
        let work = self.cache.temporary()?;
        let files = self.apt.download(chosen, work.path(), &self.watch)?;
        self.watch.report(Progress::Unpacking("the guest's programs".to_owned()));
        let names = chosen.iter().map(|(name, _)| name.clone());
        let archive = programs::archive(&names.zip(files).collect())?;
        let ready = self.cache.temporary()?;
        let path = ready.path().join(ARCHIVE);
        let digest = blake3::hash(&archive).to_hex().to_string();
        fs::write(&path, archive).map_err(LabError::file("write", &path))?;
        let versions = chosen.iter().cloned().collect();
        write_json(ready.path(), &Programs { archive: PathBuf::from(ARCHIVE), versions, digest })?;
        publish(ready, dir)
    }

    fn cached_programs(&mut self) -> Result<Option<Programs>, LabError> {
        let dir = self.cache.root.join("programs");
        let entries = fs::read_dir(&dir).map_err(LabError::file("open", &dir))?;
        let mut dirs: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        dirs.sort_by_key(|dir| used_at(dir));
        for dir in dirs.iter().rev() {
            if let Some(programs) = read_programs(dir) {
                self.cache.hold(dir)?;
                return Ok(Some(programs));
            }
        }
        Ok(None)
    }

    fn cached_kernel(&mut self, asked: &str) -> Result<Option<Kernel>, LabError> {
        let is_meant =
            |kernel: &&Kernel| catalog::is_meant(&kernel.release, &kernel.version, asked);
        let kernels = self.cached()?;
        let Some(kernel) = kernels.iter().rev().find(is_meant) else { return Ok(None) };
        let dir = kernel.image.parent().unwrap_or(&self.cache.root).to_owned();
        let _lock = self.cache.lock(&self.watch)?;
        self.take_into_use(&dir)
    }

    fn no_kernel(&self, asked: &str) -> LabError {
        let builds = self.builds.as_deref().unwrap_or_default();
        let mut series: BTreeSet<String> =
            builds.iter().map(|build| build.series.clone()).collect();
        series.extend(self.cached().unwrap_or_default().into_iter().map(|kernel| kernel.series));
        LabError::NoKernel {
            asked: asked.to_owned(),
            nearest: catalog::nearest(&series, asked),
            because: self.complaints.clone(),
        }
    }

    fn take_into_use(&mut self, dir: &Path) -> Result<Option<Kernel>, LabError> {
        let Some(kernel) = read_kernel(dir) else { return Ok(None) };
        self.cache.hold(dir)?;
        Ok(Some(kernel))
    }
}
