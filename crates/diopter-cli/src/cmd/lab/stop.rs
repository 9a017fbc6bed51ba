//! SIGINT, SIGTERM and SIGHUP end the guests, then the command.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use diopter_copy::Signal;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::signals::Signals;

/// A request to stop.
pub struct Stop {
    signals: Signals,
    flag: Arc<AtomicBool>,
}

impl Stop {
    /// Installs the signal handlers.
    pub fn listen() -> io::Result<Stop> {
        let flag = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, Arc::clone(&flag))?;
        }
        let signals = Signals::listen().map_err(|errno| io::Error::other(errno.to_string()))?;
        Ok(Stop { signals, flag })
    }

    /// Returns a flag that is true after a signal.
    pub fn flag(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.flag)
    }

    /// Returns the signal, if there was one.
    pub fn arrived(&self) -> Option<Signal> {
        self.signals.arrived()
    }
}
