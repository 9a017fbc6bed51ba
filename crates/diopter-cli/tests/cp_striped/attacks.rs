//! Manifests that another user made, for root to read or write by: none may disclose, capture or
//! remove what is root's.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use diopter_layouts::layout::{Manifest, Object, ObjectKind, Uuid};

use super::*;

/// `nobody` on every Linux.
const STRANGER: u32 = 65_534;

const SECRET: &[u8] = b"what only root may read";

fn run(user: u32, dir: &Path, line: &str) -> std::io::Result<Output> {
    let mut command = Command::new(env!("CARGO_BIN_EXE_dio"));
    command.args(line.split(' ')).current_dir(dir).env_clear().stdin(Stdio::null());
    if user != 0 {
        command.uid(user).gid(user);
    }
    command.output()
}

/// Wants exit status 0.
fn well(user: u32, dir: &Path, line: &str) -> Output {
    let output = run(user, dir, line).unwrap();
    assert_eq!(output.status.code(), Some(0), "{line}: {}", message(&output));
    output
}

/// Wants exit status 2 and all the words.
fn refused(user: u32, dir: &Path, line: &str, words: &[&str]) {
    let output = run(user, dir, line).unwrap();
    let text = message(&output);
    assert_eq!(output.status.code(), Some(2), "{line}: {text}");
    for word in words {
        assert!(text.contains(word), "{line}: {word:?} is not in {text}");
    }
}

/// A directory of this mode with a `secret` of root's next to it; `None` without root, or where
/// another user can't run the command.
fn ground(mode: u32) -> Option<(tempfile::TempDir, PathBuf)> {
    if !is_root() {
        skip(Capability::Root, "only root can be attacked by another user");
        return None;
    }
    let dir = dir();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).unwrap();
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(mode)).unwrap();
    let secret = dir.path().join("secret");
    fs::write(&secret, SECRET).unwrap();
    fs::set_permissions(&secret, Permissions::from_mode(0o600)).unwrap();
    match run(STRANGER, &shared, "--version") {
        Ok(output) if output.status.success() => Some((dir, shared)),
        other => {
            skip(Capability::Root, format!("another user may not run the test's dio: {other:?}"));
            None
        }
    }
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// No file here that another user can read has the secret.
fn assert_secret_is_kept(dir: &Path) {
    for name in names(dir) {
        let path = dir.join(&name);
        let Ok(found) = path.symlink_metadata() else { continue };
        let is_readable = found.uid() != 0 || found.mode() & 0o044 != 0;
        if found.is_file() && is_readable {
            assert!(!contains(&fs::read(&path).unwrap_or_default(), SECRET), "{name}");
        }
    }
}

