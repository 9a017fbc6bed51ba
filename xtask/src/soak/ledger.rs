//! The record of campaigns: one line a piece, in the target directory. Totals are added up
//! over pieces whose sources are the same, so that a total says something of one product.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{CAMPAIGNS, Campaign};
use crate::repo;

/// Sources that campaigns try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sources {
    /// The engine and the crates below it, without the formats of other systems.
    Engine,
    /// All that `dio cp` consists of.
    Copy,
    /// The command, the library, and the libraries for C and for other programs.
    Doors,
    /// The library.
    Library,
    /// The readers of bytes that others wrote.
    Parsers,
    /// The code that judges measurements.
    Judge,
    /// Everything that is installed, and the code that installs it.
    Packages,
}

/// Below the library's sources: what no request of the engine's campaigns passes through.
const BESIDE_ENGINE: &[&str] = &["file/image.rs", "probe", "probe.rs"];

const OS: &str = "crates/diopter-os/src";
const CORE: &str = "crates/diopter-core/src";
const HISTORY: &str = "crates/diopter-history/src";
const LAYOUTS: &str = "crates/diopter-layouts/src";
const IMAGES: &str = "crates/diopter-images/src";
const LIBRARY: &str = "crates/diopter/src";

impl Sources {
    /// As git's pathspecs.
    fn paths(self) -> Vec<String> {
        let whole = |paths: &[&str]| paths.iter().map(|path| (*path).to_owned()).collect();
        match self {
            Sources::Engine => {
                let beside = BESIDE_ENGINE.iter().map(|path| format!(":(exclude){LIBRARY}/{path}"));
                [OS, CORE, HISTORY, LIBRARY].into_iter().map(str::to_owned).chain(beside).collect()
            }
            Sources::Copy => {
                whole(&[OS, CORE, HISTORY, LAYOUTS, IMAGES, LIBRARY, "crates/diopter-copy/src"])
            }
            Sources::Doors => whole(&[
                OS,
                CORE,
                HISTORY,
                LAYOUTS,
                IMAGES,
                LIBRARY,
                "crates/diopter-copy/src",
                "crates/diopter-cli/src",
                "bindings/c/src",
                "bindings/preload/src",
            ]),
            Sources::Library => whole(&[OS, CORE, HISTORY, LAYOUTS, IMAGES, LIBRARY]),
            Sources::Parsers => whole(&[
                IMAGES,
                LAYOUTS,
                "crates/diopter-bench/src/bench/job_file.rs",
                "crates/diopter-bench/src/fio",
                "crates/diopter-trace/src",
                "fuzz/fuzz_targets",
            ]),
            Sources::Packages => whole(&[
                "crates",
                "bindings/c",
                "packaging",
                "xtask/src/install",
                "xtask/src/package",
                "Cargo.lock",
                "Cargo.toml",
                "Makefile",
            ]),
            Sources::Judge => whole(&["crates/diopter-bench/src/compare"]),
        }
    }

    /// Names their state in the commit; `None` where there are uncommitted changes.
    ///
    /// # Errors
    /// When git fails.
    pub fn label(self) -> Result<Option<String>, String> {
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command.args(arguments).arg("--").args(self.paths()).current_dir(repo::root());
            repo::output_of(&mut command)
        };
        if !git(&["status", "--porcelain"])?.is_empty() {
            return Ok(None);
        }
        let files = git(&["ls-files", "--stage"])?;
        let mut hasher = DefaultHasher::new();
        files.hash(&mut hasher);
        Ok(Some(format!("{self:?}-{:012x}", hasher.finish() >> 16).to_lowercase()))
    }
}

/// One piece of a campaign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub campaign: String,
    pub seed: u64,
    pub tried: u64,
    pub seconds: u64,
    pub passed: bool,
}

