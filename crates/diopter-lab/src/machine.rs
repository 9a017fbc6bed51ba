//! The virtual machine: an emulator whose clock counts the guest's instructions, pinned to one
//! processor of the host, ended with its parent or at its limit. It leaves no file behind: what it
//! reads and writes besides the kernel's image is memory of this process.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags};

use crate::error::BootError;
use crate::initramfs::Initramfs;
use crate::kernel::Kernel;
use crate::trust;

const QEMU: &str = "qemu-system-x86_64";
/// Keeps the emulator from system calls that it has no use for.
const SANDBOX: [&str; 2] =
    ["-sandbox", "on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny"];
/// The processor. `cx16` made kernels crash under QEMU 7.2; `erms` and `fsrm` count a copy of any
/// length as few instructions.
const CPU: &str = "max,-cx16,-erms,-fsrm";
/// How often the wish to stop is looked at while a guest runs.
const STOP_LOOK: Duration = Duration::from_millis(100);
/// How many of the console's last lines an error has by default.
const TAIL_LINES: usize = 12;
/// More than this of a guest's output is not taken.
const OUTPUT_MAX: u64 = 64 << 20;

/// An emulator.
#[derive(Clone, Debug)]
pub struct Machine {
    qemu: PathBuf,
    version: String,
    has_sandbox: bool,
}

/// How a guest is booted. Figures are comparable only under equal `shift` and `memory_bytes`.
#[derive(Clone, Debug)]
pub struct BootOptions {
    /// Each instruction takes `1 << shift` virtual nanoseconds.
    pub shift: u8,
    /// The guest's memory, in bytes.
    pub memory_bytes: u64,
    /// Wall-clock time, after which it counts as hung.
    pub limit: Duration,
    /// Wall-clock time without a word on its console, after which it counts as hung as well.
    pub quiet_limit: Option<Duration>,
    /// How many of the console's last lines an error has.
    pub tail_lines: usize,
    /// The processor of the host that it is pinned to; see [`Fleet`](super::Fleet). Unpinned, long
    /// boots are not exactly the same.
    pub cpu: Option<usize>,
    /// Bytes of an NVMe device, all zeros. It works in the host's time, so with it no figure is the
    /// same twice.
    pub nvme_bytes: Option<u64>,
    /// More options of the emulator, such as devices: `-blockdev`, `-device` and their values.
    pub devices: Vec<String>,
    /// Files that `devices` name by [`inherited_name`]: the emulator has these descriptors, and is
    /// not allowed to open much by path. Their mode lets every user read and write them.
    pub inherited: Vec<Arc<OwnedFd>>,
    /// More words for the kernel's command line.
    pub append: String,
    /// Once true, the guest is ended.
    pub stop: Option<Arc<AtomicBool>>,
}

/// The output of a guest.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Console {
    /// The output of the job's script.
    pub results: String,
    /// The console, with the kernel's messages.
    pub console: String,
    /// Exit status of the script.
    pub status: i32,
    /// Wall-clock time of the whole boot.
    pub wall: Duration,
}

impl Default for BootOptions {
    fn default() -> BootOptions {
        BootOptions {
            shift: 0,
            memory_bytes: 768 << 20,
            limit: Duration::from_secs(600),
            quiet_limit: None,
            tail_lines: TAIL_LINES,
            cpu: None,
            nvme_bytes: None,
            devices: Vec::new(),
            inherited: Vec::new(),
            append: String::new(),
            stop: None,
        }
    }
}

