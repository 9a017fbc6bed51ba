//! `cargo xtask python`: builds the wheel of `bindings/python`, installs it into clean virtual
//! environments, and runs its tests and checks there. The tools and the modules that the tests need
//! come from PyPI at the versions and with the hashes of `requirements.txt`.

use crate::repo::{self, Outcome};
use crate::{debian, run};
use diopter_skip::Capability;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The package, below the root of the repository.
const PACKAGE: &str = "bindings/python";

/// The newest versions of CPython that the tests look for, in addition to the machine's own.
const OTHERS: [&str; 3] = ["3.14", "3.13", "3.12"];

/// Seconds that the installation of an interpreter may take.
const INSTALL_SECONDS: &str = "60";

/// Tests that another interpreter runs as well: those whose code depends on it.
const OF_EACH_VERSION: [&str; 4] = [
    "tests/test_files.py",
    "tests/test_streams.py",
    "tests/test_asyncio.py",
    "tests/test_safetensors.py",
];

/// Tests that a free-threaded interpreter runs.
const OF_FREE_THREADED: [&str; 3] =
    ["tests/test_files.py", "tests/test_streams.py", "tests/test_asyncio.py"];

fn package() -> PathBuf {
    repo::root().join(PACKAGE)
}

/// The interpreter of the machine: Debian's where there is one.
fn interpreter() -> Result<PathBuf, String> {
    let debians = Path::new("/usr/bin/python3");
    if debians.is_file() {
        return Ok(debians.to_owned());
    }
    repo::tool("python3").ok_or_else(|| "python3 is not installed".to_owned())
}

/// The virtual environment of the tools: one for each content of `requirements.txt`.
fn tools() -> Result<PathBuf, String> {
    let path = package().join("requirements.txt");
    let list = std::fs::read(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let hash = list.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    });
    Ok(repo::target_dir().join(format!("tools/python-wheels-{hash:016x}")))
}

/// Its last file: the tools are complete.
fn stamp() -> Result<PathBuf, String> {
    Ok(tools()?.join("complete"))
}

/// Returns why the tools are missing, if so.
pub fn probe() -> Result<(), String> {
    let why = "the tools of bindings/python/requirements.txt are not installed";
    if stamp()?.is_file() { Ok(()) } else { Err(why.to_owned()) }
}

/// Installs the tools where they are missing.
pub fn provide() -> Result<(), String> {
    if probe().is_ok() {
        return Ok(());
    }
    let python = interpreter()?;
    let has_venv = || {
        let mut command = Command::new(&python);
        repo::output_of(command.args(["-c", "import ensurepip, venv"])).map(drop)
    };
    if has_venv().is_err() && repo::is_root() && Path::new("/etc/debian_version").exists() {
        debian::ensure(&["python3-venv"])?;
    }
    has_venv()?;
    let tools = tools()?;
    let mut venv = Command::new(&python);
    venv.args(["-m", "venv", "--clear"]).arg(&tools);
    let mut install = Command::new(tools.join("bin/pip"));
    install.args(["install", "--quiet", "--require-hashes", "--only-binary=:all:"]);
    install.args(["--disable-pip-version-check", "-r"]).arg(package().join("requirements.txt"));
    for command in [&mut venv, &mut install] {
        println!("installing: {}", run::shown(command));
        repo::output_of(command)
            .map_err(|error| format!("the tools for Python do not install: {error}"))?;
    }
    let stamp = stamp()?;
    std::fs::write(&stamp, "").map_err(|error| format!("{}: {error}", stamp.display()))
}

