//! The processes that are traced: a command, running processes, a cgroup, or all. Lists their
//! threads, and notices when they end. What their requests become is joined elsewhere.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter_os::dir::paths_in;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::error::TraceError;

/// Where the hierarchies of control groups are mounted, most often.
const CGROUPS: &str = "/sys/fs/cgroup";
/// The types of their file systems: `CGROUP2_SUPER_MAGIC` and `CGROUP_SUPER_MAGIC`.
const CGROUP_MAGICS: [u64; 2] = [0x6367_7270, 0x27_e0eb];
/// Control groups below one that are followed.
const CGROUPS_MAX: usize = 4096;
/// `PF_KTHREAD` of the flags in `/proc/PID/stat`.
const KERNEL_THREAD: u64 = 0x20_0000;
/// The parent and the flags, by their place after the name in `/proc/PID/stat`.
const PARENT: usize = 1;
const FLAGS: usize = 6;

/// The processes whose direct I/O is traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Target {
    /// A command that is started, with its arguments, and the processes that it starts.
    Command(Vec<OsString>),
    /// Running processes by their numbers, all of their threads, and their descendants: those that
    /// run already, and those that they start.
    Processes(Vec<u32>),
    /// The processes of a control group and of those below it.
    Cgroup(PathBuf),
    /// Every process of the machine.
    All,
}

/// A thread whose requests are traced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub thread: u32,
    /// The process it belongs to.
    pub process: u32,
    pub name: String,
}

/// The traced processes that ran before the trace began.
#[derive(Debug)]
pub enum Attached {
    /// The processes, each with its name and a descriptor that becomes readable when it ends.
    Processes(Vec<(u32, String, OwnedFd)>),
    Cgroup(Cgroup),
    All,
}

/// A control group.
#[derive(Debug)]
pub struct Cgroup {
    dir: PathBuf,
}

/// The traced threads, as far as `/proc` shows them, and the queues of their processes.
#[derive(Debug, Default)]
pub struct Scope {
    pub members: Vec<Member>,
    /// Processes that have a ring of io_uring.
    pub with_rings: HashSet<u32>,
    /// Processes that have a context of Linux AIO.
    pub with_aio: HashSet<u32>,
    /// The numbers of control groups of the second version, as events have them.
    pub cgroups: HashSet<u64>,
}

impl Attached {
    /// Finds the target; `None` for a command, which is not running yet.
    ///
    /// # Errors
    /// [`TraceError::Process`], [`TraceError::Cgroup`].
    pub fn find(target: &Target) -> Result<Option<Attached>, TraceError> {
        Ok(Some(match target {
            Target::Command(_) => return Ok(None),
            Target::Processes(processes) => {
                let found: Result<Vec<_>, _> =
                    processes.iter().map(|process| open_process(*process)).collect();
                Attached::Processes(found?)
            }
            Target::Cgroup(path) => Attached::Cgroup(Cgroup::find(path)?),
            Target::All => Attached::All,
        }))
    }

    /// Lists the threads that run now, and the queues of their processes.
    #[must_use]
    pub fn scope(&self) -> Scope {
        let mut scope = Scope::default();
        match self {
            Attached::Processes(_) => {
                for process in self.processes() {
                    scope.add_process(process);
                }
            }
            Attached::Cgroup(cgroup) => {
                for (dir, number) in cgroup.groups() {
                    if dir.join("cgroup.controllers").exists() {
                        scope.cgroups.insert(number);
                    }
                    for thread in threads_in(&dir) {
                        scope.add_thread(thread);
                    }
                }
            }
            Attached::All => {
                for process in numbers_in(Path::new("/proc")) {
                    if process != std::process::id() && !is_kernel_thread(process) {
                        scope.add_process(process);
                    }
                }
            }
        }
        scope.find_queues();
        scope
    }

    /// The processes that were named, with their names.
    #[must_use]
    pub fn names(&self) -> Vec<(u32, String)> {
        let Attached::Processes(processes) = self else { return Vec::new() };
        processes.iter().map(|(number, name, _)| (*number, name.clone())).collect()
    }

    /// The processes whose open files have names.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        match self {
            Attached::Processes(processes) => {
                // The number of one that exited may be that of another process now.
                let running = processes.iter().filter(|(_, _, end)| !has_ended(end));
                with_descendants(running.map(|(number, ..)| *number).collect())
            }
            Attached::Cgroup(cgroup) => {
                let groups = cgroup.groups().into_iter();
                groups.flat_map(|(dir, _)| numbers_of_file(&dir.join("cgroup.procs"))).collect()
            }
            Attached::All => numbers_in(Path::new("/proc")).collect(),
        }
    }

    /// Descriptors that are readable once a process is gone, of those that are there.
    #[must_use]
    pub fn ends(&self) -> Vec<BorrowedFd<'_>> {
        let Attached::Processes(processes) = self else { return Vec::new() };
        let running = processes.iter().filter(|(_, _, end)| !has_ended(end));
        running.map(|(_, _, end)| end.as_fd()).collect()
    }

    /// Returns true if nothing is left that could make a request.
    #[must_use]
    pub fn is_gone(&self) -> bool {
        match self {
            Attached::Processes(processes) => processes.iter().all(|(_, _, end)| has_ended(end)),
            Attached::Cgroup(cgroup) => !has_processes(&cgroup.dir),
            Attached::All => false,
        }
    }
}

