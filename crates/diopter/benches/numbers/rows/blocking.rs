//! One blocking block at a time against the bare system call.

use serde_json::Value;

use crate::own;
use crate::result::{Finding, Measured, Unit, median};
use crate::rows::{Bench, fast};
use crate::side::output_of;

/// Pairs of turns of 500 calls each, for a round.
const TURNS: usize = 100;
const TURNS_QUICK: usize = 10;

pub fn measure(bench: &Bench, _rows: usize) -> Result<Vec<Finding>, String> {
    Ok(vec![one(bench, false), one(bench, true)])
}

fn one(bench: &Bench, is_write: bool) -> Finding {
    let mut settings = fast::block_settings(bench, is_write)?.to_vec();
    let turns = if bench.options.is_quick { TURNS_QUICK } else { TURNS };
    settings.push(("turns", (turns * bench.options.rounds).to_string()));
    let output = child(bench, "blocking", &settings)?;
    let pairs = |name: &str| {
        let pairs = serde_json::from_value(output[name].clone());
        pairs.map(Measured::new).map_err(|error| error.to_string())
    };
    let processor = pairs("processor")?;
    let note = format!(
        "by the thread's processor time: {:.0} ns against {:.0} ns, ratio {:.3}",
        processor.ours(),
        processor.theirs(),
        median(processor.ratios(Unit::NanosPerIo))
    );
    Ok(pairs("pairs")?.note(note))
}

/// Runs a child on the core of the rows with one thread, and returns its result.
pub fn child(bench: &Bench, kind: &str, settings: &[(&str, String)]) -> Result<Value, String> {
    let side = own::side("blocking", kind, settings)?;
    let mut command = std::process::Command::new("taskset");
    command.args(["-c", &bench.core()]).arg(&side.program).args(&side.arguments);
    let output = output_of(&mut command)?;
    serde_json::from_str(&output).map_err(|error| format!("{error}: {output}"))
}