/// The content of a manifest, as a download has it.
fn downloaded(made: &Path, path: &Path) {
    let bytes = fs::read(made).unwrap();
    fs::remove_file(made).unwrap();
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_file_with_the_content_of_a_manifest_is_refused_by_every_command_until_it_is_adopted() {
    let (dir, source, made) = with_source(20, 10_000);
    striped(&made, 2, 4096);
    let here = dir.path();
    let path = here.join("upload.bin");
    downloaded(&made, &path);
    let (before, bytes) = (names(here), fs::read(&path).unwrap());
    for line in [
        "cp upload.bin out",
        "cp source upload.bin",
        "explain read upload.bin --offset 0 --length 4k",
        "explain write upload.bin --offset 0 --length 4k",
        "probe upload.bin",
        "stripe info upload.bin",
        "stripe seal upload.bin",
        "stripe unseal upload.bin",
        "stripe rm upload.bin",
        "bench upload.bin --rw randread",
    ] {
        refused(0, here, line, &["upload.bin", "not marked", "dio stripe adopt NAME"]);
        assert_eq!((names(here), fs::read(&path).unwrap()), (before.clone(), bytes.clone()));
    }
    // As the file that it is, and without a mark afterwards.
    well(0, here, "cp -r upload.bin plain");
    assert_eq!(fs::read(here.join("plain")).unwrap(), bytes);
    let output = well(0, here, "stripe adopt upload.bin");
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(output.contains("target.0") && output.contains("(file)"), "{output}");
    cp_well(&["--verify"], &source, &path);
    cp_well(&["-r"], &path, &here.join("plain"));
    refused(0, here, "stripe info plain", &["dio stripe adopt"]);
}

#[test]
fn a_download_that_names_a_device_does_not_disclose_it() {
    let Some((dir, shared)) = ground(0o1777) else { return };
    let here = dir.path();
    let image = here.join("image");
    fs::write(&image, SECRET).unwrap();
    let Some(device) = LoopDevice::over(&image, 8 << 20) else { return };
    well(0, here, &format!("stripe create made --objects {}", device.0));
    downloaded(&here.join("made"), &shared.join("upload.bin"));
    let unmarked = run(0, &shared, "cp upload.bin out");
    // The same of the stranger, who marks it.
    chown(shared.join("upload.bin"), Some(STRANGER), None).unwrap();
    let adopted = run(STRANGER, &shared, "stripe adopt upload.bin");
    let marked = run(0, &shared, "cp upload.bin out");
    drop(device);
    let text = message(&unmarked.unwrap());
    assert!(text.contains("not marked"), "{text}");
    assert_eq!(adopted.unwrap().status.code(), Some(0));
    let text = message(&marked.unwrap());
    assert!(text.contains("belongs to user 65534"), "{text}");
    assert_eq!(names(&shared), ["upload.bin"]);
}

#[test]
fn a_striped_file_of_another_user_does_not_capture_what_root_writes() {
    let Some((_dir, shared)) = ground(0o1777) else { return };
    well(STRANGER, &shared, "stripe create out --objects . .");
    let before = names(&shared);
    let words = ["out", "belongs to user 65534"];
    for line in [
        "cp ../secret out",
        "cp --overwrite ../secret out",
        "cp out ../copy",
        "stripe seal out",
        "stripe unseal out",
        "stripe adopt out",
        "stripe rm out",
        "explain read out --offset 0 --length 4k",
    ] {
        refused(0, &shared, line, &words);
        assert_eq!(names(&shared), before, "{line}");
        assert_secret_is_kept(&shared);
    }
    // Its owner can use it.
    fs::write(shared.join("own"), "text").unwrap();
    well(STRANGER, &shared, "cp own out");
}

#[test]
fn a_manifest_with_the_uuid_of_roots_striped_file_does_not_remove_its_objects() {
    let Some((_dir, shared)) = ground(0o1777) else { return };
    well(0, &shared, "stripe create data --objects . .");
    well(0, &shared, "cp ../secret data");
    let (data, evil) = (shared.join("data"), shared.join("evil"));
    fs::write(&evil, fs::read(&data).unwrap()).unwrap();
    chown(&evil, Some(STRANGER), None).unwrap();
    fs::write(shared.join("hi"), "hi").unwrap();
    let before = names(&shared);
    refused(0, &shared, "cp hi evil", &["dio stripe adopt"]);
    well(STRANGER, &shared, "stripe adopt evil");
    for line in ["cp hi evil", "stripe rm evil", "stripe seal evil"] {
        refused(0, &shared, line, &["evil", "belongs to user 65534"]);
    }
    assert_eq!(names(&shared), before);
    // Its owner can remove the manifest, and nothing else.
    let output = run(STRANGER, &shared, "stripe rm evil").unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    assert!(!evil.exists());
    assert_eq!(bytes_of(&data), SECRET);
    // A second name of root's own manifest.
    fs::hard_link(&data, &evil).unwrap();
    refused(0, &shared, "cp hi evil", &["several names"]);
    refused(0, &shared, "stripe rm evil", &["several names"]);
    assert_eq!(bytes_of(&data), SECRET);
}

#[test]
fn another_users_manifest_reads_objects_beside_it_and_is_not_written() {
    let Some((dir, shared)) = ground(0o1777) else { return };
    fs::create_dir(shared.join("below")).unwrap();
    well(0, &shared, "stripe create near --objects . .");
    well(0, &shared, "stripe create far --objects . below");
    fs::write(dir.path().join("public"), "public").unwrap();
    for name in ["near", "far"] {
        well(0, &shared, &format!("cp ../public {name}"));
        well(STRANGER, &shared, &format!("cp {name} copy.{name}"));
        assert_eq!(fs::read(shared.join(format!("copy.{name}"))).unwrap(), b"public");
        refused(STRANGER, &shared, &format!("cp copy.{name} {name}"), &["root's and other users"]);
    }
    let third = 65_533;
    chown(shared.join("copy.near"), Some(third), None).unwrap();
    well(STRANGER, &shared, "stripe create own --objects . below/..");
    well(STRANGER, &shared, "cp ../public own");
    refused(third, &shared, "cp copy.near own", &["belongs to user 65534"]);
    well(third, &shared, "cp own third");
}

#[test]
fn new_objects_have_the_permissions_of_the_source_and_no_wider_ones_than_the_manifest() {
    let (dir, source, target) = with_source(21, 10_000);
    let here = dir.path();
    for (of_manifest, of_source, expected) in
        [(0o644, 0o600, 0o600), (0o640, 0o644, 0o640), (0o600, 0o4755, 0o600)]
    {
        striped(&target, 2, 4096);
        fs::set_permissions(&target, Permissions::from_mode(of_manifest)).unwrap();
        fs::set_permissions(&source, Permissions::from_mode(of_source)).unwrap();
        cp_well(&[], &source, &target);
        for object in StripedFile::open(&target).unwrap().manifest().objects() {
            let mode = fs::metadata(here.join(&object.path)).unwrap().mode() & 0o7777;
            assert_eq!(mode, expected, "{of_manifest:o} {of_source:o}");
        }
        assert_eq!(fs::metadata(&target).unwrap().mode() & 0o7777, of_manifest);
        well(0, here, "stripe rm target");
    }
}

/// The owner of the directory exchanges root's striped file for its own, again and again.
#[test]
fn a_manifest_that_is_exchanged_during_the_copy_captures_nothing() {
    let Some((dir, shared)) = ground(0o755) else { return };
    chown(&shared, Some(STRANGER), Some(STRANGER)).unwrap();
    well(STRANGER, &shared, "stripe create evil --objects . .");
    well(0, &shared, "stripe create out --objects . .");
    let is_soak = std::env::var("DIOPTER_SOAK").is_ok_and(|text| !text.is_empty() && text != "0");
    let span = Duration::from_secs(if is_soak { 30 } else { 2 });
    let is_over = AtomicBool::new(false);
    let (started, mut attempts, mut written) = (Instant::now(), 0, 0);
    let exchanges = std::thread::scope(|scope| {
        let attacker = scope.spawn(|| {
            let [out, evil] = ["out", "evil"].map(|name| shared.join(name));
            let mut exchanges = 0u64;
            while !is_over.load(Ordering::Relaxed) {
                let (at, flags) = (rustix::fs::CWD, rustix::fs::RenameFlags::EXCHANGE);
                exchanges +=
                    u64::from(rustix::fs::renameat_with(at, &out, at, &evil, flags).is_ok());
                std::thread::yield_now();
            }
            exchanges
        });
        while attempts < 3 || started.elapsed() < span {
            let output = run(0, &shared, "cp ../secret out").unwrap();
            attempts += 1;
            written += u32::from(output.status.success());
            assert_secret_is_kept(&shared);
        }
        is_over.store(true, Ordering::Relaxed);
        attacker.join().unwrap()
    });
    print_line(&format!(
        "{attempts} attempts, {written} written, {exchanges} exchanges, 0 captured"
    ));
    assert!(exchanges > 0);
    drop(dir);
}

/// A manifest of two objects, with these paths.
fn manifest_of(paths: [&str; 2]) -> Vec<u8> {
    let object =
        |path: &str| Object { path: path.to_owned(), kind: ObjectKind::File { sealed_size: None } };
    let manifest = Manifest::new(Uuid::new_v4(), 4096, paths.map(object).into(), None);
    manifest.unwrap().to_bytes().unwrap()
}

/// Root copies all homes. One user has a manifest that names itself and another user's file.
#[test]
fn a_manifest_that_names_others_files_does_not_keep_them_out_of_roots_backup() {
    let Some((dir, home)) = ground(0o755) else { return };
    let here = dir.path();
    let [attacker, victim] = ["attacker", "victim"].map(|name| home.join(name));
    for path in [&attacker, &victim] {
        fs::create_dir(path).unwrap();
    }
    let important = victim.join("important");
    fs::write(&important, "the victim's").unwrap();
    let evil = attacker.join("m.dio");
    fs::write(&evil, manifest_of(["m.dio", important.to_str().unwrap()])).unwrap();
    for path in [&attacker, &evil] {
        chown(path, Some(STRANGER), Some(STRANGER)).unwrap();
    }
    well(STRANGER, &attacker, "stripe adopt m.dio");
    let output = run(0, here, "cp -a --striped shared backup").unwrap();
    let text = message(&output);
    assert_eq!(fs::read(here.join("backup/victim/important")).unwrap(), b"the victim's", "{text}");
    assert_eq!(output.status.code(), Some(2), "the manifest is not copied: {text}");
    assert!(text.contains("m.dio") && text.contains("belongs to user 65534"), "{text}");
    // Of root's own, the same paths are not objects either: they have no mark.
    chown(&evil, Some(0), Some(0)).unwrap();
    fs::remove_dir_all(here.join("backup")).unwrap();
    let output = run(0, here, "cp -a --striped shared backup").unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", message(&output));
    assert_eq!(fs::read(here.join("backup/victim/important")).unwrap(), b"the victim's");
}

/// The owner of a manifest may mark a file that others own and that all may write.
#[test]
fn a_manifest_hides_no_file_of_another_user_than_its_owner() {
    let Some((dir, shared)) = ground(0o755) else { return };
    chown(&shared, Some(STRANGER), Some(STRANGER)).unwrap();
    well(STRANGER, &shared, "stripe create evil --objects . .");
    let here = dir.path();
    let third = 65_533;
    chown(shared.join("evil.1"), Some(third), Some(third)).unwrap();
    let taken = here.join("taken");
    fs::create_dir(&taken).unwrap();
    chown(&taken, Some(third), Some(third)).unwrap();
    fs::set_permissions(shared.join("evil.0"), Permissions::from_mode(0o644)).unwrap();
    let output = run(third, here, "cp -r --striped shared taken/copy").unwrap();
    let text = message(&output);
    // If the striped file comes first, its new object has the name, and that is reported.
    let copied = names(&taken.join("copy"));
    let is_refused = output.status.code() == Some(2) && text.contains("evil.1: it is an object");
    assert!(is_refused || copied.len() == 4, "{copied:?} {text}");
}

#[test]
fn a_striped_file_with_a_wrong_object_hides_no_file_and_its_objects_are_reported() {
    let (dir, _, _) = with_source(22, 0);
    let source = dir.path().join("tree");
    fs::create_dir(&source).unwrap();
    let data = source.join("data");
    striped(&data, 2, 4096);
    fs::remove_file(source.join("data.1")).unwrap();
    fs::write(source.join("data.1"), "a plain file").unwrap();
    let copy = dir.path().join("copy");
    let output = cp(&["-a", "--striped"], &source, &copy);
    let text = message(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    assert_eq!(fs::read(copy.join("data.1")).unwrap(), b"a plain file", "{text}");
    let words = "data.0: it is an object of a striped file that was not copied";
    assert!(text.contains(words), "{text}");
    assert_eq!(names(&copy), ["data.1"]);
}

/// A link to a manifest is copied as a link, so what the manifest names does not come with it.
#[test]
fn an_object_whose_manifest_is_not_among_the_sources_is_copied_as_a_file() {
    let (dir, _, data) = with_source(23, 0);
    striped(&data, 2, 4096);
    let here = dir.path();
    std::os::unix::fs::symlink("target", here.join("link")).unwrap();
    fs::create_dir(here.join("copy")).unwrap();
    well(0, here, "cp -a --striped link target.0 copy");
    assert_eq!(names(&here.join("copy")), ["link", "target.0"]);
    // With its striped file it is an object of the copy, and not a second file.
    fs::create_dir(here.join("all")).unwrap();
    well(0, here, "cp -a --striped target target.0 target.1 all");
    assert_eq!(names(&here.join("all")), ["target", "target.0", "target.1"]);
    assert_eq!(bytes_of(&here.join("all/target")), OLD);
}
