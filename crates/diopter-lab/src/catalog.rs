//! Which kernels there are among packages: builds, their series, and which one is meant.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::choice::Flavour;
use crate::version;

/// Names of packages with parts of a kernel begin so.
pub const PREFIXES: [&str; 4] = ["linux-image-", "linux-binary-", "linux-modules-", "linux-base-"];
/// Kernels of this architecture only.
const ARCHITECTURE: &str = "-amd64";
/// Made for virtual machines: small, with all that a job needs.
const CLOUD: &str = "-cloud-amd64";

/// A package in a suite.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Package {
    pub name: String,
    pub version: String,
    pub suite: String,
}

/// A kernel, as packages of one version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// `6.1`.
    pub series: String,
    /// The output of `uname -r` in it.
    pub release: String,
    /// Version of its packages.
    pub version: String,
    pub suites: Vec<String>,
    /// The packages to take, the image's first.
    pub packages: Vec<String>,
    /// True if modules are among them.
    pub has_modules: bool,
}

impl Build {
    /// The upstream version: `6.18.15`.
    #[must_use]
    pub fn upstream(&self) -> &str {
        version::upstream(&self.version)
    }

    fn is_cloud(&self) -> bool {
        self.release.ends_with(CLOUD)
    }

    /// Which one to take first, the best last: one for virtual machines, with modules, the newest.
    fn compare(&self, other: &Build) -> Ordering {
        let rank = |build: &Build| (build.is_cloud(), build.has_modules);
        rank(self)
            .cmp(&rank(other))
            .then_with(|| version::compare(&self.version, &other.version))
            .then_with(|| self.release.cmp(&other.release))
    }
}

/// The packages of one release in one version.
#[derive(Default)]
struct Found<'a> {
    /// Indices into [`PREFIXES`].
    parts: BTreeSet<usize>,
    suites: BTreeSet<&'a str>,
}

/// Puts packages together to kernels, oldest first. A package without its image is left out, as is
/// one that only names the newest.
#[must_use]
pub fn builds(packages: &[Package]) -> Vec<Build> {
    let mut found: BTreeMap<(&str, &str), Found<'_>> = BTreeMap::new();
    for package in packages {
        let prefix = PREFIXES.iter().enumerate();
        let part = prefix.filter_map(|(at, prefix)| Some((at, package.name.strip_prefix(prefix)?)));
        for (at, release) in part.filter(|(_, release)| is_release(release)) {
            let entry = found.entry((release, &package.version)).or_default();
            entry.parts.insert(at);
            entry.suites.insert(&package.suite);
        }
    }
    let build =
        |((release, version), found): ((&str, &str), Found<'_>)| build_of(release, version, &found);
    let mut builds: Vec<Build> = found.into_iter().filter_map(build).collect();
    builds.sort_by(|left, right| {
        version::compare(&left.version, &right.version)
            .then_with(|| left.release.cmp(&right.release))
    });
    builds
}

fn is_release(text: &str) -> bool {
    let is_plain = !text.contains("-rt-") && !text.contains("unsigned");
    text.ends_with(ARCHITECTURE)
        && text.starts_with(|first: char| first.is_ascii_digit())
        && is_plain
}

fn build_of(release: &str, version: &str, found: &Found<'_>) -> Option<Build> {
    let parts = &found.parts;
    let name = |part: usize| format!("{}{release}", PREFIXES[part]);
    let (image, binary, modules, base) = (0, 1, 2, 3);
    let is_split = parts.contains(&binary);
    // `linux-image-6.1-amd64` has no kernel: it depends on the newest.
    let number = release.split('-').next().unwrap_or(release);
    let is_alias = !is_split && number.split('.').count() < 3;
    if is_alias || !parts.contains(&if is_split { binary } else { image }) {
        return None;
    }
    let packages = if is_split {
        let others = [modules, base].into_iter().filter(|part| parts.contains(part));
        std::iter::once(binary).chain(others).map(name).collect()
    } else {
        vec![name(image)]
    };
    Some(Build {
        series: version::series(version)?,
        release: release.to_owned(),
        version: version.to_owned(),
        suites: found.suites.iter().map(|suite| (*suite).to_owned()).collect(),
        packages,
        has_modules: !is_split || parts.contains(&modules),
    })
}

/// The one that is meant: the best of a series (`6.1`), of an upstream version (`6.18.15`), of
/// either in a flavour (`6.1-amd64`), or the one of a release (`5.10.0-46-amd64`).
#[must_use]
pub fn choose<'a>(builds: &'a [Build], asked: &str) -> Option<&'a Build> {
    let meant = builds.iter().filter(|build| is_meant(&build.release, &build.version, asked));
    meant.max_by(|left, right| left.compare(right))
}

