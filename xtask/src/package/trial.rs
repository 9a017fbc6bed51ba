//! Tries of what `install` and `package` make, as a user would use it: below a prefix, in a fresh
//! Debian, and in a directory with nothing else. The lane `packages`, as root.

mod image;
mod source;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Options, VERSION, deb, dist, tarball};
use crate::install::stage::must_run;
use crate::install::{self, place};
use crate::repo::{self, Outcome};

/// The release of Debian of the try.
const SUITE: &str = "bookworm";

/// Scripts for shells that load the completions of the package and print what they have for `dio`.
const SHELLS: [(&str, &str); 3] = [
    ("bash", "source /usr/share/bash-completion/completions/dio && complete -p dio"),
    ("zsh", "autoload -U compinit && compinit -D && print ${_comps[dio]}"),
    (
        "fish",
        "source /usr/share/fish/vendor_completions.d/dio.fish; complete -C 'dio c'; complete dio",
    ),
];

/// The directory of all tries.
fn scratch() -> PathBuf {
    repo::target_dir().join("package-check")
}

/// `cargo xtask package check [--profile P]`
pub fn run(options: &Options) -> Outcome {
    if !repo::is_root() {
        return Err("package check makes a root directory of Debian: run it as root".to_owned());
    }
    let dir = scratch();
    remove_all(&dir)?;
    make_dir(&dir)?;
    let ended = try_install(&options.profile)
        .and_then(|()| try_archive(options))
        .and_then(|()| try_package(options))
        .and_then(|()| source::try_cargo_install(&options.profile));
    remove_all(&dir)?;
    ended.map(|()| true)
}

/// Installs below a prefix, runs what is there, and removes it.
fn try_install(profile: &str) -> Result<(), String> {
    let root = scratch().join("root");
    let root = root.to_string_lossy();
    let words = ["--prefix", "/opt/diopter", "--destdir", &root, "--profile", profile];
    let words: Vec<String> = words.map(str::to_owned).into();
    install::run(&words)?;
    let prefix = Path::new(&*root).join("opt/diopter");
    let dio = prefix.join("bin/dio");
    let library = prefix.join("lib/diopter/libdiopter-preload.so");
    let version = repo::output_of(Command::new(&dio).arg("--version"))?;
    expect(&version, &format!("preload: {}", library.display()))?;
    repo::output_of(Command::new(&dio).args(["run", "--", "true"]))?;
    let pc = prefix.join("lib/pkgconfig");
    let mut flags = Command::new("pkg-config");
    flags.args(["--cflags", "--libs", "diopter"]).env("PKG_CONFIG_PATH", pc);
    expect(&repo::output_of(&mut flags)?, "-L/opt/diopter/lib -ldiopter")?;
    install::remove(&words)?;
    let left = place::below(Path::new(&*root))?;
    left.is_empty().then_some(()).ok_or_else(|| format!("uninstall leaves {left:?}"))
}

/// Makes the archive twice, verifies its signature, and runs it where nothing else is.
fn try_archive(options: &Options) -> Result<(), String> {
    let (secret, public) = (scratch().join("secret.key"), scratch().join("public.key"));
    let mut generate = Command::new("minisign");
    // Without a password: it is for this try.
    generate.args(["-G", "-W", "-p"]).arg(&public).arg("-s").arg(&secret);
    repo::output_of(&mut generate)?;
    let signed = Options { profile: options.profile.clone(), key: Some(secret) };
    let archive = tarball::make(&signed)?;
    let sums = dist().join("SHA256SUMS");
    let verify = || {
        let mut minisign = Command::new("minisign");
        minisign.args(["-V", "-q", "-p"]).arg(&public).arg("-m").arg(&sums);
        repo::output_of(&mut minisign)
    };
    verify()?;
    let first = text(&sums)?;
    repo::output_of(Command::new("sha256sum").current_dir(dist()).args(["-c", "SHA256SUMS"]))?;
    fs::write(&sums, format!("{first}#")).map_err(|error| error.to_string())?;
    if verify().is_ok() {
        return Err("minisign takes the signature for other sums".to_owned());
    }
    tarball::make(&signed)?;
    if text(&sums)? != first {
        return Err("the archive is not the same bytes when it is made again".to_owned());
    }

    let empty = scratch().join("empty");
    make_dir(&empty)?;
    let mut unpack = Command::new("tar");
    unpack.arg("xf").arg(&archive).args(["--strip-components=1", "-C"]).arg(&empty);
    repo::output_of(&mut unpack)?;
    let within = |words: &[&str]| {
        let mut command = inside(&empty);
        repo::output_of(command.arg("/bin/dio").args(words))
    };
    make_dir(&empty.join("proc"))?;
    let version = within(&["--version"])?;
    expect(&version, "preload: not found (looked in /lib/diopter/")?;
    expect(&version, "\nstatic: ")?;
    within(&["cp", "--verify", "/bin/dio", "/copy"])?;
    let same = read(&empty.join("bin/dio"))? == read(&empty.join("copy"))?;
    same.then_some(()).ok_or_else(|| "a copy by the static dio differs".to_owned())?;
    image::try_recipe(&empty)
}