/// `cargo xtask python [TEST...]`: everything, or these tests of pytest alone.
pub fn run(tests: &[String]) -> Outcome {
    provide()?;
    if tests.is_empty() && !check_sources()? {
        return Ok(false);
    }
    let Some(wheel) = build(&interpreter()?)? else { return Ok(false) };
    let own = installed("own", &interpreter()?, &wheel)?;
    if !tests.is_empty() {
        return succeeds(pytest(&own).args(tests));
    }
    let mut passed = succeeds(&mut pytest(&own))?;
    passed &= succeeds(&mut valgrind(&own))?;
    passed &= succeeds(mypy(&own).args(["-m", "mypy", "--strict", "-p", "diopter_io"]))?;
    let mut stubtest = mypy(&own);
    stubtest.args(["-m", "mypy.stubtest", "--mypy-config-file", "pyproject.toml"]);
    passed &= succeeds(stubtest.args(["--allowlist", "stubtest-allow.txt", "diopter_io"]))?;
    match other() {
        Ok(python) => {
            println!("   another interpreter: {}", python.display());
            let venv = installed("other", &python, &wheel)?;
            passed &= succeeds(pytest(&venv).args(OF_EACH_VERSION))?;
        }
        Err(why) => skipped(Capability::OtherPython, &why),
    }
    match uv_python("3.14t").or_else(|_| uv_python("3.13t")) {
        Ok(python) => passed &= free_threaded(&python)?,
        Err(why) => skipped(Capability::FreeThreaded, &why),
    }
    Ok(passed)
}

/// Builds the wheel of a free-threaded version, which has no stable ABI, and runs the tests whose
/// modules have wheels for it.
fn free_threaded(python: &Path) -> Outcome {
    println!("   a free-threaded interpreter: {}", python.display());
    let Some(wheel) = build(python)? else { return Ok(false) };
    let own = environment("free-threaded", python)?;
    let mut modules = uv(&["pip", "install", "--quiet", "--only-binary=:all:", "--python"])?;
    repo::output_of(modules.arg(&own).args(["-c", "requirements.txt", "numpy", "pytest"]))?;
    let mut package = uv(&["pip", "install", "--quiet", "--no-deps", "--python"])?;
    repo::output_of(package.arg(&own).arg(wheel))?;
    succeeds(pytest(&own).args(OF_FREE_THREADED))
}

fn skipped(capability: Capability, why: &str) {
    let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
    println!("SKIP {capability}: {why}");
}

fn succeeds(command: &mut Command) -> Outcome {
    println!("   {}", run::shown(command));
    run::to_the_end(command).map(|(passed, _)| passed)
}

/// A command of cargo in the package, whose target directory is a separate one.
fn cargo(arguments: &[&str]) -> Command {
    let mut command = repo::cargo();
    command.args(arguments).current_dir(package()).env("CARGO_TARGET_DIR", target());
    if let Ok(python) = interpreter() {
        command.env("PYO3_PYTHON", python);
    }
    command
}

fn target() -> PathBuf {
    repo::target_dir().join("python")
}

/// The sources: their form, the lints, and the tests of the parser, which need no Python.
fn check_sources() -> Outcome {
    let lints = ["--all-targets", "--", "-D", "warnings"];
    let mut clippy = cargo(&["clippy"]);
    Ok(succeeds(&mut cargo(&["fmt", "--check"]))?
        && succeeds(clippy.args(lints))?
        && succeeds(&mut cargo(&["test", "--no-default-features", "--lib"]))?)
}

/// Builds the wheel for an interpreter, or for all later ones too if it has the stable ABI; `None`
/// if that fails.
fn build(python: &Path) -> Result<Option<PathBuf>, String> {
    let wheels = target().join("wheels");
    if wheels.is_dir() {
        std::fs::remove_dir_all(&wheels)
            .map_err(|error| format!("{}: {error}", wheels.display()))?;
    }
    let mut maturin = Command::new(tools()?.join("bin/maturin"));
    maturin.args(["build", "--locked", "--profile", "dev", "--interpreter"]).arg(python);
    maturin.arg("--out").arg(&wheels).current_dir(package());
    maturin.env("CARGO_TARGET_DIR", target());
    if !succeeds(&mut maturin)? {
        return Ok(None);
    }
    let found = std::fs::read_dir(&wheels)
        .map_err(|error| format!("{}: {error}", wheels.display()))?
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|path| path.extension().is_some_and(|extension| extension == "whl"));
    found.map(Some).ok_or_else(|| "maturin left no wheel".to_owned())
}

