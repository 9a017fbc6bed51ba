//! diopter with other users of the same file: buffered ones, ones that map it, other processes.
//! Each check is a sentence of docs/semantics.md.

use diopter_testkit::env::Capability;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use diopter::{File, IoBuf, Request};
use diopter_core::prng::Prng;

use super::memory::{Skewed, difference};
use super::row::{Check, Row, as_it_is, both_ways, file_with};
use super::subject::Subject;
use super::{child, env};

pub const ON_FILES: &[Check] = &[
    ("a buffered read sees what diopter wrote", a_buffered_read_sees_what_diopter_wrote),
    ("diopter reads what a buffered write left", diopter_reads_what_a_buffered_write_left),
    ("a mapping sees what diopter wrote", a_mapping_sees_what_diopter_wrote),
    ("diopter reads what was stored in a mapping", diopter_reads_what_was_stored_in_a_mapping),
    ("a store in a mapping next to a write stays", a_store_in_a_mapping_next_to_a_write_stays),
    ("two processes that share writers lose nothing", two_processes_lose_nothing),
    ("appends of two processes are all there", appends_of_two_processes_are_all_there),
];

/// Not on tmpfs, whose own pwrite makes content of it.
pub const ON_DIRECT_FILES: &[Check] =
    &[("what was stored behind the end does not become content", stored_behind_the_end)];

/// Role of the other process of a check.
pub const WRITE_ROLE: &str = "stripes";
pub const APPEND_ROLE: &str = "append";

/// Far above the response time of another process.
const WAIT_MAX: Duration = Duration::from_secs(60);

const SIZE: usize = 64 << 10;
const STRIPES: usize = 96;
const STRIPE: usize = 683;
const ROUNDS: u8 = 20;
const RECORDS: u32 = 150;

/// Another process that has a file mapped: `xfs_io`, which comes with the XFS tools.
struct Mapped {
    child: Child,
    commands: ChildStdin,
    printed: Receiver<String>,
}