impl Machine {
    /// The emulator of this system.
    ///
    /// # Errors
    /// [`BootError::NoQemu`], or what went wrong asking for its version.
    pub fn find() -> Result<Machine, BootError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let found = std::env::split_paths(&path).map(|dir| dir.join(QEMU));
        let qemu = found.into_iter().find(|name| name.is_file()).ok_or(BootError::NoQemu)?;
        Machine::at(&qemu)
    }

    /// The emulator at a path.
    ///
    /// # Errors
    /// What went wrong asking for its version.
    pub fn at(qemu: &Path) -> Result<Machine, BootError> {
        let ask = |words: &[&str]| {
            let reported =
                Command::new(qemu).args(words).arg("--version").stdin(Stdio::null()).output();
            reported.map_err(|error| failed("start", qemu, &error.to_string()))
        };
        // One that was built without the sandbox refuses the option.
        let sandboxed = ask(&SANDBOX)?;
        let has_sandbox = sandboxed.status.success();
        let reported = if has_sandbox { sandboxed } else { ask(&[])? };
        let reported = String::from_utf8_lossy(&reported.stdout).into_owned();
        let version = reported.lines().next().unwrap_or_default();
        let version = version.trim_start_matches("QEMU emulator version ").to_owned();
        Ok(Machine { qemu: qemu.to_owned(), version, has_sandbox })
    }

    /// Returns the facts that must be the same for figures to be comparable, by name.
    #[must_use]
    pub fn facts(&self, options: &BootOptions) -> BTreeMap<String, String> {
        let words = words_of(options);
        let command = words.iter().filter(|word| !word.contains("/proc/"));
        let command = command.cloned().collect::<Vec<_>>().join(" ");
        let fact = |name: &str, value: String| (name.to_owned(), value);
        BTreeMap::from([
            fact("qemu_version", self.version.clone()),
            fact("qemu_flags", command),
            fact("kernel_command_line", command_line(options)),
        ])
    }

    /// Boots a kernel, runs the script as the guest's only job, and waits for the end.
    ///
    /// # Errors
    /// [`BootError`]; then no guest is left running either.
    pub fn boot(
        &self,
        kernel: &Kernel,
        initramfs: &Initramfs,
        script: &str,
        options: &BootOptions,
    ) -> Result<Console, BootError> {
        let begin = Instant::now();
        let image = trust::read(&kernel.image, Some(&kernel.image_digest))
            .map_err(|error| failed("boot", &kernel.image, &error.to_string()))?;
        let initrd = initramfs.with_job(script);
        let mut files = Files::make((&image, &initrd), options.nvme_bytes.unwrap_or(0))
            .map_err(|error| failed("prepare", &self.qemu, &error.to_string()))?;
        let mut child = self.spawn(&files, options)?;
        let ended = wait(&mut child, &[&files.console, &files.results], options);
        let tail = |text: &str| tail(text, options.tail_lines);
        let (console, results) = (files.console.text(), files.results.text());
        match ended.map_err(|error| failed("wait for", &self.qemu, &error.to_string()))? {
            Ended::Stopped => Err(BootError::Stopped),
            Ended::TimedOut => Err(BootError::Hang(options.limit, tail(&console))),
            Ended::Quiet(limit) => Err(BootError::Quiet(limit, tail(&console))),
            Ended::Flooded => Err(BootError::Flood(tail(&console))),
            Ended::Exited(is_success) => {
                let status = status_of(&console);
                match status {
                    Some(status) if is_success => {
                        Ok(Console { results, console, status, wall: begin.elapsed() })
                    }
                    _ if is_panic(&console) => Err(BootError::Panic(tail(&console))),
                    _ if is_success => Err(BootError::Silent(tail(&console))),
                    _ => Err(failed("run", &self.qemu, &tail(&files.complaints.text()))),
                }
            }
        }
    }

    fn spawn(&self, files: &Files, options: &BootOptions) -> Result<Child, BootError> {
        let failed = |error: io::Error| failed("start", &self.qemu, &error.to_string());
        let complaints = files.complaints.0.try_clone().map_err(failed)?;
        let shared = files.shared().map_err(failed)?;
        let [image, initrd, console, results, disk] = shared.each_ref().map(inherited_name);
        let mut command = Command::new(&self.qemu);
        if self.has_sandbox {
            command.args(SANDBOX);
        }
        command.args(words_of(options)).arg("-append").arg(command_line(options));
        command.args(["-kernel", &image, "-initrd", &initrd]);
        for output in [console, results] {
            command.arg("-serial").arg(format!("file:{output}"));
        }
        if options.nvme_bytes.is_some() {
            // No other process can open the file, so its lock would exclude none.
            let drive = format!("file={disk},if=none,id=lab,format=raw,file.locking=off");
            command.args(["-drive", &drive, "-device", "nvme,drive=lab,serial=lab"]);
        }
        command.args(&options.devices);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(complaints);
        // The interrupt key of a terminal would end it before this process has the signal.
        command.process_group(0);
        let mut kept: Vec<Arc<OwnedFd>> = shared.into_iter().map(Arc::new).collect();
        kept.extend(options.inherited.iter().cloned());
        let confined = diopter_os::child::confine(&mut command, options.cpu, kept);
        confined.spawn().map_err(failed)
    }
}

