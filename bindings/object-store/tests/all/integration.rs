//! The tests that object_store has for its stores: all that `LocalFileSystem` runs.

use futures_executor::block_on;
use object_store::integration::{
    copy_if_not_exists, copy_rename_nonexistent_object, get_nonexistent_object, get_opts,
    list_uses_directories_correctly, list_with_delimiter, list_with_offset_exclusivity,
    put_get_delete_list, put_opts, rename_and_copy, stream_get,
};
use object_store::{Error, ObjectStore, ObjectStoreExt};
use object_store_diopter::DiopterFileSystem;

use crate::{object, routes};

async fn all(store: &DiopterFileSystem) {
    put_get_delete_list(store).await;
    list_with_offset_exclusivity(store).await;
    get_opts(store).await;
    list_uses_directories_correctly(store).await;
    list_with_delimiter(store).await;
    rename_and_copy(store).await;
    copy_if_not_exists(store).await;
    copy_rename_nonexistent_object(store).await;
    stream_get(store).await;
    put_opts(store, false).await;
}

#[tokio::test]
async fn every_test_of_object_store_passes_on_every_route() {
    for number in 0..4 {
        let directory = tempfile::tempdir().unwrap();
        let (name, store) = routes(&directory)[number].clone();
        println!("{name}");
        all(&store).await;
        let directory = tempfile::tempdir().unwrap();
        all(&routes(&directory)[number].1.clone().with_fsync(true)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_pass_on_a_runtime_with_several_threads() {
    let directory = tempfile::tempdir().unwrap();
    all(&routes(&directory)[1].1).await;
}

#[test]
fn they_pass_without_a_runtime() {
    for number in 0..4 {
        let directory = tempfile::tempdir().unwrap();
        let (name, store) = routes(&directory)[number].clone();
        println!("{name}");
        block_on(async {
            put_get_delete_list(&store).await;
            list_uses_directories_correctly(&store).await;
            list_with_delimiter(&store).await;
            // Not stream_get: WriteMultipart needs tokio.
            let path = object("manual_upload");
            let mut upload = store.put_multipart(&path).await.unwrap();
            upload.put_part("123".into()).await.unwrap();
            upload.put_part("45678".into()).await.unwrap();
            let put = upload.complete().await.unwrap();
            let got = store.get(&path).await.unwrap();
            assert_eq!(got.meta.e_tag, put.e_tag);
            assert_eq!(got.bytes().await.unwrap(), "12345678");
        });
    }
}

#[tokio::test]
async fn an_object_that_is_not_there_is_not_found() {
    let directory = tempfile::tempdir().unwrap();
    for (name, store) in routes(&directory) {
        let error = get_nonexistent_object(&store, Some(object("none"))).await.unwrap_err();
        let Error::NotFound { path, source } = error else { panic!("{name}: {error:?}") };
        assert!(path.ends_with("none"), "{path}");
        assert!(source.downcast_ref::<std::io::Error>().is_some(), "{source:?}");
        let ranges = store.get_ranges(&object("none"), &[0..1]).await.unwrap_err();
        assert!(matches!(ranges, Error::NotFound { .. }), "{name}: {ranges:?}");
    }
}
