//! `cargo xtask suites`: test suites of other projects with and without `dio run`. This file has
//! the order of events; the suites are in `table.rs`, how a program runs in `session.rs`.

mod session;
mod volume;

mod compare;
mod fio;
mod fsx;
mod pjdfstest;
mod postgres;
mod rocksdb;
mod sqlite;
mod stress;

mod table;

use crate::capability::{self, Capability};
use crate::repo::{self, Outcome};
use crate::{debian, guard, run};
use compare::Row;
use session::{Mode, Programs, Results, Session, Verdict, Work};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;
use table::{SUITES, Source, Suite};
use volume::{FileSystem, Volume};

/// The seed without `DIOPTER_SEED`: the same operations as the table in the documentation.
const SEED_DEFAULT: u64 = 1;

/// Runs the command in namespaces: its mounts go away with the last process, and its processes with
/// the first, which has handlers: the first process of a namespace ignores other signals.
const NAMESPACES: [&str; 8] = [
    "--mount",
    "--pid",
    "--fork",
    "--kill-child",
    "--mount-proc",
    "sh",
    "-c",
    "trap 'exit 130' INT; trap 'exit 143' TERM HUP; \"$@\"; exit $?",
];

/// The options of the command.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    only: Vec<String>,
    /// The modes to compare with a plain run; none for all of a suite's.
    modes: Vec<Mode>,
    /// The file systems, by name; none for all of a suite's.
    file_systems: Vec<String>,
    is_quick: bool,
}

/// A suite that does not run, and why.
type Skip = (String, String);

/// `cargo xtask suites [--only NAME]... [--on FILE_SYSTEM]... [--mode MODE]... [--quick]`.
pub fn run(arguments: &[String]) -> Outcome {
    parse(arguments)?;
    if !repo::is_root() {
        return Err("suites: it mounts file systems on loop devices; run it as root".to_owned());
    }
    debian::provide(&[Capability::Loop, Capability::Ext4, Capability::Xfs, Capability::Btrfs]);
    // Other accounts have to reach it, which they do not below root's home.
    let scratch = std::env::temp_dir().join(format!("diopter-suites-{}", std::process::id()));
    let this = std::env::current_exe().map_err(|error| format!("the path of xtask: {error}"))?;
    let mut inner = Command::new("unshare");
    inner.args(NAMESPACES).arg("suites").arg(this).arg("suites-inner").arg(&scratch);
    Err(guard::run(&scratch, inner.args(arguments)))
}

/// The work, inside the guard and the namespaces: `suites-inner SCRATCH [OPTIONS]`.
pub fn run_inner(arguments: &[String]) -> Outcome {
    let (scratch, rest) =
        arguments.split_first().ok_or("suites-inner is started by `cargo xtask suites`")?;
    let (options, scratch) = (parse(rest)?, Path::new(scratch));
    let seed = match std::env::var_os("DIOPTER_SEED") {
        Some(_) => repo::seed()?.0,
        None => SEED_DEFAULT,
    };
    println!("seed {seed}; another: DIOPTER_SEED=N");
    let programs = build(scratch)?;
    let (mut rows, mut skips) = (Vec::new(), Vec::new());
    for suite in SUITES.iter().filter(|suite| options.wants(suite)) {
        let tool = match prepare(suite) {
            Ok(tool) => tool,
            Err(why) => {
                skips.push((suite.name.to_owned(), why));
                continue;
            }
        };
        let file_systems = if options.is_quick { suite.quick } else { suite.file_systems };
        for file_system in file_systems.iter().filter(|it| options.wants_on(it)) {
            if let Err(why) = capability::file_system(file_system.capability.name()) {
                skips.push((format!("{} on {}", suite.name, file_system.name), why));
                continue;
            }
            println!("== {} on {}", suite.name, file_system.name);
            let session = |mode, dir| Session {
                programs: &programs,
                mode,
                is_quick: options.is_quick,
                seed,
                dir,
                tool: tool.as_deref(),
                work: Mutex::default(),
            };
            let modes = options.modes_of(suite);
            let in_place = (*file_system, scratch);
            rows.push(row(suite, &modes, in_place, session).unwrap_or_else(|why| {
                println!("   {why}");
                Row::failed(suite.name, file_system.name)
            }));
        }
    }
    report(&rows, &skips)
}

fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut options = Options::default();
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match argument.as_str() {
            "--quick" => options.is_quick = true,
            "--only" => options.only.push(rest.next().ok_or("--only needs a name")?.clone()),
            "--on" => options.file_systems.push(rest.next().ok_or("--on needs a name")?.clone()),
            "--mode" => options.modes.push(Mode::named(rest.next().map_or("", String::as_str))?),
            other => {
                let known = "--only NAME, --on FILE_SYSTEM, --mode run, all or direct, and --quick";
                return Err(format!("suites knows {known}, not `{other}`"));
            }
        }
    }
    let names: Vec<&str> = SUITES.iter().map(|suite| suite.name).collect();
    if let Some(name) = options.only.iter().find(|name| !names.contains(&name.as_str())) {
        return Err(format!("no suite `{name}`; the suites are {}", names.join(" ")));
    }
    let known = [volume::EXT4_1K, volume::EXT4, volume::XFS, volume::BTRFS].map(|it| it.name);
    match options.file_systems.iter().find(|name| !known.contains(&name.as_str())) {
        Some(name) => Err(format!("no file system `{name}`; they are {}", known.join(" "))),
        None => Ok(options),
    }
}

impl Options {
    fn wants(&self, suite: &Suite) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == suite.name)
    }

    fn wants_on(&self, file_system: &FileSystem) -> bool {
        let names = &self.file_systems;
        names.is_empty() || names.iter().any(|name| name == file_system.name)
    }

    fn modes_of(&self, suite: &Suite) -> Vec<Mode> {
        let is_wanted = |mode: &Mode| self.modes.is_empty() || self.modes.contains(mode);
        suite.modes.iter().copied().filter(is_wanted).collect()
    }
}

/// Builds `dio`, its library and `open_direct.c`, and copies them to where each account reads them.
fn build(scratch: &Path) -> Result<Programs, String> {
    let mut command = repo::cargo();
    command.args(["build", "-p", "diopter-cli", "-p", "diopter-preload"]);
    println!("{}", run::shown(&command));
    match command.status() {
        Ok(status) if status.success() => {}
        Ok(status) => return Err(format!("{}: {status}", run::shown(&command))),
        Err(error) => return Err(format!("cargo does not start: {error}")),
    }
    debian::ensure(&["gcc", "libc6-dev"])?;
    let copied = |name: &str| {
        let (from, to) = (repo::target_dir().join("debug").join(name), scratch.join(name));
        std::fs::copy(&from, &to).map_err(|error| format!("{}: {error}", from.display()))?;
        Ok::<PathBuf, String>(to)
    };
    let open_direct = scratch.join("open_direct.so");
    let source = repo::root().join("xtask/src/suites/open_direct.c");
    let mut compile = Command::new("gcc");
    compile.args(["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o"]);
    repo::output_of(compile.arg(&open_direct).arg(source).arg("-ldl"))?;
    Ok(Programs { dio: copied("dio")?, library: copied("libdiopter_preload.so")?, open_direct })
}

/// Installs what a suite needs. Returns its program, if it is not simply a package's.
fn prepare(suite: &Suite) -> Result<Option<PathBuf>, String> {
    debian::ensure(suite.packages)?;
    match suite.source {
        Source::Package => Ok(None),
        Source::Directory(dir) => {
            let dir = PathBuf::from(dir);
            if dir.is_dir() { Ok(Some(dir)) } else { Err(format!("no {}", dir.display())) }
        }
        Source::Crate(tool) => tool.ensure().map(Some),
        Source::Built(build) => build().map(Some),
    }
}

