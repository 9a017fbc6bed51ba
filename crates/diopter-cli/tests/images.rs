//! Names of the form `IMAGE::/PATH` in every command, on images that the real mkfs made; it is
//! skipped by name where it is missing. What needs the administrator is in `images/device.rs`.

#[path = "images/bombs.rs"]
mod bombs;
#[path = "images/copy.rs"]
mod copy;
mod command_output;
mod cp_support;
#[path = "images/device.rs"]
mod device;
#[path = "images/explain.rs"]
mod explain;
#[path = "images/probe.rs"]
mod probe;
#[path = "images/refusals.rs"]
mod refusals;

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

use command_output::Output;
use cp_support::{Capability, content, dir, skip};

const MIB: u64 = 1 << 20;

/// Bytes of `/big`: the direct blocks, two whole indirect groups of 4 KiB blocks, and more.
const BIG: u64 = 9 * MIB;

/// A directory with `image`, and `tree`, the files that were put into it.
struct Place(tempfile::TempDir);

impl Place {
    /// With an image of one of the ext formats; says why when it cannot be had.
    fn of(format: &str, options: &[&str]) -> Option<Place> {
        let place = Place(dir());
        place.fill_tree();
        let mut words = vec!["-q"];
        words.extend(options);
        words.extend(["-d", "tree", "image", "48M"]);
        if let Err(why) = place.tool(&format!("mkfs.{format}"), &words) {
            skip(Capability::Ext4, why);
            return None;
        }
        Some(place)
    }

    /// ext3 with blocks of 4 KiB.
    fn ext3() -> Option<Place> {
        Place::of("ext3", &["-b", "4096"])
    }

    fn fill_tree(&self) {
        std::fs::create_dir_all(self.path("tree/dir/sub")).unwrap();
        let length = |bytes: u64| usize::try_from(bytes).unwrap();
        let write = |name: &str, bytes: &[u8]| std::fs::write(self.path(name), bytes).unwrap();
        write("tree/file", &content(1, 53248));
        write("tree/twin", &content(6, 53248));
        write("tree/big", &content(2, length(BIG)));
        write("tree/odd", &content(3, 1001));
        write("tree/dir/hello", b"hello\n");
        write("tree/empty", b"");
        std::os::unix::fs::symlink("../file", self.path("tree/dir/link")).unwrap();
        let sparse = File::create(self.path("tree/sparse")).unwrap();
        sparse.set_len(MIB).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&sparse, &content(4, 8192), 512 << 10).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }

    /// Runs a tool in the directory; its output, or why it did not work.
    fn tool(&self, program: &str, words: &[&str]) -> Result<String, String> {
        let path = format!("{}:/usr/sbin:/sbin", std::env::var("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        command.args(words).current_dir(self.0.path()).env("PATH", path).stdin(Stdio::null());
        let output = command.output().map_err(|error| format!("{program}: {error}"))?;
        if !output.status.success() {
            return Err(format!("{program}: {}", String::from_utf8_lossy(&output.stderr).trim()));
        }
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    }

    fn run(&self, line: &str) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
        command.args(line.split(' ')).current_dir(self.0.path()).stdin(Stdio::null());
        Output::of(command.env_clear())
    }

    /// Returns the output of a run that must succeed without a message.
    fn stdout(&self, line: &str) -> String {
        let output = self.run(line);
        assert_eq!((output.status, output.stderr.as_str()), (0, ""), "{line}");
        output.stdout
    }

    fn json(&self, line: &str) -> Value {
        serde_json::from_str(&self.stdout(&format!("{line} --json"))).unwrap()
    }

    /// A run that must be refused: one message with all these words, and exit status 2.
    fn refused(&self, line: &str, words: &[&str]) {
        let output = self.run(line);
        assert_eq!(output.status, 2, "{line}: {}", output.stderr);
        assert_eq!(output.stderr.lines().count(), 1, "{line}: {}", output.stderr);
        assert!(output.stderr.contains("; "), "no remedy: {}", output.stderr);
        for word in words {
            assert!(output.stderr.contains(word), "{line}: {word:?} is not in {}", output.stderr);
        }
    }

    /// Wants a file system in which nothing is wrong.
    fn check_sound(&self) {
        self.tool("e2fsck", &["-fn", "image"]).unwrap();
    }
}
