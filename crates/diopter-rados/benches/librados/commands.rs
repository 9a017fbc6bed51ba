//! Commands that move one stream to and from the cluster, and their files, which are in memory.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use tempfile::TempDir;

use super::{MIB, Scale, content};

/// The commands of a stream, and their files.
pub struct Commands {
    dio: OsString,
    conf: PathBuf,
    mib: f64,
    /// Seconds of `rados bench`.
    bench_seconds: &'static str,
    source: PathBuf,
    copy: PathBuf,
    empty: PathBuf,
    _dir: TempDir,
}

/// Striped objects, one with the stream and one without bytes, and the run of `rados bench`.
const STREAM: &str = "librados-stream";
const NOTHING: &str = "librados-nothing";
const BENCH: &str = "librados-bench";

impl Commands {
    pub fn new(scale: &Scale, conf: &Path) -> Commands {
        let dir = tempfile::tempdir_in("/dev/shm").expect("a directory in memory");
        let [source, copy, empty] = ["source", "copy", "empty"].map(|name| dir.path().join(name));
        fs::write(&source, content(scale.stream_bytes)).expect("room");
        fs::write(&empty, b"").expect("room");
        Commands {
            dio: std::env::var_os("DIO").expect("DIO, the path of dio"),
            conf: conf.to_owned(),
            mib: scale.stream_bytes as f64 / MIB as f64,
            bench_seconds: if scale.rounds == 1 { "1" } else { "10" },
            source,
            copy,
            empty,
            _dir: dir,
        }
    }

    /// MiB a second of the second, without the time that connecting takes: that of the first, which
    /// moves nothing.
    fn rate(&self, nothing: impl FnOnce(), work: impl FnOnce()) -> f64 {
        let begin = Instant::now();
        nothing();
        let connecting = begin.elapsed();
        let begin = Instant::now();
        work();
        self.mib / begin.elapsed().saturating_sub(connecting).as_secs_f64()
    }

    fn dio_cp(&self, from: &OsStr, to: &OsStr) {
        run(Command::new(&self.dio).args(["cp", "-q", "--overwrite"]).args([from, to]));
    }

    fn object(&self, name: &str) -> OsString {
        format!("rados:{}!data/{name}", self.conf.display()).into()
    }

    /// A new object each time, as `rados --striper put` makes one.
    pub fn dio_put(&self) -> f64 {
        self.rados(&["--striper", "rm", STREAM]);
        self.rate(
            || self.dio_cp(self.empty.as_os_str(), &self.object(NOTHING)),
            || self.dio_cp(self.source.as_os_str(), &self.object(STREAM)),
        )
    }

    pub fn dio_get(&self) -> f64 {
        self.rate(
            || self.dio_cp(&self.object(NOTHING), self.copy.as_os_str()),
            || self.dio_cp(&self.object(STREAM), self.copy.as_os_str()),
        )
    }

    pub fn striper(&self, verb: &str) -> f64 {
        let [nothing, whole] = match verb {
            "put" => [&self.empty, &self.source],
            _ => [&self.copy, &self.copy],
        };
        if verb == "put" {
            self.rados(&["--striper", "rm", STREAM]);
        }
        let [nothing, whole] = [nothing, whole].map(|path| path.to_str().expect("text"));
        self.rate(
            || drop(self.rados(&["--striper", verb, NOTHING, nothing])),
            || drop(self.rados(&["--striper", verb, STREAM, whole])),
        )
    }

    /// The bandwidth that `rados bench` prints, whose MB are MiB.
    pub fn bench(&self, verb: &str) -> f64 {
        let mut arguments = vec!["bench", self.bench_seconds, verb, "-t", "16"];
        arguments.extend(["--run-name", BENCH]);
        if verb == "write" {
            self.rados(&["cleanup", "--run-name", BENCH]);
            // A full store makes writers wait.
            arguments.extend(["-b", "4M", "--no-cleanup", "--max-objects", "512"]);
        }
        let printed = self.rados(&arguments).expect("a run");
        let line = printed.lines().find(|line| line.starts_with("Bandwidth (MB/sec):"));
        let number = line.and_then(|line| line.split_whitespace().last()).expect("a bandwidth");
        number.parse().expect("a number")
    }

    /// The bandwidth of fio's engine rados. It has no striped objects: the objects of 4 MiB are its
    /// files, which it makes and opens before it measures.
    pub fn fio(&self, verb: &str) -> f64 {
        let mut command = Command::new("fio");
        command.args(["--name=librados-fio", "--ioengine=rados", "--clientname=admin"]);
        command.args(["--pool=data", "--bs=4m", "--iodepth=16", "--filesize=4m"]);
        command.arg(format!("--conf={}", self.conf.display())).arg(format!("--rw={verb}"));
        command.arg(format!("--size={}m", self.mib)).arg(format!("--nrfiles={}", self.mib / 4.0));
        let printed = run(command.arg("--output-format=json"));
        // Messages of librados may come before the document.
        let document = printed.find('{').map_or("", |at| &printed[at..]);
        let parsed: serde_json::Value = serde_json::from_str(document).expect("fio's document");
        let job = &parsed["jobs"][0];
        assert_eq!(job["error"], 0, "{printed}");
        assert_eq!(job[verb]["io_bytes"].as_f64(), Some(self.mib * MIB as f64), "{printed}");
        job[verb]["bw_bytes"].as_f64().expect("a bandwidth") / MIB as f64
    }

    /// Removes what the commands wrote.
    pub fn remove(&self) {
        self.rados(&["--striper", "rm", STREAM]);
        self.rados(&["--striper", "rm", NOTHING]);
        self.rados(&["cleanup", "--run-name", BENCH]);
        let listed = self.rados(&["ls"]).expect("a list");
        for name in listed.lines().filter(|name| name.starts_with("librados-fio")) {
            self.rados(&["rm", name]);
        }
    }

    /// Runs `rados`, and returns its output. Only a removal may fail, of what is not there.
    fn rados(&self, arguments: &[&str]) -> Option<String> {
        let mut command = Command::new("rados");
        command.arg("-c").arg(&self.conf).args(["-p", "data"]).args(arguments);
        if arguments.contains(&"rm") || arguments.contains(&"cleanup") {
            command.output().expect("rados");
            return None;
        }
        Some(run(&mut command))
    }
}

/// Runs a command, which must succeed, and returns its output.
fn run(command: &mut Command) -> String {
    let output = command.output().expect("the command");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}
