//! Operations on processes that tests need and safe code cannot do: fork, limits, another user, a
//! seccomp filter, a storm of signals, the table of signal actions. For tests only, behind a
//! feature.

use std::io::{self, Write};
use std::os::unix::process::ExitStatusExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, ExitStatus, Output};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

pub mod bare;

use crate::errno::Errno;

pub use crate::limit::Limit;

/// `IORING_REGISTER_BUFFERS`, linux/io_uring.h.
pub const REGISTER_BUFFERS: u32 = 0;
/// `IORING_REGISTER_BUFFERS2`, linux/io_uring.h: a sparse table of buffers.
pub const REGISTER_BUFFERS2: u32 = 15;
/// `IORING_REGISTER_FILES2`, linux/io_uring.h: a sparse table of files.
pub const REGISTER_FILES: u32 = 13;
/// `IORING_REGISTER_RING_FDS`, linux/io_uring.h.
pub const REGISTER_RING: u32 = 20;

/// Exit status of a forked child whose body panicked.
const CHILD_PANICKED: i32 = 101;

/// The real-time signals, `SIGRTMAX` included.
const SIGNALS: std::ops::RangeInclusive<i32> = 1..=64;

/// The environment variable of the process of [`in_own_process`]: the name of its test.
const OWN_PROCESS: &str = "DIOPTER_OWN_PROCESS";

/// Begins the line of a skip, which `diopter-skip` writes.
const SKIP: &str = "SKIP ";

/// The longest life of such a process, in seconds.
const OWN_PROCESS_SECONDS: u32 = 50;

/// Hides `IORING_FEAT_EXT_ARG` from the rings that this process sets up from now on, or shows it
/// again: kernels before 5.11 lack it.
pub fn mask_ext_arg(is_masked: bool) {
    EXT_ARG_IS_MASKED.store(is_masked, Ordering::Relaxed);
}

static EXT_ARG_IS_MASKED: AtomicBool = AtomicBool::new(false);

pub(crate) fn is_ext_arg_masked() -> bool {
    EXT_ARG_IS_MASKED.load(Ordering::Relaxed)
}

/// Returns true if this process runs one test alone, for [`in_own_process`].
#[must_use]
pub fn is_own_process() -> bool {
    std::env::var_os(OWN_PROCESS).is_some()
}

/// Runs `body` in a separate process: this test binary again, with the test `name` of `module`
/// (`module_path!()`) alone. Returns the output in the caller, and `None` in that process.
///
/// # Panics
/// Panics if the test binary cannot be run again.
pub fn in_own_process(module: &str, name: &str, body: impl FnOnce()) -> Option<Output> {
    let full_name = match module.split_once("::") {
        Some((_crate, modules)) => format!("{modules}::{name}"),
        None => name.to_owned(),
    };
    if std::env::var_os(OWN_PROCESS).is_some_and(|its| its.to_str() == Some(&full_name)) {
        end_after(OWN_PROCESS_SECONDS);
        body();
        return None;
    }
    let mut command = Command::new(std::env::current_exe().expect("/proc"));
    command.args(["--exact", &full_name, "--nocapture", "--test-threads=1"]);
    command.env(OWN_PROCESS, &full_name).env("RUST_BACKTRACE", "0");
    Some(command.output().expect("the test binary runs again"))
}

/// Runs a `body` that must not fail like [`in_own_process`]. Its skips are printed here too.
///
/// # Panics
/// Panics if `body` failed, with its output, or if there is no such test.
pub fn check_in_own_process(module: &str, name: &str, body: impl FnOnce()) {
    let Some(output) = in_own_process(module, name, body) else { return };
    let [stdout, stderr] =
        [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    assert!(output.status.success(), "{name}: {}\n{stdout}\n{stderr}", output.status);
    assert!(stdout.contains("1 passed"), "no test is called {name}: {stdout}");
    for line in stderr.lines().filter(|line| line.starts_with(SKIP)) {
        // One write, so that lines of other threads stay apart.
        io::stderr().write_all(format!("{line}\n").as_bytes()).expect("stderr takes a line");
    }
}

/// A child of [`fork`].
#[must_use]
pub struct Forked {
    pid: libc::pid_t,
}

/// Forks. The child runs `body` and exits as a program does, with the thread's destructors; the
/// status is 0, or 101 after a panic.
///
/// A lock that another thread of this process holds stays locked in the child.
///
/// # Errors
/// Fails as fork does.
pub fn fork(body: impl FnOnce()) -> io::Result<Forked> {
    // SAFETY: the child has this thread's whole state. It goes on in ordinary code, as the programs
    // do whose life is tested; the C library keeps its allocator usable across a fork.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            let ended = catch_unwind(AssertUnwindSafe(body));
            std::process::exit(if ended.is_ok() { 0 } else { CHILD_PANICKED })
        }
        pid => Ok(Forked { pid }),
    }
}

