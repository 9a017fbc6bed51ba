//! The targets of a run whose jobs name several files, devices or directories.

use std::path::PathBuf;

use super::fill::Stop;
use super::{BenchTarget, Held, Overwrite, TargetPath};
use crate::document::Job;

/// The targets of a run, with the one of each row.
pub struct Targets {
    all: Vec<BenchTarget>,
    /// The target of each row; empty if there is one target only.
    of_row: Vec<usize>,
    current: usize,
}

impl Targets {
    /// Prepares one target for all rows.
    #[must_use]
    pub fn one(target: BenchTarget) -> Targets {
        Targets { all: vec![target], of_row: Vec::new(), current: 0 }
    }

    /// Prepares the target of each job: `places` has a path for each, which a job file names in one
    /// of the directories `homes`, and which gives no permission to overwrite. Nothing is written
    /// before all of them were checked.
    ///
    /// # Errors
    /// As [`TargetPath::check_within`] and [`BenchTarget::new`].
    pub fn of_each(
        places: &[PathBuf],
        jobs: &[Job],
        homes: &[PathBuf],
        stop: &Stop,
    ) -> Result<Targets, String> {
        let mut paths: Vec<(PathBuf, Vec<Job>)> = Vec::new();
        let mut of_row = Vec::new();
        for (place, job) in places.iter().zip(jobs) {
            // Two names of one device are one target: it can be held once only.
            let path = place.canonicalize().unwrap_or_else(|_| place.clone());
            let known = paths.iter().position(|(known, _)| *known == path);
            let at = known.unwrap_or_else(|| {
                paths.push((path, Vec::new()));
                paths.len() - 1
            });
            paths[at].1.push(job.clone());
            of_row.push(at);
        }
        let target = |(path, jobs): &(PathBuf, Vec<Job>)| {
            let named = TargetPath::of(path)?;
            // Again, as its name may lead elsewhere since the job file was read.
            named.check_within(homes)?;
            BenchTarget::new(named, jobs, (Overwrite::NotByJobFile, Stop::clone(stop)))
        };
        let all = paths.iter().map(target).collect::<Result<Vec<BenchTarget>, String>>()?;
        Ok(Targets { all, of_row, current: 0 })
    }

    /// Returns the files and devices that the run holds.
    #[must_use]
    pub fn held(&self) -> Vec<Held> {
        let held = |target: &BenchTarget| match &target.named {
            TargetPath::File(held) | TargetPath::Device(held) => Some(held.clone()),
            TargetPath::Dir(_) | TargetPath::Objects(_) => None,
        };
        self.all.iter().filter_map(held).collect()
    }

    /// Selects the target of a row, and removes the scratch files of another one.
    pub fn select(&mut self, row: usize) -> &mut BenchTarget {
        let next = self.of_row.get(row).copied().unwrap_or(0);
        if next != self.current {
            self.all[self.current].release();
            self.current = next;
        }
        self.current()
    }

    /// Returns the target of the current row.
    pub fn current(&mut self) -> &mut BenchTarget {
        &mut self.all[self.current]
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::bench::builtin;

    #[test]
    fn a_place_that_leads_elsewhere_by_now_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().canonicalize().unwrap();
        let [home, other] = ["home", "other"].map(|name| root.join(name));
        for path in [&home, &other] {
            std::fs::create_dir(path).unwrap();
        }
        let place = home.join("place");
        let stop: Stop = Arc::new(|| false);
        let jobs = [Job { size: 1 << 20, ..builtin::base() }];
        let of_place = || {
            Targets::of_each(
                std::slice::from_ref(&place),
                &jobs,
                std::slice::from_ref(&home),
                &stop,
            )
        };
        std::fs::create_dir(&place).unwrap();
        assert!(of_place().is_ok());
        std::fs::remove_dir(&place).unwrap();
        std::os::unix::fs::symlink(&other, &place).unwrap();
        let why = of_place().map(drop).unwrap_err();
        assert!(why.contains("other is outside of the directory of the job file"), "{why}");
    }
}
