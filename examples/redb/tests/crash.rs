//! A few rounds of the program, and the lock of the backend.

use std::io::ErrorKind;
use std::process::Command;

use redb::{Database, ReadableDatabase, ReadableTableMetadata, TableDefinition};
use redb_diopter::DiopterBackend;

const TABLE: TableDefinition<u64, &[u8]> = TableDefinition::new("table");

/// `DIOPTER_SEED`, or 1.
fn seed() -> String {
    std::env::var("DIOPTER_SEED").unwrap_or_else(|_| "1".to_owned())
}

#[test]
fn a_database_survives_twenty_kills() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_redb-diopter"));
    let output = program.args(["--rounds", "20", "--seed", &seed()]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("20 rounds, "));
}

#[test]
fn a_database_is_the_same_with_both_backends() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    for round in 0..4_u64 {
        let database = if round % 2 == 0 {
            let backend = DiopterBackend::open(&path).unwrap();
            Database::builder().create_with_backend(backend).unwrap()
        } else {
            Database::open(&path).unwrap()
        };
        let write = database.begin_write().unwrap();
        for number in 0..500 {
            let value = vec![7; usize::try_from(number * 3).unwrap()];
            write.open_table(TABLE).unwrap().insert(round * 500 + number, &value[..]).unwrap();
        }
        write.commit().unwrap();
        let read = database.begin_read().unwrap().open_table(TABLE).unwrap();
        assert_eq!(read.len().unwrap(), (round + 1) * 500);
        assert_eq!(read.get(499).unwrap().unwrap().value(), &[7; 1497]);
    }
}

#[test]
fn an_open_database_cannot_be_opened_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("database");
    let backend = DiopterBackend::open(&path).unwrap();
    assert_eq!(DiopterBackend::open(&path).unwrap_err().kind(), ErrorKind::WouldBlock);
    drop(backend);
    DiopterBackend::open(&path).unwrap();
}