/// Makes the package, and installs, runs and removes it in a fresh Debian.
fn try_package(options: &Options) -> Result<(), String> {
    let package = deb::make(options)?;
    let mut lintian = Command::new("lintian");
    // With --show-overrides it also fails for what is overridden.
    lintian.args(["--fail-on", "error,warning"]).arg(&package);
    must_run(&mut lintian)?;

    let root = bootstrap("debian", "libgcc-s1,bash,fish,man-db,zsh")?;
    let before = place::below(&root)?;
    let name = "package.deb";
    fs::copy(&package, root.join(name)).map_err(|error| error.to_string())?;
    let within = |script: &str| {
        println!("   {script}");
        repo::output_of(inside(&root).args(["/bin/sh", "-ec", script]))
    };
    within("dpkg --install /package.deb; rm /package.deb")?;
    expect(&within("dio --version")?, "preload: /usr/lib/diopter/libdiopter-preload.so")?;
    expect(&within("dio --version")?, &format!("dio {VERSION}\n"))?;
    within("dio cp --verify /usr/bin/dio /copy; cmp /usr/bin/dio /copy; rm /copy")?;
    // A read that the kernel refuses: 1000 bytes at 1000.
    let read = "dd if=/usr/bin/dio of=/dev/null bs=1000 skip=1 count=3 iflag=direct";
    if within(&format!("{read} 2>&1")).is_ok() {
        println!("   this file system takes any direct read, so dio run has nothing to do");
    }
    within(&format!("dio run -- {read}"))?;
    expect(&within("ldconfig -p")?, "libdiopter.so.0")?;
    for (shell, script) in SHELLS {
        println!("   {shell}");
        let printed = repo::output_of(inside(&root).args([shell, "-c", script]))?;
        expect(&printed, "dio")?;
    }
    let warnings = "for page in $(dpkg -L diopter | grep '/man/man[0-9]/'); do \
                    man --warnings --encoding=utf8 --local-file $page 2>&1 >/dev/null; done";
    let warnings = within(warnings)?;
    if !warnings.trim().is_empty() {
        return Err(format!("man warns of {warnings}"));
    }
    within("dpkg --verify diopter; dpkg --purge diopter")?;
    let is_ours = |path: &&PathBuf| path.to_string_lossy().contains("dio");
    let after = place::below(&root)?;
    let left: Vec<&PathBuf> =
        after.iter().filter(is_ours).filter(|path| !before.contains(path)).collect();
    left.is_empty().then_some(()).ok_or_else(|| format!("the package leaves {left:?}"))
}

/// Makes a root directory of Debian with these packages, besides what every system has.
fn bootstrap(name: &str, packages: &str) -> Result<PathBuf, String> {
    let root = scratch().join(name);
    let mut bootstrap = Command::new("mmdebstrap");
    bootstrap.args(["--variant=minbase", &format!("--include={packages}"), SUITE]).arg(&root);
    must_run(&mut bootstrap)?;
    Ok(root)
}

/// A command in another root directory, with its processes in /proc, and nothing that it mounts
/// left afterwards.
fn inside(root: &Path) -> Command {
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "--root"]);
    unshare.arg(root).arg("--").env_clear();
    unshare.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("LC_ALL", "C");
    unshare
}

fn expect(text: &str, part: &str) -> Result<(), String> {
    text.contains(part).then_some(()).ok_or_else(|| format!("no {part:?} in {text:?}"))
}

fn text(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    install::stage::read(path)
}

fn make_dir(path: &Path) -> Result<(), String> {
    fs::create_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}

fn remove_all(path: &Path) -> Result<(), String> {
    if !path.exists() {
        return Ok(());
    }
    fs::remove_dir_all(path).map_err(|error| format!("{}: {error}", path.display()))
}