impl Cgroup {
    /// Finds a control group by the path of its directory, or by its path below a mount of cgroup2
    /// or below `/sys/fs/cgroup`.
    fn find(path: &Path) -> Result<Cgroup, TraceError> {
        let mounts = procfs::process::Process::myself().and_then(|own| own.mountinfo());
        let mounts = mounts.into_iter().flatten().filter(|mount| mount.fs_type == "cgroup2");
        let mounts = mounts.map(|mount| mount.mount_point).chain([PathBuf::from(CGROUPS)]);
        Cgroup::find_below(path, &mounts.collect::<Vec<_>>(), is_group)
    }

    fn find_below(
        path: &Path,
        mounts: &[PathBuf],
        is_group: fn(&Path) -> bool,
    ) -> Result<Cgroup, TraceError> {
        let name = path.strip_prefix("/").unwrap_or(path);
        let below = mounts.iter().map(|mount| mount.join(name));
        let found = std::iter::once(path.to_owned()).chain(below).find(|dir| is_group(dir));
        found.map(|dir| Cgroup { dir }).ok_or_else(|| TraceError::Cgroup {
            path: path.to_owned(),
            mount: mounts.first().cloned().unwrap_or_default(),
        })
    }

    /// The directories of the group and of those below it, with their numbers.
    fn groups(&self) -> Vec<(PathBuf, u64)> {
        let mut groups = Vec::new();
        let mut waiting = vec![self.dir.clone()];
        while let Some(dir) = waiting.pop()
            && groups.len() < CGROUPS_MAX
        {
            let Ok(metadata) = fs::metadata(&dir) else { continue };
            let is_dir = |path: &PathBuf| path.symlink_metadata().is_ok_and(|found| found.is_dir());
            waiting.extend(paths_in(&dir).filter(is_dir));
            groups.push((dir, metadata.ino()));
        }
        groups
    }
}

impl Scope {
    fn add_process(&mut self, process: u32) {
        let tasks = Path::new("/proc").join(process.to_string()).join("task");
        self.members.extend(numbers_in(&tasks).map(|thread| member(thread, process)));
    }

    fn add_thread(&mut self, thread: u32) {
        self.members.push(member(thread, process_of(thread).unwrap_or(thread)));
    }

    /// Finds the queues that the processes made before the trace began.
    fn find_queues(&mut self) {
        let processes: HashSet<u32> = self.members.iter().map(|member| member.process).collect();
        for process in processes {
            let dir = Path::new("/proc").join(process.to_string());
            let is_ring = |link: PathBuf| {
                fs::read_link(link).is_ok_and(|to| to == Path::new("anon_inode:[io_uring]"))
            };
            if paths_in(&dir.join("fd")).any(is_ring) {
                self.with_rings.insert(process);
            }
            let maps = fs::read_to_string(dir.join("maps")).unwrap_or_default();
            if maps.lines().any(|line| line.contains("/[aio]")) {
                self.with_aio.insert(process);
            }
        }
    }
}

/// Returns true for a directory of a control group's file system, whose list of processes is its
/// own.
fn is_group(dir: &Path) -> bool {
    let kind = rustix::fs::statfs(dir).ok().and_then(|found| u64::try_from(found.f_type).ok());
    has_processes(dir) && kind.is_some_and(|kind| CGROUP_MAGICS.contains(&kind))
}

fn has_processes(dir: &Path) -> bool {
    dir.join("cgroup.procs").exists()
}

/// Opens a process so that its end is noticed, and its number means no other process.
fn open_process(process: u32) -> Result<(u32, String, OwnedFd), TraceError> {
    let failed = |why: &str| TraceError::Process { process, why: why.to_owned() };
    if process == std::process::id() {
        return Err(failed("that is dio itself; name another process"));
    }
    let missing = "no such process; list the running ones with ps -e";
    let number =
        i32::try_from(process).ok().and_then(Pid::from_raw).ok_or_else(|| failed(missing))?;
    let end = pidfd_open(number, PidfdFlags::empty());
    let end = match (end, process_of(process)) {
        (Ok(end), _) => end,
        (Err(_), Some(leader)) if leader != process => {
            return Err(failed(&format!(
                "that is a thread of process {leader}; name the process, all of its threads are \
                 traced"
            )));
        }
        (Err(rustix::io::Errno::SRCH), _) => return Err(failed(missing)),
        (Err(error), _) => return Err(failed(&io::Error::from(error).to_string())),
    };
    Ok((process, name_of(&Path::new("/proc").join(process.to_string())), end))
}

