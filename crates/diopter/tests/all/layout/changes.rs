//! A layout sealed, unsealed, replaced and removed; also by two at a time.

use super::*;

#[test]
fn a_sealed_object_of_another_size_is_refused_and_reported() {
    let Some(directory) = dir() else { return };
    let mut layout = three(directory.path());
    let one = object(directory.path(), "data.1");
    write(&one, &[7; 100]);
    layout.seal().unwrap();
    assert!(layout.manifest().is_sealed());
    let mut layout = Layout::open(layout.path()).unwrap();
    assert_eq!(layout.open_objects(ObjectAccess::BOTH).unwrap()[1].size, 100);
    write(&one, &[7; 101]);
    let error = refusal(&layout);
    check(&error, &one, |kind| *kind == LayoutErrorKind::SealedSize { recorded: 100, found: 101 });
    let text = error.to_string();
    assert!(text.contains("100") && text.contains("101") && text.contains("unseal"), "{text}");
    check(&layout.seal().unwrap_err(), &one, |kind| {
        matches!(kind, LayoutErrorKind::SealedSize { .. })
    });
    layout.unseal().unwrap();
    assert_eq!(Layout::open(layout.path()).unwrap().manifest(), layout.manifest());
    assert_eq!(layout.open_objects(ObjectAccess::BOTH).unwrap()[1].size, 101);
    assert_eq!(names(directory.path()), ["data", "data.0", "data.1", "data.2"]);
}

#[test]
fn of_two_changes_at_a_time_one_is_refused() {
    let Some(directory) = dir() else { return };
    let mut first = three(directory.path());
    let mut second = Layout::open(first.path()).unwrap();
    let mut third = Layout::open(first.path()).unwrap();
    let fourth = Layout::open(first.path()).unwrap();
    let replacement = second.replace().unwrap();
    first.seal().unwrap();
    let is_changed = |kind: &LayoutErrorKind| *kind == LayoutErrorKind::Changed;
    check(&replacement.commit().unwrap_err(), first.path(), is_changed);
    check(&third.unseal().unwrap_err(), first.path(), is_changed);
    check(&fourth.remove().unwrap_err(), first.path(), is_changed);
    assert_eq!(names(directory.path()), ["data", "data.0", "data.1", "data.2"]);
    assert!(Layout::open(first.path()).unwrap().manifest().is_sealed());
    assert_eq!(first.open_objects(ObjectAccess::BOTH).unwrap().len(), 3);
}

#[test]
fn a_dir_that_another_process_has_locked_is_waited_for_and_then_reported() {
    let Some(directory) = dir() else { return };
    let mut layout = three(directory.path());
    let other = diopter_os::dir::Dir::open(directory.path()).unwrap();
    assert_eq!(other.try_lock(), Ok(true));
    check(&layout.seal().unwrap_err(), layout.path().to_owned().as_path(), |kind| {
        *kind == LayoutErrorKind::Busy
    });
    drop(other);
    layout.seal().unwrap();
}

#[test]
fn a_replacement_is_seen_whole_once_it_is_committed() {
    let Some(directory) = dir() else { return };
    let below = directory.path().join("below");
    fs::create_dir(&below).unwrap();
    let path = directory.path().join("data");
    let mut layout = Layout::create(&path, &options(&[directory.path(), &below])).unwrap();
    write(&object(directory.path(), "data.0"), b"old");
    layout.seal().unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).unwrap();
    let old_one = object(&below, "data.1");
    fs::set_permissions(&old_one, fs::Permissions::from_mode(0o604)).unwrap();
    let mut layout = Layout::open(&path).unwrap();
    let mut replacement = layout.replace().unwrap();
    let uuid = replacement.manifest().uuid();
    let objects = replacement.take_objects();
    write(&objects[1].path, b"newer");
    let before = Layout::open(&path).unwrap();
    assert_eq!(before.open_objects(ObjectAccess::READ).unwrap()[0].size, 3);
    assert_eq!(replacement.commit().unwrap(), vec![]);
    assert_eq!(layout.manifest().uuid(), uuid);
    let after = Layout::open(&path).unwrap();
    assert_eq!(after.manifest(), layout.manifest());
    let objects = after.open_objects(ObjectAccess::BOTH).unwrap();
    assert_eq!(objects.iter().map(|object| object.size).collect::<Vec<_>>(), [0, 5]);
    assert_eq!(names(directory.path()).len(), 3);
    assert_eq!(names(&below).len(), 1);
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(&objects[1].path)), (0o640, 0o604));
    check(&refusal(&before), &object(directory.path(), "data.0"), |kind| {
        *kind == LayoutErrorKind::Missing
    });
}

#[test]
fn a_replacement_that_is_abandoned_leaves_nothing() {
    let Some(directory) = dir() else { return };
    let mut layout = three(directory.path());
    let text = fs::read(layout.path()).unwrap();
    drop(layout.replace().unwrap());
    assert_eq!(names(directory.path()), ["data", "data.0", "data.1", "data.2"]);
    assert_eq!(fs::read(layout.path()).unwrap(), text);
    fs::remove_file(object(directory.path(), "data.2")).unwrap();
    let error = layout.replace().map(drop).unwrap_err();
    assert_eq!(error.kind, LayoutErrorKind::Missing);
    assert_eq!(names(directory.path()), ["data", "data.0", "data.1"]);
}

