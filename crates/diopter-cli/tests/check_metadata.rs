//! `dio verify --metadata`: each attribute that `dio cp -a` keeps, and the hard links, of trees and
//! of files. Other comparisons are in `check`.

mod cp_support;
mod json_schema;
#[path = "check_metadata/refused.rs"]
mod refused;
#[path = "check_metadata/support.rs"]
mod support;

use std::ffi::OsStr;
use std::fs::{File, Permissions};
use std::ops::RangeInclusive;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, lchown, symlink};
use std::path::Path;

use cp_support::*;
use rustix::fs::XattrFlags;
use serde_json::{Value, json};
use support::*;

/// A change of one tree, the line that reports it, and what the document has of it.
struct Case<'c> {
    change: &'c dyn Fn(&Path),
    line: &'c str,
    found: Value,
}

/// Makes two trees that are the same, changes the second one and compares.
fn check(case: &Case<'_>) {
    let Some(dir) = ground() else { return };
    let (_, two) = twins(dir.path());
    assert_eq!(differences(dir.path(), 0), [""; 0], "before {}", case.line);
    (case.change)(&two);
    assert_eq!(differences(dir.path(), 1), [case.line]);
    let document = document(dir.path(), 1);
    assert_eq!(document["metadata"], true);
    let found = document["differences"].as_array().unwrap();
    assert_eq!(found.len(), 1, "{}", case.line);
    let expected = case.found.as_object().unwrap();
    for (key, value) in expected {
        assert_eq!(&found[0][key], value, "{key} of {}", case.line);
    }
    assert_eq!(run(dir.path(), &["verify", "one", "two"]).status.code(), Some(0), "by content");
}

