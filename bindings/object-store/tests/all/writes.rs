//! Objects that are put: their bytes, their names, and puts of the same name at once.

use std::fs;

use bytes::Bytes;
use object_store::{
    Attribute, Attributes, Error, ObjectStore, ObjectStoreExt, PutMode, PutOptions, PutPayload,
    UpdateVersion,
};
use tokio::task::JoinSet;

use crate::{bytes, local, names, object, routes, text};

#[tokio::test]
async fn objects_of_every_length_have_their_bytes_and_an_entity_tag() {
    let directory = tempfile::tempdir().unwrap();
    let local = local(&directory);
    for (name, store) in routes(&directory) {
        for length in [0, 1, 4095, 4096, 4097, 1 << 20, (1 << 20) + 1, (5 << 20) + 13] {
            for piece in [1000, 4096, 3 << 20] {
                let content = Bytes::from(bytes(length));
                let pieces = content.chunks(piece).map(|piece| content.slice_ref(piece));
                let path = object("one/two/data");
                let put = store.put(&path, pieces.collect::<PutPayload>()).await.unwrap();
                let got = local.get(&path).await.unwrap();
                assert_eq!(got.meta.e_tag, put.e_tag, "{name}: {length}");
                assert!(got.bytes().await.unwrap() == content, "{name}: {length}");
            }
        }
        assert_eq!(fs::read_dir(directory.path().join("one/two")).unwrap().count(), 1);
        fs::remove_dir_all(directory.path().join("one")).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_puts_at_once_remains_whole() {
    let directory = tempfile::tempdir().unwrap();
    for (name, store) in routes(&directory) {
        let mut puts = JoinSet::new();
        for number in 0..8_u8 {
            let store = store.clone();
            puts.spawn(async move {
                let content = vec![number; (1 << 20) + usize::from(number) * 1001];
                store.put(&object("data"), content.into()).await.unwrap();
            });
        }
        puts.join_all().await;
        let content = fs::read(directory.path().join("data")).unwrap();
        let winner = content[0];
        assert_eq!(content.len(), (1 << 20) + usize::from(winner) * 1001, "{name}");
        assert!(content.iter().all(|byte| *byte == winner), "{name}");
        assert_eq!(names(&directory), ["data"], "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_many_creations_succeeds() {
    let directory = tempfile::tempdir().unwrap();
    for (name, store) in routes(&directory) {
        let mut puts = JoinSet::new();
        for number in 0..8_u8 {
            let store = store.clone();
            puts.spawn(async move {
                let options = PutOptions::from(PutMode::Create);
                let data = object("data");
                let put = store.put_opts(&data, vec![number; 70_000].into(), options).await;
                (number, put)
            });
        }
        let mut created = Vec::new();
        for (number, put) in puts.join_all().await {
            match put {
                Ok(_) => created.push(number),
                Err(Error::AlreadyExists { path, .. }) => assert!(path.ends_with("/data")),
                Err(error) => panic!("{name}: {error}"),
            }
        }
        assert_eq!(created.len(), 1, "{name}");
        assert!(fs::read(directory.path().join("data")).unwrap() == vec![created[0]; 70_000]);
        assert_eq!(names(&directory), ["data"], "{name}");
        store.delete(&object("data")).await.unwrap();
    }
}

#[tokio::test]
async fn what_a_local_file_system_refuses_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("file"), "any bytes").unwrap();
    fs::create_dir(directory.path().join("directory")).unwrap();
    let local = local(&directory);
    let update = UpdateVersion { e_tag: Some("x".into()), version: None };
    let attributes = Attributes::from_iter([(Attribute::ContentType, "text/plain")]);
    let cases = [
        ("new", PutOptions::from(PutMode::Update(update))),
        ("new", PutOptions { attributes, ..PutOptions::default() }),
        ("file/below", PutOptions::default()),
        ("directory", PutOptions::default()),
        ("file", PutOptions::from(PutMode::Create)),
    ];
    for (path, options) in cases {
        let put = local.put_opts(&object(path), "new".into(), options.clone()).await;
        let expected = text(&put.unwrap_err()).replace("LocalFileSystem", "DiopterFileSystem");
        for (name, store) in routes(&directory) {
            let put = store.put_opts(&object(path), "new".into(), options.clone()).await;
            let error = text(&put.unwrap_err()).replace("LocalFileSystem", "DiopterFileSystem");
            assert_eq!(without_cause(&error), without_cause(&expected), "{name}: {path}");
            assert_eq!(names(&directory), ["directory", "file"], "{name}: {path}");
        }
    }
    assert_eq!(fs::read(directory.path().join("file")).unwrap(), b"any bytes");
}

/// The step that failed; each store has its own words for the cause.
fn without_cause(error: &str) -> String {
    error.replace("generic: ", "").split(':').next().unwrap().to_owned()
}
