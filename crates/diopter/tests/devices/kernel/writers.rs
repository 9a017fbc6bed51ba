//! Several writers at once, in this process: no byte is lost, whichever writer shares its block.

use std::sync::Barrier;

use diopter::{File, IoBuf, Request};
use diopter_core::prng::Prng;

use super::env;
use super::memory::{Skewed, difference};
use super::row::{Check, Row, as_it_is, both_ways, uncache};
use super::subject::Subject;

pub const EVERYWHERE: &[Check] = &[
    ("writers of shared blocks lose nothing", writers_of_shared_blocks_lose_nothing),
    ("writers that share blocks extend the file", writers_that_share_blocks_extend_the_file),
];

pub const ON_FILES: &[Check] =
    &[("appends of four threads are whole and all there", appends_are_whole_and_all_there)];

const THREADS: usize = 4;

/// Bytes that the writers share.
const SHARED_BYTES: u64 = 192 << 10;

/// Writes of each thread.
const ROUNDS: u64 = 250;

/// Records of each appending thread.
const RECORDS: u32 = 200;

/// Owner, number, length, and the sum of the record's bytes.
const HEADER: usize = 16;

/// A range that one thread alone writes, and its bytes now.
struct Stripe {
    offset: u64,
    bytes: Vec<u8>,
    /// Whole blocks, written whole from aligned memory.
    is_whole: bool,
}

fn writers_of_shared_blocks_lose_nothing(row: &Row) {
    overwrite_together(&Subject::of(row));
}

/// Four threads write bytes that are there.
pub fn overwrite_together(subject: &Subject) {
    let file = both_ways().open(&subject.path).unwrap();
    file.write_all_at(&vec![0; usize::try_from(SHARED_BYTES).unwrap()], 0).unwrap();
    drop(file);
    let final_bytes = write_stripes(subject, Prng::new(env::seed()).fork("overwrite"));
    must_be(subject, &final_bytes);
}

fn writers_that_share_blocks_extend_the_file(row: &Row) {
    extend_together(&Subject::of(row));
}

/// Four threads write a file that is empty.
pub fn extend_together(subject: &Subject) {
    drop(both_ways().open(&subject.path).unwrap());
    let final_bytes = write_stripes(subject, Prng::new(env::seed()).fork("extend"));
    must_be(subject, &final_bytes);
    if !subject.has_fixed_size {
        assert_eq!(
            as_it_is().read(true).open(&subject.path).unwrap().size().unwrap(),
            SHARED_BYTES
        );
    }
}

/// Cuts the shared bytes into stripes of odd lengths and runs of whole blocks, in file order, each
/// with its owner.
fn stripes(prng: &mut Prng, block: u64) -> Vec<Vec<Stripe>> {
    let mut of_thread: Vec<Vec<Stripe>> = (0..THREADS).map(|_| Vec::new()).collect();
    let mut at = 0;
    while at < SHARED_BYTES {
        let wants_whole = at.is_multiple_of(block) && prng.one_in(2);
        let length = if wants_whole {
            block * (1 + prng.below(3))
        } else if prng.one_in(3) {
            // To the next block, so that whole blocks can follow.
            (at + 1).next_multiple_of(block) - at
        } else {
            100 + prng.below(1400)
        };
        let length = length.min(SHARED_BYTES - at);
        let is_whole = wants_whole && length.is_multiple_of(block);
        let owner = usize::try_from(prng.below(THREADS as u64)).unwrap();
        let bytes = vec![0; usize::try_from(length).unwrap()];
        of_thread[owner].push(Stripe { offset: at, bytes, is_whole });
        at += length;
    }
    of_thread
}

/// Four threads write their own stripes, all at once; returns what the file must hold then.
fn write_stripes(subject: &Subject, mut prng: Prng) -> Vec<u8> {
    let path = &subject.path;
    let shared = both_ways().open(path).unwrap();
    let block = u64::from(shared.alignment().offset_write);
    let of_thread = stripes(&mut prng, block);
    let (start, options) = (Barrier::new(THREADS), subject.options());
    let ended: Vec<Vec<Stripe>> = std::thread::scope(|scope| {
        let handles: Vec<_> = (0..THREADS)
            .zip(of_thread)
            .map(|(n, stripes)| {
                let (mut prng, start) = (prng.fork(&n.to_string()), &start);
                // Two threads share an open file, the others have their own.
                let file = if n < 2 { shared.clone() } else { both_ways().open(path).unwrap() };
                scope.spawn(move || {
                    diopter::use_for_this_thread(options);
                    start.wait();
                    write_own(&file, stripes, &mut prng)
                })
            })
            .collect();
        handles.into_iter().map(|handle| handle.join().expect("a writer passes")).collect()
    });
    let mut bytes = vec![0; usize::try_from(SHARED_BYTES).unwrap()];
    for stripe in ended.into_iter().flatten() {
        let start = usize::try_from(stripe.offset).unwrap();
        bytes[start..start + stripe.bytes.len()].copy_from_slice(&stripe.bytes);
    }
    bytes
}

