//! The subject of the oracle and the writers: a file of a row, a raw device, or a striped file; and
//! how its bytes are read without diopter.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use diopter::layouts::StripedFile;
use diopter::{BackendKind, EngineOptions, FileOffset, FileRange};
use diopter_core::stripe::Striping;
use diopter_layouts::layout::{CreateOptions, Layout, ObjectPlace};

use super::row::{self, Row};

/// Bytes that a file may grow to, if a round over its objects is not longer.
pub const SIZE_MAX: u64 = 4 << 20;

/// Bytes that a striped file may grow to.
const STRIPED_SIZE_MAX: u64 = 24 << 20;

/// One file, under one backend.
pub struct Subject {
    /// Short, for messages.
    pub name: String,
    pub backend: BackendKind,
    pub path: PathBuf,
    /// Where its bytes are: itself, or the objects.
    pub objects: Vec<PathBuf>,
    striping: Option<Striping>,
    /// Bytes that it may grow to, or has for ever.
    pub size_max: u64,
    pub has_fixed_size: bool,
    /// A device, larger than what is compared.
    pub is_raw: bool,
    /// True if nothing of it need be buffered.
    pub is_direct: bool,
}

impl Subject {
    /// The next file of a row.
    pub fn of(row: &Row) -> Subject {
        let path = row.path();
        let device_size = row.is_raw().then(|| {
            let device = row::both_ways().open(&path).unwrap();
            device.size().unwrap()
        });
        Subject {
            name: row.name(),
            backend: row.backend,
            objects: vec![path.clone()],
            path,
            striping: None,
            size_max: device_size.unwrap_or(SIZE_MAX).min(SIZE_MAX),
            has_fixed_size: row.is_raw(),
            is_raw: row.is_raw(),
            is_direct: row.is_direct(),
        }
    }

    /// A new striped file of a row, all objects in its directory.
    pub fn striped(row: &Row, stripe_size: u64, objects: usize) -> Subject {
        let path = row.path();
        let dir = path.parent().expect("it has one").to_owned();
        let places = vec![ObjectPlace::Dir(dir); objects];
        let options = CreateOptions { objects: places, stripe_size, ..CreateOptions::default() };
        let name = format!("{} {objects} x {stripe_size}", row.name());
        let made = Subject::create(&path, &options, row.backend, &name);
        Subject { is_direct: row.is_direct(), ..made }
    }

    /// A new striped file.
    pub fn create(
        path: &Path,
        options: &CreateOptions,
        backend: BackendKind,
        name: &str,
    ) -> Subject {
        drop(StripedFile::create(path, options).unwrap());
        let layout = Layout::open(path).unwrap();
        let manifest = layout.manifest();
        let striping = manifest.striping();
        let objects = manifest.objects().iter().map(|object| layout.object_path(object));
        let grows_to = (striping.width() * 5 / 2).clamp(SIZE_MAX, STRIPED_SIZE_MAX);
        Subject {
            name: name.to_owned(),
            backend,
            path: path.to_owned(),
            objects: objects.collect(),
            striping: Some(striping),
            size_max: manifest.size().unwrap_or(grows_to),
            has_fixed_size: manifest.size().is_some(),
            is_raw: false,
            is_direct: true,
        }
    }

    pub fn options(&self) -> EngineOptions {
        row::options(self.backend)
    }

    pub fn is_striped(&self) -> bool {
        self.striping.is_some()
    }

    /// Bytes of a stripe; 0 for any other file.
    pub fn stripe_size(&self) -> u64 {
        self.striping.map_or(0, Striping::stripe_size)
    }

    /// Its bytes from its open `objects` by plain calls, stripe by stripe; and it must end there.
    pub fn read_past_diopter(&self, objects: &[fs::File], size: u64) -> Vec<u8> {
        let mut bytes = vec![0; usize::try_from(size).unwrap()];
        let Some(striping) = self.striping else {
            objects[0].read_exact_at(&mut bytes, 0).unwrap();
            assert!(self.is_raw || objects[0].read_at(&mut [0], size).unwrap() == 0);
            return bytes;
        };
        for object in striping.objects() {
            let file = &objects[usize::from(object.0)];
            for run in striping.runs(object, FileRange::new(0, size)).ranges() {
                let (_, at) = striping.locate(FileOffset::new(run.start()));
                let [start, end] = [run.start(), run.end()].map(|at| usize::try_from(at).unwrap());
                read_or_zeros(file, &mut bytes[start..end], at.get());
            }
        }
        if !self.has_fixed_size {
            let sizes = objects.iter().map(|object| object.metadata().unwrap().len());
            let ends = striping.objects().zip(sizes).map(|(n, size)| striping.file_size(n, size));
            assert_eq!(ends.max(), Some(size), "{}: what the objects' sizes say", self.name);
        }
        bytes
    }

    /// [`Subject::read_past_diopter`] by the objects' names.
    pub fn content(&self, size: u64) -> Vec<u8> {
        let open = |path: &PathBuf| fs::File::open(path).unwrap();
        let objects: Vec<fs::File> = self.objects.iter().map(open).collect();
        self.read_past_diopter(&objects, size)
    }
}

/// Reads an object; bytes past its end are zeros.
fn read_or_zeros(object: &fs::File, bytes: &mut [u8], at: u64) {
    let mut done = 0;
    while done < bytes.len() {
        match object.read_at(&mut bytes[done..], at + done as u64).unwrap() {
            0 => return,
            more => done += more,
        }
    }
}
