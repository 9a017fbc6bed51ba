//! Child processes: attributes that only a process can set for itself, between fork and exec.

use std::ffi::c_int;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use rustix::io::FdFlags;
use rustix::process::{Pid, Signal};
use rustix::thread::CpuSet;

/// `nobody` and `nogroup`, by number: they own no files.
const UNPRIVILEGED: u32 = 65_534;

/// Makes the program die with the *thread* that starts it, however that ends, and run on `cpu`
/// alone if one is given. Start and wait in one thread.
///
/// `spawn` fails with ESRCH if the parent is gone before the program runs, and with the kernel's
/// error if the processor does not exist.
pub fn bind_to_parent(command: &mut Command, cpu: Option<usize>) -> &mut Command {
    let parent = crate::ids::process();
    let cpus = cpu.map(|cpu| {
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        cpus
    });
    // SAFETY: between fork and exec only system calls are made, on values that were made before:
    // no memory is allocated and no lock is taken.
    unsafe { command.pre_exec(move || prepare(parent, cpus.as_ref())) }
}

fn prepare(parent: i32, cpus: Option<&CpuSet>) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above: then no signal will come.
    if Pid::as_raw(rustix::process::getppid()) != parent {
        return Err(rustix::io::Errno::SRCH.into());
    }
    if let Some(cpus) = cpus {
        rustix::thread::sched_setaffinity(None, cpus)?;
    }
    Ok(())
}

/// Removes the program's privileges: it runs as the user and group that own nothing, cannot gain
/// privilege, and dies with the thread that starts it, as by [`bind_to_parent`]. It inherits
/// `files` open under their numbers, its only access to files that it may not open by name.
pub fn confine(
    command: &mut Command,
    cpu: Option<usize>,
    files: Vec<Arc<OwnedFd>>,
) -> &mut Command {
    if crate::ids::is_root() {
        // Set before `bind_to_parent`, because a change of user resets its setting.
        command.uid(UNPRIVILEGED).gid(UNPRIVILEGED);
    }
    // SAFETY: between fork and exec only system calls are made, on values that were made before:
    // no memory is allocated and no lock is taken.
    unsafe {
        command.pre_exec(move || {
            rustix::thread::set_no_new_privs(true)?;
            let keep = |file: &Arc<OwnedFd>| rustix::io::fcntl_setfd(file, FdFlags::empty());
            Ok(files.iter().try_for_each(keep)?)
        });
    }
    bind_to_parent(command, cpu)
}

/// The signals that this process inherited as blocked or ignored, for a program that it runs:
/// `Command` starts a program with none blocked and `SIGPIPE` at its default.
#[derive(Clone, Copy)]
pub struct InheritedSignals {
    blocked: libc::sigset_t,
    /// `SIGPIPE`, which Rust's runtime ignores in each program of Rust, and `SIGCHLD`.
    ignored: [Option<c_int>; 2],
}

impl InheritedSignals {
    /// Notes the mask of this thread, before it changes. The feature `inherit` is needed for an
    /// ignored `SIGPIPE`.
    #[must_use]
    pub fn note() -> InheritedSignals {
        // SAFETY: an all-zero set is an empty one, which the call fills.
        let mut blocked: libc::sigset_t = unsafe { std::mem::zeroed() };
        // SAFETY: a null set changes nothing; the other is a local variable.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &raw mut blocked) };
        let pipe = start::ignored_pipe().then_some(libc::SIGPIPE);
        let child = is_ignored(libc::SIGCHLD).then_some(libc::SIGCHLD);
        InheritedSignals { blocked, ignored: [pipe, child] }
    }

    /// Has the kernel keep the status of a child until this process asks for it, which it does not
    /// for one that ignores `SIGCHLD`.
    pub fn keep_statuses(&self) {
        if self.ignored.contains(&Some(libc::SIGCHLD)) {
            // SAFETY: the default disposition runs no code of this process.
            unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        }
    }

