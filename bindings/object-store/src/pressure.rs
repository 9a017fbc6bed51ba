//! Memory pressure: whether what is put into the page cache now would take the place of something
//! that is needed.

use std::fs;
use std::path::PathBuf;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// Age at which the files of the kernel are read again.
const AGE_MAX: Duration = Duration::from_secs(1);

/// Percentage of the last 10 seconds in which some task waited for memory, from which on memory is
/// short. Reclaim without stalls is below 1.
const STALLED_PERCENT: f64 = 5.0;

/// Memory is short if less than this part of it is available.
const AVAILABLE_PART: u64 = 20;

/// The pressure on the memory of the machine, and of the cgroup of this process.
#[derive(Debug)]
pub(crate) struct Pressure {
    /// When the files were read, and whether memory was short then.
    last: Mutex<Option<(Instant, bool)>>,
    /// The files with stall times: `/proc/pressure/memory` and that of the cgroup.
    stalls: Vec<PathBuf>,
    meminfo: PathBuf,
}

impl Pressure {
    pub fn of_this_machine() -> Pressure {
        let mut stalls = vec![PathBuf::from("/proc/pressure/memory")];
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        stalls.extend(cgroup_of(&cgroups));
        Pressure { last: Mutex::new(None), stalls, meminfo: "/proc/meminfo".into() }
    }

    #[cfg(test)]
    pub fn of_files(stalls: PathBuf, meminfo: PathBuf) -> Pressure {
        Pressure { last: Mutex::new(None), stalls: vec![stalls], meminfo }
    }

    /// Returns true if memory is short. A kernel without these files has none that is short.
    pub fn is_high(&self) -> bool {
        let mut last = self.last.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match *last {
            Some((read, is_high)) if read.elapsed() < AGE_MAX => is_high,
            _ => {
                let is_high = self.read();
                *last = Some((Instant::now(), is_high));
                is_high
            }
        }
    }

    fn read(&self) -> bool {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let is_stalled = |path| stalled(&read(path)).is_some_and(|it| it >= STALLED_PERCENT);
        self.stalls.iter().any(is_stalled) || is_used_up(&read(&self.meminfo))
    }
}

/// Returns the file of the cgroup with stall times, from `/proc/self/cgroup` (cgroup version 2).
fn cgroup_of(cgroups: &str) -> Option<PathBuf> {
    let path = cgroups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(PathBuf::from("/sys/fs/cgroup").join(path).join("memory.pressure"))
}

/// Returns the percentage of the last 10 seconds in which some task waited for memory
/// (`Documentation/accounting/psi.rst`).
fn stalled(text: &str) -> Option<f64> {
    let some = text.lines().find(|line| line.starts_with("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

fn is_used_up(meminfo: &str) -> bool {
    let kilobytes = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    match (kilobytes("MemAvailable:"), kilobytes("MemTotal:")) {
        (Some(available), Some(total)) => available < total / AVAILABLE_PART,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: &str = "MemTotal:       24000000 kB\nMemAvailable:   12000000 kB\n";
    const LITTLE: &str = "MemTotal:       24000000 kB\nMemAvailable:    1199999 kB\n";
    const CALM: &str = "some avg10=4.99 avg60=9.00 avg300=9.00 total=7\nfull avg10=9.00";
    const STALLED: &str = "some avg10=5.00 avg60=0.00 avg300=0.00 total=7\nfull avg10=0.00";

    #[test]
    fn memory_is_short_when_tasks_wait_for_it_or_little_is_available() {
        let check = |stalls: &str, meminfo: &str| {
            let directory = tempfile::tempdir().unwrap();
            let (one, other) = (directory.path().join("stalls"), directory.path().join("meminfo"));
            fs::write(&one, stalls).unwrap();
            fs::write(&other, meminfo).unwrap();
            Pressure::of_files(one, other).is_high()
        };
        assert!(!check(CALM, PLENTY));
        assert!(check(STALLED, PLENTY));
        assert!(check(CALM, LITTLE));
        assert!(!check("", ""), "a kernel without these files");
        assert!(!check("some avg10=much", "MemTotal: 1\n"), "or with others");
    }

    #[test]
    fn the_cgroup_of_a_process_has_a_file_of_its_own() {
        let expected = PathBuf::from("/sys/fs/cgroup/user.slice/a b/memory.pressure");
        assert_eq!(cgroup_of("1:name=systemd:/x\n0::/user.slice/a b\n"), Some(expected));
        assert_eq!(cgroup_of("4:memory:/x\n"), None);
    }
}
