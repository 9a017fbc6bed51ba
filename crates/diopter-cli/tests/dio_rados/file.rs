//! An object of a cluster as a `File`: every door of the library moves its bytes.

use std::fs;
use std::io::{Read, Write};
use std::sync::Arc;
use std::time::Duration;

use diopter::rados::{self, Access, Cluster, Connect, Layout, Library, Open, Pool, StripedObject};
use diopter::{Engine, EngineOptions, Errno, Error, File, FileRange, Request};
use diopter_testkit::ceph::Ceph;

use crate::{MIB, bytes, shared};

fn pool(ceph: &Ceph) -> Pool {
    let connect = Connect { conf: Some(ceph.conf.clone()), ..Connect::default() };
    let cluster = Cluster::connect(&Library::load(None).unwrap(), &connect).unwrap();
    cluster.pool(b"data", None).unwrap()
}

fn create(pool: &Pool, name: &str) -> File {
    let lease = Duration::from_secs(30);
    let object = StripedObject::create(pool, name.as_bytes(), Layout::default(), lease).unwrap();
    rados::file(&Arc::new(object)).unwrap()
}

#[test]
fn blocking_calls_ranges_and_streams_move_the_bytes_of_an_object() {
    let Some(ceph) = shared() else { return };
    let file = create(&pool(ceph), "doors");
    let mut expected = bytes(9 * MIB + 17);
    assert_eq!(file.size().unwrap(), 0);
    file.write_all_at(&expected[..5 * MIB + 3], 0).unwrap();
    let mut writer = file.writer(5 * MIB as u64 + 3);
    writer.write_all(&expected[5 * MIB + 3..]).unwrap();
    writer.finish().0.unwrap();
    assert_eq!(file.size().unwrap(), expected.len() as u64);

    let large = vec![0x5a; MIB + 1];
    let pieces: [(usize, &[u8]); 3] = [(4 * MIB - 7, &large), (9, b"small"), (12, b"later")];
    let given: Vec<(u64, &[u8])> = pieces.map(|(at, piece)| (at as u64, piece)).into();
    file.write_ranges_from(&given).into_iter().for_each(|written| written.unwrap());
    for (at, piece) in pieces {
        expected[at..at + piece.len()].copy_from_slice(piece);
    }
    file.sync_all().unwrap();

    let mut all = Vec::new();
    file.reader(0).read_to_end(&mut all).unwrap();
    assert!(all == expected);
    let mut part = vec![0; 3 * MIB];
    file.read_exact_at(&mut part, 3 * MIB as u64 + 1).unwrap();
    assert!(part == expected[3 * MIB + 1..6 * MIB + 1]);
    let places = [(1, 5), (4 * MIB - 1, 4 * MIB + 1), (9 * MIB, 20 * MIB)];
    let ranges = places.map(|(start, end)| FileRange::new(start as u64, end as u64));
    for (read, (start, end)) in file.read_ranges(&ranges).into_iter().zip(places) {
        assert!(read.unwrap()[..] == expected[start..end.min(expected.len())]);
    }
    assert_eq!(file.read_at(&mut part, expected.len() as u64).unwrap(), 0);
}

#[test]
fn one_engine_has_requests_to_an_object_and_to_a_local_file_in_flight() {
    let Some(ceph) = shared() else { return };
    let remote = create(&pool(ceph), "mixed");
    let named = tempfile::NamedTempFile::new().unwrap();
    let local = File::options().read(true).write(true).open(named.path()).unwrap();
    let engine = Engine::new(EngineOptions::DEFAULT).unwrap();
    let content = bytes(8 * MIB);
    let blocks = || content.chunks(MIB / 2).zip((0..).step_by(MIB / 2));
    for (block, at) in blocks() {
        engine.start(&remote, Request::write(at, block.to_vec())).unwrap();
        engine.start(&local, Request::write(at, block.to_vec())).unwrap();
    }
    let mut finished = 0;
    while let Some(written) = engine.wait(Duration::from_secs(60)).unwrap() {
        written.check_whole().unwrap();
        finished += 1;
    }
    assert_eq!(finished, 2 * blocks().count());
    for file in [&remote, &local] {
        for (_, at) in blocks() {
            engine.start(file, Request::read(at, vec![0; MIB / 2])).unwrap();
        }
    }
    while let Some(read) = engine.wait(Duration::from_secs(60)).unwrap() {
        read.check_whole().unwrap();
        let at = usize::try_from(read.range.start()).unwrap();
        assert!(read.memory.unwrap()[..] == content[at..at + MIB / 2]);
    }
    assert!(fs::read(named.path()).unwrap() == content);
}

#[test]
fn an_object_has_no_descriptor_and_its_length_is_set_by_the_object() {
    let Some(ceph) = shared() else { return };
    let pool = pool(ceph);
    let file = create(&pool, "kinds");
    file.write_all_at(b"text", 0).unwrap();
    assert!(file.local_fd().is_none() && file.object_descriptors().len() == 0);
    assert_eq!(file.descriptors().count(), 0);
    let errnos = [
        file.metadata().map(drop).unwrap_err().errno(),
        file.set_len(2).unwrap_err().errno(),
        file.allocate(0, 4096).unwrap_err().errno(),
        file.set_write_hint(diopter::WriteHint::Short).unwrap_err().errno(),
    ];
    assert_eq!(errnos, [Errno::EOPNOTSUPP; 4]);
    drop(file);
    let object = StripedObject::open(&pool, b"kinds", &Open::new(Access::Read)).unwrap();
    let file = rados::file(&Arc::new(object)).unwrap();
    assert!(matches!(file.write_at(b"no", 0), Err(Error::Admit(_))));
    let mut read = [0; 9];
    assert_eq!(file.read_at(&mut read, 1).unwrap(), 3);
    assert_eq!(&read[..3], b"ext");
}

#[test]
fn a_write_without_a_reply_has_an_unknown_outcome_and_a_read_has_none() {
    let Some(ceph) = Ceph::start(&[]) else { return };
    let conf = fs::read_to_string(&ceph.conf).unwrap();
    let conf = conf.replacen("[global]\n", "[global]\nrados osd op timeout = 2\n", 1);
    fs::write(&ceph.conf, conf).unwrap();
    let pool = pool(&ceph);
    let (file, grows) = (create(&pool, "lost"), create(&pool, "grows"));
    file.write_all_at(&bytes(4096), 0).unwrap();
    ceph.kill_store(0);
    let unknown = |failed: Result<(), Error>| match failed {
        Err(Error::Cluster(failed)) => failed.error.is_unknown(),
        other => panic!("{other:?}"),
    };
    let mut read = [0; 10];
    assert!(!unknown(file.read_exact_at(&mut read, 0)));
    assert!(unknown(file.write_all_at(b"over", 0)), "a call");
    // It fails when the size is raised, which may take effect.
    let queued = grows.request(Request::write(0, vec![7; 10])).map_err(|r| r.error).unwrap();
    let failed = queued.wait().check_whole().unwrap_err();
    assert!(unknown(Err(grows.explain_error(failed))), "a queued request");
}
