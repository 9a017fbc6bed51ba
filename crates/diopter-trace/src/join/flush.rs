//! Flushes: from a call of fsync or fdatasync to its return on the same thread, and from a ring's
//! entry to its completion. Between the two the file system names the file.

use super::Join;
use crate::event::{Event, FlushEvent, Inode};
use crate::flushes::{FILES_MAX, Flush, FlushKind, OTHER_FILES};
use crate::model::TracedFile;
use crate::names::FileId;

/// The names of threads of io_uring that work for a process begin so.
const WORKER_NAME: &str = "iou-wrk";
/// Entries of rings that are awaited: more than the rings of one process hold.
const ENTRIES_MAX: usize = 1 << 16;
/// The number is that of no open file, whatever was open by it before.
const EBADF: i64 = -9;
/// File systems that name the file of each flush. What they do not name is not one of theirs.
const WITH_EVENT: [&str; 4] = ["ext4", "xfs", "btrfs", "f2fs"];

/// A flush that has not returned.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpenFlush {
    begin: u64,
    kind: FlushKind,
    thread: u32,
    process: u32,
    /// The number of the descriptor; events of rings do not have it.
    descriptor: Option<u32>,
    file: Option<FileId>,
}

/// The file of a flush, as far as it is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Flushed {
    File(FileId),
    Descriptor(u32),
    /// That of a ring's entry.
    OfRing,
    /// One of many.
    Other,
}

impl Join {
    pub(super) fn flush_event(&mut self, event: &Event, what: &FlushEvent) {
        match *what {
            FlushEvent::Called { descriptor, is_data } => {
                let kind = if is_data { FlushKind::Fdatasync } else { FlushKind::Fsync };
                if let Some(open) = self.open_flush(event, kind, Some(descriptor)) {
                    let before = self.flushing.insert(event.thread, open);
                    self.end_flush(before, None);
                }
            }
            FlushEvent::Returned { result, is_data } => {
                let open = self.flushing.remove(&event.thread);
                // The return of another call means that events between the two were lost.
                let is_its =
                    open.is_some_and(|open| is_data == (open.kind == FlushKind::Fdatasync));
                self.end_flush(open, is_its.then_some((event.time, result)));
            }
            FlushEvent::Entry(entry) => {
                self.end_earlier_flush(entry);
                // No request follows from it.
                self.thread(event.thread).entry = None;
                let open = self.open_flush(event, FlushKind::Uring, None);
                if let Some(open) = open.filter(|_| self.ring_flushes.len() < ENTRIES_MAX) {
                    self.ring_flushes.insert(entry, open);
                }
            }
            FlushEvent::Of { inode, subvolume } => {
                self.flush_of(event.thread, FileId { inode, subvolume });
            }
        }
    }

    /// The file system flushes a file.
    pub(super) fn sync_began(&mut self, thread: u32, inode: Inode) {
        self.syncing.insert(thread, Some(inode.device));
        if let Some(thread) = self.threads.get_mut(&thread) {
            thread.has_seen_commit = false;
        }
        self.flush_of(thread, FileId { inode, subvolume: None });
    }

    /// The file system flushes a file: that of the thread's call, and for a worker of a ring that
    /// of the oldest entry of its process that has none. A durable write flushes too, outside a
    /// call of fsync, and is not counted.
    fn flush_of(&mut self, thread: u32, file: FileId) {
        if let Some(open) = self.flushing.get_mut(&thread) {
            open.file.get_or_insert(file);
            return;
        }
        if self.ring_flushes.is_empty() {
            return;
        }
        let worker =
            self.threads.get(&thread).filter(|thread| thread.name.starts_with(WORKER_NAME));
        let Some(process) = worker.map(|worker| worker.process) else { return };
        let waiting = self.ring_flushes.values_mut();
        let waiting = waiting.filter(|open| open.process == process && open.file.is_none());
        if let Some(open) = waiting.min_by_key(|open| open.begin) {
            open.file = Some(file);
        }
    }

    /// A ring's entry completes; returns true if it was a flush.
    pub(super) fn ring_flush_ended(&mut self, event: &Event, entry: u64, result: i64) -> bool {
        let open = self.ring_flushes.remove(&entry);
        let is_flush = open.is_some();
        self.end_flush(open, Some((event.time, result)));
        is_flush
    }

