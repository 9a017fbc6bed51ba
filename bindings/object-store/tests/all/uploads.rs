//! Uploads in parts.

use std::fs;

use bytes::Bytes;
use futures_util::future::{join_all, try_join_all};
use object_store::buffered::BufWriter;
use object_store::{ObjectStoreExt, PutPayload};
use tokio::io::AsyncWriteExt;

use crate::{bytes, names, object, routes, text};

const PARTS: [usize; 8] = [5 << 20, 1, 4095, 0, (3 << 20) + 7, 12_345, 2 << 20, 77];

/// Divides content into parts of different lengths, each of several pieces.
fn parts(content: &Bytes) -> Vec<PutPayload> {
    let mut at = 0;
    let mut part = |length: usize| {
        let part = content.slice(at..at + length);
        at += length;
        part.chunks(70_001).map(|piece| part.slice_ref(piece)).collect()
    };
    PARTS.iter().map(|length| part(*length)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn parts_of_any_length_in_any_order_are_one_object() {
    let directory = tempfile::tempdir().unwrap();
    let content = Bytes::from(bytes(PARTS.iter().map(|length| *length as u64).sum()));
    for (name, store) in routes(&directory) {
        for is_reversed in [false, true] {
            let mut upload = store.put_multipart(&object("data")).await.unwrap();
            let mut puts: Vec<_> =
                parts(&content).into_iter().map(|part| upload.put_part(part)).collect();
            if is_reversed {
                // One after the other, the last one first.
                for put in puts.into_iter().rev() {
                    put.await.unwrap();
                }
            } else {
                puts.rotate_left(3);
                try_join_all(puts).await.unwrap();
            }
            assert_eq!(names(&directory), ["data#1"], "{name}: not there yet");
            let put = upload.complete().await.unwrap();
            let got = store.get(&object("data")).await.unwrap();
            assert_eq!(got.meta.e_tag, put.e_tag);
            assert!(got.bytes().await.unwrap() == content, "{name}");
            assert_eq!(names(&directory), ["data"], "{name}");
            store.delete(&object("data")).await.unwrap();
        }
    }
}

#[tokio::test]
async fn an_upload_that_is_aborted_or_dropped_leaves_nothing() {
    let directory = tempfile::tempdir().unwrap();
    for (name, store) in routes(&directory) {
        let mut upload = store.put_multipart(&object("data")).await.unwrap();
        upload.put_part(vec![1; 100_000].into()).await.unwrap();
        upload.abort().await.unwrap();
        assert!(names(&directory).is_empty(), "{name}");
        assert_eq!(text(&upload.complete().await.unwrap_err()), "generic: Upload aborted");
        assert_eq!(text(&upload.abort().await.unwrap_err()), "generic: Upload aborted");
        if name != "cached" {
            let error = upload.put_part(vec![1; 10].into()).await.unwrap_err();
            assert_eq!(text(&error), "generic: Upload aborted");
            let mut upload = store.put_multipart(&object("data")).await.unwrap();
            upload.put_part(vec![1; 100_000].into()).await.unwrap();
            drop(upload);
            assert!(names(&directory).is_empty(), "{name}");
        }
    }
}

#[tokio::test]
async fn a_part_after_the_end_does_not_change_the_object() {
    let directory = tempfile::tempdir().unwrap();
    for (name, store) in routes(&directory) {
        let mut upload = store.put_multipart(&object("data")).await.unwrap();
        upload.put_part("whole".into()).await.unwrap();
        upload.complete().await.unwrap();
        let error = upload.put_part("more".into()).await.unwrap_err();
        assert_eq!(text(&error), "generic: Upload aborted", "{name}");
        assert!(upload.complete().await.is_err(), "{name}");
        assert_eq!(fs::read(directory.path().join("data")).unwrap(), b"whole");
    }
}

#[tokio::test]
async fn uploads_of_the_same_name_do_not_meet() {
    let directory = tempfile::tempdir().unwrap();
    for (name, store) in routes(&directory) {
        let mut uploads = Vec::new();
        for _ in 0..3 {
            uploads.push(store.put_multipart(&object("data")).await.unwrap());
        }
        assert_eq!(names(&directory), ["data#1", "data#2", "data#3"], "{name}");
        let puts = uploads.iter_mut().zip(1_u8..).map(|(upload, number)| {
            let parts = [number; 4].map(|number| upload.put_part(vec![number; 9000].into()));
            async move { try_join_all(parts).await.unwrap() }
        });
        join_all(puts).await;
        for (mut upload, number) in uploads.into_iter().zip(1_u8..) {
            upload.complete().await.unwrap();
            let content = fs::read(directory.path().join("data")).unwrap();
            assert!(content == vec![number; 36_000], "{name}");
        }
        assert_eq!(names(&directory), ["data"], "{name}");
        store.delete(&object("data")).await.unwrap();
    }
}

#[tokio::test]
async fn a_writer_of_object_store_writes_through_it() {
    let directory = tempfile::tempdir().unwrap();
    let content = bytes((23 << 20) + 5);
    for (name, store) in routes(&directory) {
        let mut writer = BufWriter::new(std::sync::Arc::new(store), object("data"));
        for piece in content.chunks(777_777) {
            writer.write_all(piece).await.unwrap();
        }
        writer.shutdown().await.unwrap();
        assert!(fs::read(directory.path().join("data")).unwrap() == content, "{name}");
    }
}
