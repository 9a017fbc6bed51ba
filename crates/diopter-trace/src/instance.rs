//! A private trace instance: created, configured, and removed however the run ends. Nothing here
//! touches the global buffer or anyone else's instance.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use diopter_os::dir::{Dir, paths_in};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use crate::error::TraceError;
use crate::event::{self, Need, Source};
use crate::format::EventFormat;
use crate::probes::{self, Probes};
use crate::process;

const TRACEFS: &str = "/sys/kernel/tracing";
/// `none integrity [confidentiality]`: the level in brackets is in force. In securityfs, which may
/// not be mounted.
const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
/// The command line of the kernel, which may set the level.
const COMMAND_LINE: &str = "/proc/cmdline";
/// Every instance of ours is named so, with the process and its start behind it.
const PREFIX: &str = "diopter-";
/// Format files are the largest, with some KiB.
const FILE_BYTES_MAX: usize = 256 << 10;
/// A removal that meets a reader that is still closing is tried again so often.
const REMOVE_TRIES_MAX: u32 = 100;

/// An event that an instance listens to.
#[derive(Debug)]
pub struct Listened {
    /// Its path below `events`.
    pub path: String,
    pub source: &'static Source,
    pub format: EventFormat,
}

/// Capabilities that a process without root's number needs, by their bits: to mount tracefs where
/// it is not, and to write to its files.
const NEEDED: [(u32, &str); 2] = [(21, "CAP_SYS_ADMIN"), (1, "CAP_DAC_OVERRIDE")];

/// An instance; dropping it stops its events and removes it.
#[derive(Debug)]
pub struct Instance {
    dir: PathBuf,
    /// On a kernel without events of direct I/O. They go after the instance, which listens to them.
    probes: Option<Probes>,
    /// The tracefs that was mounted for it, which ends with it.
    _mount: Option<OwnedFd>,
}

impl Instance {
    /// Makes one, after the instances of runs that were killed are removed.
    ///
    /// # Errors
    /// [`TraceError::NotRoot`], [`TraceError::LockedDown`], [`TraceError::NoTracefs`],
    /// [`TraceError::NoIomapEvents`], [`TraceError::Tracefs`].
    pub fn create() -> Result<Instance, TraceError> {
        let read = |path| fs::read_to_string(path).ok();
        if is_locked_down(read(LOCKDOWN).as_deref(), read(COMMAND_LINE).as_deref()) {
            return Err(TraceError::LockedDown);
        }
        let (tracefs, mount) = tracefs()?;
        let instances = instances_of(&tracefs)?;
        let is_writable = Access::WRITE_OK | Access::EXEC_OK;
        if accessat(CWD, &instances, is_writable, AtFlags::EACCESS).is_err() {
            return Err(TraceError::NotRoot { missing: missing_capabilities() });
        }
        remove_orphans(&instances);
        probes::remove_orphans(&tracefs);
        let own = process::own('-');
        // Several traces of one process at a time each have a number.
        for number in 0..u32::MAX {
            let dir = instances.join(format!("{PREFIX}{own}-{number}"));
            match fs::create_dir(&dir) {
                Ok(()) => {
                    let mut instance = Instance { dir, probes: None, _mount: mount };
                    if needs_probes(&tracefs) {
                        let suffix = format!("{}_{number}", process::own('_'));
                        let made = Probes::create(&tracefs, &suffix);
                        instance.probes = Some(made.map_err(without_events)?);
                    }
                    return Ok(instance);
                }
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                Err(source) => {
                    let what = "a trace instance cannot be made";
                    return Err(TraceError::Tracefs { what, path: dir, source });
                }
            }
        }
        Err(TraceError::Malformed("every name of an instance is taken".to_owned()))
    }

    /// Writes `value` to one of its files.
    ///
    /// # Errors
    /// [`TraceError::Tracefs`] with the kernel's error.
    pub fn set(&self, file: &str, value: &str) -> Result<(), TraceError> {
        let path = self.dir.join(file);
        fs::write(&path, value).map_err(|source| TraceError::Tracefs {
            what: "a setting of the trace instance was refused",
            path,
            source,
        })
    }

    /// Reads one of its files.
    ///
    /// # Errors
    /// [`TraceError::Tracefs`] with the kernel's error.
    pub fn get(&self, file: &str) -> Result<String, TraceError> {
        let path = self.dir.join(file);
        read_whole(&path).map_err(|source| TraceError::Tracefs {
            what: "a file of the trace instance cannot be read",
            path,
            source,
        })
    }

    /// Returns true if the kernel has an event.
    #[must_use]
    pub fn has_event(&self, event: &str) -> bool {
        self.dir.join("events").join(event).is_dir()
    }

