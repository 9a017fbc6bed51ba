//! Mounts a disk after a power cut on the host, and compares its files with those that there may
//! be.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use diopter::File;

use crate::boot::Format;
use crate::machine::{FileSystem, Loop, Mount};
use crate::steps::{
    DURABLE, Files, STRIPED, Step, TREES, Tree, WIDE, may_be, name_of, name_of_clone, name_of_tree,
};

/// The steps of the guest when the power was cut.
pub struct Moment<'a> {
    /// The steps that were acknowledged.
    pub done: &'a [Step],
    /// The one that was under way.
    pub under_way: Option<&'a Step>,
}

/// Judges the disk in the file `image`.
pub fn judge(format: Format, image: &Path, moment: &Moment<'_>) -> Result<(), String> {
    let kind = match format {
        Format::Ext4 => FileSystem::Ext4 { block: 4096, extra: &[] },
        Format::Xfs => FileSystem::Xfs { extra: &[] },
    };
    // The same file system may be mounted from another state at the same time.
    let options = if format == Format::Xfs { "nouuid" } else { "defaults" };
    let mount = Mount::again(Loop::over_image(image, 512)?, kind, options)?;
    let judged = compare(mount.path(), moment).and_then(|()| go_on(mount.path(), moment));
    judged.and(mount.finish())
}

fn compare(root: &Path, moment: &Moment<'_>) -> Result<(), String> {
    let before = Files::after(moment.done);
    for (target, old) in before.targets.iter().enumerate() {
        let name = name_of(target);
        let found = match std::fs::read(root.join(&name)) {
            Ok(found) => Some(found),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => None,
            Err(error) => return Err(format!("{name}: {error}")),
        };
        let new = match moment.under_way {
            Some(step @ Step::Copy { target: under_way, .. }) if *under_way == target => {
                Some(step.bytes())
            }
            _ => None,
        };
        old_or_new(&name, &found, old, &new)?;
    }
    let durable = std::fs::read(root.join(DURABLE)).map_err(|error| format!("durable: {error}"))?;
    let write = moment.under_way.filter(|step| matches!(step, Step::Write { .. }));
    may_be(&durable, &before.durable, write).map_err(|why| format!("durable: {why}"))?;
    compare_trees(root, &before, moment.under_way)?;
    compare_striped(root, &before, moment.under_way)
}

/// Each file of a tree is the old or the new one, and no other has a name but a temporary.
fn compare_trees(root: &Path, before: &Files, under_way: Option<&Step>) -> Result<(), String> {
    for target in 0..TREES {
        let name = name_of_tree(target);
        let step = under_way.filter(
            |step| matches!(step, Step::Tree { target: under_way, .. } if *under_way == target),
        );
        let (old, new) = (&before.trees[target], step.map(Step::tree).unwrap_or_default());
        let mut found = Tree::new();
        for entry in walkdir::WalkDir::new(root.join(&name)).into_iter().flatten() {
            let path = entry.path();
            let is_temporary = path.extension().is_some_and(|it| it == "dio-part");
            if entry.file_type().is_file() && !is_temporary {
                let below = path.strip_prefix(root.join(&name)).unwrap().display().to_string();
                let bytes = std::fs::read(path).map_err(|error| format!("{below}: {error}"))?;
                found.insert(below, bytes);
            }
        }
        let all: BTreeSet<&String> = old.keys().chain(new.keys()).chain(found.keys()).collect();
        for file in all {
            let of = |tree: &Tree| tree.get(file).cloned();
            old_or_new(&format!("{name}/{file}"), &of(&found), &of(old), &of(&new))?;
        }
    }
    Ok(())
}

fn compare_striped(root: &Path, before: &Files, under_way: Option<&Step>) -> Result<(), String> {
    let striped = read_striped(&root.join(STRIPED))?;
    let new = under_way.filter(|step| matches!(step, Step::StripedCopy { .. })).map(Step::bytes);
    old_or_new(STRIPED, &striped, &Some(before.striped.clone()), &new)?;
    for (clone, old) in before.clones.iter().enumerate() {
        let name = name_of_clone(clone);
        let is_new = under_way == Some(&Step::Clone { clone });
        let new = is_new.then(|| before.wide.clone());
        old_or_new(&name, &read_striped(&root.join(&name))?, old, &new)?;
    }
    let wide = read_striped(&root.join(WIDE))?.ok_or("wide is not there")?;
    let write = under_way.filter(|step| matches!(step, Step::StripedWrite { .. }));
    may_be(&wide, &before.wide, write).map_err(|why| format!("wide: {why}"))
}