impl Mapped {
    fn new(path: &Path) -> Option<Mapped> {
        // Line by line: on a pipe it would keep what it says to itself.
        let mut child = Command::new("stdbuf")
            .args(["-oL", "xfs_io"])
            .arg(path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| env::skip(Capability::Xfs, format!("xfs_io: {error}")))
            .ok()?;
        let commands = child.stdin.take().expect("it is piped");
        let out = BufReader::new(child.stdout.take().expect("it is piped"));
        let (sender, printed) = channel();
        // Ends with the child.
        std::thread::spawn(move || {
            out.lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        let mut mapped = Mapped { child, commands, printed };
        writeln!(mapped.commands, "mmap -rw 0 {SIZE}").unwrap();
        Some(mapped)
    }

    /// Stores `length` times `value` at `offset`, and has done so when it returns.
    fn store(&mut self, offset: usize, length: usize, value: u8) {
        writeln!(self.commands, "mwrite -S {value} {offset} {length}").unwrap();
        assert_eq!(self.load(offset), value);
    }

    /// The byte at `offset` as the mapping has it.
    fn load(&mut self, offset: usize) -> u8 {
        // A line of 16; of a single byte it says nothing.
        writeln!(self.commands, "mread -v {} 16", offset / 16 * 16).unwrap();
        let line = self.printed.recv_timeout(WAIT_MAX).expect("xfs_io prints a result");
        let byte = line.split_whitespace().nth(1 + offset % 16).unwrap_or_default();
        u8::from_str_radix(byte, 16).unwrap_or_else(|_| panic!("xfs_io said {line:?}"))
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        self.child.kill().unwrap_or(());
        self.child.wait().map_or_else(|error| eprintln!("{error}"), |_| ());
    }
}

/// Ranges of every alignment.
const RANGES: [(u64, usize); 8] = [
    (0, 4096),
    (4096, 8192),
    (100, 50),
    (5000, 3000),
    (8191, 2),
    (12_288, 512),
    (512, 30_001),
    (40_000, 20_000),
];

fn a_buffered_read_sees_what_diopter_wrote(row: &Row) {
    let path = file_with(row, &vec![0; SIZE]);
    let file = both_ways().open(&path).unwrap();
    let plain = fs::File::open(&path).unwrap();
    let mut expected = vec![0; SIZE];
    let mut bytes = vec![0; SIZE];
    for (value, (offset, length)) in (1_u8..).zip(RANGES) {
        // All of it is in the page cache before.
        plain.read_exact_at(&mut bytes, 0).unwrap();
        let start = usize::try_from(offset).unwrap();
        expected[start..start + length].fill(value);
        if value % 2 == 0 {
            file.write_all_at(&vec![value; length], offset).unwrap();
        } else {
            let mut memory = IoBuf::new(length).unwrap();
            memory.fill(value);
            file.request(Request::write(offset, memory)).unwrap().wait().check_whole().unwrap();
        }
        plain.read_exact_at(&mut bytes, 0).unwrap();
        assert_eq!(difference(&bytes, &expected), None, "{offset}+{length}");
    }
}

fn diopter_reads_what_a_buffered_write_left(row: &Row) {
    let path = file_with(row, &vec![0; SIZE]);
    let file = both_ways().open(&path).unwrap();
    let plain = fs::OpenOptions::new().write(true).open(&path).unwrap();
    let mut expected = vec![0; SIZE];
    let mut memory = Skewed::new(SIZE, 1);
    for (value, (offset, length)) in (1_u8..).zip(RANGES) {
        let start = usize::try_from(offset).unwrap();
        expected[start..start + length].fill(value);
        plain.write_all_at(&vec![value; length], offset).unwrap();
        file.read_exact_at(memory.as_mut(), 0).unwrap();
        assert_eq!(difference(&memory, &expected), None, "{offset}+{length}");
        // And changes the block next to it, whose page is dirty.
        let beside = (start + length).min(SIZE - 10);
        file.write_all_at(&[0xbb; 10], beside as u64).unwrap();
        expected[beside..beside + 10].fill(0xbb);
        file.read_exact_at(memory.as_mut(), 0).unwrap();
        assert_eq!(difference(&memory, &expected), None, "{offset}+{length} and around it");
    }
}

fn a_mapping_sees_what_diopter_wrote(row: &Row) {
    let path = file_with(row, &vec![0; SIZE]);
    let Some(mut mapped) = Mapped::new(&path) else { return };
    let file = both_ways().open(&path).unwrap();
    for (value, (offset, length)) in (1_u8..).zip(RANGES) {
        let start = usize::try_from(offset).unwrap();
        // Mapped in before the write.
        mapped.load(start);
        file.write_all_at(&vec![value; length], offset).unwrap();
        for at in [start, start + length / 2, start + length - 1] {
            assert_eq!(mapped.load(at), value, "{at} of {offset}+{length}");
        }
    }
}

fn diopter_reads_what_was_stored_in_a_mapping(row: &Row) {
    let path = file_with(row, &vec![0; SIZE]);
    let Some(mut mapped) = Mapped::new(&path) else { return };
    let file = both_ways().open(&path).unwrap();
    let mut expected = vec![0; SIZE];
    let mut memory = Skewed::new(SIZE, 1);
    for (value, (offset, length)) in (1_u8..).zip(RANGES) {
        let start = usize::try_from(offset).unwrap();
        mapped.store(start, length, value);
        expected[start..start + length].fill(value);
        file.read_exact_at(memory.as_mut(), 0).unwrap();
        assert_eq!(difference(&memory, &expected), None, "{offset}+{length}");
    }
}

/// One after the other: a store in a page, a write to another part of it, and both are there.
fn a_store_in_a_mapping_next_to_a_write_stays(row: &Row) {
    let path = file_with(row, &vec![0; SIZE]);
    let Some(mut mapped) = Mapped::new(&path) else { return };
    let file = both_ways().open(&path).unwrap();
    let mut expected = vec![0; SIZE];
    for page in 0..SIZE / 4096 {
        let at = page * 4096;
        for (from, length, value, is_store) in [
            (10, 20, 1, true),
            (30, 700, 2, false),
            (2048, 512, 3, false),
            (730, 20, 4, true),
            (4000, 96, 5, false),
            (2560, 20, 6, true),
        ] {
            let start = at + from;
            expected[start..start + length].fill(value);
            if is_store {
                mapped.store(start, length, value);
            } else {
                file.write_all_at(&vec![value; length], start as u64).unwrap();
            }
        }
    }
    file.sync_data().unwrap();
    assert_eq!(difference(&fs::read(&path).unwrap(), &expected), None);
    let mut memory = Skewed::new(SIZE, 0);
    file.read_exact_at(memory.as_mut(), 0).unwrap();
    assert_eq!(difference(&memory, &expected), None);
}

/// A store in the last page of a file, behind its end, is legal and belongs to no file; a write
/// behind the end must not make it content.
fn stored_behind_the_end(row: &Row) {
    // The size, where the write starts, and how long it is.
    for (size, offset, length) in [
        (100, 8192, 4096),
        (1500, 16_384, 8192),
        (4095, 8192, 4096),
        (9000, 20_007, 3000),
        (700, 3072, 1024),
        (2000, 4000, 5000),
        (12_288 + 1024, 32_768, 4096),
    ] {
        for way in 0..3 {
            let path = file_with(row, &vec![1; size]);
            let Some(mut mapped) = Mapped::new(&path) else { return };
            let file = both_ways().open(&path).unwrap();
            mapped.store(size, size.next_multiple_of(4096) - size, 0x77);
            let mut memory = IoBuf::new(length).unwrap();
            memory.fill(2);
            let at = u64::try_from(offset).unwrap();
            match way {
                0 => file.write_all_at(&memory, at).unwrap(),
                1 => drop(file.request(Request::write(at, memory)).unwrap().wait().result.unwrap()),
                _ => {
                    let own = child::open(&path, true);
                    own.write_all_at(&memory, at).unwrap();
                }
            }
            let mut expected = vec![0; offset + length];
            expected[..size].fill(1);
            expected[offset..].fill(2);
            let what = format!("{length} bytes at {offset} behind {size}, way {way}");
            assert_eq!(difference(&fs::read(&path).unwrap(), &expected), None, "{what}");
            drop(mapped);
            super::row::uncache(&path);
            assert_eq!(difference(&fs::read(&path).unwrap(), &expected), None, "{what}, on disk");
        }
    }
}

/// Byte that the owner of a stripe writes in a round: the parent has the even ones.
fn value(stripe: usize, round: u8) -> u8 {
    u8::try_from(stripe % 7).expect("below 7") * 32 + round
}

/// Writes every second stripe, round after round; a whole block now and then too.
fn write_stripes(file: &File, first: usize) {
    let mut prng = Prng::new(env::seed()).fork(&first.to_string());
    for round in 0..ROUNDS {
        let mut stripes: Vec<usize> = (first..STRIPES).step_by(2).collect();
        while !stripes.is_empty() {
            let index = usize::try_from(prng.below(stripes.len() as u64)).unwrap();
            let stripe = stripes.swap_remove(index);
            let memory = vec![value(stripe, round); STRIPE];
            file.write_all_at(&memory, (stripe * STRIPE) as u64).unwrap();
        }
    }
}

/// In the child.
pub fn write_odd_stripes(path: &Path) {
    let file = child::open(path, true);
    child::say("ready");
    write_stripes(&file, 1);
}

fn two_processes_lose_nothing(row: &Row) {
    // On a file that is there, and on one that both extend.
    for size in [STRIPES * STRIPE, 0] {
        write_in_two_processes(row, &Subject::of(row), size);
    }
}

/// This process and a child write every second stripe of a file that had `size` bytes.
pub fn write_in_two_processes(row: &Row, subject: &Subject, size: usize) {
    let path = &subject.path;
    both_ways().open(path).unwrap().write_all_at(&vec![0; size], 0).unwrap();
    let mut other = child::start(row, WRITE_ROLE, path);
    assert_eq!(other.next().as_deref(), Some("ready"));
    write_stripes(&child::open(path, true), 0);
    assert!(other.succeeded());
    let expected: Vec<u8> =
        (0..STRIPES * STRIPE).map(|at| value(at / STRIPE, ROUNDS - 1)).collect();
    assert_eq!(difference(&subject.content(expected.len() as u64), &expected), None);
}

fn append_records(path: &Path, owner: u8) {
    let file = as_it_is().append(true).open(path).unwrap();
    let mut prng = Prng::new(u64::from(owner));
    for number in 0..RECORDS {
        let length = if prng.one_in(3) { 4096 } else { 6 + prng.below(2000) };
        let mut memory = Skewed::new(usize::try_from(length).unwrap(), 0);
        memory.as_mut().fill(owner);
        let length = u16::try_from(length).unwrap().to_le_bytes();
        memory.as_mut()[1..3].copy_from_slice(&length);
        memory.as_mut()[3..5].copy_from_slice(&u16::try_from(number).unwrap().to_le_bytes());
        file.write_all_at(&memory, 0).unwrap();
    }
}

/// In the child.
pub fn append_as_the_other(path: &Path) {
    child::say("ready");
    append_records(path, 2);
}

fn appends_of_two_processes_are_all_there(row: &Row) {
    append_in_two_processes(row, &Subject::of(row));
}

/// This process and a child append records to a file.
pub fn append_in_two_processes(row: &Row, subject: &Subject) {
    let path = &subject.path;
    let file = both_ways().open(path).unwrap();
    let mut other = child::start(row, APPEND_ROLE, path);
    assert_eq!(other.next().as_deref(), Some("ready"));
    append_records(path, 1);
    assert!(other.succeeded());
    let bytes = subject.content(file.size().unwrap());
    let (mut at, mut next) = (0, [0_u32; 3]);
    while at < bytes.len() {
        let owner = bytes[at];
        let field = |from: usize| u16::from_le_bytes([bytes[at + from], bytes[at + from + 1]]);
        let (length, number) = (usize::from(field(1)), u32::from(field(3)));
        let expected = next[usize::from(owner)];
        assert_eq!(number, expected, "a record of {owner} at {at} is lost or torn");
        assert!(bytes[at + 5..at + length].iter().all(|byte| *byte == owner));
        next[usize::from(owner)] += 1;
        at += length;
    }
    assert_eq!(next, [0, RECORDS, RECORDS]);
}
