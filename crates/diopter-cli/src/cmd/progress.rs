//! The progress of a run: on a terminal one bar for all its bytes, with the name of the file that
//! is being copied or read; elsewhere, if that is wanted, a line each second. Both are on standard
//! error. Names that are asked for are on standard output.

use std::fmt;
use std::io::{IsTerminal, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use diopter_copy::{Notice, Observer, Pass};
use diopter_text::untrusted;
use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::args::BytesProgress;
use crate::log;
use crate::terminal::message_columns;

const TEMPLATES: Templates = Templates {
    wide: "{wide_msg} {part} [{bar:10}] {percent}%, {rate}, {eta} to go",
    narrow: "{wide_msg} {percent}% {rate} {eta}",
    least: "{wide_msg} {percent}%",
};

/// The bar of a pipe, whose number of bytes is not known.
const WITHOUT_TOTAL: Templates = Templates {
    wide: "{wide_msg} {part}, {rate}",
    narrow: "{wide_msg} {rate}",
    least: "{wide_msg}",
};

/// Columns of a terminal from which on the wide template is used.
const COLUMNS_WIDE: usize = 72;
/// Columns of a terminal from which on the narrow template is used.
const COLUMNS_NARROW: usize = 36;

/// Often enough to look alive between two slow requests.
const TICK: Duration = Duration::from_millis(250);

/// Time between two lines.
const LINE_EVERY: Duration = Duration::from_secs(1);

/// The forms of a progress bar. The message is cut at the width of the terminal, which no line
/// exceeds. No colour: it would have to be asked for.
pub struct Templates {
    pub wide: &'static str,
    pub narrow: &'static str,
    pub least: &'static str,
}

/// A bar, lines, or nothing.
#[derive(Debug)]
pub struct Progress {
    /// The command, for messages.
    command: &'static str,
    bar: Option<ProgressBar>,
    /// Counts bytes that were moved, without holes, for the rate of the bar. It is not shown.
    moving: ProgressBar,
    /// Counts the bytes of the pass in progress. It is not shown.
    part: ProgressBar,
    lines: Option<Lines>,
    /// True for a pipe, whose number of bytes is not known.
    total_is_unknown: bool,
    /// Prints the name of each file whose copy begins.
    has_names: bool,
    /// Bytes of the passes that completed.
    base: u64,
    /// Bytes of the pass in progress.
    size: u64,
    /// Bytes that are done.
    at: u64,
    /// Bytes that were moved: those that are done without holes, and without what was there.
    moved: u64,
    /// Files that were read through the page cache, and their bytes that were.
    buffered: (u64, u64),
}

/// The lines where there is no terminal.
#[derive(Debug)]
struct Lines {
    total: u64,
    /// The pass in progress, and its file.
    doing: String,
    /// When the run began.
    begun: Instant,
    /// When the last line was printed, and how many bytes were moved by then.
    last: (Instant, u64),
}

impl Progress {
    /// Returns what `mode` asks for.
    pub fn new(command: &'static str, mode: BytesProgress) -> Progress {
        let is_terminal = std::io::stderr().is_terminal();
        let is_shown = mode != BytesProgress::Never && is_terminal;
        let has_lines = mode == BytesProgress::Always && !is_terminal;
        let begun = Instant::now();
        let lines =
            has_lines.then(|| Lines { total: 0, doing: String::new(), begun, last: (begun, 0) });
        let mut progress = Progress {
            command,
            bar: None,
            moving: ProgressBar::hidden(),
            part: ProgressBar::hidden(),
            lines,
            total_is_unknown: false,
            has_names: false,
            base: 0,
            size: 0,
            at: 0,
            moved: 0,
            buffered: (0, 0),
        };
        if is_shown {
            progress.show(ProgressDrawTarget::stderr());
        }
        progress
    }

    /// Shows a bar there.
    fn show(&mut self, target: ProgressDrawTarget) {
        let bar = ProgressBar::with_draw_target(Some(0), target);
        bar.set_style(self.style(&TEMPLATES));
        self.bar = Some(bar);
    }

    fn style(&self, templates: &Templates) -> ProgressStyle {
        let moving = self.moving.clone();
        let rate = move |_: &ProgressState, text: &mut dyn fmt::Write| {
            // Text in memory takes every line.
            write!(text, "{}/s", BinaryBytes(whole(moving.per_sec()))).unwrap_or(());
        };
        let (part, is_unknown) = (self.part.clone(), self.total_is_unknown);
        let part = move |_: &ProgressState, text: &mut dyn fmt::Write| {
            write!(text, "{}", part_of(&part, is_unknown)).unwrap_or(());
        };
        templates.style().with_key("rate", rate).with_key("part", part)
    }

    /// Follows a pipe that has so many bytes, or a number that is not known.
    pub fn of_pipe(mut self, bytes: Option<u64>) -> Progress {
        match bytes {
            Some(bytes) => self.total(bytes),
            None => {
                self.total_is_unknown = true;
                if let Some(bar) = &self.bar {
                    bar.set_style(self.style(&WITHOUT_TOTAL));
                    bar.enable_steady_tick(TICK);
                }
            }
        }
        self
    }

    /// Prints the name of each file whose copy begins.
    pub fn with_names(self) -> Progress {
        Progress { has_names: true, ..self }
    }

    fn print_name(&self, path: &Path) {
        let print = || {
            // The summary reports an output that is closed.
            writeln!(std::io::stdout(), "{}", untrusted::name(path)).unwrap_or(());
        };
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }

    /// Removes the bar, or prints the last line, with the rate of the whole run. Then says how many
    /// files were read through the page cache, if there are more than the one that was reported.
    pub fn finish(&self) {
        // Without a file there is no last line.
        if let Some(lines) = self.lines.as_ref().filter(|lines| !lines.doing.is_empty()) {
            let part = (&self.part, self.total_is_unknown);
            lines.print(self.command, part, (self.at, self.moved), (lines.begun, 0));
        }
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
        if let Some(line) = all_buffered(self.buffered) {
            log::fail(self.command, &line);
        }
    }
}

impl Observer for Progress {
    fn wants_total(&self) -> bool {
        self.bar.is_some() || self.lines.is_some()
    }

    fn total(&mut self, bytes: u64) {
        if let Some(lines) = &mut self.lines {
            lines.total = bytes;
            // Rates are of the time after the walk that found it.
            lines.begun = Instant::now();
            lines.last = (lines.begun, self.moved);
        }
        if let Some(bar) = &self.bar {
            bar.set_length(bytes);
            bar.enable_steady_tick(TICK);
        }
    }

    fn begins(&mut self, pass: Pass, path: &Path, bytes: u64) {
        self.base += self.size;
        self.size = bytes;
        if self.has_names && pass == Pass::Copy {
            self.print_name(path);
        }
        self.part.set_length(bytes);
        self.part.set_position(0);
        let doing = match pass {
            Pass::Verify => "verifying ",
            Pass::Copy => "copying ",
            _ => "reading ",
        };
        if let Some(lines) = &mut self.lines {
            lines.doing = described(doing, path);
        }
        if let Some(bar) = &self.bar {
            bar.set_message(described(doing, path));
            if bar.length().unwrap_or(0) < self.base + bytes {
                // A file has grown since the bytes were added up.
                bar.set_length(self.base + bytes);
            }
            bar.set_position(self.base);
        }
    }

    fn flushes(&mut self, path: &Path) {
        if let Some(bar) = &self.bar {
            bar.set_message(described("flushing ", path));
        }
    }

    fn resumes_at(&mut self, position: u64) {
        self.part.set_position(position);
        if let Some(bar) = &self.bar {
            bar.set_position(self.base + position);
            // What was there before says nothing about the rate.
            bar.reset_eta();
        }
    }

    fn reached(&mut self, position: u64) {
        self.at = self.base + position;
        self.part.set_position(position);
        if let Some(lines) = &mut self.lines {
            let part = (&self.part, self.total_is_unknown);
            lines.show(self.command, part, (self.at, self.moved));
        }
        if let Some(bar) = &self.bar {
            bar.set_position(self.base + position);
        }
    }

    fn moved(&mut self, bytes: u64) {
        self.moved += bytes;
        if self.bar.is_some() {
            self.moving.set_position(self.moved);
        }
    }

    fn skips(&mut self, bytes: u64) {
        if let Some(lines) = &mut self.lines {
            lines.total = lines.total.saturating_sub(bytes);
        }
        if let Some(bar) = &self.bar {
            bar.set_length(bar.length().unwrap_or(0).saturating_sub(bytes));
        }
    }

    fn lists(&mut self, path: &Path) {
        if self.has_names {
            self.print_name(path);
        }
    }

    fn notice(&mut self, notice: Notice<'_>) {
        if let Notice::Buffered { bytes, .. } = notice {
            self.buffered.0 += 1;
            self.buffered.1 += bytes;
            if self.buffered.0 > 1 {
                return;
            }
        }
        let message = notice.to_string();
        match &self.bar {
            Some(bar) => bar.suspend(|| log::fail(self.command, &message)),
            None => log::fail(self.command, &message),
        }
    }
}

impl Lines {
    /// Prints a line if it is time for one.
    fn show(&mut self, command: &str, part: (&ProgressBar, bool), (at, moved): (u64, u64)) {
        if self.last.0.elapsed() >= LINE_EVERY {
            self.print(command, part, (at, moved), self.last);
            self.last = (Instant::now(), moved);
        }
    }

    /// Prints the pass in progress, the part of all that is done, and the rate since a time by
    /// which so many bytes were moved.
    fn print(
        &self,
        command: &str,
        (part, is_unknown): (&ProgressBar, bool),
        (at, moved): (u64, u64),
        (since, before): (Instant, u64),
    ) {
        let elapsed = since.elapsed().as_nanos().max(1);
        let moved = u128::from(moved.saturating_sub(before)) * 1_000_000_000 / elapsed;
        let rate = BinaryBytes(u64::try_from(moved).unwrap_or(u64::MAX));
        let percent = u128::from(at) * 100 / u128::from(self.total.max(at).max(1));
        let (doing, part) = (&self.doing, part_of(part, is_unknown));
        let share = if is_unknown { String::new() } else { format!("{percent}% of all, ") };
        log::line(&format!("dio {command}: {doing}: {part}; {share}{rate}/s"));
    }
}

impl Templates {
    /// Returns the style for the terminal.
    pub fn style(&self) -> ProgressStyle {
        let template = match message_columns() {
            Some(..COLUMNS_NARROW) => self.least,
            Some(..COLUMNS_WIDE) => self.narrow,
            _ => self.wide,
        };
        let style = ProgressStyle::with_template(template).expect("the template is well formed");
        style.progress_chars("=> ")
    }
}

/// Returns how many files were read through the page cache; `None` if that is not more than the one
/// of the notice.
fn all_buffered((files, bytes): (u64, u64)) -> Option<String> {
    let text = format!("in all, {bytes} bytes of {files} files were read through the page cache");
    (files > 1).then_some(text)
}

/// Returns a rate without its fraction.
fn whole(rate: f64) -> u64 {
    format!("{rate:.0}").parse().unwrap_or(0)
}

/// Returns the bytes of a pass that are done, and all of them.
fn part_of(part: &ProgressBar, is_unknown: bool) -> String {
    let (done, all) = (part.position(), part.length().unwrap_or(0));
    if is_unknown {
        return BinaryBytes(done).to_string();
    }
    format!("{} of {}", BinaryBytes(done), BinaryBytes(all.max(done)))
}

/// Returns a phase and the name of its file.
fn described(doing: &str, path: &Path) -> String {
    let name = path.file_name().map_or(path, Path::new);
    format!("{doing}{}", untrusted::name(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_terminal_there_is_no_bar_and_nothing_breaks() {
        let mut progress = Progress::new("cp", BytesProgress::Never);
        assert!(!progress.wants_total());
        progress.total(10);
        progress.begins(Pass::Copy, Path::new("a"), 10);
        progress.resumes_at(3);
        progress.reached(5);
        progress.finish();
    }

    #[test]
    fn the_rate_is_of_what_was_moved_and_not_of_holes() {
        let mut progress = Progress::new("cp", BytesProgress::Never);
        progress.show(ProgressDrawTarget::hidden());
        progress.total(64 << 30);
        progress.begins(Pass::Copy, Path::new("a"), 64 << 30);
        progress.moved(4096);
        progress.moved(4096);
        progress.reached(63 << 30);
        let bar = progress.bar.as_ref().unwrap();
        assert_eq!((bar.position(), progress.moving.position()), (63 << 30, 8192));
    }

    #[test]
    fn files_that_were_read_through_the_page_cache_are_added_up() {
        let mut progress = Progress::new("cp", BytesProgress::Never);
        let notice = |bytes| Notice::Buffered {
            target: Path::new("a"),
            bytes,
            why: "no",
            from: diopter_copy::ReadFrom::Cache,
        };
        progress.notice(notice(5));
        assert_eq!(all_buffered(progress.buffered), None);
        progress.notice(notice(7));
        let line = all_buffered(progress.buffered).unwrap();
        assert_eq!(line, "in all, 12 bytes of 2 files were read through the page cache");
    }

    #[test]
    fn the_template_is_well_formed() {
        assert!(
            [TEMPLATES.wide, TEMPLATES.narrow, TEMPLATES.least]
                .iter()
                .all(|it| ProgressStyle::with_template(it).is_ok())
        );
    }
}