/// Content that a copy may have been given, and nothing else.
fn old_or_new(
    name: &str,
    found: &Option<Vec<u8>>,
    old: &Option<Vec<u8>>,
    new: &Option<Vec<u8>>,
) -> Result<(), String> {
    if found == old || (new.is_some() && found == new) {
        return Ok(());
    }
    let shown = |file: &Option<Vec<u8>>| match file {
        Some(bytes) => format!("{} bytes of {}", bytes.len(), blake3::hash(bytes)),
        None => "nothing".to_owned(),
    };
    let (found, old, new) = (shown(found), shown(old), shown(new));
    Err(format!("{name} is {found}; old: {old}, new: {new}"))
}

/// The content of a striped file: its manifest is marked and all of its objects are there.
fn read_striped(path: &Path) -> Result<Option<Vec<u8>>, String> {
    let failed = |error: diopter::Error| format!("{}: {error}", path.display());
    if !path.exists() {
        return Ok(None);
    }
    let file = File::options().read(true).striped(true).open(path).map_err(failed)?;
    if file.striping().is_none() {
        return Err(format!("{} is not a striped file", path.display()));
    }
    let size = usize::try_from(file.size().map_err(failed)?).map_err(|error| error.to_string())?;
    let mut bytes = vec![0; size];
    file.read_exact_at(&mut bytes, 0).map_err(failed)?;
    Ok(Some(bytes))
}

/// A copy that was cut is made again, with `--resume` where there is that, and is complete then.
fn go_on(root: &Path, moment: &Moment<'_>) -> Result<(), String> {
    let source = root.join("source");
    let (options, source, target, bytes) = match moment.under_way {
        Some(step @ Step::Copy { target, .. }) => {
            ("--resume", source, root.join(name_of(*target)), step.bytes())
        }
        Some(step @ Step::StripedCopy { .. }) => {
            ("--verify", source, root.join(STRIPED), step.bytes())
        }
        Some(Step::Clone { clone }) => {
            let target = root.join(name_of_clone(*clone));
            ("--striped", root.join(WIDE), target, Files::after(moment.done).wide)
        }
        Some(step @ Step::Tree { target, .. }) => {
            return copy_tree_again(root, step, &root.join(name_of_tree(*target)));
        }
        Some(Step::Write { .. } | Step::StripedWrite { .. }) | None => return Ok(()),
    };
    if !source.exists() {
        std::fs::write(&source, &bytes).map_err(|error| format!("source: {error}"))?;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    let reported = command.args(["cp", options]).args([&source, &target]).output();
    let reported = reported.map_err(|error| error.to_string())?;
    if !reported.status.success() {
        return Err(format!("cp {options}: {}", String::from_utf8_lossy(&reported.stderr)));
    }
    let found = match options {
        "--resume" => Some(std::fs::read(&target).map_err(|error| format!("target: {error}"))?),
        _ => read_striped(&target)?,
    };
    if found.as_ref() == Some(&bytes) {
        return Ok(());
    }
    let length = found.map_or(0, |found| found.len());
    Err(format!("cp {options} made {length} bytes that are not the source's"))
}

/// A tree whose copy was cut is copied again: it is complete then, and has no temporary.
fn copy_tree_again(root: &Path, step: &Step, target: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("tree: {error}");
    let source = root.join("source-tree");
    for (name, content) in step.tree() {
        let path = source.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).map_err(failed)?;
        std::fs::write(path, content).map_err(failed)?;
    }
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    let copied = command.args(["cp", "-r", "-T"]).args([&source, target]).output();
    let copied = copied.map_err(failed)?;
    if !copied.status.success() {
        return Err(format!("cp -r: {}", String::from_utf8_lossy(&copied.stderr)));
    }
    let names = walkdir::WalkDir::new(target).into_iter().flatten();
    let count = names.filter(|entry| entry.file_type().is_file()).count();
    let tree = step.tree();
    let is_same = |(name, content): (&String, &Vec<u8>)| {
        std::fs::read(target.join(name)).is_ok_and(|found| found == *content)
    };
    if count == tree.len() && tree.iter().all(is_same) {
        return Ok(());
    }
    Err(format!("cp -r made {count} files, of which one is not that of the source"))
}