/// The emulator's own options: all that has a bearing on figures.
fn words_of(options: &BootOptions) -> Vec<String> {
    let memory = format!("{}M", options.memory_bytes >> 20);
    let icount = format!("shift={},sleep=off", options.shift);
    let words = [
        "-M",
        "pc",
        "-accel",
        "tcg,thread=single",
        "-cpu",
        CPU,
        "-smp",
        "1",
        "-m",
        &memory,
        "-icount",
        &icount,
        "-seed",
        "1",
        "-rtc",
        "base=2024-01-01T00:00:00,clock=vm",
        "-nodefaults",
        "-display",
        "none",
        "-no-reboot",
        "-nic",
        "none",
        "-monitor",
        "none",
    ];
    words.into_iter().map(str::to_owned).collect()
}

fn command_line(options: &BootOptions) -> String {
    let line = "console=ttyS0 panic=-1 quiet mitigations=off nokaslr";
    format!("{line} {}", options.append).trim_end().to_owned()
}

/// The files of one guest, in memory: the emulator, which may open nothing of root's by name, finds
/// them by their descriptors. They are gone with both.
struct Files {
    image: MemoryFile,
    initrd: MemoryFile,
    disk: MemoryFile,
    console: MemoryFile,
    results: MemoryFile,
    complaints: MemoryFile,
}

struct MemoryFile(File);

impl Files {
    fn make((image, initrd): (&[u8], &[u8]), disk_bytes: u64) -> io::Result<Files> {
        let files = Files {
            image: MemoryFile::make("lab-image")?,
            initrd: MemoryFile::make("lab-initrd")?,
            disk: MemoryFile::make("lab-disk")?,
            console: MemoryFile::make("lab-console")?,
            results: MemoryFile::make("lab-results")?,
            complaints: MemoryFile::make("lab-complaints")?,
        };
        (&files.image.0).write_all(image)?;
        (&files.initrd.0).write_all(initrd)?;
        files.disk.0.set_len(disk_bytes)?;
        Ok(files)
    }

    /// Descriptors for the emulator: image, initrd, console, results and disk.
    fn shared(&self) -> io::Result<[OwnedFd; 5]> {
        let copy = |file: &MemoryFile| Ok::<_, io::Error>(file.0.try_clone()?.into());
        let Files { image, initrd, console, results, disk, .. } = self;
        Ok([copy(image)?, copy(initrd)?, copy(console)?, copy(results)?, copy(disk)?])
    }
}

/// The name of an inherited file, in the emulator that has it.
#[must_use]
pub fn inherited_name(file: &OwnedFd) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

impl MemoryFile {
    fn make(name: &str) -> io::Result<MemoryFile> {
        Ok(MemoryFile(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?.into()))
    }

    /// Returns the output, without the carriage returns of a terminal. What cannot be read is not
    /// there: a guest's output is judged by what is in it.
    fn text(&mut self) -> String {
        let mut bytes = Vec::new();
        let read =
            self.0.rewind().and_then(|()| (&self.0).take(OUTPUT_MAX).read_to_end(&mut bytes));
        if read.is_err() {
            return String::new();
        }
        String::from_utf8_lossy(&bytes).replace('\r', "")
    }
}

