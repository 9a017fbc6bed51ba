//! One kernel that can be booted: its image and its modules, unpacked. Its origin is
//! recorded here and found elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::PathBuf;

/// A kernel, unpacked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Kernel {
    /// `6.1`; for a kernel that came as a file, the series of its release.
    pub series: String,
    /// The output of `uname -r` in it: `6.1.0-56-cloud-amd64`; a file's name where that is unknown.
    pub release: String,
    /// The package that its image came from; empty for a file of the user.
    pub package: String,
    /// Version of that package.
    pub version: String,
    /// The image to boot (bzImage).
    pub image: PathBuf,
    /// BLAKE3 of the image, checked at each boot.
    pub image_digest: String,
    pub modules: ModuleSet,
}

/// The modules of a kernel that are at hand, uncompressed and without signature.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModuleSet {
    /// By name, with underscores as `lsmod` has them.
    pub modules: BTreeMap<String, Module>,
    /// The modules inside the image; empty if no list of them was shipped.
    pub built_in: BTreeSet<String>,
}

/// A module that can be loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Its name: `null_blk`.
    pub name: String,
    /// The file, ready for insmod.
    pub path: PathBuf,
    /// Modules that must be loaded before it.
    pub needs: Vec<String>,
    /// BLAKE3 of the file, checked when it is used.
    pub digest: Option<String>,
}

/// The presence of a module in a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// As a module at hand.
    Module,
    /// Inside its image.
    BuiltIn,
    /// Neither.
    Absent,
    /// No module, and what is inside the image is not known: the guest will show.
    Unknown,
}

/// A module that a job needs and a kernel lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingModule {
    /// The module.
    pub name: String,
    /// The module that depends on it; empty where the job itself asked.
    pub needed_by: String,
}

impl fmt::Display for MissingModule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "no module {}", self.name)?;
        if !self.needed_by.is_empty() {
            write!(f, ", which {} needs", self.needed_by)?;
        }
        f.write_str(" in this kernel")
    }
}

impl std::error::Error for MissingModule {}

impl ModuleSet {
    /// Returns the presence of the module `name`.
    #[must_use]
    pub fn presence(&self, name: &str) -> Presence {
        let name = canonical(name);
        if self.modules.contains_key(&name) {
            Presence::Module
        } else if self.built_in.contains(&name) {
            Presence::BuiltIn
        } else if self.built_in.is_empty() {
            Presence::Unknown
        } else {
            Presence::Absent
        }
    }

    /// The modules to load for `wanted`, each after those that it needs. What is built in, or may
    /// be, is not in the list.
    ///
    /// # Errors
    /// [`MissingModule`] for one that is neither at hand nor in the image, or that needs itself.
    pub fn load_order(&self, wanted: &[&str]) -> Result<Vec<&Module>, MissingModule> {
        let all = self.closure(wanted)?;
        let mut order: Vec<&Module> = Vec::with_capacity(all.len());
        while order.len() < all.len() {
            let is_loaded = |name: &str| order.iter().any(|module| module.name == name);
            let is_ready = |module: &&&Module| {
                let mut needs = module.needs.iter().map(|need| canonical(need));
                let is_met = |need: String| is_loaded(&need) || !self.modules.contains_key(&need);
                !is_loaded(&module.name) && needs.all(is_met)
            };
            let Some(next) = all.iter().find(is_ready) else {
                let left = all.iter().find(|module| !is_loaded(&module.name));
                let name = left.map_or_else(String::new, |module| module.name.clone());
                return Err(MissingModule { needed_by: name.clone(), name });
            };
            order.push(next);
        }
        Ok(order)
    }

    /// The modules at hand that `wanted` are or need, each once.
    fn closure(&self, wanted: &[&str]) -> Result<Vec<&Module>, MissingModule> {
        let mut all: Vec<&Module> = Vec::new();
        let mut asked: Vec<(String, String)> =
            wanted.iter().rev().map(|name| (canonical(name), String::new())).collect();
        // Ends: a module's needs are asked for once.
        while let Some((name, needed_by)) = asked.pop() {
            let Some(module) = self.modules.get(&name) else {
                match self.presence(&name) {
                    Presence::Absent => return Err(MissingModule { name, needed_by }),
                    _ => continue,
                }
            };
            if all.iter().any(|known| known.name == name) {
                continue;
            }
            all.push(module);
            let needs = module.needs.iter().rev();
            asked.extend(needs.map(|need| (canonical(need), name.clone())));
        }
        Ok(all)
    }
}

/// A module's name as the kernel lists it: file names may have dashes.
#[must_use]
pub fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(modules: &[(&str, &[&str])], built_in: &[&str]) -> ModuleSet {
        let module = |(name, needs): &(&str, &[&str])| {
            let needs = needs.iter().map(|need| (*need).to_owned()).collect();
            let module = Module {
                name: (*name).to_owned(),
                path: PathBuf::from(format!("{name}.ko")),
                needs,
                ..Module::default()
            };
            ((*name).to_owned(), module)
        };
        ModuleSet {
            modules: modules.iter().map(module).collect(),
            built_in: built_in.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    fn names(order: &[&Module]) -> Vec<String> {
        order.iter().map(|module| module.name.clone()).collect()
    }

    #[test]
    fn modules_come_after_what_they_need_and_once() {
        let set = set(
            &[
                ("ext4", &["mbcache", "jbd2", "crc16"]),
                ("jbd2", &["crc16"]),
                ("mbcache", &[]),
                ("null_blk", &[]),
            ],
            &["crc16"],
        );
        let order = set.load_order(&["null-blk", "ext4", "jbd2"]).unwrap();
        assert_eq!(names(&order), ["null_blk", "mbcache", "jbd2", "ext4"]);
    }

    #[test]
    fn a_missing_need_is_named_with_what_needs_it() {
        let set = set(&[("xfs", &["libcrc32c"])], &["ext4"]);
        let missing = set.load_order(&["ext4", "xfs"]).unwrap_err();
        let expected = "no module libcrc32c, which xfs needs in this kernel";
        assert_eq!(missing.to_string(), expected);
        assert_eq!(set.presence("vfat"), Presence::Absent);
    }

    #[test]
    fn without_a_list_of_what_is_built_in_the_guest_decides() {
        let set = set(&[], &[]);
        assert_eq!(set.presence("ext4"), Presence::Unknown);
        assert_eq!(set.load_order(&["ext4"]).unwrap(), Vec::<&Module>::new());
    }

    #[test]
    fn modules_that_need_each_other_are_refused_and_do_not_hang() {
        let set = set(&[("a", &["b"]), ("b", &["a"])], &[]);
        assert!(set.load_order(&["a"]).is_err());
    }
}
