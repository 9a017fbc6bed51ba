//! The request to end a copy early. Who makes it, a signal handler or a user of the library, is
//! outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A signal that asked for the end of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// Its number.
    pub number: u8,
}

impl Signal {
    /// Returns the exit status of a command that it ended.
    #[must_use]
    pub fn exit_status(self) -> u8 {
        128 + self.number
    }

    /// Returns its name as kill(1) prints it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self.number {
            1 => "SIGHUP",
            2 => "SIGINT",
            15 => "SIGTERM",
            _ => "a signal",
        }
    }
}

/// A flag that ends a copy when it is set. The copy checks it between two requests; clones share
/// one flag.
#[derive(Clone, Debug, Default)]
pub struct StopFlag {
    /// Number of the first signal; 0 for none.
    number: Arc<AtomicUsize>,
}

impl StopFlag {
    /// Returns the number behind the flag, for a signal handler: 0 is unset, and any other value
    /// sets the flag.
    #[must_use]
    pub fn number(&self) -> Arc<AtomicUsize> {
        Arc::clone(&self.number)
    }

    /// Sets the flag, as if this signal had arrived.
    pub fn set(&self, signal: Signal) {
        self.number.store(usize::from(signal.number), Ordering::Relaxed);
    }

    /// Returns the signal that set the flag, or `None` while it is unset.
    #[must_use]
    pub fn requested(&self) -> Option<Signal> {
        match u8::try_from(self.number.load(Ordering::Relaxed)) {
            Ok(0) | Err(_) => None,
            Ok(number) => Some(Signal { number }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_that_is_set_names_its_signal_to_every_clone() {
        let flag = StopFlag::default();
        assert_eq!(flag.requested(), None);
        flag.clone().set(Signal { number: 15 });
        let signal = flag.requested().unwrap();
        assert_eq!((signal.name(), signal.exit_status()), ("SIGTERM", 143));
        flag.number().store(2, Ordering::Relaxed);
        assert_eq!(flag.requested(), Some(Signal { number: 2 }));
    }
}
