//! Where libdiopter-preload.so is: the library that `dio run` loads into programs.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use diopter_os::trust::{self, Refusal};
use diopter_rados::Library;

use crate::env;
use diopter_text::untrusted;

/// Its name where it is installed.
const INSTALLED: &str = "libdiopter-preload.so";
/// Its name where cargo builds it.
const BUILT: &str = "libdiopter_preload.so";

/// The places of the library, in the order in which they are looked at.
#[derive(Debug, PartialEq, Eq)]
pub struct Places {
    /// A library that the caller names, and by which name.
    named: Option<(&'static str, PathBuf)>,
    /// Those of an installation and of a build.
    usual: Vec<PathBuf>,
    is_privileged: bool,
}

impl Places {
    /// Returns those of this process; `option` is the library of `--preload`.
    pub fn of_this_process(option: Option<&Path>) -> Places {
        let option = option.map(|path| ("--preload", path.to_owned()));
        let variable = || Some((env::PRELOAD, PathBuf::from(std::env::var_os(env::PRELOAD)?)));
        let dio = std::env::current_exe().ok();
        let is_privileged = diopter_os::privilege::is_raised();
        Places::new(option.or_else(variable), dio.as_deref(), env::LIBDIR, is_privileged)
    }

    /// A caller decides where `dio` is by a hard link, so a privileged one is not found by that.
    fn new(
        named: Option<(&'static str, PathBuf)>,
        dio: Option<&Path>,
        compiled_in: Option<&str>,
        is_privileged: bool,
    ) -> Places {
        let named = named.filter(|(_, path)| !path.as_os_str().is_empty());
        let mut usual = Vec::new();
        if let Some(dir) = dio.and_then(Path::parent).filter(|_| !is_privileged) {
            let prefix = dir.parent().unwrap_or(dir);
            usual.push(prefix.join("lib/diopter").join(INSTALLED));
            usual.push(dir.join(BUILT));
        }
        let compiled_in = compiled_in.map(|dir| Path::new(dir).join(INSTALLED));
        usual.extend(compiled_in.filter(|path| path.is_absolute()));
        usual.dedup();
        Places { named, usual, is_privileged }
    }

    /// Returns the library that the caller names, or the first that is there and that no other user
    /// may write to or replace.
    ///
    /// # Errors
    /// There is none, with all places that were looked at; another user may write to the one that
    /// was named or found; or a caller names one for a `dio` that has more privileges than the
    /// caller.
    pub fn find(&self) -> Result<PathBuf, String> {
        if let Some((by, path)) = &self.named {
            if self.is_privileged {
                return Err(format!(
                    "load {}: dio has more privileges than its caller, so it takes no library from \
                     {by}; run a dio that is not setuid and has no file capabilities",
                    untrusted::name(path)
                ));
            }
            return match trust::open(path) {
                Err(refusal) if refusal.errno().is_none() => Err(refused(path, &refusal)),
                // What is wrong with it otherwise is found when it is read.
                _ => Ok(path.clone()),
            };
        }
        let others = match self.search() {
            Ok(path) => return Ok(path),
            Err(others) => others,
        };
        if !others.is_empty() {
            return Err(others.join("; "));
        }
        let remedy = match self.is_privileged {
            true => "run a dio that is not setuid and has no file capabilities".to_owned(),
            false => format!("name the library with {}", env::PRELOAD),
        };
        Err(format!("find {INSTALLED}: not found ({}); {remedy}", self.looked_in()))
    }

    /// Returns the first library that is there and no other user's, or those that are.
    fn search(&self) -> Result<PathBuf, Vec<String>> {
        let mut others = Vec::new();
        for path in &self.usual {
            match trust::open(path) {
                Ok(_) => return Ok(path.clone()),
                Err(refusal) if refusal.errno().is_some() => {}
                Err(refusal) => others.push(refused(path, &refusal)),
            }
        }
        Err(others)
    }

    fn looked_in(&self) -> String {
        if self.usual.is_empty() {
            return "no directory is compiled in".to_owned();
        }
        let names = self.usual.iter().map(untrusted::name);
        format!("looked in {}", names.collect::<Vec<_>>().join(", "))
    }
}

fn refused(path: &Path, refusal: &Refusal) -> String {
    format!("load {}: {}", untrusted::name(path), refusal.text(path, |path| untrusted::name(path)))
}

/// The text of `dio --version`: the version, and what this program has. Other commands do not look
/// for that.
pub static LONG_VERSION: LazyLock<String> = LazyLock::new(|| {
    if !std::env::args_os().any(|argument| argument == "--version") {
        return env!("CARGO_PKG_VERSION").to_owned();
    }
    let is_static = cfg!(target_feature = "crt-static");
    version_text(&Places::of_this_process(None), &rados_text(is_static), is_static)
});

/// Returns the version of librados, or why there is none.
fn rados_text(is_static: bool) -> String {
    if is_static {
        return "not in this build".to_owned();
    }
    match Library::load(None).map(|library| library.version()) {
        Ok((major, minor, extra)) => format!("librados {major}.{minor}.{extra}"),
        Err(error) => format!("none ({error})"),
    }
}

fn version_text(places: &Places, rados: &str, is_static: bool) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let preload = match places.find() {
        Ok(path) if path.is_file() => untrusted::name(&path),
        Ok(path) => format!("not found (looked in {})", untrusted::name(&path)),
        Err(_) if places.named.is_some() && places.is_privileged => {
            "not taken from the caller".to_owned()
        }
        Err(why) if places.named.is_some() => format!("not used ({why})"),
        Err(_) => match places.search() {
            Err(others) if !others.is_empty() => format!("not used ({})", others.join("; ")),
            _ => format!("not found ({})", places.looked_in()),
        },
    };
    let mut lines = vec![
        version.to_owned(),
        "backends: uring, aio, threads, sim".to_owned(),
        format!("preload: {preload}"),
        format!("rados: {rados}"),
    ];
    if is_static {
        lines
            .push("static: this program contains its C library, and comes with neither".to_owned());
    }
    lines.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIO: &str = "/opt/bin/dio";

