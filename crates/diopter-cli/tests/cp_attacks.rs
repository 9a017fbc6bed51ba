//! Another user against `dio cp -r` of the administrator: names are swapped while it runs, in a
//! directory that this user owns. No byte and no attribute of what the user may not change changes,
//! and nothing that the user may not read is in the copy. GNU cp has the same attacks, for
//! comparison. A second or two of each; with `DIOPTER_SOAK` half a minute.

mod cp_support;
#[path = "cp_attacks/striped.rs"]
mod striped;

use std::fs::{DirBuilder, Metadata, Permissions};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cp_support::*;
use rustix::fs::{CWD, FileType, Mode, RenameFlags, renameat_with};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

/// The user who attacks: the number of `nobody` on most systems.
const ATTACKER: u32 = 65_534;

const SECRET: &[u8] = b"what only the administrator may read";

/// How long each program is attacked at least.
const TIME: Duration = Duration::from_secs(1);
const TIME_OF_A_SOAK: Duration = Duration::from_secs(30);

/// Attempts in which names were swapped while the program ran, at least.
const HITS_MIN: u64 = 5;
const HITS_OF_A_SOAK_MIN: u64 = 100;

/// A directory of the attacker, a source, and what the attacker wants.
struct Ground {
    root: tempfile::TempDir,
    /// Belongs to the attacker, who may rename what is in it.
    open: PathBuf,
    /// Only the administrator may write here, and only the administrator may read `secret` in it.
    closed: PathBuf,
    /// Belongs to the administrator.
    source: PathBuf,
}

impl Ground {
    fn new() -> Ground {
        let root = dir();
        std::fs::set_permissions(root.path(), Permissions::from_mode(0o755)).unwrap();
        let [open, closed, source] =
            ["open", "closed", "source"].map(|name| root.path().join(name));
        for path in [&open, &closed, &source] {
            DirBuilder::new().mode(0o755).create(path).unwrap();
        }
        std::fs::write(closed.join("secret"), SECRET).unwrap();
        std::fs::set_permissions(closed.join("secret"), Permissions::from_mode(0o600)).unwrap();
        chown(&open, Some(ATTACKER), Some(ATTACKER)).unwrap();
        Ground { root, open, closed, source }
    }

    /// Makes something the attacker's.
    fn give(path: &Path) {
        std::os::unix::fs::lchown(path, Some(ATTACKER), Some(ATTACKER)).unwrap();
    }

    /// All that the attacker may not change.
    fn picture(&self) -> Vec<String> {
        let line = |path: &Path| {
            let found = path.symlink_metadata().unwrap();
            let of = |it: &Metadata| (it.ino(), it.mode(), it.uid(), it.gid(), it.mtime_nsec());
            let bytes = std::fs::read(path).unwrap_or_default();
            format!("{} {:?} {:?}", path.display(), of(&found), blake3::hash(&bytes))
        };
        let names = names(&self.closed).into_iter().map(|name| self.closed.join(name));
        std::iter::once(self.closed.clone()).chain(names).map(|path| line(&path)).collect()
    }

    /// Returns true if a file below a directory has content that only the administrator may read.
    fn is_disclosed(path: &Path) -> bool {
        walkdir::WalkDir::new(path).into_iter().flatten().any(|entry| {
            let is_readable = entry.metadata().is_ok_and(|found| {
                found.is_file() && (found.uid() == ATTACKER || found.mode() & 0o004 != 0)
            });
            is_readable && std::fs::read(entry.path()).is_ok_and(|bytes| bytes == SECRET)
        })
    }
}

/// Returns true if the attacks can run here.
fn can_attack() -> bool {
    if !is_root() {
        skip(Capability::Root, "only the administrator has something to lose");
        return false;
    }
    true
}

/// Runs `attack` over and over as the other user, counting, until `stop`.
fn attack_until(stop: &AtomicBool, swaps: &AtomicU64, attack: &(dyn Fn() -> u64 + Sync)) {
    // Of this thread alone: its user, and with that its capabilities.
    let (user, group) = (rustix::fs::Uid::from_raw(ATTACKER), rustix::fs::Gid::from_raw(ATTACKER));
    set_thread_groups(&[]).unwrap();
    set_thread_res_gid(group, group, group).unwrap();
    set_thread_res_uid(user, user, user).unwrap();
    while !stop.load(Ordering::Relaxed) {
        swaps.fetch_add(attack(), Ordering::Relaxed);
    }
}

/// The results of one program under attack.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    /// Runs in which names were swapped.
    hits: u64,
    /// Runs that ended with an error.
    refused: u64,
    /// Runs after which something was changed or disclosed.
    lost: u64,
}

