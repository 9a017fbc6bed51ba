//! Where the sides run: ext4 on a zram device, or a directory of the machine's disk. Its files go
//! away with it; what a killed run left goes at the next one.

use std::fs;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use diopter_testkit::machine::{self, Dir};
use diopter_testkit::zram::Zram;

use crate::block::Block;
use crate::content::{self, BLOCK};
use crate::job::{Content, Row};
use crate::stop;

/// Room on the zram device for all files.
const ZRAM_BYTES: &str = "4G";

/// Where a zram device's number is kept for the run after a killed one.
const NUMBER_FILE: &str = "zram";

/// Written at once when a file is made.
const CHUNK: usize = 1 << 20;

/// A directory for files, and what it is on.
pub struct Ground {
    at: PathBuf,
    pub name: String,
    pub content: Content,
    mounted: Option<Zram>,
    _dir: Dir,
}

impl Ground {
    /// ext4 on a new zram device; needs root.
    pub fn zram(content: Content) -> Result<Ground, String> {
        if !diopter_os::ids::is_root() {
            return Err("a zram device and its mount need root; --file needs none".to_owned());
        }
        let failed = |error: std::io::Error| error.to_string();
        let dir = Dir::new("peers")?;
        let zram = Zram::set_up(ZRAM_BYTES)?;
        let device = zram.device().to_string_lossy().into_owned();
        let number = device.replace("/dev/zram", "");
        fs::write(dir.path().join(NUMBER_FILE), number).map_err(failed)?;
        let at = dir.path().join("mnt");
        fs::create_dir(&at).map_err(failed)?;
        let options = "lazy_itable_init=0,lazy_journal_init=0";
        machine::run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", options, &device])?;
        machine::run("mount", &["-t", "ext4", "-o", "noatime", &device, &at.to_string_lossy()])?;
        let fill = if content == Content::Same { "same-filled pages" } else { "compressible" };
        let name = format!("ext4 on zram, {fill}");
        Ok(Ground { at, name, content, mounted: Some(zram), _dir: dir })
    }

    /// In a directory that is there.
    pub fn disk(directory: &Path, content: Content) -> Result<Ground, String> {
        let dir = Dir::new_in(directory, "peers")?;
        let at = dir.path().to_owned();
        let path = directory.to_string_lossy();
        let output = machine::run("df", &["--output=fstype,source", &path]).unwrap_or_default();
        let words: Vec<&str> = output.lines().last().unwrap_or("?").split_whitespace().collect();
        Ok(Ground { at, name: words.join(" on "), content, mounted: None, _dir: dir })
    }

    /// The file of a row, made at its first use: reads find each block's number in it, and writes
    /// have a separate one.
    pub fn file(&self, row: Row, bytes: u64) -> Result<PathBuf, String> {
        let path = self.at.join(if row == Row::Read { "read" } else { "write" });
        if fs::metadata(&path).is_ok_and(|it| it.len() >= bytes) {
            return Ok(path);
        }
        self.make(&path, bytes).map_err(|why| format!("{}: {why}", path.display()))?;
        Ok(path)
    }

    /// Writes a file of numbered blocks past the page cache.
    pub fn make(&self, path: &Path, bytes: u64) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(true).custom_flags(libc::O_DIRECT);
        let mut file = options.open(path).map_err(failed)?;
        let mut chunk = Block::new(CHUNK)?;
        let mut number = 0;
        for start in (0..bytes).step_by(CHUNK) {
            stop::check()?;
            for block in chunk.chunks_mut(BLOCK) {
                content::fill(self.content, number, block);
                number += 1;
            }
            let length = usize::try_from(bytes - start).map_or(CHUNK, |left| left.min(CHUNK));
            file.write_all(&chunk[..length]).map_err(failed)?;
        }
        file.sync_all().map_err(failed)
    }

    /// Another file or directory of this place.
    pub fn path(&self, name: &str) -> PathBuf {
        self.at.join(name)
    }
}

impl Drop for Ground {
    fn drop(&mut self) {
        if self.mounted.is_some()
            && let Err(why) = machine::unmount(&self.at)
        {
            eprintln!("{} is left mounted: {why}", self.at.display());
        }
    }
}

/// Runs this program again in a mount namespace that no other process copies: a copy would keep the
/// device busy after the unmount. It is the same process; without `unshare` it goes on as it is.
pub fn enter_private_mounts() {
    const IS_INSIDE: &str = "DIOPTER_PEERS_INSIDE";
    if std::env::var_os(IS_INSIDE).is_some() || !diopter_os::ids::is_root() {
        return;
    }
    let Ok(program) = std::env::current_exe() else { return };
    let mut command = Command::new("unshare");
    command.arg("--mount").arg(program).args(std::env::args_os().skip(1)).env(IS_INSIDE, "yes");
    // It returns only if `unshare` can't be started.
    let error = command.exec();
    eprintln!("peers: no private mounts: unshare: {error}");
}

/// Removes what killed runs left: mounts and directories, then their zram devices.
pub fn remove_stale() {
    if !diopter_os::ids::is_root() {
        return;
    }
    let entries = fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten();
    let numbers: Vec<String> = entries.filter_map(|entry| stale_zram(&entry.path())).collect();
    // Its guard is for tests in one process; there is one of us.
    drop(machine::alone());
    for number in numbers {
        if let Err(error) = fs::write("/sys/class/zram-control/hot_remove", &number) {
            eprintln!("zram{number} of a run that was killed stays: {error}");
        }
    }
}

/// The number of the zram device that a directory names, when its process is gone.
fn stale_zram(dir: &Path) -> Option<String> {
    let number = fs::read_to_string(dir.join(NUMBER_FILE)).ok()?;
    let name = dir.file_name()?.to_str()?.strip_prefix(machine::PREFIX)?;
    let process = name.split('-').next()?;
    let is_gone = process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists();
    is_gone.then_some(number)
}
