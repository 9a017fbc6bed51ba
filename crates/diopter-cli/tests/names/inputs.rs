//! Inputs that are pipes: no command waits for a writer, who may be another user.

use super::*;

#[test]
fn a_pipe_by_its_name_is_refused_at_once() {
    let root = dir();
    let pipe = root.path().join("pipe");
    fifo(&pipe);
    for words in [
        &["report", "pipe"][..],
        &["compare", "pipe", "pipe"],
        &["trace", "--diff", "pipe", "pipe"],
        &["sum", "--check", "pipe"],
        &["bench", "pipe"],
        &["bench", "--job", "pipe"],
    ] {
        let (status, message) = run(dio(root.path()).args(words));
        assert!(matches!(status, Some(2 | 125)), "{words:?}: {status:?}, {message}");
        let says =
            ["a pipe or a device, not a file", "not a regular file", "not a directory, file"];
        assert!(says.iter().any(|text| message.contains(text)), "{words:?}: {message}");
    }
}

#[test]
fn a_pipe_of_the_shell_is_read() {
    let root = dir();
    fs::write(root.path().join("file"), b"content").unwrap();
    let dio = env!("CARGO_BIN_EXE_dio");
    let script = format!("{dio} sum file | {dio} sum --check /dev/stdin");
    let mut shell = Command::new("sh");
    let output = ended(shell.args(["-c", &script]).current_dir(root.path()).stdin(Stdio::null()));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "file: OK\n");
    assert_eq!(output.status.code(), Some(0));
}