impl Forked {
    /// Waits for the child's end.
    ///
    /// # Errors
    /// Fails as waitpid does.
    pub fn wait(self) -> io::Result<ExitStatus> {
        let mut status = 0;
        loop {
            // SAFETY: `status` is a live integer that the call fills.
            let waited = unsafe { libc::waitpid(self.pid, &raw mut status, 0) };
            if waited == self.pid {
                return Ok(ExitStatus::from_raw(status));
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}

/// Ends this process by `SIGALRM` after `seconds`, so that a test that hangs fails instead.
pub fn end_after(seconds: u32) {
    // SAFETY: arming the process's alarm clock touches no memory.
    unsafe { libc::alarm(seconds) };
}

/// Sets a soft limit; the hard limit stays.
///
/// # Errors
/// Fails as setrlimit does.
pub fn set_limit(limit: Limit, value: u64) -> io::Result<()> {
    limit.set(value).map_err(|errno| io::Error::from_raw_os_error(errno.raw()))
}

/// Makes this process one of the user and group `id`, without capabilities and other groups.
///
/// # Errors
/// Fails with `EPERM` for other users than root.
pub fn become_user(id: u32) -> io::Result<()> {
    // SAFETY: with a count of 0 the list is not read.
    check(unsafe { libc::setgroups(0, std::ptr::null()) })?;
    // SAFETY: numbers in, no memory.
    check(unsafe { libc::setresgid(id, id, id) })?;
    // SAFETY: numbers in, no memory.
    check(unsafe { libc::setresuid(id, id, id) })
}

/// Returns true if this process runs as root.
#[must_use]
pub fn is_root() -> bool {
    // SAFETY: no arguments, and it can't fail.
    unsafe { libc::geteuid() == 0 }
}

/// Makes the kernel fail every later io_uring call of this process with `errno`, as a container's
/// seccomp filter does. It cannot be undone.
///
/// # Errors
/// Fails as seccomp does.
pub fn refuse_uring(errno: Errno) -> io::Result<()> {
    let numbers = [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register];
    refuse_calls(&numbers, errno)
}

/// Makes the kernel fail every later call of Linux AIO of this process with `errno`. It cannot be
/// undone.
///
/// # Errors
/// Fails as seccomp does.
pub fn refuse_aio(errno: Errno) -> io::Result<()> {
    refuse_calls(&[libc::SYS_io_setup, libc::SYS_io_submit, libc::SYS_io_getevents], errno)
}

/// Makes the kernel fail every later call of this process that reports or sets a limit with
/// `errno`. It cannot be undone.
///
/// # Errors
/// Fails as seccomp does.
pub fn refuse_limits(errno: Errno) -> io::Result<()> {
    refuse_calls(&[libc::SYS_prlimit64, libc::SYS_getrlimit, libc::SYS_setrlimit], errno)
}

/// Makes the kernel fail every later getrandom(2) of this process with `errno`. It cannot be
/// undone.
///
/// # Errors
/// Fails as seccomp does.
pub fn refuse_random(errno: Errno) -> io::Result<()> {
    refuse_calls(&[libc::SYS_getrandom], errno)
}

/// Makes the kernel fail every later call for the user, the group and the number of this process
/// with `errno`. It cannot be undone.
///
/// # Errors
/// Fails as seccomp does.
pub fn refuse_ids(errno: Errno) -> io::Result<()> {
    let calls = [libc::SYS_getuid, libc::SYS_geteuid, libc::SYS_getgid, libc::SYS_getpid];
    refuse_calls(&calls, errno)
}

/// Makes the kernel fail every later `fallocate` and `madvise` of this process with `errno`: hints
/// for the kernel. It cannot be undone.
///
/// # Errors
/// Fails as seccomp does.
pub fn refuse_hints(errno: Errno) -> io::Result<()> {
    refuse_calls(&[libc::SYS_fallocate, libc::SYS_madvise, libc::SYS_fadvise64], errno)
}

/// Makes the kernel fail every later `fstatfs` of this process with `errno`. It cannot be undone.
///
/// # Errors
/// Fails as seccomp does.
pub fn refuse_statfs(errno: Errno) -> io::Result<()> {
    refuse_calls(&[libc::SYS_fstatfs], errno)
}

/// Makes the kernel fail the system calls of these numbers with `errno` from now on.
fn refuse_calls(numbers: &[libc::c_long], errno: Errno) -> io::Result<()> {
    let mut program = vec![load(SECCOMP_NUMBER)];
    for (place, call) in numbers.iter().enumerate() {
        let to_the_last = u8::try_from(numbers.len() - place).expect("few calls");
        program.push(jump_if_equal(number(*call), to_the_last, 0));
    }
    program.extend([ret(libc::SECCOMP_RET_ALLOW), ret(refusal(errno))]);
    install(&mut program)
}

/// Makes the kernel fail the registration `opcode` of every ring with `errno`, as a kernel does
/// that is too old for it. It cannot be undone.
///
/// # Errors
/// Fails as seccomp does.
pub fn refuse_uring_registration(opcode: u32, errno: Errno) -> io::Result<()> {
    install(&mut [
        load(SECCOMP_NUMBER),
        jump_if_equal(number(libc::SYS_io_uring_register), 0, 2),
        load(SECCOMP_SECOND_ARGUMENT),
        jump_if_equal(opcode, 1, 0),
        ret(libc::SECCOMP_RET_ALLOW),
        ret(refusal(errno)),
    ])
}

/// Offset of the system call's number in `struct seccomp_data`, linux/seccomp.h.
const SECCOMP_NUMBER: u32 = 0;
/// Offset of the low half of the second argument.
const SECCOMP_SECOND_ARGUMENT: u32 = if cfg!(target_endian = "little") { 24 } else { 28 };

fn number(call: libc::c_long) -> u32 {
    u32::try_from(call).expect("numbers of system calls are small")
}

fn refusal(errno: Errno) -> u32 {
    libc::SECCOMP_RET_ERRNO | errno.raw().unsigned_abs()
}

fn load(offset: u32) -> libc::sock_filter {
    filter(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, (0, 0))
}

fn jump_if_equal(value: u32, equal: u8, other: u8) -> libc::sock_filter {
    filter(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, value, (equal, other))
}

fn ret(value: u32) -> libc::sock_filter {
    filter(libc::BPF_RET | libc::BPF_K, value, (0, 0))
}

fn filter(code: u32, k: u32, (jt, jf): (u8, u8)) -> libc::sock_filter {
    let code = u16::try_from(code).expect("codes have 16 bits");
    libc::sock_filter { code, jt, jf, k }
}

fn install(program: &mut [libc::sock_filter]) -> io::Result<()> {
    let length = u16::try_from(program.len()).expect("a few instructions");
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: numbers in, no memory.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) })?;
    // SAFETY: `program` names `len` instructions that live until the call returns; the kernel
    // copies them.
    let installed = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    if installed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn check(returned: i32) -> io::Result<()> {
    if returned == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

static SIGNALS_SEEN: AtomicU64 = AtomicU64::new(0);

/// Signals to the thread that started the storm, at a fixed rate, with a handler that does not
/// restart system calls. The handler stays for the life of the process.
pub struct SignalStorm {
    timer: libc::timer_t,
    seen_before: u64,
}

impl SignalStorm {
    /// Starts signalling this thread every `interval`.
    ///
    /// # Errors
    /// Fails as sigaction and timer_create do.
    pub fn start(interval: Duration) -> io::Result<SignalStorm> {
        static HANDLER: Once = Once::new();
        HANDLER.call_once(|| install_handler().expect("SIGUSR1 can be handled"));
        // SAFETY: an all-zero `sigevent` is one: integers and a pointer that is not followed.
        let mut event: libc::sigevent = unsafe { std::mem::zeroed() };
        event.sigev_notify = libc::SIGEV_THREAD_ID;
        event.sigev_signo = libc::SIGUSR1;
        // SAFETY: no arguments, and it can't fail.
        event.sigev_notify_thread_id = unsafe { libc::gettid() };
        let mut timer: libc::timer_t = std::ptr::null_mut();
        // SAFETY: `event` is read and `timer` filled during the call only.
        check(unsafe {
            libc::timer_create(libc::CLOCK_MONOTONIC, &raw mut event, &raw mut timer)
        })?;
        let storm = SignalStorm { timer, seen_before: SIGNALS_SEEN.load(Ordering::Relaxed) };
        let nanos = i64::from(interval.subsec_nanos());
        let every = libc::timespec { tv_sec: 0, tv_nsec: nanos };
        let times = libc::itimerspec { it_interval: every, it_value: every };
        // SAFETY: the timer was made above; `times` is read during the call only.
        check(unsafe { libc::timer_settime(timer, 0, &raw const times, std::ptr::null_mut()) })?;
        Ok(storm)
    }

    /// Returns the number of signals handled since the start, in the whole process.
    #[must_use]
    pub fn seen(&self) -> u64 {
        SIGNALS_SEEN.load(Ordering::Relaxed) - self.seen_before
    }
}

impl Drop for SignalStorm {
    fn drop(&mut self) {
        // SAFETY: the timer was made by `start` and is deleted once.
        let deleted = unsafe { libc::timer_delete(self.timer) };
        debug_assert_eq!(deleted, 0, "timer_delete of an existing timer");
    }
}

extern "C" fn count_signal(_signal: libc::c_int) {
    SIGNALS_SEEN.fetch_add(1, Ordering::Relaxed);
}

fn install_handler() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int) = count_signal;
    // SAFETY: an all-zero `sigaction` is one: no flags (so no SA_RESTART), an empty mask.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler as libc::sighandler_t;
    // SAFETY: the handler only adds to an atomic, which is allowed in a handler; `action` is read
    // during the call only.
    check(unsafe { libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()) })
}

