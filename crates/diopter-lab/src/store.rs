//! Kernels and the guest's programs as they come: from suites, from the cache, from files. The
//! cache is bounded, whole at every moment, and safe for several runs at once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::FlockOperation;
use serde::{Deserialize, Serialize};

use super::apt::Apt;
use super::catalog::{self, Build};
use super::choice::Choice;
use super::error::LabError;
use super::kernel::{Kernel, Module, ModuleSet};
use super::programs;
use super::trust;
use super::unpack::{self, Parts};
use super::version;
use super::watch::{Progress, Watch};

/// Changes when what is unpacked changes; older entries are then made again.
const FORMAT: u32 = 3;
const FACTS: &str = "facts.json";
/// In a temporary directory that is used outside the lock.
const IN_USE: &str = "in-use";
const ARCHIVE: &str = "programs.cpio";
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
    root: PathBuf,
    options: StoreOptions,
    watch: Watch,
    apt: Apt,
    builds: Option<Vec<Build>>,
    /// Why the suites could not be asked, or not all.
    complaints: String,
    /// The entries that this run uses: as long as these are open, no other run removes them.
    in_use: Vec<File>,
    /// Kernels from files of the user, unpacked until the end of the run.
    own: Vec<tempfile::TempDir>,
}

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
        let root = options.cache.clone().map_or_else(default_cache, Ok)?;
        let root = trust::prepare(&root, &["apt", "kernels", "programs", "tmp"])?;
        let store = Store {
            apt: Apt::prepare(&root.join("apt"), options.sources.as_deref())?,
            root,
            options,
            watch,
            builds: None,
            complaints: String::new(),
            in_use: Vec::new(),
            own: Vec::new(),
        };
        store.sweep()?;
        Ok(store)
    }

    /// Removes what a run that was killed left behind.
    fn sweep(&self) -> Result<(), LabError> {
        let path = self.root.join("tmp");
        let _lock = self.lock()?;
        let entries = fs::read_dir(&path).map_err(LabError::file("open", &path))?;
        for dir in entries.filter_map(|entry| Some(entry.ok()?.path())) {
            let mark = File::open(dir.join(IN_USE));
            let is_in_use = mark.is_ok_and(|mark| {
                rustix::fs::flock(&mark, FlockOperation::NonBlockingLockExclusive).is_err()
            });
            if !is_in_use {
                fs::remove_dir_all(&dir).map_err(LabError::file("remove", &dir))?;
            }
        }
        Ok(())
    }

    /// The cache's directory.
    #[must_use]
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Returns the watch of the caller.
    #[must_use]
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// Bytes in the cache.
    #[must_use]
    pub fn size_bytes(&self) -> u64 {
        size_of(&self.root)
    }

    /// Bytes that it may take.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.options.limit_bytes
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

    /// Returns all kernels of all suites, oldest first; none if no suite is reachable.
    ///
    /// # Errors
    /// [`LabError`]; not for a network that is away, which [`Store::complaints`] reports.
    pub fn builds(&mut self) -> Result<&[Build], LabError> {
        if self.builds.is_none() {
            let _lock = self.lock()?;
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
        let dir = self.root.join("kernels");
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
            return self.cached_kernel(asked)?.ok_or_else(|| self.nobody_has(asked));
        };
        match self.kernel_of(&build) {
            Err(LabError::Tool { doing, said, remedy }) => match self.cached_kernel(asked)? {
                Some(kernel) => {
                    let note = format!("{doing}: {said}; {} of the cache is used", kernel.release);
                    self.watch.tell(Progress::Note(note));
                    Ok(kernel)
                }
                None => Err(LabError::Tool { doing, said, remedy }),
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
        let dir = self.root.join("kernels").join(name);
        let lock = self.lock()?;
        if read_kernel(&dir).is_none() {
            let packages = build.packages.iter().map(|name| (name.clone(), build.version.clone()));
            let packages: Vec<(String, String)> = packages.collect();
            let work = self.temporary()?;
            let files = self.apt.download(&packages, work.path(), &self.watch)?;
            self.watch.tell(Progress::Unpacking(build.release.clone()));
            let parts = unpack::parts_of(&files)?;
            let ready = self.temporary()?;
            write_kernel(&parts, build, ready.path())?;
            self.watch.check()?;
            publish(ready, &dir)?;
        }
        let kernel = self.take_into_use(&dir)?;
        self.trim()?;
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
        let told =
            files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>().join(":");
        self.watch.tell(Progress::Unpacking(told.clone()));
        let is_package = |file: &&PathBuf| file.extension().is_some_and(|ending| ending == "deb");
        let packages: Vec<PathBuf> = files.iter().filter(is_package).cloned().collect();
        let mut parts = unpack::parts_of(&packages)?;
        let mut image = None;
        for file in files.iter().filter(|file| !is_package(file)) {
            let facts = fs::metadata(file).map_err(LabError::file("open", file))?;
            if facts.is_dir() {
                unpack::add_dir(&mut parts, file)?;
            } else {
                image = Some(fs::canonicalize(file).map_err(LabError::file("open", file))?);
            }
        }
        let lock = self.lock()?;
        let dir = self.temporary()?;
        let path = dir.path().join(IN_USE);
        let mark = File::create(&path).map_err(LabError::file("create", &path))?;
        rustix::fs::flock(&mark, FlockOperation::NonBlockingLockShared)
            .map_err(|error| LabError::file("lock", &path)(error.into()))?;
        self.in_use.push(mark);
        drop(lock);
        let image = match (image, &parts.image) {
            (Some(image), _) => image,
            (None, Some(content)) => {
                let path = dir.path().join(unpack::IMAGE);
                fs::write(&path, content).map_err(LabError::file("write", &path))?;
                path
            }
            (None, None) => {
                return Err(LabError::Layout { package: told, lacks: "vmlinuz".to_owned() });
            }
        };
        let modules = parts.write_modules(dir.path(), &told)?;
        self.own.push(dir);
        let file_name = image.file_name().map(|name| name.display().to_string());
        let release = parts.release.clone().or(file_name).unwrap_or_default();
        let series = version::series(&release).unwrap_or_else(|| release.clone());
        let package = if packages.is_empty() { String::new() } else { told };
        let (version, image_digest) = (String::new(), None);
        Ok(Kernel { series, release, package, version, image, image_digest, modules })
    }

    /// The guest's programs, from the cache or fetched.
    ///
    /// # Errors
    /// [`LabError`]: they can't be fetched, or their packages are not as they always were.
    pub fn programs(&mut self) -> Result<Programs, LabError> {
        self.builds()?;
        let names: Vec<String> = programs::PACKAGES.iter().map(|name| (*name).to_owned()).collect();
        let lock = self.lock()?;
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
            return cached.ok_or_else(|| self.nobody_has("for the guest's programs"));
        };
        let key = chosen.iter().map(|(name, version)| format!("{name}={version}\n"));
        let key = format!("{FORMAT}\n{}", key.collect::<String>());
        let key = blake3::hash(key.as_bytes()).to_hex();
        let dir = self.root.join("programs").join(&key[..16]);
        if read_programs(&dir).is_none() {
            self.make_programs(&chosen, &dir)?;
        }
        self.hold(&dir)?;
        self.trim()?;
        drop(lock);
        read_programs(&dir).ok_or_else(|| self.nobody_has("for the guest's programs"))
    }

    fn make_programs(&self, chosen: &[(String, String)], dir: &Path) -> Result<(), LabError> {
        let work = self.temporary()?;
        let files = self.apt.download(chosen, work.path(), &self.watch)?;
        self.watch.tell(Progress::Unpacking("the guest's programs".to_owned()));
        let names = chosen.iter().map(|(name, _)| name.clone());
        let archive = programs::archive(&names.zip(files).collect())?;
        let ready = self.temporary()?;
        let path = ready.path().join(ARCHIVE);
        let digest = blake3::hash(&archive).to_hex().to_string();
        fs::write(&path, archive).map_err(LabError::file("write", &path))?;
        let versions = chosen.iter().cloned().collect();
        write_json(ready.path(), &Programs { archive: PathBuf::from(ARCHIVE), versions, digest })?;
        publish(ready, dir)
    }

    fn cached_programs(&mut self) -> Result<Option<Programs>, LabError> {
        let dir = self.root.join("programs");
        let entries = fs::read_dir(&dir).map_err(LabError::file("open", &dir))?;
        let mut dirs: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        dirs.sort_by_key(|dir| used_at(dir));
        for dir in dirs.iter().rev() {
            if let Some(programs) = read_programs(dir) {
                self.hold(dir)?;
                return Ok(Some(programs));
            }
        }
        Ok(None)
    }

    fn cached_kernel(&mut self, asked: &str) -> Result<Option<Kernel>, LabError> {
        let is_meant = |kernel: &&Kernel| {
            let upstream = version::upstream(&kernel.version);
            kernel.series == asked || kernel.release == asked || upstream == asked
        };
        let kernels = self.cached()?;
        let Some(kernel) = kernels.iter().rev().find(is_meant) else { return Ok(None) };
        let dir = kernel.image.parent().unwrap_or(&self.root).to_owned();
        let _lock = self.lock()?;
        self.take_into_use(&dir)
    }

    fn nobody_has(&self, asked: &str) -> LabError {
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

    /// Only one run at a time fetches, unpacks and removes.
    fn lock(&self) -> Result<File, LabError> {
        let path = self.root.join("lock");
        let open = File::options().create(true).truncate(false).write(true).open(&path);
        let file = open.map_err(LabError::file("open", &path))?;
        let mut is_told = false;
        // Ends when the other run does, or with the wish to stop.
        while let Err(error) = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            if error != rustix::io::Errno::WOULDBLOCK {
                return Err(LabError::file("lock", &path)(error.into()));
            }
            if !is_told {
                self.watch.tell(Progress::Waiting);
                is_told = true;
            }
            self.watch.pause()?;
        }
        Ok(file)
    }

    fn temporary(&self) -> Result<tempfile::TempDir, LabError> {
        let dir = self.root.join("tmp");
        tempfile::tempdir_in(&dir).map_err(LabError::file("create a directory in", &dir))
    }

    fn take_into_use(&mut self, dir: &Path) -> Result<Option<Kernel>, LabError> {
        let Some(kernel) = read_kernel(dir) else { return Ok(None) };
        self.hold(dir)?;
        Ok(Some(kernel))
    }

    /// Marks an entry as used now, and keeps other runs from removing it.
    fn hold(&mut self, dir: &Path) -> Result<(), LabError> {
        let path = dir.join(FACTS);
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(LabError::file("open", &path))?;
        // A time that can't be set only makes it go earlier than it should.
        file.set_modified(SystemTime::now()).ok();
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared)
            .map_err(|error| LabError::file("lock", &path)(error.into()))?;
        self.in_use.push(file);
        Ok(())
    }

    /// Removes what was used least recently until the rest is within the limit. What a run uses
    /// stays.
    fn trim(&self) -> Result<(), LabError> {
        let mut entries = Vec::new();
        for kind in ["kernels", "programs"] {
            let dir = self.root.join(kind);
            let found = fs::read_dir(&dir).map_err(LabError::file("open", &dir))?;
            entries.extend(found.filter_map(|entry| Some(entry.ok()?.path())));
        }
        entries.sort_by_key(|dir| used_at(dir));
        let mut total: u64 = size_of(&self.root);
        for dir in entries {
            if total <= self.options.limit_bytes {
                break;
            }
            let size = size_of(&dir);
            let facts = File::open(dir.join(FACTS));
            let is_free = facts.as_ref().is_ok_and(|facts| {
                rustix::fs::flock(facts, FlockOperation::NonBlockingLockExclusive).is_ok()
            });
            if is_free || facts.is_err() {
                fs::remove_dir_all(&dir).map_err(LabError::file("remove", &dir))?;
                total = total.saturating_sub(size);
            }
        }
        Ok(())
    }
}

