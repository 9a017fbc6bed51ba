//! fio writes with direct I/O and verifies each block.

use super::session::{Outcome, Results, Session};
use crate::repo;

/// A job of fio: its name and its options.
type Job = (&'static str, &'static [&'static str]);

/// The jobs that the kernel refuses with EINVAL.
pub const UNALIGNED: [&str; 3] = ["unaligned psync", "unaligned pvsync", "unaligned sync"];

const JOBS: [Job; 4] = [
    ("aligned psync", &["--ioengine=psync", "--bs=4k"]),
    (UNALIGNED[0], &["--ioengine=psync", "--bsrange=512-20000", "--bs_unaligned=1"]),
    (UNALIGNED[1], &["--ioengine=pvsync", "--bsrange=512-20000", "--bs_unaligned=1"]),
    (UNALIGNED[2], &["--ioengine=sync", "--bsrange=512-20000", "--bs_unaligned=1"]),
];

/// Runs fio's synchronous engines, which the library serves.
pub fn run(session: &Session) -> Result<Results, String> {
    jobs(session, &JOBS)
}

/// Runs the same jobs by diopter's engine for fio, which needs no library.
pub fn run_engine(session: &Session) -> Result<Results, String> {
    let engine = format!("--ioengine=external:{}", session.tool());
    let mut results = Results::new();
    for (name, options) in [
        ("engine, aligned", &["--bs=4k"][..]),
        ("engine, unaligned", &["--bsrange=512-20000", "--bs_unaligned=1"]),
        ("engine, many in flight", &["--bs=8k", "--iodepth=16"]),
    ] {
        let options: Vec<&str> =
            [&engine].map(String::as_str).iter().chain(options).copied().collect();
        results.insert(name.to_owned(), job(session, &options)?);
    }
    Ok(results)
}

/// Builds the engine, and returns its path.
pub fn prepare_engine() -> Result<std::path::PathBuf, String> {
    if !repo::root().join("bindings/fio").is_dir() {
        return Err("bindings/fio is not in this tree".to_owned());
    }
    let path = repo::output_of(repo::cargo().args(["xtask", "fio", "--profile", "dev"]))?;
    path.lines().last().map(Into::into).ok_or_else(|| "cargo xtask fio prints no path".to_owned())
}

fn jobs(session: &Session, jobs: &[Job]) -> Result<Results, String> {
    let mut results = Results::new();
    for (name, options) in jobs {
        results.insert((*name).to_owned(), job(session, options)?);
    }
    Ok(results)
}

fn job(session: &Session, options: &[&str]) -> Result<Outcome, String> {
    let size = if session.is_quick { "--size=2M" } else { "--size=32M" };
    let mut words = vec!["fio", "--name=suites", "--filename=file", "--rw=randwrite", size];
    words.extend(["--direct=1", "--verify=crc32c", "--do_verify=1", "--verify_fatal=1"]);
    words.extend(["--randrepeat=1", "--output=fio.log"]);
    words.extend(options);
    let ran = session.run(&words)?;
    Ok(Outcome::of(ran.is_success(), &ran.tail()))
}
