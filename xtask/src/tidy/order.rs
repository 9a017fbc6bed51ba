//! The order of modules: the root of a crate declares them from the first to the last, and each one
//! imports only from modules above it. So the files can be read in that order, and nothing points
//! back. Below a module, its submodules do not import each other in a circle.

use super::{Finding, Source, mask};
use std::collections::{BTreeMap, BTreeSet};

/// A crate of the workspace, as its root declares it.
struct Crate<'a> {
    /// The path of its sources, with a slash.
    src: &'a str,
    root: &'a Source,
    order: Vec<&'a str>,
}

impl<'a> Crate<'a> {
    /// `None` if `root` is not the root of a crate.
    fn of(root: &'a Source) -> Option<Crate<'a>> {
        let src = root.path.strip_suffix("lib.rs").or(root.path.strip_suffix("main.rs"))?;
        let dir = src.strip_suffix("src/")?;
        let below = || dir.strip_prefix("crates/").or(dir.strip_prefix("bindings/"));
        let is_crate = dir == "xtask/" || below()?.matches('/').count() == 1;
        is_crate.then_some(Crate { src, root, order: declared(root.code()) })
    }

    /// The path of a file's module; `None` if the file is of another crate, or of tests.
    fn module<'s>(&self, source: &'s Source) -> Option<Vec<&'s str>> {
        if source.is_test() || source.path == self.root.path {
            return None;
        }
        let file = source.path.strip_prefix(self.src)?.strip_suffix(".rs")?;
        let file = file.strip_suffix("/mod").unwrap_or(file);
        Some(file.split('/').collect())
    }

    fn position(&self, module: &str) -> Option<usize> {
        self.order.iter().position(|name| *name == module)
    }
}

/// The rule, over all files.
pub fn check(sources: &[Source], findings: &mut Vec<Finding>) {
    for one in sources.iter().filter_map(Crate::of) {
        let modules = sources.iter().filter_map(|source| Some((source, one.module(source)?)));
        let modules: Vec<(&Source, Vec<&str>)> = modules.collect();
        for (source, module) in &modules {
            check_order(&one, source, module, findings);
        }
        check_circles(&modules, findings);
    }
}

fn check_order(one: &Crate, source: &Source, module: &[&str], findings: &mut Vec<Finding>) {
    let (name, root) = (module[0], &one.root.path);
    let Some(own) = one.position(name) else {
        let what = format!("module `{name}` is not declared in {root}, or not in its order");
        findings.push(source.finding(1, what));
        return;
    };
    let mut reported = BTreeSet::new();
    for (at, path) in imports(source, module) {
        let line = source.line_of(at);
        let Some(other) = path.into_iter().next() else { continue };
        let what = match one.position(&other) {
            Some(position) if position <= own => continue,
            Some(_) => format!("`{name}` imports `{other}`, which {root} declares below it"),
            None => format!("`crate::{other}` is not a module; import it from its module"),
        };
        if reported.insert((line, other)) {
            findings.push(source.finding(line, what));
        }
    }
}