/// Runs a suite on a new file system in each of its modes, each in an empty directory.
fn row<'a>(
    suite: &Suite,
    modes: &[Mode],
    (file_system, scratch): (FileSystem, &Path),
    session: impl Fn(Mode, PathBuf) -> Session<'a>,
) -> Result<Row, String> {
    let volume = Volume::new(scratch, file_system)?;
    let started = Instant::now();
    let in_mode = |mode: Mode| -> Result<(Results, Work), String> {
        let dir = volume.path().join("suite");
        let message = |error: std::io::Error| format!("{}: {error}", dir.display());
        std::fs::create_dir(&dir).map_err(message)?;
        let session = session(mode, dir.clone());
        let results = (suite.run)(&session)
            .map_err(|error| format!("{}, {}: {error}", suite.name, mode.name()))?;
        std::fs::remove_dir_all(&dir).map_err(message)?;
        let work = *session.work.lock().unwrap_or_else(PoisonError::into_inner);
        Ok((results, work))
    };
    let (plain, _) = in_mode(Mode::Plain)?;
    println!("   plain: {}", compare::counts(&plain));
    compare::print_failures(&plain, suite.only_with);
    // A suite that does nothing is the same in each mode.
    let mut differences = 0;
    if !plain.values().any(|outcome| outcome.verdict == Verdict::Passed) {
        println!("   no test passes without the library");
        differences += 1;
    }
    let mut with = Vec::new();
    for mode in Mode::WITH {
        if !modes.contains(&mode) {
            with.push("-".to_owned());
            continue;
        }
        let (results, work) = in_mode(mode)?;
        let mut found = compare::differences(&plain, &results, suite.only_with);
        found.extend(compare::idle(mode, work));
        compare::print_lines(mode, &found);
        with.push(compare::cell(mode, &results, found.len(), work));
        println!("   {}: {}", mode.name(), with.last().map_or("", String::as_str));
        differences += found.len();
    }
    Ok(Row {
        suite: suite.name,
        file_system: file_system.name,
        plain: compare::counts(&plain),
        with,
        differences,
        took: started.elapsed(),
    })
}

/// Prints the table with the date of the commit.
fn report(rows: &[Row], skips: &[Skip]) -> Outcome {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%cs"]).current_dir(repo::root());
    println!("\nSuites of other projects at the commit of {}:\n", repo::output_of(&mut git)?);
    compare::print(rows);
    println!();
    for (name, why) in skips {
        // The form that the summary of the lanes counts.
        println!("SKIP {}: {name}: {why}", Capability::Apt);
    }
    let differences: usize = rows.iter().map(|row| row.differences).sum();
    println!("{} rows, {differences} differences, {} skipped", rows.len(), skips.len());
    Ok(differences == 0 && !rows.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn options_are_read_and_unknown_suites_refused() {
        let options = parsed("--quick --only fsx --only sqlite").unwrap();
        assert!(options.is_quick);
        let wanted: Vec<&str> =
            SUITES.iter().filter(|suite| options.wants(suite)).map(|suite| suite.name).collect();
        assert_eq!(wanted, ["fsx", "sqlite"]);
        assert!(parsed("").unwrap().wants(&SUITES[0]));
        let [fsx, fio, ..] = &SUITES;
        assert_eq!(parsed("").unwrap().modes_of(fsx), Mode::WITH);
        let options = parsed("--mode direct --mode run").unwrap();
        assert_eq!(options.modes_of(fsx), [Mode::Run, Mode::Direct]);
        assert_eq!(options.modes_of(fio), [Mode::Run], "fio opens its files directly itself");
        let on = |line, name| {
            let options = parsed(line).unwrap();
            let mut all = [volume::EXT4, volume::XFS].into_iter();
            all.any(|it| it.name == name && options.wants_on(&it))
        };
        assert!(on("", "xfs") && on("--on xfs", "xfs") && !on("--on xfs", "ext4-4k"));
        for wrong in ["--only", "--only x", "--on", "--on ext5", "--mode", "--mode plain", "--slow"]
        {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
