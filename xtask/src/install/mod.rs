//! `cargo xtask install` and `uninstall`: everything of diopter below a prefix. It is built and
//! laid out below the target directory first, then each file is put under its name. The list of
//! the installed files is itself installed, for `uninstall`.

pub mod place;

pub mod stage;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Component, Path, PathBuf};

use crate::repo::Outcome;
use stage::Stage;

/// The list of the installed files, below the prefix.
const LIST: &str = "lib/diopter/installed";

/// Directories below the prefix that are diopter's alone.
const OWN: [&str; 2] = ["lib/diopter", "share/doc/diopter"];

/// The command line.
struct Options {
    prefix: PathBuf,
    /// The root of a package that is being made: it goes before the prefix.
    destdir: PathBuf,
    profile: String,
}

impl Options {
    fn parse(arguments: &[String]) -> Result<Options, String> {
        let mut options = Options {
            prefix: "/usr/local".into(),
            destdir: PathBuf::new(),
            profile: "release".to_owned(),
        };
        let mut rest = arguments.iter();
        while let Some(option) = rest.next() {
            let value = rest.next().ok_or_else(|| format!("{option} takes a value"))?;
            match option.as_str() {
                "--prefix" => options.prefix = value.into(),
                "--destdir" => options.destdir = value.into(),
                "--profile" => options.profile.clone_from(value),
                other => return Err(format!("no option `{other}`; `cargo xtask help` has them")),
            }
        }
        let Options { prefix, destdir, .. } = &options;
        if !is_plain(prefix) || prefix == Path::new("/") {
            let prefix = prefix.display();
            return Err(format!("--prefix {prefix}: name a directory from / on, without `..`"));
        }
        if !destdir.as_os_str().is_empty() && !is_plain(destdir) {
            let destdir = destdir.display();
            return Err(format!("--destdir {destdir}: name a directory from / on, without `..`"));
        }
        Ok(options)
    }

    /// The path of an installed file whose name begins with `/`, or with nothing.
    fn at(&self, name: &Path) -> PathBuf {
        let below = name.strip_prefix("/").unwrap_or(name);
        if self.destdir.as_os_str().is_empty() {
            return Path::new("/").join(below);
        }
        self.destdir.join(below)
    }
}

/// Returns true for a path from the root on that has no `..`, and nothing that a shell, make or
/// pkg-config would take apart.
fn is_plain(path: &Path) -> bool {
    let is_name = |part| matches!(part, Component::RootDir | Component::Normal(_));
    let is_safe = |c: char| c.is_ascii_alphanumeric() || "/._+-~@,".contains(c);
    path.is_absolute()
        && path.components().all(is_name)
        && path.to_str().is_some_and(|text| text.chars().all(is_safe))
}

/// `cargo xtask install`
pub fn run(arguments: &[String]) -> Outcome {
    let options = Options::parse(arguments)?;
    // Before the minutes of a build.
    place::directory(&options.at(&options.prefix))?;
    let stage = Stage::new("install", options.prefix.clone(), &options.profile);
    stage.make()?;
    put(&options, &stage.root)?;
    println!("installed below {}", options.at(&options.prefix).display());
    Ok(true)
}

/// Puts each file of the stage under its name, and removes what only an earlier version had. The
/// list has every file that is there, at any moment.
fn put(options: &Options, staged: &Path) -> Result<(), String> {
    let names = place::below(staged)?;
    let new: BTreeSet<PathBuf> = names.iter().map(|name| Path::new("/").join(name)).collect();
    let list = options.at(&options.prefix.join(LIST));
    place::directory(list.parent().expect("a file is in a directory"))?;
    let old: BTreeSet<PathBuf> = match list.symlink_metadata() {
        Ok(_) => names_in(&list, &options.prefix)?.into_iter().collect(),
        Err(_) => BTreeSet::new(),
    };
    write_list(&list, old.union(&new))?;
    for name in names {
        let (from, to) = (staged.join(&name), options.at(&name));
        place::directory(to.parent().expect("a file is in a directory"))?;
        let fail = |error: std::io::Error| format!("read {}: {error}", from.display());
        if from.is_symlink() {
            place::link(&to, &fs::read_link(&from).map_err(fail)?)?;
        } else {
            let mode = fs::metadata(&from).map_err(fail)?.permissions().mode() & 0o777;
            place::file(&to, &stage::read(&from)?, mode)?;
        }
    }
    for name in old.difference(&new) {
        remove_one(options, name)?;
    }
    write_list(&list, new.iter())
}