    /// Has the program start with these signals blocked and ignored.
    pub fn pass_to(self, command: &mut Command) -> &mut Command {
        // SAFETY: between fork and exec only system calls are made, on values that were made
        // before: no memory is allocated and no lock is taken.
        unsafe { command.pre_exec(move || self.restore()) }
    }

    fn restore(&self) -> io::Result<()> {
        for signal in self.ignored.into_iter().flatten() {
            // SAFETY: that disposition runs no code of this process.
            unsafe { libc::signal(signal, libc::SIG_IGN) };
        }
        let (blocked, none) = (&raw const self.blocked, std::ptr::null_mut());
        // SAFETY: the set is valid, and the old one is not asked for.
        match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, blocked, none) } {
            0 => Ok(()),
            errno => Err(io::Error::from_raw_os_error(errno)),
        }
    }
}

/// Returns true if this process ignores the signal.
fn is_ignored(signal: c_int) -> bool {
    // SAFETY: an all-zero `sigaction` is one.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: a null action changes nothing; the other is a local variable.
    let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
    asked == 0 && action.sa_sigaction == libc::SIG_IGN
}

/// The state of `SIGPIPE` before `main`: Rust's runtime has changed it when that runs.
#[cfg(feature = "inherit")]
mod start {
    use std::sync::atomic::{AtomicBool, Ordering};

    static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);

    /// Runs before Rust's runtime starts.
    #[used]
    // SAFETY: the section holds addresses of functions without arguments; this one makes a system
    // call and stores a flag, and needs nothing of the runtime.
    #[unsafe(link_section = ".init_array")]
    static NOTE: extern "C" fn() = {
        extern "C" fn note() {
            IGNORED_PIPE.store(super::is_ignored(libc::SIGPIPE), Ordering::Relaxed);
        }
        note
    };

    pub(super) fn ignored_pipe() -> bool {
        IGNORED_PIPE.load(Ordering::Relaxed)
    }
}

#[cfg(not(feature = "inherit"))]
mod start {
    pub(super) fn ignored_pipe() -> bool {
        false
    }
}

/// Returns the processors that this thread may run on, in order.
///
/// # Errors
/// Fails with the kernel's error.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let cpus = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| cpus.is_set(*cpu)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_runs_on_the_processor_that_it_was_given() {
        let cpu = *allowed_cpus().unwrap().last().unwrap();
        let mut command = Command::new("grep");
        command.args(["Cpus_allowed_list", "/proc/self/status"]);
        let reported = bind_to_parent(&mut command, Some(cpu)).output().unwrap();
        let reported = String::from_utf8(reported.stdout).unwrap();
        assert_eq!(reported.trim_end(), format!("Cpus_allowed_list:\t{cpu}"));
    }

    #[test]
    fn a_confined_program_has_no_root_and_finds_its_files() {
        use std::io::Write;
        use std::os::fd::AsRawFd;
        let made = rustix::fs::memfd_create("content", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        let mut file = std::fs::File::from(made);
        file.write_all(b"content ").unwrap();
        let script = format!(
            "cat /proc/self/fd/{}; id -u; grep NoNewPrivs /proc/self/status",
            file.as_raw_fd()
        );
        let mut command = Command::new("sh");
        command.args(["-c", &script]);
        let output = confine(&mut command, None, vec![Arc::new(file.into())]).output().unwrap();
        let text = String::from_utf8(output.stdout).unwrap();
        let user = crate::ids::effective_user();
        let user = if user == 0 { UNPRIVILEGED } else { user };
        assert_eq!(text, format!("content {user}\nNoNewPrivs:\t1\n"));
    }

    #[test]
    fn a_program_dies_with_the_thread_that_started_it() {
        let start = || {
            let mut command = Command::new("sleep");
            command.arg("1000");
            bind_to_parent(&mut command, None).spawn().unwrap()
        };
        let mut child = std::thread::spawn(start).join().unwrap();
        let status = child.wait().unwrap();
        assert!(!status.success());
    }
}
