//! Batches of the oracle: several requests in flight, on an engine or on the thread's own.

use std::os::unix::fs::FileExt;
use std::time::Duration;

use diopter::{File, FinishedRequest, InFlight, IoBuf, Request, Route};

use super::super::memory::Skewed;
use super::{Access, Oracle};

/// Far above what any request here takes.
const WAIT_MAX: Duration = Duration::from_secs(60);

/// One request of a batch.
struct Queued {
    access: Access,
    file: File,
    offset: u64,
    length: usize,
    /// Bytes that a write writes.
    bytes: Option<Vec<u8>>,
}

impl Queued {
    fn end(&self) -> u64 {
        self.offset + self.length as u64
    }

    fn words(&self) -> String {
        let kind = if self.bytes.is_some() { "write" } else { "read" };
        format!("{kind} {:?} {}+{}", self.access, self.offset, self.length)
    }

    fn request(&self) -> Request {
        let mut memory = IoBuf::new(self.length).unwrap();
        match &self.bytes {
            Some(bytes) => {
                memory.copy_from_slice(bytes);
                Request::write(self.offset, memory)
            }
            None => Request::read(self.offset, memory),
        }
    }
}

impl Oracle<'_> {
    /// Requests on ranges that do not overlap, so that any order gives the same. Reads stay within
    /// the file, whose end moves meanwhile.
    fn batch(&mut self) -> Vec<Queued> {
        let mut batch: Vec<Queued> = Vec::new();
        for _ in 0..=self.prng.below(9) {
            let is_write = self.prng.one_in(2);
            let (access, file) = if is_write { self.writer() } else { self.reader() };
            let (offset, length) =
                self.range(if is_write { self.subject.size_max } else { self.size() });
            let end = offset + length as u64;
            let is_free = batch.iter().all(|other| end <= other.offset || offset >= other.end());
            if is_free && length > 0 {
                let bytes = is_write.then(|| {
                    let mut bytes = vec![0; length];
                    self.prng.fill(&mut bytes);
                    bytes
                });
                batch.push(Queued { access, file, offset, length, bytes });
            }
        }
        batch
    }

    pub fn batch_on_the_engine(&mut self) {
        let batch = self.batch();
        let mut ids = Vec::new();
        for queued in &batch {
            self.note(format!("queue {}", queued.words()));
            ids.push(self.engine.start(&queued.file, queued.request()).unwrap());
            if self.prng.one_in(4) {
                self.engine.tick();
            }
        }
        if self.prng.one_in(4) {
            let (access, file) = self.handle(|_| true);
            self.note(format!("queue sync {access:?}"));
            self.engine.start(&file, Request::sync_data()).unwrap();
        }
        if self.prng.one_in(3) {
            // A blocking call of the same thread, on another engine and next to what is queued.
            self.write_beside(&batch);
        }
        let mut finished = Vec::new();
        while self.engine.in_flight() > 0 {
            let next = self.engine.wait(WAIT_MAX).unwrap();
            finished.push(next.expect("a queued request finishes"));
        }
        self.write_to_the_reference(&batch);
        for (queued, id) in batch.iter().zip(ids) {
            let index = finished.iter().position(|finished| finished.id == id).unwrap();
            self.must_be_done(finished.swap_remove(index), queued);
        }
        assert!(finished.iter().all(|sync| sync.result.is_ok()));
    }

    pub fn batch_on_the_thread(&mut self) {
        let batch = self.batch();
        let mut in_flight: Vec<InFlight> = Vec::new();
        for queued in &batch {
            self.note(format!("thread's queue: {}", queued.words()));
            in_flight.push(queued.file.request(queued.request()).unwrap());
        }
        if self.prng.one_in(3) {
            self.write_beside(&batch);
        }
        let mut finished = Vec::new();
        while !in_flight.is_empty() {
            // In any order.
            let index = usize::try_from(self.prng.below(in_flight.len() as u64)).unwrap();
            finished.push((index, in_flight.remove(index).wait()));
        }
        self.write_to_the_reference(&batch);
        let mut left: Vec<_> = batch.iter().collect();
        for (index, finished) in finished {
            self.must_be_done(finished, left.remove(index));
        }
    }

    /// A blocking write next to the last of a batch.
    fn write_beside(&mut self, batch: &[Queued]) {
        let end = batch.iter().map(Queued::end).max().unwrap_or(0);
        let length = usize::try_from((self.subject.size_max - end).min(777)).unwrap();
        self.note(format!("write Both {end}+{length} next to them"));
        let bytes = Skewed::random(length, 1, &mut self.prng);
        let (_, file) = self.handle(|access| access == Access::Both);
        file.write_all_at(&bytes, end).unwrap();
        self.reference.write_all_at(&bytes, end).unwrap();
    }

    fn write_to_the_reference(&self, batch: &[Queued]) {
        for queued in batch {
            if let Some(bytes) = &queued.bytes {
                self.reference.write_all_at(bytes, queued.offset).unwrap();
            }
        }
    }

    fn must_be_done(&mut self, finished: FinishedRequest, queued: &Queued) {
        let length = queued.length;
        assert_eq!(finished.result.clone().map(|bytes| bytes.get()), Ok(length as u64));
        assert!(finished.outcome().is_all_done());
        let Route { direct, bounced, buffered, why } = finished.route();
        assert_eq!(direct + bounced + buffered, length as u64, "{why:?}");
        assert_eq!(direct == length as u64, why.is_empty(), "{why:?}");
        assert!(self.subject.is_direct || buffered == length as u64);
        self.route.direct += direct;
        self.route.bounced += bounced;
        self.route.buffered += buffered;
        let memory = finished.memory.expect("the memory comes back");
        assert_eq!(memory.len(), length);
        if queued.bytes.is_none() {
            self.must_be(&memory, queued.offset, length);
        }
    }
}