/// The imports of the submodules of one module from each other, with a place for each.
type Edges<'a> = BTreeMap<&'a str, BTreeMap<String, (&'a Source, usize)>>;

fn check_circles(modules: &[(&Source, Vec<&str>)], findings: &mut Vec<Finding>) {
    let mut parents: BTreeMap<&[&str], Edges> = BTreeMap::new();
    for (source, module) in modules {
        for (at, path) in imports(source, module) {
            let shared = module.iter().zip(&path).take_while(|(own, other)| own == other).count();
            // Without a shared parent, the order of the crate holds.
            let (1.., Some(own), Some(other)) = (shared, module.get(shared), path.get(shared))
            else {
                continue;
            };
            // A name that is not a module is an item of the parent.
            let mut siblings = modules.iter().filter(|(_, it)| it.starts_with(&module[..shared]));
            if siblings.any(|(_, it)| it.get(shared).is_some_and(|known| known == other)) {
                let edges = parents.entry(&module[..shared]).or_default();
                edges.entry(own).or_default().entry(other.clone()).or_insert((source, at));
            }
        }
    }
    for edges in parents.values() {
        for (from, others) in edges {
            for (to, (source, at)) in others.iter().filter(|(to, _)| reaches(edges, to, from)) {
                let what = format!(
                    "`{from}` imports `{to}`, which imports it in turn; move what both need into \
                     a module above them"
                );
                findings.push(source.finding_at(*at, what));
            }
        }
    }
}

fn reaches(edges: &Edges, from: &str, to: &str) -> bool {
    let mut seen = BTreeSet::new();
    let mut open = vec![from];
    while let Some(module) = open.pop() {
        if module == to {
            return true;
        }
        if seen.insert(module) {
            open.extend(edges.get(module).into_iter().flat_map(BTreeMap::keys).map(String::as_str));
        }
    }
    false
}

/// The modules that a root declares, in order.
fn declared(code: &str) -> Vec<&str> {
    let names = mask::words(code, "mod").filter_map(|at| {
        let rest = code[at + "mod".len()..].trim_start();
        let (name, after) = rest.split_at(name_length(rest));
        after.trim_start().starts_with(';').then_some(name)
    });
    names.collect()
}

fn name_length(text: &str) -> usize {
    text.bytes().position(|byte| !mask::is_word_byte(byte)).unwrap_or(text.len())
}

/// The paths within the crate that a file imports or writes out, from the crate's root.
fn imports(source: &Source, module: &[&str]) -> Vec<(usize, Vec<String>)> {
    let code = source.code_without_tests();
    let uses = source.uses().iter().map(|(at, path)| (*at, path.as_str()));
    let written = ["crate", "super"].into_iter().flat_map(|first| {
        mask::words(code, first).map(|at| {
            let end = |byte: u8| !mask::is_word_byte(byte) && byte != b':';
            let path = &code[at..];
            (at, &path[..path.bytes().position(end).unwrap_or(path.len())])
        })
    });
    // In a module that is written inline, `super` is the file's own module.
    let has_inline = mask::words(code, "mod").any(|at| {
        let rest = code[at + "mod".len()..].trim_start();
        rest[name_length(rest)..].trim_start().starts_with('{')
    });
    let resolved = |(at, path): (usize, &str)| {
        let mut segments: Vec<&str> = path.split("::").filter(|part| !part.is_empty()).collect();
        let supers = segments.iter().take_while(|segment| **segment == "super").count();
        let base = match *segments.first()? {
            "crate" => &[],
            "super" if !has_inline => module.get(..module.len().checked_sub(supers)?)?,
            _ => return None,
        };
        let rest = segments.split_off(supers.max(1));
        // The part of a `use` before its braces names nothing.
        let path: Vec<String> = base.iter().chain(&rest).map(|part| (*part).to_owned()).collect();
        (!rest.is_empty()).then_some((at, path))
    };
    let preceded = |at: usize| code[..at].ends_with("::");
    let mut all: Vec<(usize, Vec<String>)> =
        uses.chain(written.filter(|(at, _)| !preceded(*at))).filter_map(resolved).collect();
    all.sort();
    all
}

#[cfg(test)]
mod tests {
    use super::super::tests::sources_of;

    #[track_caller]
    fn check(files: &[(&str, &str)], expected: &[&str]) {
        let mut findings = Vec::new();
        super::check(&sources_of(files), &mut findings);
        let found: Vec<String> = findings.iter().map(ToString::to_string).collect();
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{found}");
        }
    }

    const ROOT: (&str, &str) =
        ("crates/some/src/lib.rs", "mod units; pub mod bio;\n#[cfg(test)] mod fake;\nmod engine;");

    #[test]
    fn a_module_imports_from_above_and_from_itself() {
        let bio = "crates/some/src/bio/builder.rs";
        check(&[ROOT, (bio, "use crate::{units::Bytes, bio::plan::Plan};")], &[]);
        check(&[ROOT, (bio, "use crate::engine::Engine;")], &["`bio` imports `engine`"]);
        check(&[ROOT, (bio, "use super::super::engine::Engine;")], &["`bio` imports `engine`"]);
        let both = "use crate::{bio::A, engine::{B, C}};";
        check(&[ROOT, ("crates/some/src/units.rs", both)], &["`bio`", "`engine`"]);
        let written = "fn a() { crate::engine::run(); }";
        check(&[ROOT, ("crates/some/src/units.rs", written)], &["`engine`"]);
        check(&[ROOT, ("crates/some/src/units.rs", "use super::bio::Bio;")], &["`bio`"]);
    }

    #[test]
    fn what_the_crate_root_re_exports_is_imported_from_its_module() {
        let use_of_root = "use crate::Engine;";
        check(&[ROOT, ("crates/some/src/engine.rs", use_of_root)], &["`crate::Engine`"]);
    }

    #[test]
    fn the_crate_root_and_tests_are_outside_the_order() {
        let tests = "#[cfg(test)] mod tests { use crate::engine::Engine; }";
        check(&[ROOT, ("crates/some/src/units.rs", tests)], &[]);
        check(&[ROOT, ("crates/some/src/units/tests.rs", "use crate::engine::Engine;")], &[]);
        check(&[ROOT, ("crates/some/tests/model.rs", "use crate::engine::Engine;")], &[]);
        check(&[("crates/some/src/lib.rs", "mod units; use crate::units::Bytes;")], &[]);
    }

    #[test]
    fn a_module_that_the_root_does_not_declare_is_a_finding() {
        check(&[ROOT, ("crates/some/src/utils.rs", "")], &["module `utils`"]);
        check(&[ROOT, ("crates/some/src/fake.rs", "")], &[]);
    }

    #[test]
    fn submodules_do_not_import_each_other_in_a_circle() {
        let [one, two, three] = [
            "crates/some/src/bio/a.rs",
            "crates/some/src/bio/b/mod.rs",
            "crates/some/src/bio/c.rs",
        ];
        let in_turn = [ROOT, (one, "use super::b::B;"), (two, "use super::c::C;")];
        check(&[&in_turn[..], &[(three, "use crate::units;")]].concat(), &[]);
        let back = (three, "use crate::bio::a::A;");
        check(&[&in_turn[..], &[back]].concat(), &["`a` imports `b`", "`b` imports", "`c`"]);
        let parent = [ROOT, (one, "use super::{A, b::B};"), (two, "use super::A;")];
        check(&parent, &[]);
    }
}
