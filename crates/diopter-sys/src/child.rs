//! Programs that are started: what only a process can set for itself, between fork and exec.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal};
use rustix::thread::CpuSet;

/// The program dies with the *thread* that starts it, however that ends, and runs on `cpu` alone
/// where one is named. Start and wait in one thread.
///
/// `spawn` fails with ESRCH where the parent is gone before the program runs, and with the kernel's
/// error where the processor is not there.
pub fn bind_to_parent(command: &mut Command, cpu: Option<usize>) -> &mut Command {
    let parent = rustix::process::getpid();
    let cpus = cpu.map(|cpu| {
        let mut cpus = CpuSet::new();
        cpus.set(cpu);
        cpus
    });
    // SAFETY: between fork and exec only system calls are made, on values that were made before:
    // no memory is allocated and no lock is taken.
    unsafe { command.pre_exec(move || prepare(parent, cpus.as_ref())) }
}

fn prepare(parent: Pid, cpus: Option<&CpuSet>) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have died before the line above: then no signal will come.
    if rustix::process::getppid() != Some(parent) {
        return Err(rustix::io::Errno::SRCH.into());
    }
    if let Some(cpus) = cpus {
        rustix::thread::sched_setaffinity(None, cpus)?;
    }
    Ok(())
}

/// The processors that this thread may run on, in order.
///
/// # Errors
/// The kernel's.
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
        let told = bind_to_parent(&mut command, Some(cpu)).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        assert_eq!(told.trim_end(), format!("Cpus_allowed_list:\t{cpu}"));
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
