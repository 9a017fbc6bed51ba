//! The result as a table for a person and as JSON for a program. It measures and judges nothing.

use serde_json::{Value, json};

use crate::result::{Goal, Judged, Measured, Unit, Verdict, median};

/// Facts about the machine that a reader needs.
pub struct Machine {
    pub kernel: String,
    pub cores: usize,
    pub fio: String,
    pub load_before: String,
    pub load_after: String,
}

pub fn print(rows: &[Judged], machine: &Machine) {
    println!();
    println!(
        "Linux {}, {} cores, {}; load average before {}, after {}",
        machine.kernel, machine.cores, machine.fio, machine.load_before, machine.load_after
    );
    println!("Medians of rounds in turns; the ratio is the median of the rounds' own, with its");
    println!("least and most (of twenty rounds or more without the outer tenths).");
    println!();
    println!(
        "{:<22} {:<18} {:>13} {:>13} {:>7} {:<15} {:<9} verdict",
        "row", "device", "ours", "theirs", "ratio", "(least..most)", "goal"
    );
    rows.iter().for_each(print_row);
    let count = |verdict| rows.iter().filter(|judged| judged.verdict() == verdict).count();
    println!();
    println!(
        "{} reached, {} not reached, {} not measured, {} without a goal",
        count(Verdict::Reached),
        count(Verdict::NotReached),
        count(Verdict::NotMeasured),
        count(Verdict::NoGoal)
    );
}

fn print_row(judged: &Judged) {
    let Judged { row, device, finding } = judged;
    let (goal, verdict) = (goal(row.goal), judged.verdict().name());
    let measured = match finding {
        Ok(measured) => measured,
        Err(why) => {
            // What a program said may have lines.
            let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
            println!("{:<22} {:<18} {verdict}: {why}", row.name, device);
            return;
        }
    };
    let ratios = measured.ratios(row.unit);
    let (least, most) = spread(&ratios);
    println!(
        "{:<22} {:<18} {:>13} {:>13} {:>7.3} {:<15} {goal:<9} {verdict}",
        row.name,
        device,
        figure(row.unit, measured.ours()),
        figure(row.unit, measured.theirs()),
        median(ratios.iter().copied()),
        format!("({least:.3}..{most:.3})"),
    );
}

/// A row as soon as it is there, with what it compares and what was noted.
pub fn print_details(judged: &Judged) {
    print_row(judged);
    println!("    {} against {}", judged.row.ours, judged.row.theirs);
    for note in judged.finding.iter().flat_map(|measured| &measured.notes) {
        println!("    {note}");
    }
}

/// Least and most; of twenty or more without the outer tenths, which a busy machine makes wild.
fn spread(ratios: &[f64]) -> (f64, f64) {
    let mut sorted = ratios.to_vec();
    sorted.sort_by(f64::total_cmp);
    let outer = if sorted.len() < 20 { 0 } else { sorted.len() / 10 };
    let at = |place: usize| sorted.get(place).copied().unwrap_or(f64::NAN);
    (at(outer), at(sorted.len().wrapping_sub(1 + outer)))
}

fn goal(goal: Goal) -> String {
    match goal {
        Goal::AtLeast(least) => format!(">= {least}"),
        Goal::AtMost(most) => format!("<= {most}"),
        Goal::None => "-".to_owned(),
    }
}

fn figure(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Iops => format!("{:.1} kIOPS", value / 1e3),
        Unit::NanosPerIo => format!("{value:.1} ns"),
        Unit::MillisFaster => format!("{value:.3} ms"),
        Unit::MebibytesPerSecond => format!("{value:.0} MiB/s"),
        Unit::Bios => format!("{value:.0} bios"),
        Unit::Mebibytes => format!("{value:.1} MiB"),
        Unit::Count => format!("{value:.0}"),
    }
}

pub fn to_json(rows: &[Judged], machine: &Machine) -> Value {
    let rows: Vec<Value> = rows.iter().map(row_json).collect();
    json!({
        "kernel": machine.kernel,
        "cores": machine.cores,
        "fio": machine.fio,
        "load_before": machine.load_before,
        "load_after": machine.load_after,
        "rows": rows,
    })
}

fn row_json(judged: &Judged) -> Value {
    let Judged { row, device, finding } = judged;
    let mut value = json!({
        "row": row.name,
        "device": device,
        "ours": row.ours,
        "theirs": row.theirs,
        "unit": format!("{:?}", row.unit),
        "goal": goal(row.goal),
        "verdict": judged.verdict().name(),
    });
    match finding {
        Err(why) => value["why"] = json!(why),
        Ok(measured) => add_figures(&mut value, row.unit, measured),
    }
    value
}

fn add_figures(value: &mut Value, unit: Unit, measured: &Measured) {
    let ratios = measured.ratios(unit);
    let (least, most) = spread(&ratios);
    value["ours_median"] = json!(measured.ours());
    value["theirs_median"] = json!(measured.theirs());
    value["ratio"] = json!(median(ratios));
    value["ratio_least"] = json!(least);
    value["ratio_most"] = json!(most);
    value["pairs"] = json!(measured.pairs);
    value["notes"] = json!(measured.notes);
}
