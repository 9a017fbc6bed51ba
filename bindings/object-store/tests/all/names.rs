//! Names that are hostile or strange, as `LocalFileSystem` treats them.

use std::fs;
use std::os::unix::fs::symlink;

use futures_util::TryStreamExt;
use object_store::{Error, ObjectStore, ObjectStoreExt};
use object_store_diopter::{DiopterFileSystem, Route};

use crate::{local, names, object, routes, text};

#[tokio::test]
async fn a_name_of_a_staged_file_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("data#1"), "another upload").unwrap();
    let local = local(&directory);
    for name in ["data#1", "one/data#123"] {
        let path = object(name);
        let expected = text(&local.get(&path).await.unwrap_err());
        assert!(expected.contains("are not supported"), "{expected}");
        for (route, store) in routes(&directory) {
            let check = |error: Error| assert_eq!(text(&error), expected, "{route}: {name}");
            check(store.get(&path).await.unwrap_err());
            check(store.get_ranges(&path, &[0..1]).await.unwrap_err());
            check(store.put(&path, "x".into()).await.unwrap_err());
            check(store.put_multipart(&path).await.unwrap_err());
            check(store.delete(&path).await.unwrap_err());
            check(store.copy(&path, &object("x")).await.unwrap_err());
            check(store.rename(&path, &object("x")).await.unwrap_err());
            check(store.path_to_filesystem(&path).unwrap_err());
        }
    }
    assert_eq!(names(&directory), ["data#1"]);
}

#[tokio::test]
async fn strange_names_are_names() {
    let directory = tempfile::tempdir().unwrap();
    let local = local(&directory);
    let strange = ["a#b", "a#1b", "#", "100%25", "new\nline", "\u{1f480}", "-rf", "a:b", " "];
    for (route, store) in routes(&directory) {
        for name in strange {
            let path = object_store::path::Path::from(name);
            for length in [10, 2 << 20] {
                store.put(&path, vec![7; length].into()).await.unwrap();
                let got = store.get_ranges(&path, &[1..9]).await.unwrap();
                assert_eq!(&got[0][..], &[7; 8], "{route}: {name:?}");
                assert_eq!(local.head(&path).await.unwrap().size, length as u64);
            }
            store.delete(&path).await.unwrap();
        }
        assert!(names(&directory).is_empty(), "{route}");
    }
    // Names with these parts do not exist.
    for name in ["../escape", "a/../../escape", "a//b", "."] {
        assert!(object_store::path::Path::parse(name).is_err(), "{name}");
    }
    let outside = object_store::path::Path::from("../escape");
    for (_, store) in routes(&directory) {
        let path = store.path_to_filesystem(&outside).unwrap();
        assert!(path.starts_with(directory.path().canonicalize().unwrap()), "{path:?}");
    }
}

#[tokio::test]
async fn a_directory_is_not_an_object() {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("inner")).unwrap();
    let local = local(&directory);
    let path = object("inner");
    let one = text(&local.get(&path).await.unwrap_err());
    let many = text(&local.get_ranges(&path, &[0..1]).await.unwrap_err());
    for (route, store) in routes(&directory) {
        assert_eq!(text(&store.get(&path).await.unwrap_err()), one, "{route}");
        let error = store.get_ranges(&path, &[0..1]).await.unwrap_err();
        assert_eq!(text(&error), many, "{route}");
    }
}

#[tokio::test]
async fn symbolic_links_are_followed_to_read_and_replaced_to_write() {
    let (directory, outside) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let target = outside.path().join("target");
    fs::write(&target, vec![7; 2 << 20]).unwrap();
    for (route, store) in routes(&directory) {
        symlink(&target, directory.path().join("link")).unwrap();
        let link = object("link");
        assert_eq!(store.get(&link).await.unwrap().bytes().await.unwrap().len(), 2 << 20);
        assert_eq!(store.get_ranges(&link, &[5..9]).await.unwrap()[0], [7; 4][..]);
        store.put(&link, vec![8; 2 << 20].into()).await.unwrap();
        assert!(!directory.path().join("link").is_symlink(), "{route}");
        assert_eq!(fs::read(&target).unwrap()[0], 7, "{route}: not written through the link");
        fs::remove_file(directory.path().join("link")).unwrap();
        symlink(outside.path().join("none"), directory.path().join("broken")).unwrap();
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert!(listed.is_empty(), "{route}");
        fs::remove_file(directory.path().join("broken")).unwrap();
    }
}

#[tokio::test]
async fn staged_files_are_not_listed_and_a_crash_that_left_one_is_harmless() {
    let directory = tempfile::tempdir().unwrap();
    for (route, store) in routes(&directory) {
        fs::write(directory.path().join("data#1"), "left by a crash").unwrap();
        store.put(&object("data"), vec![7; 2 << 20].into()).await.unwrap();
        let listed: Vec<_> = store.list(None).try_collect().await.unwrap();
        assert_eq!(listed.len(), 1, "{route}");
        let listed = store.list_with_delimiter(None).await.unwrap();
        assert_eq!(listed.objects.len(), 1, "{route}");
        assert_eq!(names(&directory), ["data", "data#1"], "{route}");
    }
}

#[tokio::test]
async fn directories_that_become_empty_are_removed_on_request() {
    let directory = tempfile::tempdir().unwrap();
    let new = || DiopterFileSystem::new_with_prefix(directory.path()).unwrap();
    let path = object("one/two/data");
    for (is_removed, store) in [(false, new()), (true, new().with_automatic_cleanup(true))] {
        let store = store.with_route(Route::Direct);
        store.put(&path, "any bytes".into()).await.unwrap();
        store.delete(&path).await.unwrap();
        assert_eq!(directory.path().join("one").exists(), !is_removed);
    }
}

#[tokio::test]
async fn a_store_has_a_name_and_a_root() {
    let directory = tempfile::tempdir().unwrap();
    let store = DiopterFileSystem::new_with_prefix(directory.path()).unwrap();
    let root = directory.path().canonicalize().unwrap();
    assert_eq!(store.to_string(), format!("DiopterFileSystem(file://{})", root.display()));
    assert!(DiopterFileSystem::new_with_prefix(directory.path().join("none")).is_err());
    let of_all = DiopterFileSystem::new();
    let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let path = object_store::path::Path::from_filesystem_path(&manifest).unwrap();
    assert_eq!(of_all.path_to_filesystem(&path).unwrap(), manifest.canonicalize().unwrap());
    of_all.head(&path).await.unwrap();
}
