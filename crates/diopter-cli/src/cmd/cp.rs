//! `dio cp`: the command around the copy engine of `diopter-copy`. It listens for signals, shows
//! progress, and prints failures and the document.

use std::io::Write;
use std::os::fd::AsFd;
use std::path::Path;
use std::time::{Duration, Instant};

use diopter_copy::{
    Ended, Failure, Interruptible, Left, Options, ReadFrom, Report, WayReport, WhenThere,
    image_path,
};
use diopter_text::untrusted;
use indicatif::BinaryBytes;

use super::progress::Progress;
use crate::args::{CpOptions, Pipe};
use crate::log::{self, Filter, Level};
use crate::signals::Signals;
use crate::terminal;

/// Copies and returns the exit status: 0 done, 1 verify found a difference, 2 something failed,
/// 128+n ended by signal n.
pub fn run(options: &CpOptions, filter: &Filter, output: &mut dyn Write) -> u8 {
    let started = Instant::now();
    diopter_copy::raise_open_files_limit();
    let signals = match Signals::listen() {
        Ok(signals) => signals,
        Err(errno) => {
            let on = Path::new("this process");
            let failure = Failure::of_errno("listening for signals", on, errno);
            log::line(&format!("dio cp: {failure}"));
            return conclude(options, &Report::of_failure(&failure, started.elapsed()), output);
        }
    };
    let mut progress = Progress::new("cp", options.progress);
    if options.pipe == Some(Pipe::Input) {
        progress = progress.of_pipe(options.copy.expect_size);
    }
    if options.verbose || options.copy.dry_run && !options.json {
        progress = progress.with_names();
    }
    let (copy, stop) = (&options.copy, signals.flag());
    let outcome = match options.pipe {
        None => Ok(diopter_copy::copy(copy, stop, &mut progress)),
        Some(Pipe::Input) => Interruptible::of(std::io::stdin().as_fd(), stop)
            .map(|mut input| diopter_copy::copy_input(copy, &mut input, stop, &mut progress))
            .map_err(|error| Failure::of_io("opening", Path::new("standard input"), &error)),
        Some(Pipe::Output) => Interruptible::of(std::io::stdout().as_fd(), stop)
            .map(|mut output| diopter_copy::copy_output(copy, &mut output, stop, &mut progress))
            .map_err(|error| Failure::of_io("opening", Path::new("standard output"), &error)),
    };
    let outcome = match outcome {
        Ok(outcome) => outcome,
        Err(failure) => {
            log::line(&format!("dio cp: {failure}"));
            return conclude(options, &Report::of_failure(&failure, started.elapsed()), output);
        }
    };
    progress.finish();
    if let Some(ended) = &outcome.ended {
        log::line(&format!("dio cp: {}", ending(ended, outcome.report.files, options)));
    }
    log_how(filter, &outcome.report);
    conclude(options, &outcome.report, output)
}

/// Logs the backend, the bytes by their route with the reasons, and the number of requests.
fn log_how(filter: &Filter, report: &Report) {
    let name = &report.backend.name;
    filter.log("cp", Level::Info, || format!("backend {name}: {}", report.backend.why));
    let route = &report.route;
    for (pass, way) in [("read", &route.read), ("write", &route.write), ("verify", &route.verify)] {
        let bytes = [("direct", way.direct), ("bounced", way.bounced), ("buffered", way.buffered)];
        let moved = bytes.iter().filter(|(_, bytes)| *bytes > 0);
        let moved: Vec<_> = moved.map(|(how, bytes)| format!("{how} {bytes} B")).collect();
        if !moved.is_empty() {
            let why: String = way.why.iter().map(|why| format!("; {why}")).collect();
            filter.log("cp", Level::Info, || format!("{pass}: {}{why}", moved.join(", ")));
        }
    }
    if let Some(depth) = &report.depth {
        let (requests, bytes, why) = (depth.requests, depth.request_bytes, &depth.why);
        filter.log("cp", Level::Debug, || format!("{requests} requests of {bytes} B: {why}"));
    }
}

/// The JSON Schema of what `--json` prints.
pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(Report)
}

/// Returns the last line of a run that a signal ended: what it left, and what to do.
fn ending(ended: &Ended, files: u64, options: &CpOptions) -> String {
    let (name, copy) = (ended.signal.name(), &options.copy);
    if options.pipe == Some(Pipe::Output) {
        return format!("ended by {name}: standard output has some of the bytes");
    }
    let again = again(ended, files, copy);
    let is_resumable = options.pipe.is_none() && !copy.has_part();
    if let (Left::Unchanged, 1..) = (&ended.left, files) {
        let files = if files == 1 { "1 file".to_owned() } else { format!("{files} files") };
        return format!(
            "ended by {name} after {files}, and no other is changed; {again} to copy the rest"
        );
    }
    let remedy = match &ended.left {
        Left::PartlyWritten(target) => {
            let target = untrusted::name(target);
            return format!("ended by {name}: {target} is partly written; run the command again");
        }
        Left::Objects(target) => {
            let target = untrusted::name(target);
            return format!("ended by {name}: objects of {target} remain, with the mark");
        }
        Left::Unchanged if copy.resume => format!("{again} to continue"),
        Left::Unchanged if is_resumable => {
            format!("{again}; --resume would have kept what was copied")
        }
        _ => again.to_owned(),
    };
    let state = match ended.made_directory {
        true => "no file is complete",
        false => "the destination is unchanged",
    };
    format!("ended by {name}: {state}; {remedy}")
}

