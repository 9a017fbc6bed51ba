//! `dio cp`: what of a tree is copied, and how: links that are followed, names that are left out,
//! nodes; and the directory that takes the copies.

mod cp_support;

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use cp_support::*;
use rustix::fs::{CWD, FileType, Mode, makedev};

fn gnu(options: &[&str], source: &Path, target: &Path) -> Output {
    Command::new("cp").args(options).arg(source).arg(target).output().unwrap()
}

/// The extended attributes of a name, of a link itself too.
fn attributes(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut names = [0; 1000];
    let length = rustix::fs::llistxattr(path, &mut names[..]).unwrap_or(0);
    let names = names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let value = |name: &[u8]| {
        let mut value = vec![0; 1000];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        value.truncate(length);
        (String::from_utf8(name.to_vec()).unwrap(), value)
    };
    let mut found: Vec<_> = names.map(value).collect();
    found.sort();
    found
}

/// An access list with `rw-` for user 1000 and nothing for the group; its mask is `rw-`.
fn access_list() -> Vec<u8> {
    let entries: [(u8, u8, u32); 5] =
        [(1, 6, !0), (2, 6, 1000), (4, 0, !0), (0x10, 6, !0), (0x20, 0, !0)];
    let mut list = vec![2, 0, 0, 0];
    for (tag, permissions, id) in entries {
        list.extend([tag, 0, permissions, 0]);
        list.extend(id.to_le_bytes());
    }
    list
}

/// Every path below a directory, with its kind, the content of a file or a link, permissions, the
/// number of its names, and extended attributes.
fn picture(root: &Path) -> Vec<(PathBuf, String)> {
    picture_of(root, true)
}

/// As [`picture`], with or without the number of names.
fn picture_of(root: &Path, counts_names: bool) -> Vec<(PathBuf, String)> {
    let each = walkdir::WalkDir::new(root).sort_by_file_name().into_iter().map(|entry| {
        let entry = entry.unwrap();
        let kind = entry.file_type();
        let what = if kind.is_file() {
            format!("file {}", fs::read_to_string(entry.path()).unwrap())
        } else if kind.is_symlink() {
            format!("link {:?}", fs::read_link(entry.path()).unwrap())
        } else if kind.is_dir() {
            "directory".to_owned()
        } else {
            format!("{kind:?} {}", entry.metadata().unwrap().rdev())
        };
        let found = entry.metadata().unwrap();
        let names = if counts_names { found.nlink() } else { 0 };
        let (mode, attributes) = (found.mode(), attributes(entry.path()));
        let what = format!("{what} {mode:o} {names} {attributes:?}");
        (entry.path().strip_prefix(root).unwrap().to_owned(), what)
    });
    each.collect()
}

/// A tree with links of every kind but dead ones and loops.
fn linked(root: &Path) {
    fs::create_dir_all(root.join("source/deep/er")).unwrap();
    fs::create_dir_all(root.join("outside/inner")).unwrap();
    fs::write(root.join("outside/inner/far"), "far").unwrap();
    fs::write(root.join("source/deep/er/near"), "near").unwrap();
    symlink("er/near", root.join("source/deep/file")).unwrap();
    symlink("../../outside", root.join("source/deep/out")).unwrap();
    symlink("deep/er", root.join("source/twice")).unwrap();
    symlink("source", root.join("named")).unwrap();
}

#[test]
fn links_are_followed_as_with_cp() {
    let dir = dir();
    linked(dir.path());
    let rows: [&[&str]; 10] = [
        &["-r"],
        &["-rL"],
        &["-rP"],
        &["-rH"],
        &["-a"],
        &["-aL"],
        &["-r", "--dereference"],
        &["-rL", "--no-dereference"],
        &["-rP", "-H"],
        &["-rH", "-L"],
    ];
    for (number, options) in rows.into_iter().enumerate() {
        for source in ["source", "named"] {
            let at = |who: &str| dir.path().join(format!("{who}{number}{source}"));
            let source = dir.path().join(source);
            cp_well(options, &source, &at("ours"));
            assert!(gnu(options, &source, &at("theirs")).status.success());
            // With -aL files that links lead to become separate files, not so with cp.
            let picture = |root: &Path| picture_of(root, options != ["-aL"]);
            assert_eq!(picture(&at("ours")), picture(&at("theirs")), "{options:?} {source:?}");
        }
    }
    let file = dir.path().join("source/deep/file");
    for (options, is_link) in
        [(&["-P"][..], true), (&["-L"], false), (&["-H"], false), (&[], false)]
    {
        let target = dir.path().join("one");
        cp_well(options, &file, &target);
        assert_eq!(target.is_symlink(), is_link, "{options:?}");
        fs::remove_file(target).unwrap();
    }
}

