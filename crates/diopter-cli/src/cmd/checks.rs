//! The frame of the commands that only read: `dio sum` and `dio verify`.

use std::io::IsTerminal;

use diopter::BackendKind;
use diopter_copy::{CheckOptions, Signal};

use super::progress::Progress;
use crate::args::{BytesProgress, ReadingArgs};
use crate::log;
use crate::output::{DIFFERENT, DONE, TROUBLE};
use crate::signals::Signals;

/// The signal that the kernel would have sent: standard output takes no more.
pub const OUTPUT_LOST: Signal = Signal { number: 13 };

/// Listens for signals, and makes the bar. Returns the exit status if that fails. `prints`: results
/// are printed line by line, which on a terminal would overwrite the bar.
pub fn start(
    command: &'static str,
    args: &ReadingArgs,
    prints: bool,
) -> Result<(Signals, Progress), u8> {
    diopter_copy::raise_open_files_limit();
    let signals = Signals::listen().map_err(|errno| {
        log::fail(command, &format!("cannot listen for signals: {errno}"));
        TROUBLE
    })?;
    let is_in_the_way = prints && std::io::stdout().is_terminal();
    let when = if is_in_the_way { BytesProgress::Never } else { args.progress };
    Ok((signals, Progress::new(command, when)))
}

/// Returns the options of the reads.
pub fn options(args: &ReadingArgs, backend: BackendKind, bytes_max: Option<u64>) -> CheckOptions {
    let (bs, iodepth) = (args.bs, args.iodepth.fixed());
    CheckOptions { bs, iodepth, backend, bytes_max, incomplete: args.incomplete, metadata: false }
}

/// Returns the exit status, and reports the signal that ended the command.
pub fn status(command: &str, signal: Option<Signal>, failures: u64, differing: u64) -> u8 {
    match signal {
        Some(signal) => {
            log::fail(command, &format!("ended by {}", signal.name()));
            signal.exit_status()
        }
        None if failures > 0 => TROUBLE,
        None if differing > 0 => DIFFERENT,
        None => DONE,
    }
}
