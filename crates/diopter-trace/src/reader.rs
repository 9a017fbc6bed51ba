//! From the pages of the spool to one stream of events in the order of their times.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use crate::code::RECORD_BYTES;
use crate::error::TraceError;
use crate::event::{self, Event, Source};
use crate::format::{Field, Record, number};
use crate::instance::{Instance, Listened};
use crate::page::PageShape;
use crate::programs;
use crate::spool::Spool;

/// The meaning of records, by their numbers.
pub struct Decoder {
    shape: PageShape,
    common: [Field; 3],
    by_id: HashMap<u16, (&'static Source, Vec<Field>)>,
}

/// The events of a spool, in the order of their times.
pub struct Events {
    spool: Arc<Spool>,
    decoder: Decoder,
    lanes: Vec<Lane>,
    /// For each lane, the time up to which it is known to have no more.
    empty_until: Vec<u64>,
    /// The time that is traced. The instance and the programs do not begin and end at once; a
    /// request is not to have a begin and no bios.
    recording: Range<u64>,
    page: Vec<u8>,
}

/// The current page of a CPU, decoded: the next event last.
type Lane = Vec<Event>;

impl Decoder {
    /// For what `instance` has to listen to.
    ///
    /// # Errors
    /// [`TraceError::Malformed`] or [`TraceError::Tracefs`] when a format cannot be read.
    pub fn new(instance: &Instance) -> Result<Decoder, TraceError> {
        let shape = PageShape::parse(&instance.get("events/header_page")?)?;
        let mut by_id = HashMap::new();
        let mut common = None;
        for Listened { source, format, .. } in instance.listened()? {
            let field = |name: &str| format.field(name);
            let all = (field("common_type"), field("common_flags"), field("common_pid"));
            if let (Some(number), Some(flags), Some(thread)) = all {
                common = Some([number, flags, thread]);
            }
            by_id.insert(format.id, (source, event::wanted(source, &format)));
        }
        let missing = || TraceError::Malformed("events have no common fields".to_owned());
        Ok(Decoder { shape, common: common.ok_or_else(missing)?, by_id })
    }

    /// The event of a record; `None` for one that is not listened to.
    fn event(&self, (time, cpu): (u64, u32), bytes: &[u8]) -> Option<Event> {
        let [id, flags, thread] = self.common.map(|field| number(bytes, field));
        let (source, fields) = self.by_id.get(&u16::try_from(id).ok()?)?;
        Some(Event {
            time,
            cpu,
            thread: u32::try_from(thread).unwrap_or_default(),
            flags: u8::try_from(flags).unwrap_or_default(),
            what: (source.read)(Record { fields, bytes }),
        })
    }
}

impl Events {
    /// Those from a time on.
    #[must_use]
    pub fn new(spool: Arc<Spool>, decoder: Decoder, since: u64) -> Events {
        let lanes: Vec<Lane> = (0..spool.lanes()).map(|_| Lane::new()).collect();
        let empty_until = vec![0; lanes.len()];
        let recording = since..u64::MAX;
        Events { spool, decoder, lanes, empty_until, recording, page: Vec::new() }
    }

    /// The time from which events are recorded.
    #[must_use]
    pub fn since(&self) -> u64 {
        self.recording.start
    }

    /// Leaves out what came at this time or later.
    pub fn end(&mut self, until: u64) {
        self.recording.end = until;
    }

    /// The next event before `until`, up to which the spool must be complete; `None` if there is
    /// none yet.
    ///
    /// # Errors
    /// [`TraceError::Malformed`], [`TraceError::Machine`].
    pub fn next_event(&mut self, until: u64) -> Result<Option<Event>, TraceError> {
        let mut earliest: Option<(u64, usize)> = None;
        for lane in 0..self.lanes.len() {
            if self.lanes[lane].is_empty() && self.empty_until[lane] < until {
                self.fill(lane, until)?;
            }
            let time = self.lanes[lane].last().map(|event| event.time);
            if let Some(time) = time.filter(|time| earliest.is_none_or(|(least, _)| *time < least))
            {
                earliest = Some((time, lane));
            }
        }
        let earliest = earliest.filter(|(time, _)| *time < until);
        Ok(earliest.and_then(|(_, lane)| self.lanes[lane].pop()))
    }

    /// Decodes the lane's next page.
    fn fill(&mut self, number: usize, until: u64) -> Result<(), TraceError> {
        let is_of_programs = number + 1 == self.lanes.len();
        let lane = &mut self.lanes[number];
        let cpu = u32::try_from(number).unwrap_or(u32::MAX);
        while lane.is_empty() {
            if !self.spool.take(number, &mut self.page)? {
                self.empty_until[number] = until;
                return Ok(());
            }
            if is_of_programs {
                lane.extend(self.page.chunks_exact(RECORD_BYTES).flat_map(programs::events));
            } else {
                let mut records = self.decoder.shape.records(&self.page)?;
                while let Some(record) = records.next_record()? {
                    lane.extend(self.decoder.event((record.time, cpu), record.bytes));
                }
            }
            lane.retain(|event| self.recording.contains(&event.time));
            lane.reverse();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::HEADER;

    #[test]
    fn what_is_recorded_before_the_trace_begins_or_after_it_ends_is_left_out() {
        let spool = Arc::new(Spool::new(1, 4096, 1 << 20).unwrap());
        // A file with cached pages, at each of these times.
        let record = |time: u64| {
            let mut record = [0; RECORD_BYTES];
            record[..8].copy_from_slice(&time.to_ne_bytes());
            record[8..12].copy_from_slice(&2_u32.to_ne_bytes());
            record
        };
        let page = [3, 5, 9, 10].map(record).concat();
        spool.push(0, &page, &[page.len()]).unwrap();
        let absent = Field { offset: 0, size: 0, is_signed: false };
        let shape = PageShape::parse(HEADER).unwrap();
        let decoder = Decoder { shape, common: [absent; 3], by_id: HashMap::new() };
        let mut events = Events::new(spool, decoder, 5);
        events.end(10);
        let mut times = Vec::new();
        while let Some(event) = events.next_event(u64::MAX).unwrap() {
            times.push(event.time);
        }
        assert_eq!(times, [5, 9]);
    }
}
