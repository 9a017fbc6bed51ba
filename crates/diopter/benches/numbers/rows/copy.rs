//! `dio cp` against cp and dd: the tools of the demo, every round all of them.

#[path = "../../../../../xtask/src/demo/source.rs"]
#[allow(unused_imports, reason = "of its tests")]
mod source;
#[path = "../../../../../xtask/src/demo/tool.rs"]
mod tool;

use std::path::PathBuf;

use crate::machine::Dir;
use crate::result::{Finding, Measured, median};
use crate::rows::Bench;
use crate::side::count;
use crate::stop;
use tool::{Files, TOOLS};

/// Where the built `dio` is; set by `cargo xtask bench`.
const DIO: &str = "DIOPTER_DIO";

const MIB: f64 = 1_048_576.0;

pub fn measure(bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    let dio = std::env::var_os(DIO).map(PathBuf::from);
    let dio = dio.ok_or_else(|| format!("{DIO} does not name dio; run `cargo xtask bench`"))?;
    let dir = Dir::new_in(&bench.options.dir, "copy")?;
    let size = bench.options.size;
    let files = Files::below(dir.path(), dio, size);
    stop::progress(&format!("writing {} MiB", size >> 20));
    source::write(&files.source, size)?;
    let mut seconds = vec![Vec::new(); TOOLS.len()];
    let mut cached = Vec::new();
    for round in 0..bench.options.rounds {
        for turn in 0..TOOLS.len() {
            let at = (round + turn) % TOOLS.len();
            let rounds = bench.options.rounds;
            stop::progress(&format!("round {} of {rounds}: {}", round + 1, TOOLS[at].name));
            files.remove_target()?;
            files.make_cold()?;
            seconds[at].push(TOOLS[at].run(&files)?.as_secs_f64());
            stop::check()?;
            if at == 0 {
                cached.push(files.cached_bytes());
            }
            if round == 0 {
                files.compare()?;
            }
        }
    }
    stop::progress("");
    Ok(findings(&seconds, &cached, count(size)))
}

fn findings(seconds: &[Vec<f64>], cached: &[Option<u64>], size: f64) -> Vec<Finding> {
    let typical = |at: &usize| median(seconds[*at].iter().copied());
    let best = (1..TOOLS.len()).min_by(|one, other| typical(one).total_cmp(&typical(other)));
    let best = best.expect("there are others");
    let rate = |seconds: &f64| size / MIB / seconds;
    let pairs = seconds[0].iter().map(rate).zip(seconds[best].iter().map(rate)).collect();
    let others = (1..TOOLS.len()).map(|at| format!("{} {:.2} s", TOOLS[at].name, typical(&at)));
    let others = others.collect::<Vec<_>>().join(", ");
    let note = format!("dio cp {:.2} s, {others}; best: {}", typical(&0), TOOLS[best].name);
    let known: Option<Vec<(f64, f64)>> =
        cached.iter().map(|bytes| Some((count((*bytes)?) / MIB, size / MIB))).collect();
    let cache = known.ok_or("fincore (util-linux) is not here".to_owned());
    vec![Ok(Measured::new(pairs).note(note)), cache.map(Measured::new)]
}
