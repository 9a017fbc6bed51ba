//! A Ceph cluster of `tools/ceph-mini`, which ends with its owner.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use diopter_skip::{Capability, skip};

/// A running cluster with the pool `data`.
pub struct Ceph {
    pub conf: PathBuf,
    program: Child,
    /// The cluster ends when it is closed, whatever ends this process.
    input: Option<ChildStdin>,
}

impl Ceph {
    /// Starts a cluster with options of ceph-mini; skips where Ceph is not installed.
    pub fn start(options: &[&str]) -> Option<Ceph> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let is_installed = |tool: &str| {
            let path = std::env::var_os("PATH").unwrap_or_default();
            std::env::split_paths(&path).any(|dir| dir.join(tool).is_file())
        };
        let tools = ["ceph-mon", "ceph-osd", "ceph", "rados"];
        if let Some(tool) = tools.into_iter().find(|tool| !is_installed(tool)) {
            skip(Capability::Ceph, format!("{tool} is not installed"));
            return None;
        }
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/ceph-mini");
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // A short path: those of sockets are bounded.
        let dir = std::env::temp_dir().join(format!("dio-ceph-cp-{}-{number}", std::process::id()));
        let mut command = Command::new(program);
        command.args(options).arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = command.spawn().expect("bash");
        let input = program.stdin.take();
        let mut line = String::new();
        let stdout = program.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("text");
        assert!(line.ends_with("/ceph.conf\n"), "ceph-mini printed {line:?}");
        Some(Ceph { conf: PathBuf::from(line.trim_end()), program, input })
    }

    /// Runs `rados` on the pool, which must succeed; returns its output. An operation that is run
    /// again has the same result.
    pub fn rados<T: AsRef<OsStr>>(&self, arguments: &[T]) -> Vec<u8> {
        let mut output = self.try_rados(arguments);
        for _ in 0..5 {
            if !crashed(&output) {
                break;
            }
            output = self.try_rados(arguments);
        }
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    }

    /// Runs `rados` on the pool.
    pub fn try_rados<T: AsRef<OsStr>>(&self, arguments: &[T]) -> Output {
        let mut command = Command::new("rados");
        command.env_remove("CEPH_ARGS").arg("-c").arg(&self.conf).args(["--pool", "data"]);
        command.args(arguments).output().expect("rados")
    }
}

impl Ceph {
    /// Runs `ceph`, which must succeed; returns its output.
    pub fn ceph(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("ceph");
        command.env_remove("CEPH_ARGS").arg("-c").arg(&self.conf);
        let output = command.args(arguments).output().expect("ceph");
        assert!(output.status.success(), "ceph {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Kills the object store with this number. One in memory loses its content.
    pub fn kill_store(&self, number: u32) {
        let file = self.conf.with_file_name("run").join(format!("osd.{number}.pid"));
        let pid = std::fs::read_to_string(file).expect("a number");
        let status = Command::new("kill").args(["-KILL", pid.trim()]).status().expect("kill");
        assert!(status.success(), "store {number} does not run");
    }

    /// Starts an object store that was killed. It ends with what is returned.
    pub fn start_store(&self, number: u32) -> Store {
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "KILL", "ceph-osd", "-f", "-i", &number.to_string(), "-c"]);
        command.arg(&self.conf).env("CEPH_CONF", &self.conf).env_remove("CEPH_ARGS");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        Store(command.spawn().expect("setpriv"))
    }
}

/// A store that was started again.
pub struct Store(Child);

impl Drop for Store {
    fn drop(&mut self) {
        self.0.kill().expect("it is this process's child");
        self.0.wait().expect("it is this process's child");
    }
}

impl Drop for Ceph {
    fn drop(&mut self) {
        drop(self.input.take());
        // It removes its directory before it ends.
        self.program.wait().expect("it is this process's child");
    }
}

/// True if the tool crashed by itself, perhaps before its work: in Ceph 16 a thread of the
/// connection sometimes looks a setting up in a table that no longer exists.
fn crashed(output: &Output) -> bool {
    const SIGSEGV: i32 = 11;
    let message = String::from_utf8_lossy(&output.stderr);
    let is_of_thread = message.contains("thread_name:io_context_pool");
    crashed_at_its_end(output) || output.status.signal() == Some(SIGSEGV) && is_of_thread
}

/// True if the tool was aborted after its work: in Ceph 16 the last reference to the connection is
/// sometimes dropped by a callback of libradosstriper, on a thread that the drop waits for.
fn crashed_at_its_end(output: &Output) -> bool {
    const SIGABRT: i32 = 6;
    let message = String::from_utf8_lossy(&output.stderr);
    output.status.signal() == Some(SIGABRT) && message.contains("Rados::shutdown")
}
