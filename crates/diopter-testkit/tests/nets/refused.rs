//! Every door with each system call that it makes refused, as a sandbox refuses it: EPERM or
//! ENOSYS, from the first call of the program on or from a later one on. In each cell the door ends
//! with 0 and the right bytes, or with an error, the old content, and nothing left behind.

mod calls;

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use diopter_core::prng::Prng;
use diopter_testkit::env::{self, Capability, is_root, is_soak, skip};
use diopter_testkit::files;
use diopter_testkit::machine::{FileSystem, Loop, Mount};
use diopter_testkit::matrix::{Cell, Fault, Matrix, Outcome};

use crate::built::Built;
use crate::doors::{DOORS, Door, Program, door};
use crate::ground::{Ground, Sources};
use calls::{Made, numbers, traced};

/// No cell takes longer. One that does is run again: the machine may have been busy.
const LIMIT: Duration = Duration::from_secs(10);

/// Cells of a run that is not a soak, without those that failed once.
const DRAWN: usize = 500;

/// Doors whose calls are compared with the list, where it is not a soak.
const COMPARED: usize = 4;

/// Bytes of the file that is copied: several requests, and a partial block.
const LENGTH: usize = (1 << 20) + 77;

const BACKENDS: [&str; 3] = ["uring", "aio", "threads"];

const ERRORS: [(&str, u32); 2] = [("EPERM", 1), ("ENOSYS", 38)];

/// The calls of each door, on all backends, with how often it makes them at most.
const CALLS: &str = include_str!("refused/calls.txt");

/// Calls that are not refused, and why.
const EXEMPT: &[(&str, &str)] = &[
    ("execve", "starts the program that is tried"),
    ("exit", "has no error: the C library calls it again and again"),
    ("exit_group", "has no error: the C library calls it again and again"),
    ("mmap", "memory of the loader and of the allocator, which end the program"),
    ("munmap", "memory of the allocator"),
    ("mprotect", "the loader ends the program; a thread without a guard page is an error of it"),
    ("mremap", "memory of the allocator"),
    ("brk", "memory of the allocator"),
    ("futex", "the C library ends the program: locks have no other way to wait"),
    ("rt_sigaction", "the runtime of Rust ends the program"),
    ("rt_sigprocmask", "the C library takes it for granted when it starts a thread"),
    ("rt_sigreturn", "the end of a signal handler has no error"),
    ("sigaltstack", "the runtime of Rust ends the program"),
    ("poll", "the runtime of Rust ends the program: are the standard descriptors open?"),
    ("arch_prctl", "thread-local memory, before the program begins"),
    ("set_tid_address", "the C library, before the program begins"),
    ("set_robust_list", "the C library, before the program begins"),
    ("rseq", "the C library, before the program begins"),
    ("access", "the loader asks for ld.so.preload, before the program begins"),
    ("restart_syscall", "the kernel's own, after a stop"),
];

/// Calls that are not refused to the interpreter of Python in addition.
const EXEMPT_FROM_PYTHON: &[(&str, &str)] = &[
    ("epoll_ctl", "the event loop of asyncio, whose error names nothing"),
    ("epoll_wait", "the event loop of asyncio, whose error names nothing"),
    ("getpid", "asyncio takes the process for a child, without an event loop"),
];

/// Calls without which nothing can be removed.
const REMOVE: [&str; 2] = ["unlink", "unlinkat"];

/// Each cell is `BACKEND/CALL/ERROR/MOMENT`.
fn cells(list: &BTreeMap<String, Made>) -> Vec<Cell> {
    let mut cells = Vec::new();
    for door in DOORS {
        for (call, count) in &list[door.name] {
            let backends = if door.has_backend() { &BACKENDS[..] } else { &["auto"] };
            // A copy of the package for Python is one call of it.
            let has_later = *count > 1 && door.name != "python-copy";
            let moments: &[&str] = if has_later { &["first", "later"] } else { &["first"] };
            for backend in backends {
                for (error, _) in ERRORS {
                    for moment in moments {
                        let fault = format!("{backend}/{call}/{error}/{moment}");
                        cells.push(Cell::new(door.name, fault));
                    }
                }
            }
        }
    }
    cells
}

