//! Programs that fail with EINVAL, and work under `dio run`.

use std::fs;
use std::path::{Path, PathBuf};

use diopter_testkit::env::{Capability, skip};
use diopter_testkit::files;

use crate::support::{command, has, pattern, text};

const DUCKDB: &str = "
import duckdb, sys
attach = f\"attach '{sys.argv[1]}' as x (io_mode 'DIRECT_IO')\"
c = duckdb.connect(); c.execute(attach)
c.execute('create table x.t as select range i, hash(range) h from range(300000)')
c.execute('checkpoint x'); c.execute('detach x'); c.close()
c = duckdb.connect(); c.execute(attach)
assert c.execute('select count(*), sum(i) from x.t').fetchall() == [(300000, 44999850000)]
";

const NODE: &str = "
const fs = require('fs'), c = fs.constants, path = process.argv[1];
const fd = fs.openSync(path, c.O_RDONLY | c.O_DIRECT), got = Buffer.alloc(5000);
fs.readSync(fd, got, 0, 5000, 1234);
if (!got.equals(fs.readFileSync(path).subarray(1234, 6234))) throw 'other bytes';
";

const PYTHON: &str = "
import os, sys
path = sys.argv[1]
data = open(path, 'rb').read()
fd = os.open(path, os.O_RDWR | os.O_DIRECT)
assert os.pread(fd, 5000, 1234) == data[1234:6234]
got = bytearray(5001)
assert os.preadv(fd, [memoryview(got)[1:]], 77) == 5000 and got[1:] == data[77:5077]
assert os.read(fd, 100) == data[:100] and os.lseek(fd, 0, os.SEEK_CUR) == 100
assert os.pwrite(fd, b'written', 999) == 7 and os.pread(fd, 7, 999) == b'written'
";

/// Checks that a program fails plainly with EINVAL, and succeeds under `dio run`.
fn check(words: &[&str], file: &Path) {
    let run = |options| {
        fs::write(file, pattern(100_000)).expect("a file");
        let output = command(options, words).env("LC_ALL", "C").output().expect("it runs");
        (output.status.success(), text(&output))
    };
    let (is_done, said) = run(None);
    let lower = said.to_lowercase();
    assert!(!is_done && lower.contains("invalid argument"), "plainly: {said}");
    let (is_done, said) = run(Some(&["--report"]));
    assert!(is_done, "under dio run: {said}");
    assert!(said.contains("requests served that the kernel had refused with EINVAL"), "{said}");
}

fn name(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

#[test]
fn dd_reads_blocks_of_4000_bytes() {
    let dir = files::dir();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let words = [&format!("if={}", name(&from)), &format!("of={}", name(&to))];
    check(&["dd", words[0], words[1], "bs=4000", "iflag=direct"], &from);
    assert!(fs::read(&to).expect("it was written") == pattern(100_000));
}

#[test]
fn dd_writes_blocks_of_1000_bytes() {
    let dir = files::dir();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let words = [&format!("if={}", name(&from)), &format!("of={}", name(&to))];
    check(&["dd", words[0], words[1], "bs=1000", "oflag=direct"], &from);
    assert!(fs::read(&to).expect("it was written") == pattern(100_000));
}

#[test]
fn python_reads_and_writes_any_range() {
    if has(Capability::Python, &["python3", "--version"]) {
        let dir = files::dir();
        let file = dir.path().join("file");
        check(&["python3", "-c", PYTHON, name(&file)], &file);
    }
}

#[test]
fn node_reads_any_range() {
    if has(Capability::Node, &["node", "--version"]) {
        let dir = files::dir();
        let file = dir.path().join("file");
        check(&["node", "-e", NODE, name(&file)], &file);
    }
}

#[test]
fn duckdb_writes_and_reads_a_database() {
    if !has(Capability::Duckdb, &["python3", "-c", "import duckdb"]) {
        return;
    }
    let dir = files::dir();
    let (file, database) = (dir.path().join("unused"), dir.path().join("base.db"));
    let script = dir.path().join("script.py");
    let clean = "import os, sys\nfor name in (sys.argv[1], sys.argv[1] + '.wal'):\n    \
                 if os.path.exists(name): os.remove(name)\n";
    fs::write(&script, format!("{clean}{DUCKDB}")).expect("a script");
    check(&["python3", name(&script), name(&database)], &file);
}

/// The directory of PostgreSQL's programs, in the Python module pgserver.
fn postgres() -> Option<PathBuf> {
    let script = "import importlib.util as util
print(*util.find_spec('pgserver').submodule_search_locations)";
    if !has(Capability::Pgserver, &["python3", "-c", script]) {
        return None;
    }
    let output = command(None, &["python3", "-c", script]).output().expect("it ran before");
    let programs = PathBuf::from(text(&output).trim()).join("pginstall/bin");
    if !programs.join("initdb").exists() {
        skip(Capability::Pgserver, format!("no initdb in {}", programs.display()));
        return None;
    }
    Some(programs)
}

/// PostgreSQL aligns what it reads and writes: nothing must change, in any of its processes.
#[test]
fn postgresql_with_direct_io_recovers_after_an_immediate_stop() {
    let Some(programs) = postgres() else { return };
    let dir = files::dir();
    // The server refuses to run as root.
    let script = format!(
        "set -e; cd {dir}; export PATH={programs}:$PATH PGHOST={dir} PGUSER=postgres
         initdb -D base -A trust -U postgres --no-sync >log 2>&1
         start() {{
             {dio} run -- pg_ctl -D base -w -l server.log -o \"-k {dir} -c listen_addresses= \
             -c debug_io_direct=data,wal -c shared_buffers=16MB\" start >>log 2>&1
         }}
         start
         pgbench -i -s 2 postgres >>log 2>&1
         pgbench -c 4 -t 200 postgres >>log 2>&1
         psql -Atc 'select sum(abalance), count(*) from pgbench_accounts' postgres >before
         pg_ctl -D base -m immediate stop >>log 2>&1
         start
         psql -Atc 'select sum(abalance), count(*) from pgbench_accounts' postgres >after
         psql -Atc 'show debug_io_direct' postgres
         pg_ctl -D base stop >>log 2>&1
         cmp before after; grep -i -E 'panic|invalid argument' server.log || echo clean",
        dir = name(dir.path()),
        programs = name(&programs),
        dio = name(&crate::support::dio()),
    );
    let words: &[&str] = if diopter_testkit::env::is_root() {
        let owned = command(None, &["chmod", "777", name(dir.path())]).status().expect("chmod");
        assert!(owned.success());
        &["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-c", &script]
    } else {
        &["sh", "-c", &script]
    };
    let output = command(None, words).output().expect("it runs");
    let said = text(&output);
    let log = fs::read_to_string(dir.path().join("log")).unwrap_or_default();
    assert!(output.status.success(), "{said}\n{log}");
    assert_eq!(said, "data,wal\nclean\n", "{log}");
}
