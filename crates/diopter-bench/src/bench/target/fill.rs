//! Allocates files and writes them once with direct I/O before measuring, so that rounds overwrite
//! existing blocks and none of them is in the page cache.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use diopter::internals::Prng;
use diopter::probe::size_text;
use diopter::{Error, File, IoBuf, OpenOptions};
use diopter_os::Errno;

use crate::bench::campaign::Trouble;

const PIECE_BYTES: u64 = 4 << 20;

/// Returns true once the user interrupted the run.
pub type Stop = Arc<dyn Fn() -> bool + Send + Sync>;

/// Creates a file of `bytes`: allocates it as a whole, then writes it.
pub fn create(path: &Path, bytes: u64, stop: &Stop) -> Result<(), Trouble> {
    let options = OpenOptions::new().read(true).write(true).create_new(true).clone();
    let file = options.open(path).map_err(|error| failure((path, bytes), &error))?;
    match file.allocate(0, bytes) {
        Err(error) if is_full(&error) => Err(failure((path, bytes), &error)),
        // File systems without preallocation get their blocks as they are written.
        _ => fill((path, &file), bytes, stop),
    }
}

/// Writes the first `bytes` of a file or device.
pub fn overwrite(path: &Path, bytes: u64, stop: &Stop) -> Result<(), Trouble> {
    let options = OpenOptions::new().read(true).write(true).striped(true).clone();
    let file = options.open(path).map_err(|error| failure((path, bytes), &error))?;
    fill((path, &file), bytes, stop)
}

fn fill((path, file): (&Path, &File), bytes: u64, stop: &Stop) -> Result<(), Trouble> {
    let length = usize::try_from(PIECE_BYTES).expect("four mebibytes");
    let mut memory = IoBuf::new(length)
        .map_err(|errno| Trouble::Run(format!("memory to fill {}: {errno}", path.display())))?;
    // Data that compresses or repeats would be cheaper than real data.
    Prng::new(bytes).fill(&mut memory);
    let mut at = 0;
    while at < bytes {
        if stop() {
            return Err(Trouble::Interrupted);
        }
        memory[..8].copy_from_slice(&at.to_le_bytes());
        let piece = usize::try_from(PIECE_BYTES.min(bytes - at)).expect("at most 4 MiB");
        let written = file.write_all_at(&memory[..piece], at);
        written.map_err(|error| failure((path, bytes), &error))?;
        at += PIECE_BYTES;
    }
    file.sync_all().map_err(|error| failure((path, bytes), &error))
}

/// Returns true if the space or the user's quota is exhausted.
fn is_full(error: &Error) -> bool {
    matches!(error.errno(), Errno::ENOSPC | Errno::EDQUOT)
}

/// Describes the failure; for a file that does not fit, how much it needs, has, and could have.
fn failure((path, bytes): (&Path, u64), error: &Error) -> Trouble {
    // A scratch file's path names a descriptor, which helps no reader.
    let named = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let shown = named.display();
    if !is_full(error) {
        return Trouble::Run(format!("fill {shown}: {error}"));
    }
    // A failure to read the free space is not worth an error while another one is reported.
    let got = fs::metadata(path).map_or(0, |found| found.blocks().saturating_mul(512));
    let free =
        rustix::fs::statvfs(path).map_or(0, |space| space.f_bavail.saturating_mul(space.f_frsize));
    let [needs, got, free] = [bytes, got, free].map(size_text);
    Trouble::Run(format!(
        "fill {shown}: {}: it needs {needs}, got {got} of it, and {free} are free there; free \
         space or raise the quota, write a smaller --size, or name another directory",
        error.errno()
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn never() -> Stop {
        Arc::new(|| false)
    }

    #[test]
    fn a_file_has_its_size_and_no_holes() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        let bytes = PIECE_BYTES + 5000;
        create(&path, bytes, &never()).unwrap();
        let found = path.metadata().unwrap();
        assert_eq!(found.len(), bytes);
        assert!(found.blocks() * 512 >= bytes, "{} blocks", found.blocks());
        assert!(std::fs::read(&path).unwrap()[..4096].iter().any(|byte| *byte != 0));
    }

    #[test]
    fn filling_ends_when_the_caller_asks_for_it() {
        let dir = tempfile::tempdir().unwrap();
        let stopped: Stop = Arc::new(|| true);
        let done = create(&dir.path().join("data"), 1 << 30, &stopped);
        assert_eq!(done, Err(Trouble::Interrupted));
    }

    #[test]
    fn a_file_that_is_there_is_not_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("data");
        std::fs::write(&path, b"mine").unwrap();
        assert!(matches!(create(&path, 4096, &never()), Err(Trouble::Run(_))));
        assert_eq!(std::fs::read(&path).unwrap(), b"mine");
    }
}
