//! Packages by the system's apt, with a state of the lab's own: nothing of the system's lists,
//! caches or hooks is touched, and no root is needed. apt checks signatures and check sums.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::catalog::{self, Package};
use crate::error::{LabError, remedy_of};
use crate::watch::{Progress, Watch};

/// Suites with kernels, of the archive and of its security updates. One that a mirror lacks is
/// passed over.
const SUITES: [&str; 8] = [
    "bullseye",
    "bookworm",
    "bookworm-backports",
    "trixie",
    "trixie-backports",
    "forky",
    "sid",
    "experimental",
];
const SECURITY_SUITES: [&str; 4] =
    ["bullseye-security", "bookworm-security", "trixie-security", "forky-security"];
const MIRROR: &str = "http://deb.debian.org/debian";
const SECURITY_MIRROR: &str = "http://deb.debian.org/debian-security";
const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Lists younger than this are not fetched again.
const LISTS_AGE_MAX: Duration = Duration::from_secs(24 * 3600);
/// And those of some suites only, younger than this.
const PARTS_AGE_MAX: Duration = Duration::from_secs(600);
/// apt's settings for fetching that are the system's: proxies, retries.
const KEPT_SETTINGS: &str = "Acquire::";
/// Which lists are fetched besides those of packages is not: the lab needs none.
const INDEX_SETTINGS: &str = "Acquire::IndexTargets";
/// Files of settings, which may name programs that apt runs: none is read.
const NO_OTHER_SETTINGS: &str = "Dir::Etc::sourceparts \"/dev/null\";\n\
    Dir::Etc::main \"/dev/null\";\nDir::Etc::parts \"/dev/null\";\n\
    Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\n\
    Dir::Etc::trusted \"/dev/null\";\nDir::Etc::trustedparts \"/dev/null\";\n\
    Dir::Etc::netrc \"/dev/null\";\nDir::Etc::netrcparts \"/dev/null\";\n";
/// Complaints of apt that a message shows.
const COMPLAINTS_MAX: usize = 3;

/// An apt of the lab's own.
#[derive(Clone, Debug)]
pub struct Apt {
    root: PathBuf,
}

impl Apt {
    /// Opens a private directory, which may have been used before. `sources` are lines of a
    /// sources.list in place of Debian's suites.
    ///
    /// # Errors
    /// The system's, writing there.
    pub fn prepare(root: &Path, sources: Option<&str>) -> Result<Apt, LabError> {
        for dir in ["state/lists/partial", "cache/archives/partial"] {
            let dir = root.join(dir);
            fs::create_dir_all(&dir).map_err(LabError::file("create", &dir))?;
        }
        let apt = Apt { root: root.to_owned() };
        let sources = sources.map_or_else(debian_sources, str::to_owned);
        let list = root.join("sources.list");
        if fs::read_to_string(&list).is_ok_and(|known| known != sources) {
            // Lists of other sources do not fit these. A missing list needs no removal.
            fs::remove_file(apt.mark()).ok();
        }
        let files = [
            (list, sources),
            (root.join("state/status"), String::new()),
            (apt.config(), config_of(root)),
        ];
        for (path, text) in files {
            // What is older than apt's own cache of the lists keeps that valid.
            if fs::read_to_string(&path).is_ok_and(|known| known == text) {
                continue;
            }
            fs::write(&path, text).map_err(LabError::file("write", &path))?;
        }
        Ok(apt)
    }

    /// Errors of suites when the lists were fetched: empty if all suites were reachable,
    /// `None` when it was too long ago.
    #[must_use]
    pub fn fetched(&self) -> Option<String> {
        let complaints = fs::read_to_string(self.mark()).ok()?;
        let fetched = fs::metadata(self.mark()).and_then(|mark| mark.modified()).ok()?;
        let age = SystemTime::now().duration_since(fetched).unwrap_or_default();
        let age_max = if complaints.is_empty() { LISTS_AGE_MAX } else { PARTS_AGE_MAX };
        (age < age_max).then_some(complaints)
    }

    /// Fetches the lists of all suites. Returns the errors of suites; empty if all suites were
    /// reachable.
    ///
    /// # Errors
    /// [`LabError::Tool`] when apt can't be run at all.
    pub fn update(&self, watch: &Watch) -> Result<String, LabError> {
        watch.report(Progress::Updating(0.0));
        let mut command = self.command("apt-get");
        command.args(["update", "-q", "-o", "APT::Status-Fd=1", "-o", "Acquire::Retries=2"]);
        let output = run(&mut command, "update the lists of packages", watch, |percent| {
            watch.report(Progress::Updating(percent));
        })?;
        let mark = self.mark();
        fs::write(&mark, &output.complaints).map_err(LabError::file("write", &mark))?;
        Ok(output.complaints)
    }

