//! The doors of the library in Rust as a program: `diopter-door DOOR FROM TO` copies a file by one
//! kind of call. A door that writes reads FROM by plain calls, one that reads writes TO by plain
//! calls. `DIOPTER_BACKEND` names the backend. Ends with 2 and a message for an error.

use std::error::Error;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use diopter::engine::WriterOptions;
use diopter::{
    BackendKind, Engine, EngineOptions, File, FileRange, IoBuf, Request, use_for_this_thread,
};
use futures::executor::block_on;
use futures::future::try_join_all;

type Outcome = Result<(), Box<dyn Error>>;

/// Bytes of one request. The last one is shorter, and not aligned.
const PIECE: usize = 256 << 10;

/// No request of a test takes this long.
const PATIENCE: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [door, from, to] = arguments.as_slice() else {
        eprintln!("usage: diopter-door DOOR FROM TO");
        return ExitCode::from(2);
    };
    match copy(door, Path::new(from), Path::new(to)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be what is refused.
            writeln!(std::io::stderr(), "{error}").unwrap_or(());
            ExitCode::from(2)
        }
    }
}

fn copy(door: &str, from: &Path, to: &Path) -> Outcome {
    use_for_this_thread(EngineOptions { backend: backend()?, ..EngineOptions::DEFAULT });
    let Some((kind, "write")) = door.split_once('-') else {
        let bytes = match door {
            "calls-read" => by_calls(from)?,
            "queue-read" => by_queue(from)?,
            "futures-read" => by_futures(from)?,
            "ranges-read" => by_ranges(from)?,
            "reader-read" => by_reader(from)?,
            _ => return Err(format!("door {door}: not one of this program").into()),
        };
        return std::fs::write(to, bytes).map_err(|error| named(to, &error));
    };
    let bytes = std::fs::read(from).map_err(|error| named(from, &error))?;
    let file = File::options().read(true).write(true).create(true).truncate(true).open(to)?;
    match kind {
        "calls" => write_by_calls(&file, &bytes)?,
        "queue" => write_by_queue(&file, &bytes)?,
        "futures" => write_by_futures(&file, &bytes)?,
        "ranges" => write_by_ranges(&file, &bytes)?,
        "writer" => return write_by_writer(file, &bytes, WriterOptions::new()),
        // Far more than will come, and more than there is space for.
        "hinted" => {
            let size = u64::try_from(bytes.len())?;
            return write_by_writer(file, &bytes, WriterOptions::new().size_hint(size * 16));
        }
        "reserved" => {
            let size = u64::try_from(bytes.len())?;
            return write_by_writer(file, &bytes, WriterOptions::new().preallocate(size));
        }
        _ => return Err(format!("door {door}: not one of this program").into()),
    }
    Ok(file.close()?)
}

fn named(path: &Path, error: &std::io::Error) -> Box<dyn Error> {
    format!("{}: {error}", path.display()).into()
}

fn backend() -> Result<BackendKind, String> {
    let name = std::env::var("DIOPTER_BACKEND").unwrap_or_default();
    let kinds = [BackendKind::Uring, BackendKind::Aio, BackendKind::Threads];
    match name.as_str() {
        "" | "auto" => Ok(BackendKind::Auto),
        _ => kinds
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("DIOPTER_BACKEND: invalid backend `{name}`")),
    }
}

/// The pieces of `length` bytes, with their offsets.
fn pieces(length: usize) -> impl Iterator<Item = (u64, std::ops::Range<usize>)> {
    (0..length).step_by(PIECE).map(move |at| (at as u64, at..(at + PIECE).min(length)))
}

fn memory_of(bytes: &[u8]) -> Result<IoBuf, Box<dyn Error>> {
    let mut memory = IoBuf::new(bytes.len())?;
    memory.copy_from_slice(bytes);
    Ok(memory)
}

fn size_of(file: &File) -> Result<usize, Box<dyn Error>> {
    Ok(usize::try_from(file.size()?)?)
}

fn write_by_calls(file: &File, bytes: &[u8]) -> Outcome {
    for (at, range) in pieces(bytes.len()) {
        file.write_all_at(&bytes[range], at)?;
    }
    Ok(file.sync_data()?)
}

fn by_calls(from: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let file = File::open(from)?;
    let mut bytes = vec![0; size_of(&file)?];
    for (at, range) in pieces(bytes.len()) {
        file.read_exact_at(&mut bytes[range], at)?;
    }
    Ok(bytes)
}

