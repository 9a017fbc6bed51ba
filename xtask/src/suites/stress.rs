//! The stressors of stress-ng that work on files, each of which verifies what it reads.

use super::session::{Outcome, Results, Session};

/// A stressor, and options that only it has.
const STRESSORS: [(&str, &[&str]); 26] = [
    ("hdd", &["--hdd-opts", "direct,rd-rnd,wr-rnd", "--hdd-bytes", "4m"]),
    ("hdd", &["--hdd-opts", "dsync,rd-seq,wr-seq", "--hdd-bytes", "4m"]),
    ("hdd", &["--hdd-opts", "iovec,rd-seq,wr-rnd", "--hdd-bytes", "4m"]),
    ("seek", &["--seek-size", "8m"]),
    ("copy-file", &["--copy-file-bytes", "128m"]),
    ("fallocate", &["--fallocate-bytes", "16m"]),
    ("iomix", &["--iomix-bytes", "16m"]),
    ("readahead", &["--readahead-bytes", "16m"]),
    ("revio", &["--revio-bytes", "16m"]),
    ("sync-file", &["--sync-file-bytes", "16m"]),
    ("aio", &[]),
    ("aiol", &[]),
    ("fiemap", &["--fiemap-bytes", "16m"]),
    ("fpunch", &[]),
    ("sendfile", &["--sendfile-size", "1m"]),
    ("file-ioctl", &[]),
    ("dup", &[]),
    ("lockf", &[]),
    ("locka", &[]),
    ("lockofd", &[]),
    ("flock", &[]),
    ("chattr", &[]),
    ("io-uring", &[]),
    ("mmap", &["--mmap-file", "--mmap-bytes", "8m"]),
    ("msync", &["--msync-bytes", "4m"]),
    ("xattr", &[]),
];

/// The stressors of the quick variant, from the start.
const QUICK: usize = 8;
/// Exit statuses of stress-ng: no resource, not implemented here.
const SKIPPED: [i32; 2] = [3, 4];

pub fn run(session: &Session) -> Result<Results, String> {
    let (count, seconds) = if session.is_quick { (QUICK, "1") } else { (STRESSORS.len(), "3") };
    let mut results = Results::new();
    for (name, options) in &STRESSORS[..count] {
        let dir = session.path("");
        let option = format!("--{name}");
        let mut words = vec!["stress-ng", "--verify", "--timeout", seconds, "--temp-path", &dir];
        words.extend([option.as_str(), "1"]);
        words.extend(*options);
        let ran = session.run(&words)?;
        let outcome = match ran.code {
            Some(code) if SKIPPED.contains(&code) => Outcome::skipped(),
            _ if ran.is_success() => Outcome::passed(""),
            // The output has process numbers, which differ from run to run.
            code => {
                println!("   {name}: {}", ran.tail());
                Outcome::failed(&format!("status {code:?}"))
            }
        };
        results.insert([&[*name], *options].concat().join(" "), outcome);
    }
    Ok(results)
}
