//! The numbers that the design must reach, each measured side by side with its peer. This file
//! reads the command line, runs the groups of rows in order, and exits by their verdicts; `rows.rs`
//! has the table.

#[path = "../../../../xtask/src/repo.rs"]
#[allow(dead_code, unused_imports, reason = "of the repository's tools, and their tests")]
mod repo;

mod fio;
mod ground;
mod instructions;
mod loops;
mod null_loop;
mod options;
mod own;
mod paired;
mod result;
mod rows;
mod scale;
mod side;
mod stop;
mod table;
#[cfg(feature = "tokio")]
mod tasks;
mod trace;

use diopter_testkit::{machine, zram};

use std::process::ExitCode;

use options::Options;
use result::{Judged, Row, Verdict};
use rows::{Bench, GROUPS, Group};

/// Exit status by which a shell reports that Ctrl-C ended a program.
const STOPPED: u8 = 130;

/// Nothing could be run.
const UNUSABLE: u8 = 2;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let ended = match arguments.split_first() {
        Some((first, rest)) if first == "side" => own::main(rest).map(|()| ExitCode::SUCCESS),
        Some((first, rest)) if first == "instructions" => instructions::main(rest),
        _ => numbers(arguments),
    };
    ended.unwrap_or_else(|message| {
        eprintln!("numbers: {message}");
        ExitCode::from(UNUSABLE)
    })
}

fn numbers(arguments: Vec<String>) -> Result<ExitCode, String> {
    let options = options::parse(arguments)?;
    if options.is_help {
        print!("{}", options::USAGE);
        return Ok(ExitCode::SUCCESS);
    }
    let groups = chosen(&options)?;
    if options.is_list {
        list(&groups);
        return Ok(ExitCode::SUCCESS);
    }
    if !repo::is_root() && !options.is_smoke {
        return Err("zram, mounts and tracing need root: run it as root".to_owned());
    }
    stop::listen()?;
    ground::remove_stale();
    let load_before = load();
    let bench = Bench::new(options);
    let mut found = Vec::new();
    for group in groups {
        run(&bench, group, &mut found);
        if stop::is_asked() {
            eprintln!("stopped; what was set up is taken away");
            return Ok(ExitCode::from(STOPPED));
        }
    }
    let machine = table::Machine {
        kernel: read_line("/proc/sys/kernel/osrelease"),
        cores: std::thread::available_parallelism().map_or(0, usize::from),
        fio: fio::version().unwrap_or_else(|why| why),
        load_before,
        load_after: load(),
    };
    table::print(&found, &machine);
    if let Some(path) = &bench.options.json {
        let text = format!("{:#}\n", table::to_json(&found, &machine));
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    let is_missed = found.iter().any(|it| it.verdict() == Verdict::NotReached);
    Ok(ExitCode::from(u8::from(is_missed && !bench.options.is_smoke)))
}

/// The groups that were asked for, each with its wanted rows.
fn chosen(options: &Options) -> Result<Vec<(&'static Group, Vec<bool>)>, String> {
    let is_group = |word: &str| GROUPS.iter().any(|group| group.name == word);
    let wanted = |group: &Group, row: &Row| {
        let fits = |word: &String| match is_group(word) {
            true => group.name == word,
            false => row.name.contains(word.as_str()),
        };
        options.rows.is_empty() || options.rows.iter().any(fits)
    };
    let mut groups = Vec::new();
    for group in GROUPS {
        let rows: Vec<bool> = group.rows.iter().map(|row| wanted(group, row)).collect();
        if rows.contains(&true) {
            groups.push((group, rows));
        }
    }
    if groups.is_empty() {
        return Err(format!("no row is called {}; --list has them", options.rows.join(" or ")));
    }
    Ok(groups)
}

fn list(groups: &[(&Group, Vec<bool>)]) {
    for (group, _) in groups {
        println!("{}", group.name);
        for row in group.rows {
            println!("    {:<22} {} against {}", row.name, row.ours, row.theirs);
        }
    }
}

/// Measures a group and prints what it found at once.
fn run(bench: &Bench, (group, wanted): (&'static Group, Vec<bool>), found: &mut Vec<Judged>) {
    stop::progress(&format!("{}, load average {}", group.name, load()));
    let measured = (group.measure)(bench, group.rows.len());
    stop::progress("");
    if stop::is_asked() {
        return;
    }
    let findings = match measured {
        Ok(findings) => findings,
        Err(why) => group.rows.iter().map(|_| Err(why.clone())).collect(),
    };
    assert_eq!(findings.len(), group.rows.len(), "a finding for each row of {}", group.name);
    for ((row, finding), is_wanted) in group.rows.iter().zip(findings).zip(wanted) {
        if is_wanted {
            let judged = Judged { row: *row, device: bench.device(row), finding };
            table::print_details(&judged);
            found.push(judged);
        }
    }
}

fn load() -> String {
    let text = read_line("/proc/loadavg");
    text.split(' ').next().unwrap_or("?").to_owned()
}

fn read_line(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}