#[test]
fn a_link_does_not_take_the_place_of_the_file_that_it_leads_to() {
    let dir = dir();
    let at = |name: &str| dir.path().join(name);
    for name in ["source", "other", "there"] {
        fs::create_dir(at(name)).unwrap();
    }
    for name in ["file", "other/x", "there/y"] {
        fs::write(at(name), "precious").unwrap();
    }
    symlink("file", at("link")).unwrap();
    symlink("../other/x", at("source/x")).unwrap();
    symlink("there/y", at("y")).unwrap();
    let rows: [(&[&str], &str, &str, &str); 4] = [
        (&["-P"], "link", "file", "file"),
        (&["-aT"], "source", "other", "other/x"),
        (&["-P"], "y", "there", "there/y"),
        (&["-r"], "y", "there", "there/y"),
    ];
    for (options, source, target, content) in rows {
        for output in
            [cp(options, &at(source), &at(target)), gnu(options, &at(source), &at(target))]
        {
            assert!(!output.status.success(), "{options:?} {source}: {output:?}");
            assert_eq!(fs::read_to_string(at(content)).unwrap(), "precious", "{options:?}");
        }
        let text = message(&cp(options, &at(source), &at(target)));
        assert!(text.contains("the source is a link to it"), "{text}");
    }
    // Another file of the name is replaced, as with cp.
    fs::remove_file(at("link")).unwrap();
    symlink("there/y", at("link")).unwrap();
    cp_well(&["-P"], &at("link"), &at("file"));
    assert!(at("file").is_symlink());
}

#[test]
fn all_names_of_a_file_are_copied_also_those_that_links_lead_to() {
    let dir = dir();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("inner")).unwrap();
    for (number, size) in [10, 3 << 20].into_iter().enumerate() {
        let at = |name: &str| source.join(format!("{name}{number}"));
        fs::write(at("a"), vec![b'x'; size]).unwrap();
        fs::hard_link(at("a"), at("b")).unwrap();
        fs::hard_link(at("a"), at("inner/f")).unwrap();
        for name in ["c", "d", "e"] {
            symlink(at("a"), at(name)).unwrap();
        }
    }
    symlink("inner", source.join("twice")).unwrap();
    for options in ["-aL", "-rL"] {
        let target = dir.path().join(format!("copy{options}"));
        cp_well(&[options], &source, &target);
        for number in 0..2 {
            let at = |name: &str| target.join(format!("{name}{number}"));
            let first = fs::metadata(at("a")).unwrap();
            for name in ["a", "b", "c", "d", "e", "inner/f", "twice/f"] {
                let found = fs::symlink_metadata(at(name)).unwrap();
                assert!(found.is_file() && found.len() == first.len(), "{options} {name}");
                let is_one = found.ino() == first.ino();
                assert_eq!(is_one, options == "-aL" || name == "a", "{options} {name}{number}");
            }
        }
    }
}

#[test]
fn a_link_to_a_directory_that_it_is_in_is_reported_and_the_rest_is_copied() {
    let dir = dir();
    let source = dir.path().join("source");
    fs::create_dir_all(source.join("a/b")).unwrap();
    fs::write(source.join("a/b/file"), "content").unwrap();
    for (link, leads_to) in
        [("a/here", "."), ("a/b/up", ".."), ("a/b/root", "../.."), ("self", "self"), ("dead", "no")]
    {
        symlink(leads_to, source.join(link)).unwrap();
    }
    // Through the parent the tree and its copy are met again.
    symlink(dir.path(), source.join("a/parent")).unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let output = cp(&["-rL"], &source, &ours);
    let text = message(&output);
    assert_eq!(output.status.code(), Some(2), "{text}");
    for (name, why) in [
        ("a/here", "leads to a directory that it is in"),
        ("a/b/up", "leads to a directory that it is in"),
        ("a/b/root", "leads to a directory that it is in"),
        ("a/parent/source", "leads to a directory that it is in"),
        ("a/parent/ours", "came to be in the source"),
        ("self", "symbolic links"),
        ("dead", "No such file"),
    ] {
        let is_it = |line: &str| line.contains(&format!("{name}:")) && line.contains(why);
        assert!(text.lines().any(is_it), "{name}: {why}: {text}");
    }
    assert_eq!(fs::read_to_string(ours.join("a/b/file")).unwrap(), "content");
    assert!(!ours.join("a/here").exists() && !ours.join("dead").exists());
    assert!(!ours.join("a/parent/source").exists() && !ours.join("a/parent/ours").exists());
    fs::remove_dir_all(&ours).unwrap();
    fs::remove_file(source.join("a/parent")).unwrap();
    let ours = cp(&["-rL"], &source, &ours).status.code().map(|_| picture(&ours));
    assert_eq!(gnu(&["-rL"], &source, &theirs).status.code(), Some(1));
    assert_eq!(ours.unwrap(), picture(&theirs));
}

