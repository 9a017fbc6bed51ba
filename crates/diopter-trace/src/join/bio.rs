//! The bios of requests: handed down, cut by a limit of the device, and done.

use super::{Join, SECTOR};
use crate::bios::Issued;
use crate::event::{Device, Event, Flow, Sectors};
use crate::model::{Door, TracedBio, TracedOp};

impl Join {
    pub(super) fn bio_queued(&mut self, event: &Event, sectors: &Sectors) {
        if sectors.count == 0
            && let Some(commits) = self.syncing.get_mut(&event.thread)
        {
            // ext4 flushes the device itself where no commit, or none any longer, does so for it.
            *commits = None;
        }
        let Some(thread) = self.threads.get_mut(&event.thread).filter(|thread| thread.is_member)
        else {
            return;
        };
        let Some(open) = thread.open else {
            thread.loose_bio = (sectors.flow != Flow::Other).then_some(*sectors);
            return;
        };
        let pending = &mut self.requests[open];
        if pending.request.bios.is_empty() && sectors.flow == Flow::Write {
            // The kernel marks a write as such only if no thread waits for it.
            pending.request.op = TracedOp::Write;
        }
        let flow = match pending.request.op {
            TracedOp::Read => Flow::Read,
            TracedOp::Write => Flow::Write,
        };
        // A file system's anonymous device has no major; its bios go to other devices.
        let of_file = self.requests[open].inode.device;
        let disk = self.files.disk(of_file);
        let is_ours = self.files.disk(sectors.device) == disk || of_file.numbers().0 == 0;
        if sectors.flow != flow || !is_ours {
            return;
        }
        self.add_bio(event.time, open, sectors);
        let handed_down = self.handed_down(open);
        let request = &self.requests[open].request;
        if handed_down >= request.length && request.door != Door::Syscall {
            // Whatever the thread hands down from here on is of something else.
            self.thread(event.thread).open = None;
        }
    }

    /// The bytes of a request's bios.
    pub(super) fn handed_down(&self, number: usize) -> u64 {
        let bios = self.requests[number].request.bios.iter();
        bios.map(|bio| self.bios[*bio].bytes).sum()
    }

    /// A request was handed down in part, as a bio.
    pub(super) fn add_bio(&mut self, time: u64, owner: usize, sectors: &Sectors) {
        let number = self.bios.len();
        let device = self.files.disk(sectors.device);
        self.bios.push(TracedBio {
            device: device.numbers(),
            sector: sectors.start,
            bytes: u64::from(sectors.count) * SECTOR,
            pieces: 1,
            merged: 0,
            queued: time,
            issued: None,
            done: None,
            context: None,
        });
        self.owners.push(owner);
        let pending = &mut self.requests[owner];
        pending.request.bios.push(number);
        pending.request.times.submitted = Some(time);
        pending.bios_left += 1;
        self.outstanding.insert(number, &Sectors { device, ..*sectors });
    }

    pub(super) fn bio_cut(&mut self, device: Device, start: u64, cut_at: u64) {
        let disk = self.files.disk(device);
        if let Some(bio) = self.outstanding.cut(disk, start, cut_at) {
            self.bios[bio].pieces += 1;
        }
    }

    pub(super) fn issued(&mut self, time: u64, sectors: &Sectors) {
        for Issued { bio, is_merged } in self.outstanding.issue(sectors) {
            self.bios[bio].issued.get_or_insert(time);
            self.bios[bio].merged += u32::from(is_merged);
        }
    }

    pub(super) fn done(&mut self, event: &Event, sectors: &Sectors) {
        let device = self.files.disk(sectors.device);
        for number in self.outstanding.done(&Sectors { device, ..*sectors }) {
            let owner = self.owners[number];
            let context = self.context_of(event, &self.requests[owner]);
            self.bios[number].done = Some(event.time);
            self.bios[number].context = Some(context);
            let pending = &mut self.requests[owner];
            pending.bios_left = pending.bios_left.saturating_sub(1);
            pending.request.times.device_done = Some(event.time);
            if sectors.error != 0 {
                pending.error.get_or_insert(sectors.error);
            }
            match (pending.bios_left, pending.request.is_raw) {
                (0, true) => self.raw_done(event, owner, sectors.error),
                (0, false) => self.await_probe(owner, context),
                _ => {}
            }
        }
    }
}
