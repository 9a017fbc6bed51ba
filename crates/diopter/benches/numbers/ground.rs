//! Where the rows run: ext4 on a zram device with a file to read and one to overwrite, and a
//! directory on a disk. All of it has an owner and goes away with it; what a killed run left goes
//! first.

use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use diopter::File;
use diopter_core::prng::Prng;
use diopter_os::residency::residency;

use crate::machine::{self, Dir};
use crate::trace;
use crate::zram::Zram;

pub const BLOCK: usize = 4096;

/// Room on the zram device for both files.
const ZRAM_BYTES: &str = "1536M";

/// Where a zram device's number is kept for the run after a killed one.
const NUMBER_FILE: &str = "zram";

/// fio repeats so many bytes of a pattern; every side writes repetitions of them, so that zram's
/// work is the same.
pub const PATTERN_BYTES: usize = 512;

/// ext4 on zram, with its files; unmounted and removed when dropped.
pub struct Fast {
    at: PathBuf,
    /// Blocks of each file; a power of two.
    pub blocks: u64,
    _zram: Zram,
    _dir: Dir,
}

impl Fast {
    pub fn set_up(blocks: u64) -> Result<Fast, String> {
        let failed = |error: std::io::Error| error.to_string();
        let dir = Dir::new("numbers")?;
        let zram = Zram::set_up(ZRAM_BYTES)?;
        let number = zram.device().to_string_lossy().replace("/dev/zram", "");
        fs::write(dir.path().join(NUMBER_FILE), number).map_err(failed)?;
        let at = dir.path().join("mnt");
        fs::create_dir(&at).map_err(failed)?;
        let device = zram.device().to_string_lossy().into_owned();
        let options = "lazy_itable_init=0,lazy_journal_init=0";
        machine::run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", options, &device])?;
        machine::run("mount", &["-t", "ext4", "-o", "noatime", &device, &at.to_string_lossy()])?;
        let fast = Fast { at, blocks, _zram: zram, _dir: dir };
        fill(&fast.to_read(), blocks, numbered)?;
        fill(&fast.to_write(), blocks, |_, block| block.copy_from_slice(&pattern_block()))?;
        check_not_cached(&fast.to_read())?;
        check_not_cached(&fast.to_write())?;
        fs::write(fast.pattern(), &pattern_block()[..PATTERN_BYTES]).map_err(failed)?;
        Ok(fast)
    }

    /// Each block begins with its number; the rest is a quarter random.
    pub fn to_read(&self) -> PathBuf {
        self.at.join("read")
    }

    /// Each block is the pattern, over and over.
    pub fn to_write(&self) -> PathBuf {
        self.at.join("write")
    }

    /// A file with the pattern, for fio.
    pub fn pattern(&self) -> PathBuf {
        self.at.join("pattern")
    }
}

impl Drop for Fast {
    fn drop(&mut self) {
        if let Err(why) = machine::unmount(&self.at) {
            eprintln!("{} is left mounted: {why}", self.at.display());
        }
    }
}

/// The block that every side writes: compressible, and not the repetition of one byte.
pub fn pattern_block() -> Vec<u8> {
    let mut unit = vec![0; PATTERN_BYTES];
    compressible(&mut Prng::new(7), &mut unit);
    unit.repeat(BLOCK / PATTERN_BYTES)
}

/// 16 random bytes in each 64, the rest counting up.
pub fn compressible(prng: &mut Prng, bytes: &mut [u8]) {
    for line in bytes.chunks_mut(64) {
        line.iter_mut().zip(0u8..).for_each(|(byte, at)| *byte = at);
        let random = line.len().min(16);
        prng.fill(&mut line[..random]);
    }
}

pub fn numbered(number: u64, block: &mut [u8]) {
    compressible(&mut Prng::new(number + 1), block);
    block[..8].copy_from_slice(&number.to_le_bytes());
}

/// Writes a file or device of blocks past the page cache.
pub fn fill(path: &Path, blocks: u64, content: fn(u64, &mut [u8])) -> Result<(), String> {
    const BLOCKS_AT_ONCE: u64 = 256;
    let failed = |error: diopter::Error| format!("{}: {error}", path.display());
    let file = File::create(path).map_err(failed)?;
    let mut memory = diopter::IoBuf::new(BLOCK * 256).map_err(|errno| errno.to_string())?;
    for first in (0..blocks).step_by(256) {
        crate::stop::check()?;
        for (block, number) in memory.chunks_mut(BLOCK).zip(first..) {
            content(number, block);
        }
        let length = BLOCK * usize::try_from((blocks - first).min(BLOCKS_AT_ONCE)).unwrap_or(256);
        file.write_all_at(&memory[..length], first * 4096).map_err(failed)?;
    }
    file.sync_all().map_err(failed)
}

fn check_not_cached(path: &Path) -> Result<(), String> {
    let file = fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let cached = residency(file.as_fd(), 0, 0, u64::MAX >> 1).map_or(0, |it| it.pages_cached);
    if cached > 0 {
        return Err(format!("{}: {cached} pages stayed in the page cache", path.display()));
    }
    Ok(())
}

/// Takes away what killed runs left: mounts, loops and directories, then their zram devices.
pub fn remove_stale() {
    let temporary = std::env::temp_dir();
    let entries = fs::read_dir(&temporary).into_iter().flatten().flatten();
    let numbers: Vec<String> = entries.filter_map(|entry| stale_zram(&entry.path())).collect();
    // Its guard is for tests side by side; there is one of us.
    drop(machine::alone());
    trace::remove_stale();
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
    is_gone(name.split('-').next()?).then_some(number)
}

/// Returns true if no process has this id.
pub fn is_gone(process: &str) -> bool {
    process.parse::<u32>().is_ok() && !Path::new("/proc").join(process).exists()
}

/// The directory's file system and what it lies on, for the table.
pub fn disk_name(dir: &Path) -> String {
    let path = dir.to_string_lossy();
    let output = machine::run("df", &["--output=fstype,source", &path]).unwrap_or_default();
    let words: Vec<&str> = output.lines().last().unwrap_or("?").split_whitespace().collect();
    words.join(" on ")
}
