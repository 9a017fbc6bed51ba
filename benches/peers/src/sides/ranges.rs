//! Random ranges of many files, from a multi-thread runtime.

use std::fs;
use std::io::{self, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use diopter_core::prng::Prng;
use tokio::io::{AsyncReadExt, AsyncSeekExt};
use tokio::sync::Mutex;

use super::Side;
use super::multi_thread::on_multi_thread;
use crate::content::BLOCK;
use crate::draw::Tally;
use crate::gate::Gate;
use crate::job::{Content, Figures, Job, Variant};

pub const SIDES: &[Side] = &[
    super::side("ranges-futures", ours, "diopter's futures"),
    super::side("ranges-batch", batch, "diopter's RangeBatch, one call"),
    super::side(
        "ranges-object-store",
        object_store,
        "LocalFileSystem::get_ranges, one call a file",
    ),
    super::side("ranges-blocking-kept", kept, "spawn_blocking and pread, every range in memory"),
    super::side("ranges-blocking", blocking, "spawn_blocking and pread, page cache"),
    super::side("ranges-blocking-direct", direct, "the same past it, aligned by hand"),
    super::side("ranges-tokio-fs", tokio_fs, "tokio::fs: seek and read_exact, page cache"),
];

/// Name of file `number`.
pub fn name(number: usize) -> String {
    format!("{number:04}")
}

/// A range, the same for every side.
struct Range {
    file: usize,
    at: u64,
}

/// Ranges of a run.
pub const RUN: u64 = 16;

/// The most bytes between two ranges of a run.
pub const GAP_MAX: u64 = 16 << 10;

fn range(job: &Job, number: u64) -> Range {
    let size = job.size as u64;
    let mut random = Prng::new(if job.is_clustered { number / RUN } else { number });
    let file = usize::try_from(random.below(job.files as u64)).expect("few");
    if !job.is_clustered {
        return Range { file, at: random.below(job.file_bytes - size) };
    }
    let start = random.below(job.file_bytes - RUN * (size + GAP_MAX));
    let before: u64 = (0..number % RUN).map(|_| size + random.below(GAP_MAX)).sum();
    Range { file, at: start + before }
}

/// Checks the number of the first whole block in what was read.
fn check(job: &Job, memory: &[u8], at: u64) -> Result<(), String> {
    let number = at.div_ceil(BLOCK as u64);
    let start = usize::try_from(number * BLOCK as u64 - at).expect("less than a block");
    if job.content == Content::Same && memory[start..start + 8] != number.to_le_bytes() {
        return Err(format!("block {number} does not begin with its number"));
    }
    Ok(())
}

/// Opens all files, then runs `job.depth` tasks that take one range after the other. Warm: the
/// ranges were read once before.
fn measure<F, M, R>(
    job: &Job,
    open: impl Fn(PathBuf) -> io::Result<F> + Sync,
    memory: impl Fn() -> Result<M, String> + Sync,
    read: impl Fn(Arc<F>, M, u64, usize) -> R + Clone + Send + Sync + 'static,
) -> Result<Figures, String>
where
    F: Send + Sync + 'static,
    M: Send + AsRef<[u8]> + 'static,
    R: Future<Output = (io::Result<usize>, M)> + Send + 'static,
{
    let opened = std::sync::OnceLock::new();
    let mut figures = on_multi_thread(job, async |job, gate| {
        let open = |number| open(job.file.join(name(number))).map(Arc::new);
        let started = Instant::now();
        let files: io::Result<Vec<Arc<F>>> = (0..job.files).map(open).collect();
        let files = Arc::new(files.map_err(|error| error.to_string())?);
        opened.get_or_init(|| started.elapsed());
        if job.variant == Variant::Warm {
            pass(job, &files, &memory, read.clone()).await?;
        }
        gate.measure();
        pass(job, &files, &memory, read.clone()).await
    })?;
    figures.more["open_ms"] = opened.get().map(|time| time.as_secs_f64() * 1e3).into();
    Ok(figures)
}

async fn pass<F, M, R>(
    job: &Job,
    files: &Arc<Vec<Arc<F>>>,
    memory: impl Fn() -> Result<M, String>,
    read: impl Fn(Arc<F>, M, u64, usize) -> R + Clone + Send + Sync + 'static,
) -> Result<Tally, String>
where
    F: Send + Sync + 'static,
    M: Send + AsRef<[u8]> + 'static,
    R: Future<Output = (io::Result<usize>, M)> + Send + 'static,
{
    let next = Arc::new(AtomicU64::new(0));
    let mut tasks = Vec::new();
    for _ in 0..job.depth {
        let (job, files, next) = (job.clone(), Arc::clone(files), Arc::clone(&next));
        let (mut memory, read) = (memory()?, read.clone());
        tasks.push(tokio::spawn(async move {
            let mut tally = Tally::new(&job);
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= job.amount {
                    return Ok::<Tally, String>(tally);
                }
                let Range { file, at } = range(&job, number);
                let started = tally.started();
                let (moved, back) = read(Arc::clone(&files[file]), memory, at, job.size).await;
                memory = back;
                let moved = moved.map_err(|error| format!("file {file} at {at}: {error}"))?;
                if moved != job.size {
                    return Err(format!("file {file} at {at}: {moved} bytes"));
                }
                check(&job, memory.as_ref(), at)?;
                tally.count(started);
            }
        }));
    }
    let mut whole = Tally::new(job);
    for task in tasks {
        whole.add(&super::flat(task.await)?);
    }
    Ok(whole)
}