    /// All packages that may be parts of kernels.
    ///
    /// # Errors
    /// [`LabError::Tool`].
    pub fn kernel_packages(&self, watch: &Watch) -> Result<Vec<Package>, LabError> {
        let mut names = Vec::new();
        for prefix in catalog::PREFIXES {
            let mut command = self.command("apt-cache");
            command.args(["pkgnames", prefix]);
            let reported = run(&mut command, "list the packages", watch, |_| ())?;
            names.extend(reported.output.lines().map(str::to_owned));
        }
        names.retain(|name| name.ends_with("-amd64"));
        self.packages(&names, watch)
    }

    /// These packages, in every suite and version.
    ///
    /// # Errors
    /// [`LabError::Tool`].
    pub fn packages(&self, names: &[String], watch: &Watch) -> Result<Vec<Package>, LabError> {
        if names.is_empty() {
            return Ok(Vec::new());
        }
        let mut command = self.command("apt-cache");
        command.arg("madison").args(names);
        let reported = run(&mut command, "look for packages", watch, |_| ())?;
        Ok(reported.output.lines().filter_map(package_of).collect())
    }

    /// Fetches packages into a directory; gives their files, in the order asked.
    ///
    /// # Errors
    /// [`LabError::Tool`] when one can't be had.
    pub fn download(
        &self,
        packages: &[(String, String)],
        dir: &Path,
        watch: &Watch,
    ) -> Result<Vec<PathBuf>, LabError> {
        let what = packages.first().map_or("", |(name, _)| name.as_str()).to_owned();
        watch.report(Progress::Downloading(what.clone(), 0.0));
        let mut files = Vec::with_capacity(packages.len());
        let mut command = self.command("apt-get");
        command.args(["download", "-q", "-o", "APT::Status-Fd=1", "-o", "Acquire::Retries=2"]);
        command.args(packages.iter().map(|(name, version)| format!("{name}={version}")));
        command.current_dir(dir);
        let output = run(&mut command, &format!("download {what}"), watch, |percent| {
            watch.report(Progress::Downloading(what.clone(), percent));
        })?;
        let entries = fs::read_dir(dir).map_err(LabError::file("open", dir))?;
        let found: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        for (name, _) in packages {
            let is_it = |path: &&PathBuf| {
                let file = path.file_name().and_then(|file| file.to_str()).unwrap_or_default();
                file.strip_prefix(name.as_str()).is_some_and(|rest| rest.starts_with('_'))
            };
            let Some(path) = found.iter().find(is_it) else {
                let cause = format!("{name} did not come; {}", output.complaints);
                return Err(LabError::Tool {
                    doing: format!("download {what}"),
                    remedy: remedy_of(&cause),
                    cause,
                });
            };
            files.push(path.clone());
        }
        Ok(files)
    }

    fn config(&self) -> PathBuf {
        self.root.join("apt.conf")
    }

    fn mark(&self) -> PathBuf {
        self.root.join("updated")
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.config()).env("LC_ALL", "C");
        command
    }
}

struct Printed {
    output: String,
    complaints: String,
}

/// Runs one of apt's programs to its end.
fn run(
    command: &mut Command,
    doing: &str,
    watch: &Watch,
    mut progress: impl FnMut(f64),
) -> Result<Printed, LabError> {
    watch.check()?;
    let failed = |cause: String| {
        let remedy = remedy_of(&cause);
        LabError::Tool { doing: doing.to_owned(), cause, remedy }
    };
    let mut errors = tempfile::tempfile().map_err(|error| failed(error.to_string()))?;
    let copy = errors.try_clone().map_err(|error| failed(error.to_string()))?;
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(copy);
    let mut child = diopter_os::child::bind_to_parent(command, None).spawn().map_err(|error| {
        let cause = format!("start {}: {error}", command.get_program().display());
        LabError::Tool {
            doing: doing.to_owned(),
            cause,
            remedy: "apt is needed for packages; without it name a kernel's files",
        }
    })?;
    let stdout = child.stdout.take().expect("its output was asked for");
    let mut output = String::new();
    for line in BufReader::new(stdout).lines().map_while(Result::ok) {
        match percent_of(&line) {
            Some(percent) => progress(percent),
            None => output.extend([line.as_str(), "\n"]),
        }
        if watch.check().is_err() {
            // It may have exited already; it is waited for in every case.
            child.kill().ok();
        }
    }
    let status = child.wait().map_err(|error| failed(error.to_string()))?;
    watch.check()?;
    let complaints = complaints_of(&mut errors);
    if !status.success() && complaints.is_empty() {
        return Err(failed(status.to_string()));
    }
    Ok(Printed { output, complaints })
}