#[test]
fn removing_takes_the_layouts_objects_and_leaves_the_others() {
    let Some(directory) = dir() else { return };
    let layout = three(directory.path());
    let one = object(directory.path(), "data.1");
    fs::remove_file(object(directory.path(), "data.2")).unwrap();
    fs::remove_file(&one).unwrap();
    fs::write(&one, b"precious").unwrap();
    let left = layout.remove().unwrap();
    assert_eq!(left.len(), 1, "{left:?}");
    check(&left[0], &one, |kind| matches!(kind, LayoutErrorKind::Foreign { .. }));
    assert_eq!(names(directory.path()), ["data.1"]);
    assert_eq!(fs::read(&one).unwrap(), b"precious");
}

#[test]
fn of_many_replacements_at_a_time_none_is_lost_and_nothing_is_left_over() {
    const THREADS: usize = 4;
    const ROUNDS: usize = 4;
    let Some(directory) = dir() else { return };
    let path = three(directory.path()).path().to_owned();
    // What each committed replacement replaced: a chain without forks has every layout once.
    let replace = || {
        let mut replaced = Vec::new();
        for _ in 0..10_000 {
            if replaced.len() == ROUNDS {
                return replaced;
            }
            let mut layout = Layout::open(&path).unwrap();
            let old = layout.manifest().uuid();
            let committed = layout.replace().and_then(|new| new.commit());
            match committed.map_err(|error| error.kind) {
                Ok(left) => {
                    assert_eq!(left, vec![]);
                    replaced.push(old);
                }
                Err(LayoutErrorKind::Changed | LayoutErrorKind::Missing) => {}
                Err(kind) => panic!("{kind:?}"),
            }
        }
        panic!("10000 attempts and no end");
    };
    let mut replaced: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|_| scope.spawn(replace)).collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    replaced.sort();
    replaced.dedup();
    assert_eq!(replaced.len(), THREADS * ROUNDS);
    assert_eq!(names(directory.path()).len(), 4);
    let last = Layout::open(&path).unwrap();
    assert_eq!(last.open_objects(ObjectAccess::BOTH).unwrap().len(), 3);
}

/// A directory that is open, and its name leads somewhere else from now on.
fn moved(directory: &Path) -> (std::fs::File, std::path::PathBuf, std::path::PathBuf) {
    let [given, real, other] = ["given", "real", "other"].map(|name| directory.join(name));
    fs::create_dir(&given).unwrap();
    fs::create_dir(&other).unwrap();
    let dir = std::fs::File::open(&given).unwrap();
    fs::rename(&given, &real).unwrap();
    std::os::unix::fs::symlink(&other, &given).unwrap();
    (dir, real, other)
}

#[test]
fn what_is_done_in_an_open_directory_is_done_there_whatever_has_its_name() {
    let Some(directory) = dir() else { return };
    let (dir, real, other) = moved(directory.path());
    let given = directory.path().join("given/data");
    let striping = diopter_core::stripe::Striping::new(4096, 2).unwrap();
    let creation = Layout::prepare_at(dir.as_fd(), &given, striping, 0o600).unwrap();
    assert_eq!(names(&real), ["data.0", "data.1"]);
    let second = Layout::prepare_at(dir.as_fd(), &given, striping, 0o600).unwrap();
    let (first, others) = (names(&real), second.manifest().objects().to_vec());
    assert_eq!(first.len(), 4, "names that nothing has yet: {first:?}");
    assert!(others.iter().all(|object| first.contains(&object.path) && object.path.len() == 15));
    drop((creation, second));
    assert_eq!(names(&real), [""; 0], "what is not published goes away there");
    let mut creation = Layout::prepare_at(dir.as_fd(), &given, striping, 0o600).unwrap();
    assert_eq!(creation.take_objects().len(), 2);
    creation.publish().unwrap().seal().unwrap();
    let mut layout = Layout::open_marked_at(dir.as_fd(), &given).unwrap();
    assert!(layout.manifest().is_sealed());
    layout.unseal().unwrap();
    assert_eq!(layout.replace().unwrap().commit().unwrap(), vec![]);
    let found = layout.look_up(&layout.manifest().objects()[0]).unwrap();
    assert_eq!(names(&real).len(), 3);
    assert!(found.is_file());
    let again = Layout::open_marked_at(dir.as_fd(), &given).unwrap();
    let file = diopter::layouts::StripedFile::of_layout(again, diopter::File::options().read(true));
    assert_eq!(file.unwrap().size().unwrap(), 0);
    assert_eq!(layout.remove().unwrap(), vec![]);
    assert_eq!((names(&real), names(&other)), (vec![], vec![]));
    // A link with the name is not followed.
    std::os::unix::fs::symlink("elsewhere", real.join("data")).unwrap();
    let is_link = |kind: &LayoutErrorKind| matches!(kind, LayoutErrorKind::WrongKind(_));
    check(&Layout::open_at(dir.as_fd(), &given).unwrap_err(), &given, is_link);
}

#[test]
fn a_directory_of_objects_that_became_a_link_is_not_followed() {
    let Some(directory) = dir() else { return };
    let [below, real] = ["below", "real"].map(|name| directory.path().join(name));
    fs::create_dir(&below).unwrap();
    let path = directory.path().join("data");
    let mut layout = Layout::create(&path, &options(&[directory.path(), &below])).unwrap();
    fs::rename(&below, &real).unwrap();
    std::os::unix::fs::symlink("real", &below).unwrap();
    let is_link = |kind: &LayoutErrorKind| matches!(kind, LayoutErrorKind::WrongKind(_));
    check(&refusal(&layout), &below.join("data.1"), is_link);
    check(&layout.replace().unwrap_err(), &below.join("data.1"), is_link);
    assert_eq!(names(directory.path()), ["below", "data", "data.0", "real"]);
    assert_eq!(names(&real), ["data.1"]);
}
