//! Direct writes: a whole object, and the parts of an upload.

use std::io::Write;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use diopter::IoBuf;
use diopter::engine::{AsyncDriver, WriterOptions};
use futures_util::FutureExt;
use futures_util::stream::{self, StreamExt, TryStreamExt};
use object_store::{MultipartUpload, PutPayload, PutResult, Result, UploadPart};

use crate::blocking::{blocking, wait_for};
use crate::error;
use crate::staged::{Existing, Staged, e_tag};

/// Bytes of one write of a part.
const CHUNK_BYTES: u64 = 2 << 20;

/// Writes of a part in flight.
const CHUNKS_IN_FLIGHT: usize = 4;

/// Writes begin at multiples of this, except the first of a part.
const UNIT_BYTES: u64 = 4096;

const WRITE: &str = "Unable to copy data to file";

/// Writes an object. Blocks.
pub(crate) fn put(
    destination: PathBuf,
    payload: &PutPayload,
    existing: Existing,
    is_durable: bool,
) -> Result<PutResult> {
    let (staged, file) = Staged::create(destination, is_durable)?;
    // No other process knows the file yet: it may have its size before its bytes.
    let options = WriterOptions::new().size_hint(payload.content_length() as u64);
    let mut writer = file.writer_with(0, options);
    for bytes in payload.iter() {
        writer.write_all(bytes).map_err(|source| error::of_step(WRITE, source))?;
    }
    let (finished, _) = writer.finish();
    finished.map_err(|source| error::of_step(WRITE, source))?;
    publish(staged, file, existing, is_durable)
}

/// Gives a written file its name.
fn publish(
    staged: Staged,
    file: diopter::File,
    existing: Existing,
    is_durable: bool,
) -> Result<PutResult> {
    if is_durable {
        // All metadata: the time is part of the entity tag.
        file.sync_all().map_err(|source| error::of_step("Unable to sync data to disk", source))?;
    }
    let metadata = file.metadata();
    let metadata =
        metadata.map_err(|source| error::of_step("Unable to access metadata", source))?;
    // Some file systems in user space write when a file is closed.
    drop(file);
    staged.publish(existing)?;
    let e_tag = Some(e_tag(&metadata));
    Ok(PutResult { e_tag, version: None, extensions: Default::default() })
}

/// An upload in parts, each of which may be written while others are.
#[derive(Debug)]
pub(crate) struct Upload {
    /// Parts that are being written hold it for reading.
    file: Arc<RwLock<Option<diopter::File>>>,
    /// Absent after the end of the upload.
    staged: Option<Staged>,
    /// Offset of the next part.
    offset: u64,
    is_durable: bool,
}

impl Upload {
    /// Begins an upload. Blocks.
    pub fn create(destination: PathBuf, is_durable: bool) -> Result<Upload> {
        let (staged, file) = Staged::create(destination, is_durable)?;
        let file = Arc::new(RwLock::new(Some(file)));
        Ok(Upload { file, staged: Some(staged), offset: 0, is_durable })
    }
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let offset = self.offset;
        self.offset += data.content_length() as u64;
        let file = Arc::clone(&self.file);
        let write = move || {
            let file = file.read().unwrap_or_else(PoisonError::into_inner);
            write_part(file.as_ref().ok_or_else(error::aborted)?, offset, &data)
        };
        blocking(write).boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let staged = self.staged.take().ok_or_else(error::aborted)?;
        let (file, is_durable) = (Arc::clone(&self.file), self.is_durable);
        blocking(move || {
            let file = close(&file).ok_or_else(error::aborted)?;
            publish(staged, file, Existing::Replaced, is_durable)
        })
        .await
    }

    async fn abort(&mut self) -> Result<()> {
        let staged = self.staged.take().ok_or_else(error::aborted)?;
        let file = Arc::clone(&self.file);
        blocking(move || {
            drop(close(&file));
            staged.remove()
        })
        .await
    }
}

/// Waits for the parts that are being written, and takes the file.
fn close(file: &RwLock<Option<diopter::File>>) -> Option<diopter::File> {
    file.write().unwrap_or_else(PoisonError::into_inner).take()
}

fn write_part(file: &diopter::File, offset: u64, data: &PutPayload) -> Result<()> {
    let mut chunks =
        Chunks { offset, left: data.content_length() as u64, pieces: data.iter(), rest: &[] };
    let writes = std::iter::from_fn(|| chunks.next_chunk()).map(|(at, memory)| async move {
        let memory = memory?;
        let length = memory.len();
        let (written, _) = file.write_at_async(memory, at).on(AsyncDriver::Reaper).await;
        match written {
            Ok(moved) if moved < length => Err(rustix::io::Errno::NOSPC.into()),
            Ok(_) => Ok(()),
            Err(source) => Err(std::io::Error::from(source)),
        }
    });
    let written = stream::iter(writes).buffer_unordered(CHUNKS_IN_FLIGHT).try_collect::<()>();
    wait_for(written).map_err(|source: std::io::Error| error::of_step(WRITE, source))
}

/// The bytes of a part, in aligned memory.
struct Chunks<'a, I> {
    offset: u64,
    left: u64,
    pieces: I,
    rest: &'a [u8],
}

impl<'a, I: Iterator<Item = &'a bytes::Bytes>> Chunks<'a, I> {
    fn next_chunk(&mut self) -> Option<(u64, std::io::Result<IoBuf>)> {
        if self.left == 0 {
            return None;
        }
        let at = self.offset;
        let length = (at / UNIT_BYTES * UNIT_BYTES + CHUNK_BYTES - at).min(self.left);
        self.offset += length;
        self.left -= length;
        let memory = IoBuf::new(usize::try_from(length).expect("a chunk"));
        let filled = memory.map_err(|errno| std::io::Error::from_raw_os_error(errno.raw()));
        Some((at, filled.inspect_err(|_| self.left = 0).map(|memory| self.fill(memory))))
    }

    fn fill(&mut self, mut memory: IoBuf) -> IoBuf {
        let mut done = 0;
        while done < memory.len() {
            if self.rest.is_empty() {
                self.rest = self.pieces.next().expect("as many bytes as the length says");
                continue;
            }
            let some = self.rest.len().min(memory.len() - done);
            memory[done..done + some].copy_from_slice(&self.rest[..some]);
            self.rest = &self.rest[some..];
            done += some;
        }
        memory
    }
}
