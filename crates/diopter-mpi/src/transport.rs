//! Messages between ranks: what the program needs of MPI, and the same between threads. Nothing
//! here knows what a message means.

use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use serde::Serialize;
use serde::de::DeserializeOwned;

/// Longest message. A longer one is a fault of the program.
pub const MESSAGE_BYTES_MAX: usize = 64 << 10;

/// Shortest sleep of a rank that waits.
const SLEEP_MIN: Duration = Duration::from_micros(50);

/// Longest sleep of a rank that waits.
const SLEEP_MAX: Duration = Duration::from_millis(10);

/// A sleep lasts this share of the time since the last message: waiting costs little processor
/// time, and a message waits little longer than its sender took to make it.
const SLEEP_SHARE: u32 = 32;

/// Sends and receives messages of one rank. A rank sends only to one that waits for a message, or
/// will: a call that blocks until the other side receives sleeps meanwhile.
pub trait Transport {
    /// Returns the number of this rank, from 0.
    fn rank(&self) -> usize;

    /// Returns the number of ranks.
    fn size(&self) -> usize;

    /// Sends a message of at most [`MESSAGE_BYTES_MAX`] bytes.
    fn send(&mut self, to: usize, message: &[u8]);

    /// Returns a message that has arrived, with its sender.
    fn try_receive(&mut self) -> Option<(usize, Vec<u8>)>;

    /// Returns when all ranks have called it, on all of them at nearly the same time.
    fn align(&mut self);
}

/// Sleeps that become longer while nothing happens: a rank that waits does not spin.
#[derive(Debug)]
pub struct Patience {
    since: Instant,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { since: Instant::now() }
    }
}

impl Patience {
    /// Sleeps once.
    #[expect(clippy::disallowed_methods, reason = "MPI has no call that waits without spinning")]
    pub fn wait(&self) {
        std::thread::sleep(sleep_after(self.since.elapsed()));
    }

    /// Begins with short sleeps again.
    pub fn restart(&mut self) {
        self.since = Instant::now();
    }
}

fn sleep_after(waited: Duration) -> Duration {
    (waited / SLEEP_SHARE).clamp(SLEEP_MIN, SLEEP_MAX)
}

/// Waits for the next message, and returns it with its sender.
pub fn receive(transport: &mut dyn Transport) -> (usize, Vec<u8>) {
    let patience = Patience::default();
    loop {
        if let Some(received) = transport.try_receive() {
            return received;
        }
        patience.wait();
    }
}

/// Encodes a message.
///
/// # Panics
/// If it is too long.
pub fn to_json(message: &impl Serialize) -> Vec<u8> {
    let bytes = serde_json::to_vec(message).expect("numbers and strings are JSON");
    assert!(bytes.len() <= MESSAGE_BYTES_MAX, "a message of {} bytes", bytes.len());
    bytes
}

/// Decodes a message.
///
/// # Panics
/// If it is another one: the ranks are not of the same build.
#[must_use]
pub fn from_json<T: DeserializeOwned>(bytes: &[u8]) -> T {
    serde_json::from_slice(bytes).expect("all ranks run the same build of dio-mpi")
}

/// The ranks of one process, a thread each.
#[derive(Debug)]
pub struct Threads {
    rank: usize,
    senders: Vec<Sender<(usize, Vec<u8>)>>,
    inbox: Receiver<(usize, Vec<u8>)>,
    barrier: Arc<Barrier>,
}

impl Threads {
    /// Makes the transports of `size` ranks, in order.
    #[must_use]
    pub fn of_ranks(size: usize) -> Vec<Threads> {
        let (senders, inboxes): (Vec<_>, Vec<_>) = (0..size).map(|_| channel()).unzip();
        let barrier = Arc::new(Barrier::new(size));
        let rank = |(rank, inbox)| Threads {
            rank,
            senders: senders.clone(),
            inbox,
            barrier: Arc::clone(&barrier),
        };
        inboxes.into_iter().enumerate().map(rank).collect()
    }
}

impl Transport for Threads {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.senders.len()
    }

    fn send(&mut self, to: usize, message: &[u8]) {
        assert!(message.len() <= MESSAGE_BYTES_MAX, "a message of {} bytes", message.len());
        let sent = self.senders[to].send((self.rank, message.to_owned()));
        sent.expect("a rank ends after the last message to it");
    }

    fn try_receive(&mut self) -> Option<(usize, Vec<u8>)> {
        match self.inbox.try_recv() {
            Ok(received) => Some(received),
            Err(TryRecvError::Empty) => None,
            Err(TryRecvError::Disconnected) => unreachable!("it has a sender to itself"),
        }
    }

    fn align(&mut self) {
        self.barrier.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_waits_sleeps_longer_and_longer_within_bounds() {
        let milli = Duration::from_millis;
        assert_eq!(sleep_after(Duration::ZERO), SLEEP_MIN);
        assert_eq!(sleep_after(milli(32)), milli(1));
        assert_eq!(sleep_after(milli(10_000)), SLEEP_MAX);
    }

    #[test]
    fn a_message_arrives_with_its_sender_and_a_long_one_is_refused() {
        let mut ranks = Threads::of_ranks(2);
        ranks[1].send(0, b"short");
        assert_eq!(receive(&mut ranks[0]), (1, b"short".to_vec()));
        assert!(ranks[0].try_receive().is_none());
        let long = vec![0; MESSAGE_BYTES_MAX + 1];
        let sent = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            ranks[1].send(0, &long);
        }));
        assert!(sent.is_err());
    }
}