    /// Returns true if probes show what this kernel has no events for.
    #[must_use]
    pub fn has_probes(&self) -> bool {
        self.probes.is_some()
    }

    /// Returns what it listens to: the events that this kernel has, and the probes.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] or [`TraceError::Tracefs`] when a format cannot be read.
    pub fn listened(&self) -> Result<Vec<Listened>, TraceError> {
        let events = event::SOURCES.iter().filter(|source| self.has_event(source.name));
        let events = events.map(|source| (source.name.to_owned(), source));
        let probes = self.probes.iter().flat_map(Probes::events);
        let mut listened = Vec::new();
        for (path, source) in events.chain(probes) {
            let format = EventFormat::parse(&self.get(&format!("events/{path}/format"))?)?;
            let subject = source.fields.first();
            if subject.is_none_or(|subject| format.field(subject).is_some()) {
                listened.push(Listened { path, source, format });
            }
        }
        Ok(listened)
    }

    /// The path of one of its files.
    #[must_use]
    pub fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }

    /// The numbers of its CPUs, in order.
    ///
    /// # Errors
    /// [`TraceError::Tracefs`] when they cannot be listed.
    pub fn cpus(&self) -> Result<Vec<u32>, TraceError> {
        let path = self.dir.join("per_cpu");
        let failed = |source| TraceError::Tracefs {
            what: "the CPUs of the trace instance cannot be listed",
            path: path.clone(),
            source,
        };
        let mut cpus = Vec::new();
        let dir = Dir::open(&path).map_err(|errno| failed(errno.into()))?;
        for name in dir.names().map_err(|errno| failed(errno.into()))? {
            let number = name.to_str().and_then(|name| name.strip_prefix("cpu"));
            cpus.extend(number.and_then(|number| number.parse::<u32>().ok()));
        }
        cpus.sort_unstable();
        Ok(cpus)
    }

    /// Events that its buffers lost: written over, dropped, or cut off while being written.
    ///
    /// # Errors
    /// [`TraceError::Tracefs`] when the counters cannot be read.
    pub fn lost_events(&self) -> Result<u64, TraceError> {
        let mut lost = 0;
        for cpu in self.cpus()? {
            let stats = self.get(&format!("per_cpu/cpu{cpu}/stats"))?;
            lost += lost_of(&stats);
        }
        Ok(lost)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        remove(&self.dir);
    }
}

/// The directory of tracefs. Where none is mounted it is mounted for this process alone: without a
/// name, so that no other process sees it, and the traced command does not either.
fn tracefs() -> Result<(PathBuf, Option<OwnedFd>), TraceError> {
    let usual = Path::new(TRACEFS);
    if usual.join("instances").is_dir() {
        return Ok((usual.to_owned(), None));
    }
    match mount_tracefs() {
        Ok(mount) => {
            let dir = PathBuf::from(format!("/proc/self/fd/{}", mount.as_raw_fd()));
            Ok((dir, Some(mount)))
        }
        Err(_) if !diopter_os::ids::is_root() => {
            Err(TraceError::NotRoot { missing: missing_capabilities() })
        }
        Err(errno) => Err(TraceError::NoTracefs { source: errno.into() }),
    }
}

fn mount_tracefs() -> rustix::io::Result<OwnedFd> {
    let tracefs = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(&tracefs)?;
    let flags = MountAttrFlags::MOUNT_ATTR_NOSUID
        | MountAttrFlags::MOUNT_ATTR_NODEV
        | MountAttrFlags::MOUNT_ATTR_NOEXEC;
    fsmount(&tracefs, FsMountFlags::FSMOUNT_CLOEXEC, flags)
}

/// The capabilities that this process lacks, as `capabilities(7)` names them.
fn missing_capabilities() -> String {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let mask = effective.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    let missing = NEEDED.iter().filter(|(bit, _)| mask >> bit & 1 == 0).map(|(_, name)| *name);
    let missing: Vec<&str> = missing.collect();
    if missing.is_empty() { "write access to tracefs".to_owned() } else { missing.join(", ") }
}

/// Where a tracefs has its instances, if it and its kernel have all that is needed: asked before
/// anything is made, so that nothing has to be removed.
fn instances_of(tracefs: &Path) -> Result<PathBuf, TraceError> {
    let instances = tracefs.join("instances");
    fs::metadata(&instances).map_err(|source| TraceError::NoTracefs { source })?;
    if !has_all(tracefs, Need::Must) {
        return Err(without_events(
            "events of the block layer and of tasks are missing".to_owned(),
        ));
    }
    if needs_probes(tracefs) && !tracefs.join(probes::COMMANDS).exists() {
        return Err(without_events("it has no probes (CONFIG_KPROBE_EVENTS)".to_owned()));
    }
    Ok(instances)
}

