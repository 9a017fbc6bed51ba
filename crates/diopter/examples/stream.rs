//! Writes lines to a file from front to back, makes them durable, and reports what became of them.
//!
//! `cargo run --example stream -- FILE`; FILE is created or overwritten.
//! Without FILE a temporary one is used.

use std::error::Error;
use std::io::Write;

use diopter::engine::WriterOptions;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map(Into::into);
    let path = path.unwrap_or_else(|| directory.path().join("lines"));

    let file = diopter::File::create(&path)?;
    // About as many bytes as will come: the file may have its size first.
    let mut writer = file.writer_with(0, WriterOptions::new().size_hint(2 << 20));
    for line in 0..100_000 {
        writeln!(writer, "line {line}")?;
    }
    writer.sync()?;
    let (file, outcome) = writer.finish();
    let bytes = file?.size()?;
    println!("{}: {bytes} bytes, all written: {}", path.display(), outcome.is_all_done());
    Ok(())
}
