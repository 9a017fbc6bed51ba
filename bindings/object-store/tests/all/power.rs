//! Objects after a power failure. XFS is shut down without writing its log or its dirty pages, then
//! mounted again: what had not been flushed is lost.

use bytes::Bytes;
use diopter_testkit::machine::{FileSystem, Mount, alone, loop_missing, run};
use futures_executor::block_on;
use object_store::path::Path;
use object_store::{ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use object_store_diopter::{DiopterFileSystem, Route};

use crate::{bytes, object};

const XFS: FileSystem = FileSystem::Xfs { extra: &[] };

/// Smaller than a block, small with a last block that is not full, and large.
const LENGTHS: [u64; 3] = [100, 70_001, (5 << 20) + 7];

#[derive(Clone, Copy, Debug)]
enum Change {
    Put,
    PutBelowNewDirectories,
    PutCreate,
    PutOver,
    Upload,
    Copy,
    Rename,
}

const CHANGES: [Change; 7] = [
    Change::Put,
    Change::PutBelowNewDirectories,
    Change::PutCreate,
    Change::PutOver,
    Change::Upload,
    Change::Copy,
    Change::Rename,
];

impl Change {
    fn object(self, length: u64) -> Path {
        match self {
            Change::PutBelowNewDirectories => object(&format!("a/b/c/{length}")),
            _ => object(&length.to_string()),
        }
    }

    async fn make(self, store: &DiopterFileSystem, length: u64) -> object_store::Result<()> {
        let (to, content) = (self.object(length), PutPayload::from(bytes(length)));
        let from = object(&format!("from-{length}"));
        match self {
            Change::Put | Change::PutBelowNewDirectories => {
                store.put(&to, content).await?;
            }
            Change::PutCreate => {
                store.put_opts(&to, content, PutMode::Create.into()).await?;
            }
            Change::PutOver => {
                store.put(&to, Bytes::from_static(b"old").into()).await?;
                store.put(&to, content).await?;
            }
            Change::Upload => {
                let mut upload = store.put_multipart(&to).await?;
                upload.put_part(content).await?;
                upload.complete().await?;
            }
            Change::Copy => {
                store.put(&from, content).await?;
                store.copy(&from, &to).await?;
            }
            Change::Rename => {
                store.put(&from, content).await?;
                store.rename(&from, &to).await?;
            }
        }
        Ok(())
    }
}

/// The stores whose data takes another path. The mount is their root.
fn stores(mount: &Mount) -> [(&'static str, DiopterFileSystem); 3] {
    let new = || DiopterFileSystem::new_with_prefix(mount.path()).unwrap();
    [
        ("hybrid", new()),
        ("direct", new().with_route(Route::Direct)),
        ("cached", new().with_route(Route::Cached)),
    ]
}

/// The power fails, and comes back.
fn fail(mount: Mount) -> Mount {
    let at = mount.path().to_str().unwrap().to_owned();
    run("xfs_io", &["-x", "-c", "shutdown", &at]).unwrap();
    Mount::again(mount.unmounted().unwrap(), XFS, "").unwrap()
}

fn is_skipped() -> bool {
    if let Some(why) = loop_missing() {
        diopter_skip::skip(diopter_skip::Capability::Loop, why);
        return true;
    }
    if let Some((capability, why)) = XFS.missing() {
        diopter_skip::skip(capability, why);
        return true;
    }
    false
}

#[test]
fn with_fsync_a_change_that_returned_survives_a_power_failure() {
    if is_skipped() {
        return;
    }
    let _alone = alone();
    let mut mount = Mount::new(XFS, 128 << 20, "").unwrap();
    for change in CHANGES {
        for index in 0..stores(&mount).len() {
            for length in LENGTHS {
                let (name, store) = &stores(&mount)[index];
                let store = store.clone().with_fsync(true);
                block_on(change.make(&store, length)).unwrap();
                drop(store);
                mount = fail(mount);
                let store = DiopterFileSystem::new_with_prefix(mount.path()).unwrap();
                let got = block_on(store.get(&change.object(length)));
                let got = got.unwrap_or_else(|error| panic!("{change:?}, {name}: {error}"));
                let got = block_on(got.bytes()).unwrap();
                assert!(got == bytes(length), "{change:?}, {name}, {length}: other bytes");
                let from = object(&format!("from-{length}"));
                if matches!(change, Change::Rename) {
                    assert!(block_on(store.head(&from)).is_err(), "{name}: the old name is back");
                }
                mount = emptied(mount);
            }
        }
    }
    mount.finish().unwrap();
}

/// The directory is empty, durably.
fn emptied(mount: Mount) -> Mount {
    for entry in std::fs::read_dir(mount.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            std::fs::remove_dir_all(path).unwrap();
        } else {
            std::fs::remove_file(path).unwrap();
        }
    }
    Mount::again(mount.unmounted().unwrap(), XFS, "").unwrap()
}

/// Without it the method of this test would show nothing.
#[test]
fn without_fsync_a_power_failure_loses_the_object() {
    if is_skipped() {
        return;
    }
    let _alone = alone();
    let mut mount = Mount::new(XFS, 128 << 20, "").unwrap();
    for index in 0..stores(&mount).len() {
        let (name, store) = &stores(&mount)[index];
        block_on(Change::Put.make(store, 70_001)).unwrap();
        let name = *name;
        mount = fail(mount);
        let store = DiopterFileSystem::new_with_prefix(mount.path()).unwrap();
        let found = block_on(store.get(&Change::Put.object(70_001)));
        let is_whole = match found {
            Ok(found) => block_on(found.bytes()).is_ok_and(|got| got == bytes(70_001)),
            Err(_) => false,
        };
        assert!(!is_whole, "{name}: it was flushed without with_fsync");
        mount = emptied(mount);
    }
    mount.finish().unwrap();
}