/// Returns what to do for the rest: the options that keep the next run from copying again what this
/// one has, and into a directory that this one made.
fn again(ended: &Ended, files: u64, options: &Options) -> &'static str {
    let mut names = options.sources.iter().chain([&options.target]);
    let has_image = names.any(|name| image_path::split(name).is_some());
    let updates = files > 0 && options.existing == WhenThere::Replace && !has_image;
    let is_named = ended.made_directory && !options.no_target_directory;
    match (updates, is_named) {
        (false, false) => "run the command again",
        (true, false) => "run the command again with -u",
        (false, true) => "run the command again with -T",
        (true, true) => "run the command again with -uT",
    }
}

/// Returns one line: what was copied, how fast, and if it was verified.
fn summary(options: &CpOptions, report: &Report) -> String {
    let counted = |count: u64, one: &str, many: &str| match count {
        0 => None,
        1 => Some(format!("1 {one}")),
        _ => Some(format!("{count} {many}")),
    };
    let failed = u64::try_from(report.failures.len()).unwrap_or(u64::MAX);
    let parts = [
        Some(format!("{} {}", report.files, if report.files == 1 { "file" } else { "files" })),
        counted(report.dirs, "directory", "directories"),
        counted(report.others, "link or node", "links and nodes"),
        counted(report.links, "hard link", "hard links"),
        counted(report.skipped, "skipped", "skipped"),
        counted(failed, "failed", "failed"),
    ];
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    if report.dry_run {
        let (parts, bytes) = (parts.join(", "), BinaryBytes(report.bytes));
        return format!("would copy {parts}; {bytes}");
    }
    let took = Duration::from_nanos(report.elapsed_ns.max(1));
    let moved = moved(report);
    let rate = u128::from(moved) * 1_000_000_000 / took.as_nanos();
    let rate = BinaryBytes(u64::try_from(rate).unwrap_or(u64::MAX));
    let mut bytes = BinaryBytes(report.bytes).to_string();
    if moved < report.bytes {
        bytes.push_str(&format!(", {} of it moved,", BinaryBytes(moved)));
    }
    let is_verified = options.copy.verify && report.exit_status == 0 && report.files > 0;
    let verified = match report.read_from {
        Some(place) if is_verified => {
            format!("; verified (BLAKE3, {})", read_back(place, report.route.verify.buffered))
        }
        _ => String::new(),
    };
    let separate = match report.separate_links {
        0 => String::new(),
        count => format!(
            "; names with hard links, each a separate file now: {count} (-a keeps links among \
             what it copies)"
        ),
    };
    let (parts, took) = (parts.join(", "), took.as_secs_f64());
    format!("{parts}; {bytes} in {took:.1} s, {rate}/s{verified}{separate}")
}

/// Returns where targets were read back from, in words; `buffered` bytes came through the page
/// cache.
fn read_back(place: ReadFrom, buffered: u64) -> String {
    match (place, buffered) {
        (ReadFrom::Cache, 0) => "read back, but the page cache could not be seen".to_owned(),
        (ReadFrom::Cache, _) => "partly through the page cache".to_owned(),
        (place, 0) => format!("read back from {}", place.words()),
        (place, _) => format!("read back from {}, through the page cache", place.words()),
    }
}

/// Returns the bytes of the files that were read or written: not holes, not what an earlier run had
/// copied, and not blocks that are shared with the source.
fn moved(report: &Report) -> u64 {
    let all = |way: &WayReport| way.direct + way.bounced + way.buffered;
    // The end of a file is read with the whole block around it.
    all(&report.route.read).max(all(&report.route.write)).min(report.bytes)
}

/// Prints the document or the summary, if it is wanted, and returns the exit status.
fn conclude(options: &CpOptions, report: &Report, output: &mut dyn Write) -> u8 {
    let text = match (options.json, options.verbose) {
        (false, false) => return report.exit_status,
        (false, true) => {
            let lines = terminal::fitted(&summary(options, report), terminal::columns());
            lines.trim_end().to_owned()
        }
        (true, _) => {
            let text = serde_json::to_string_pretty(report).expect("strings and numbers are JSON");
            untrusted::json(&text).into_owned()
        }
    };
    match writeln!(output, "{text}").and_then(|()| output.flush()) {
        Ok(()) => report.exit_status,
        Err(error) => {
            let failure = Failure::of_io("writing", Path::new("standard output"), &error);
            log::line(&format!("dio cp: {failure}"));
            report.exit_status.max(2)
        }
    }
}
