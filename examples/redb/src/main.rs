//! Kills a process that commits transactions, opens the database again, and checks that it is sound
//! and has every transaction whose commit returned. Again and again, on the same database.
//!
//! `cargo run -- [--rounds N] [--seed N] [DIRECTORY]`

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use redb::{Database, ReadableDatabase, ReadableTableMetadata, TableDefinition};
use redb_diopter::DiopterBackend;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Records by transaction and number.
const RECORDS: TableDefinition<(u64, u64), &[u8]> = TableDefinition::new("records");

/// The number of the last transaction.
const LAST: TableDefinition<(), u64> = TableDefinition::new("last");

/// Transactions whose records are in the database; older ones are removed.
const KEPT: u64 = 64;

/// The longest that a process commits transactions before it is killed.
const LIFE_MS: u64 = 120;

/// The longest that a database is opened, or a transaction committed.
const WAIT_MAX: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let done = match &arguments[..] {
        [first, path] if first == "--child" => commit_for_ever(Path::new(path)),
        arguments => rounds(arguments),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

/// splitmix64.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }
}

/// Returns the number of records of a transaction.
fn count(transaction: u64) -> u64 {
    1 + Random(transaction).below(20)
}

/// Returns a record. Its length and bytes follow from its key.
fn record(transaction: u64, number: u64) -> Vec<u8> {
    let mut random = Random(transaction << 8 | number);
    let length = if random.below(10) == 0 { random.below(100_000) } else { random.below(2000) };
    (0..length).map(|at| (at ^ transaction ^ number).to_le_bytes()[0]).collect()
}

/// Commits transactions, and prints the number of each when its commit has returned.
fn commit_for_ever(path: &Path) -> Result<()> {
    let database = Database::builder().create_with_backend(DiopterBackend::open_waiting(path)?)?;
    let mut out = std::io::stdout().lock();
    let mut next = last(&database)? + 1;
    writeln!(out, "open")?;
    loop {
        let write = database.begin_write()?;
        {
            let mut records = write.open_table(RECORDS)?;
            for number in 0..count(next) {
                records.insert((next, number), record(next, number).as_slice())?;
            }
            if let Some(old) = next.checked_sub(KEPT) {
                records.retain_in((old, 0)..(old + 1, 0), |_, _| false)?;
            }
            write.open_table(LAST)?.insert((), next)?;
        }
        write.commit()?;
        writeln!(out, "{next}")?;
        out.flush()?;
        next += 1;
    }
}

fn last(database: &Database) -> Result<u64> {
    match database.begin_read()?.open_table(LAST) {
        Ok(table) => Ok(table.get(())?.map_or(0, |last| last.value())),
        Err(redb::TableError::TableDoesNotExist(_)) => Ok(0),
        Err(error) => Err(error.into()),
    }
}

fn rounds(arguments: &[String]) -> Result<()> {
    let (mut rounds, mut seed, mut parent) = (20, 1, std::env::temp_dir());
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--rounds" => rounds = arguments.next().ok_or("--rounds: a number")?.parse()?,
            "--seed" => seed = arguments.next().ok_or("--seed: a number")?.parse()?,
            directory => parent = PathBuf::from(directory),
        }
    }
    let directory = tempfile::tempdir_in(parent)?;
    let path = directory.path().join("database.redb");
    let mut random = Random(seed);
    let (mut before, mut killed_in_commit) = (0, 0);
    for round in 1..=rounds {
        let life = Duration::from_micros(random.below(LIFE_MS * 1000));
        let acknowledged = run_and_kill(&path, life)?.unwrap_or(before);
        let found = check(&path, acknowledged, round % 2 == 0)
            .map_err(|error| format!("round {round} of seed {seed}: {error}"))?;
        killed_in_commit += u64::from(found > acknowledged);
        before = found;
    }
    println!(
        "{rounds} rounds, {before} transactions, none lost; {killed_in_commit} were killed \
         between the end of a commit and its report"
    );
    Ok(())
}

/// Has a process commit transactions for a while, then kills it. Returns the last transaction that
/// it reported.
fn run_and_kill(path: &Path, life: Duration) -> Result<Option<u64>> {
    let mut command = Command::new(std::env::current_exe()?);
    let mut child = command.arg("--child").arg(path).stdout(Stdio::piped()).spawn()?;
    let lines = lines_of(&mut child);
    let mut reported = None;
    let opened = lines.recv_timeout(WAIT_MAX).map_err(|_| "the database was not opened")?;
    assert_eq!(opened, "open");
    let end = Instant::now() + life;
    while let Ok(line) = lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
        reported = Some(line.parse()?);
    }
    // SIGKILL.
    child.kill()?;
    let status = child.wait()?;
    if status.code().is_some() {
        return Err(format!("the process ended before it was killed: {status}").into());
    }
    for line in lines {
        reported = Some(line.parse()?);
    }
    Ok(reported)
}

fn lines_of(child: &mut Child) -> Receiver<String> {
    let (sender, receiver) = channel();
    let out = child.stdout.take().expect("a pipe");
    thread::spawn(move || {
        for line in BufReader::new(out).lines().map_while(std::result::Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Opens the database, with redb's own backend or with diopter's, and checks all of it. Returns the
/// number of its last transaction.
fn check(path: &Path, acknowledged: u64, with_own: bool) -> Result<u64> {
    let backend = DiopterBackend::open_waiting(path)?;
    let mut database = if with_own {
        drop(backend);
        Database::open(path)?
    } else {
        Database::builder().create_with_backend(backend)?
    };
    if !database.check_integrity()? {
        return Err("the database was repaired when it was opened and is not sound".into());
    }
    let last = last(&database)?;
    if !(acknowledged..=acknowledged + 1).contains(&last) {
        return Err(format!("transaction {acknowledged} was reported and {last} is last").into());
    }
    check_records(&database, last)?;
    Ok(last)
}

fn check_records(database: &Database, last: u64) -> Result<()> {
    if last == 0 {
        return Ok(());
    }
    let records = database.begin_read()?.open_table(RECORDS)?;
    let first = last.saturating_sub(KEPT) + 1;
    let expected: u64 = (first..=last).map(count).sum();
    if records.len()? != expected {
        return Err(format!("{} records in place of {expected}", records.len()?).into());
    }
    for transaction in first..=last {
        for number in 0..count(transaction) {
            let found = records.get((transaction, number))?;
            if found.is_none_or(|found| found.value() != record(transaction, number)) {
                return Err(format!("record {number} of {transaction} is not there").into());
            }
        }
    }
    Ok(())
}