    /// A ring's entry is taken: a flush that had its address completed without an event, as those
    /// with `IOSQE_CQE_SKIP_SUCCESS` do, and it is unknown when.
    pub(super) fn end_earlier_flush(&mut self, entry: u64) {
        let open = self.ring_flushes.remove(&entry);
        self.end_flush(open, None);
    }

    /// A thread is gone, and does not return from its call.
    pub(super) fn end_flush_of(&mut self, thread: u32) {
        let open = self.flushing.remove(&thread);
        self.end_flush(open, None);
    }

    /// Ends those whose end no event showed.
    pub(super) fn end_all_flushes(&mut self) {
        let called = std::mem::take(&mut self.flushing).into_values();
        let submitted = std::mem::take(&mut self.ring_flushes).into_values();
        for open in called.chain(submitted) {
            self.end_flush(Some(open), None);
        }
    }

    /// The files that were flushed, by their numbers.
    pub(super) fn flushed_files(&self) -> Vec<TracedFile> {
        let named = |path: String| TracedFile { path, ..TracedFile::default() };
        let describe = |flushed: &Flushed| match *flushed {
            Flushed::File(file) => TracedFile {
                path: self.files.name(file),
                device: file.inode.device.numbers(),
                inode: file.inode.number,
                file_system: match file.subvolume {
                    Some(_) => "btrfs".to_owned(),
                    None => self.files.file_system(file.inode).to_owned(),
                },
                ..TracedFile::default()
            },
            Flushed::Descriptor(number) => named(format!("descriptor {}", number.cast_signed())),
            Flushed::OfRing => named("files of io_uring".to_owned()),
            Flushed::Other => named(OTHER_FILES.to_owned()),
        };
        self.flushed.iter().map(describe).collect()
    }

    /// A flush of a traced thread begins.
    fn open_flush(
        &self,
        event: &Event,
        kind: FlushKind,
        descriptor: Option<u32>,
    ) -> Option<OpenFlush> {
        let thread = self.threads.get(&event.thread).filter(|thread| thread.is_member)?;
        let (begin, process) = (event.time, thread.process);
        Some(OpenFlush { begin, kind, thread: event.thread, process, descriptor, file: None })
    }

    fn end_flush(&mut self, open: Option<OpenFlush>, end: Option<(u64, i64)>) {
        let Some(open) = open else { return };
        let is_closed = end.is_some_and(|(_, result)| result == EBADF);
        let file = open.file.or_else(|| self.file_of_descriptor(&open).filter(|_| !is_closed));
        if !self.is_wanted(file) {
            return;
        }
        let flushed = match (file, open.descriptor) {
            (Some(file), _) => Flushed::File(file),
            (None, Some(descriptor)) => Flushed::Descriptor(descriptor),
            (None, None) => Flushed::OfRing,
        };
        let end = end.map(|(time, result)| (time.saturating_sub(open.begin), result));
        let file = self.flushed_number(flushed);
        self.flushes.count(&Flush { kind: open.kind, thread: open.thread, file, end });
    }

    /// The file that the process has open by this number, if its file system names no file.
    fn file_of_descriptor(&self, open: &OpenFlush) -> Option<FileId> {
        let file = self.files.of_descriptor(open.process, open.descriptor?)?;
        let is_named = WITH_EVENT.contains(&self.files.file_system(file.inode));
        (!is_named && file.subvolume.is_none()).then_some(file)
    }

    /// Returns true for a file on the devices that are traced. No event has the device number of a
    /// btrfs.
    fn is_wanted(&self, file: Option<FileId>) -> bool {
        if self.devices.is_empty() {
            return true;
        }
        let Some(file) = file else { return false };
        match file.subvolume {
            None => self.devices.contains(&file.inode.device),
            Some(_) => self.devices.iter().any(|device| {
                self.files.file_system(Inode { device: *device, number: 1 }) == "btrfs"
            }),
        }
    }

    fn flushed_number(&mut self, flushed: Flushed) -> usize {
        let is_one_more = !self.flushed_numbers.contains_key(&flushed);
        let has_room = self.flushed.len() < FILES_MAX;
        let flushed = if is_one_more && !has_room { Flushed::Other } else { flushed };
        *self.flushed_numbers.entry(flushed).or_insert_with(|| {
            self.flushed.push(flushed);
            self.flushed.len() - 1
        })
    }
}