/// Starts all requests, and waits for each result.
fn by_engine(
    file: &File,
    requests: Vec<(std::ops::Range<usize>, Request)>,
    mut take: impl FnMut(usize, IoBuf) -> Outcome,
) -> Outcome {
    let engine = Engine::new(EngineOptions { backend: backend()?, ..EngineOptions::DEFAULT })?;
    let mut started = Vec::new();
    for (range, request) in requests {
        let id = engine.start(file, request).map_err(|refused| refused.error)?;
        started.push((id, range));
    }
    for _ in 0..started.len() {
        let finished = engine.wait(PATIENCE)?.ok_or("no result in a minute")?;
        let one = started.iter().find(|one| one.0 == finished.id).ok_or("a foreign result")?;
        let (result, memory) = finished.into_parts::<IoBuf>();
        let (moved, range) = (usize::try_from(result?.get())?, &one.1);
        if moved != range.len() {
            return Err(short(range.start as u64, moved, range.len()));
        }
        take(range.start, memory.ok_or("the memory is gone")?)?;
    }
    Ok(())
}

fn write_by_queue(file: &File, bytes: &[u8]) -> Outcome {
    let mut requests = Vec::new();
    for (at, range) in pieces(bytes.len()) {
        requests.push((range.clone(), Request::write(at, memory_of(&bytes[range])?)));
    }
    by_engine(file, requests, |_, _| Ok(()))?;
    Ok(file.sync_data()?)
}

fn by_queue(from: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let file = File::open(from)?;
    let mut bytes = vec![0; size_of(&file)?];
    let mut requests = Vec::new();
    for (at, range) in pieces(bytes.len()) {
        requests.push((range.clone(), Request::read(at, IoBuf::new(range.len())?)));
    }
    by_engine(&file, requests, |at, memory| {
        bytes[at..at + memory.len()].copy_from_slice(&memory);
        Ok(())
    })?;
    Ok(bytes)
}

fn write_by_futures(file: &File, bytes: &[u8]) -> Outcome {
    block_on(async {
        let mut writes = Vec::new();
        for (at, range) in pieces(bytes.len()) {
            let length = range.len();
            let write = file.write_at_async(memory_of(&bytes[range])?, at);
            writes.push(async move {
                let (written, _) = write.await;
                let written = written?;
                let whole = written == length;
                if whole { Ok(()) } else { Err(short(at, written, length)) }
            });
        }
        try_join_all(writes).await?;
        Ok(file.sync_data_async().await?)
    })
}

fn by_futures(from: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let file = File::open(from)?;
    let mut bytes = Vec::new();
    block_on(async {
        let mut reads = Vec::new();
        for (at, range) in pieces(size_of(&file)?) {
            let length = range.len();
            let read = file.read_at_async(IoBuf::new(length)?, at);
            reads.push(async move {
                let (read, memory) = read.await;
                let read = read?;
                if read == length { Ok(memory) } else { Err(short(at, read, length)) }
            });
        }
        for memory in try_join_all(reads).await? {
            bytes.extend_from_slice(&memory);
        }
        Ok(bytes)
    })
}

/// Names its bytes as an error of the library does.
fn short(at: u64, moved: usize, length: usize) -> Box<dyn Error> {
    format!("bytes [{at}, {}): {moved} were moved", at + length as u64).into()
}

fn write_by_ranges(file: &File, bytes: &[u8]) -> Outcome {
    let ranges: Vec<(u64, &[u8])> =
        pieces(bytes.len()).map(|(at, range)| (at, &bytes[range])).collect();
    for written in file.write_ranges(&ranges) {
        written?;
    }
    Ok(file.sync_data()?)
}

fn by_ranges(from: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let file = File::open(from)?;
    let mut bytes = Vec::new();
    let ranges: Vec<FileRange> = pieces(size_of(&file)?)
        .map(|(at, range)| FileRange::new(at, at + range.len() as u64))
        .collect();
    for (range, found) in ranges.iter().zip(file.read_ranges(&ranges)) {
        let found = found?;
        if found.len() as u64 != range.length() {
            return Err(format!("{range:?}: {} bytes", found.len()).into());
        }
        bytes.extend_from_slice(&found);
    }
    Ok(bytes)
}

fn write_by_writer(file: File, bytes: &[u8], options: WriterOptions) -> Outcome {
    let mut writer = file.writer_with(0, options);
    for (_, range) in pieces(bytes.len()) {
        writer.write_all(&bytes[range])?;
    }
    writer.sync()?;
    let (file, outcome) = writer.finish();
    if !outcome.is_all_done() {
        return Err(format!("the stream is not all written: {outcome:?}").into());
    }
    Ok(file?.close()?)
}

fn by_reader(from: &Path) -> Result<Vec<u8>, Box<dyn Error>> {
    let file = File::open(from)?;
    let size = size_of(&file)?;
    let mut bytes = Vec::new();
    file.reader(0).read_to_end(&mut bytes)?;
    if bytes.len() != size {
        return Err(format!("{} of {size} bytes were read", bytes.len()).into());
    }
    Ok(bytes)
}