fn ours(job: &Job) -> Result<Figures, String> {
    let open = |path: PathBuf| diopter::File::open(path).map_err(io::Error::other);
    let read = async |file: Arc<diopter::File>, memory: Memory, at, _| {
        let (moved, memory) = file.read_at_async(memory.0, at).await;
        (moved.map_err(io::Error::other), Memory(memory))
    };
    let memory = || diopter::IoBuf::new(job.size).map(Memory).map_err(|errno| errno.to_string());
    measure(job, open, memory, read)
}

/// Aligned memory.
struct Memory(diopter::IoBuf);

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

fn blocking(job: &Job) -> Result<Figures, String> {
    let read = async |file: Arc<fs::File>, mut memory: Vec<u8>, at, _| {
        let work = move || (file.read_exact_at(&mut memory, at).map(|()| memory.len()), memory);
        tokio::task::spawn_blocking(work).await.expect("a read does not panic")
    };
    let memory = || Ok(vec![0; job.size]);
    measure(job, fs::File::open, memory, read)
}

/// Blocks that were read past the page cache, and the place of the range in them.
struct Around {
    memory: diopter::IoBuf,
    range: std::ops::Range<usize>,
}

impl AsRef<[u8]> for Around {
    fn as_ref(&self) -> &[u8] {
        &self.memory[self.range.clone()]
    }
}

fn direct(job: &Job) -> Result<Figures, String> {
    let open = |path: PathBuf| super::direct(&path).map_err(io::Error::other);
    let read = async |file: Arc<fs::File>, mut around: Around, at: u64, size: usize| {
        let work = move || {
            let start = at / BLOCK as u64 * BLOCK as u64;
            let skipped = usize::try_from(at - start).expect("less than a block");
            let whole = (skipped + size).next_multiple_of(BLOCK);
            around.range = skipped..skipped + size;
            let moved = file.read_at(&mut around.memory[..whole], start);
            (moved.map(|moved| moved.saturating_sub(skipped).min(size)), around)
        };
        tokio::task::spawn_blocking(work).await.expect("a read does not panic")
    };
    let memory = || {
        let whole = job.size.next_multiple_of(BLOCK) + BLOCK;
        let memory = diopter::IoBuf::new(whole).map_err(|errno| errno.to_string())?;
        Ok(Around { memory, range: 0..0 })
    };
    measure(job, open, memory, read)
}

fn tokio_fs(job: &Job) -> Result<Figures, String> {
    let open = |path| Ok(Mutex::new(tokio::fs::File::from_std(fs::File::open(path)?)));
    let read = async |file: Arc<Mutex<tokio::fs::File>>, mut memory: Vec<u8>, at, _| {
        let mut file = file.lock().await;
        let moved = match file.seek(SeekFrom::Start(at)).await {
            Ok(_) => file.read_exact(&mut memory).await,
            Err(error) => Err(error),
        };
        (moved, memory)
    };
    let memory = || Ok(vec![0; job.size]);
    measure(job, open, memory, read)
}

