//! PostgreSQL: a new cluster, transactions, a stop as in a crash, recovery, and every check that it
//! has.

use super::session::{Mode, Outcome, Ran, Results, Session, Verdict};
use std::fs;

/// A log for crash recovery alone is written direct with this method. Little memory makes the
/// server read and write its tables.
const CONFIGURATION: &str = "
listen_addresses = ''
fsync = on
wal_level = minimal
max_wal_senders = 0
wal_sync_method = open_datasync
shared_buffers = 2MB
autovacuum = on
log_checkpoints = on
";

const CLIENTS: u32 = 2;

/// Each transaction of pgbench adds one amount to an account, a teller and a branch, and records
/// it.
const BALANCES: &str = "with h as (select count(*) as n, sum(delta) as d from pgbench_history) \
    select n || ' ' || (d = (select sum(abalance) from pgbench_accounts) \
    and d = (select sum(tbalance) from pgbench_tellers) \
    and d = (select sum(bbalance) from pgbench_branches)) from h";

/// A cluster of one session.
struct Cluster<'a> {
    session: &'a Session<'a>,
    /// The directory of PostgreSQL's programs.
    programs: String,
    data: String,
    socket: String,
    results: Results,
}

/// Runs all of it. A step that fails ends the rest: its results are absent.
pub fn run(session: &Session) -> Result<Results, String> {
    let programs = session.tool();
    let (data, socket) = (session.path("data"), session.path(""));
    let mut cluster = Cluster { session, programs, data, socket, results: Results::new() };
    let finished = cluster.run();
    if finished.is_err() {
        // What is not stopped keeps the file system busy.
        let stopped = cluster.program("pg_ctl", &["stop", "-m", "immediate"]);
        stopped.map(drop).unwrap_or(());
    }
    match finished {
        Err(Stop::Machine(message)) => Err(message),
        _ => Ok(cluster.results),
    }
}

/// Why the rest does not run.
enum Stop {
    /// A step failed, which is in the results.
    Step,
    Machine(String),
}

impl Cluster<'_> {
    fn run(&mut self) -> Result<(), Stop> {
        let transactions = if self.session.is_quick { 50 } else { 1000 };
        self.step("initdb", "initdb", &["-k", "-A", "trust", "-U", "postgres"])?;
        let configuration = fs::read_to_string(format!("{}/postgresql.conf", self.data));
        let configuration = configuration.map_err(|error| Stop::Machine(error.to_string()))?;
        self.session
            .write("data/postgresql.conf", &(configuration + CONFIGURATION))
            .map_err(Stop::Machine)?;
        self.start("start")?;
        self.client("pgbench -i", "pgbench", &["-i", "-q", "-s", "1"])?;
        let (clients, each) = (CLIENTS.to_string(), transactions.to_string());
        self.client("pgbench", "pgbench", &["-c", &clients, "-t", &each])?;
        self.step("immediate stop", "pg_ctl", &["stop", "-m", "immediate"])?;
        self.start("recovery")?;
        let log = fs::read_to_string(self.session.path("log")).unwrap_or_default();
        self.note("redo", Outcome::of(log.contains("redo done at"), "no redo in the log"))?;
        let ran = self.connected("psql", &["-XAtc", BALANCES])?;
        let expected = format!("{} true", CLIENTS * transactions);
        self.note("balances", Outcome::of(ran.text.trim() == expected, &ran.tail()))?;
        self.client("amcheck", "pg_amcheck", &["--install-missing", "--heapallindexed"])?;
        self.step("fast stop", "pg_ctl", &["stop", "-m", "fast"])?;
        self.step("checksums", "pg_checksums", &["--check"])
    }

    /// Starts the server, and checks that it has the library.
    fn start(&mut self, name: &str) -> Result<(), Stop> {
        let log = self.session.path("log");
        let options = format!("-k {}", self.socket);
        self.step(name, "pg_ctl", &["start", "-w", "-l", &log, "-o", &options])?;
        let number = fs::read_to_string(format!("{}/postmaster.pid", self.data));
        let number = number.map_err(|error| Stop::Machine(error.to_string()))?;
        let number = number.lines().next().unwrap_or_default().to_owned();
        let maps = fs::read_to_string(format!("/proc/{number}/maps"));
        let maps = maps.map_err(|error| Stop::Machine(format!("/proc/{number}/maps: {error}")))?;
        let library = self.session.programs.library.to_string_lossy().into_owned();
        if maps.contains(&library) == (self.session.mode == Mode::Plain) {
            let message = format!("the server has the library in the mode {:?}", self.session.mode);
            return Err(Stop::Machine(message));
        }
        Ok(())
    }

    /// Runs a program on the directory of the cluster; it has to succeed.
    fn step(&mut self, name: &str, program: &str, arguments: &[&str]) -> Result<(), Stop> {
        let ran = self.program(program, arguments).map_err(Stop::Machine)?;
        self.note(name, Outcome::of(ran.is_success(), &ran.tail()))
    }

    fn program(&self, program: &str, arguments: &[&str]) -> Result<Ran, String> {
        let path = format!("{}/{program}", self.programs);
        let words = [&[path.as_str(), "-D", &self.data], arguments].concat();
        self.session.run_unprivileged(&words)
    }

    /// Runs a program that connects; it has to succeed.
    fn client(&mut self, name: &str, program: &str, arguments: &[&str]) -> Result<(), Stop> {
        let ran = self.connected(program, arguments)?;
        self.note(name, Outcome::of(ran.is_success(), &ran.tail()))
    }

    fn connected(&self, program: &str, arguments: &[&str]) -> Result<Ran, Stop> {
        let path = format!("{}/{program}", self.programs);
        let where_to = ["-h", &self.socket, "-U", "postgres"];
        let words = [&[path.as_str()], &where_to[..], arguments, &["postgres"]].concat();
        self.session.run_unprivileged(&words).map_err(Stop::Machine)
    }

    fn note(&mut self, name: &str, outcome: Outcome) -> Result<(), Stop> {
        let is_end = outcome.verdict != Verdict::Passed;
        self.results.insert(name.to_owned(), outcome);
        if is_end { Err(Stop::Step) } else { Ok(()) }
    }
}
