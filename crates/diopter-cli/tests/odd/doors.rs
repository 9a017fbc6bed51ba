//! The ways to bytes, and what each must leave. It has no test.

use std::fs;
use std::path::Path;
use std::process::Command;

use diopter::layouts::StripedFile;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};
use diopter_testkit::matrix::Fault;

use crate::cell::{Done, Ground, OLD, is_done, names, read_plainly, run};
use crate::requests;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Door {
    CopyFrom,
    CopyTo,
    TreeFrom,
    TreeTo,
    StripedFrom,
    StripedTo,
    Verify,
    VerifyDifferent,
    Sum,
    Blocking,
    Queue,
    Futures,
    Reader,
    Ranges,
    BlockingWrite,
    QueueWrite,
    Writer,
    Run,
}

impl Door {
    pub const ALL: [Door; 18] = [
        Door::CopyFrom,
        Door::CopyTo,
        Door::TreeFrom,
        Door::TreeTo,
        Door::StripedFrom,
        Door::StripedTo,
        Door::Verify,
        Door::VerifyDifferent,
        Door::Sum,
        Door::Blocking,
        Door::Queue,
        Door::Futures,
        Door::Reader,
        Door::Ranges,
        Door::BlockingWrite,
        Door::QueueWrite,
        Door::Writer,
        Door::Run,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Door::CopyFrom => "cp-from",
            Door::CopyTo => "cp-to",
            Door::TreeFrom => "tree-from",
            Door::TreeTo => "tree-to",
            Door::StripedFrom => "striped-from",
            Door::StripedTo => "striped-to",
            Door::Verify => "verify-same",
            Door::VerifyDifferent => "verify-different",
            Door::Sum => "sum",
            Door::Blocking => "blocking",
            Door::Queue => "queue",
            Door::Futures => "futures",
            Door::Reader => "reader",
            Door::Ranges => "ranges",
            Door::BlockingWrite => "blocking-write",
            Door::QueueWrite => "queue-write",
            Door::Writer => "writer",
            Door::Run => "run",
        }
    }

    /// Runs the door. Returns true if it did all, and false after an error that names something.
    ///
    /// # Errors
    /// Anything else.
    pub fn run(self, ground: &Ground) -> Done {
        match self {
            Door::CopyFrom => copy_from(ground),
            Door::CopyTo => copy_to(ground),
            Door::TreeFrom => tree_from(ground),
            Door::TreeTo => tree_to(ground),
            Door::StripedFrom => striped_from(ground),
            Door::StripedTo => striped_to(ground),
            Door::Verify => verify(ground, true),
            Door::VerifyDifferent => verify(ground, false),
            Door::Sum => sum(ground),
            Door::Blocking | Door::Queue | Door::Futures | Door::Reader | Door::Ranges => {
                self.reads(ground)
            }
            Door::BlockingWrite | Door::QueueWrite | Door::Writer => self.writes(ground),
            Door::Run => under_dio_run(ground),
        }
    }

    fn reads(self, ground: &Ground) -> Done {
        let target = ground.near("target");
        fs::write(&target, vec![0; ground.bytes.len() + 9000]).expect("room");
        let source = ground.far("source");
        let ended = run(&mut requests::command(self.name(), ground.backend, &source, &target));
        if is_done(ground, &ended)? { same_as_plain(ground, &target) } else { Ok(false) }
    }

    fn writes(self, ground: &Ground) -> Done {
        let source = ground.near("source");
        let target = ground.far("target");
        let ended = run(&mut requests::command(self.name(), ground.backend, &source, &target));
        if !is_done(ground, &ended)? {
            return Ok(false);
        }
        has("target", ground.odd.get("target").as_deref(), &ground.bytes)
    }
}

/// Checks the bytes that the odd file system has.
fn has(name: &str, there: Option<&[u8]>, expected: &[u8]) -> Done {
    let fault = if expected == OLD { Fault::OldContentLost } else { Fault::WrongBytes };
    match there {
        Some(there) if there == expected => Ok(true),
        Some(there) => {
            let differs = there.iter().zip(expected).position(|(one, other)| one != other);
            let (length, wanted) = (there.len(), expected.len());
            Err((fault, format!("{name}: {length} of {wanted} bytes, they differ at {differs:?}")))
        }
        None => Err((fault, format!("{name} is not there"))),
    }
}

/// The fault of a door that has bytes where plain calls have none.
fn unreadable() -> (Fault, String) {
    (Fault::WrongBytes, "plain calls cannot read it".to_owned())
}

