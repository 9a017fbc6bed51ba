//! fsx: random operations on one file, each read compared with what was written.

use super::session::{Outcome, Results, Session};
use std::sync::atomic::{AtomicU64, Ordering};

/// The file is as large as fsx makes it by default; requests are of any size at any offset. Copies
/// inside the file are left out: fsx makes that call by its number, past every library, and the
/// kernel refuses it for what is not aligned.
const CONFIGURATION: &str = "\
flen = 262144
[opsize]
min = 1
max = 65536
[weights]
close_open = 1
invalidate = 1
mapread = 10
mapwrite = 5
read = 30
write = 30
truncate = 5
fsync = 1
fdatasync = 1
punch_hole = 2
sendfile = 5
posix_fadvise = 1
";

/// Seeds that run at the same time: each waits for the device most of the time.
const AT_ONCE: usize = 8;

/// Runs each seed; the files have to be equal in the end, too.
pub fn run(session: &Session) -> Result<Results, String> {
    let (seeds, operations) = if session.is_quick { (2, "2000") } else { (20, "100000") };
    let fsx = session.tool();
    let configuration = session.write("fsx.toml", CONFIGURATION)?;
    let next = AtomicU64::new(0);
    let run_seeds = || -> Result<Results, String> {
        let mut results = Results::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= seeds {
                return Ok(results);
            }
            let seed = session.seed.wrapping_add(number).to_string();
            let file = session.path(&seed);
            let named = ["-q", "-f", &configuration, "-N", operations, "-S", &seed, &file];
            let ran = session.run(&[&[fsx.as_str()], &named[..]].concat())?;
            let outcome = match ran.is_success() {
                true => Outcome::passed(&session.checksum(&seed)?),
                false => Outcome::failed(&ran.tail()),
            };
            results.insert(format!("seed {seed}, {operations} operations"), outcome);
        }
    };
    let mut results = Results::new();
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(run_seeds)).collect();
        for thread in threads {
            results.extend(thread.join().expect("no panic")?);
        }
        Ok(results)
    })
}
