//! The requests of a cell, in a process that a signal or a time limit ends alone: this test binary
//! again, with the variables of [`Asked`]. It has no test.

use std::fs;
use std::future::Future;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::process::Command;

use diopter::{BackendKind, Engine, EngineOptions, File, FileRange, IoBuf, Request};
use diopter_core::stream::block_on;

/// The name of the test that runs them.
const TEST: &str = "requests_of_a_cell";

const VARIABLES: [&str; 4] = ["ODD_DOOR", "ODD_BACKEND", "ODD_SOURCE", "ODD_TARGET"];

/// Bytes of a request; not a multiple of a block.
const PIECE: usize = 70_001;

/// Returns the command that reads all of `source`, or writes its bytes to `target`, by `door`.
pub fn command(door: &str, backend: &str, source: &Path, target: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", TEST, "--nocapture", "--test-threads=1"]);
    let values = [door.as_ref(), backend.as_ref(), source.as_os_str(), target.as_os_str()];
    command.envs(VARIABLES.iter().zip(values)).env("RUST_BACKTRACE", "0");
    command
}

struct Asked {
    door: String,
    options: EngineOptions,
    source: PathBuf,
    target: PathBuf,
}

/// Does what the variables ask for. An error ends the process with status 1, as `dio` does.
pub fn run_if_asked() {
    let [door, backend, source, target] = VARIABLES.map(std::env::var_os);
    let (Some(door), Some(backend)) = (door, backend) else { return };
    let backend = match backend.to_str().expect("a name") {
        "uring" => BackendKind::Uring,
        "aio" => BackendKind::Aio,
        _ => BackendKind::Threads,
    };
    let asked = Asked {
        door: door.into_string().expect("a name"),
        options: EngineOptions { backend, ..EngineOptions::DEFAULT },
        source: source.expect("a name").into(),
        target: target.expect("a name").into(),
    };
    diopter::use_for_this_thread(asked.options);
    diopter::engine::use_for_futures(asked.options);
    if let Err(error) = asked.run() {
        eprintln!("{}: {error}", asked.door);
        std::process::exit(1);
    }
}

type Done = Result<(), Box<dyn std::error::Error>>;

impl Asked {
    fn run(&self) -> Done {
        match self.door.as_str() {
            "blocking" => self.read(Asked::blocking),
            "queue" => self.read(Asked::queue),
            "futures" => self.read(Asked::futures),
            "reader" => self.read(Asked::reader),
            "ranges" => self.read(Asked::ranges),
            "blocking-write" => self.blocking_write(),
            "queue-write" => self.queue_write(),
            "writer" => self.writer(),
            other => panic!("no door is called {other}"),
        }
    }

    /// Reads the file by one door, and writes what it has plainly to the target.
    fn read(&self, by: fn(&Asked, &File, usize) -> Result<Vec<u8>, Error>) -> Done {
        let file = File::open(&self.source)?;
        // More than the file has, whatever size it is said to have.
        let most = usize::try_from(fs::metadata(&self.target)?.len())?;
        fs::write(&self.target, by(self, &file, most)?)?;
        Ok(())
    }

    fn blocking(&self, file: &File, most: usize) -> Result<Vec<u8>, Error> {
        let mut all = vec![0; most];
        let mut at = 0;
        while at < most {
            let end = most.min(at + PIECE);
            let moved = file.read_at(&mut all[at..end], offset(at))?;
            let is_whole = moved == end - at;
            at += moved;
            if !is_whole {
                break;
            }
        }
        all.truncate(at);
        Ok(all)
    }

    fn queue(&self, file: &File, most: usize) -> Result<Vec<u8>, Error> {
        let engine = Engine::new(self.options)?;
        for at in (0..most).step_by(PIECE) {
            let memory = IoBuf::new(PIECE.min(most - at))?;
            engine.start(file, Request::read(offset(at), memory)).map_err(|it| it.error)?;
        }
        let mut pieces = std::collections::BTreeMap::new();
        while let Some(finished) = engine.wait(std::time::Duration::from_secs(60))? {
            let moved = usize::try_from(finished.result?.get())?;
            let memory = finished.memory.expect("it comes back");
            pieces.insert(finished.range.start(), memory[..moved].to_vec());
        }
        Ok(pieces.into_values().flatten().collect())
    }

    fn futures(&self, file: &File, most: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        for at in (0..most).step_by(PIECE) {
            let memory = IoBuf::new(PIECE.min(most - at))?;
            let mut read = file.request_async(Request::read(offset(at), memory));
            let finished = block_on(|cx| Pin::new(&mut read).poll(cx)).map_err(|it| it.error)?;
            let moved = usize::try_from(finished.result?.get())?;
            let memory = finished.memory.expect("it comes back");
            all.extend_from_slice(&memory[..moved]);
        }
        Ok(all)
    }

    fn reader(&self, file: &File, _most: usize) -> Result<Vec<u8>, Error> {
        let mut all = Vec::new();
        file.reader(0).read_to_end(&mut all)?;
        Ok(all)
    }

    fn ranges(&self, file: &File, most: usize) -> Result<Vec<u8>, Error> {
        let end = offset(most);
        let range = |start: u64| FileRange::new(start, end.min(start + 30_001));
        let ranges: Vec<FileRange> = (0..end).step_by(30_001).map(range).collect();
        let read = file.read_ranges(&ranges).into_iter();
        let pieces = read.collect::<Result<Vec<_>, _>>()?;
        Ok(pieces.iter().flat_map(|piece| piece.iter().copied()).collect())
    }

    fn blocking_write(&self) -> Done {
        let bytes = fs::read(&self.source)?;
        let file = File::options().read(true).write(true).create(true).open(&self.target)?;
        for (place, piece) in bytes.chunks(PIECE).enumerate() {
            file.write_all_at(piece, offset(place * PIECE))?;
        }
        Ok(file.sync_data()?)
    }

    fn queue_write(&self) -> Done {
        let bytes = fs::read(&self.source)?;
        let file = File::options().read(true).write(true).create(true).open(&self.target)?;
        let engine = Engine::new(self.options)?;
        for (place, piece) in bytes.chunks(PIECE).enumerate() {
            let mut memory = IoBuf::new(piece.len())?;
            memory.copy_from_slice(piece);
            let write = Request::write(offset(place * PIECE), memory);
            engine.start(&file, write).map_err(|it| it.error)?;
        }
        while let Some(finished) = engine.wait(std::time::Duration::from_secs(60))? {
            if finished.result?.get() < finished.range.length() {
                return Err("a short write without an error".into());
            }
        }
        Ok(file.sync_data()?)
    }

    fn writer(&self) -> Done {
        let bytes = fs::read(&self.source)?;
        let file = File::options().read(true).write(true).create(true).open(&self.target)?;
        let mut writer = file.writer(0);
        writer.write_all(&bytes)?;
        writer.sync()?;
        let (file, outcome) = writer.finish();
        file?;
        if outcome.is_all_done() { Ok(()) } else { Err("not all is done".into()) }
    }
}

type Error = Box<dyn std::error::Error>;

fn offset(at: usize) -> u64 {
    u64::try_from(at).expect("64-bit")
}
