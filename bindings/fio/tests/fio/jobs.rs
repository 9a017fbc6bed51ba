//! Jobs that must end without an error: any offset and length, verified, on every kind of file and
//! every backend.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use diopter::BackendKind;
use diopter::layouts::{CreateOptions, ObjectPlace, StripedFile};
use diopter_testkit::env;
use diopter_testkit::machine::{self, Dir, FileSystem, Loop, Mount};

use crate::engine::{Ran, fio, library};

const MIB: u64 = 1 << 20;
const FILE_BYTES: u64 = 8 * MIB;
const STRIPE_BYTES: u64 = 64 << 10;

const EXT4: FileSystem = FileSystem::Ext4 { block: 4096, extra: &[] };

const BACKENDS: [BackendKind; 3] = [BackendKind::Uring, BackendKind::Aio, BackendKind::Threads];

const VERIFY: [&str; 7] = [
    "--direct=1",
    "--bsrange=5000-70000",
    "--bs_unaligned=1",
    "--rw=randrw",
    "--iodepth=32",
    "--verify=crc32c",
    "--verify_fatal=1",
];

/// A mounted ext4; `None`, with a skip, where there is none.
fn mount(bytes: u64) -> Option<Mount> {
    if let Some(why) = machine::loop_missing() {
        env::skip(env::Capability::Loop, why);
        return None;
    }
    if let Some((capability, why)) = EXT4.missing() {
        env::skip(capability, why);
        return None;
    }
    Some(Mount::new(EXT4, bytes, "").expect("ext4 on a loop device"))
}

/// Runs the verify job on each backend.
fn verify(library: &Path, file: &str, more: &[&str]) {
    for backend in BACKENDS.into_iter().filter(|backend| env::has(*backend)) {
        let backend = format!("--backend={backend}");
        let ran = fio(library, file, &[&VERIFY[..], &[backend.as_str()], more].concat());
        ran.assert_moved(MIB as f64, MIB as f64);
    }
}

fn size_argument() -> String {
    format!("--size={FILE_BYTES}")
}

fn striped(directory: &Path) -> String {
    let name = directory.join("striped");
    let objects = ["a", "b", "c"].map(|object| {
        fs::create_dir(directory.join(object)).expect("a directory");
        ObjectPlace::of(directory.join(object)).expect("a place")
    });
    let options = CreateOptions {
        objects: objects.into(),
        stripe_size: STRIPE_BYTES,
        ..CreateOptions::default()
    };
    drop(StripedFile::create(&name, &options).expect("a striped file"));
    name.to_str().expect("text").to_owned()
}

#[test]
fn a_plain_file_is_verified_at_any_offset() {
    let Some(library) = library() else { return };
    let _alone = machine::alone();
    let Some(mount) = mount(64 * MIB) else { return };
    let file = mount.path().join("plain");
    verify(library, file.to_str().expect("text"), &[&size_argument()]);
    assert_eq!(file.metadata().expect("the file").size(), FILE_BYTES);
    mount.finish().expect("e2fsck finds nothing");
}

#[test]
fn a_striped_file_is_verified_at_any_offset() {
    let Some(library) = library() else { return };
    let _alone = machine::alone();
    let Some(mount) = mount(64 * MIB) else { return };
    let name = striped(mount.path());
    let manifest = fs::read(&name).expect("the manifest");
    verify(library, &name, &[&size_argument()]);
    // fio itself makes no file longer that is not plain.
    assert!(fs::read(&name).expect("the manifest") == manifest, "the manifest is as it was");
    let file = StripedFile::open(&name).expect("the striped file");
    let sizes = file.object_sizes().expect("sizes");
    assert_eq!(sizes.iter().sum::<u64>(), FILE_BYTES, "{sizes:?}");
    drop(file);
    mount.finish().expect("e2fsck finds nothing");
}