#[test]
fn a_link_in_the_target_is_not_followed_whatever_is_followed_in_the_source() {
    let dir = dir();
    linked(dir.path());
    let (target, victim) = (dir.path().join("target"), dir.path().join("victim"));
    fs::create_dir_all(target.join("deep")).unwrap();
    fs::write(&victim, "victim").unwrap();
    symlink("../../victim", target.join("deep/file")).unwrap();
    symlink("../../outside", target.join("deep/out")).unwrap();
    let output = cp(&["-rLT"], &dir.path().join("source"), &target);
    assert_refused(&output, &["deep/out", "not a directory"]);
    assert_eq!(fs::read_to_string(&victim).unwrap(), "victim");
    assert_eq!(fs::read_to_string(target.join("deep/file")).unwrap(), "near");
    assert!(!target.join("deep/file").is_symlink());
}

#[test]
fn names_that_match_a_pattern_are_left_out_and_the_source_is_not() {
    let dir = dir();
    let source = dir.path().join("x.o");
    fs::create_dir_all(source.join("build/x")).unwrap();
    fs::create_dir_all(source.join("lib/build")).unwrap();
    for name in ["a.o", "a.c", "build/b.c", "build/x/c.c", "lib/build/d.c", "lib/a.o", "lib/b"] {
        fs::write(source.join(name), "").unwrap();
    }
    fs::write(source.join(std::ffi::OsStr::from_bytes(b"lib/\xff.o")), "").unwrap();
    let rows: [(&[&str], &[&str]); 6] = [
        (
            &["--exclude=*.o"],
            &[
                "a.c",
                "build",
                "build/b.c",
                "build/x",
                "build/x/c.c",
                "lib",
                "lib/b",
                "lib/build",
                "lib/build/d.c",
            ],
        ),
        (&["--exclude=build", "--exclude=*.o"], &["a.c", "lib", "lib/b"]),
        (
            &["--exclude=/build/", "--exclude=*.o", "--exclude=b/"],
            &["a.c", "lib", "lib/b", "lib/build", "lib/build/d.c"],
        ),
        (
            &["--exclude", "*/build", "--exclude=**/*.o", "--exclude=build/*/"],
            &["a.c", "build", "build/b.c", "lib", "lib/b"],
        ),
        (&["--exclude=*"], &[]),
        (&["--exclude=lib/**", "--exclude=[!l]*"], &["lib"]),
    ];
    for (options, expected) in rows {
        let target = dir.path().join("target");
        cp_well(&[&["-r"], options].concat(), &source, &target);
        let found: Vec<PathBuf> = picture(&target).into_iter().map(|(path, _)| path).collect();
        let expected: Vec<&Path> = [""].iter().chain(expected).map(Path::new).collect();
        assert_eq!(found, expected, "{options:?}");
        fs::remove_dir_all(target).unwrap();
    }
    let list = dir.path().join("list");
    fs::write(&list, "\u{FEFF}# objects\r\n\r\n*.o\r\n/build/\n").unwrap();
    let from = format!("--exclude-from={}", list.display());
    let target = dir.path().join("target");
    cp_well(&["-r", &from, "--exclude=b"], &source, &target);
    let found: Vec<PathBuf> = picture(&target).into_iter().map(|(path, _)| path).collect();
    let expected = ["", "a.c", "lib", "lib/build", "lib/build/d.c"].map(PathBuf::from);
    assert_eq!(found, expected);
    fs::remove_dir_all(target).unwrap();
    for (content, why) in [
        (&b"a\n\n[a\n"[..], "line 3"),
        (b"\xff\n", "line 1: it is not UTF-8"),
        (&[b'#'; (1 << 20) + 1], "at most 1 MiB"),
    ] {
        fs::write(&list, content).unwrap();
        let output = cp(&["-r", &from], &source, &dir.path().join("target"));
        assert_eq!(output.status.code(), Some(2));
        assert!(message(&output).contains(why), "{}", message(&output));
    }
    fs::remove_file(&list).unwrap();
    let output = cp(&["-r", &from], &source, &dir.path().join("target"));
    assert!(message(&output).contains("it cannot be read"), "{}", message(&output));
    let output = cp(&["-r", "--exclude=[a"], &source, &dir.path().join("target"));
    assert_eq!(output.status.code(), Some(2));
    assert!(message(&output).contains("invalid value '[a' for '--exclude"), "{}", message(&output));
    assert!(!dir.path().join("target").exists());
}

