//! The async files on tokio's runtimes, and without one, against the bare loop: 4 KiB reads, 64
//! tasks.

use crate::own;
use crate::result::Finding;
use crate::rows::{Bench, fast};
use crate::side::{self, Figures};

pub fn measure(bench: &Bench, rows: usize) -> Result<Vec<Finding>, String> {
    if !cfg!(feature = "tokio") {
        return Ok(vec![Err("built without the feature tokio".to_owned()); rows]);
    }
    let settings = fast::block_settings(bench, false)?;
    let tasks = |name, runtime: &str, registered: &str| {
        let mut settings = settings.to_vec();
        settings.push(("runtime", runtime.to_owned()));
        settings.push(("registered", registered.to_owned()));
        own::side(name, "tasks", &settings)
    };
    let both = |sides: [_; 2], cores: &str| {
        let [one, other] = sides;
        let sides = [one, other, own::side("bare loop", "bare", &settings)];
        let runs = side::in_turns(&sides, bench.options.rounds, (cores, None))?;
        Ok::<_, String>([0, 1].map(|at| side::pair(&runs[at], &runs[2], Figures::per_second)))
    };
    let one_core =
        [tasks("current-thread", "current", "no"), tasks("registered", "current", "yes")];
    let [current, registered] = both(one_core, &bench.core())?;
    // More threads want more cores.
    let more = [tasks("multi-thread", "multi", "no"), tasks("reaper", "none", "no")];
    let [multi, reaper] = both(more, &bench.cores())?;
    Ok(vec![current, registered, multi, reaper])
}
