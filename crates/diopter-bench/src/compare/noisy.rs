//! A simulated device with the noise of real ones, for tests of the judge: seeded, immediate, and
//! with a known truth. Nothing here is measured.

use diopter::internals::Prng;

use crate::document::{
    Bench, Cell, Column, DirectionSample, Job, Method, ReadWrite, Row, SCHEMA, Sample, Span,
};
use crate::number::{count, float, rounded};

/// Requests per second of the device without noise.
const IOPS: f64 = 250_000.0;

const BLOCK_BYTES: u64 = 4096;
const ROUND_NS: u64 = 1_000_000_000;

/// The noise of a device's rounds, as fractions of its speed.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Noise {
    /// Noise of each round: the deviation of a lognormal factor.
    pub white: f64,
    /// Noise that lasts from one round to the next: the deviation of an autoregressive factor.
    pub lasting: f64,
    /// Share of the lasting noise that remains after one round, below 1.
    pub memory: f64,
    /// Slowdown from the first round to the last.
    pub drift: f64,
    /// Bursts of other load that begin per round.
    pub bursts: f64,
    /// The deepest burst.
    pub burst_depth: f64,
}

impl Noise {
    /// A mostly idle machine, for which the method is designed.
    pub const USUAL: Noise = Noise {
        white: 0.015,
        lasting: 0.015,
        memory: 0.6,
        drift: 0.08,
        bursts: 0.03,
        burst_depth: 0.4,
    };

    /// Only a little white noise.
    pub const QUIET: Noise = Noise {
        white: 0.003,
        lasting: 0.0,
        memory: 0.0,
        drift: 0.0,
        bursts: 0.0,
        burst_depth: 0.0,
    };
}

#[derive(Clone, Debug)]
pub struct NoisyDevice {
    noise: Noise,
    prng: Prng,
    lasting: f64,
    burst_left: u64,
    burst: f64,
    /// Logarithm of the drift so far, and its increment each round.
    drifted: f64,
    drift_step: f64,
}

impl NoisyDevice {
    /// Creates a device that will run `rounds` rounds.
    #[must_use]
    pub fn new(noise: Noise, seed: u64, rounds: usize) -> NoisyDevice {
        let drift_step = -(1.0 - noise.drift).ln() / count(rounds.max(1));
        let mut prng = Prng::new(seed);
        let lasting = noise.lasting * normal(&mut prng);
        NoisyDevice { noise, prng, lasting, burst_left: 0, burst: 0.0, drifted: 0.0, drift_step }
    }

    /// Returns the requests per second of one round at `speed` times the device's.
    pub fn round(&mut self, speed: f64) -> f64 {
        let noise = self.noise;
        let kept = noise.memory * self.lasting;
        let fresh = noise.lasting * (1.0 - noise.memory * noise.memory).sqrt();
        self.lasting = kept + fresh * normal(&mut self.prng);
        self.drifted += self.drift_step;
        if self.burst_left > 0 {
            self.burst_left -= 1;
        } else if uniform(&mut self.prng) < noise.bursts {
            self.burst_left = 1 + self.prng.below(3);
            self.burst = noise.burst_depth * (0.25 + 0.75 * uniform(&mut self.prng));
        }
        let burst = if self.burst_left > 0 { self.burst } else { 0.0 };
        let factor = noise.white * normal(&mut self.prng) + self.lasting - self.drifted;
        IOPS * speed * factor.exp() * (1.0 - burst)
    }
}

/// Returns a document of columns that run in turn (ABBA) at these speeds.
#[must_use]
pub fn bench(noise: Noise, seed: u64, speeds: &[f64], rounds: u32) -> Bench {
    let in_all = usize::try_from(rounds).unwrap_or(usize::MAX).saturating_mul(speeds.len());
    let mut device = NoisyDevice::new(noise, seed, in_all);
    let mut cells = vec![Cell::default(); speeds.len()];
    let mut turn = 0;
    for round in 0..rounds {
        let mut order: Vec<usize> = (0..speeds.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for column in order {
            cells[column].samples.push(sample(device.round(speeds[column]), round, turn));
            turn += 1;
        }
    }
    let column = |at: usize| Column {
        label: format!("{}", char::from(b'a' + u8::try_from(at.min(25)).unwrap_or(25))),
        program: "simulated".to_owned(),
        // The columns are not duplicates: the judge must not know the truth.
        program_version: at.to_string(),
        ..Column::default()
    };
    Bench {
        schema: SCHEMA.to_owned(),
        title: "simulated".to_owned(),
        method: Method { rounds, order: "abba".to_owned(), seed, ..Method::default() },
        columns: (0..speeds.len()).map(column).collect(),
        rows: vec![Row { job: job(), cells }],
        ..Bench::default()
    }
}

fn job() -> Job {
    Job {
        name: "randread 4k".to_owned(),
        rw: ReadWrite::RandRead,
        block_bytes: BLOCK_BYTES,
        iodepth: 64,
        numjobs: 1,
        size: 1 << 30,
        span: Span::RuntimeNs(ROUND_NS),
        is_direct: true,
        ..Job::default()
    }
}

fn sample(iops: f64, round: u32, turn: u32) -> Sample {
    let ios = rounded(iops);
    Sample {
        round,
        turn,
        started_unix_ns: u64::from(turn) * ROUND_NS,
        elapsed_ns: ROUND_NS,
        read: Some(DirectionSample {
            ios,
            bytes: ios * BLOCK_BYTES,
            iops,
            ..DirectionSample::default()
        }),
        ..Sample::default()
    }
}

/// Returns a number in `0..1`.
fn uniform(prng: &mut Prng) -> f64 {
    float(prng.next_u64() >> 11) / float(1 << 53)
}

/// Returns a number from the normal distribution (Box and Muller).
pub(super) fn normal(prng: &mut Prng) -> f64 {
    let radius = (-2.0 * uniform(prng).max(f64::MIN_POSITIVE).ln()).sqrt();
    radius * (std::f64::consts::TAU * uniform(prng)).cos()
}
