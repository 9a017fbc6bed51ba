//! Four writes at the same time under any executor, then one flush for all of them.
//!
//! `cargo run --example futures -- FILE`; FILE is emptied first. Without FILE a
//! temporary one is used.

use std::error::Error;

use diopter::{File, IoBuf};
use futures::future::join_all;

const BLOCK: u64 = 4096;

fn main() -> Result<(), Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let path = std::env::args_os().nth(1).map(Into::into);
    let path = path.unwrap_or_else(|| directory.path().join("data"));
    let file = File::create(&path)?;

    futures::executor::block_on(async {
        let mut writes = Vec::new();
        for (at, letter) in (0..).zip(*b"abcd") {
            let mut block = IoBuf::new(usize::try_from(BLOCK)?)?;
            block.fill(letter);
            writes.push(file.write_at_async(block, at * BLOCK));
        }
        for (written, _block) in join_all(writes).await {
            written?;
        }
        file.sync_data_async().await?;
        Ok::<(), Box<dyn Error>>(())
    })?;
    println!("{}: {} bytes", path.display(), file.size()?);
    Ok(())
}
