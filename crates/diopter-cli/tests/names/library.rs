//! The library of `dio run`, which is loaded into root's programs.

use super::*;

/// A copy of `dio` in a sticky directory, and the places next to it.
fn planted(ground: &Ground, dio: &str, library: &str) -> (PathBuf, PathBuf) {
    let sticky = ground.root.path().join("sticky");
    fs::create_dir_all(&sticky).unwrap();
    set(&sticky, 0o1777);
    let [dio, library] = [dio, library].map(|name| sticky.join(name));
    for path in [&dio, &library] {
        fs::create_dir_all(path.parent().unwrap()).unwrap();
    }
    diopter_testkit::files::program(Path::new(env!("CARGO_BIN_EXE_dio")), &dio);
    fs::write(&library, b"not even a library").unwrap();
    (dio, library)
}

fn with(dio: &Path) -> (Option<i32>, String) {
    let mut command = Command::new(dio);
    command.args(["run", "--", "true"]).env_remove("DIOPTER_PRELOAD").stdin(Stdio::null());
    run(&mut command)
}

#[test]
fn a_library_that_another_user_put_next_to_dio_is_not_loaded() {
    let places =
        [("dio", "libdiopter_preload.so"), ("bin/dio", "lib/diopter/libdiopter-preload.so")];
    for (program, library) in places {
        let Some(ground) = ground() else { return };
        let (dio, library) = planted(&ground, program, library);
        // It would be read, if it were root's.
        let (status, message) = with(&dio);
        assert_eq!(status, Some(125), "{message}");
        assert!(message.contains("not an ELF library"), "{message}");
        give(&library);
        let (status, message) = with(&dio);
        assert_eq!(status, Some(125), "{message}");
        assert!(message.contains("it belongs to user 54321"), "{message}");
        let mut version = Command::new(&dio);
        let version = ended(version.arg("--version").env_remove("DIOPTER_PRELOAD"));
        let version = String::from_utf8_lossy(&version.stdout).into_owned();
        assert!(version.contains("preload: not used (load "), "{version}");
        fs::set_permissions(&library, Permissions::from_mode(0o666)).unwrap();
        lchown(&library, Some(0), Some(0)).unwrap();
        assert!(with(&dio).1.contains("other users may write to it (mode 0666)"));
        set(&library, 0o644);
        let above = library.parent().unwrap();
        give(above);
        let message = with(&dio).1;
        assert!(message.contains("it belongs to user 54321"), "above it: {message}");
    }
}

#[test]
fn a_named_library_of_another_user_is_not_loaded() {
    let Some(ground) = ground() else { return };
    let library = ground.theirs("lib.so", b"x");
    let run_with = |library: &Path| {
        run(dio(ground.root.path()).args(["run", "--preload"]).arg(library).args(["--", "true"]))
    };
    let (status, message) = run_with(&library);
    assert_eq!(status, Some(125), "{message}");
    assert!(message.contains("it belongs to user 54321"), "{message}");
    lchown(&library, Some(0), Some(0)).unwrap();
    let (_, message) = run_with(&library);
    assert!(message.contains("open: it belongs to user 54321"), "its directory: {message}");
    let pipe = ground.root.path().join("pipe");
    fifo(&pipe);
    let (status, message) = run_with(&pipe);
    assert!(status == Some(125) && message.contains("not a regular file"), "{message}");
}

#[test]
fn a_pipe_is_not_a_program() {
    let root = dir();
    let pipe = root.path().join("pipe");
    fifo(&pipe);
    set(&pipe, 0o755);
    let Some(library) = library(root.path()) else { return };
    let mut command = dio(root.path());
    command.args(["run", "--preload"]).arg(library).arg("--").arg(&pipe);
    let (status, message) = run(&mut command);
    assert_eq!(status, Some(126), "{message}");
}
