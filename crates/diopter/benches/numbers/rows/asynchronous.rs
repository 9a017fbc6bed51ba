//! The async files on tokio's runtimes against the bare loop: 4 KiB reads, 64 tasks.

use crate::own;
use crate::result::Finding;
use crate::rows::{Bench, fast};
use crate::side::{self, Figures};

pub fn measure(bench: &Bench, rows: usize) -> Result<Vec<Finding>, String> {
    if !cfg!(feature = "tokio") {
        return Ok(vec![Err("built without the feature tokio".to_owned()); rows]);
    }
    let settings = fast::block_settings(bench, false)?;
    let tasks = |name, runtime: &str| {
        let mut settings = settings.to_vec();
        settings.push(("runtime", runtime.to_owned()));
        own::side(name, "tokio", &settings)
    };
    let one_core = [tasks("current-thread", "current"), own::side("bare loop", "bare", &settings)];
    let runs = side::in_turns(&one_core, bench.options.rounds, (&bench.core(), None))?;
    let current = side::pair(&runs[0], &runs[1], Figures::per_second);
    // More threads want more cores.
    let all = [tasks("multi-thread", "multi"), own::side("bare loop", "bare", &settings)];
    let runs = side::in_turns(&all, bench.options.rounds, (&bench.cores(), None))?;
    let multi = side::pair(&runs[0], &runs[1], Figures::per_second);
    Ok(vec![current, multi])
}