fn write_list<'a>(list: &Path, names: impl Iterator<Item = &'a PathBuf>) -> Result<(), String> {
    let text: String = names.map(|name| format!("{}\n", name.display())).collect();
    place::file(list, text.as_bytes(), 0o644)
}

/// Returns the names of the list, which no other user can have written.
fn names_in(list: &Path, prefix: &Path) -> Result<Vec<PathBuf>, String> {
    let failed = |error: std::io::Error| format!("read {}: {error}", list.display());
    place::check(list.parent().expect("a file is in a directory"))?;
    if !list.symlink_metadata().map_err(failed)?.is_file() {
        return Err(format!("read {}: it is not a file; remove it", list.display()));
    }
    let text = fs::read_to_string(list).map_err(failed)?;
    Ok(listed(&text, prefix)?.into_iter().map(Path::to_owned).collect())
}

fn remove_one(options: &Options, name: &Path) -> Result<(), String> {
    let path = options.at(name);
    match path.parent().filter(|above| above.is_dir()) {
        Some(above) => place::check(above)?,
        None => return Ok(()),
    }
    place::remove(&path)
}

/// `cargo xtask uninstall`
pub fn remove(arguments: &[String]) -> Outcome {
    let options = Options::parse(arguments)?;
    let list = options.at(&options.prefix.join(LIST));
    if let Err(error) = list.symlink_metadata() {
        let list = list.display();
        return Err(format!("read {list}: {error}; give the PREFIX and DESTDIR of `make install`"));
    }
    for name in names_in(&list, &options.prefix)? {
        remove_one(&options, &name)?;
    }
    place::remove(&list)?;
    for name in OWN {
        // It stays if a user has put something into it.
        fs::remove_dir(options.at(&options.prefix.join(name))).ok();
    }
    println!("removed what was installed below {}", options.at(&options.prefix).display());
    Ok(true)
}

