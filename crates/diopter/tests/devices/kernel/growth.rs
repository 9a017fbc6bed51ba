//! A file is never, even for a moment, longer than what was written to it: seen by a thread that
//! watches, and after the writer was killed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use diopter::{File, IoBuf, Request};
use diopter_core::prng::Prng;

use super::memory::{Skewed, difference};
use super::row::{Check, Row, both_ways};
use super::{child, env};

pub const ON_FILES: &[Check] = &[
    ("a watched file is never longer than what was written", a_watched_file_is_never_too_long),
    ("a killed writer leaves no padded tail", a_killed_writer_leaves_no_padded_tail),
];

/// Role of the child that is killed.
pub const ROLE: &str = "extend";

const WRITES: u64 = 400;
const KILLS: u64 = 15;

/// Lines after which a child is killed at most: it writes about so many times before.
const LINES_MAX: u64 = 40;

fn a_watched_file_is_never_too_long(row: &Row) {
    let path = row.path();
    let file = both_ways().open(&path).unwrap();
    let append = File::options().append(true).open(&path).unwrap();
    let mut prng = Prng::new(env::seed()).fork("watched");
    let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let plain = fs::File::open(&path).unwrap();
            while !is_over.load(Ordering::SeqCst) {
                let size = plain.metadata().unwrap().size();
                // Raised before a write begins, so what is read here is at least as new.
                let most = written.load(Ordering::SeqCst);
                assert!(size <= most, "{size} bytes, and at most {most} were written");
            }
        });
        let mut end = 0;
        for n in 0..WRITES {
            let length = 1 + prng.below(if n % 10 == 0 { 200_000 } else { 9000 });
            let gap = if prng.one_in(4) { prng.below(6000) } else { 0 };
            let appends = gap == 0 && prng.one_in(4);
            // At times back into the last block.
            let back = if appends { 0 } else { prng.below(600).min(end) };
            let start = if gap > 0 { end + gap } else { end - back };
            end = end.max(start + length);
            written.store(end, Ordering::SeqCst);
            let mut memory = IoBuf::new(usize::try_from(length).unwrap()).unwrap();
            prng.fill(&mut memory);
            match prng.below(3) {
                _ if appends => append.write_all_at(&memory, 0).unwrap(),
                0 => {
                    let finished = file.request(Request::write(start, memory)).unwrap().wait();
                    finished.check_whole().unwrap();
                }
                _ => file.write_all_at(&memory, start).unwrap(),
            }
        }
        is_over.store(true, Ordering::SeqCst);
        assert_eq!(file.size().unwrap(), end);
    });
}

/// The byte that the child writes at an offset: never 0.
fn pattern(offset: u64) -> u8 {
    u8::try_from(1 + offset % 251).expect("below 252")
}

/// In the child: writes one piece behind the other and says where each will end, for ever. Every
/// other child makes its writes durable.
pub fn extend(path: &Path) {
    let mut prng = Prng::new(u64::from(std::process::id()));
    let file = both_ways().create(true).dsync(prng.one_in(2)).open(path).unwrap();
    let mut at = 0;
    loop {
        let length = 1 + prng.below(20_000);
        child::say(at + length);
        let mut memory = Skewed::new(usize::try_from(length).unwrap(), 0);
        for (byte, offset) in memory.as_mut().iter_mut().zip(at..) {
            *byte = pattern(offset);
        }
        file.write_all_at(&memory, at).unwrap();
        at += length;
    }
}

fn a_killed_writer_leaves_no_padded_tail(row: &Row) {
    let mut prng = Prng::new(env::seed()).fork("kill");
    for _ in 0..KILLS {
        let path = row.path();
        let mut child = child::start(row, ROLE, &path);
        let lines = 1 + prng.below(LINES_MAX);
        let mut ends = vec![0];
        for _ in 0..lines {
            ends.push(child.next().expect("it writes until it is killed").parse().unwrap());
        }
        child.kill();
        while let Some(end) = child.next() {
            ends.push(end.parse().unwrap());
        }
        drop(child);
        let bytes = fs::read(&path).unwrap();
        let last = ends.pop().expect("there was one");
        let finished = ends.pop().expect("there were two");
        assert!(bytes.len() as u64 <= last, "{} bytes, {last} were written", bytes.len());
        assert!(bytes.len() as u64 >= finished, "what was finished is there");
        let expected: Vec<u8> = (0..bytes.len() as u64).map(pattern).collect();
        let expected = &expected[..usize::try_from(finished).unwrap()];
        assert_eq!(difference(&bytes[..expected.len()], expected), None);
        let begun = bytes[expected.len()..].iter().zip(finished..);
        assert!(begun.clone().all(|(byte, at)| *byte == pattern(at)), "no padding behind it");
        fs::remove_file(path).unwrap();
    }
    env::tried("writer-kills", KILLS, "kills");
}