/// All pieces, and the file that has them.
pub struct Ledger {
    path: PathBuf,
    /// With the label of their sources.
    entries: Vec<(String, Entry)>,
    /// Labels of what is in the commit, by campaign.
    labels: Vec<(&'static str, Option<String>)>,
}

impl Ledger {
    /// Opens the ledger of this checkout.
    pub fn open() -> Result<Ledger, String> {
        let directory = repo::target_dir();
        std::fs::create_dir_all(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        let label = |campaign: &Campaign| Ok((campaign.name, campaign.tries.label()?));
        let labels: Result<Vec<_>, String> = CAMPAIGNS.iter().map(label).collect();
        Ledger::of(&directory.join("soak.tsv"), labels?)
    }

    fn of(path: &Path, labels: Vec<(&'static str, Option<String>)>) -> Result<Ledger, String> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        // A line that was cut by a crash is not one.
        let entries = text.lines().filter_map(read).collect();
        Ok(Ledger { path: path.to_owned(), entries, labels })
    }

    /// Adds a piece that tried what is in the commit, on disk as well.
    pub fn add(&mut self, entry: Entry) -> Result<(), String> {
        let label = self.label(&entry.campaign).ok_or("uncommitted changes are not recorded")?;
        let label = label.to_owned();
        let Entry { campaign, seed, tried, seconds, passed } = &entry;
        let line = format!("{label}\t{campaign}\t{seed}\t{tried}\t{seconds}\t{passed}\n");
        let opened = OpenOptions::new().append(true).create(true).open(&self.path);
        let written = opened.and_then(|mut file: File| file.write_all(line.as_bytes()));
        written.map_err(|error| format!("{}: {error}", self.path.display()))?;
        self.entries.push((label, entry));
        Ok(())
    }

    fn label(&self, campaign: &str) -> Option<&str> {
        let found = self.labels.iter().find(|(name, _)| *name == campaign);
        found.and_then(|(_, label)| label.as_deref())
    }

    fn of_campaign<'a>(&'a self, campaign: &'a Campaign) -> impl Iterator<Item = &'a Entry> {
        let label = self.label(campaign.name);
        let of_it = move |(its, entry): &&(String, Entry)| {
            entry.campaign == campaign.name && Some(its.as_str()) == label
        };
        self.entries.iter().filter(of_it).map(|(_, entry)| entry)
    }

    fn tried(&self, campaign: &Campaign) -> u64 {
        self.of_campaign(campaign).map(|entry| entry.tried).sum()
    }

    /// How much of its goal a campaign has reached.
    pub fn per_mille(&self, campaign: &Campaign) -> u64 {
        self.tried(campaign).saturating_mul(1000) / campaign.goal
    }

    /// Everything tried so far, as a table in Markdown.
    pub fn table(&self) -> String {
        let mut text =
            "| campaign | tried | goal | unit | pieces | failed | seconds | sources |\n".to_owned();
        text.push_str("|---|---:|---:|---|---:|---:|---:|---|\n");
        for campaign in CAMPAIGNS {
            let pieces = self.of_campaign(campaign).count();
            let failed = self.of_campaign(campaign).filter(|entry| !entry.passed).count();
            let seconds: u64 = self.of_campaign(campaign).map(|entry| entry.seconds).sum();
            let (name, unit, goal) = (campaign.name, campaign.unit, campaign.goal);
            let (tried, label) = (self.tried(campaign), self.label(name).unwrap_or("uncommitted"));
            writeln!(
                text,
                "| {name} | {tried} | {goal} | {unit} | {pieces} | {failed} | {seconds} | {label} |"
            )
            .expect("a String takes all");
        }
        text
    }
}

fn read(line: &str) -> Option<(String, Entry)> {
    let fields: Vec<&str> = line.split('\t').collect();
    let [label, campaign, seed, tried, seconds, passed] = fields[..] else { return None };
    let entry = Entry {
        campaign: campaign.to_owned(),
        seed: seed.parse().ok()?,
        tried: tried.parse().ok()?,
        seconds: seconds.parse().ok()?,
        passed: passed.parse().ok()?,
    };
    Some((label.to_owned(), entry))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(campaign: &str, tried: u64, passed: bool) -> Entry {
        Entry { campaign: campaign.to_owned(), seed: 3, tried, seconds: 2, passed }
    }

    #[test]
    fn pieces_add_up_across_openings_while_the_sources_are_the_same() {
        let name = format!("diopter-ledger-{}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let open =
            |label: &str| Ledger::of(&path, vec![("model", Some(label.to_owned()))]).unwrap();
        open("a").add(entry("model", 500, true)).unwrap();
        open("b").add(entry("model", 70, true)).unwrap();
        let mut again = open("a");
        again.add(entry("model", 1500, false)).unwrap();
        std::fs::OpenOptions::new()
            .append(true)
            .open(&path)
            .and_then(|mut file| file.write_all(b"a\tmodel\t9"))
            .unwrap();
        let last = open("a");
        std::fs::remove_file(&path).unwrap();
        assert_eq!(last.per_mille(&CAMPAIGNS[0]), 10);
        let row = last.table().lines().find(|line| line.contains("| model")).map(str::to_owned);
        assert_eq!(row.as_deref(), Some("| model | 2000 | 200000 | seeds | 2 | 1 | 4 | a |"));
    }

    #[test]
    fn what_is_not_committed_is_not_recorded() {
        let path = std::env::temp_dir().join(format!("diopter-no-ledger-{}", std::process::id()));
        let mut ledger = Ledger::of(&path, vec![("model", None)]).unwrap();
        assert!(ledger.add(entry("model", 1, true)).is_err());
        assert!(!path.exists());
    }

    #[test]
    fn a_layout_is_no_source_of_the_engine_and_one_of_a_copy() {
        let files = |sources: Sources| {
            let mut command = Command::new("git");
            command.args(["ls-files", "--"]).args(sources.paths()).current_dir(repo::root());
            repo::output_of(&mut command).unwrap()
        };
        let has = |sources, path: &str| files(sources).lines().any(|line| line == path);
        let layout = "crates/diopter-layouts/src/layout/mod.rs";
        assert!(has(Sources::Copy, layout) && !has(Sources::Engine, layout));
        for path in ["crates/diopter-core/src/engine/mod.rs", "crates/diopter-os/src/slab.rs"] {
            assert!(has(Sources::Engine, path) && has(Sources::Copy, path), "{path}");
        }
        for beside in BESIDE_ENGINE {
            assert!(repo::root().join(LIBRARY).join(beside).exists(), "{beside}");
        }
        assert!(!files(Sources::Judge).is_empty() && !files(Sources::Parsers).is_empty());
    }
}