fn has_ended(end: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(end, PollFlags::IN)];
    poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}

fn member(thread: u32, process: u32) -> Member {
    Member { thread, process, name: name_of(&Path::new("/proc").join(thread.to_string())) }
}

fn name_of(dir: &Path) -> String {
    let bytes = fs::read(dir.join("comm")).unwrap_or_default();
    String::from_utf8_lossy(&bytes).trim_end_matches('\n').to_owned()
}

/// The process that a thread belongs to.
fn process_of(thread: u32) -> Option<u32> {
    let status = fs::read(Path::new("/proc").join(thread.to_string()).join("status")).ok()?;
    let status = String::from_utf8_lossy(&status);
    status.lines().find_map(|line| line.strip_prefix("Tgid:"))?.trim().parse().ok()
}

/// The threads of a control group; the file of the first version has another name.
fn threads_in(dir: &Path) -> Vec<u32> {
    ["cgroup.threads", "tasks"]
        .into_iter()
        .map(|file| numbers_of_file(&dir.join(file)))
        .find(|threads| !threads.is_empty())
        .unwrap_or_default()
}

fn numbers_of_file(path: &Path) -> Vec<u32> {
    let text = fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().filter_map(|number| number.parse().ok()).collect()
}

/// The entries of a directory of `/proc` whose names are numbers.
fn numbers_in(dir: &Path) -> impl Iterator<Item = u32> + use<> {
    paths_in(dir).filter_map(|path| path.file_name()?.to_str()?.parse().ok())
}

/// Adds the descendants of processes, which a server has had since it was started.
fn with_descendants(mut processes: Vec<u32>) -> Vec<u32> {
    let mut children: HashMap<u32, Vec<u32>> = HashMap::new();
    for process in numbers_in(Path::new("/proc")).filter(|it| *it != std::process::id()) {
        if let Some(parent) = stat_of(process, PARENT) {
            children.entry(u32::try_from(parent).unwrap_or(0)).or_default().push(process);
        }
    }
    let mut at = 0;
    while let Some(process) = processes.get(at) {
        processes.extend(children.remove(process).unwrap_or_default());
        at += 1;
    }
    processes.sort_unstable();
    processes.dedup();
    processes
}

/// Returns true for a thread of the kernel: it makes requests for others, not its own.
fn is_kernel_thread(process: u32) -> bool {
    stat_of(process, FLAGS).is_some_and(|flags| flags & KERNEL_THREAD != 0)
}