/// Returns the names of a list: all of them below the prefix.
fn listed<'a>(text: &'a str, prefix: &Path) -> Result<Vec<&'a Path>, String> {
    let checked = |line: &'a str| {
        let name = Path::new(line);
        let is_ours = is_plain(name) && name.starts_with(prefix);
        is_ours.then_some(name).ok_or_else(|| {
            format!("the list has {line:?}, which is not below {}", prefix.display())
        })
    };
    text.lines().map(checked).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::repo;

    fn parse(line: &str) -> Result<Options, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        Options::parse(&words)
    }

    #[test]
    fn a_prefix_is_a_plain_path_from_the_root_on() {
        let options = parse("--prefix /opt/diopter --destdir /tmp/root").expect("it is plain");
        assert_eq!(
            options.at(Path::new("/opt/diopter/bin/dio")),
            Path::new("/tmp/root/opt/diopter/bin/dio")
        );
        assert_eq!(
            parse("").expect("the defaults").at(Path::new("usr/bin")),
            Path::new("/usr/bin")
        );
        for line in ["--prefix usr", "--prefix /", "--prefix /usr/../etc", "--destdir stage"] {
            assert!(parse(line).is_err_and(|why| why.contains("from / on")), "{line}");
        }
        assert!(Options::parse(&["--prefix".to_owned(), "/a b".to_owned()]).is_err());
        assert!(Options::parse(&["--prefix".to_owned(), "/a|$(b)".to_owned()]).is_err());
        assert!(parse("--prefix").is_err_and(|why| why == "--prefix takes a value"));
    }

    #[test]
    fn a_list_that_names_others_files_removes_nothing() {
        let prefix = Path::new("/usr/local");
        let good = "/usr/local/bin/dio\n/usr/local/lib/libdiopter.so\n";
        assert_eq!(listed(good, prefix).expect("two names").len(), 2);
        for bad in ["/etc/passwd\n", "/usr/local/../../etc/passwd\n", "\n", "bin/dio\n"] {
            assert!(listed(&format!("{good}{bad}"), prefix).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_later_version_removes_what_only_the_earlier_one_had() {
        let scratch = repo::target_dir().join(format!("tmp/upgrade-{}", std::process::id()));
        let (staged, root) = (scratch.join("staged"), scratch.join("root"));
        let options = parse(&format!("--prefix /opt/x --destdir {}", root.display()));
        let options = options.expect("it is plain");
        fs::create_dir_all(staged.join("opt/x/lib")).expect("a directory");
        fs::create_dir_all(&root).expect("a directory");
        for (version, gone) in [("1", None), ("2", Some("1"))] {
            let library = |version: &str| format!("opt/x/lib/lib.so.{version}");
            fs::write(staged.join(library(version)), version).expect("a file");
            gone.map_or(Ok(()), |gone| fs::remove_file(staged.join(library(gone)))).expect("gone");
            put(&options, &staged).expect("it is installed");
            let there = place::below(&root).expect("a list");
            assert_eq!(
                there,
                [Path::new("opt/x/lib/diopter/installed"), library(version).as_ref()]
            );
        }
        // An upgrade that ends early: everything that is there is in the list.
        fs::remove_file(staged.join("opt/x/lib/lib.so.2")).expect("gone");
        fs::create_dir(root.join("opt/x/lib/lib.so.3")).expect("in the way");
        fs::write(staged.join("opt/x/lib/lib.so.3"), "3").expect("a file");
        put(&options, &staged).expect_err("a directory is in the way");
        let list = root.join("opt/x/lib/diopter/installed");
        let names = fs::read_to_string(&list).expect("the list");
        assert_eq!(names, "/opt/x/lib/lib.so.2\n/opt/x/lib/lib.so.3\n");
        // A list that leads elsewhere is not read.
        fs::rename(&list, scratch.join("list")).expect("renamed");
        std::os::unix::fs::symlink(scratch.join("list"), &list).expect("a link");
        let refused = names_in(&list, &options.prefix).expect_err("a link");
        assert!(refused.contains("it is not a file"), "{refused}");
        fs::remove_dir_all(&scratch).expect("the directory goes");
    }

    #[test]
    fn what_is_put_is_what_is_removed() {
        let scratch = repo::target_dir().join(format!("tmp/install-{}", std::process::id()));
        let (staged, root) = (scratch.join("staged"), scratch.join("root"));
        fs::create_dir_all(staged.join("opt/x/bin")).expect("a directory");
        fs::create_dir_all(root.join("opt/x/bin")).expect("a directory");
        fs::write(staged.join("opt/x/bin/dio"), "program").expect("a file");
        std::os::unix::fs::symlink("dio", staged.join("opt/x/bin/link")).expect("a link");
        fs::write(root.join("opt/x/bin/other"), "another's").expect("a file");

        let line = format!("--prefix /opt/x --destdir {}", root.display());
        let options = parse(&line).expect("it is plain");
        put(&options, &staged).expect("it is installed");
        assert_eq!(fs::read_to_string(root.join("opt/x/bin/link")).expect("a link"), "program");
        let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
        assert_eq!(remove(&words), Ok(true));
        assert_eq!(place::below(&root).expect("a list"), [Path::new("opt/x/bin/other")]);
        assert!(!root.join("opt/x/lib/diopter").exists());
        assert!(remove(&words).is_err_and(|why| why.contains("PREFIX and DESTDIR")));
        fs::remove_dir_all(&scratch).expect("the directory goes");
    }
}
