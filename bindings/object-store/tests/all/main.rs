//! The store next to `LocalFileSystem`, on the same directory.

mod integration;
mod names;
mod power;
mod ranges;
mod uploads;
mod writes;

use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store_diopter::{DiopterFileSystem, Route};
use tempfile::TempDir;

/// Each route, with a name, on one directory.
fn routes(directory: &TempDir) -> [(&'static str, DiopterFileSystem); 4] {
    let new = || DiopterFileSystem::new_with_prefix(directory.path()).unwrap();
    [
        ("hybrid", new()),
        ("hybrid, nothing is small", new().with_small_bytes_max(0)),
        ("direct", new().with_route(Route::Direct)),
        ("cached", new().with_route(Route::Cached)),
    ]
}

fn local(directory: &TempDir) -> LocalFileSystem {
    LocalFileSystem::new_with_prefix(directory.path()).unwrap()
}

/// The byte at an offset. No period is a multiple of a block.
fn byte(at: u64) -> u8 {
    u8::try_from((at * 31 + at / 4093) % 251).unwrap()
}

fn bytes(length: u64) -> Vec<u8> {
    (0..length).map(byte).collect()
}

/// The names in a directory, those of staged files included.
fn names(directory: &TempDir) -> Vec<String> {
    let entries = std::fs::read_dir(directory.path()).unwrap();
    let name = |entry: std::io::Result<std::fs::DirEntry>| entry.unwrap().file_name();
    let mut names: Vec<String> = entries.map(|entry| name(entry).into_string().unwrap()).collect();
    names.sort();
    names
}

/// The text of an error, without the name of the store.
fn text(error: &object_store::Error) -> String {
    let text = error.to_string();
    for store in ["LocalFileSystem", "DiopterFileSystem"] {
        if let Some(rest) = text.strip_prefix(&format!("Generic {store} error: ")) {
            return format!("generic: {rest}");
        }
    }
    text
}

fn object(name: &str) -> Path {
    Path::parse(name).unwrap()
}
