//! The doors: for each the program, its words, the files that are there before, and how the files
//! are judged after it. The judgement reads files by plain calls.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use diopter_testkit::matrix::{Fault, Outcome};
use diopter_testkit::watched::{self, Ended};

use crate::built::succeeds;
use crate::ground::{Ground, create_striped, files_below, striped};

/// Which program a door is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Dio,
    Rust,
    C,
    Python,
    /// The store of objects.
    Store,
}

/// The files that a door makes, and how it is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Makes {
    /// A new file or none, atomically.
    New,
    /// A file in place of an old one, atomically.
    Replaced,
    /// A file, written in place: after an error it may have any content.
    InPlace,
    /// The same over an old one.
    Over,
    /// A file, written in place from front to back: after an error it has the first bytes of the
    /// content and no others.
    Stream,
    /// A directory: after an error it has some of the files, each of them whole.
    Tree,
    /// A striped file in place of an old one, atomically. The object of this number is in the
    /// directory of the target, and the other one elsewhere. Where that is the first one, the first
    /// stripe of each request has space on a full file system, and so has the manifest.
    Striped { here: usize },
    /// A new striped file or none.
    NewStriped,
    /// The file inside the image, copied out, or none.
    FromImage,
    /// A copy of the image, the file in it written in place: after an error that file may have any
    /// content, and no other byte of the image is changed.
    IntoImage,
    /// Nothing: the sum of the file is printed.
    Sum,
    /// Nothing: status 0 or an error, never 1.
    Equal,
    /// Nothing: status 1 or an error, never 0.
    Different,
}

/// A way in.
#[derive(Debug)]
pub struct Door {
    pub name: &'static str,
    pub program: Program,
    /// `FILE`, `CHANGED`, `TREE`, `IMAGE`, `SOLID`, `SOURCE.dio`, `TARGET` and `STRIPED` are names
    /// of the cell's files, with `<` or `>` before them those of standard input or output. Programs
    /// other than the command get `FILE` and `TARGET` in addition.
    pub words: &'static [&'static str],
    pub makes: Makes,
    /// The door writes files of the file system that is under test.
    pub writes: bool,
}