enum Ended {
    Exited(bool),
    TimedOut,
    /// It printed nothing for so long.
    Quiet(Duration),
    /// It printed more than [`OUTPUT_MAX`].
    Flooded,
    Stopped,
}

/// Waits for the end, a limit or the wish to stop; in every case the child is gone afterwards.
fn wait(child: &mut Child, outputs: &[&MemoryFile], options: &BootOptions) -> io::Result<Ended> {
    let ended = watch(child, outputs, options);
    if !matches!(ended, Ok(Ended::Exited(_))) {
        // A child that has just ended by itself can't be killed, and is waited for as well.
        child.kill().ok();
        child.wait()?;
    }
    ended
}

/// The first of the outputs is the console.
fn watch(child: &mut Child, outputs: &[&MemoryFile], options: &BootOptions) -> io::Result<Ended> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.ok_or(io::Error::from(io::ErrorKind::InvalidInput))?;
    let handle = rustix::process::pidfd_open(pid, PidfdFlags::empty())?;
    let begin = Instant::now();
    let mut printed = (0, begin);
    let is_stopped = || options.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed));
    loop {
        if is_stopped() {
            return Ok(Ended::Stopped);
        }
        let lengths = outputs.iter().map(|output| Ok(output.0.metadata()?.len()));
        let lengths: Vec<u64> = lengths.collect::<io::Result<_>>()?;
        if lengths.iter().any(|length| *length > OUTPUT_MAX) {
            return Ok(Ended::Flooded);
        }
        if lengths[0] != printed.0 {
            printed = (lengths[0], Instant::now());
        }
        if let Some(limit) = options.quiet_limit.filter(|limit| printed.1.elapsed() > *limit) {
            return Ok(Ended::Quiet(limit));
        }
        let left = options.limit.saturating_sub(begin.elapsed());
        let slice = Timespec::try_from(left.min(STOP_LOOK)).map_err(io::Error::other)?;
        let mut polled = [PollFd::from_borrowed_fd(handle.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut polled, Some(&slice)) {
            Ok(0) if left.is_zero() => return Ok(Ended::TimedOut),
            Ok(0) | Err(rustix::io::Errno::INTR) => {}
            Ok(_) => {
                let status = child.wait()?;
                // A signal to a whole session ends the emulator too.
                let ended =
                    if is_stopped() { Ended::Stopped } else { Ended::Exited(status.success()) };
                return Ok(ended);
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the exit status of the script, which init prints last.
fn status_of(console: &str) -> Option<i32> {
    let lines = console.lines().rev().take(TAIL_LINES);
    lines.filter_map(|line| line.strip_prefix("lab: end ")).find_map(|status| status.parse().ok())
}

fn is_panic(console: &str) -> bool {
    console.contains("Kernel panic") || console.contains("BUG:") || console.contains("Oops")
}

/// The last lines that are not empty, so many at most.
fn tail(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(count)..].join("\n")
}

fn failed(step: &str, qemu: &Path, what: &str) -> BootError {
    BootError::Emulator(format!("{step} {}: {what}", qemu.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulator_that_the_same_signal_ended_was_stopped() {
        let stop = Arc::new(AtomicBool::new(false));
        let options = BootOptions { stop: Some(Arc::clone(&stop)), ..BootOptions::default() };
        let mut child = Command::new("sleep").arg("600").spawn().unwrap();
        let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
        let interrupt = std::thread::spawn(move || {
            stop.store(true, Ordering::Relaxed);
            rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
        });
        let console = MemoryFile::make("console").unwrap();
        let ended = wait(&mut child, &[&console], &options).unwrap();
        assert!(matches!(ended, Ended::Stopped));
        interrupt.join().unwrap();

        let options = BootOptions { stop: Some(Arc::default()), ..BootOptions::default() };
        let mut child = Command::new("true").spawn().unwrap();
        assert!(matches!(wait(&mut child, &[&console], &options).unwrap(), Ended::Exited(true)));
    }
}
