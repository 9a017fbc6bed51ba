//! The doors that write, on file systems with 0 to 8 MiB of free space, with a quota, without space
//! for metadata, and with a limit on the size of files. In each cell the door ends with 0 and the
//! right bytes, or with an error, the old content, and nothing left behind.

mod volume;

use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;
use std::time::Duration;

use diopter_testkit::env::{Capability, is_root, is_soak, skip};
use diopter_testkit::matrix::{Cell, Matrix, Outcome};
use diopter_testkit::{files, watched};

use crate::built::Built;
use crate::doors::{DOORS, Door, Program, door};
use crate::ground::{Ground, Sources};
use volume::{KINDS, Kind, Scarce, Volume, kind};

/// No cell takes longer.
const LIMIT: Duration = Duration::from_secs(10);

/// Cells of a run that is not a soak, without those that failed once.
const DRAWN: usize = 200;

/// Bytes of the file that is copied: more than half of what is left at most.
const LENGTH: usize = (5 << 20) + 77;

/// Steps of free space, and the most of it.
const STEPS: u64 = 20;
const LEFT_BYTES_MAX: u64 = 8 << 20;

const BACKENDS: [&str; 3] = ["uring", "aio", "threads"];

/// Limits on the size of a file, in KiB, and what the process does with the signal.
const FILE_SIZES: [u64; 3] = [64, 1024, 5120];
const SIGNALS: [&str; 2] = ["ignored", "default"];

/// `setpriv` without the right to exceed a quota, and an end of what sets a limit.
const UNPRIVILEGED: [&str; 3] = ["setpriv", "--bounding-set=-sys_resource", "--"];

/// The number of SIGXFSZ.
const TOO_LARGE: i32 = 25;

/// Each cell is `KIND/STEP/BACKEND`, or `fsize/KIB/SIGNAL` on ext4.
fn cells() -> Vec<Cell> {
    let mut cells = Vec::new();
    for kind in KINDS {
        let steps = if kind.scarce == Scarce::Metadata { 2 } else { STEPS };
        for step in 0..steps {
            for backend in BACKENDS {
                for door in doors() {
                    cells.push(Cell::new(door.name, format!("{}/{step}/{backend}", kind.name)));
                }
            }
        }
    }
    for size in FILE_SIZES {
        for signal in SIGNALS {
            for door in doors() {
                cells.push(Cell::new(door.name, format!("fsize/{size}/{signal}")));
            }
        }
    }
    cells
}

fn doors() -> impl Iterator<Item = &'static Door> {
    DOORS.iter().filter(|door| door.writes)
}

/// The kind of file system of a cell.
fn kind_of(cell: &Cell) -> &'static Kind {
    match cell.fault.split('/').next() {
        Some("fsize") => kind("ext4"),
        name => kind(name.expect("the first part")),
    }
}

#[test]
fn on_a_full_file_system_a_copy_is_whole_or_an_error() {
    if !is_root() {
        return skip(Capability::Root, "only root mounts file systems");
    }
    let built = Built::new();
    let scratch = files::dir();
    let sources = Sources::new(scratch.path(), LENGTH, &built);
    let matrix = Matrix::new("full", include_str!("full/failed_once.txt"));
    let cells = matrix.drawn(cells(), DRAWN);
    let shared = Shared { matrix, sources, built, scratch: scratch.path() };
    // One volume is filled for one cell at a time; two volumes at the same time.
    let kinds = Mutex::new(KINDS.iter());
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let Some(kind) = kinds.lock().expect("no panic").next() else { break };
                    let is_here = |cell: &&Cell| kind_of(cell).name == kind.name;
                    let here: Vec<&Cell> = cells.iter().filter(is_here).collect();
                    shared.run_on(kind, &here);
                }
            });
        }
    });
    shared.matrix.finish();
}

/// Cells on one file system.
const CELLS_OF_VOLUME: usize = 100;

/// Things that the cells of a run share.
struct Shared<'a> {
    matrix: Matrix,
    sources: Sources,
    built: Built,
    scratch: &'a Path,
}

impl Shared<'_> {
    /// Runs cells one after the other, on a new file system after each [`CELLS_OF_VOLUME`]: btrfs
    /// gives metadata back late, and what one cell leaves must not decide a much later one.
    fn run_on(&self, kind: &'static Kind, cells: &[&Cell]) {
        cells.chunks(CELLS_OF_VOLUME).for_each(|cells| self.run_on_one(kind, cells));
    }

    fn run_on_one(&self, kind: &'static Kind, cells: &[&Cell]) {
        let Some(mut volume) = Volume::new(kind) else { return };
        for cell in cells {
            if let Err(error) = self.prepare(cell, &volume) {
                assert_eq!(error.kind(), ErrorKind::StorageFull, "{cell:?}: {error}");
                // What the cells before it have left there is not to decide this one.
                volume.release();
                volume.finish();
                volume = Volume::new(kind).expect("as the first one");
                self.prepare(cell, &volume).unwrap();
            }
            self.matrix.note((*cell).clone(), run(cell, &volume, &self.ground(&volume)));
        }
        volume.release();
        volume.finish();
    }

    fn ground(&self, volume: &Volume) -> Ground<'_> {
        let objects = self.scratch.join(format!("objects-{}", volume.name()));
        Ground { sources: &self.sources, built: &self.built, dir: volume.dir(), objects }
    }

    /// Gives all space of a volume back, and makes the files of a cell.
    fn prepare(&self, cell: &Cell, volume: &Volume) -> std::io::Result<()> {
        let ground = self.ground(volume);
        volume.release();
        ground.clear();
        // Some file systems have the space of removed files only then.
        volume.sync();
        door(&cell.door).prepare(&ground)
    }
}

fn run(cell: &Cell, volume: &Volume, ground: &Ground<'_>) -> Outcome {
    let door = door(&cell.door);
    let parts: Vec<&str> = cell.fault.split('/').collect();
    let number: u64 = parts[1].parse().expect("a number");
    let is_limit = parts[0] == "fsize";
    let mut words: Vec<String> = Vec::new();
    if is_limit {
        let trap = if parts[2] == "ignored" { "trap '' XFSZ; " } else { "" };
        let script = format!("{trap}ulimit -f {number}; exec \"$@\"");
        words.extend(["bash", "-c", &script, "bash"].map(str::to_owned));
    } else {
        words.extend(UNPRIVILEGED.map(str::to_owned));
        volume.leave(number * LEFT_BYTES_MAX / (STEPS - 1));
    }
    words.extend(door.words(ground));
    let before = ground.names();
    let mut command = Command::new(&words[0]);
    let backend = if is_limit { "auto" } else { parts[2] };
    let ended = door.run(command.args(&words[1..]), ground, backend, LIMIT);
    // What a signal does to a program is the program's choice, except for the command's own.
    let is_plain = door.program != Program::Dio || door.name.starts_with("run-");
    if is_limit && is_plain && parts[2] == "default" && is_killed_by(&ended, TOO_LARGE) {
        return Outcome::Error;
    }
    door.judge(ground, &before, &ended, &[])
}

fn is_killed_by(ended: &watched::Ended, signal: i32) -> bool {
    use std::os::unix::process::ExitStatusExt;
    ended.status.signal() == Some(signal) || ended.status.code() == Some(128 + signal)
}

#[test]
fn the_matrix_has_every_door_that_writes() {
    let cells = cells();
    let per_door = cells.iter().filter(|cell| cell.door == "cp-new").count();
    assert_eq!(cells.len(), per_door * doors().count());
    assert!(is_soak() || cells.len() > DRAWN);
}