/// Things that the cells of a run share.
struct Sandbox<'a> {
    built: &'a Built,
    sources: &'a Sources,
    mount: &'a Mount,
    list: BTreeMap<String, Made>,
    numbers: BTreeMap<String, u32>,
    /// Cells so far: each has its own directory.
    count: AtomicUsize,
}

/// A call, the error of it, and whether the first calls succeed.
struct Refusal<'a> {
    call: &'a str,
    error: &'a str,
    is_later: bool,
}

/// A mounted ext4 in memory, which has everything that a door may ask for.
fn mount() -> Option<Mount> {
    if !is_root() {
        skip(Capability::Root, "only root mounts file systems");
        return None;
    }
    let kind = FileSystem::Ext4 { block: 4096, extra: &["-m", "0"] };
    if let Some((capability, why)) = kind.missing() {
        skip(capability, why);
        return None;
    }
    let device = Loop::new_in(std::path::Path::new("/dev/shm"), "refused", 256 << 20);
    Some(device.and_then(|device| Mount::on(device, kind, "defaults")).unwrap())
}

fn has_strace() -> bool {
    let has = Command::new("strace").arg("-V").output().is_ok();
    if !has {
        skip(Capability::Strace, "strace is not here");
    }
    has
}

#[test]
fn with_a_call_refused_a_door_does_its_work_or_reports_an_error() {
    let Some(mount) = mount() else { return };
    let has_strace = has_strace();
    let built = Built::new();
    let dir = mount.path().join("sources");
    std::fs::create_dir(&dir).unwrap();
    let sources = Sources::new(&dir, LENGTH, &built);
    let (list, numbers) = (calls::parsed(CALLS), numbers());
    let (built, sources) = (&built, &sources);
    let count = AtomicUsize::new(0);
    let sandbox = Sandbox { built, sources, mount: &mount, list, numbers, count };
    let matrix = Matrix::new("refused", include_str!("refused/failed_once.txt"));
    let cells = matrix.drawn(cells(&sandbox.list), DRAWN).into_iter();
    let cells: Vec<Cell> =
        cells.filter(|cell| has_strace || !cell.fault.ends_with("/later")).collect();
    matrix.run(&cells, 2, |cell| match sandbox.run(cell) {
        Outcome::Fault(Fault::Hang, _) => sandbox.run(cell),
        outcome => outcome,
    });
    matrix.finish();
    mount.finish().unwrap();
}