/// Attacks a program for a while. `harm` says whether a run did harm.
fn attack(
    command: &mut Command,
    swap: &(dyn Fn() -> u64 + Sync),
    prepare: &dyn Fn(),
    harm: &dyn Fn() -> bool,
) -> Tally {
    let is_soak = std::env::var_os("DIOPTER_SOAK").is_some();
    let (time, hits_min) =
        if is_soak { (TIME_OF_A_SOAK, HITS_OF_A_SOAK_MIN) } else { (TIME, HITS_MIN) };
    let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut tally = Tally::default();
    std::thread::scope(|scope| {
        scope.spawn(|| attack_until(&stop, &swaps, swap));
        let started = Instant::now();
        while started.elapsed() < time || tally.hits < hits_min {
            assert!(started.elapsed() < time + PATIENCE, "the attack hits nothing: {tally:?}");
            prepare();
            let before = swaps.load(Ordering::Relaxed);
            let output = command.output().unwrap();
            tally.runs += 1;
            tally.hits += u64::from(swaps.load(Ordering::Relaxed) != before);
            tally.refused += u64::from(!output.status.success());
            tally.lost += u64::from(harm());
        }
        stop.store(true, Ordering::Relaxed);
    });
    // A program that refuses every run loses nothing either.
    prepare();
    let output = command.output().unwrap();
    assert!(output.status.success(), "without an attack: {}", message(&output));
    assert!(!harm(), "without an attack");
    tally
}

/// The expected result of a run while names are swapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// The swapped file is copied like the rest, or comes too late to be seen.
    Success,
    /// A swap may be what the program must refuse.
    Either,
}

/// Attacks `dio cp -a` and GNU `cp -a`, and wants that dio loses nothing.
fn compare(
    (what, outcome): (&str, Outcome),
    (source, target): (&Path, &Path),
    swap: &(dyn Fn() -> u64 + Sync),
    prepare: &dyn Fn(),
    harm: &dyn Fn() -> bool,
) {
    let mut ours = dio();
    ours.arg("-a").args([source, target]);
    let ours = attack(&mut ours, swap, prepare, harm);
    let mut theirs = Command::new("cp");
    theirs.arg("-a").args([source, target]);
    let theirs = attack(&mut theirs, swap, prepare, harm);
    print_line(&format!("{what}: dio cp -a {ours:?}; cp -a {theirs:?}"));
    assert_eq!(ours.lost, 0, "{what}");
    assert!(outcome == Outcome::Either || ours.refused < ours.runs, "{what}: {ours:?}");
}

/// As [`compare`], into a directory that is new in each run and the attacker's. Nothing that the
/// attacker may not change may change.
fn compare_into(ground: &Ground, what: (&str, Outcome), swap: &(dyn Fn(&Path) -> u64 + Sync)) {
    let target = ground.open.join("source");
    let prepare = || {
        clear(&target);
        std::fs::create_dir(&target).unwrap();
        Ground::give(&target);
    };
    let before = std::cell::RefCell::new(ground.picture());
    let harm = || before.replace(ground.picture()) != ground.picture();
    compare(what, (&ground.source, &ground.open), &|| swap(&target), &prepare, &harm);
}

/// Exchanges two names; how often that was done.
fn exchange(one: &Path, other: &Path) -> u64 {
    u64::from(renameat_with(CWD, one, CWD, other, RenameFlags::EXCHANGE).is_ok())
}

/// Removes a name, whatever has it.
fn clear(path: &Path) {
    std::fs::remove_dir_all(path).or_else(|_| std::fs::remove_file(path)).unwrap_or(());
}

#[test]
fn a_target_directory_that_is_swapped_for_a_link() {
    if !can_attack() {
        return;
    }
    let ground = Ground::new();
    std::fs::create_dir(ground.source.join("d")).unwrap();
    for number in 0..8 {
        std::fs::write(ground.source.join(format!("d/f{number}")), b"root's").unwrap();
    }
    std::fs::set_permissions(ground.source.join("d"), Permissions::from_mode(0o777)).unwrap();
    Ground::give(&ground.source.join("d"));
    let [target, link] = ["source/d", "source/link"].map(|name| ground.open.join(name));
    let inner = ground.open.join("source");
    let prepare = || {
        clear(&inner);
        std::fs::create_dir(&inner).unwrap();
        std::fs::create_dir(&target).unwrap();
        symlink(&ground.closed, &link).unwrap();
        for path in [&inner, &target, &link] {
            Ground::give(path);
        }
    };
    let before = std::cell::RefCell::new(ground.picture());
    let harm = || before.replace(ground.picture()) != ground.picture();
    let swap = || exchange(&target, &link);
    compare(
        ("target directory", Outcome::Either),
        (&ground.source, &ground.open),
        &swap,
        &prepare,
        &harm,
    );
}