#[test]
fn a_file_in_an_image_is_verified_at_any_offset() {
    let Some(library) = library() else { return };
    let _alone = machine::alone();
    let Some(scratch) = mount(16 * MIB) else { return };
    drop(scratch);
    let directory = Dir::new("fio").expect("a directory");
    let image = directory.path().join("disk.img");
    fs::File::create(&image).and_then(|file| file.set_len(64 * MIB)).expect("an image");
    let device = Loop::over_image(&image, 512).expect("a loop device");
    let mounted = Mount::on(device, EXT4, "").expect("a mount");
    let content = vec![7; usize::try_from(FILE_BYTES).expect("fits")];
    fs::write(mounted.path().join("data"), &content).expect("a file");
    drop(mounted.unmounted().expect("it is unmounted"));

    let name = format!("{}::/data", image.display());
    verify(library, &name, &[]);

    let device = Loop::over_image(&image, 512).expect("a loop device");
    let mounted = Mount::again(device, EXT4, "ro").expect("a mount");
    let read = fs::read(mounted.path().join("data")).expect("the file");
    assert_eq!(read.len(), content.len());
    assert!(read != content, "what fio wrote is in the file");
    mounted.finish().expect("e2fsck finds nothing");
}

#[test]
fn flushes_threads_and_a_deep_queue_end_without_an_error() {
    let Some(library) = library() else { return };
    let _alone = machine::alone();
    let Some(mount) = mount(64 * MIB) else { return };
    let file = mount.path().join("plain");
    let file = file.to_str().expect("text");
    let size = size_argument();
    let common = ["--direct=1", "--rw=randrw", size.as_str()];
    let run = |more: &[&str]| fio(library, file, &[&common[..], more].concat());
    let flushed = run(&["--bs=4k", "--iodepth=8", "--fsync=3", "--end_fsync=1"]);
    flushed.assert_moved(MIB as f64, MIB as f64);
    assert!(flushed.number("sync/total_ios") > 100.0, "{}", flushed.text);
    run(&["--bs=4k", "--fdatasync=5"]).assert_moved(MIB as f64, MIB as f64);
    run(&["--bs=4k", "--iodepth=700"]).assert_moved(MIB as f64, MIB as f64);
    let batches = ["--iodepth_batch_submit=16", "--iodepth_batch_complete_min=8"];
    run(&[&["--bs=4k", "--iodepth=32"], &batches[..]].concat()).assert_moved(1.0, 1.0);
    run(&["--bs=3000", "--bs_unaligned=1", "--thread", "--numjobs=3", "--iodepth=16"])
        .assert_moved(1.0, 1.0);
    run(&["--bs=64k", "--register=0", "--sync=dsync"]).assert_moved(1.0, 1.0);
    run(&["--bs=64k", "--preset=lustre-2.13", "--fsync_on_close=1"]).assert_moved(1.0, 1.0);
}

#[test]
fn fio_removes_no_striped_file() {
    let Some(library) = library() else { return };
    let directory = Dir::new("fio").expect("a directory");
    let name = striped(directory.path());
    let arguments = ["--direct=1", "--rw=write", "--bs=128k", "--size=1m", "--unlink=1"];
    fio(library, &name, &arguments).assert_moved(0.0, MIB as f64);
    let file = StripedFile::open(&name).expect("the striped file");
    assert_eq!(file.into_file().size().expect("its size"), MIB);
}

#[test]
fn a_full_file_system_is_the_error_of_its_job() {
    let Some(library) = library() else { return };
    let _alone = machine::alone();
    let Some(mount) = mount(16 * MIB) else { return };
    let file = mount.path().join("plain");
    let file = file.to_str().expect("text");
    let size = ["--size=64m", "--fallocate=none", "--direct=1"];
    let ran: Ran = fio(library, file, &[&size[..], &["--rw=write", "--bs=70000"]].concat());
    assert!(!ran.is_success, "{}", ran.text);
    assert!(ran.number("error") == 28.0, "ENOSPC: {}", ran.text);
    let messages = ran.text.lines().filter(|line| line.starts_with("diopter: "));
    let messages: Vec<&str> = messages.collect();
    assert_eq!(messages.len(), 1, "{}", ran.text);
    assert!(messages[0].contains("ENOSPC"), "{messages:?}");
    mount.finish().expect("e2fsck finds nothing");
}
