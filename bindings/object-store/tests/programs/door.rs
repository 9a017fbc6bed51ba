//! The doors of the store as a program: `diopter-store-door WAY FROM TO` copies a file by one kind
//! of call. A way that puts reads FROM by plain calls, one that gets writes TO by plain calls.
//! `DIOPTER_BACKEND` names the backend. Ends with 2 and a message for an error.

use std::error::Error;
use std::io::Write;
use std::ops::Range;
use std::path::Path;
use std::process::ExitCode;

use diopter::engine::use_for_futures;
use diopter::{EngineOptions, use_for_this_thread};
use futures_executor::block_on;
use object_store::path::Path as Name;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use object_store_diopter::DiopterFileSystem;

/// Bytes of one range, and of one part. The last one is shorter, and not aligned.
const PIECE: usize = 256 << 10;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [way, from, to] = arguments.as_slice() else {
        eprintln!("usage: diopter-store-door WAY FROM TO");
        return ExitCode::from(2);
    };
    match block_on(copy(way, Path::new(from), Path::new(to))) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // Standard error may be what is refused.
            writeln!(std::io::stderr(), "{error}").unwrap_or(());
            ExitCode::from(2)
        }
    }
}

async fn copy(way: &str, from: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let backend = std::env::var("DIOPTER_BACKEND")?.parse()?;
    let options = EngineOptions { backend, ..EngineOptions::DEFAULT };
    use_for_this_thread(options);
    use_for_futures(options);
    let store = DiopterFileSystem::new().with_fsync(true);
    let (source, target) = (Name::from_absolute_path(from)?, Name::from_absolute_path(to)?);
    let bytes = match way {
        "get" => store.get(&source).await?.bytes().await?.to_vec(),
        "ranges" => {
            let size = usize::try_from(store.head(&source).await?.size)?;
            let ranges: Vec<_> = pieces(size).map(|it| it.start as u64..it.end as u64).collect();
            store.get_ranges(&source, &ranges).await?.concat()
        }
        _ => std::fs::read(from).map_err(|error| named(from, &error))?,
    };
    match way {
        "get" | "ranges" => std::fs::write(to, bytes).map_err(|error| named(to, &error))?,
        "put" => drop(store.put(&target, bytes.into()).await?),
        "create" => drop(store.put_opts(&target, bytes.into(), PutMode::Create.into()).await?),
        "upload" => {
            let mut upload = store.put_multipart(&target).await?;
            for range in pieces(bytes.len()) {
                upload.put_part(PutPayload::from(bytes[range].to_vec())).await?;
            }
            upload.complete().await?;
        }
        _ => return Err(format!("way {way}: not one of this program").into()),
    }
    Ok(())
}

fn pieces(length: usize) -> impl Iterator<Item = Range<usize>> {
    (0..length).step_by(PIECE).map(move |at| at..(at + PIECE).min(length))
}

fn named(path: &Path, error: &std::io::Error) -> Box<dyn Error> {
    format!("{}: {error}", path.display()).into()
}
