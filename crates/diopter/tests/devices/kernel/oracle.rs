//! The oracle: random requests at random alignments by diopter, the same ones by plain buffered
//! calls on a second file in memory, and no difference between the two.

mod batch;

use std::collections::VecDeque;
use std::fs;
use std::io::{IoSlice, IoSliceMut};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;

use diopter::engine::{DepthPolicy, MergePolicy, RoutePolicy, WaitPolicy};
use diopter::history::{EACH_THEN_WAIT, History};
use diopter::layouts::StripedFile;
use diopter::{BackendKind, Engine, EngineOptions, File, Policies, Route, use_for_this_thread};
use diopter_core::prng::Prng;
use diopter_os::space::{advise_dont_need, sync_file_range_wait};

use super::env;
use super::memory::{Skewed, difference};
use super::row::{Row, as_it_is, both_ways};
use super::subject::Subject;

/// Requests of one row, unless the environment says otherwise.
const COUNT: u64 = 2_000;
const COUNT_SOAK: u64 = 100_000;

/// Requests of one striped file, of which there are many.
const COUNT_STRIPED: u64 = 100;
const COUNT_STRIPED_SOAK: u64 = 10_000;

/// Operations kept to be printed with a failure.
const HISTORY_MAX: usize = 40;

/// Lengths around the edges of segments, blocks, pages and small bounces.
const LENGTHS: [u64; 22] = [
    0, 1, 2, 7, 100, 511, 512, 513, 1000, 1023, 1024, 1536, 2048, 4095, 4096, 4097, 5000, 8192,
    12_288, 65_536, 65_537, 70_000,
];

/// Distances from the start of a block.
const DELTAS: [i64; 10] = [0, 0, 0, 1, -1, 7, -100, 256, 511, 513];

/// How a file of diopter's is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    Both,
    ReadOnly,
    WriteOnly,
    Append,
    Dsync,
    SharedWriters,
}

/// Two files that must stay the same.
struct Oracle<'s> {
    subject: &'s Subject,
    engine: Engine,
    handles: Vec<(Access, File)>,
    reference: fs::File,
    /// Never read or written: the kernel reports errors of the file, or of an object, to it.
    witnesses: Vec<fs::File>,
    prng: Prng,
    requests: u64,
    route: Route,
    history: VecDeque<String>,
}

/// Random requests of every kind, on one file of the row.
pub fn no_difference_from_plain_calls(row: &Row) {
    run(&Subject::of(row));
}

/// Random requests of every kind, on one file.
pub fn run(subject: &Subject) {
    let default = match (subject.is_striped(), env::is_soak()) {
        (false, false) => COUNT,
        (false, true) => COUNT_SOAK,
        (true, false) => COUNT_STRIPED,
        (true, true) => COUNT_STRIPED_SOAK,
    };
    let count = env::number("DIOPTER_ORACLE_COUNT").unwrap_or(default);
    let mut oracle = Oracle::new(subject);
    while oracle.requests < count {
        oracle.step();
        oracle.must_have_no_error();
        if oracle.requests.is_multiple_of(64) {
            oracle.compare();
        }
    }
    oracle.compare();
    oracle.compare_past_diopter();
    let Route { direct, bounced, buffered, .. } = oracle.route;
    let requests = oracle.requests;
    env::tried("oracle", requests, "requests");
    eprintln!(
        "  {}: {requests} requests; queued bytes: {direct} direct, {bounced} bounced, \
         {buffered} buffered",
        subject.name
    );
}

