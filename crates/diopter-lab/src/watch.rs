//! The caller that waits for the lab: receives its progress, and may stop it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::error::LabError;

/// A step of the lab.
#[derive(Clone, Debug, PartialEq)]
pub enum Progress {
    /// Another run changes the cache; this one goes on when it is ready.
    Waiting,
    /// The lists of packages are fetched; percent.
    Updating(f64),
    /// Packages are fetched: what for, and percent.
    Downloading(String, f64),
    /// Packages become a kernel, or the guest's programs.
    Unpacking(String),
    /// A kernel is booted.
    Booting(String),
    /// Something that is worth knowing and stops nothing.
    Note(String),
}

/// Hears of progress, and ends the work once its flag is up.
#[derive(Clone)]
pub struct Watch {
    report: Arc<dyn Fn(Progress) + Send + Sync>,
    stop: Arc<AtomicBool>,
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("stop", &self.stop).finish_non_exhaustive()
    }
}

impl Default for Watch {
    fn default() -> Watch {
        Watch::new(|_| (), Arc::default())
    }
}

impl Watch {
    /// Reports to `report`, until `stop` is true.
    pub fn new(report: impl Fn(Progress) + Send + Sync + 'static, stop: Arc<AtomicBool>) -> Watch {
        Watch { report: Arc::new(report), stop }
    }

    /// Reports the progress.
    pub fn report(&self, progress: Progress) {
        (self.report)(progress);
    }

    /// Returns an error if the caller asked to stop.
    ///
    /// # Errors
    /// [`LabError::Stopped`].
    pub fn check(&self) -> Result<(), LabError> {
        if self.stop.load(Ordering::Relaxed) { Err(LabError::Stopped) } else { Ok(()) }
    }

    /// Waits a moment before something is tried again.
    pub(super) fn pause(&self) -> Result<(), LabError> {
        const PAUSE: Duration = Duration::from_millis(100);
        let pause = rustix::event::Timespec::try_from(PAUSE).expect("a tenth of a second fits");
        match rustix::event::poll(&mut [], Some(&pause)) {
            // A signal may have put the flag up.
            Ok(_) | Err(_) => self.check(),
        }
    }
}
