//! Reads a whole file with up to 32 requests of 1 MiB in flight, and counts its zero bytes.
//!
//! `cargo run --example many_in_flight -- FILE`; without FILE a temporary one is used.

use std::error::Error;
use std::time::Duration;

use diopter::{Engine, EngineOptions, File, IoBuf, Request};

const BLOCK: usize = 1 << 20;
const DEPTH: u64 = 32;

fn main() -> Result<(), Box<dyn Error>> {
    let temporary = tempfile::NamedTempFile::new()?;
    let path = match std::env::args_os().nth(1) {
        Some(path) => path.into(),
        None => {
            temporary.as_file().set_len(64 * BLOCK as u64)?;
            temporary.path().to_owned()
        }
    };

    let file = File::open(&path)?;
    let blocks = file.size()?.div_ceil(BLOCK as u64);
    let engine = Engine::new(EngineOptions::default())?;
    let read = |block: u64, memory: IoBuf| {
        let request = Request::read(block * BLOCK as u64, memory);
        engine.start(&file, request).map_err(|refused| refused.error)
    };

    let mut next = 0;
    while next < blocks.min(DEPTH) {
        read(next, IoBuf::new(BLOCK)?)?;
        next += 1;
    }
    let (mut zeros, mut finished_blocks, mut done) = (0, 0, Vec::new());
    while engine.wait_many(Duration::from_secs(60), &mut done)? > 0 {
        for finished in done.drain(..) {
            finished_blocks += 1;
            let (result, memory) = finished.into_parts::<IoBuf>();
            let length = usize::try_from(result?.get())?;
            let memory = memory.expect("a read gives its memory back");
            zeros += memory[..length].iter().filter(|byte| **byte == 0).count();
            if next < blocks {
                // The memory of a finished request serves the next one.
                read(next, memory)?;
                next += 1;
            }
        }
    }
    if finished_blocks < blocks {
        return Err(format!("{} of {blocks} blocks were read in time", finished_blocks).into());
    }
    println!("{}: {zeros} zero bytes in {blocks} blocks", path.display());
    Ok(())
}