/// Opens all files, then has `read` read all ranges in one call. Warm: once before as well.
fn measure_calls<F, R>(
    job: &Job,
    open: impl Fn(&Job) -> Result<F, String> + Sync,
    read: impl Fn(Arc<F>, Job) -> R + Sync,
) -> Result<Figures, String>
where
    F: Send + Sync + 'static,
    R: Future<Output = Result<(), String>> + Send + 'static,
{
    on_multi_thread(job, async |job, gate: &Gate| {
        let files = Arc::new(open(job)?);
        let call = async || super::flat(tokio::spawn(read(Arc::clone(&files), job.clone())).await);
        if job.variant == Variant::Warm {
            call().await?;
        }
        gate.measure();
        call().await?;
        let mut tally = Tally::new(job);
        tally.ios = job.amount;
        tally.times = None;
        Ok(tally)
    })
}

fn batch(job: &Job) -> Result<Figures, String> {
    let open = |job: &Job| -> Result<Vec<diopter::File>, String> {
        let open = |number| diopter::File::open(job.file.join(name(number)));
        (0..job.files).map(open).collect::<Result<_, _>>().map_err(|error| error.to_string())
    };
    measure_calls(job, open, async |files: Arc<Vec<diopter::File>>, job: Job| {
        let mut batch = diopter::RangeBatch::new();
        for number in 0..job.amount {
            let Range { file, at } = range(&job, number);
            batch.add(&files[file], diopter::FileRange::new(at, at + job.size as u64));
        }
        for (number, read) in (0..).zip(batch.read_async().await) {
            let read = read.map_err(|error| error.to_string())?;
            if read.len() != job.size {
                return Err(format!("range {number}: {} bytes", read.len()));
            }
            check(&job, &read, range(&job, number).at)?;
        }
        Ok(())
    })
}

fn kept(job: &Job) -> Result<Figures, String> {
    let open = |job: &Job| -> Result<Vec<Arc<fs::File>>, String> {
        let open = |number| fs::File::open(job.file.join(name(number))).map(Arc::new);
        (0..job.files).map(open).collect::<Result<_, _>>().map_err(|error| error.to_string())
    };
    measure_calls(job, open, async |files: Arc<Vec<Arc<fs::File>>>, job: Job| {
        let next = Arc::new(AtomicU64::new(0));
        let tasks = (0..job.depth).map(|_| {
            let (job, files, next) = (job.clone(), Arc::clone(&files), Arc::clone(&next));
            tokio::spawn(async move {
                let mut all = Vec::new();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= job.amount {
                        return Ok(all);
                    }
                    let Range { file, at } = range(&job, number);
                    let (file, mut memory) = (Arc::clone(&files[file]), vec![0; job.size]);
                    let work = move || file.read_exact_at(&mut memory, at).map(|()| memory);
                    let read = tokio::task::spawn_blocking(work).await.expect("no panic");
                    let memory = read.map_err(|error| error.to_string())?;
                    check(&job, &memory, at)?;
                    all.push(memory);
                }
            })
        });
        let mut kept = Vec::new();
        for task in tasks.collect::<Vec<_>>() {
            kept.push(super::flat(task.await)?);
        }
        let count: usize = kept.iter().map(Vec::len).sum();
        if count as u64 == job.amount { Ok(()) } else { Err(format!("{count} ranges")) }
    })
}

fn object_store(job: &Job) -> Result<Figures, String> {
    use object_store::ObjectStore as _;
    use object_store::local::LocalFileSystem;
    use object_store::path::Path;
    let open = |job: &Job| LocalFileSystem::new_with_prefix(&job.file).map_err(|it| it.to_string());
    measure_calls(job, open, async |store: Arc<LocalFileSystem>, job: Job| {
        let mut of_files = vec![Vec::new(); job.files];
        for number in 0..job.amount {
            let Range { file, at } = range(&job, number);
            of_files[file].push(at..at + job.size as u64);
        }
        let read = of_files.iter().enumerate().map(|(number, ranges)| {
            let (store, path) = (Arc::clone(&store), Path::from(name(number)));
            async move { store.get_ranges(&path, ranges).await }
        });
        let read: Vec<Vec<bytes::Bytes>> =
            futures::future::try_join_all(read).await.map_err(|error| error.to_string())?;
        for (ranges, read) in of_files.iter().zip(read) {
            for (range, read) in ranges.iter().zip(read) {
                check(&job, &read, range.start)?;
            }
        }
        Ok(())
    })
}