#[test]
fn a_directory_takes_all_sources_and_has_to_exist() {
    let dir = dir();
    let [one, two, into, none] = ["one", "two", "into", "none"].map(|name| dir.path().join(name));
    fs::write(&one, "1").unwrap();
    fs::write(&two, "2").unwrap();
    fs::create_dir(&into).unwrap();
    let to =
        |into: &Path, sources: &[&Path]| dio().arg("-t").arg(into).args(sources).output().unwrap();
    assert!(to(&into, &[&one]).status.success());
    assert!(to(&into, &[&one, &two]).status.success());
    assert_eq!(names(&into), ["one", "two"]);
    assert_refused(&to(&none, &[&one]), &["none", "not a directory"]);
    assert_refused(&to(&two, &[&one]), &["two", "not a directory"]);
    assert_eq!(fs::read_to_string(&two).unwrap(), "2");
    let both = dio().args(["-T", "-t"]).args([&into, &one]).output().unwrap();
    assert_eq!(both.status.code(), Some(2), "{}", message(&both));
    let long = format!("--target-directory={}", into.display());
    assert!(dio().arg(&long).arg(&two).output().unwrap().status.success());
}

#[test]
fn nodes_are_made_like_those_of_the_source() {
    let dir = dir();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let _listener = UnixListener::bind(source.join("socket")).unwrap();
    let mode = Mode::from_bits_truncate(0o640);
    rustix::fs::mknodat(CWD, source.join("fifo"), FileType::Fifo, mode, 0).unwrap();
    let devices = [
        ("null", FileType::CharacterDevice, makedev(1, 3)),
        ("disk", FileType::BlockDevice, makedev(7, 200)),
    ];
    let has_devices = is_root()
        && devices.iter().all(|(name, kind, device)| {
            rustix::fs::mknodat(CWD, source.join(name), *kind, mode, *device).is_ok()
        });
    symlink("fifo", source.join("link")).unwrap();
    for (name, attribute, value) in [
        ("fifo", "system.posix_acl_access", &access_list()[..]),
        ("null", "system.posix_acl_access", &access_list()),
        ("fifo", "trusted.one", b"value"),
        ("link", "trusted.one", b"value"),
    ] {
        let flags = rustix::fs::XattrFlags::empty();
        // As far as the file system and the user can.
        rustix::fs::lsetxattr(source.join(name), attribute, value, flags).unwrap_or(());
    }
    fs::hard_link(source.join("fifo"), source.join("fifo2")).unwrap();
    fs::hard_link(source.join("link"), source.join("link2")).unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let refused = cp(&["-r"], &source, &dir.path().join("refused"));
    let text = message(&refused);
    assert_eq!(refused.status.code(), Some(2), "{text}");
    assert!(text.contains("source/socket: it is a device or a socket; use -a"), "{text}");
    let report = cp_report(&["-a"], &source, &ours);
    assert!(gnu(&["-a"], &source, &theirs).status.success());
    assert_eq!(picture(&ours), picture(&theirs));
    // A socket, a fifo, a link and the devices; the others are further names.
    let nodes = if has_devices { 5 } else { 3 };
    assert_eq!((&report["others"], &report["links"]), (&nodes.into(), &2.into()));
    for name in fs::read_dir(&source).unwrap().map(|entry| entry.unwrap().file_name()) {
        let [one, other] = [&ours, &source].map(|at| fs::metadata(at.join(&name)).unwrap());
        assert_eq!(
            (one.mode(), one.mtime(), one.uid()),
            (other.mode(), other.mtime(), other.uid())
        );
    }
    // An existing node is replaced, and not opened or written to.
    fs::write(ours.join("fifo.new"), "").unwrap();
    fs::rename(ours.join("fifo.new"), ours.join("fifo")).unwrap();
    cp_well(&["-aT"], &source, &ours);
    assert!(fs::metadata(ours.join("fifo")).unwrap().file_type().is_fifo());
    if !has_devices {
        skip(Capability::Root, "device nodes cannot be made");
    }
}

