//! Refusals: keys without permission, pools and configurations that do not exist, damaged
//! attributes, monitors that do not reply.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use diopter_rados::striper::{Access, File, Layout, Open, object_name};
use diopter_rados::{Cluster, Connect, Error, ErrorKind, Library};

use crate::cluster::{SOON, ceph};

fn failure(how: &Connect) -> Error {
    Cluster::connect(&Library::load(None).unwrap(), how).err().expect("a refusal")
}

#[test]
fn a_key_that_may_only_read_reads_without_the_lock() {
    let Some(ceph) = ceph() else { return };
    ceph.add_user("reader", "allow r pool=data");
    let lease = Open::new(Access::Write).lease;
    let written = File::create(&ceph.pool(), b"permitted", Layout::default(), lease).unwrap();
    written.write_at(0, b"text").unwrap();
    let pool = ceph.connect("reader").pool(b"data", None).unwrap();
    for access in [Access::Read, Access::Write] {
        let error = File::open(&pool, b"permitted", &Open::new(access)).err().unwrap();
        assert_eq!(error.errno(), Some(libc::EPERM), "{error}");
        assert!(error.to_string().contains("can read without the lock"), "{error}");
    }
    let error = File::create(&pool, b"forbidden", Layout::default(), lease).err().unwrap();
    assert_eq!(error.errno(), Some(libc::EPERM));
    let file = File::open(&pool, b"permitted", &Open::new(Access::ReadUnlocked)).unwrap();
    let mut buffer = [0; 9];
    assert_eq!(file.read_at(0, &mut buffer).unwrap(), 4);
    assert_eq!(&buffer[..4], b"text");
    assert_eq!(file.write_at(0, b"x").unwrap_err().kind(), ErrorKind::Invalid);
    // Its size is not trusted: no lock keeps it.
    drop(written);
    ceph.must(&["--striper", "truncate", "permitted", "2"]);
    assert_eq!(file.read_at(0, &mut buffer[..4]).unwrap(), 2);
    ceph.must(&["--striper", "rm", "permitted"]);
    assert_eq!(file.read_at(0, &mut buffer[..1]).unwrap_err().errno(), Some(libc::ENOENT));
}

#[test]
fn a_file_that_is_open_for_reading_is_not_written() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let lease = Open::new(Access::Write).lease;
    drop(File::create(&pool, b"read-only", Layout::default(), lease).unwrap());
    let file = File::open(&pool, b"read-only", &Open::new(Access::Read)).unwrap();
    assert_eq!(file.write_at(0, b"x").unwrap_err().kind(), ErrorKind::Invalid);
    assert_eq!(file.size().unwrap(), 0);
}

#[test]
fn a_write_past_the_largest_size_is_refused() {
    let Some(ceph) = ceph() else { return };
    let lease = Open::new(Access::Write).lease;
    let file = File::create(&ceph.pool(), b"largest", Layout::default(), lease).unwrap();
    for offset in [u64::MAX, i64::MAX.unsigned_abs()] {
        assert_eq!(file.write_at(offset, b"x").unwrap_err().kind(), ErrorKind::Invalid);
    }
    assert_eq!(file.size().unwrap(), 0);
}

#[test]
fn pools_and_users_that_do_not_exist_are_errors() {
    let Some(ceph) = ceph() else { return };
    let error = ceph.connect("admin").pool(b"no\npool", None).err().unwrap();
    assert_eq!(error.errno(), Some(libc::ENOENT));
    assert!(error.to_string().contains(r"`no\npool`"), "{error}");
    let error = ceph.connect("admin").pool(b"data", Some(b"\x01")).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let conf = Some(ceph.conf.clone());
    let error = failure(&Connect { conf, user: "nobody".to_owned(), ..Connect::default() });
    assert!(error.to_string().contains("`nobody`"), "{error}");
}

