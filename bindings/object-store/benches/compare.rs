//! The store next to `LocalFileSystem`: many small ranges of one file, and a large object that is
//! written. Each measurement is a separate process, and the sides take turns.
//!
//! `cargo bench --bench compare -- [--rounds N] [--file-mib N] [--put-mib N] [DIRECTORY]`

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use bytes::Bytes;
use object_store::buffered::BufWriter;
use object_store::local::LocalFileSystem;
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt, PutPayload};
use object_store_diopter::{DiopterFileSystem, Route};
use rustix::fs::{Advice, fadvise};
use tokio::io::AsyncWriteExt;

const RANGES: u64 = 20_000;
const RANGE_BYTES: u64 = 8 << 10;
const BLOCK: usize = 4096;
const SIDES: [&str; 3] = ["hybrid", "direct", "local"];

/// The rows of the table, with the number of calls in one process.
const ROWS: [(&str, usize); 6] =
    [("cold", 3), ("cached", 2), ("put", 1), ("put-fsync", 1), ("upload", 1), ("upload-fsync", 1)];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|it| it != "--bench").collect();
    if let [first, side, row, directory, mib] = &arguments[..]
        && first == "--child"
    {
        return child(side, row, Path::new(directory), mib.parse().expect("a number"));
    }
    let option = |name: &str, default: u64| -> u64 {
        let at = arguments.iter().position(|it| it == name);
        at.map_or(default, |at| arguments[at + 1].parse().expect("a number"))
    };
    let (rounds, file_mib) = (option("--rounds", 3), option("--file-mib", 4096));
    let put_mib = option("--put-mib", 1024);
    let last = arguments.last().filter(|it| it.parse::<u64>().is_err());
    let parent = last.map_or_else(std::env::temp_dir, PathBuf::from);
    let directory = tempfile::tempdir_in(parent).expect("a directory");
    let file = directory.path().join("data");
    make(&file, file_mib);
    let mut all = vec![Vec::new(); ROWS.len() * SIDES.len()];
    for _ in 0..rounds {
        for (row, (name, _)) in ROWS.iter().enumerate() {
            for (side, label) in SIDES.iter().enumerate() {
                prepare(&file, name);
                let mib = if row < 2 { file_mib } else { put_mib };
                all[row * SIDES.len() + side].push(measure(label, name, directory.path(), mib));
            }
        }
    }
    print(&all);
}

/// Makes a file whose blocks begin with their numbers.
fn make(path: &Path, mib: u64) {
    let mut file = File::create(path).expect("a file");
    let mut block = vec![7; 1 << 20];
    for number in 0..mib {
        for (at, bytes) in (0..).zip(block.chunks_mut(BLOCK)) {
            bytes[..8].copy_from_slice(&(number * 256 + at).to_le_bytes());
        }
        file.write_all(&block).expect("space for it");
    }
    file.sync_all().expect("durable");
}

/// Takes the file out of the page cache, or reads all of it into it.
fn prepare(path: &Path, row: &str) {
    let file = File::open(path).expect("the file");
    if row == "cached" {
        std::io::copy(&mut &file, &mut std::io::sink()).expect("read");
    } else {
        fadvise(&file, 0, None, Advice::DontNeed).expect("advice");
    }
}

/// Runs a child, and returns the seconds of each of its calls.
fn measure(side: &str, row: &str, directory: &Path, mib: u64) -> Vec<f64> {
    let program = std::env::current_exe().expect("this program");
    let mut child = Command::new(program);
    child.args(["--child", side, row]).arg(directory).arg(mib.to_string());
    let output = child.output().expect("a child");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).expect("figures");
    text.split_whitespace().map(|figure| figure.parse().expect("seconds")).collect()
}

fn print(all: &[Vec<Vec<f64>>]) {
    println!("seconds, medians; hybrid | direct | LocalFileSystem");
    for (row, (name, calls)) in ROWS.iter().enumerate() {
        for call in 0..*calls {
            let median = |side: usize| {
                let runs = &all[row * SIDES.len() + side];
                let mut seconds: Vec<f64> = runs.iter().map(|run| run[call]).collect();
                seconds.sort_by(f64::total_cmp);
                seconds[seconds.len() / 2]
            };
            let [one, two, three] = [median(0), median(1), median(2)];
            println!("{name:<12} call {}: {one:>8.3} | {two:>8.3} | {three:>8.3}", call + 1);
        }
    }
}

fn child(side: &str, row: &str, directory: &Path, mib: u64) {
    let is_durable = row.ends_with("-fsync");
    let ours = || DiopterFileSystem::new_with_prefix(directory).expect("a directory");
    let local = || LocalFileSystem::new_with_prefix(directory).expect("a directory");
    let store: Arc<dyn ObjectStore> = match side {
        "hybrid" => Arc::new(ours().with_fsync(is_durable)),
        "direct" => Arc::new(ours().with_route(Route::Direct).with_fsync(is_durable)),
        _ => Arc::new(local().with_fsync(is_durable)),
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(2).enable_all().build().expect("a runtime");
    let calls = ROWS.iter().find(|(name, _)| *name == row).expect("a row").1;
    for _ in 0..calls {
        let store = Arc::clone(&store);
        let work = async move {
            match row {
                "cold" | "cached" => read(&*store, mib << 20).await,
                "put" | "put-fsync" => put(&*store, mib).await,
                _ => upload(store, mib).await,
            }
        };
        println!("{}", runtime.block_on(work));
    }
}

async fn read(store: &dyn ObjectStore, file_bytes: u64) -> f64 {
    let mut state = 1_u64;
    let mut random = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 20) % (file_bytes - RANGE_BYTES)
    };
    let range = |start| start..start + RANGE_BYTES;
    let ranges: Vec<Range<u64>> = (0..RANGES).map(|_| range(random())).collect();
    let started = Instant::now();
    let read = store.get_ranges(&Name::from("data"), &ranges).await.expect("ranges");
    let seconds = started.elapsed().as_secs_f64();
    for (range, bytes) in ranges.iter().zip(read) {
        let number = range.start.div_ceil(BLOCK as u64);
        let at = usize::try_from(number * BLOCK as u64 - range.start).expect("small");
        assert_eq!(bytes[at..at + 8], number.to_le_bytes());
    }
    seconds
}

async fn put(store: &dyn ObjectStore, mib: u64) -> f64 {
    let piece = Bytes::from(vec![7; 16 << 20]);
    let payload: PutPayload = (0..mib / 16).map(|_| piece.clone()).collect();
    let started = Instant::now();
    store.put(&Name::from("new"), payload).await.expect("an object");
    finish(store, started).await
}

async fn upload(store: Arc<dyn ObjectStore>, mib: u64) -> f64 {
    let piece = vec![7; 1 << 20];
    let started = Instant::now();
    let mut writer = BufWriter::new(Arc::clone(&store), Name::from("new"));
    for _ in 0..mib {
        writer.write_all(&piece).await.expect("a part");
    }
    writer.shutdown().await.expect("an object");
    finish(&*store, started).await
}

async fn finish(store: &dyn ObjectStore, started: Instant) -> f64 {
    let seconds = started.elapsed().as_secs_f64();
    store.delete(&Name::from("new")).await.expect("deleted");
    // What one side leaves to the kernel is not written during the next.
    rustix::fs::sync();
    seconds
}

const _: () = assert!(RANGE_BYTES >= 2 * BLOCK as u64, "a range has a whole block");
