//! The rules about who does I/O: which files start requests of an engine, and what tools take from
//! `diopter_os`. They read masked source, so documentation is never a finding.

use super::mask::words;
use super::{Finding, Source};

/// The files that start requests, with the reason. Whatever else moves bytes uses a `File` or a
/// stream, so that a loop that keeps requests in flight exists once.
const STARTERS: [(&str, &str); 13] = [
    ("crates/diopter-core/src/engine", "the engine"),
    ("crates/diopter-core/src/stream/", "the streams"),
    ("crates/diopter/src/file/mod.rs", "a request of the caller, who waits for it"),
    ("crates/diopter/src/file/reader.rs", "the source of a stream"),
    ("crates/diopter/src/file/ranges/run.rs", "ranges in a window of the streams"),
    ("crates/diopter/src/file/asynchronous/", "requests of futures"),
    ("crates/diopter-copy/src/job.rs", "the files of a pump"),
    ("crates/diopter-copy/src/check/compare.rs", "two files in a window of the streams"),
    ("crates/diopter-bench/src/bench/", "the load that is measured"),
    ("bindings/c/src/queue.rs", "requests of the caller's queue"),
    ("bindings/fio/src/job.rs", "requests of fio"),
    ("bindings/python/src/event_loop.rs", "requests of futures of Python"),
    ("benches/peers/src/", "the load that is measured"),
];

/// The tools and bindings that move bytes through `diopter` alone.
const TOOLS: [&str; 6] = [
    "crates/diopter-copy/src/",
    "crates/diopter-bench/src/",
    "crates/diopter-cli/src/",
    "bindings/c/src/",
    "bindings/python/src/",
    "bindings/object-store/src/",
];

/// Modules and names of `diopter_os` that tools use for other things than I/O, with their purpose.
const OS_IN_TOOLS: [(&str, &str); 26] = [
    ("BioId", "a backend that counts bios"),
    ("BioResult", "a backend that counts bios"),
    ("Errno", "an error number, of diopter's results"),
    ("EventFd", "a descriptor for poll(2)"),
    ("Slab", "a backend that counts bios"),
    ("access", "may this user do this?"),
    ("buf", "the pages of buffers"),
    ("child", "a child that ends with its parent"),
    ("dir", "names in directories"),
    ("fiemap", "where the blocks of a file lie"),
    ("file", "the kind of a file, its flags, a second descriptor of it"),
    ("file_system", "the kind of a file system"),
    ("fork", "the generation of a process"),
    ("handle", "an inode that is still the same"),
    ("ids", "user and group"),
    ("kernel", "the version of the kernel"),
    ("limit", "limits of the process"),
    ("loop_device", "the file of a loop device"),
    ("privilege", "capabilities of the process"),
    ("queue", "what a block device says of its queue"),
    ("random", "names that no other process guesses"),
    ("residency", "pages in the page cache"),
    ("space", "allocation, length and holes"),
    ("standard", "the standard descriptors"),
    ("trust", "whose a file or directory is"),
    ("xattr", "extended attributes"),
];

/// The rules of this file, over one Rust file.
pub fn check(source: &Source, findings: &mut Vec<Finding>) {
    if !source.path.contains("/src/") || source.path.contains("/tests") {
        return;
    }
    check_starts(source, findings);
    check_os(source, findings);
}

fn check_starts(source: &Source, findings: &mut Vec<Finding>) {
    if STARTERS.iter().any(|(path, _)| source.path.starts_with(path)) {
        return;
    }
    let code = source.code();
    let named = ["start_on", "EngineRequest::start"].into_iter().flat_map(|word| words(code, word));
    let of_engine = |(at, _): &(usize, &str)| {
        let before = code[..*at].trim_end();
        before.ends_with("engine") || before.ends_with("engine()")
    };
    let calls = [".start(", ".start_with("].into_iter().flat_map(|call| code.match_indices(call));
    for at in named.chain(calls.filter(of_engine).map(|(at, _)| at)) {
        let what = "a request is started here; use a `File` or a stream, or add the file to the \
                    list in tidy/doors.rs";
        findings.push(source.finding_at(at, what.to_owned()));
    }
}

fn check_os(source: &Source, findings: &mut Vec<Finding>) {
    if !TOOLS.iter().any(|dir| source.path.starts_with(dir)) {
        return;
    }
    let inline = words(source.code(), "diopter_os").filter_map(|at| {
        let rest = source.code()[at..].strip_prefix("diopter_os::")?;
        let end = rest.find(|letter: char| !(letter.is_alphanumeric() || letter == '_'))?;
        // A group of names is among the uses.
        (end > 0).then(|| (at, rest[..end].to_owned()))
    });
    let uses = source.uses().iter().filter_map(|(at, path)| {
        let rest = path.strip_prefix("diopter_os::")?;
        Some((*at, rest.split("::").next().unwrap_or(rest).to_owned()))
    });
    let mut reported = Vec::new();
    for (at, name) in uses.chain(inline) {
        let line = source.line_of(at);
        let is_listed = OS_IN_TOOLS.iter().any(|(listed, _)| *listed == name);
        if !is_listed && !reported.contains(&line) {
            reported.push(line);
            let what = format!(
                "`diopter_os::{name}` in a tool; do the I/O with `diopter`, or add it to the list \
                 in tidy/doors.rs"
            );
            findings.push(source.finding_at(at, what));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::findings_of;

    fn check(path: &str, text: &str, expected: usize) {
        let found = findings_of(super::check, path, text);
        assert_eq!(found.len(), expected, "{path}: {text:?}: {found:?}");
    }

    #[test]
    fn requests_are_started_in_listed_files() {
        let start = "fn a() { self.engine.start(&file, request); }";
        check("crates/diopter-copy/src/tree.rs", start, 1);
        check("crates/diopter-copy/src/job.rs", start, 0);
        check("crates/diopter-copy/tests/copy.rs", start, 0);
        let lines = "fn a() { engine\n    .start_with(&file, request, done); }";
        check("crates/diopter-cli/src/main.rs", lines, 1);
        check("crates/diopter-cli/src/main.rs", "fn a() { EngineRequest::start(e, f, r); }", 1);
        check("crates/diopter/src/file/writer.rs", "fn a() { start_on(core, t, r); }", 1);
        check("crates/diopter-cli/src/main.rs", "fn a() { range.start(); trace.start(1); }", 0);
    }

    #[test]
    fn tools_take_listed_names_of_the_lowest_crate() {
        let file = "crates/diopter-copy/src/source.rs";
        check(file, "use diopter_os::{residency::residency, rw::read_once};", 1);
        check(file, "use diopter_os::residency::residency;", 0);
        check(file, "fn a() { diopter_os::rw::read_once(fd); }", 1);
        check("crates/diopter-trace/src/lib.rs", "use diopter_os::rw::read_once;", 0);
    }
}