#[test]
fn a_configuration_that_cannot_be_read_is_an_error_with_its_path() {
    if ceph().is_none() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let with = |conf: PathBuf| failure(&Connect { conf: Some(conf), ..Connect::default() });
    let missing = dir.path().join("a, b.conf");
    let error = with(missing.clone());
    assert_eq!(error.errno(), Some(libc::ENOENT));
    assert!(error.to_string().contains("a, b.conf"), "{error}");
    assert_eq!(with(dir.path().to_owned()).errno(), Some(libc::EINVAL));
    std::fs::write(&missing, "this is not = a section").unwrap();
    assert!(with(missing).to_string().contains("a, b.conf"));
}

#[test]
fn blanks_and_commas_in_the_path_of_a_configuration_are_allowed() {
    let Some(ceph) = ceph() else { return };
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a, b; c=d.conf");
    std::fs::copy(&ceph.conf, &path).unwrap();
    let how = Connect { conf: Some(path), ..Connect::default() };
    Cluster::connect(&Library::load(None).unwrap(), &how).unwrap();
}

#[test]
fn monitors_that_do_not_reply_are_waited_for_within_the_bound() {
    if ceph().is_none() {
        return;
    }
    // A port that accepts and says nothing.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let dir = tempfile::tempdir().unwrap();
    let conf = dir.path().join("ceph.conf");
    let text = format!("[global]\nmon host = v2:127.0.0.1:{port}\nauth client required = none\n");
    std::fs::write(&conf, text).unwrap();
    let connect_timeout = Duration::from_secs(2);
    let began = Instant::now();
    let error = failure(&Connect { conf: Some(conf), connect_timeout, ..Connect::default() });
    assert_eq!(error.errno(), Some(libc::ETIMEDOUT), "{error}");
    assert!(began.elapsed() < SOON);
}

#[test]
fn damaged_attributes_are_an_error_that_names_them_and_leaves_no_lock() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let first = object_name(b"damaged", 0);
    let lease = Open::new(Access::Write).lease;
    let good = [
        ("striper.layout.stripe_unit", "4194304"),
        ("striper.layout.stripe_count", "1"),
        ("striper.layout.object_size", "4194304"),
        ("striper.size", "0"),
    ];
    drop(File::create(&pool, b"damaged", Layout::default(), lease).unwrap());
    let long = "1".repeat(5000);
    for (attribute, value) in good {
        for bad in ["", "x", "-1", "1e3", "99999999999999999999", "0x10", "\x1b[31m", &long] {
            pool.set_attribute(&first, attribute, bad.as_bytes()).unwrap();
            let error = File::open(&pool, b"damaged", &Open::new(Access::Write)).err().unwrap();
            assert_eq!(error.kind(), ErrorKind::Damaged, "{attribute}={bad:?}: {error}");
            let text = error.to_string();
            assert!(text.contains(attribute) && text.contains("`damaged`"), "{text}");
            assert!(text.len() < 500 && !text.contains('\x1b'), "{text}");
        }
        pool.set_attribute(&first, attribute, value.as_bytes()).unwrap();
    }
    pool.write(&object_name(b"bare", 0), 0, b"no attributes").unwrap();
    let error = File::open(&pool, b"bare", &Open::new(Access::Read)).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::Damaged);
    // An exclusive lock is granted: no shared one is left.
    ceph.must(&["--striper", "rm", "damaged"]);
}

#[test]
fn a_size_that_is_damaged_while_the_file_is_open_is_an_error() {
    let Some(ceph) = ceph() else { return };
    let pool = ceph.pool();
    let lease = Open::new(Access::Write).lease;
    let file = File::create(&pool, b"damaged-later", Layout::default(), lease).unwrap();
    let set = |text: &[u8]| {
        pool.set_attribute(&object_name(b"damaged-later", 0), "striper.size", text).unwrap();
    };
    set(b"many");
    assert_eq!(file.write_at(0, b"x").unwrap_err().kind(), ErrorKind::Damaged);
    assert_eq!(file.read_at(0, &mut [0; 1]).unwrap_err().kind(), ErrorKind::Damaged);
    // Odd, and a number: compared as it is written.
    set(b"0000");
    file.write_at(0, b"text").unwrap();
    assert_eq!(pool.attribute(&object_name(b"damaged-later", 0), "striper.size", 9).unwrap(), b"4");
}
