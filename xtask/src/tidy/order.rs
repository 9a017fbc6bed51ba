//! The order of the engine's modules: one imports only from modules above it, so the files can be
//! read from the first to the last and nothing points back.

use super::{Finding, Source, mask};

const ENGINE: &str = "crates/diopter/src/";

/// From the first to the last. A submodule counts as its parent; `lib.rs` is outside.
const ORDER: [&str; 23] = [
    "units",
    "limits",
    "error",
    "sync",
    "clock",
    "prng",
    "handoff",
    "workers",
    "gate",
    "policy",
    "outcome",
    "request",
    "completion",
    "extent",
    "stripe",
    "map",
    "bio",
    "backend",
    "engine",
    "layout",
    "plan",
    "probe",
    "file",
];

/// The rule, over one Rust file.
pub fn check(source: &Source, findings: &mut Vec<Finding>) {
    let Some(file) = source.path.strip_prefix(ENGINE) else { return };
    if file == "lib.rs" || source.is_test() {
        return;
    }
    let module = file.split('/').next().unwrap_or(file).trim_end_matches(".rs");
    let Some(own) = position(module) else {
        let what =
            format!("module `{module}` has no place in the order; see xtask/src/tidy/order.rs");
        findings.push(source.finding(1, what));
        return;
    };
    let mut told = Vec::new();
    for (at, name) in imports(source) {
        let line = source.line_of(at);
        if told.contains(&(line, name.clone())) {
            continue;
        }
        let what = match position(&name) {
            Some(other) if other <= own => continue,
            Some(_) => format!("`{module}` imports `{name}`, which is below it; turn it round"),
            None => {
                format!("`crate::{name}` is not a module; import it from the module it lives in")
            }
        };
        findings.push(source.finding(line, what));
        told.push((line, name));
    }
}

fn position(module: &str) -> Option<usize> {
    ORDER.iter().position(|name| *name == module)
}

/// The first name after `crate::` of each import, and of each path written out in the code.
fn imports(source: &Source) -> Vec<(usize, String)> {
    let code = source.code_without_tests();
    let first = |path: &str| {
        let end = path.bytes().position(|byte| !mask::is_word_byte(byte)).unwrap_or(path.len());
        path[..end].to_owned()
    };
    let uses = source.uses().iter();
    let used = uses.filter_map(|(at, path)| Some((*at, first(path.strip_prefix("crate::")?))));
    let written =
        code.match_indices("crate::").map(|(at, word)| (at, first(&code[at + word.len()..])));
    let mut all: Vec<(usize, String)> =
        used.chain(written).filter(|(_, name)| !name.is_empty()).collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_of;

    fn check(path: &str, text: &str, expected: usize) {
        let found = findings_of(super::check, path, text);
        assert_eq!(found.len(), expected, "{path}: {text:?}: {found:?}");
    }

    #[test]
    fn a_module_imports_from_above_and_from_itself() {
        check("crates/diopter/src/bio/builder.rs", "use crate::{units::Bytes, map};", 0);
        check("crates/diopter/src/bio/builder.rs", "use crate::bio::plan::Plan;", 0);
        check("crates/diopter/src/bio/builder.rs", "use crate::engine::Engine;", 1);
        check("crates/diopter/src/units.rs", "use crate::{error::A, limits::{B, C}};", 2);
        check("crates/diopter/src/units.rs", "fn a() { crate::file::open(); }", 1);
    }

    #[test]
    fn what_the_crate_root_re_exports_is_imported_from_its_module() {
        check("crates/diopter/src/file.rs", "use crate::Engine;", 1);
    }

    #[test]
    fn the_crate_root_and_tests_stand_outside_the_order() {
        check("crates/diopter/src/lib.rs", "use crate::file::File;", 0);
        check(
            "crates/diopter/src/units.rs",
            "#[cfg(test)] mod tests { use crate::file::File; }",
            0,
        );
        check("crates/diopter/tests/model.rs", "use crate::file::File;", 0);
    }

    #[test]
    fn a_module_without_a_place_is_a_finding() {
        check("crates/diopter/src/utils.rs", "", 1);
    }
}
