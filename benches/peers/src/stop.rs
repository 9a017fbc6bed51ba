//! Progress on a terminal; and the signals that end a program, noticed between two rounds, so that
//! every owner of a device, a mount or a directory removes it.

use std::io::{IsTerminal, Write, stderr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static ASKED: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// From now on the signals that end a program only set a flag.
pub fn listen() -> Result<(), String> {
    let asked = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&asked))
            .map_err(|error| format!("signal {signal} can't be caught: {error}"))?;
    }
    ASKED.set(asked).map_err(|_| "listened twice".to_owned())
}

pub fn is_asked() -> bool {
    ASKED.get().is_some_and(|asked| asked.load(Ordering::Relaxed))
}

pub fn check() -> Result<(), String> {
    if is_asked() { Err("stopped by a signal".to_owned()) } else { Ok(()) }
}

/// Shows what is under way to a person who watches.
pub fn progress(what: &str) {
    if stderr().is_terminal() {
        // Without standard error there is nothing to report this error to.
        write!(stderr(), "\r\x1b[K{what}").unwrap_or(());
    }
}
