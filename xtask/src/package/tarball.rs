//! The archive with a static program: the same bytes from the same commit and compiler, wherever it
//! is made.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Options, VERSION, add_crates, dist, of_commit};
use crate::install::stage::Stage;
use crate::repo;

/// The target of the compiler.
const TARGET: &str = "x86_64-unknown-linux-musl";

/// The names of the sums, and of their signature.
const SUMS: &str = "SHA256SUMS";

/// Builds the archive with its sums, signed if there is a key. Returns its path.
pub fn make(options: &Options) -> Result<PathBuf, String> {
    add_target()?;
    let name = format!("diopter-{VERSION}-{TARGET}");
    let mut stage = Stage::new("tarball", Path::new("/").join(&name), &options.profile);
    stage.target = Some(TARGET);
    stage.make()?;
    add_crates(&stage)?;
    let to = dist().join(format!("{name}.tar.gz"));
    pack(&stage.root, &name, &of_commit("%ct")?, &to)?;
    sum(&to)?;
    if let Some(key) = &options.key {
        sign(&dist().join(SUMS), key)?;
    }
    Ok(to)
}

/// Adds the standard library of the target, where rustup knows one.
fn add_target() -> Result<(), String> {
    let Some(rustup) = repo::tool("rustup") else { return Ok(()) };
    let mut command = Command::new(rustup);
    command.current_dir(repo::root()).args(["target", "add", TARGET]);
    repo::output_of(&mut command).map(drop)
}

/// Packs a directory of `root`: entries in the order of their names, of one time, of no user.
fn pack(root: &Path, name: &str, seconds: &str, to: &Path) -> Result<(), String> {
    let archive = to.with_extension("");
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=ustar", "--sort=name", "--owner=0", "--group=0"]);
    tar.args(["--numeric-owner", "--mode=u=rwX,go=rX"]).arg(format!("--mtime=@{seconds}"));
    tar.arg("--file").arg(&archive).arg("--directory").arg(root).arg("--").arg(name);
    // The order of names is that of bytes.
    repo::output_of(tar.env("LC_ALL", "C"))?;
    super::compress(&archive)
}

/// Writes the sums, in the format of sha256sum.
fn sum(archive: &Path) -> Result<(), String> {
    let name = archive.file_name().unwrap_or_default();
    let line = repo::output_of(Command::new("sha256sum").current_dir(dist()).arg("--").arg(name))?;
    let sums = dist().join(SUMS);
    fs::write(&sums, line + "\n").map_err(|error| format!("{}: {error}", sums.display()))?;
    let old = dist().join(format!("{SUMS}.minisig"));
    // The signature of other sums.
    crate::install::place::remove(&old)
}

/// Signs the sums. minisign asks for the password of the key, if it has one.
fn sign(sums: &Path, key: &Path) -> Result<(), String> {
    let comment = format!("diopter {VERSION}, commit {}", of_commit("%H")?);
    let mut command = Command::new("minisign");
    command.args(["-S", "-t", &comment, "-s"]).arg(key).arg("-m").arg(sums);
    let status = command.status().map_err(|error| {
        format!("minisign does not start: {error}; install the package minisign")
    })?;
    let key = key.display();
    status.success().then_some(()).ok_or_else(|| format!("minisign does not sign with {key}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::install::stage::read;
    use std::time::{Duration, SystemTime};

    #[test]
    fn an_archive_is_the_same_bytes_wherever_and_whenever_it_is_made() {
        let scratch = repo::target_dir().join(format!("tmp/tarball-{}", std::process::id()));
        let mut archives = Vec::new();
        for (turn, names) in [["b", "a"], ["a", "b"]].iter().enumerate() {
            let root = scratch.join(turn.to_string());
            fs::create_dir_all(root.join("x/share")).expect("a directory");
            for name in names {
                let path = root.join("x/share").join(name);
                fs::write(&path, name).expect("a file");
                let time = SystemTime::now() - Duration::from_secs(1000 * turn as u64);
                let file = fs::File::options().write(true).open(&path).expect("a file");
                file.set_modified(time).expect("a time");
            }
            let to = root.join("x.tar.gz");
            pack(&root, "x", "1700000000", &to).expect("it is packed");
            archives.push(read(&to).expect("an archive"));
        }
        assert!(archives[0] == archives[1]);
        let mut list = Command::new("tar");
        list.args(["tzvf"]).arg(scratch.join("0/x.tar.gz")).env("TZ", "UTC0");
        let text = repo::output_of(&mut list).expect("a list");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 4);
        assert!(lines[2].contains("-rw-r--r-- 0/0") && lines[2].ends_with("x/share/a"), "{text}");
        assert!(lines.iter().all(|line| line.contains("2023-11-14 22:13")), "{text}");
        fs::remove_dir_all(&scratch).expect("the directory goes");
    }
}
