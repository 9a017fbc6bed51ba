//! db_bench of RocksDB: random writes, compaction, random reads; then each key and value.

use super::session::{Outcome, Results, Session};
use crate::repo;
use std::process::Command;

/// How RocksDB opens its files.
const CASES: [(&str, &[&str]); 3] = [
    ("cached", &[]),
    ("direct", &["--use_direct_reads=true", "--use_direct_io_for_flush_and_compaction=true"]),
    ("mapped", &["--mmap_read=true"]),
];

const BENCHMARKS: &str =
    "--benchmarks=fillrandom,overwrite,flush,compact,readrandom,readreverse,verifychecksum";

/// Runs each case; one thread with one seed writes the same each time.
pub fn run(session: &Session) -> Result<Results, String> {
    let keys = if session.is_quick { "--num=5000" } else { "--num=100000" };
    let mut results = Results::new();
    for (name, options) in CASES {
        let dir = session.path(name);
        let db = format!("--db={dir}");
        let mut words = vec!["db_bench", BENCHMARKS, keys, &db, "--seed=1", "--threads=1"];
        words.extend(["--compression_type=none", "--write_buffer_size=1048576"]);
        words.extend(options);
        let ran = session.run(&words)?;
        let outcome = match found(&ran.text) {
            Some(found) if ran.is_success() => {
                Outcome::passed(&format!("{found}, {}", content(&dir)?))
            }
            _ => Outcome::failed(&ran.tail()),
        };
        results.insert(name.to_owned(), outcome);
    }
    Ok(results)
}

/// Returns how many keys the random reads found: `(63 of 100 found)`.
fn found(text: &str) -> Option<&str> {
    let line = text.lines().find(|line| line.starts_with("readrandom"))?;
    let (_, rest) = line.rsplit_once('(')?;
    rest.split_once(')').map(|(found, _)| found)
}

/// Returns a checksum of all keys and values, read without the library.
fn content(dir: &str) -> Result<String, String> {
    let dump = "set -o pipefail; ldb --db=\"$0\" scan --hex | sha256sum";
    let sum = repo::output_of(Command::new("bash").args(["-c", dump, dir]))?;
    Ok(sum.split(' ').next().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_of_found_keys_is_read() {
        let text = "fillrandom : 1 micros/op\nreadrandom   :  3.0 micros/op; (632 of 1000 found)\n";
        assert_eq!(found(text), Some("632 of 1000 found"));
        assert_eq!(found("fillrandom : 1 micros/op (1 of 1 found)"), None);
    }
}
