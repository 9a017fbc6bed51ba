//! `git bisect run` with `dio lab check`, over commits that each name a packaged kernel.

use std::path::Path;
use std::process::{Command, Output};

use diopter_lab::{Machine, Store, StoreOptions, Watch};
use serde_json::Value;

use crate::cp_support::{Capability, print_line, skip};

/// The kernels of the commits, oldest first. Completions of ext4's overwrites are inline again from
/// the first of `INLINE` on (docs/lab.md).
const DEFERRED: [&str; 6] = ["5.10", "6.1", "6.12", "6.16", "6.17", "6.18"];
const INLINE: [&str; 2] = ["7.2", "7.3"];
const BASE: &str = "6.12";
/// Commits of the repository.
const COMMITS: usize = 8;
/// The base, and ceil(log2(8)) revisions.
const BOOTS_MAX: u64 = 4;

#[test]
fn git_bisect_finds_where_completions_came_back_inline() {
    if std::env::var_os("DIOPTER_SOAK").is_none() {
        return skip(Capability::Soak, "four boots take several minutes: set DIOPTER_SOAK");
    }
    if let Err(error) = Machine::find() {
        return skip(Capability::Qemu, error);
    }
    let kernels = match kernels() {
        Ok(kernels) => kernels,
        Err(why) => return skip(Capability::KernelPackages, why),
    };
    let expected = kernels.iter().position(|series| INLINE.contains(&&series[..])).unwrap();
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let commits = repository(directory.path(), &kernels);

    let log = directory.path().join("checks");
    let line = format!(
        "dio lab check --kernel-version $(cat KERNEL) --base {BASE} --metric context --json >>{}",
        log.display()
    );
    let (good, bad) = (&commits[0], &commits[COMMITS - 1]);
    git(directory.path(), &["bisect", "start", bad, good]);
    let found = git(directory.path(), &["bisect", "run", "sh", "-c", &line]);
    let found = String::from_utf8_lossy(&found.stdout).into_owned();
    let first_bad = format!("{} is the first bad commit", commits[expected]);
    assert!(found.contains(&first_bad), "{found}");

    let text = std::fs::read_to_string(&log).unwrap();
    let checks = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let checks: Vec<Value> = checks.collect::<Result<_, _>>().unwrap();
    let boots: u64 = checks.iter().map(|check| check["boots"].as_u64().unwrap()).sum();
    for check in &checks {
        let (kernel, base) = (&check["kernel"], &check["base"]);
        let (name, verdict) = (kernel["name"].as_str().unwrap(), &check["verdict"]);
        print_line(&format!("{name}: {verdict}, {} and {}", kernel["figure"], base["figure"]));
        let is_inline = INLINE.contains(&name);
        assert_eq!(verdict, if is_inline { "bad" } else { "good" }, "{check}");
        let deferred = kernel["figure"].as_f64().unwrap();
        assert!(if is_inline { deferred < 1.0 } else { deferred > 99.0 }, "{check}");
    }
    assert!(checks.iter().skip(1).all(|check| check["base"]["is_cached"] == true), "{text}");
    assert!(!checks.is_empty() && boots <= BOOTS_MAX, "{boots} boots:\n{text}");
    print_line(&format!("{} checks, {boots} boots", checks.len()));
}

/// The kernel of each commit: those of the two lists that can be had; the first fills the rest up.
fn kernels() -> Result<Vec<String>, String> {
    let watch = Watch::new(|_| (), std::sync::Arc::default());
    let store = Store::open(StoreOptions::default(), watch);
    let mut store = store.map_err(|error| error.to_string())?;
    let cached = store.cached().map_err(|error| error.to_string())?;
    let builds = store.builds().map_err(|error| error.to_string())?;
    let has = |series: &&&str| {
        builds.iter().any(|build| build.has_modules && build.series == **series)
            || cached.iter().any(|kernel| kernel.series == **series)
    };
    let deferred: Vec<&str> = DEFERRED.iter().filter(has).copied().collect();
    let inline: Vec<&str> = INLINE.iter().filter(has).copied().collect();
    if deferred.is_empty() || inline.is_empty() || !deferred.contains(&BASE) {
        return Err(format!("kernels of both kinds and {BASE} are needed"));
    }
    let fill = COMMITS - deferred.len() - inline.len();
    let all = std::iter::repeat_n(deferred[0], fill).chain(deferred.iter().copied()).chain(inline);
    Ok(all.map(str::to_owned).collect())
}

/// A repository with a commit for each kernel; returns the commits.
fn repository(directory: &Path, kernels: &[String]) -> Vec<String> {
    git(directory, &["init", "-q"]);
    let commit = |(number, kernel): (usize, &String)| {
        std::fs::write(directory.join("KERNEL"), format!("{kernel}\n")).unwrap();
        std::fs::write(directory.join("NUMBER"), number.to_string()).unwrap();
        git(directory, &["add", "KERNEL", "NUMBER"]);
        git(directory, &["commit", "-q", "-m", kernel]);
        let head = git(directory, &["rev-parse", "HEAD"]).stdout;
        String::from_utf8(head).unwrap().trim().to_owned()
    };
    kernels.iter().enumerate().map(commit).collect()
}

/// Runs git without the user's configuration, with `dio` of this build in the path.
fn git(directory: &Path, arguments: &[&str]) -> Output {
    let dio = Path::new(env!("CARGO_BIN_EXE_dio")).parent().unwrap();
    let path = std::env::var("PATH").unwrap_or_default();
    let mut command = Command::new("git");
    command.args(["-c", "user.name=diopter", "-c", "user.email=diopter@localhost"]);
    command.args(arguments).current_dir(directory);
    command.env("PATH", format!("{}:{path}", dio.display()));
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_SYSTEM", "/dev/null");
    let output = command.output().unwrap_or_else(|error| panic!("start git: {error}"));
    assert!(output.status.success(), "git {arguments:?}: {output:?}");
    output
}