/// Returns a number of `/proc/PID/stat` by its place after the name.
fn stat_of(process: u32, place: usize) -> Option<u64> {
    let stat = fs::read(Path::new("/proc").join(process.to_string()).join("stat")).ok()?;
    // The name is in brackets, and may hold some.
    let behind_name = stat.iter().rposition(|byte| *byte == b')').map_or(0, |at| at + 1);
    String::from_utf8_lossy(&stat[behind_name..]).split_whitespace().nth(place)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(process: u32) -> String {
        let refused = Attached::find(&Target::Processes(vec![process])).unwrap_err();
        assert_eq!(refused.exit_status(), 125);
        refused.to_string()
    }

    #[test]
    fn a_process_that_cannot_be_traced_is_named_with_the_reason() {
        let absent = refusal(i32::MAX.cast_unsigned());
        assert!(absent.contains("process 2147483647: no such process"), "{absent}");
        assert!(refusal(0).contains("no such process"));
        assert!(refusal(std::process::id()).contains("dio itself"));
    }

    #[test]
    fn a_thread_is_refused_with_the_number_of_its_process() {
        let own = std::process::id();
        let thread = std::thread::spawn(move || {
            refusal(rustix::thread::gettid().as_raw_nonzero().get().cast_unsigned())
        });
        let refused = thread.join().unwrap();
        assert!(refused.contains(&format!("a thread of process {own}")), "{refused}");
    }

    #[test]
    fn the_descendants_that_run_already_are_listed_too() {
        // The shell starts another one, which starts sleep; each waits for its child.
        let script = "sh -c 'sleep 600 & echo $!; wait' & echo $!; wait";
        let mut shell = std::process::Command::new("sh");
        shell.args(["-c", script]).stdout(std::process::Stdio::piped());
        let mut shell = shell.spawn().unwrap();
        let output = std::io::BufReader::new(shell.stdout.take().unwrap());
        let numbers =
            std::io::BufRead::lines(output).take(2).map(|it| it.unwrap().parse().unwrap());
        let mut expected: Vec<u32> = numbers.chain([shell.id()]).collect();
        expected.sort_unstable();
        let attached = Attached::find(&Target::Processes(vec![shell.id()])).unwrap().unwrap();
        assert_eq!(attached.processes(), expected);
        let members = attached.scope().members;
        assert_eq!(members.iter().map(|one| one.process).collect::<Vec<_>>(), expected);
        for process in expected {
            let number = Pid::from_raw(process.cast_signed()).unwrap();
            rustix::process::kill_process(number, rustix::process::Signal::KILL).unwrap();
        }
        shell.wait().unwrap();
        assert_eq!(attached.processes(), [0; 0]);
    }

    #[test]
    fn the_threads_of_a_process_are_listed_until_it_ends() {
        let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
        let process = child.id();
        let attached = Attached::find(&Target::Processes(vec![process])).unwrap().unwrap();
        let members = attached.scope().members;
        assert_eq!(members.iter().map(|one| one.thread).collect::<Vec<_>>(), [process]);
        assert!(!attached.is_gone());
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(attached.is_gone());
        assert!(attached.scope().members.is_empty());
    }

    #[test]
    fn every_process_but_this_and_the_kernels_threads_is_one_of_all() {
        let members = Attached::All.scope().members;
        let all: HashSet<u32> = members.iter().map(|member| member.process).collect();
        assert!(all.contains(&1), "the first process is there");
        assert!(!all.contains(&std::process::id()));
        assert!(all.iter().all(|process| !is_kernel_thread(*process)));
        assert!(!Attached::All.is_gone());
    }

    #[test]
    fn what_is_not_a_control_group_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        // A file of this name makes no control group.
        fs::write(dir.path().join("cgroup.procs"), "1\n").unwrap();
        let refused = Attached::find(&Target::Cgroup(dir.path().to_owned())).unwrap_err();
        let text = refused.to_string();
        assert!(text.contains(dir.path().to_str().unwrap()), "{text}");
        assert!(text.contains("not a control group"), "{text}");
    }

    #[test]
    fn a_name_is_one_below_a_mount_of_cgroup2_wherever_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let (hybrid, unified) = (dir.path().to_owned(), dir.path().join("unified"));
        for group in [&unified.join("a/b"), &hybrid.join("memory/a"), &hybrid.join("memory/c")] {
            fs::create_dir_all(group).unwrap();
            fs::write(group.join("cgroup.procs"), "").unwrap();
        }
        let find = |name: &str| {
            let mounts = [unified.clone(), hybrid.clone()];
            let found = Cgroup::find_below(name.as_ref(), &mounts, has_processes);
            found.map(|group| group.dir).map_err(|error| error.to_string())
        };
        assert_eq!(find("a/b"), Ok(unified.join("a/b")));
        assert_eq!(find("/a/b"), Ok(unified.join("a/b")));
        assert_eq!(find("unified/a/b"), Ok(unified.join("a/b")));
        assert_eq!(find("memory/c"), Ok(hybrid.join("memory/c")));
        let refused = find("c").unwrap_err();
        assert!(refused.contains("not a control group"), "{refused}");
        assert!(refused.ends_with(&format!("below {}", unified.display())), "{refused}");
    }

    /// The groups of this machine, which may have a mount of cgroup2 anywhere, or none.
    #[test]
    fn the_own_control_group_is_found_by_its_name() {
        let own = fs::read_to_string("/proc/self/cgroup").unwrap();
        let name = own.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or("");
        if !name.is_empty() {
            assert!(Cgroup::find(Path::new(name)).is_ok(), "{name}");
        }
    }

    #[test]
    fn a_control_group_is_followed_below_and_its_removal_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let (outer, inner) = (dir.path().join("a"), dir.path().join("a/b"));
        fs::create_dir_all(&inner).unwrap();
        for file in ["cgroup.procs", "cgroup.controllers"] {
            fs::write(outer.join(file), "").unwrap();
            fs::write(inner.join(file), "").unwrap();
        }
        let own = std::process::id();
        fs::write(inner.join("cgroup.threads"), format!("{own}\n")).unwrap();
        let attached = Attached::Cgroup(Cgroup { dir: outer.clone() });
        let scope = attached.scope();
        assert_eq!(scope.members.iter().map(|one| one.process).collect::<Vec<_>>(), [own]);
        let number = |dir: &Path| fs::metadata(dir).unwrap().ino();
        assert_eq!(scope.cgroups, HashSet::from([number(&outer), number(&inner)]));
        fs::remove_dir_all(&outer).unwrap();
        assert!(attached.is_gone());
    }
}
