//! A scratch directory that is removed however the work in it ends. It knows no command.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The standard library has no signal handling, and this crate no dependencies, so the shell does
/// it: xtask becomes this shell, the work is its child. Ctrl-C reaches both. The child and what it
/// started die of it; the shell waits for the child, then its traps run. The second `rm` is for a
/// program that takes a moment longer to die than the work that started it.
const GUARD: &str = r#"
scratch=$1
shift
clean() { rm -rf -- "$scratch" || { sleep 1; rm -rf -- "$scratch"; }; }
trap clean EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
"$@"
code=$?
exit $code
"#;

/// Makes the directory and becomes a shell that runs the command and removes the directory. Returns
/// only if that fails, why.
pub fn run(scratch: &Path, command: &Command) -> String {
    if let Err(error) = std::fs::create_dir_all(scratch) {
        return format!("{}: {error}; name another directory", scratch.display());
    }
    let mut guard = Command::new("sh");
    guard.args(["-c", GUARD, "guard"]).arg(scratch);
    guard.arg(command.get_program()).args(command.get_args());
    let error = guard.exec();
    std::fs::remove_dir(scratch).ok();
    format!("sh does not start: {error}")
}