/// A command of uv, with everything that it keeps below the target directory.
fn uv(arguments: &[&str]) -> Result<Command, String> {
    let mut command = Command::new(tools()?.join("bin/uv"));
    command.args(arguments).current_dir(package());
    command.env("UV_CACHE_DIR", repo::target_dir().join("tools/uv-cache"));
    command.env("UV_PYTHON_INSTALL_DIR", repo::target_dir().join("tools/uv-python"));
    command.env("UV_NO_PROGRESS", "1");
    Ok(command)
}

/// Makes a new environment; returns its Python.
fn environment(name: &str, python: &Path) -> Result<PathBuf, String> {
    let venv = target().join(format!("venv-{name}"));
    repo::output_of(uv(&["venv", "--quiet", "--clear", "--python"])?.arg(python).arg(&venv))?;
    Ok(venv.join("bin/python"))
}

/// Makes a new environment with the modules that tests need and the wheel; returns its Python.
fn installed(name: &str, python: &Path, wheel: &Path) -> Result<PathBuf, String> {
    let own = environment(name, python)?;
    let mut modules = uv(&["pip", "install", "--quiet", "--require-hashes", "--python"])?;
    repo::output_of(modules.arg(&own).args(["-r", "requirements.txt"]))?;
    let mut package = uv(&["pip", "install", "--quiet", "--no-deps", "--python"])?;
    repo::output_of(package.arg(&own).arg(wheel))?;
    Ok(own)
}

/// Returns another version of CPython: one that is installed, or that uv can install.
fn other() -> Result<PathBuf, String> {
    let runs = |python: &PathBuf| {
        let mut command = Command::new(python);
        python.is_file() && repo::output_of(command.args(["-c", "import ssl, venv"])).is_ok()
    };
    let pyenv = std::env::var_os("PYENV_ROOT")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".pyenv")));
    for version in OTHERS {
        let installed = pyenv.iter().filter_map(|pyenv| {
            let mut dirs = std::fs::read_dir(pyenv.join("versions")).ok()?;
            dirs.find_map(|dir| {
                let dir = dir.ok()?.path();
                let name = dir.file_name()?.to_string_lossy().into_owned();
                let is_it = name.strip_prefix(version).is_some_and(|rest| rest.starts_with('.'));
                is_it.then(|| dir.join("bin/python3"))
            })
        });
        let named = repo::tool(&format!("python{version}"));
        if let Some(found) = named.into_iter().chain(installed).find(runs) {
            return Ok(found);
        }
    }
    uv_python(OTHERS[1])
}

/// Has uv install a version of CPython, and returns it.
fn uv_python(version: &str) -> Result<PathBuf, String> {
    let mut install = Command::new("timeout");
    let uv_install = uv(&["python", "install", "--quiet", version])?;
    install.arg(INSTALL_SECONDS).arg(uv_install.get_program()).args(uv_install.get_args());
    install.envs(uv_install.get_envs().filter_map(|(name, value)| Some((name, value?))));
    install.env("UV_HTTP_RETRIES", "0").current_dir(package());
    repo::output_of(&mut install)
        .map_err(|_| format!("no CPython {version} is installed, and uv cannot fetch it"))?;
    let find = ["python", "find", "--managed-python", version];
    Ok(PathBuf::from(repo::output_of(&mut uv(&find)?)?))
}

/// A run of the tests, or of those that the caller adds.
fn pytest(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["-m", "pytest", "-q", "-p", "no:cacheprovider"]).current_dir(package());
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    command
}

/// Transfers of each kind under valgrind, which ends with an error where it sees one.
fn valgrind(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.args(["tests/under_valgrind.py"]).current_dir(package());
    command
}

fn mypy(python: &Path) -> Command {
    let mut command = Command::new(python);
    command.current_dir(package()).env("MYPY_CACHE_DIR", target().join("mypy"));
    command
}