/// Returns true if a kernel is one of those that `asked` means.
#[must_use]
pub fn is_meant(release: &str, version: &str, asked: &str) -> bool {
    let (name, flavour) = Flavour::split(asked);
    let is_named =
        version::upstream(version) == name || version::series(version).as_deref() == Some(name);
    release == asked || (is_named && flavour.has(release))
}

/// The best build of each series that has modules, oldest first.
#[must_use]
pub fn each(builds: &[Build], flavour: Flavour) -> Vec<&Build> {
    let is_usable = |build: &&Build| build.has_modules && flavour.has(&build.release);
    let mut best: BTreeMap<&str, &Build> = BTreeMap::new();
    for build in builds.iter().filter(is_usable) {
        let known = best.entry(&build.series).or_insert(build);
        if known.compare(build).is_lt() {
            *known = build;
        }
    }
    let mut each: Vec<&Build> = best.into_values().collect();
    each.sort_by(|left, right| version::compare_series(&left.series, &right.series));
    each
}

/// One build for each upstream version, in order: what a search goes through.
#[must_use]
pub fn distinct(builds: &[Build]) -> Vec<&Build> {
    let mut best: Vec<&Build> = Vec::new();
    for build in builds.iter().filter(|build| build.is_cloud()) {
        match best.iter_mut().find(|known| known.upstream() == build.upstream()) {
            Some(known) if known.compare(build).is_lt() => *known = build,
            Some(_) => {}
            None => best.push(build),
        }
    }
    best
}