/// Returns true if the kernel has no events of direct I/O.
fn needs_probes(tracefs: &Path) -> bool {
    !has_all(tracefs, Need::MustOrProbe)
}

/// Returns true if the kernel has all events that are needed so.
fn has_all(tracefs: &Path, need: Need) -> bool {
    let mut needed = event::SOURCES.iter().filter(|source| source.need == need);
    needed.all(|source| tracefs.join("events").join(source.name).is_dir())
}

fn without_events(why: String) -> TraceError {
    TraceError::NoIomapEvents { release: release(), why }
}

/// Returns true if the kernel forbids tracing: by its own words, or else by its command line.
fn is_locked_down(lockdown: Option<&str>, command_line: Option<&str>) -> bool {
    match lockdown {
        Some(levels) => levels.contains("[confidentiality]"),
        None => command_line.is_some_and(|line| {
            line.split_whitespace().any(|word| word == "lockdown=confidentiality")
        }),
    }
}

/// The running kernel, as `uname -r` prints it.
pub(super) fn release() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    release.trim_end().to_owned()
}

/// Reads a small file. `header_page` says nothing more after a read of a few bytes, so the buffer
/// is large from the start.
fn read_whole(path: &Path) -> io::Result<String> {
    let mut file = fs::File::open(path)?;
    let mut text = vec![0; FILE_BYTES_MAX];
    let mut length = 0;
    while length < text.len() {
        match file.read(&mut text[length..])? {
            0 => break,
            more => length += more,
        }
    }
    text.truncate(length);
    String::from_utf8(text).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// Returns the number of lost events in the text of a `stats` file.
fn lost_of(stats: &str) -> u64 {
    let counters = ["overrun", "commit overrun", "dropped events"];
    let number = |line: &str| {
        let (name, number) = line.split_once(':')?;
        counters.contains(&name.trim()).then(|| number.trim().parse::<u64>().unwrap_or_default())
    };
    stats.lines().filter_map(number).sum()
}

/// Removes the instances whose process is gone. Those of a living process are its own.
fn remove_orphans(instances: &Path) {
    for path in paths_in(instances) {
        let name = path.file_name().and_then(OsStr::to_str);
        let name = name.and_then(|name| name.strip_prefix(PREFIX));
        if name.is_some_and(|name| process::is_gone(name, '-')) {
            remove(&path);
        }
    }
}

/// Stops and removes an instance. What stays behind is an orphan that the next run removes.
fn remove(dir: &Path) {
    // Both may fail on an instance that is half gone; the removal below is what counts.
    fs::write(dir.join("tracing_on"), "0").ok();
    fs::write(dir.join("events/enable"), "0").ok();
    for _ in 0..REMOVE_TRIES_MAX {
        match fs::remove_dir(dir) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => std::thread::yield_now(),
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_the_events_or_without_tracefs_is_reported_before_anything_is_made() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(instances_of(dir.path()), Err(TraceError::NoTracefs { .. })));
        fs::create_dir(dir.path().join("instances")).unwrap();
        let message = instances_of(dir.path()).unwrap_err();
        let release = release();
        assert!(
            message.to_string().starts_with(&format!("kernel {release} has no events")),
            "{message}"
        );
        assert!(message.to_string().contains("trace on a newer kernel"), "{message}");
        assert_eq!(message.exit_status(), 125);
        let needed = [Need::Must, Need::MustOrProbe];
        for source in event::SOURCES.iter().filter(|source| needed.contains(&source.need)) {
            fs::create_dir_all(dir.path().join("events").join(source.name)).unwrap();
        }
        assert_eq!(instances_of(dir.path()).unwrap(), dir.path().join("instances"));
        assert_eq!(fs::read_dir(dir.path().join("instances")).unwrap().count(), 0);
    }

    #[test]
    fn a_kernel_locked_down_for_confidentiality_allows_no_tracing() {
        let line = Some("root=/dev/vda lockdown=confidentiality quiet");
        assert!(is_locked_down(Some("none integrity [confidentiality]\n"), None));
        assert!(is_locked_down(None, line), "securityfs is not mounted");
        assert!(!is_locked_down(Some("none [integrity] confidentiality\n"), None));
        assert!(!is_locked_down(Some("[none] integrity confidentiality\n"), line));
        assert!(!is_locked_down(None, Some("lockdown=integrity")));
        assert!(!is_locked_down(None, None));
        let message = TraceError::LockedDown.to_string();
        assert!(message.contains("boot it without lockdown=confidentiality"), "{message}");
    }

    #[test]
    fn every_way_of_losing_events_counts() {
        let stats = "entries: 9\noverrun: 1\ncommit overrun: 2\nbytes: 5\n\
            oldest event ts: 24512.1\ndropped events: 4\nread events: 8\n";
        assert_eq!(lost_of(stats), 7);
    }
}
