//! fsx: random operations on one file, each read compared with what was written.

use super::session::{Outcome, Results, Session};

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

/// Runs each seed; the files have to be equal in the end, too.
pub fn run(session: &Session) -> Result<Results, String> {
    let (seeds, operations) = if session.is_quick { (2, "2000") } else { (20, "100000") };
    let fsx = session.tool();
    let configuration = session.write("fsx.toml", CONFIGURATION)?;
    let mut results = Results::new();
    for number in 0..seeds {
        let seed = session.seed.wrapping_add(number).to_string();
        let file = session.path(&seed);
        let ran = session.run(&[
            &fsx,
            "-q",
            "-f",
            &configuration,
            "-N",
            operations,
            "-S",
            &seed,
            &file,
        ])?;
        let outcome = match ran.is_success() {
            true => Outcome::passed(&session.checksum(&seed)?),
            false => Outcome::failed(&ran.tail()),
        };
        results.insert(format!("seed {seed}, {operations} operations"), outcome);
    }
    Ok(results)
}
