//! The other backends against fio's engines of the same kind.

use diopter::BackendKind;

use crate::fio::Job;
use crate::own;
use crate::result::Finding;
use crate::rows::{Bench, fast};
use crate::side::{self, Figures, Side};

pub fn aio(bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    "aio".parse::<BackendKind>().map_err(|_| "the engine has no backend aio".to_owned())?;
    [false, true]
        .into_iter()
        .map(|is_write| {
            let mut settings = fast::block_settings(bench, is_write)?.to_vec();
            settings.push(("backend", "aio".to_owned()));
            let ours = own::side("aio", "engine", &settings);
            against(bench, (ours, fio(bench, ("libaio", 64), is_write)))
        })
        .collect()
}

pub fn threads(bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    [false, true]
        .into_iter()
        .map(|is_write| {
            let mut settings = fast::block_settings(bench, is_write)?.to_vec();
            settings.push(("backend", "threads".to_owned()));
            let ours = own::side("threads", "calls", &settings);
            against(bench, (ours, fio(bench, ("psync", 1), is_write)))
        })
        .collect()
}

fn fio(
    bench: &Bench,
    (engine, depth): (&'static str, u32),
    is_write: bool,
) -> Result<Side, String> {
    let (name, extra) = (engine, &[][..]);
    let fast = bench.fast()?;
    let file = if is_write { fast.to_write() } else { fast.to_read() };
    let (file, pattern, millis) = (file.as_path(), &fast.pattern(), bench.millis());
    Job { name, engine, depth, extra, file, pattern, is_write, millis }.side()
}

/// The outer result is for what ends the bench; a side that can't run is a finding.
fn against(
    bench: &Bench,
    (ours, theirs): (Result<Side, String>, Result<Side, String>),
) -> Result<Finding, String> {
    let runs = side::in_turns(&[ours, theirs], bench.options.rounds, (&bench.core(), None))?;
    Ok(side::pair(&runs[0], &runs[1], Figures::per_second))
}