impl Sandbox<'_> {
    fn ground(&self) -> Ground<'_> {
        let number = self.count.fetch_add(1, Ordering::Relaxed);
        let dir = self.mount.path().join(format!("cell-{number}"));
        let objects = dir.join("objects");
        Ground { sources: self.sources, built: self.built, dir: dir.join("files"), objects }
    }

    fn run(&self, cell: &Cell) -> Outcome {
        let ground = self.ground();
        let outcome = self.run_on(cell, &ground);
        std::fs::remove_dir_all(ground.dir.parent().expect("of the cell")).unwrap();
        outcome
    }

    fn run_on(&self, cell: &Cell, ground: &Ground<'_>) -> Outcome {
        let door = door(&cell.door);
        let parts: Vec<&str> = cell.fault.split('/').collect();
        let [backend, call, error, moment] = parts.as_slice() else { unreachable!("{cell:?}") };
        door.prepare(ground).unwrap();
        let before = ground.names();
        let refusal = Refusal { call, error, is_later: *moment == "later" };
        let mut command = self.command(door, &refusal, ground);
        let ended = door.run(&mut command, ground, backend, LIMIT);
        assert_ne!(ended.status.code(), Some(99), "{}", ended.shown());
        let mut names = vec![*call, "io_uring", "aio", "eventfd", "shared librar", "dio run"];
        if ["write", "writev"].contains(call) {
            // Without it there is no message.
            names.push("");
        }
        match door.judge(ground, &before, &ended, &names) {
            Outcome::Fault(Fault::LeftBehind, _) if REMOVE.contains(call) => Outcome::Error,
            outcome => outcome,
        }
    }

    /// The door with the call refused.
    fn command(&self, door: &Door, refusal: &Refusal<'_>, ground: &Ground<'_>) -> Command {
        let Refusal { call, error, is_later } = *refusal;
        let words = door.words(ground);
        let number = self.numbers[call];
        let errno = ERRORS.iter().find(|(name, _)| *name == error).expect("one of two").1;
        if door.program == Program::Python {
            let mut python = Command::new(&words[0]);
            python.args(&words[1..]).env("REFUSED", format!("{number} {errno}"));
            python.env("REFUSED_AT", if is_later { "later" } else { "first" });
            python.env("REFUSED_BY", &ground.built.from_main);
            return python;
        }
        if is_later {
            // Within the last quarter of them.
            let when = (self.list[door.name][call] * 3).div_ceil(4).max(2);
            let mut strace = Command::new("strace");
            strace.args(["-f", "-qq", "--seccomp-bpf", "-o", "/dev/null", "-e"]);
            strace.arg(format!("trace={call}")).arg("-e");
            strace.arg(format!("inject={call}:error={error}:when={when}+"));
            strace.arg("--").args(words);
            return strace;
        }
        if door.name.starts_with("run-") {
            let mut launcher = Command::new(&ground.built.launcher);
            launcher.args([number.to_string(), errno.to_string()]).args(words);
            return launcher;
        }
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]).env("LD_PRELOAD", &ground.built.from_main);
        command.env("REFUSED", format!("{number} {errno}"));
        command
    }
}

/// A call that the list lacks would never be refused.
#[test]
fn the_list_has_every_call_that_a_door_makes() {
    let Some(mount) = mount() else { return };
    if !has_strace() {
        return;
    }
    let built = Built::new();
    let dir = files::dir();
    let sources = Sources::new(dir.path(), LENGTH, &built);
    let is_written = std::env::var("SNAPSHOTS").is_ok_and(|it| it == "overwrite");
    let list = if is_written { BTreeMap::new() } else { calls::parsed(CALLS) };
    let mut prng = Prng::new(env::seed()).fork("doors");
    let one_in = u64::try_from(DOORS.len() / COMPARED).expect("a few");
    let mut found: BTreeMap<String, Made> = BTreeMap::new();
    for door in DOORS {
        if !is_written && !is_soak() && !prng.one_in(one_in) {
            continue;
        }
        let backends = if door.has_backend() { &BACKENDS[..] } else { &["auto"] };
        for backend in backends {
            let dir = mount.path().join("cell");
            let (files, objects) = (dir.join("files"), dir.join("objects"));
            let ground = Ground { sources: &sources, built: &built, dir: files, objects };
            door.prepare(&ground).unwrap();
            let made = found.entry(door.name.to_owned()).or_default();
            for (call, count) in traced(door, backend, &ground) {
                let most = made.entry(call).or_default();
                *most = count.max(*most);
            }
        }
    }
    for (name, made) in &mut found {
        let is_python = door(name).program == Program::Python;
        let own = if is_python { EXEMPT_FROM_PYTHON } else { &[] };
        made.retain(|call, _| EXEMPT.iter().chain(own).all(|(exempt, _)| exempt != call));
    }
    if is_written {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        return std::fs::write(path.join("tests/nets/refused/calls.txt"), calls::text(&found))
            .unwrap();
    }
    for (door, made) in found {
        let missing: Vec<_> = made.keys().filter(|call| !list[&door].contains_key(*call)).collect();
        assert!(missing.is_empty(), "{door}: SNAPSHOTS=overwrite adds {missing:?}");
    }
}
