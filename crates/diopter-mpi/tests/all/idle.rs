//! Ranks that wait sleep: their processor time is little while another rank does nothing.

use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::job::{self, Process};

/// The processor time of a rank that waits, as a share of the time that passes.
const SHARE_MAX: f64 = 0.05;

/// The time in which it is measured. It is counted in ticks of 10 ms.
const WINDOW: Duration = Duration::from_secs(1);

/// The time after which all ranks have done what they could do without the one that is stopped.
const SETTLED_AFTER: Duration = Duration::from_secs(60);

/// Directories of the tree that is copied.
const DIRECTORIES: usize = 40;

/// A rank that is stopped until this is dropped.
struct Stopped<'a>(&'a Process);

impl<'a> Stopped<'a> {
    fn new(process: &'a Process) -> Stopped<'a> {
        assert!(process.signal(Signal::STOP), "{process:?} is there");
        Stopped(process)
    }
}

impl Drop for Stopped<'_> {
    fn drop(&mut self) {
        self.0.signal(Signal::CONT);
    }
}

/// Starts a job of three ranks; returns it with its processes, when `is_there` says so.
fn start(dir: &Path, words: &[String], is_there: impl Fn() -> bool) -> (Child, Vec<Process>) {
    let mut command = job::command(3);
    command.args(words).stdout(Stdio::null()).stderr(Stdio::inherit());
    let (mut job, mut processes) = (command.spawn().unwrap(), Vec::new());
    loop {
        if processes.len() < 3 {
            processes = job::processes(dir);
        } else if is_there() {
            return (job, processes);
        }
        assert!(job.try_wait().unwrap().is_none(), "the job ends before it is looked at");
        std::thread::park_timeout(Duration::from_millis(1));
    }
}

/// Waits until so many ranks have nothing to do, and checks that they sleep: a rank that spins
/// never does. The first windows may be those of work that is left.
fn check_asleep(waiting: &[&Process], what: &str) {
    let started = Instant::now();
    loop {
        let (window, before) = (Instant::now(), times(waiting));
        while let Some(left) = WINDOW.checked_sub(window.elapsed()).filter(|left| !left.is_zero()) {
            std::thread::park_timeout(left);
        }
        let (passed, after) = (window.elapsed(), times(waiting));
        let share = |(before, after): (&Duration, &Duration)| {
            (*after - *before).as_secs_f64() / passed.as_secs_f64()
        };
        let shares: Vec<f64> = before.iter().zip(&after).map(share).collect();
        if shares.iter().all(|share| *share <= SHARE_MAX) {
            println!("{what}: {shares:.3?} of a processor");
            return;
        }
        assert!(started.elapsed() < SETTLED_AFTER, "{what}: {shares:.3?} of a processor");
    }
}

fn times(processes: &[&Process]) -> Vec<Duration> {
    processes.iter().map(|process| process.processor_time()).collect()
}

/// Makes a tree of small files with long names: a message with a part of them is not buffered.
fn make_tree(root: &Path) {
    for dir in 0..DIRECTORIES {
        let dir = root.join(format!("dir-{dir}"));
        fs::create_dir_all(&dir).unwrap();
        for number in 0..128 {
            fs::write(dir.join(format!("{number:0>120}")), vec![b'x'; 20_000]).unwrap();
        }
    }
}

#[test]
fn ranks_that_wait_for_work_or_for_another_rank_of_a_copy_sleep() {
    let dir = tempfile::tempdir().unwrap();
    make_tree(&dir.path().join("source"));
    let _only = job::only();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (stopped, what) in [(0, "ranks without work"), (1, "rank 0, and a rank without work")] {
        let target = format!("target-{stopped}");
        let words = ["cp".to_owned(), path("source"), path(&target)];
        let made = || fs::read_dir(path(&target)).map_or(0, |entries| entries.count());
        let is_copying = || made() > 2;
        let (mut job, ranks) = start(dir.path(), &words, is_copying);
        let asleep = Stopped::new(&ranks[stopped]);
        let waiting: Vec<&Process> = ranks.iter().filter(|rank| rank.rank != stopped).collect();
        check_asleep(&waiting, what);
        let made_before = made();
        drop(asleep);
        assert!(job.wait().unwrap().success(), "the job continues");
        assert!(stopped == 1 || made_before < DIRECTORIES, "it was stopped at the end");
    }
}

#[test]
fn ranks_that_wait_at_a_barrier_or_for_a_slower_rank_of_a_benchmark_sleep() {
    let dir = tempfile::tempdir().unwrap();
    let _only = job::only();
    let file = dir.path().join("file").to_str().unwrap().to_owned();
    let words = ["bench", "-t", "64k", "-b", "256m", "-F", "-o", &file].map(str::to_owned);
    // Each rank makes its file after all were released together.
    let is_writing = || fs::read_dir(dir.path()).unwrap().count() == 3;
    let (mut job, ranks) = start(dir.path(), &words, is_writing);
    let [lead, one, other] = &ranks[..] else { panic!("three ranks") };
    let lead_asleep = Stopped::new(lead);
    check_asleep(&[one, other], "ranks that have reported");
    // Rank 0 collects the reports and begins the next phase, where one rank is missing.
    let one_asleep = Stopped::new(one);
    drop(lead_asleep);
    check_asleep(&[lead, other], "ranks at the barrier");
    drop(one_asleep);
    assert!(job.wait().unwrap().success(), "the job continues");
}