#[test]
fn without_the_privilege_a_device_node_is_refused_and_the_rest_is_copied() {
    let dir = dir();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::write(source.join("file"), "content").unwrap();
    let (kind, device) = (FileType::CharacterDevice, makedev(1, 3));
    let null = source.join("null");
    if !is_root() || rustix::fs::mknodat(CWD, &null, kind, Mode::RUSR, device).is_err() {
        skip(Capability::Root, "device nodes cannot be made");
        return;
    }
    let target = dir.path().join("target");
    let mut command = Command::new("setpriv");
    command.args(["--bounding-set=-mknod", "--inh-caps=-mknod", env!("CARGO_BIN_EXE_dio"), "cp"]);
    let output = command.arg("-a").args([&source, &target]).output().unwrap();
    assert_refused(&output, &["null", "CAP_MKNOD", "--exclude"]);
    assert_eq!(names(&target), ["file"]);
}

#[test]
fn a_capability_that_does_not_suffice_is_not_called_missing() {
    let dir = dir();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    let unshare = |program: &str| {
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", program]);
        command
    };
    let (kind, device) = (FileType::CharacterDevice, makedev(1, 3));
    let is_made = rustix::fs::mknodat(CWD, source.join("null"), kind, Mode::RUSR, device).is_ok();
    if !is_made || !unshare("true").status().is_ok_and(|status| status.success()) {
        skip(Capability::Root, "device nodes or user namespaces cannot be made");
        return;
    }
    let target = dir.path().join("target");
    let mut command = unshare(env!("CARGO_BIN_EXE_dio"));
    let output = command.args(["cp", "-a"]).args([&source, &target]).output().unwrap();
    assert_refused(&output, &["target/null", "user namespace", "--exclude"]);
    assert!(!message(&output).contains("CAP_MKNOD"), "{}", message(&output));
}

#[test]
fn a_block_device_below_the_target_is_not_written_to() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    fs::create_dir_all(&source).unwrap();
    fs::create_dir_all(&target).unwrap();
    for name in ["disk", "file"] {
        fs::write(source.join(name), "content").unwrap();
    }
    let disk = target.join("disk");
    // No such device exists: only the message shows that it was not opened.
    let device = makedev(7, 200);
    let mode = Mode::RUSR | Mode::WUSR;
    if rustix::fs::mknodat(CWD, &disk, FileType::BlockDevice, mode, device).is_err() {
        skip(Capability::Root, "device nodes cannot be made");
        return;
    }
    let output = cp(&["-aT", "--overwrite"], &source, &target);
    assert_refused(&output, &["target/disk", "in a directory is not written", "remove the node"]);
    assert_eq!(fs::read_to_string(target.join("file")).unwrap(), "content");
    let output = cp(&["--overwrite"], &source.join("disk"), &target);
    assert_refused(&output, &["target/disk", "in a directory is not written"]);
    // It was named: the device itself is opened, which fails.
    let output = cp(&["--overwrite"], &source.join("disk"), &disk);
    assert_refused(&output, &["target/disk"]);
    assert!(!message(&output).contains("in a directory"), "{}", message(&output));
}

#[test]
fn a_link_into_the_target_meets_files_and_not_their_temporaries() {
    let dir = dir();
    let (source, target) = (dir.path().join("source"), dir.path().join("target"));
    // Of the two directories the second one that is copied leads to the copy of the first one,
    // whatever their order is.
    for (name, other) in [("a", "b"), ("b", "a")] {
        fs::create_dir_all(source.join(name)).unwrap();
        fs::create_dir_all(target.join(name)).unwrap();
        for number in 0..20 {
            fs::write(source.join(name).join(format!("{name}{number}")), name).unwrap();
        }
        symlink(target.join(other), source.join(name).join("link")).unwrap();
    }
    cp_well(&["-rLT"], &source, &target);
    let found = picture(&target);
    let is_temporary = |path: &Path| path.to_str().unwrap().ends_with(".dio-part");
    assert!(!found.iter().any(|(path, _)| is_temporary(path)), "{found:?}");
    let is_copied = |path: &str| target.join(path).exists();
    assert!(is_copied("a/link/b0") || is_copied("b/link/a0"), "{found:?}");
}
