//! Opens a file, writes at an odd offset, makes the bytes durable, and reads them back.
//!
//! `cargo run --example read_write -- FILE`; bytes 7 to 29 of FILE are overwritten.
//! Without FILE a temporary one is used.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map(Into::into);
    let path = path.unwrap_or_else(|| directory.path().join("data"));

    let file = diopter::File::options().read(true).write(true).create(true).open(&path)?;
    file.write_all_at(b"any offset, any length", 7)?;
    file.sync_data()?;

    let mut bytes = vec![0; 22];
    file.read_exact_at(&mut bytes, 7)?;
    println!("{}: {}", path.display(), String::from_utf8(bytes)?);
    Ok(())
}
