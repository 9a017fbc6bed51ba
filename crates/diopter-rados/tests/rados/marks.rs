//! The mark of a copy that is not complete: whose it is, and what is done only under it.

use diopter_rados::striper::{Access, File, INCOMPLETE, Layout, Open, object_name};
use diopter_rados::{Error, ErrorKind, Pool};

use crate::cluster::ceph;

fn create(pool: &Pool, name: &str) -> File {
    let lease = Open::new(Access::Write).lease;
    let file = File::create_incomplete(pool, name.as_bytes(), Layout::default(), lease).unwrap();
    file.write_at(0, b"text").unwrap();
    file
}

/// The content, and true if the file has no mark.
fn content(pool: &Pool, name: &str) -> (Vec<u8>, bool) {
    let file = File::open(pool, name.as_bytes(), &Open::new(Access::Read)).unwrap();
    let mut bytes = vec![0; usize::try_from(file.size().unwrap()).unwrap()];
    assert_eq!(file.read_at(0, &mut bytes).unwrap(), bytes.len());
    (bytes, file.is_complete().unwrap())
}

#[test]
fn the_mark_stays_until_the_file_is_complete() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let file = create(&pool, "marked");
    assert_eq!(content(&pool, "marked"), (b"text".to_vec(), false));
    file.complete().unwrap();
    assert_eq!(content(&pool, "marked"), (b"text".to_vec(), true));
    file.write_at(4, b" more").unwrap();
    file.remove(&|| true).unwrap();
    assert!(pool.stat(&object_name(b"marked", 0)).is_err());
}

/// As after a lease that ran out: the objects are removed, and another makes them again, while this
/// process's clock says that the lock is held.
fn replaced(pool: &Pool, name: &str, is_complete: bool) -> File {
    let old = create(pool, name);
    pool.remove(&object_name(name.as_bytes(), 0)).unwrap();
    let new = create(pool, name);
    if is_complete {
        new.complete().unwrap();
    }
    assert!(old.has_lock());
    old
}

type Attempt = (&'static str, fn(&mut File) -> Result<(), Error>);

#[test]
fn what_another_made_under_the_name_is_neither_removed_nor_completed_nor_written() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    for is_complete in [false, true] {
        let name = format!("replaced-{is_complete}");
        let expected = (b"text".to_vec(), is_complete);
        let lost = |error: Error| assert_eq!(error.kind(), ErrorKind::Lease);
        lost(replaced(&pool, &name, is_complete).remove(&|| true).unwrap_err());
        assert_eq!(content(&pool, &name), expected);
        let attempts: [Attempt; 4] = [
            ("completed", |file| file.complete()),
            // Longer than both are.
            ("written", |file| file.write_at(2, b"mixed")),
            ("longer", |file| file.set_len(100, &|| true)),
            ("shorter", |file| file.set_len(1, &|| true)),
        ];
        for (what, attempt) in attempts {
            let name = format!("{name}-{what}");
            let mut old = replaced(&pool, &name, is_complete);
            attempt(&mut old).unwrap_err();
            assert_eq!(content(&pool, &name), expected);
            drop(old);
            assert_eq!(content(&pool, &name), expected);
        }
    }
}

#[test]
fn a_file_with_the_mark_is_not_written_by_another() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let file = create(&pool, "being-made");
    let lease = Open::new(Access::Write).lease;
    let write = || File::open(&pool, b"being-made", &Open::new(Access::Write));
    for error in [
        write().err().unwrap(),
        File::create_incomplete(&pool, b"being-made", Layout::default(), lease).err().unwrap(),
    ] {
        assert_eq!(error.kind(), ErrorKind::Incomplete, "{error}");
        assert!(error.to_string().contains("`rados --striper rm`"), "{error}");
    }
    file.complete().unwrap();
    write().unwrap().write_at(0, b"TEXT").unwrap();
    // A mark of any length and value is one.
    let first = object_name(b"being-made", 0);
    pool.set_attribute(&first, INCOMPLETE, &[b'x'; 300]).unwrap();
    assert_eq!(content(&pool, "being-made"), (b"TEXT".to_vec(), false));
    assert_eq!(write().err().unwrap().kind(), ErrorKind::Incomplete);
}

#[test]
fn a_removal_that_is_stopped_leaves_the_mark() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let file = create(&pool, "stopped-early");
    let error = file.remove(&|| false).unwrap_err();
    assert_eq!(error.errno(), Some(libc::EINTR));
    assert_eq!(content(&pool, "stopped-early"), (b"text".to_vec(), false));
}