const fn dio(name: &'static str, words: &'static [&'static str], makes: Makes) -> Door {
    let writes = !matches!(makes, Makes::Sum | Makes::Equal | Makes::Different);
    Door { name, program: Program::Dio, words, makes, writes }
}

/// A door that reads by its program, and writes the target by plain calls.
const fn reads(name: &'static str, program: Program, way: &'static [&'static str]) -> Door {
    Door { name, program, words: way, makes: Makes::New, writes: false }
}

const fn writes(
    name: &'static str,
    program: Program,
    way: &'static [&'static str],
    makes: Makes,
) -> Door {
    Door { name, program, words: way, makes, writes: true }
}

pub const DOORS: &[Door] = {
    use Program::{C, Python, Rust, Store};
    &[
        dio("cp-new", &["cp", "--bs=64k", "FILE", "TARGET"], Makes::New),
        dio("cp-over", &["cp", "FILE", "TARGET"], Makes::Replaced),
        dio("cp-verify", &["cp", "--verify", "--bs=256k", "FILE", "TARGET"], Makes::Replaced),
        dio(
            "cp-sparse",
            &["cp", "--sparse=always", "--bs=256k", "FILE", "TARGET"],
            Makes::Replaced,
        ),
        dio("cp-tree", &["cp", "-r", "--flush=filesystem", "TREE", "TARGET"], Makes::Tree),
        dio(
            "cp-tree-files",
            &["cp", "-r", "--verify", "--flush=files", "TREE", "TARGET"],
            Makes::Tree,
        ),
        dio("cp-input", &["cp", "--bs=64k", "-", "TARGET", "<FILE"], Makes::Replaced),
        Door { writes: false, ..dio("cp-output", &["cp", "FILE", "-", ">TARGET"], Makes::Stream) },
        dio("cp-part", CP_PART, Makes::Over),
        dio("cp-striped", &["cp", "--bs=256k", "FILE", "STRIPED"], Makes::Striped { here: 0 }),
        dio("cp-striped-second", &["cp", "--bs=1M", "FILE", "STRIPED"], Makes::Striped { here: 1 }),
        dio(
            "cp-striped-sparse",
            &["cp", "--sparse=always", "--bs=1M", "FILE", "STRIPED"],
            Makes::Striped { here: 1 },
        ),
        dio("cp-striped-new", &["cp", "--striped", "SOURCE.dio", "STRIPED"], Makes::NewStriped),
        dio("cp-image", &["cp", "IMAGE::/inside", "TARGET"], Makes::FromImage),
        dio("cp-into-image", &["cp", "--overwrite", "SOLID", "TARGET::/solid"], Makes::IntoImage),
        dio("verify-same", &["verify", "FILE", "SOURCE.dio"], Makes::Equal),
        dio("verify-different", &["verify", "FILE", "CHANGED"], Makes::Different),
        dio("sum", &["sum", "FILE"], Makes::Sum),
        dio("run-dd", RUN_DD, Makes::InPlace),
        dio("run-all-cp", RUN_ALL_CP, Makes::InPlace),
        reads("rust-calls-read", Rust, &["calls-read"]),
        reads("rust-queue-read", Rust, &["queue-read"]),
        reads("rust-futures-read", Rust, &["futures-read"]),
        reads("rust-ranges-read", Rust, &["ranges-read"]),
        reads("rust-reader", Rust, &["reader-read"]),
        writes("rust-calls", Rust, &["calls-write"], Makes::Stream),
        writes("rust-queue", Rust, &["queue-write"], Makes::InPlace),
        writes("rust-futures", Rust, &["futures-write"], Makes::InPlace),
        writes("rust-ranges", Rust, &["ranges-write"], Makes::InPlace),
        writes("rust-writer", Rust, &["writer-write"], Makes::InPlace),
        writes("rust-writer-hinted", Rust, &["hinted-write"], Makes::InPlace),
        writes("rust-writer-reserved", Rust, &["reserved-write"], Makes::InPlace),
        reads("c-calls-read", C, &["calls-read"]),
        reads("c-queue-read", C, &["queue-read"]),
        writes("c-calls", C, &["calls-write"], Makes::Stream),
        writes("c-queue", C, &["queue-write"], Makes::InPlace),
        reads("python-calls-read", Python, &["calls-read"]),
        reads("python-ranges-read", Python, &["ranges-read"]),
        reads("python-reader", Python, &["reader-read"]),
        reads("python-asyncio-read", Python, &["asyncio-read"]),
        writes("python-calls", Python, &["calls-write"], Makes::Stream),
        writes("python-writer", Python, &["writer-write"], Makes::InPlace),
        writes("python-asyncio", Python, &["asyncio-write"], Makes::InPlace),
        writes("python-copy", Python, &["copy"], Makes::Replaced),
        reads("store-get", Store, &["get"]),
        reads("store-ranges", Store, &["ranges"]),
        writes("store-put", Store, &["put"], Makes::Replaced),
        writes("store-create", Store, &["create"], Makes::New),
        writes("store-upload", Store, &["upload"], Makes::Replaced),
    ]
};

const CP_PART: &[&str] = &["cp", "--overwrite", "--target-offset=0", "--verify", "FILE", "TARGET"];

/// Blocks of 100,000 bytes: the kernel refuses each, and the library serves it.
const RUN_DD: &[&str] = &[
    "run",
    "--",
    "dd",
    "if=FILE",
    "of=TARGET",
    "bs=100000",
    "iflag=direct",
    "oflag=direct",
    "conv=fsync",
];

const RUN_ALL_CP: &[&str] = &["run", "--all", "--min-size", "4k", "--", "cp", "FILE", "TARGET"];

/// The program for Python.
const PYTHON_DOOR: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/door.py");

/// The door of this name.
pub fn door(name: &str) -> &'static Door {
    DOORS.iter().find(|door| door.name == name).unwrap_or_else(|| panic!("no door {name}"))
}

