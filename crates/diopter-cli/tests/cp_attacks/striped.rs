//! The same against striped files: what the administrator copies into a directory of another user
//! makes, changes and removes no manifest and no object anywhere else. GNU cp has no such files, so
//! there is nothing to compare with.

use diopter::layouts::StripedFile;
use diopter_layouts::layout::{CreateOptions, ObjectPlace};

use super::*;

/// Striped files of one tree.
const FILES: u32 = 4;

/// A striped file of the administrator, with its objects in these directories.
fn make_striped(path: &Path, objects: [&Path; 2]) {
    let objects = objects.map(|dir| ObjectPlace::Dir(dir.to_owned())).into();
    let options = CreateOptions { objects, stripe_size: 4096, ..CreateOptions::default() };
    let file = StripedFile::create(path, &options).unwrap();
    file.write_all_at(&[b'r'; 9000], 0).unwrap();
    file.seal().unwrap();
}

/// So many of them, with their objects in the same directory.
fn make_all_striped(dir: &Path) {
    for number in 0..FILES {
        make_striped(&dir.join(format!("f{number}")), [dir, dir]);
    }
}

/// A directory that the attacker may change, and that the administrator fills before it gets its
/// name: nothing can be swapped meanwhile.
fn staged(ground: &Ground, fill: &dyn Fn(&Path)) -> PathBuf {
    let path = ground.root.path().join("staged");
    clear(&path);
    std::fs::create_dir(&path).unwrap();
    fill(&path);
    std::fs::set_permissions(&path, Permissions::from_mode(0o777)).unwrap();
    Ground::give(&path);
    path
}

/// Attacks `dio cp -a --striped SOURCE OPEN`, and wants that nothing is lost.
fn attack_striped(
    ground: &Ground,
    what: &str,
    swap: &(dyn Fn() -> u64 + Sync),
    prepare: &dyn Fn(),
) {
    let mut command = dio();
    command.args(["-a", "--striped"]).args([&ground.source, &ground.open]);
    let before = std::cell::RefCell::new(ground.picture());
    let harm = || before.replace(ground.picture()) != ground.picture();
    let tally = attack(&mut command, swap, prepare, &harm);
    print_line(&format!("{what}: dio cp -a --striped {tally:?}"));
    assert_eq!(tally.lost, 0, "{what}");
}

/// Copies into a directory of the attacker's that is swapped for a link; `fill` makes its content.
fn attack_directory(ground: &Ground, name: &str, fill: &dyn Fn(&Path)) {
    let inner = ground.open.join("source");
    let [target, link] = ["d", "link"].map(|name| inner.join(name));
    let prepare = || {
        clear(&inner);
        std::fs::create_dir(&inner).unwrap();
        symlink(&ground.closed, &link).unwrap();
        std::fs::rename(staged(ground, fill), &target).unwrap();
        Ground::give(&inner);
        Ground::give(&link);
    };
    let swap = || exchange(&target, &link);
    attack_striped(ground, name, &swap, &prepare);
}

#[test]
fn a_directory_for_new_striped_files_that_is_swapped_for_a_link() {
    if !can_attack() {
        return;
    }
    let ground = Ground::new();
    let tree = staged(&ground, &make_all_striped);
    std::fs::rename(tree, ground.source.join("d")).unwrap();
    attack_directory(&ground, "directory of new striped files", &|_| {});
}

#[test]
fn a_directory_of_striped_targets_that_is_swapped_for_a_link_to_others() {
    if !can_attack() {
        return;
    }
    let ground = Ground::new();
    make_all_striped(&ground.closed);
    let fill = |dir: &Path| {
        for number in 0..FILES {
            std::fs::write(dir.join(format!("f{number}")), b"the attacker's").unwrap();
        }
    };
    std::fs::rename(staged(&ground, &fill), ground.source.join("d")).unwrap();
    attack_directory(&ground, "directory of striped targets", &make_all_striped);
}

#[test]
fn a_directory_of_objects_that_is_swapped_for_a_link() {
    if !can_attack() {
        return;
    }
    let ground = Ground::new();
    for number in 0..FILES {
        std::fs::write(ground.source.join(format!("f{number}")), b"the attacker's").unwrap();
    }
    let inner = ground.open.join("source");
    let [objects, link] = ["objects", "link"].map(|name| inner.join(name));
    let fill = |dir: &Path| {
        let objects = dir.join("objects");
        std::fs::create_dir(&objects).unwrap();
        for number in 0..FILES {
            make_striped(&dir.join(format!("f{number}")), [&objects, &objects]);
        }
        symlink(&ground.closed, dir.join("link")).unwrap();
        Ground::give(&objects);
        Ground::give(&dir.join("link"));
    };
    let prepare = || {
        clear(&inner);
        std::fs::rename(staged(&ground, &fill), &inner).unwrap();
    };
    let swap = || exchange(&objects, &link);
    attack_striped(&ground, "directory of objects", &swap, &prepare);
}

/// Puts a link to a file of the administrator in the place of every name that a copy makes.
#[test]
fn temporaries_and_objects_that_are_swapped_for_links() {
    if !can_attack() {
        return;
    }
    let ground = Ground::new();
    make_all_striped(&ground.source);
    let inner = ground.open.join("source");
    let prepare = || {
        clear(&inner);
        std::fs::rename(staged(&ground, &|_| {}), &inner).unwrap();
    };
    let (number, secret) = (AtomicU64::new(0), ground.closed.join("secret"));
    let swap = || replace_new_names(&inner, &[], &secret, &number);
    attack_striped(&ground, "names of striped files", &swap, &prepare);
}
