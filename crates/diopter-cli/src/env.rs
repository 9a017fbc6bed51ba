//! The environment variables that `dio` reads. The only place that spells out names that begin with
//! `DIOPTER_`.

use std::ffi::OsString;

/// The backend; `--backend` overrides it.
pub const BACKEND: &str = "DIOPTER_BACKEND";
/// The log filter; `--log` overrides it.
pub const LOG: &str = "DIOPTER_LOG";

/// The library of `dio run`; `--preload` overrides it.
pub const PRELOAD: &str = "DIOPTER_PRELOAD";

/// The route of copies; the library reads it.
pub const ROUTE: &str = "DIOPTER_ROUTE";

/// The directory of the library of `dio run`, set while `dio` is built.
pub const LIBDIR: Option<&str> = option_env!("DIOPTER_LIBDIR");

/// Names for users of `dio`.
const NAMES: [&str; 4] = [BACKEND, LOG, PRELOAD, ROUTE];

/// `dio run --all`, to its library.
pub const RUN_ALL: &str = "DIOPTER_RUN_ALL";
/// `dio run --min-size`, to its library.
pub const RUN_MIN_SIZE: &str = "DIOPTER_RUN_MIN_SIZE";
/// The file of the counters of `dio run --report`, to its library.
pub const RUN_REPORT: &str = "DIOPTER_RUN_REPORT";

/// Names that `dio run` sets for its program, which may be `dio`.
const RUN_NAMES: [&str; 3] = [RUN_ALL, RUN_MIN_SIZE, RUN_REPORT];

/// Names that only builds and tests of this project read; valid, but without effect here.
const OTHER_NAMES: [&str; 9] = [
    "DIOPTER_CHECK",
    "DIOPTER_HAVE",
    "DIOPTER_LIBDIR",
    "DIOPTER_ORACLE_COUNT",
    "DIOPTER_OWN_PROCESS",
    "DIOPTER_REQUIRE",
    "DIOPTER_SEED",
    "DIOPTER_SEEDS",
    "DIOPTER_SOAK",
];

/// The environment, read once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment {
    pub backend: Option<String>,
    pub log: Option<String>,
    /// True if `NO_COLOR` is set and not empty (no-color.org).
    pub has_no_color: bool,
    /// True if `TERM` is `dumb`: a terminal without colours.
    pub is_dumb: bool,
    /// Unknown names with the prefix, sorted.
    pub unknown: Vec<String>,
}

impl Environment {
    /// Reads the environment of this process.
    pub fn read() -> Environment {
        Environment::of(std::env::vars_os())
    }

    fn of(variables: impl Iterator<Item = (OsString, OsString)>) -> Environment {
        let mut environment = Environment::default();
        for (name, value) in variables {
            let (name, value) = (name.to_string_lossy(), value.to_string_lossy().into_owned());
            // An empty value counts as none, as in a shell's `NAME= command`.
            let is_set = !value.is_empty();
            match &*name {
                BACKEND => environment.backend = is_set.then_some(value),
                LOG => environment.log = is_set.then_some(value),
                "NO_COLOR" => environment.has_no_color = is_set,
                "TERM" => environment.is_dumb = value == "dumb",
                PRELOAD | ROUTE => {}
                known if OTHER_NAMES.contains(&known) || RUN_NAMES.contains(&known) => {}
                unknown if unknown.starts_with("DIOPTER_") => {
                    environment.unknown.push(name.into_owned())
                }
                _ => {}
            }
        }
        environment.unknown.sort();
        environment
    }

    /// Returns a warning for each unknown name: a misspelled one would be ignored silently.
    pub fn warnings(&self) -> Vec<String> {
        let [others @ .., last] = NAMES;
        let known = format!("{} and {last}", others.join(", "));
        let warning = |name: &String| {
            format!("{name} in the environment is unknown and has no effect; dio reads {known}")
        };
        self.unknown.iter().map(warning).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Environment {
        Environment::of(pairs.iter().map(|(name, value)| (name.into(), value.into())))
    }

    #[test]
    fn known_names_are_read_and_an_empty_value_is_none() {
        let found = of(&[(BACKEND, "threads"), (LOG, ""), ("NO_COLOR", "1"), ("TERM", "dumb")]);
        assert_eq!((found.backend.as_deref(), found.log), (Some("threads"), None));
        assert!(found.has_no_color && found.is_dumb);
        assert!(!of(&[("NO_COLOR", "")]).has_no_color);
    }

    #[test]
    fn an_unknown_name_is_warned_about_and_a_test_name_is_not() {
        let found =
            of(&[("DIOPTER_SEED", "1"), ("DIOPTER_Z", "1"), ("DIOPTER_A", ""), ("HOME", "/")]);
        assert_eq!(found.unknown, ["DIOPTER_A", "DIOPTER_Z"]);
        let expected = "DIOPTER_A in the environment is unknown and has no effect; dio reads \
                        DIOPTER_BACKEND, DIOPTER_LOG, DIOPTER_PRELOAD and DIOPTER_ROUTE";
        assert_eq!(found.warnings().first().map(String::as_str), Some(expected));
    }

    #[test]
    fn without_the_prefix_there_is_no_warning() {
        assert!(of(&[("DIOPTER", "1"), ("MY_DIOPTER_X", "1")]).warnings().is_empty());
    }
}
