//! The speed of a simulated device as a function of its load: the number of bios in service, their
//! shared resources, the depth where it becomes slower, and other users. Integer maths.

use std::time::Duration;

use crate::prng::Prng;

/// Parts of a whole: shares and factors are in thousandths.
const WHOLE: u64 = 1000;

/// Limit of a neighbour's periods during one bio; the rest of a longer bio is not slowed down.
const PHASES_MAX: u32 = 10_000;

/// Parameters of a device's speed. By default a bio takes no time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Performance {
    /// Bios in service at once; the others wait in order of arrival.
    pub channels: u32,
    /// Time of a bio in its channel.
    pub bio_ns: u64,
    /// Time of a bio's bytes on the bus to its channel, one bio after the other: all share it.
    pub mebibyte_ns: u64,
    /// A bio's time varies by this many thousandths, up and down.
    pub jitter: u64,
    /// The depth beyond which it becomes slower.
    pub cliff: Option<Cliff>,
    /// Changes over time.
    pub drift: Option<Drift>,
    /// Another user of the device.
    pub neighbour: Option<Neighbour>,
    /// Thousandths of `bio_ns` that remain if it can choose among this many bios, a doubling each,
    /// like the path of a disk's arm. The last one is for all greater depths.
    pub order: [u64; 8],
    /// A disk that is slower than the others, and its factor in thousandths.
    pub slow: Option<(usize, u64)>,
}

/// Beyond `bios` in flight, each bio takes `factor` thousandths of its time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cliff {
    /// The last depth at full speed.
    pub bios: u32,
    /// Thousandths.
    pub factor: u64,
}

/// Times change linearly, from `start` on for `length`, by factors in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drift {
    pub start: Duration,
    pub length: Duration,
    /// Final factor of a bio's time in its channel.
    pub bio: u64,
    /// Final factor of the time of its bytes.
    pub mebibyte: u64,
}

/// In each period the neighbour is active for `busy`, and takes `share` thousandths of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    pub period: Duration,
    pub busy: Duration,
    /// Its share of the device while active, below 1000.
    pub share: u64,
}

impl Performance {
    /// A device that takes no time, with one channel.
    pub const NONE: Performance = Performance {
        channels: 1,
        bio_ns: 0,
        mebibyte_ns: 0,
        jitter: 0,
        cliff: None,
        drift: None,
        neighbour: None,
        order: [WHOLE; 8],
        slow: None,
    };
}

/// The state of a device: the times when its channels and shared resources are free again. One for
/// each disk.
#[derive(Clone, Debug)]
pub struct Service {
    performance: Performance,
    prng: Prng,
    disks: Vec<Busy>,
}

#[derive(Clone, Debug)]
struct Busy {
    channels: Vec<u64>,
    shared: u64,
}

impl Service {
    /// Creates an idle device.
    #[must_use]
    pub fn new(performance: Performance, seed: u64) -> Service {
        Service { performance, prng: Prng::new(seed).fork("performance"), disks: Vec::new() }
    }

    /// Returns the completion time of a bio of this size that arrives at `disk` at `now`, with
    /// `in_flight` bios, itself included.
    pub fn due(&mut self, disk: usize, now: u64, (bytes, in_flight): (u64, u32)) -> u64 {
        let performance = self.performance;
        let channels = performance.channels.max(1) as usize;
        while self.disks.len() <= disk {
            self.disks.push(Busy { channels: vec![0; channels], shared: 0 });
        }
        let factor = self.factor(disk, in_flight);
        let busy = &mut self.disks[disk];
        let (bio_drift, byte_drift) = performance.drifted(now);
        let moves = u64::try_from((u128::from(performance.mebibyte_ns) * u128::from(bytes)) >> 20);
        let moves = scaled(scaled(moves.unwrap_or(u64::MAX), byte_drift), factor);
        let arrived = performance.stretched(now.max(busy.shared), moves);
        busy.shared = arrived;
        let channel = busy.channels.iter_mut().min().expect("at least one channel");
        let order = performance.order[in_flight.max(1).ilog2().min(7) as usize];
        let takes = scaled(scaled(scaled(performance.bio_ns, order), bio_drift), factor);
        *channel = performance.stretched(arrived.max(*channel), takes);
        *channel
    }

    fn factor(&mut self, disk: usize, in_flight: u32) -> u64 {
        let Performance { jitter, cliff, slow, .. } = self.performance;
        let jittered = WHOLE - jitter.min(WHOLE) + self.prng.below(2 * jitter.min(WHOLE) + 1);
        let cliff = cliff.filter(|cliff| in_flight > cliff.bios).map_or(WHOLE, |it| it.factor);
        let slow = slow.filter(|(its, _)| *its == disk).map_or(WHOLE, |(_, factor)| factor);
        scaled(scaled(jittered, cliff), slow)
    }
}