fn values(what: &str, name: &str, values: [&str; 2]) -> Value {
    let [first, second] = ["one", "two"].map(|tree| Path::new(tree).join(name));
    json!({ "what": what, "first": first, "second": second, "values": values })
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn permissions_of_files_and_directories_are_compared() {
    check(&Case {
        change: &|two| set_mode(&two.join("dir/file"), 0o4755),
        line: "one/dir/file and two/dir/file differ in permissions: 0644 and 4755",
        found: values("permissions", "dir/file", ["0644", "4755"]),
    });
    check(&Case {
        change: &|two| set_mode(&two.join("dir"), 0o1755),
        line: "one/dir and two/dir differ in permissions: 0755 and 1755",
        found: values("permissions", "dir", ["0755", "1755"]),
    });
    check(&Case {
        change: &|two| set_mode(two, 0o700),
        line: "one and two differ in permissions: 0755 and 0700",
        found: json!({ "first": "one", "second": "two", "values": ["0755", "0700"] }),
    });
    check(&Case {
        change: &|two| set_mode(&two.join("fifo"), 0o622),
        line: "one/fifo and two/fifo differ in permissions: 0644 and 0622",
        found: values("permissions", "fifo", ["0644", "0622"]),
    });
}

#[test]
fn owners_and_groups_are_compared_of_links_too() {
    if !is_root() {
        return skip(Capability::Root, "only root gives files away");
    }
    check(&Case {
        change: &|two| lchown(two.join("dir/file"), Some(1000), None).unwrap(),
        line: "one/dir/file and two/dir/file differ in owner: 0 and 1000",
        found: values("owner", "dir/file", ["0", "1000"]),
    });
    check(&Case {
        change: &|two| lchown(two.join("link"), Some(4_000_000_000), None).unwrap(),
        line: "one/link and two/link differ in owner: 0 and 4000000000",
        found: values("owner", "link", ["0", "4000000000"]),
    });
    check(&Case {
        change: &|two| lchown(two.join("dir"), None, Some(77)).unwrap(),
        line: "one/dir and two/dir differ in group: 0 and 77",
        found: values("group", "dir", ["0", "77"]),
    });
}

#[test]
fn times_of_modification_are_compared_to_the_nanosecond() {
    let [then, later] = ["2001-09-09T01:46:40.000000001Z", "2001-09-09T01:46:40.000000002Z"];
    let seconds = ["1000000000.000000001", "1000000000.000000002"];
    for name in ["dir/file", "dir", "link", "fifo"] {
        let line =
            format!("one/{name} and two/{name} differ in modification time: {then} and {later}");
        check(&Case {
            change: &|two| set_time(&two.join(name), THEN, 2),
            line: &line,
            found: values("modification-time", name, seconds),
        });
    }
    let line = format!("one and two differ in modification time: {then} and {later}");
    check(&Case {
        change: &|two| set_time(two, THEN, 2),
        line: &line,
        found: json!({ "what": "modification-time", "values": seconds }),
    });
    check(&Case {
        change: &|two| set_time(&two.join("link"), -1, 500_000_000),
        line: "one/link and two/link differ in modification time: 2001-09-09T01:46:40.000000001Z \
               and 1969-12-31T23:59:59.500000000Z",
        found: values("modification-time", "link", [seconds[0], "-0.500000000"]),
    });
}

#[test]
fn whole_seconds_are_another_time_where_the_file_system_has_finer_ones() {
    let Some(dir) = ground() else { return };
    let (one, two) = twins(dir.path());
    set_time(&one.join("dir/file"), THEN, 123_456_789);
    set_time(&two.join("dir/file"), THEN, 0);
    let line = "one/dir/file and two/dir/file differ in modification time: \
                2001-09-09T01:46:40.123456789Z and 2001-09-09T01:46:40.000000000Z";
    assert_eq!(differences(dir.path(), 1), [line]);
}

#[test]
fn extended_attributes_are_compared_by_name_and_value() {
    let set = |path: &Path, name: &str, value: &[u8]| set_attribute(path, name, value);
    let found = |name: &str, of: &str| {
        let what = "extended-attribute";
        json!({ "what": what, "attribute": name, "attribute_of": of })
    };
    check(&Case {
        change: &|two| set(&two.join("dir/file"), "user.one", b"valuf"),
        line: "one/dir/file and two/dir/file differ in extended attribute user.one",
        found: found("user.one", "both"),
    });
    check(&Case {
        change: &|two| rustix::fs::removexattr(two.join("dir/file"), "user.one").unwrap(),
        line: "one/dir/file and two/dir/file differ in extended attribute user.one: \
               only one/dir/file has it",
        found: found("user.one", "first"),
    });
    check(&Case {
        change: &|two| set(&two.join("dir"), "user.empty", b""),
        line: "one/dir and two/dir differ in extended attribute user.empty: only two/dir has it",
        found: found("user.empty", "second"),
    });
    if !is_root() {
        return skip(Capability::Root, "only root sets attributes of the system");
    }
    check(&Case {
        change: &|two| set(&two.join("link"), "trusted.one", b"value"),
        line: "one/link and two/link differ in extended attribute trusted.one: \
               only two/link has it",
        found: found("trusted.one", "second"),
    });
    // vfs_cap_data of linux/capability.h, version 2: CAP_NET_BIND_SERVICE, permitted.
    let mut capability = [0; 20];
    capability[..8].copy_from_slice(&[1, 0, 0, 2, 0, 4, 0, 0]);
    check(&Case {
        change: &|two| set(&two.join("dir/file"), "security.capability", &capability),
        line: "one/dir/file and two/dir/file differ in extended attribute security.capability: \
               only two/dir/file has it",
        found: found("security.capability", "second"),
    });
}

#[test]
fn access_lists_are_compared() {
    let Some(dir) = ground() else { return };
    if !set_default_list(dir.path(), [5, 5, 1]) {
        return skip(Capability::Acl, "this file system has no access lists");
    }
    check(&Case {
        change: &|two| assert!(set_default_list(&two.join("dir"), [5, 5, 1])),
        line: "one/dir and two/dir differ in extended attribute system.posix_acl_default: \
               only two/dir has it",
        found: json!({ "attribute": "system.posix_acl_default", "attribute_of": "second" }),
    });
    check(&Case {
        change: &|two| set_access_list(&two.join("dir/file"), 12_345),
        line: "one/dir/file and two/dir/file differ in extended attribute \
               system.posix_acl_access: only two/dir/file has it",
        found: json!({ "attribute": "system.posix_acl_access", "attribute_of": "second" }),
    });
    // The same permissions for another user.
    let Some(dir) = ground() else { return };
    let (one, two) = twins(dir.path());
    set_access_list(&one.join("dir/file"), 12_345);
    set_access_list(&two.join("dir/file"), 12_346);
    let line = "one/dir/file and two/dir/file differ in extended attribute system.posix_acl_access";
    assert_eq!(differences(dir.path(), 1), [line]);
}

/// The names of each file.
type Groups<'g> = &'g [&'g [&'g str]];

