//! Copies a file by direct I/O, reads the copy back from the device, and prints the report.
//!
//! `cargo run -p diopter-copy --example copy_file -- SOURCE TARGET`; TARGET is replaced. Without
//! arguments, a temporary file is copied.

use std::error::Error;
use std::path::{Path, PathBuf};

use diopter_copy::{Notice, Observer, Options, Pass, StopFlag};

/// Prints each pass and each failure.
struct Printer;

impl Observer for Printer {
    fn begins(&mut self, pass: Pass, path: &Path, bytes: u64) {
        println!("{pass:?} {}: {bytes} bytes", path.display());
    }

    fn notice(&mut self, notice: Notice<'_>) {
        eprintln!("{notice}");
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let dir = tempfile::tempdir()?;
    let mut arguments = std::env::args_os().skip(1).map(PathBuf::from);
    let (source, target) = match (arguments.next(), arguments.next()) {
        (Some(source), Some(target)) => (source, target),
        _ => {
            let source = dir.path().join("source");
            std::fs::write(&source, vec![7; 1 << 20])?;
            (source, dir.path().join("target"))
        }
    };
    let options = Options { verify: true, ..Options::new([source], &target) };
    let outcome = diopter_copy::copy(&options, &StopFlag::default(), &mut Printer);
    let report = outcome.report;
    println!("{} bytes, {} of them written direct", report.bytes, report.route.write.direct);
    if report.exit_status != 0 {
        return Err("the copy failed".into());
    }
    Ok(())
}