#[test]
fn a_source_file_that_is_swapped_for_a_link_to_a_secret() {
    if !can_attack() {
        return;
    }
    let ground = Ground::new();
    let copy = ground.root.path().join("copy");
    let [file, link] = ["file", "link"].map(|name| ground.open.join(name));
    std::fs::write(&file, b"public").unwrap();
    symlink(ground.closed.join("secret"), &link).unwrap();
    Ground::give(&file);
    Ground::give(&link);
    let prepare = || clear(&copy);
    let harm = || Ground::is_disclosed(&copy);
    let swap = || exchange(&file, &link);
    compare(("source file", Outcome::Success), (&ground.open, &copy), &swap, &prepare, &harm);
}

/// Replaces everything in a directory that has not one of the `known` names by a link.
fn replace_new_names(dir: &Path, known: &[&str], leads_to: &Path, number: &AtomicU64) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let is_new = |name: &str| !known.contains(&name) && !name.starts_with("trap");
    let mut replaced = 0;
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(is_new) {
            let trap = dir.join(format!("trap{}", number.fetch_add(1, Ordering::Relaxed)));
            if symlink(leads_to, &trap).is_ok() {
                replaced += u64::from(std::fs::rename(&trap, entry.path()).is_ok());
            }
        }
    }
    replaced
}

#[test]
fn temporaries_of_files_and_fifos_that_are_swapped_for_links() {
    if !can_attack() {
        return;
    }
    let ground = Ground::new();
    for number in 0..8 {
        let fifo = ground.source.join(format!("fifo{number}"));
        let mode = Mode::from_bits_truncate(0o666);
        rustix::fs::mknodat(CWD, &fifo, FileType::Fifo, mode, 0).unwrap();
        let file = ground.source.join(format!("file{number}"));
        std::fs::write(&file, b"root's").unwrap();
        for path in [fifo, file] {
            std::fs::set_permissions(&path, Permissions::from_mode(0o666)).unwrap();
            Ground::give(&path);
        }
    }
    let (number, secret) = (AtomicU64::new(0), ground.closed.join("secret"));
    let swap = |target: &Path| replace_new_names(target, &[], &secret, &number);
    compare_into(&ground, ("temporaries", Outcome::Either), &swap);
}

#[test]
fn directories_that_are_made_and_swapped_for_others() {
    if !can_attack() {
        return;
    }
    let ground = Ground::new();
    for number in 0..8 {
        let path = ground.source.join(format!("d{number}"));
        std::fs::create_dir(&path).unwrap();
        std::fs::write(path.join("file"), b"root's").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
        Ground::give(&path);
    }
    let number = AtomicU64::new(0);
    let swap = |target: &Path| replace_made(target, &ground.closed, &number);
    compare_into(&ground, ("new directories", Outcome::Success), &swap);
}

/// Moves every directory in a directory away, and puts a link in its place.
fn replace_made(dir: &Path, leads_to: &Path, number: &AtomicU64) -> u64 {
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let mut replaced = 0;
    for entry in entries.flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with('d')) {
            let trap = dir.join(format!("trap{}", number.fetch_add(1, Ordering::Relaxed)));
            if symlink(leads_to, &trap).is_ok() {
                replaced += exchange(&trap, &entry.path());
            }
        }
    }
    replaced
}

#[test]
fn names_that_were_made_before_the_copy() {
    if !can_attack() {
        return;
    }
    let ground = Ground::new();
    let target = ground.open.join("source");
    std::fs::create_dir(&target).unwrap();
    Ground::give(&target);
    let [file, link, secret] = ["file", "link", "secret"].map(|name| ground.source.join(name));
    for path in [&file, &link, &secret] {
        std::fs::write(path, SECRET).unwrap();
        std::fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
    }
    // A link to a file of the administrator, one to a directory, and a file that all may read.
    symlink(ground.closed.join("secret"), target.join("link")).unwrap();
    std::fs::write(target.join("file"), b"the attacker's").unwrap();
    std::fs::set_permissions(target.join("file"), Permissions::from_mode(0o666)).unwrap();
    let temporary = temporary_of(&target.join("secret"));
    std::fs::write(&temporary, b"the attacker's").unwrap();
    for path in [&target.join("link"), &target.join("file"), &temporary] {
        Ground::give(path);
    }
    let before = ground.picture();
    for options in [["-r"], ["-a"]] {
        let output = cp(&options, &ground.source, &ground.open);
        assert!(output.status.success(), "{}", message(&output));
        assert_eq!(ground.picture(), before);
        for name in ["file", "link", "secret"] {
            let found = target.join(name).symlink_metadata().unwrap();
            assert_eq!((found.is_file(), found.uid(), found.mode() & 0o777), (true, 0, 0o600));
        }
        assert!(!Ground::is_disclosed(&ground.open));
        assert_eq!(std::fs::read(&temporary).unwrap(), b"the attacker's");
    }
}
