//! SIGINT, SIGTERM and SIGHUP set a flag that a command checks between two requests.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use diopter::Errno;
use diopter_copy::{Signal, StopFlag};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGXFSZ};

/// The signals that end a copy, each with its number as the flag holds it.
const ENDING: [(i32, u8); 3] = [(SIGINT, 2), (SIGTERM, 15), (SIGHUP, 1)];

/// The signals that arrived.
#[derive(Clone, Debug, Default)]
pub struct Signals {
    flag: StopFlag,
}

impl Signals {
    /// Starts to listen. A second signal ends the process at once: the device may hang.
    ///
    /// A signal that the parent had set to be ignored (nohup, a background job of sh) stays
    /// ignored.
    pub fn listen() -> Result<Signals, Errno> {
        let signals = Signals::default();
        let ignored =
            ignored_mask(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let failed = |error: std::io::Error| {
            error.raw_os_error().filter(|number| *number > 0).map_or(Errno::EINVAL, Errno::from_raw)
        };
        for (signal, number) in ENDING {
            if ignored & (1 << (number - 1)) != 0 {
                continue;
            }
            let is_second = Arc::new(AtomicBool::new(false));
            let status = 128 + signal;
            // The order matters: the first signal finds the flag down, and the second finds it up.
            signal_hook::flag::register_conditional_shutdown(signal, status, is_second.clone())
                .map_err(failed)?;
            signal_hook::flag::register(signal, is_second).map_err(failed)?;
            let flag = signals.flag.number();
            signal_hook::flag::register_usize(signal, flag, usize::from(number)).map_err(failed)?;
        }
        // Past `ulimit -f` the kernel kills the process unless the signal is caught; caught, the
        // write fails with EFBIG and the temporary is removed.
        signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(failed)?;
        Ok(signals)
    }

    /// Returns the signal that arrived, if one did.
    pub fn arrived(&self) -> Option<Signal> {
        self.flag.requested()
    }

    /// Returns the flag that a signal sets.
    pub fn flag(&self) -> &StopFlag {
        &self.flag
    }
}

/// The mask of `SigIgn` in /proc/self/status: bit 0 is signal 1.
fn ignored_mask(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_status() {
        assert_eq!(ignored_mask("Name:\tdio\nSigIgn:\t0000000000000003\n"), 3);
        assert_eq!(ignored_mask("nothing of the kind"), 0);
    }

    #[test]
    fn a_signal_ends_with_128_and_its_number() {
        for (signal, number) in ENDING {
            assert_eq!(signal, i32::from(number));
            assert_eq!(i32::from(Signal { number }.exit_status()), 128 + signal);
        }
    }
}
