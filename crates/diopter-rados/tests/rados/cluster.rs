//! The cluster of the tests, which they share, and Ceph's tools on it.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use diopter_rados::{Cluster, Connect, Library, Pool};
use diopter_skip::{Capability, skip};

/// A running cluster with authentication. It ends with this process: its program waits for the end
/// of the pipe that this process holds.
pub struct Ceph {
    pub conf: PathBuf,
    _program: Child,
}

/// Returns the cluster; skips where Ceph is not installed.
pub fn ceph() -> Option<&'static Ceph> {
    static CEPH: OnceLock<Ceph> = OnceLock::new();
    let missing =
        ["ceph-mon", "ceph-osd", "ceph", "rados"].into_iter().find(|tool| !is_installed(tool));
    if let Some(tool) = missing {
        skip(Capability::Ceph, format!("{tool} is not installed"));
        return None;
    }
    Some(CEPH.get_or_init(|| Ceph::start(&["--cephx"])))
}

fn is_installed(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(tool).is_file())
}

impl Ceph {
    /// Starts a cluster with options of ceph-mini.
    pub fn start(options: &[&str]) -> Ceph {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/ceph-mini");
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // A short path: those of sockets are bounded.
        let dir = std::env::temp_dir().join(format!("dio-ceph-{}-{number}", std::process::id()));
        let mut command = Command::new(program);
        command.args(options).arg(dir).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut program = command.spawn().expect("bash");
        let mut line = String::new();
        let stdout = program.stdout.take().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("text");
        assert!(line.ends_with("/ceph.conf\n"), "ceph-mini printed {line:?}");
        Ceph { conf: PathBuf::from(line.trim_end()), _program: program }
    }

    /// Connects as a user.
    pub fn connect(&self, user: &str) -> Cluster {
        let how =
            Connect { conf: Some(self.conf.clone()), user: user.to_owned(), ..Connect::default() };
        Cluster::connect(&Library::load(None).expect("librados"), &how).expect("a cluster")
    }

    /// Sends a signal to a daemon, such as `osd.0`.
    pub fn signal(&self, daemon: &str, signal: &str) {
        let file = self.conf.with_file_name("run").join(format!("{daemon}.pid"));
        let pid = std::fs::read_to_string(file).expect("it runs");
        let sent = Command::new("kill").args([&format!("-{signal}"), pid.trim()]).status();
        assert!(sent.expect("kill").success());
    }

    /// Returns the pool of the tests.
    pub fn pool(&self) -> Pool {
        self.connect("admin").pool(b"data", None).expect("the pool `data`")
    }

    /// Returns the pool of the tests, whose operations fail after this time.
    pub fn pool_within(&self, operation_timeout: Duration) -> Pool {
        let conf = Some(self.conf.clone());
        let how = Connect { conf, operation_timeout, ..Connect::default() };
        let cluster = Cluster::connect(&Library::load(None).expect("librados"), &how);
        cluster.expect("a cluster").pool(b"data", None).expect("the pool `data`")
    }

    /// Runs `rados` on the pool of the tests, and returns what it did.
    pub fn rados<T: AsRef<OsStr>>(&self, arguments: &[T]) -> Output {
        let mut command = Command::new("rados");
        command.env_remove("CEPH_ARGS").arg("-c").arg(&self.conf);
        command.args(["--pool", "data"]).args(arguments).output().expect("rados")
    }

    /// Runs `rados`, which must succeed. An operation that is run again has the same result.
    pub fn must<T: AsRef<OsStr>>(&self, arguments: &[T]) -> Vec<u8> {
        let mut output = self.rados(arguments);
        for _ in 0..5 {
            if !crashed(&output) {
                break;
            }
            output = self.rados(arguments);
        }
        let message = String::from_utf8_lossy(&output.stderr[..output.stderr.len().min(500)]);
        let arguments: Vec<&OsStr> = arguments.iter().map(AsRef::as_ref).collect();
        assert!(output.status.success(), "{arguments:?}: {message}");
        output.stdout
    }

    /// Runs `ceph`, which must succeed.
    pub fn ceph(&self, arguments: &[&str]) -> String {
        let mut command = Command::new("ceph");
        command.env_remove("CEPH_ARGS").arg("-c").arg(&self.conf);
        let output = command.args(arguments).output().expect("ceph");
        assert!(output.status.success(), "ceph {arguments:?}: {output:?}");
        String::from_utf8(output.stdout).expect("text")
    }

    /// Gives a user a key with these capabilities of the stores, in a keyring that its connections
    /// find.
    pub fn add_user(&self, user: &str, osd: &str) {
        let name = format!("client.{user}");
        let key = self.ceph(&["auth", "get-or-create", &name, "mon", "allow r", "osd", osd]);
        let keyring = self.conf.with_file_name("keyring");
        let mut all = std::fs::read_to_string(&keyring).expect("a keyring");
        if !all.contains(&format!("[{name}]")) {
            all.push_str(&key);
            std::fs::write(&keyring, all).expect("a keyring");
        }
    }
}

/// True if the tool crashed by itself, perhaps before its work: in Ceph 16 a thread of the
/// connection sometimes looks a setting up in a table that no longer exists.
fn crashed(output: &Output) -> bool {
    let message = String::from_utf8_lossy(&output.stderr);
    let is_of_thread = message.contains("thread_name:io_context_pool");
    crashed_at_its_end(output) || output.status.signal() == Some(libc::SIGSEGV) && is_of_thread
}

/// True if the tool was aborted after its work: in Ceph 16 the last reference to the connection is
/// sometimes dropped by a callback of libradosstriper, on a thread that the drop waits for.
pub fn crashed_at_its_end(output: &Output) -> bool {
    let message = String::from_utf8_lossy(&output.stderr);
    output.status.signal() == Some(libc::SIGABRT) && message.contains("Rados::shutdown")
}

/// Returns bytes without a period that any layout has.
pub fn content(length: usize, seed: u64) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// A bound for what ends much sooner.
pub const SOON: Duration = Duration::from_secs(60);