fn left_behind(names: impl std::fmt::Debug) -> (Fault, String) {
    (Fault::LeftBehind, format!("{names:?}"))
}

fn same_as_plain(ground: &Ground, target: &Path) -> Done {
    let plain = read_plainly(&ground.far("source")).ok_or_else(unreadable)?;
    has("the copy", fs::read(target).ok().as_deref(), &plain)
}

fn only(left: &[String], expected: &[&str]) -> Done {
    if left == expected { Ok(true) } else { Err(left_behind(left)) }
}

fn copy_from(ground: &Ground) -> Done {
    let target = ground.near("target");
    fs::write(&target, OLD).expect("room");
    let ended = run(ground.dio("cp").args([&ground.far("source"), &target]));
    only(&names(ground.local.path()), &["source", "target"])?;
    if is_done(ground, &ended)? {
        return same_as_plain(ground, &target);
    }
    has("the old target", fs::read(&target).ok().as_deref(), OLD).map(|_| false)
}

fn copy_to(ground: &Ground) -> Done {
    ground.odd.put("target", OLD);
    let target = ground.far("target");
    let ended = run(ground.dio("cp").args([&ground.near("source"), &target]));
    only(&ground.odd.names(), &["source", "target"])?;
    let is_done = is_done(ground, &ended)?;
    // Permissions that cannot be set are an error, and no reason to copy nothing.
    let is_there = is_done || ended.stderr.contains("the copy is there without them");
    let expected = if is_there { &ground.bytes } else { OLD };
    has("the target", ground.odd.get("target").as_deref(), expected).map(|_| is_done)
}

/// The files of a tree: their names, and how many bytes of the content they have.
const TREE: [(&str, usize); 4] =
    [("empty", 0), ("large", 250_001), ("one", 1), ("sub/small", 5000)];

fn tree_from(ground: &Ground) -> Done {
    for (name, length) in TREE {
        ground.odd.put(&format!("tree/{name}"), &ground.bytes[..length]);
    }
    let target = ground.near("tree");
    let ended = run(ground.dio("cp").arg("-r").args([&ground.far("tree"), &target]));
    if !is_done(ground, &ended)? {
        return no_partial_file(&names_below(&target));
    }
    for (name, _) in TREE {
        let plain = read_plainly(&ground.far("tree").join(name)).ok_or_else(unreadable)?;
        has(name, fs::read(target.join(name)).ok().as_deref(), &plain)?;
    }
    Ok(true)
}

fn tree_to(ground: &Ground) -> Done {
    let source = ground.near("tree");
    fs::create_dir_all(source.join("sub")).expect("room");
    for (name, length) in TREE {
        fs::write(source.join(name), &ground.bytes[..length]).expect("room");
    }
    std::os::unix::fs::symlink("large", source.join("link")).expect("room");
    let ended = run(ground.dio("cp").arg("-a").args([&source, &ground.far("tree")]));
    let is_done = is_done(ground, &ended)?;
    no_partial_file(&ground.odd.names())?;
    for (name, length) in TREE {
        let there = ground.odd.get(&format!("tree/{name}"));
        if is_done || there.is_some() {
            has(name, there.as_deref(), &ground.bytes[..length])?;
        }
    }
    Ok(is_done)
}