/// Makes files with these names in a tree.
fn link(tree: &Path, groups: Groups<'_>) {
    for names in groups {
        let first = tree.join(names[0]);
        std::fs::write(&first, "linked").unwrap();
        for name in &names[1..] {
            std::fs::hard_link(&first, tree.join(name)).unwrap();
        }
    }
    set_times(tree);
}

#[test]
fn names_that_are_one_file_in_one_tree_only_are_found() {
    // How many pairs of names differ may depend on the order of the directory.
    let cases: [(Groups<'_>, Groups<'_>, RangeInclusive<usize>); 7] = [
        (&[&["x", "y"]], &[&["x"], &["y"]], 1..=1),
        (&[&["x"], &["y"]], &[&["x", "y"]], 1..=1),
        (&[&["x", "y", "dir/z"]], &[&["x", "y", "dir/z"]], 0..=0),
        (&[&["x", "y", "z"]], &[&["x", "y"], &["z"]], 1..=2),
        (&[&["w", "x"], &["y", "z"]], &[&["w", "y"], &["x", "z"]], 4..=4),
        (&[&["x", "y", "z"]], &[&["x"], &["y"], &["z"]], 2..=2),
        // A name outside the tree does not count.
        (&[&["x", "../outside-one"]], &[&["x"]], 0..=0),
    ];
    for (first, second, expected) in cases {
        let Some(dir) = ground() else { return };
        let (one, two) = twins(dir.path());
        link(&one, first);
        link(&two, second);
        let status = i32::from(*expected.end() > 0);
        let found = differences(dir.path(), status);
        assert!(expected.contains(&found.len()), "{first:?} and {second:?}: {found:?}");
        let document = document(dir.path(), status);
        for (line, found) in found.iter().zip(document["differences"].as_array().unwrap()) {
            let text = |key: &str| found[key].as_str().unwrap();
            let [a, b] = [("other_first", "first"), ("other_second", "second")]
                .map(|(before, name)| format!("{} and {}", text(before), text(name)));
            let (linked, not) = if found["linked_in"] == "first" { (a, b) } else { (b, a) };
            assert_eq!(line, &format!("{linked} are one file, {not} are not"));
            assert_eq!(found["what"], "hard-links");
        }
        let by_content = run(dir.path(), &["verify", "one", "two"]);
        assert_eq!(by_content.status.code(), Some(0), "{}", message(&by_content));
    }
    let Some(dir) = ground() else { return };
    let (one, two) = twins(dir.path());
    link(&one, &[&["x", "y"]]);
    link(&two, &[&["x"], &["y"]]);
    let [line] = &differences(dir.path(), 1)[..] else { panic!("one line") };
    let either = [("x", "y"), ("y", "x")].map(|(before, name)| {
        format!("one/{before} and one/{name} are one file, two/{before} and two/{name} are not")
    });
    assert!(either.contains(line), "{line}");
}

#[test]
fn what_no_copy_keeps_is_not_compared() {
    let Some(dir) = ground() else { return };
    let (_, two) = twins(dir.path());
    // A directory that had many names is larger, and the copy was read at another time.
    for number in 0..500 {
        std::fs::write(two.join(format!("dir/{number:0>100}")), "").unwrap();
    }
    for number in 0..500 {
        std::fs::remove_file(two.join(format!("dir/{number:0>100}"))).unwrap();
    }
    set_attribute(&two.join("dir/file"), "user.diopter.cp", b"the mark of a temporary");
    set_times(&two);
    let time = rustix::fs::Timespec { tv_sec: 5, tv_nsec: 5 };
    let omitted = rustix::fs::Timespec { tv_sec: 0, tv_nsec: rustix::fs::UTIME_OMIT };
    let times = rustix::fs::Timestamps { last_access: time, last_modification: omitted };
    let flags = rustix::fs::AtFlags::empty();
    rustix::fs::utimensat(rustix::fs::CWD, two.join("dir/file"), &times, flags).unwrap();
    assert_eq!(differences(dir.path(), 0), [""; 0]);
}

