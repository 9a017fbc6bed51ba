//! Writers that need a file, or a page of it, for themselves while many others write it.

use diopter_testkit::env::Capability;
use std::fs;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use diopter::{Engine, EngineOptions, File, IoBuf, Request};

use super::env;
use super::machine::{self, Dir};
use super::row::both_ways;
use super::zram::Zram;

const THREADS: u64 = 8;
const DEPTH: usize = 32;
const BLOCK: usize = 4096;
/// Few enough that every page is written all the time.
const BLOCKS: u64 = 64;
const SIZE: u64 = BLOCKS * BLOCK as u64;

/// How often each is tried. One of them must be as fast as promised: the machine may be busy.
const TRIES: usize = 5;
const SERVED_WITHIN: Duration = Duration::from_secs(1);

fn keep_writing(file: &File, seed: u64, written: &AtomicU64, is_over: &AtomicBool) {
    let engine = Engine::new(EngineOptions::DEFAULT).unwrap();
    let start = |at: u64, memory: IoBuf| {
        let offset = (at * 7 + seed) % BLOCKS * BLOCK as u64;
        engine.start(file, Request::write(offset, memory)).unwrap();
    };
    for n in 0..DEPTH {
        start(n as u64, IoBuf::new(BLOCK).unwrap());
    }
    let mut at = DEPTH as u64;
    while let Some(done) = engine.wait(Duration::from_secs(60)).unwrap() {
        let (whole, memory) = done.into_whole();
        whole.unwrap();
        written.fetch_add(1, Ordering::Relaxed);
        if !is_over.load(Ordering::Relaxed) {
            start(at, memory.unwrap());
            at += 1;
        }
    }
}

/// How long each try took, up to the first that failed.
fn tries(mut write: impl FnMut() -> diopter::Result<()>) -> Result<Vec<Duration>, diopter::Error> {
    let mut took = Vec::new();
    for _ in 0..TRIES {
        let started = Instant::now();
        write()?;
        took.push(started.elapsed());
    }
    Ok(took)
}

#[test]
fn set_len_and_a_small_write_are_served_soon_among_256_writes_on_zram() {
    let _alone = machine::alone();
    let zram = match Zram::set_up("128M") {
        Ok(zram) => zram,
        Err(why) => return env::skip(Capability::Zram, why),
    };
    let dir = Dir::new("busy").unwrap();
    let at = dir.path().join("mnt");
    fs::create_dir(&at).unwrap();
    let (device, mount) = (zram.device().to_str().unwrap(), at.to_str().unwrap());
    machine::run("mkfs.ext4", &["-q", "-F", "-b", "4096", device]).unwrap();
    machine::run("mount", &["-t", "ext4", device, mount]).unwrap();
    let file = both_ways().open(at.join("file")).unwrap();
    file.write_all_at(&vec![0; BLOCK * 64], 0).unwrap();
    let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let took = std::thread::scope(|scope| {
        for seed in 0..THREADS {
            let (file, written, is_over) = (&file, &written, &is_over);
            scope.spawn(move || keep_writing(file, seed, written, is_over));
        }
        while written.load(Ordering::Relaxed) < 20_000 {
            std::thread::yield_now();
        }
        let cut = tries(|| file.set_len(SIZE));
        let small = tries(|| file.write_at(&[7; 7], 5 * BLOCK as u64 + 7).map(drop));
        is_over.store(true, Ordering::Relaxed);
        [("set_len", cut), ("a write of 7 bytes", small)]
    });
    drop(file);
    machine::unmount(&at).unwrap();
    for (what, took) in took {
        let took = took.unwrap_or_else(|error| panic!("{what}: {error}"));
        eprintln!("  {what}: {took:?}");
        assert!(took.iter().min().unwrap() <= &SERVED_WITHIN, "{what}: {took:?}");
    }
}
