//! Runs the sides of a cell in rounds.

use crate::job::{Figures, Job};
use crate::{child, stop};

/// All runs of a side, or why it has none.
pub type Runs = Result<Vec<Figures>, String>;

/// A side in a cell, with the label that the table shows.
#[derive(Clone, Debug)]
pub struct Entry {
    pub label: String,
    pub job: Job,
}

/// Runs each side once a round, every other round in the opposite order. A side that fails once
/// does not run again. `prepare` is called before each run.
pub fn in_turns(
    entries: &[Entry],
    rounds: usize,
    prepare: impl Fn(&Entry) -> Result<(), String>,
) -> Result<Vec<Runs>, String> {
    let mut runs: Vec<Runs> = entries.iter().map(|_| Ok(Vec::new())).collect();
    for round in 0..rounds {
        for turn in 0..entries.len() {
            let at = if round % 2 == 0 { turn } else { entries.len() - 1 - turn };
            let Ok(so_far) = &mut runs[at] else { continue };
            stop::progress(&format!("round {} of {rounds}: {}", round + 1, entries[at].label));
            prepare(&entries[at])?;
            match child::run(&entries[at].job) {
                Ok(one) if one.ios > 0.0 && one.seconds > 0.0 => so_far.push(one),
                Ok(_) => runs[at] = Err("it moved nothing".to_owned()),
                Err(why) => runs[at] = Err(why),
            }
            stop::check()?;
        }
    }
    stop::progress("");
    Ok(runs)
}