/// Returns the errors of apt in one line.
fn complaints_of(errors: &mut File) -> String {
    let mut text = String::new();
    if errors.rewind().and_then(|()| errors.read_to_string(&mut text)).is_err() {
        return "its messages are not readable".to_owned();
    }
    let lines = text.lines().filter_map(|line| {
        let is_failure = line.starts_with("E: ") || line.contains("Failed to fetch");
        is_failure.then(|| line[3.min(line.len())..].trim().to_owned())
    });
    let lines: Vec<String> = lines.collect();
    let mut reported = lines.iter().take(COMPLAINTS_MAX).cloned().collect::<Vec<_>>().join("; ");
    if lines.len() > COMPLAINTS_MAX {
        write!(reported, "; and {} more", lines.len() - COMPLAINTS_MAX)
            .expect("a string takes every text");
    }
    reported
}

/// `dlstatus:1:12.5:Retrieving file 1 of 3`.
fn percent_of(line: &str) -> Option<f64> {
    let rest = line.strip_prefix("dlstatus:").or_else(|| line.strip_prefix("pmstatus:"))?;
    rest.split(':').nth(1)?.parse().ok()
}

/// ` name | version | http://mirror/debian suite/main amd64 Packages`.
fn package_of(line: &str) -> Option<Package> {
    let mut columns = line.split('|').map(str::trim);
    let (name, version, place) = (columns.next()?, columns.next()?, columns.next()?);
    // Sources are listed besides packages.
    let is_binary = place.ends_with(" Packages");
    let suite = place.split(' ').nth(1)?.split('/').next()?;
    let [name, version, suite] = [name, version, suite].map(str::to_owned);
    is_binary.then_some(Package { name, version, suite })
}

fn config_of(root: &Path) -> String {
    let system = Command::new("apt-config").arg("dump").env_remove("APT_CONFIG").output();
    // Without it the defaults hold; a missing apt-get is reported when it is run.
    let system = system.map(|output| output.stdout).unwrap_or_default();
    let system = String::from_utf8_lossy(&system).into_owned();
    let is_kept =
        |line: &&str| line.starts_with(KEPT_SETTINGS) && !line.starts_with(INDEX_SETTINGS);
    let mut text: String = system.lines().filter(is_kept).flat_map(|line| [line, "\n"]).collect();
    let root = root.display();
    write!(
        text,
        "Dir::State \"{root}/state\";\nDir::State::status \"{root}/state/status\";\n\
         Dir::Cache \"{root}/cache\";\nDir::Cache::srcpkgcache \"\";\n\
         Dir::Etc \"/dev/null\";\nDir::Etc::sourcelist \"{root}/sources.list\";\n\
         {NO_OTHER_SETTINGS}\
         APT::Architecture \"amd64\";\n#clear APT::Architectures;\n\
         APT::Architectures:: \"amd64\";\n#clear Acquire::Languages;\n\
         Acquire::Languages \"none\";\n"
    )
    .expect("a string takes every text");
    text
}

/// Debian's suites, from the mirror that this system uses where it is a Debian.
fn debian_sources() -> String {
    let reported = Command::new("apt-get")
        .args(["indextargets", "--format", "$(REPO_URI)"])
        .env_remove("APT_CONFIG")
        .output();
    let reported = reported.map(|output| output.stdout).unwrap_or_default();
    let reported = String::from_utf8_lossy(&reported).into_owned();
    let mirror = |ending: &str, default: &str| {
        let uris = reported.lines().map(|uri| uri.trim_end_matches('/'));
        uris.into_iter().find(|uri| uri.ends_with(ending)).unwrap_or(default).to_owned()
    };
    let main = mirror("/debian", MIRROR);
    let security = mirror("/debian-security", SECURITY_MIRROR);
    let line = |uri: &str, suite: &str| {
        format!("deb [arch=amd64 signed-by={KEYRING}] {uri} {suite} main\n")
    };
    let suites = SUITES.iter().map(|suite| line(&main, suite));
    suites.chain(SECURITY_SUITES.iter().map(|suite| line(&security, suite))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_madison_is_a_package_in_a_suite() {
        let line = "linux-image-6.1.0-55-cloud-amd64 |  6.1.192-1 | \
                    http://deb.debian.org/debian-security bookworm-security/main amd64 Packages";
        let package = package_of(line).unwrap();
        assert_eq!(package.name, "linux-image-6.1.0-55-cloud-amd64");
        assert_eq!(
            (package.version.as_str(), package.suite.as_str()),
            ("6.1.192-1", "bookworm-security")
        );
        assert_eq!(package_of("fio | 3.33-3 | http://x/debian bookworm/main Sources"), None);
        assert_eq!(package_of(""), None);
    }

    #[test]
    fn progress_is_read_from_the_status_lines() {
        assert_eq!(percent_of("dlstatus:3:12.5:Retrieving file 3 of 8"), Some(12.5));
        assert_eq!(percent_of("Get:1 http://x y InRelease"), None);
    }

    #[test]
    fn all_suites_are_asked_by_default_with_their_keys() {
        let sources = debian_sources();
        assert_eq!(sources.lines().count(), SUITES.len() + SECURITY_SUITES.len());
        assert!(sources.lines().all(|line| line.contains("signed-by=")), "{sources}");
    }
}