    fn places(named: Option<&str>, is_privileged: bool) -> Places {
        let named = named.map(|path| (env::PRELOAD, PathBuf::from(path)));
        Places::new(named, Some(Path::new(DIO)), Some("/no/lib/diopter"), is_privileged)
    }

    #[test]
    fn the_error_has_every_place_in_order() {
        let expected = "find libdiopter-preload.so: not found (looked in \
                        /opt/lib/diopter/libdiopter-preload.so, /opt/bin/libdiopter_preload.so, \
                        /no/lib/diopter/libdiopter-preload.so); name the library with \
                        DIOPTER_PRELOAD";
        assert_eq!(places(None, false).find(), Err(expected.to_owned()));
        assert_eq!(places(Some(""), false), places(None, false), "an empty value is none");
        assert_eq!(places(Some("a.so"), false).find(), Ok(PathBuf::from("a.so")));
        let same = Places::new(None, Some(Path::new("/bin/dio")), Some("/lib/diopter"), false);
        assert_eq!(same.usual.len(), 3, "not next to each other: {same:?}");
    }

    #[test]
    fn a_privileged_dio_takes_no_library_from_its_caller() {
        let why = places(Some("/tmp/mine.so"), true).find().unwrap_err();
        assert!(why.starts_with("load /tmp/mine.so: dio has more privileges"), "{why}");
        let why = places(None, true).find().unwrap_err();
        assert!(why.contains("(looked in /no/lib/diopter/libdiopter-preload.so);"), "{why}");
        let none = Places::new(None, Some(Path::new(DIO)), Some("relative"), true);
        assert!(none.find().unwrap_err().contains("(no directory is compiled in)"));
    }

    #[test]
    fn the_version_has_what_is_there_and_what_is_not() {
        let text = version_text(&places(None, false), &rados_text(true), true);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], env!("CARGO_PKG_VERSION"));
        assert_eq!(lines[1], "backends: uring, aio, threads, sim");
        assert!(lines[2].starts_with("preload: not found (looked in /opt/lib/diopter/"), "{text}");
        assert_eq!(lines[3], "rados: not in this build");
        assert_eq!(lines[4], "static: this program contains its C library, and comes with neither");
        let found = version_text(&places(Some("/bin/sh"), false), "librados 3.0.0", false);
        assert!(found.ends_with("preload: /bin/sh\nrados: librados 3.0.0"), "{found}");
        let absent = version_text(&places(Some("/no/lib.so"), false), "", false);
        assert!(absent.contains("preload: not found (looked in /no/lib.so)\n"), "{absent}");
        let refused = version_text(&places(Some("/no/lib.so"), true), "", false);
        assert!(refused.contains("preload: not taken from the caller\n"), "{refused}");
    }
}