/// The action of this process on a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignalAction {
    pub signal: i32,
    /// Address of the handler, or one of `SIG_DFL` and `SIG_IGN`.
    pub handler: usize,
    pub flags: i32,
}

/// Returns the action on each signal that a program can handle.
#[must_use]
pub fn signal_actions() -> Vec<SignalAction> {
    let action_of = |signal| {
        // SAFETY: an all-zero `sigaction` is one.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: without a new action the call only fills `action`.
        let asked = unsafe { libc::sigaction(signal, std::ptr::null(), &raw mut action) };
        let (handler, flags) = (action.sa_sigaction, action.sa_flags);
        (asked == 0).then_some(SignalAction { signal, handler, flags })
    };
    SIGNALS.filter_map(action_of).collect()
}

/// Returns the bytes of `[start, start + length)` that are mapped in this process.
///
/// # Panics
/// Panics without /proc.
#[must_use]
pub fn mapped_bytes(start: usize, length: usize) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc");
    let overlap = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let from = usize::from_str_radix(from, 16).ok()?.max(start);
        let to = usize::from_str_radix(to, 16).ok()?.min(start + length);
        Some(to.saturating_sub(from))
    };
    maps.lines().filter_map(overlap).sum()
}

#[cfg(test)]
mod tests {
    use super::{Command, check_in_own_process};
    use diopter_skip::{Capability, REQUIRE, skip};

    /// The variable under which the test skips; xtask sets it too.
    const ORDER: &str = "DIOPTER_SKIP_EACH";

    /// The skips of a process of its test are those of the test.
    #[test]
    fn skips_each_capability_in_another_process() {
        let name = "skips_each_capability_in_another_process";
        if std::env::var_os(ORDER).is_some() {
            return check_in_own_process(module_path!(), name, || {
                for capability in Capability::ALL {
                    skip(*capability, format!("ordered by {ORDER}"));
                }
            });
        }
        let mut command = Command::new(std::env::current_exe().expect("/proc"));
        command.args(["--exact", &format!("testing::tests::{name}")]);
        let output = command.env(ORDER, "1").env(REQUIRE, "").output().expect("it runs again");
        assert!(output.status.success(), "{output:?}");
        let expected: String =
            Capability::ALL.iter().map(|it| format!("SKIP {it}: ordered by {ORDER}\n")).collect();
        assert_eq!(String::from_utf8_lossy(&output.stderr), expected);
    }
}