impl Performance {
    /// Returns the factors of a bio's time in its channel and of that of its bytes.
    fn drifted(&self, now: u64) -> (u64, u64) {
        let Some(drift) = self.drift else { return (WHOLE, WHOLE) };
        let length = nanos(drift.length).max(1);
        let passed = now.saturating_sub(nanos(drift.start)).min(length);
        let between = |end: u64| {
            let (end, passed, length) = (i128::from(end), i128::from(passed), i128::from(length));
            let whole = i128::from(WHOLE);
            u64::try_from(whole + (end - whole) * passed / length).unwrap_or(0)
        };
        (between(drift.bio), between(drift.mebibyte))
    }

    /// Returns the end of work of `takes` that starts at `start`, slowed down by the neighbour.
    fn stretched(&self, start: u64, takes: u64) -> u64 {
        let Some(neighbour) = self.neighbour else { return start.saturating_add(takes) };
        let (period, busy) = (nanos(neighbour.period).max(1), nanos(neighbour.busy));
        let left_to_us = WHOLE - neighbour.share.min(WHOLE - 1);
        let (mut now, mut left) = (start, takes);
        for _ in 0..PHASES_MAX {
            let within = now % period;
            let is_busy = within < busy;
            let phase_end = now - within + if is_busy { busy.min(period) } else { period };
            let rate = if is_busy { left_to_us } else { WHOLE };
            let done = scaled(phase_end - now, rate);
            if done >= left {
                return now + left * WHOLE / rate;
            }
            (now, left) = (phase_end, left - done);
        }
        now.saturating_add(left)
    }
}

fn scaled(value: u64, factor: u64) -> u64 {
    let scaled = u128::from(value) * u128::from(factor) / u128::from(WHOLE);
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// Returns the completion time of each of `bios` bios of 1 MiB that arrive at once.
    fn dues(performance: Performance, bios: u32) -> Vec<u64> {
        let mut service = Service::new(performance, 1);
        (1..=bios).map(|count| service.due(0, 0, (1 << 20, count)) / MS).collect()
    }

    #[test]
    fn channels_work_side_by_side_and_share_the_way_of_the_bytes() {
        let base = Performance { channels: 2, bio_ns: 10 * MS, ..Performance::NONE };
        assert_eq!(dues(base, 4), [10, 10, 20, 20]);
        assert_eq!(dues(Performance { mebibyte_ns: 3 * MS, ..base }, 3), [13, 16, 23]);
    }

    #[test]
    fn more_bios_than_a_device_likes_make_each_of_them_slower() {
        let cliff = Some(Cliff { bios: 2, factor: 3000 });
        let device = Performance { channels: 9, bio_ns: 10 * MS, cliff, ..Performance::NONE };
        assert_eq!(dues(device, 3), [10, 10, 30]);
        let order = [1000, 800, 600, 600, 600, 600, 600, 600];
        assert_eq!(dues(Performance { order, cliff: None, ..device }, 4), [10, 8, 8, 6]);
    }

    #[test]
    fn a_neighbour_takes_its_share_in_its_turns_only() {
        let neighbour = Neighbour {
            period: Duration::from_millis(100),
            busy: Duration::from_millis(20),
            share: 500,
        };
        let device = Performance { neighbour: Some(neighbour), ..Performance::NONE };
        // 20 ms at half speed, then 5 ms alone; and all alone.
        assert_eq!(device.stretched(0, 15 * MS), 25 * MS);
        assert_eq!(device.stretched(30 * MS, 15 * MS), 45 * MS);
        assert_eq!(device.stretched(95 * MS, 15 * MS), 120 * MS);
    }

    #[test]
    fn a_device_drifts_evenly_and_then_stays() {
        let second = Duration::from_secs(1);
        let drift = Some(Drift { start: second, length: second, bio: 3000, mebibyte: 500 });
        let device = Performance { drift, ..Performance::NONE };
        assert_eq!(device.drifted(500 * MS), (1000, 1000));
        assert_eq!(device.drifted(1500 * MS), (2000, 750));
        assert_eq!(device.drifted(9000 * MS), (3000, 500));
    }

    #[test]
    fn a_slow_disk_is_slow_alone_and_jitter_comes_from_the_seed() {
        let slow = Performance { bio_ns: MS, slow: Some((1, 4000)), ..Performance::NONE };
        let mut service = Service::new(slow, 1);
        assert_eq!((service.due(0, 0, (0, 1)), service.due(1, 0, (0, 1))), (MS, 4 * MS));
        let jitter = Performance { bio_ns: MS, jitter: 200, channels: 99, ..Performance::NONE };
        let all = |seed| {
            let mut service = Service::new(jitter, seed);
            (0..99).map(|_| service.due(0, 0, (0, 1))).collect::<Vec<_>>()
        };
        assert_eq!(all(7), all(7));
        assert_ne!(all(7), all(8));
        assert!(all(7).iter().all(|due| (800_000..=1_200_000).contains(due)));
    }
}