impl Oracle<'_> {
    fn new(subject: &Subject) -> Oracle<'_> {
        let reference = tempfile::tempfile_in("/dev/shm").or_else(|_| tempfile::tempfile());
        let reference = reference.unwrap();
        let both = both_ways().open(&subject.path).unwrap();
        if subject.is_raw {
            both.write_all_at(&vec![0; usize::try_from(subject.size_max).unwrap()], 0).unwrap();
        }
        if subject.has_fixed_size {
            reference.set_len(subject.size_max).unwrap();
        }
        let objects = subject.objects.iter();
        let mut oracle = Oracle {
            subject,
            engine: Engine::new(subject.options()).unwrap(),
            handles: vec![(Access::Both, both)],
            reference,
            witnesses: objects.map(|path| fs::File::open(path).unwrap()).collect(),
            prng: Prng::new(env::seed()).fork(&subject.name),
            requests: 0,
            route: Route::default(),
            history: VecDeque::new(),
        };
        let others = [
            Access::ReadOnly,
            Access::WriteOnly,
            Access::Append,
            Access::Dsync,
            Access::SharedWriters,
        ];
        let fits = |access: &Access| !subject.has_fixed_size || *access != Access::Append;
        for access in others.into_iter().filter(fits) {
            let file = oracle.open(access);
            oracle.handles.push((access, file));
        }
        if subject.is_striped() {
            // There are many, each too short to come upon other policies by chance.
            oracle.change_policies();
        }
        oracle
    }

    fn open(&self, access: Access) -> File {
        let mut options = as_it_is();
        let options = match access {
            Access::Both => options.read(true).write(true),
            Access::ReadOnly => options.read(true),
            Access::WriteOnly => options.write(true),
            Access::Append => options.read(true).append(true),
            Access::Dsync => options.read(true).write(true).dsync(true),
            Access::SharedWriters => options.read(true).write(true).shared_writers(true),
        };
        options.open(&self.subject.path).unwrap()
    }

    /// No page could not be written back, and none was in the way of a direct write: the kernel
    /// notes both at the file, for the next flush. A range past the end waits for nothing, and
    /// asks.
    fn must_have_no_error(&self) {
        for witness in &self.witnesses {
            let noted = sync_file_range_wait(witness.as_fd(), 1 << 40, 1);
            assert_eq!(noted, Ok(()), "{}: the kernel noted an error", self.subject.name);
        }
    }

    /// One random operation; a batch counts as many.
    fn step(&mut self) {
        let is_fixed = self.subject.has_fixed_size;
        match self.prng.below(100) {
            0..30 => self.read(),
            30..35 => self.read_vectored(),
            35..62 => self.write(),
            62..67 => self.write_vectored(),
            67..72 if !is_fixed => self.append(),
            72..76 if !is_fixed => self.set_len(),
            76..78 if !is_fixed => self.allocate(),
            78..82 => self.sync(),
            82 if self.subject.is_striped() => self.seal_and_reopen(),
            82..84 => self.reopen(),
            84..92 => self.batch_on_the_engine(),
            92..98 => self.batch_on_the_thread(),
            98 => self.compare_past_diopter(),
            99 => self.change_policies(),
            _ => self.read(),
        }
    }

    fn note(&mut self, what: String) {
        self.requests += 1;
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back(format!("{}: {what}", self.requests));
    }

    fn size(&self) -> u64 {
        self.reference.metadata().unwrap().len()
    }

    fn handle(&mut self, fits: impl Fn(Access) -> bool) -> (Access, File) {
        let fitting: Vec<_> = self.handles.iter().filter(|(access, _)| fits(*access)).collect();
        let index = usize::try_from(self.prng.below(fitting.len() as u64)).unwrap();
        let (access, file) = fitting[index];
        (*access, file.clone())
    }

    fn reader(&mut self) -> (Access, File) {
        self.handle(|access| access != Access::WriteOnly)
    }

    fn writer(&mut self) -> (Access, File) {
        self.handle(|access| !matches!(access, Access::ReadOnly | Access::Append))
    }

    /// How far from a page the memory of `offset` begins: at times as far as the offset itself, so
    /// that the whole blocks in between can go direct.
    fn skew(&mut self, offset: u64) -> usize {
        let skews = [0, 0, 1, 4, 64, 511, 512, 1024, 4095];
        match self.prng.below(3 * skews.len() as u64) {
            n if n < skews.len() as u64 => skews[usize::try_from(n).unwrap()],
            n if n < 2 * skews.len() as u64 => 0,
            _ => usize::try_from(offset % 4096).unwrap(),
        }
    }

    /// A random range, at most to `end_max`.
    fn range(&mut self, end_max: u64) -> (u64, usize) {
        let stripe = self.subject.stripe_size();
        let offset = match self.prng.below(10) {
            0..3 if stripe > 0 => {
                let delta = DELTAS[usize::try_from(self.prng.below(10)).unwrap()];
                (self.prng.below(end_max / stripe + 1) * stripe).saturating_add_signed(delta)
            }
            0..6 => {
                let unit = [512, 1024, 4096][usize::try_from(self.prng.below(3)).unwrap()];
                let delta = DELTAS[usize::try_from(self.prng.below(10)).unwrap()];
                (self.prng.below(24) * unit).saturating_add_signed(delta)
            }
            6..8 => self.size().saturating_sub(5000) + self.prng.below(10_000),
            _ => self.prng.below(end_max + 1),
        };
        let mut offset = offset.min(end_max);
        let is_whole = self.prng.one_in(6);
        if is_whole {
            offset -= offset % 4096;
        }
        let length = match self.prng.below(40) {
            0 => 1_000_000 + self.prng.below(600_000),
            1..5 if stripe > 0 => self.prng.below((5 * stripe).min(5 << 20)),
            1..10 => self.prng.below(10_000),
            n => LENGTHS[usize::try_from(n % 22).unwrap()],
        };
        let length = length.min(end_max - offset);
        let length = if is_whole { length - length % 512 } else { length };
        (offset, usize::try_from(length).unwrap())
    }

    fn expected(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        let mut n = 0;
        while n < length {
            let at = offset + n as u64;
            match self.reference.read_at(&mut bytes[n..], at).unwrap() {
                0 => break,
                more => n += more,
            }
        }
        bytes.truncate(n);
        bytes
    }

    fn read(&mut self) {
        let (access, file) = self.reader();
        // Past the end as well, but not past the end of a device.
        let beyond = if self.subject.is_raw { 0 } else { 10_000 };
        let (offset, length) = self.range(self.size() + beyond);
        let skew = self.skew(offset);
        self.note(format!("read {access:?} {offset}+{length} skew {skew}"));
        let mut memory = Skewed::new(length, skew);
        let n = file.read_at(memory.as_mut(), offset).unwrap();
        self.must_be(&memory[..n], offset, length);
    }

    fn must_be(&self, got: &[u8], offset: u64, length: usize) {
        let expected = self.expected(offset, length);
        if let Some(difference) = difference(got, &expected) {
            panic!("{} {offset}+{length}: {difference}", self.subject.name);
        }
    }

    /// Cuts a length into random pieces, at times more than a bio has segments.
    fn pieces(&mut self, length: usize) -> Vec<usize> {
        let most = if self.prng.one_in(6) { 150 } else { 5 };
        let count = 1 + self.prng.below(most);
        let mut left = length as u64;
        let mut pieces = Vec::new();
        for n in (1..=count).rev() {
            let unit = if self.prng.one_in(2) { 512 } else { 1 };
            let piece = if n == 1 { left } else { self.prng.below(2 * left / n + 1) / unit * unit };
            pieces.push(usize::try_from(piece).unwrap());
            left -= piece;
        }
        pieces
    }

    fn read_vectored(&mut self) {
        let (access, file) = self.reader();
        let (offset, length) = self.range(self.size());
        let pieces = self.pieces(length);
        let skew = self.skew(offset);
        self.note(format!("read vectored {access:?} {offset}+{length} in {pieces:?} skew {skew}"));
        let mut parts: Vec<_> = pieces.iter().map(|piece| Skewed::new(*piece, skew)).collect();
        let mut slices: Vec<_> =
            parts.iter_mut().map(|part| IoSliceMut::new(part.as_mut())).collect();
        let n = file.read_vectored_at(&mut slices, offset).unwrap();
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.must_be(&bytes[..n], offset, length);
    }

    fn write(&mut self) {
        let (access, file) = self.writer();
        let (offset, length) = self.range(self.subject.size_max);
        let skew = self.skew(offset);
        self.note(format!("write {access:?} {offset}+{length} skew {skew}"));
        let memory = Skewed::random(length, skew, &mut self.prng);
        assert_eq!(file.write_at(&memory, offset).unwrap(), length);
        self.reference.write_all_at(&memory, offset).unwrap();
    }

    fn write_vectored(&mut self) {
        let (access, file) = self.writer();
        let (offset, length) = self.range(self.subject.size_max);
        let pieces = self.pieces(length);
        let skew = self.skew(offset);
        self.note(format!("write vectored {access:?} {offset}+{length} in {pieces:?} skew {skew}"));
        let parts = self.random_parts(&pieces, skew);
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        assert_eq!(file.write_vectored_at(&slices, offset).unwrap(), length);
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.reference.write_all_at(&bytes, offset).unwrap();
    }

    fn random_parts(&mut self, pieces: &[usize], skew: usize) -> Vec<Skewed> {
        pieces.iter().map(|piece| Skewed::random(*piece, skew, &mut self.prng)).collect()
    }

    fn append(&mut self) {
        let (_, file) = self.handle(|access| access == Access::Append);
        let size = self.size();
        let (offset, length) = self.range(self.subject.size_max - size);
        let (pieces, skew) = (self.pieces(length), self.skew(size));
        self.note(format!("append {length} in {pieces:?} at {size}, saying {offset}, skew {skew}"));
        let parts = self.random_parts(&pieces, skew);
        let slices: Vec<_> = parts.iter().map(|part| IoSlice::new(part)).collect();
        assert_eq!(file.write_vectored_at(&slices, offset).unwrap(), length);
        let bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        self.reference.write_all_at(&bytes, size).unwrap();
    }

    fn set_len(&mut self) {
        let (access, file) = self.writer();
        let (mut size, _) = self.range(self.subject.size_max);
        if self.prng.one_in(2) {
            size %= 70_000;
        }
        self.note(format!("set_len {access:?} {size}"));
        file.set_len(size).unwrap();
        self.reference.set_len(size).unwrap();
    }

    fn allocate(&mut self) {
        let (access, file) = self.writer();
        let (offset, length) = self.range(self.subject.size_max);
        self.note(format!("allocate {access:?} {offset}+{length}"));
        file.allocate(offset, length as u64).unwrap();
    }

    fn sync(&mut self) {
        let (access, file) = self.handle(|_| true);
        let all = self.prng.one_in(2);
        self.note(format!("sync {access:?}, all: {all}"));
        if all { file.sync_all() } else { file.sync_data() }.unwrap();
    }

    fn reopen(&mut self) {
        let index = usize::try_from(self.prng.below(self.handles.len() as u64)).unwrap();
        let access = self.handles[index].0;
        self.note(format!("open {access:?} again"));
        self.engine.forget_file(&self.handles[index].1).unwrap();
        self.handles[index].1 = self.open(access);
        if self.prng.one_in(2) {
            // Refused but under io_uring, which changes nothing.
            let registered = self.engine.register_file(&self.handles[index].1);
            assert!(registered.is_ok() || self.subject.backend != BackendKind::Uring);
        }
    }

    /// Opens every file again after a seal in between: each object has the size that is on
    /// record, and keeps it until the record is gone.
    fn seal_and_reopen(&mut self) {
        self.note("seal, and open all again".to_owned());
        let open: Vec<Access> = self.handles.iter().map(|(access, _)| *access).collect();
        for (_, file) in self.handles.drain(..) {
            self.engine.forget_file(&file).unwrap();
        }
        StripedFile::open(&self.subject.path).unwrap().seal().unwrap();
        self.handles = open.into_iter().map(|access| (access, self.open(access))).collect();
    }

    /// Other policies for both engines: none of them changes what a request does.
    fn change_policies(&mut self) {
        let route = match self.prng.below(4) {
            0 => RoutePolicy::Buffered,
            1 => RoutePolicy::Hybrid { read_bytes_min: 3000, write_bytes_min: 2000 },
            _ => RoutePolicy::Direct,
        };
        let depth = match self.prng.below(3) {
            0 => DepthPolicy::Auto,
            n => DepthPolicy::Fixed(u32::try_from(n).unwrap()),
        };
        let history = match self.prng.below(3) {
            0 => EACH_THEN_WAIT,
            _ => History::TODAY,
        };
        let merge = match self.prng.below(3) {
            0 => MergePolicy::PerStripe,
            _ => MergePolicy::PerObject,
        };
        let wait = match self.prng.below(4) {
            0 => WaitPolicy::Spin,
            _ => WaitPolicy::Block,
        };
        let policies = Policies { route, depth, history, merge, wait, ..Policies::default() };
        self.note(format!("policies {route:?} {depth:?} {history:?} {merge:?} {wait:?}"));
        let options = EngineOptions { policies, ..self.subject.options() };
        self.engine = Engine::new(options).unwrap();
        use_for_this_thread(options);
    }

    /// The whole file through diopter.
    fn compare(&mut self) {
        let (_, file) = self.reader();
        let beyond = if self.subject.is_raw { 0 } else { 100 };
        let size = self.size();
        let length = usize::try_from(size + beyond).unwrap();
        let mut memory = Skewed::new(length, self.skew(0));
        let n = file.read_at(memory.as_mut(), 0).unwrap();
        self.must_be(&memory[..n], 0, length);
        if !self.subject.is_raw {
            assert_eq!(file.size().unwrap(), size);
        }
        if !self.subject.is_raw && !self.subject.is_striped() {
            assert_eq!(file.metadata().unwrap().len(), size);
        }
    }

    /// The whole file through the page cache, which at times is dropped first or afterwards.
    fn compare_past_diopter(&mut self) {
        self.note("compare past diopter".to_owned());
        let drops = |before: &fs::File| advise_dont_need(before.as_fd(), 0, 0).unwrap();
        let objects: Vec<fs::File> =
            self.subject.objects.iter().map(|path| fs::File::open(path).unwrap()).collect();
        if self.prng.one_in(2) {
            objects.iter().for_each(|object| object.sync_data().unwrap());
            objects.iter().for_each(drops);
        }
        let bytes = self.subject.read_past_diopter(&objects, self.size());
        self.must_be(&bytes, 0, bytes.len());
        if self.prng.one_in(2) {
            objects.iter().for_each(drops);
        }
    }
}

impl Drop for Oracle<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}: the last operations before the difference:", self.subject.name);
            for line in &self.history {
                eprintln!("    {line}");
            }
        }
    }
}