impl Door {
    /// The variable of the backend has an effect.
    pub fn has_backend(&self) -> bool {
        !self.name.starts_with("run-") && !self.name.contains("-calls")
    }

    /// Texts of which the message of an error has one. The library does not name the file: its
    /// caller has it open. It names the operation and the bytes.
    fn names(&self, ground: &Ground<'_>) -> Vec<String> {
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let sources = ground.sources.file.parent().expect("a directory");
        let mut names = vec![text(&ground.dir), text(&ground.objects), text(sources)];
        if self.program != Program::Dio {
            names.extend(["bytes [", "request for [", "flush", "open", "size"].map(str::to_owned));
        }
        if self.words.iter().any(|word| word.starts_with(['<', '>'])) {
            names.push("standard ".to_owned());
        }
        if self.program == Program::Store {
            // It names the step, as `LocalFileSystem` does.
            names.push("Unable to ".to_owned());
        }
        names
    }

    fn manifest(&self, ground: &Ground<'_>) -> PathBuf {
        let dir = match self.makes {
            Makes::Striped { here: 1 } => &ground.objects,
            _ => &ground.dir,
        };
        dir.join("striped.dio")
    }

    /// Makes the files that are there before. Fails where a file system has no room for them.
    pub fn prepare(&self, ground: &Ground<'_>) -> std::io::Result<()> {
        ground.clear();
        let old = &ground.sources.old;
        match self.makes {
            Makes::Replaced | Makes::Over => drop(fs::copy(old, ground.target())?),
            Makes::IntoImage => drop(fs::copy(&ground.sources.image, ground.target())?),
            Makes::Striped { here } => {
                let mut dirs = [ground.dir.as_path(), &ground.objects];
                dirs.rotate_right(here);
                create_striped(ground.built, &self.manifest(ground), dirs);
                succeeds(
                    Command::new(&ground.built.dio).arg("cp").arg(old).arg(self.manifest(ground)),
                );
            }
            _ => {}
        }
        Ok(())
    }

    /// The program and its words.
    pub fn words(&self, ground: &Ground<'_>) -> Vec<String> {
        let (sources, built) = (ground.sources, ground.built);
        let program = match self.program {
            Program::Dio => &built.dio,
            Program::Rust => &built.rust,
            Program::C => &built.c,
            Program::Python => &built.python,
            Program::Store => &built.store,
        };
        let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
        let names = [
            ("SOURCE.dio", text(&sources.striped)),
            ("CHANGED", text(&sources.changed)),
            ("STRIPED", text(&self.manifest(ground))),
            ("TARGET", text(&ground.target())),
            ("IMAGE", text(&sources.image)),
            ("SOLID", text(&sources.solid)),
            ("FILE", text(&sources.file)),
            ("TREE", text(&sources.tree)),
        ];
        let word = |word: &&str| match names.iter().find(|(name, _)| word.contains(name)) {
            Some((name, path)) => word.replace(name, path),
            None => (*word).to_owned(),
        };
        let script = (self.program == Program::Python).then(|| PYTHON_DOOR.to_owned());
        let last: &[&str] = if self.program == Program::Dio { &[] } else { &["FILE", "TARGET"] };
        let is_word = |word: &&&str| !word.starts_with(['<', '>']);
        let words = self.words.iter().filter(is_word).chain(last).map(word);
        std::iter::once(text(program)).chain(script).chain(words).collect()
    }

    /// Runs a command that has the words of a door in it, with the variables of a cell.
    pub fn run(
        &self,
        command: &mut Command,
        ground: &Ground<'_>,
        backend: &str,
        limit: Duration,
    ) -> Ended {
        command.env("DIOPTER_BACKEND", backend).env("DIOPTER_PRELOAD", &ground.built.preload);
        command.env("RUST_BACKTRACE", "0").env("PYTHONPATH", &ground.built.modules);
        command.env("PYTHONDONTWRITEBYTECODE", "1").env("PYTHONHASHSEED", "0");
        for variable in ["DIOPTER_CELLS", "DIOPTER_CHECK", "DIOPTER_SEED", "DIOPTER_SOAK"] {
            command.env_remove(variable);
        }
        // Cargo's, which has the loader look at a hundred places.
        let has = |end: &str| self.words.iter().any(|word| word.starts_with(end));
        let file = |file: std::io::Result<fs::File>| Stdio::from(file.expect("a file"));
        let input = has("<").then(|| file(fs::File::open(&ground.sources.file)));
        let output = has(">").then(|| file(fs::File::create(ground.target())));
        let ends = (input.unwrap_or_else(Stdio::null), output);
        watched::run_between(command.env_remove("LD_LIBRARY_PATH"), ends, limit)
    }