/// One thread's life: every stripe once, in any order, then random ones again and again.
fn write_own(file: &File, mut stripes: Vec<Stripe>, prng: &mut Prng) -> Vec<Stripe> {
    let count = stripes.len() as u64;
    let rounds = if env::is_soak() { 20 * ROUNDS } else { ROUNDS };
    for index in 0..count {
        let other = index + prng.below(count - index);
        stripes.swap(usize::try_from(index).unwrap(), usize::try_from(other).unwrap());
        write_one(file, &mut stripes[usize::try_from(index).unwrap()], prng, true);
    }
    for _ in 0..rounds {
        let index = usize::try_from(prng.below(count)).unwrap();
        match prng.below(8) {
            0 => {
                let stripe = &stripes[index];
                let mut memory = Skewed::new(stripe.bytes.len(), 1);
                file.read_exact_at(memory.as_mut(), stripe.offset).unwrap();
                assert_eq!(difference(&memory, &stripe.bytes), None, "a thread reads its own");
            }
            1 => write_queued(file, &mut stripes, prng),
            2 => file.sync_data().unwrap(),
            _ => write_one(file, &mut stripes[index], prng, false),
        }
    }
    stripes
}

fn write_one(file: &File, stripe: &mut Stripe, prng: &mut Prng, whole: bool) {
    let length = stripe.bytes.len();
    if stripe.is_whole || whole {
        let skew = if stripe.is_whole { 0 } else { 3 };
        let memory = Skewed::random(length, skew, prng);
        file.write_all_at(&memory, stripe.offset).unwrap();
        stripe.bytes.copy_from_slice(&memory);
        return;
    }
    let from = usize::try_from(prng.below(length as u64)).unwrap();
    let to = from + 1 + usize::try_from(prng.below((length - from) as u64)).unwrap();
    let memory = Skewed::random(to - from, 0, prng);
    file.write_all_at(&memory, stripe.offset + from as u64).unwrap();
    stripe.bytes[from..to].copy_from_slice(&memory);
}

/// Several stripes in flight at once from this thread.
fn write_queued(file: &File, stripes: &mut [Stripe], prng: &mut Prng) {
    let mut in_flight = Vec::new();
    let first = usize::try_from(prng.below(stripes.len() as u64)).unwrap();
    for stripe in stripes.iter_mut().skip(first).take(6) {
        let mut memory = IoBuf::new(stripe.bytes.len()).unwrap();
        prng.fill(&mut memory);
        stripe.bytes.copy_from_slice(&memory);
        in_flight.push(file.request(Request::write(stripe.offset, memory)).unwrap());
    }
    for request in in_flight {
        request.wait().check_whole().unwrap();
    }
}

fn must_be(subject: &Subject, expected: &[u8]) {
    let file = as_it_is().read(true).open(&subject.path).unwrap();
    let mut memory = Skewed::new(expected.len(), 0);
    file.read_exact_at(memory.as_mut(), 0).unwrap();
    assert_eq!(difference(&memory, expected), None, "through diopter");
    if !subject.is_raw {
        let size = expected.len() as u64;
        let cached = subject.content(size);
        assert_eq!(difference(&cached, expected), None, "through the page cache");
        subject.objects.iter().for_each(|object| uncache(object));
        assert_eq!(difference(&subject.content(size), expected), None, "from the device");
    }
}

fn record(owner: u32, number: u32, prng: &mut Prng) -> Vec<u8> {
    let length = match prng.below(4) {
        // So that the file ends on a block at times and an append goes direct.
        0 => 4096 * (1 + prng.below(3)),
        1 => 512,
        _ => HEADER as u64 + prng.below(3000),
    };
    let mut bytes = vec![0; usize::try_from(length).unwrap()];
    prng.fill(&mut bytes[HEADER..]);
    let sum = bytes[HEADER..].iter().map(|byte| u32::from(*byte)).sum();
    let length = u32::try_from(length).unwrap();
    for (field, value) in bytes.chunks_mut(4).zip([owner, number, length, sum]) {
        field.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

fn appends_are_whole_and_all_there(row: &Row) {
    append_together(&Subject::of(row));
}

/// Four threads append records to a file.
pub fn append_together(subject: &Subject) {
    let path = &subject.path;
    let options = as_it_is().append(true).create(true).clone();
    let shared = options.open(path).unwrap();
    let (start, engine) = (Barrier::new(THREADS), subject.options());
    std::thread::scope(|scope| {
        for owner in 0..u32::try_from(THREADS).unwrap() {
            let (start, seed) = (&start, Prng::new(env::seed()));
            let file = if owner < 2 { shared.clone() } else { options.open(path).unwrap() };
            scope.spawn(move || {
                diopter::use_for_this_thread(engine);
                let mut prng = seed.fork(&format!("append {owner}"));
                start.wait();
                for number in 0..RECORDS {
                    let bytes = record(owner, number, &mut prng);
                    let skew = usize::from(prng.one_in(2));
                    let mut memory = Skewed::new(bytes.len(), skew);
                    memory.as_mut().copy_from_slice(&bytes);
                    file.write_all_at(&memory, 0).unwrap();
                }
            });
        }
    });
    let bytes = subject.content(shared.size().unwrap());
    let mut next = [0_u32; THREADS];
    let mut at = 0;
    while at < bytes.len() {
        let field = |n: usize| {
            let start = at + 4 * n;
            u32::from_le_bytes(bytes[start..start + 4].try_into().expect("4 bytes"))
        };
        let (owner, number, length, sum) =
            (field(0) as usize, field(1), field(2) as usize, field(3));
        assert!(owner < THREADS && number == next[owner], "the record at {at} is torn or lost");
        let body = &bytes[at + HEADER..at + length];
        assert_eq!(body.iter().map(|byte| u32::from(*byte)).sum::<u32>(), sum);
        next[owner] += 1;
        at += length;
    }
    assert_eq!(next, [RECORDS; THREADS], "records of each thread");
}