/// Series, the nearest to `asked` first: by their place in the order of all, not by their numbers.
#[must_use]
pub fn nearest(series: &BTreeSet<String>, asked: &str) -> Vec<String> {
    let mut all: Vec<String> = series.iter().cloned().collect();
    all.sort_by(|left, right| version::compare_series(left, right));
    let is_before = |one: &String| version::compare_series(one, asked).is_lt();
    let split = all.partition_point(is_before);
    let (before, after) = all.split_at(split);
    let mut nearest = Vec::with_capacity(all.len());
    for at in 0..before.len().max(after.len()) {
        nearest.extend(before.len().checked_sub(at + 1).map(|at| before[at].clone()));
        nearest.extend(after.get(at).cloned());
    }
    nearest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, suite: &str) -> Package {
        let [name, version, suite] = [name, version, suite].map(str::to_owned);
        Package { name, version, suite }
    }

    fn sample() -> Vec<Package> {
        vec![
            package("linux-image-5.10.0-32-cloud-amd64", "5.10.223-1", "bullseye"),
            package("linux-image-5.10.0-46-cloud-amd64", "5.10.262-1", "bullseye-security"),
            package("linux-image-5.10.0-46-amd64", "5.10.262-1", "bullseye-security"),
            package(
                "linux-image-5.10.0-46-cloud-amd64-unsigned",
                "5.10.262-1",
                "bullseye-security",
            ),
            package("linux-image-6.1-cloud-amd64", "6.1.180-1~deb11u1", "bullseye-security"),
            package("linux-image-6.1.0-56-cloud-amd64", "6.1.192-2", "bookworm-security"),
            package("linux-binary-7.1.13+deb13-cloud-amd64", "7.1.13-1~bpo13+1", "backports"),
            package("linux-image-7.1.13+deb13-cloud-amd64", "7.1.13-1~bpo13+1", "backports"),
            package("linux-binary-7.2.9+deb13-cloud-amd64", "7.2.9-1~bpo13+1", "backports"),
            package("linux-modules-7.2.9+deb13-cloud-amd64", "7.2.9-1~bpo13+1", "backports"),
            package("linux-binary-7.2.13+deb14-cloud-amd64", "7.2.13-1", "sid"),
            package("linux-binary-7.2.13+deb14-cloud-amd64", "7.2.13-1", "forky"),
            package("linux-binary-7.3-cloud-amd64", "7.3~rc7-1~exp1", "experimental"),
            package("linux-image-6.12-rt-amd64", "6.12.107-1", "trixie"),
        ]
    }

    #[test]
    fn packages_become_kernels_in_the_order_of_their_versions() {
        let builds = builds(&sample());
        let releases: Vec<&str> = builds.iter().map(|build| build.release.as_str()).collect();
        let expected = [
            "5.10.0-32-cloud-amd64",
            "5.10.0-46-amd64",
            "5.10.0-46-cloud-amd64",
            "6.1.0-56-cloud-amd64",
            "7.1.13+deb13-cloud-amd64",
            "7.2.9+deb13-cloud-amd64",
            "7.2.13+deb14-cloud-amd64",
            "7.3-cloud-amd64",
        ];
        assert_eq!(releases, expected);
        assert_eq!(builds[6].suites, ["forky", "sid"]);
        let packages =
            ["linux-binary-7.2.9+deb13-cloud-amd64", "linux-modules-7.2.9+deb13-cloud-amd64"];
        assert_eq!(builds[5].packages, packages);
        assert!(!builds[4].has_modules && builds[5].has_modules && builds[0].has_modules);
    }

    #[test]
    fn the_newest_of_a_series_with_modules_is_taken() {
        let builds = builds(&sample());
        let chosen = |asked| choose(&builds, asked).map(|build| build.release.as_str());
        assert_eq!(chosen("5.10"), Some("5.10.0-46-cloud-amd64"));
        assert_eq!(chosen("7.2"), Some("7.2.9+deb13-cloud-amd64"));
        assert_eq!(chosen("7.1"), Some("7.1.13+deb13-cloud-amd64"));
        assert_eq!(chosen("5.10.223"), Some("5.10.0-32-cloud-amd64"));
        assert_eq!(chosen("5.10.0-46-amd64"), Some("5.10.0-46-amd64"));
        assert_eq!(chosen("6.6"), None);
    }

    #[test]
    fn a_flavour_narrows_a_series_and_a_version() {
        let builds = builds(&sample());
        let chosen = |asked| choose(&builds, asked).map(|build| build.release.as_str());
        assert_eq!(chosen("5.10-amd64"), Some("5.10.0-46-amd64"));
        assert_eq!(chosen("5.10.262-amd64"), Some("5.10.0-46-amd64"));
        assert_eq!(chosen("7.2-amd64"), None);
    }

    #[test]
    fn each_series_with_modules_is_taken_once_in_the_order_of_versions() {
        let mut packages = sample();
        packages.push(package("linux-image-5.9.0-1-amd64", "5.9.1-1", "x"));
        let builds = builds(&packages);
        let releases = |flavour| {
            let each = each(&builds, flavour).into_iter();
            each.map(|build| build.release.as_str()).collect::<Vec<_>>()
        };
        let expected = [
            "5.9.0-1-amd64",
            "5.10.0-46-cloud-amd64",
            "6.1.0-56-cloud-amd64",
            "7.2.9+deb13-cloud-amd64",
        ];
        assert_eq!(releases(Flavour::Any), expected);
        assert_eq!(releases(Flavour::Full), ["5.9.0-1-amd64", "5.10.0-46-amd64"]);
    }

    #[test]
    fn a_search_goes_through_each_upstream_version_once() {
        let mut packages = sample();
        packages.push(package("linux-image-6.1.0-0.deb11.52-cloud-amd64", "6.1.192-1", "x"));
        let builds = builds(&packages);
        let versions: Vec<&str> = distinct(&builds).iter().map(|build| build.upstream()).collect();
        let expected = ["5.10.223", "5.10.262", "6.1.192", "7.1.13", "7.2.9", "7.2.13", "7.3~rc7"];
        assert_eq!(versions, expected);
    }

    #[test]
    fn the_nearest_series_are_those_beside_it() {
        let series = ["5.10", "6.1", "6.12", "6.18", "7.2"].map(str::to_owned).into();
        assert_eq!(nearest(&series, "6.6"), ["6.1", "6.12", "5.10", "6.18", "7.2"]);
        assert_eq!(nearest(&series, "4.19")[0], "5.10");
    }
}
