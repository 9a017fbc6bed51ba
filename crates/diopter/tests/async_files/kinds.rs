//! A striped file and a file inside an image are files: the same futures.

use std::process::Command;

use diopter::File;
use diopter::images::Image;
use diopter::layouts::StripedFile;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use futures::future::join_all;

use crate::bytes::{EXECUTORS, content, memory, memory_of};
use crate::env::{self, Capability};

const LENGTH: usize = 300_000;

/// Overwrites a file of [`LENGTH`] bytes in pieces of no alignment, and reads it back.
async fn overwrite(file: File) {
    let bytes: Vec<u8> = (0..=250u8).cycle().take(LENGTH).collect();
    let pieces: Vec<(usize, &[u8])> =
        bytes.chunks(7001).enumerate().map(|(n, piece)| (n * 7001, piece)).collect();
    let writes = pieces
        .iter()
        .map(|(at, piece)| file.write_at_async(memory_of(piece), u64::try_from(*at).unwrap()));
    for ((result, _), (_, piece)) in join_all(writes).await.into_iter().zip(&pieces) {
        assert_eq!(result.unwrap(), piece.len());
    }
    file.sync_all_async().await.unwrap();
    let (result, buffer) = file.read_at_async(memory(LENGTH + 1000), 0).await;
    assert_eq!(result.unwrap(), LENGTH);
    assert!(buffer[..LENGTH] == bytes[..]);
    assert!(content(&file, 0, LENGTH) == bytes);
}

#[test]
fn a_striped_file_is_a_file() {
    for (name, run) in EXECUTORS {
        eprintln!("under {name}");
        let dir = tempfile::tempdir().unwrap();
        let places = [(); 3].map(|()| ObjectPlace::Dir(dir.path().into()));
        let options = CreateOptions {
            objects: places.into(),
            stripe_size: 65536,
            ..CreateOptions::default()
        };
        let wide = StripedFile::create(dir.path().join("wide.dio"), &options).unwrap();
        run(Box::pin(overwrite(wide.into_file())));
    }
}

#[test]
fn a_file_inside_an_image_is_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("disk.img"));
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("data"), vec![1; LENGTH]).unwrap();
    let path = format!("{}:/sbin:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let mut make = Command::new("mkfs.ext4");
    let made = make.env("PATH", path).args(["-q", "-F", "-d"]).arg(&tree);
    match made.arg(&image).arg("16M").status() {
        Ok(status) if status.success() => {}
        other => return env::skip(Capability::Ext4, format!("mkfs.ext4: {other:?}")),
    }
    for (name, run) in EXECUTORS {
        eprintln!("under {name}");
        let volume = Image::open_with(&image, File::options().read(true).write(true)).unwrap();
        run(Box::pin(overwrite(volume.file(b"/data").unwrap())));
    }
}