    /// Judges the end of a program and what it left. `before` are the files that were there;
    /// `names` has more texts of which a message may have one.
    pub fn judge(
        &self,
        ground: &Ground<'_>,
        before: &BTreeSet<PathBuf>,
        ended: &Ended,
        names: &[&str],
    ) -> Outcome {
        let own = self.names(ground);
        let mut names: Vec<&str> = own.iter().map(String::as_str).chain(names.to_vec()).collect();
        if self.has_succeeded(ended) {
            names.push("");
        }
        if let Some(outcome) = Outcome::of_end(ended, &names) {
            return outcome;
        }
        let judged = match self.has_succeeded(ended) {
            true => self.judge_success(ground, ended).map(|()| Outcome::Right),
            false => self.judge_error(ground, before, ended).map(|()| Outcome::Error),
        };
        judged.unwrap_or_else(|(fault, why)| {
            Outcome::Fault(fault, format!("{why}: {}", ended.shown()))
        })
    }

    fn judge_success(&self, ground: &Ground<'_>, ended: &Ended) -> Result<(), (Fault, String)> {
        let files = self.whole(ground, ended).map_err(|why| (Fault::WrongBytes, why))?;
        let after = ground.names();
        let foreign: Vec<_> = after.difference(&files).collect();
        if foreign.is_empty() {
            return Ok(());
        }
        Err((Fault::LeftBehind, format!("{foreign:?}")))
    }

    fn judge_error(
        &self,
        ground: &Ground<'_>,
        before: &BTreeSet<PathBuf>,
        ended: &Ended,
    ) -> Result<(), (Fault, String)> {
        if self.makes == Makes::Equal && ended.status.code() == Some(1) {
            return Err((Fault::WrongBytes, "a difference is reported".to_owned()));
        }
        // The last step may have failed: what is there is then the new file, and all of it.
        let new = self.whole(ground, ended);
        let allowed = match self.kept(ground) {
            Ok(()) => new.unwrap_or_default(),
            Err(why) => new.map_err(|_| (Fault::OldContentLost, why))?,
        };
        let is_left = |name: &&PathBuf| {
            // An object that cannot be removed is reported by its name.
            let is_object = name.to_string_lossy().contains(".dio.");
            let is_reported = is_object && ended.stderr.contains(&*name.to_string_lossy());
            let is_known = before.contains(*name) || allowed.contains(*name);
            !is_known && !is_reported && !self.may_leave(ground, name)
        };
        let after = ground.names();
        let left: Vec<_> = after.iter().filter(is_left).collect();
        if left.is_empty() { Ok(()) } else { Err((Fault::LeftBehind, format!("{left:?}"))) }
    }

    /// The status of a door that did its work.
    pub fn has_succeeded(&self, ended: &Ended) -> bool {
        match self.makes {
            Makes::Different => matches!(ended.status.code(), Some(0 | 1)),
            _ => ended.status.success(),
        }
    }

