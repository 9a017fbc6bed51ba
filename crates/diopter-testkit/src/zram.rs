//! A zram device with an owner: it goes away when the owner does.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a removal is tried: a ring's last reference to the device goes shortly after the ring.
const REMOVE_WAIT_MAX: Duration = Duration::from_secs(20);

/// A block device in compressed memory, empty at first.
pub struct Zram {
    number: String,
    device: PathBuf,
}

impl Zram {
    /// Adds a device of `size`, as zram spells it: `512M`.
    pub fn set_up(size: &str) -> Result<Zram, String> {
        let say = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
        let number = fs::read_to_string("/sys/class/zram-control/hot_add")
            .map_err(say("no zram device can be added"))?
            .trim()
            .to_owned();
        let device = PathBuf::from(format!("/dev/zram{number}"));
        let zram = Zram { number, device };
        fs::write(zram.attribute("disksize"), size).map_err(say("zram disksize"))?;
        Ok(zram)
    }

    pub fn device(&self) -> &Path {
        &self.device
    }

    /// A file of the device's directory in sysfs.
    pub fn attribute(&self, name: &str) -> PathBuf {
        PathBuf::from(format!("/sys/block/zram{}/{name}", self.number))
    }
}

impl Drop for Zram {
    fn drop(&mut self) {
        let started = Instant::now();
        let remove = || fs::write("/sys/class/zram-control/hot_remove", &self.number);
        while let Err(error) = remove() {
            if started.elapsed() > REMOVE_WAIT_MAX {
                eprintln!("zram{} stays: {error}", self.number);
                return;
            }
        }
    }
}