#[test]
fn a_copy_with_all_attributes_has_no_difference() {
    let Some(dir) = ground() else { return };
    make_odd(&dir.path().join("one"));
    let copies = [vec!["cp", "-a"], vec!["cp", "-a", "--flush=files"]];
    for words in copies {
        let output = run(dir.path(), &[&words[..], &["one", "two"]].concat());
        assert!(output.status.success(), "{}", message(&output));
        let found = differences(dir.path(), 0);
        assert_eq!(found, [""; 0], "{words:?}");
        std::fs::remove_dir_all(dir.path().join("two")).unwrap();
    }
    run(dir.path(), &["cp", "-r", "one", "two"]);
    assert!(differences(dir.path(), 1).len() > 5, "without attributes");
    std::fs::remove_dir_all(dir.path().join("two")).unwrap();
    if !has_gnu_cp() {
        return;
    }
    let copied = std::process::Command::new("cp")
        .args(["-a", "one", "two"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    assert!(copied.status.success(), "{}", message(&copied));
    assert_eq!(differences(dir.path(), 0), [""; 0], "of cp");
    let text = stdout(&run(dir.path(), &["verify", "--metadata", "one", "two"]));
    assert!(text.starts_with("no difference in content and metadata: "), "{text}");
}

#[test]
fn two_files_are_compared_and_links_to_them_followed() {
    let Some(dir) = ground() else { return };
    let (_, two) = twins(dir.path());
    let by = |words: &[&str], status: i32| {
        let output = run(dir.path(), &[&["verify", "--metadata"], words].concat());
        assert_eq!(output.status.code(), Some(status), "{words:?}: {}", message(&output));
        stdout(&output)
    };
    by(&["one/dir/file", "two/dir/file"], 0);
    by(&["one/dir/file", "two/dir"], 0);
    set_mode(&two.join("dir/file"), 0o600);
    set_attribute(&two.join("dir/file"), "user.one", b"");
    symlink("two/dir/file", dir.path().join("link")).unwrap();
    let expected = "one/dir/file and link differ in permissions: 0644 and 0600\n\
                    one/dir/file and link differ in extended attribute user.one\n";
    assert_eq!(by(&["one/dir/file", "link"], 1), expected);
    // Content and attributes are differences for themselves.
    std::fs::write(two.join("dir/file"), "CONTENT").unwrap();
    let found = by(&["one/dir/file", "two/dir/"], 1);
    assert!(found.starts_with("one/dir/file and two/dir/file differ at byte 0 "), "{found}");
    assert!(found.contains("differ in permissions") && found.contains("modification"), "{found}");
}

#[test]
fn names_of_other_users_are_escaped() {
    let Some(dir) = ground() else { return };
    let (one, two) = twins(dir.path());
    let name = OsStr::from_bytes(b"red\x1b[31m\n\xff");
    for tree in [&one, &two] {
        File::create(tree.join(name)).unwrap();
    }
    std::fs::hard_link(one.join(name), one.join("b\x1b[2J")).unwrap();
    File::create(two.join("b\x1b[2J")).unwrap();
    let attribute = OsStr::from_bytes(b"user.\x1b]0;owned\x07\n\xfe");
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(two.join("dir/file"), attribute, b"x", flags).unwrap();
    for tree in [&one, &two] {
        set_times(tree);
    }
    let output = run(dir.path(), &["verify", "--metadata", "one", "two"]);
    let text = stdout(&output);
    assert_eq!((output.status.code(), text.lines().count()), (Some(1), 2), "{text}");
    assert!(!text.contains(|it: char| it.is_control() && it != '\n'), "{text:?}");
    assert!(text.contains("\"user.\\u{1b}]0;owned\\u{7}\\n"), "{text}");
    let document = document(dir.path(), 1);
    let found = document["differences"].as_array().unwrap();
    let of = |what: &str| found.iter().find(|it| it["what"] == what).unwrap();
    // The bytes in base64.
    assert_eq!(of("extended-attribute")["attribute_bytes"], "dXNlci4bXTA7b3duZWQHCv4=");
    let links = of("hard-links");
    let keys = ["first_bytes", "other_first_bytes"];
    assert_eq!(keys.iter().filter(|key| links[**key].is_string()).count(), 1, "{links}");
}