    /// Returns the files that there should be after success, if the content is right.
    fn whole(&self, ground: &Ground<'_>, ended: &Ended) -> Result<BTreeSet<PathBuf>, String> {
        let (sources, target) = (ground.sources, ground.target());
        let is = |path: &Path, bytes: &[u8]| differs(path, bytes).map_or(Ok(()), Err);
        match self.makes {
            Makes::New | Makes::Replaced | Makes::InPlace | Makes::Over | Makes::Stream => {
                is(&target, &sources.bytes)?;
                Ok([target].into())
            }
            Makes::FromImage => {
                is(&target, &sources.inside)?;
                Ok([target].into())
            }
            Makes::IntoImage => {
                is(&target, &sources.image_changed)?;
                Ok([target].into())
            }
            Makes::Tree => {
                let mut names = BTreeSet::new();
                for file in files_below(&sources.tree) {
                    let name = target.join(file.strip_prefix(&sources.tree).expect("below it"));
                    is(&name, &fs::read(&file).unwrap())?;
                    names.insert(name);
                }
                Ok(names)
            }
            Makes::Striped { .. } | Makes::NewStriped => {
                let (objects, bytes) = striped(&self.manifest(ground))?;
                if bytes != sources.bytes {
                    return Err(first_difference(&bytes, &sources.bytes));
                }
                Ok(objects.into_iter().chain([self.manifest(ground)]).collect())
            }
            Makes::Sum => {
                let sum = blake3::hash(&sources.bytes).to_hex();
                match ended.stdout.starts_with(sum.as_str()) {
                    true => Ok(BTreeSet::new()),
                    false => Err(format!("not the sum {sum}")),
                }
            }
            Makes::Equal => Ok(BTreeSet::new()),
            Makes::Different if ended.status.success() => Err("no difference is seen".to_owned()),
            Makes::Different => Ok(BTreeSet::new()),
        }
    }

    /// The old content is there where it is promised, and no part of a new one.
    fn kept(&self, ground: &Ground<'_>) -> Result<(), String> {
        let (sources, target) = (ground.sources, ground.target());
        match self.makes {
            Makes::Replaced => differs(&target, &sources.old_bytes).map_or(Ok(()), Err),
            Makes::IntoImage => {
                let mut found = fs::read(&target).map_err(|error| error.to_string())?;
                let (image, solid) = (&sources.image_changed, sources.solid_range.clone());
                if found.len() == image.len() {
                    found[solid.clone()].copy_from_slice(&image[solid]);
                }
                let is_same = found == *image;
                if is_same { Ok(()) } else { Err(first_difference(&found, image)) }
            }
            Makes::Striped { .. } => {
                let (_, bytes) = striped(&self.manifest(ground))?;
                let is_same = bytes == sources.old_bytes;
                if is_same { Ok(()) } else { Err(first_difference(&bytes, &sources.old_bytes)) }
            }
            Makes::Tree => {
                for file in files_below(&sources.tree) {
                    let name = target.join(file.strip_prefix(&sources.tree).expect("below it"));
                    if name.exists() {
                        differs(&name, &fs::read(&file).unwrap()).map_or(Ok(()), Err)?;
                    }
                }
                Ok(())
            }
            Makes::Stream if target.exists() => {
                let found = fs::read(&target).unwrap();
                if sources.bytes.starts_with(&found) {
                    return Ok(());
                }
                Err(format!("not a prefix: {}", first_difference(&found, &sources.bytes)))
            }
            _ => Ok(()),
        }
    }

    /// Files that an error may leave: those that are written in place, and whole ones of a tree.
    fn may_leave(&self, ground: &Ground<'_>, name: &Path) -> bool {
        let target = ground.target();
        match self.makes {
            Makes::InPlace | Makes::Over | Makes::Stream => name == target,
            // Written by plain calls of the program.
            Makes::New => !self.writes && name == target,
            Makes::Tree => name
                .strip_prefix(&target)
                .is_ok_and(|below| ground.sources.tree.join(below).exists()),
            _ => false,
        }
    }
}

/// How a file differs from what it should have, if it does.
fn differs(path: &Path, bytes: &[u8]) -> Option<String> {
    match fs::read(path) {
        Ok(found) if found == bytes => None,
        Ok(found) => Some(format!("{}: {}", path.display(), first_difference(&found, bytes))),
        Err(error) => Some(format!("{}: {error}", path.display())),
    }
}

fn first_difference(found: &[u8], bytes: &[u8]) -> String {
    let (has, wants) = (found.len(), bytes.len());
    let at = found.iter().zip(bytes).position(|(one, other)| one != other);
    let at = at.unwrap_or(has.min(wants));
    format!("{has} bytes for {wants}, they differ at {at}")
}