fn names_below(directory: &Path) -> Vec<String> {
    let walk = walkdir::WalkDir::new(directory).into_iter().filter_map(Result::ok);
    walk.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn no_partial_file(names: &[String]) -> Done {
    match names.iter().find(|name| name.contains("dio-part")) {
        Some(name) => Err(left_behind(name)),
        None => Ok(false),
    }
}

/// Makes a striped file with its objects on the odd file system.
fn make_striped(ground: &Ground) -> Option<std::path::PathBuf> {
    let path = ground.near("striped");
    let objects = vec![ObjectPlace::Dir(ground.odd.path().to_owned()); 2];
    let options = CreateOptions { objects, stripe_size: 65_536, ..CreateOptions::default() };
    StripedFile::create(&path, &options).ok().map(|_| path)
}

/// Returns the bytes of a striped file, from what its objects have.
fn striped_bytes(ground: &Ground, path: &Path) -> Result<Vec<u8>, String> {
    let text = fs::read_to_string(path).map_err(|error| error.to_string())?;
    let manifest: serde_json::Value = serde_json::from_str(&text).map_err(|it| it.to_string())?;
    let objects = manifest["objects"].as_array().ok_or("no objects")?;
    let bytes_of = |object: &serde_json::Value| {
        let name = object["path"].as_str()?;
        ground.odd.get(Path::new(name).file_name()?.to_str()?)
    };
    let all: Option<Vec<Vec<u8>>> = objects.iter().map(bytes_of).collect();
    let all = all.ok_or("an object is missing")?;
    let mut pieces: Vec<_> = all.iter().map(|object| object.chunks(65_536)).collect();
    let mut bytes = Vec::new();
    for place in 0.. {
        let count = pieces.len();
        match pieces[place % count].next() {
            Some(piece) => bytes.extend_from_slice(piece),
            None => return Ok(bytes),
        }
    }
    Ok(bytes)
}

fn striped_to(ground: &Ground) -> Done {
    let Some(striped) = make_striped(ground) else { return Ok(false) };
    let ended = run(ground.dio("cp").args([&ground.near("source"), &striped]));
    let is_done = is_done(ground, &ended)?;
    // The source, and two objects.
    if ground.odd.names().len() != 3 {
        return Err(left_behind(ground.odd.names()));
    }
    let expected: &[u8] = if is_done { &ground.bytes } else { &[] };
    let there = striped_bytes(ground, &striped).map_err(|why| (Fault::WrongBytes, why))?;
    has("the striped file", Some(&there), expected).map(|_| is_done)
}

fn striped_from(ground: &Ground) -> Done {
    let Some(striped) = make_striped(ground) else { return Ok(false) };
    let target = ground.near("target");
    let ended = run(ground.dio("cp").args([&ground.near("source"), &striped]));
    if !is_done(ground, &ended)? {
        return Ok(false);
    }
    let ended = run(ground.dio("cp").args([&striped, &target]));
    if !is_done(ground, &ended)? {
        return Ok(false);
    }
    has("the copy", fs::read(&target).ok().as_deref(), &ground.bytes)
}

fn verify(ground: &Ground, is_equal: bool) -> Done {
    let near = ground.near("copy");
    let Some(mut plain) = read_plainly(&ground.far("source")) else {
        fs::write(&near, &ground.bytes).expect("room");
        let ended = run(ground.dio("verify").args([&ground.far("source"), &near]));
        return if is_done(ground, &ended)? { Err(unreadable()) } else { Ok(false) };
    };
    if !is_equal {
        *plain.last_mut().expect("not empty") ^= 1;
    }
    fs::write(&near, &plain).expect("room");
    let ended = run(ground.dio("verify").args([&ground.far("source"), &near]));
    match (ended.status.code(), is_equal) {
        (Some(0), false) => Err((Fault::WrongBytes, "no difference".to_owned())),
        // A difference is a result, on standard output: by bytes, or by sizes that are wrong.
        (Some(1), false) if !ended.stdout.trim().is_empty() => Ok(true),
        (Some(1), true) if ended.stdout.contains("bytes") => Ok(false),
        _ => is_done(ground, &ended),
    }
}

fn sum(ground: &Ground) -> Done {
    let plain = read_plainly(&ground.far("source"));
    let ended = run(ground.dio("sum").arg(ground.far("source")));
    if !is_done(ground, &ended)? {
        return Ok(false);
    }
    let plain = plain.ok_or_else(unreadable)?;
    fs::write(ground.near("copy"), plain).expect("room");
    let near = run(ground.dio("sum").arg(ground.near("copy")));
    let first = |text: &str| text.split_whitespace().next().map(str::to_owned);
    if first(&near.stdout) == first(&ended.stdout) {
        Ok(true)
    } else {
        Err((Fault::WrongBytes, format!("another sum: {}", ended.stdout)))
    }
}

fn under_dio_run(ground: &Ground) -> Done {
    let [source, target] = [ground.far("source"), ground.near("target")];
    let plain = Command::new("cat").arg(&source).output().expect("cat");
    // The output of the program stays a pipe, as cat does other calls where it is a file.
    let mut piped = Command::new("bash");
    piped.args(["-o", "pipefail", "-c", "\"$@\" | cat > \"$0\""]).arg(&target);
    let program = [env!("CARGO_BIN_EXE_dio"), "run", "--all", "--min-size", "1", "--", "cat"];
    piped.args(program).arg(&source).env("DIOPTER_BACKEND", ground.backend);
    let ended = run(&mut piped);
    if !is_done(ground, &ended)? {
        return Ok(false);
    }
    if !plain.status.success() {
        return Err(unreadable());
    }
    has("what cat read", fs::read(&target).ok().as_deref(), &plain.stdout)
}