fn default_cache() -> Result<PathBuf, LabError> {
    let from =
        |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let base = from("XDG_CACHE_HOME").or_else(|| Some(from("HOME")?.join(".cache")));
    base.map(|base| base.join("diopter")).ok_or_else(|| {
        LabError::Choice(
            "neither XDG_CACHE_HOME nor HOME is set; name a directory with --cache".to_owned(),
        )
    })
}

fn write_kernel(parts: &Parts, build: &Build, dir: &Path) -> Result<(), LabError> {
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

fn write_json(dir: &Path, facts: &impl Serialize) -> Result<(), LabError> {
    let path = dir.join(FACTS);
    let text = serde_json::to_vec_pretty(facts).expect("strings and numbers are JSON");
    fs::write(&path, text).map_err(LabError::file("write", &path))
}

/// Gives a directory that is whole its name; what was there is not whole, or of another format.
fn publish(ready: tempfile::TempDir, dir: &Path) -> Result<(), LabError> {
    if dir.exists() {
        fs::remove_dir_all(dir).map_err(LabError::file("remove", dir))?;
    }
    fs::rename(ready.path(), dir).map_err(LabError::file("name", dir))?;
    // It has another name now; there is nothing left to remove.
    drop(ready.keep());
    Ok(())
}

fn read_kernel(dir: &Path) -> Option<Kernel> {
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
        image_digest: Some(facts.digest),
        modules: ModuleSet { modules, built_in: facts.built_in },
    })
}

fn read_programs(dir: &Path) -> Option<Programs> {
    let facts = trust::read_own(&dir.join(FACTS))?;
    let programs: Programs = serde_json::from_slice(&facts).ok()?;
    let archive = dir.join(ARCHIVE);
    // An archive that was changed is made again.
    trust::read(&archive, Some(&programs.digest)).ok()?;
    Some(Programs { archive, ..programs })
}

fn used_at(dir: &Path) -> SystemTime {
    let facts = fs::metadata(dir.join(FACTS)).and_then(|facts| facts.modified());
    facts.unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Bytes of all files below a directory. What disappears meanwhile counts nothing.
fn size_of(dir: &Path) -> u64 {
    let mut dirs = vec![dir.to_owned()];
    let mut total = 0;
    // Links are not followed, so the file system's depth bounds the loop.
    while let Some(dir) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            match entry.metadata() {
                Ok(facts) if facts.is_dir() => dirs.push(entry.path()),
                Ok(facts) => total += facts.len(),
                Err(_) => {}
            }
        }
    }
    total
}
