//! Names of objects of a cluster, and the configurations that they lead to. No cluster is needed:
//! librados writes its log before it connects.

use super::*;

/// A configuration whose log shows that librados read it.
fn conf(log: &Path) -> String {
    format!(
        "[global]\nfsid = 11111111-2222-3333-4444-555555555555\nmon_host = 127.0.0.1:1\n\
         log_file = {}\nlog_to_file = true\nauth_client_required = cephx\nkeyring = /none\n",
        log.display()
    )
}

/// Returns true, with a skip, if there is no librados.
fn is_missing(within: &Path) -> bool {
    let version = ended(dio(within).arg("--version"));
    let is_missing = String::from_utf8_lossy(&version.stdout).contains("rados: no");
    if is_missing {
        skip(Capability::Ceph, "librados is not installed");
    }
    is_missing
}

#[test]
fn a_local_file_of_the_name_of_an_object_is_refused_by_every_command() {
    let Some(ground) = ground() else { return };
    let log = ground.root.path().join("log");
    ground.theirs("c.conf", conf(&log));
    let directory = ground.open.join("rados:c.conf!p");
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("x"), b"data").unwrap();
    let name = "rados:c.conf!p/x";
    for words in [
        &["sum", name][..],
        &["cp", name, "copy"],
        &["cp", "c.conf", name],
        &["probe", name],
        &["verify", name, name],
        &["bench", name, "--rw=randread", "--size=4k", "--quiet"],
        &["stripe", "info", name],
        &["explain", "read", name, "--offset=0", "--length=4k"],
    ] {
        let (status, message) = run(dio(&ground.open).args(words));
        assert_eq!(status, Some(2), "{words:?}: {message}");
        assert!(message.contains("local file") && message.contains("./rados:"), "{message}");
        assert!(!log.exists(), "{words:?}");
    }
    let (status, message) = run(dio(&ground.open).args(["sum", &format!("./{name}")]));
    assert_eq!((status, message.as_str()), (Some(0), ""), "that is the file");
}

#[test]
fn a_configuration_of_another_user_is_not_read() {
    let Some(ground) = ground() else { return };
    if is_missing(ground.root.path()) {
        return;
    }
    let log = ground.root.path().join("log");
    let theirs = ground.theirs("c.conf", conf(&log));
    let shared = ground.root.path().join("shared.conf");
    fs::write(&shared, conf(&log)).unwrap();
    set(&shared, 0o666);
    let link = ground.open.join("link.conf");
    std::os::unix::fs::symlink(&shared, &link).unwrap();
    give(&link);
    for (path, why) in [
        (&theirs, "belongs to user 54321"),
        (&shared, "other users may write to it (mode 0666)"),
        (&link, "belongs to user 54321"),
    ] {
        let name = format!("rados:{}!p/x", path.display());
        for command in ["sum", "probe"] {
            let (status, message) = run(dio(ground.root.path()).args([command, &name]));
            assert_eq!(status, Some(2), "{message}");
            assert!(message.contains("read the configuration"), "{message}");
            assert!(message.contains(why), "{message}");
        }
        let (status, message) =
            run(dio(ground.root.path()).args(["probe", "rados:p/x"]).env("CEPH_CONF", path));
        assert!(status == Some(2) && message.contains(why), "{message}");
    }
    assert!(!log.exists());
}

#[test]
fn a_configuration_writes_no_log_and_makes_no_socket() {
    let root = dir();
    if is_missing(root.path()) {
        return;
    }
    set(root.path(), 0o700);
    let log = root.path().join("log");
    let socket = root.path().join("socket");
    let text = format!("{}admin_socket = {}\n", conf(&log), socket.display());
    let path = root.path().join("own.conf");
    fs::write(&path, text).unwrap();
    set(&path, 0o600);
    let name = format!("rados:{}!p/x", path.display());
    let (status, message) = run(dio(root.path()).args(["probe", &name]));
    // It was read: there is no key for the user.
    assert_eq!(status, Some(2), "{message}");
    assert!(message.contains("connect to the cluster"), "{message}");
    assert!(!log.exists() && !socket.exists());
}
