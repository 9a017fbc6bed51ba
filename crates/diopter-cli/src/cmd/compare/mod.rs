//! `dio compare`: judges recorded runs, read and judged by diopter-bench.

mod text;

use std::path::Path;

use diopter_bench::compare::{self, Comparison, Named, Settings, Verdict};
use diopter_bench::load::{self, LoadError};

use crate::args::CompareArgs;
use crate::log;
use crate::output::{self, DIFFERENT, DONE, INCONCLUSIVE, Look, TROUBLE};

/// Runs the command, and returns the exit status.
pub fn run(args: &CompareArgs, look: &Look) -> u8 {
    match compare(args) {
        Ok(comparison) => {
            let status = status_of(comparison.verdict);
            if args.json {
                output::print_document(&comparison, status)
            } else {
                let look = look.of_figures(crate::terminal::columns());
                look.print(&text::of(&comparison, args.all, &look), status)
            }
        }
        Err(message) => {
            log::fail("compare", &message);
            TROUBLE
        }
    }
}

pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(Comparison)
}

fn compare(args: &CompareArgs) -> Result<Comparison, String> {
    if args.html.is_some() {
        return Err("--html: dio report --html FILE BASE NEW... makes the page".to_owned());
    }
    let mut all = Vec::new();
    let mut notes = Vec::new();
    for name in std::iter::once(&args.base).chain(&args.others) {
        let (named, found) = named(name).map_err(|error| error.to_string())?;
        // One file may be named twice.
        notes.extend(found.into_iter().filter(|note| !notes.contains(note)).collect::<Vec<_>>());
        all.push(named);
    }
    let settings = Settings {
        effect_floor: args.floor,
        metrics: args.metric.clone(),
        is_partial: args.partial,
        ..Settings::default()
    };
    let mut comparison = compare::documents(&all, &settings).map_err(|error| error.to_string())?;
    notes.append(&mut comparison.notes);
    comparison.notes = notes;
    Ok(comparison)
}

fn named(path: &Path) -> Result<(Named, Vec<String>), LoadError> {
    let loaded = load::rounds(path)?;
    let name = path.display().to_string();
    Ok((Named { name, bench: loaded.bench }, loaded.notes))
}

fn status_of(verdict: Verdict) -> u8 {
    match verdict {
        Verdict::Better | Verdict::Same => DONE,
        Verdict::Worse => DIFFERENT,
        Verdict::Inconclusive => INCONCLUSIVE,
    }
}
