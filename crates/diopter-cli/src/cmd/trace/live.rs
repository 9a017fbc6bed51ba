//! `dio trace --live`: a table with a row for each second while the trace runs. On a terminal it
//! is a separate screen; elsewhere each second is appended, without escapes.

use std::collections::VecDeque;
use std::io::{self, IsTerminal, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use diopter_text::{GAP, Lines, Side, Table, untrusted};
use diopter_trace::document::Completions;
use diopter_trace::findings::time_text;
use diopter_trace::predict::places;
use diopter_trace::{Interval, Watcher};
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::terminal;

/// Columns of a row without a terminal.
const WIDTH: usize = 72;
/// The time of a row.
const INTERVAL: Duration = Duration::from_secs(1);
/// Rows that are kept for a taller screen.
const ROWS_MAX: usize = 500;
/// The size of a terminal that does not report one.
const SIZE_DEFAULT: (usize, usize) = (80, 24);
/// A separate screen, without a cursor, where long lines are cut; and back.
const ENTER: &str = "\u{1b}[?1049h\u{1b}[?25l\u{1b}[?7l";
const LEAVE: &str = "\u{1b}[?7h\u{1b}[?25h\u{1b}[?1049l";
/// Columns between those of a table.
const GAP_COLUMNS: usize = GAP as usize;
/// A file's name has so many columns at least where figures can be left off for it.
const NAME_MIN: usize = 24;
/// To the first line; the rest of a line, and of the screen, is empty.
const HOME: &str = "\u{1b}[H";
const LINE_END: &str = "\u{1b}[K\r\n";
const SCREEN_END: &str = "\u{1b}[J";

/// The columns of the table.
const COLUMNS: [(&str, Side); 9] = [
    ("time", Side::Right),
    ("requests/s", Side::Right),
    ("MiB/s", Side::Right),
    ("p50", Side::Right),
    ("p99", Side::Right),
    ("direct", Side::Right),
    ("buffered", Side::Right),
    ("split", Side::Right),
    ("completed in", Side::Left),
];

/// The view: each second, and the terminal that it is shown on.
pub struct Live {
    /// The state of the terminal; `None` if the output is not one.
    screen: Option<Screen>,
    is_error: bool,
    title: String,
    elapsed: Duration,
    rows: VecDeque<Vec<String>>,
}

/// A terminal that is restored when this is dropped.
struct Screen {
    /// The settings of the keyboard's terminal before; `None` if no key is read.
    keys: Option<Termios>,
}

impl Live {
    /// Shows seconds on standard output, or with `is_error` on standard error. Keys are read if
    /// standard input is the terminal of this process.
    pub fn start(title: String, is_error: bool) -> io::Result<Live> {
        let is_terminal =
            if is_error { io::stderr().is_terminal() } else { io::stdout().is_terminal() };
        let screen = if is_terminal { Some(Screen { keys: keys() }) } else { None };
        let mut live =
            Live { screen, is_error, title, elapsed: Duration::ZERO, rows: VecDeque::new() };
        if live.screen.is_some() {
            live.write(ENTER)?;
        }
        Ok(live)
    }

    fn write(&mut self, text: &str) -> io::Result<()> {
        if self.is_error {
            return io::stderr().lock().write_all(text.as_bytes());
        }
        let mut stdout = io::stdout().lock();
        stdout.write_all(text.as_bytes())?;
        stdout.flush()
    }

    fn size(&self) -> (usize, usize) {
        let size = if self.is_error {
            rustix::termios::tcgetwinsize(io::stderr())
        } else {
            rustix::termios::tcgetwinsize(io::stdout())
        };
        let size = size.ok().filter(|size| size.ws_col > 0 && size.ws_row > 0);
        size.map_or(SIZE_DEFAULT, |size| (size.ws_col.into(), size.ws_row.into()))
    }
}

impl Watcher for Live {
    fn interval(&self) -> Option<Duration> {
        Some(INTERVAL)
    }

    fn see(&mut self, interval: &Interval) -> bool {
        self.elapsed += interval.elapsed;
        self.rows.push_back(row(self.elapsed, interval));
        if self.rows.len() > ROWS_MAX {
            self.rows.pop_front();
        }
        let text = match &self.screen {
            None => {
                let width = terminal::columns().unwrap_or(WIDTH);
                block(&self.rows[self.rows.len() - 1], interval, width)
            }
            Some(screen) => {
                let title = title(&self.title, self.elapsed, screen.keys.is_some());
                let lines = lines(&title, &self.rows, interval, self.size());
                format!("{HOME}{}{SCREEN_END}", lines.join(LINE_END))
            }
        };
        self.write(&text).is_ok()
    }

    fn input(&self) -> Option<BorrowedFd<'_>> {
        let screen = self.screen.as_ref()?;
        screen.keys.as_ref().map(|_| rustix::stdio::stdin())
    }

    fn is_asked_to_end(&mut self) -> bool {
        let mut keys = [0; 64];
        match rustix::io::read(rustix::stdio::stdin(), &mut keys) {
            Ok(count @ 1..) => keys[..count].iter().any(|key| matches!(key, b'q' | b'Q')),
            // The terminal is gone: no key will come.
            Ok(0) | Err(_) => {
                if let Some(screen) = &mut self.screen {
                    screen.keys = None;
                }
                false
            }
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(screen) = self.screen.take() {
            screen.restore();
            // A terminal that is gone needs nothing.
            self.write(LEAVE).ok();
        }
    }
}

impl Screen {
    fn restore(&self) {
        if let Some(before) = &self.keys {
            tcsetattr(rustix::stdio::stdin(), OptionalActions::Now, before).ok();
        }
    }
}

/// Makes the terminal pass on each key at once; returns its state before. `None` if standard input
/// is not a terminal, or another process group has it.
fn keys() -> Option<Termios> {
    let stdin = rustix::stdio::stdin();
    let group = rustix::termios::tcgetpgrp(stdin).ok()?;
    if group != rustix::process::getpgrp() {
        return None;
    }
    let before = tcgetattr(stdin.as_fd()).ok()?;
    let mut now = before.clone();
    now.local_modes.remove(LocalModes::ICANON | LocalModes::ECHO);
    tcsetattr(stdin, OptionalActions::Now, &now).ok()?;
    Some(before)
}

fn title(what: &str, elapsed: Duration, has_keys: bool) -> String {
    let end = if has_keys { "q or Ctrl-C ends it" } else { "Ctrl-C ends it" };
    format!("{}: {} s; {end}", untrusted::name(what), elapsed.as_secs())
}

/// The cells of one second.
fn row(elapsed: Duration, interval: &Interval) -> Vec<String> {
    let totals = &interval.totals;
    let total = totals.latencies().total;
    let time = |time: Option<u64>| time.map_or("-".to_owned(), time_text);
    let direct = totals.requests - totals.buffered;
    vec![
        moment(elapsed, interval.elapsed),
        per_second(totals.requests, interval.covered),
        mib_per_second(totals.bytes, interval.covered),
        time(total.map(|total| total.p50)),
        time(total.map(|total| total.p99)),
        percent(direct, totals.requests),
        percent(totals.buffered, totals.requests),
        percent(totals.split, totals.requests),
        contexts(&totals.completions, totals.requests),
    ]
}

/// The end of an interval; with a tenth if it was cut short.
fn moment(elapsed: Duration, interval: Duration) -> String {
    if interval >= INTERVAL {
        return format!("{} s", elapsed.as_secs());
    }
    let tenths = elapsed.as_millis() / 100;
    format!("{}.{} s", tenths / 10, tenths % 10)
}

/// The screen: the last seconds, then the files of the last one; each line cut to the width.
fn lines(
    title: &str,
    rows: &VecDeque<Vec<String>>,
    interval: &Interval,
    (width, height): (usize, usize),
) -> Vec<String> {
    let mut files =
        if interval.files.is_empty() { Vec::new() } else { files(interval, Some(width)) };
    files.splice(0..0, flushes(interval));
    // The title, the head of the table, and an empty line before the flushes and files.
    let around = 2 + if files.is_empty() { 0 } else { files.len() + 1 };
    let room = height.saturating_sub(around).max(1);
    let mut table = Table::new(&COLUMNS);
    for row in rows.iter().skip(rows.len().saturating_sub(room)) {
        table.row(row.clone());
    }
    // The place of completions is the last column, and worth more than what it can follow from.
    for name in ["direct", "split", "buffered"] {
        if table.columns() > width {
            table = table.without(|head| head == name);
        }
    }
    let Lines { head, rows } = table.lines(None);
    let mut lines = vec![title.to_owned()];
    lines.extend(head);
    lines.extend(rows);
    if !files.is_empty() {
        lines.push(String::new());
        lines.extend(files);
    }
    lines.truncate(height.max(1));
    lines.iter().map(|line| line.chars().take(width).collect()).collect()
}

/// One second where there is no screen: its figures, in lines of at most `width` columns where they
/// fit, then its files.
fn block(row: &[String], interval: &Interval, width: usize) -> String {
    let named = COLUMNS.iter().zip(row).map(|((name, _), cell)| match *name {
        "time" => format!("{cell:>6}"),
        "requests/s" | "MiB/s" => format!("{cell} {name}"),
        "completed in" => cell.clone(),
        name => format!("{name} {cell}"),
    });
    let mut text = String::new();
    let mut columns = 0;
    for cell in named.filter(|cell| !cell.is_empty()) {
        let wide = cell.chars().count();
        if columns == 0 {
            columns = wide;
        } else if columns + 2 + wide <= width {
            text.push_str("  ");
            columns += 2 + wide;
        } else {
            text.push_str("\n        ");
            columns = 8 + wide;
        }
        text.push_str(&cell);
    }
    text.push('\n');
    if let Some(line) = flushes(interval) {
        text.push_str(&format!("{:8}{line}\n", ""));
    }
    if !interval.files.is_empty() {
        for line in files(interval, None).iter().skip(1) {
            text.push_str(&format!("{:8}{}\n", "", line.trim_end()));
        }
    }
    text
}

/// The flushes of an interval; `None` without any.
fn flushes(interval: &Interval) -> Option<String> {
    let flushes = &interval.totals.flushes;
    let time = |time: Option<u64>| time.map_or("-".to_owned(), time_text);
    let latency = flushes.latency();
    (flushes.flushes() > 0).then(|| {
        format!(
            "{} flushes/s  p50 {}  p99 {}",
            per_second(flushes.flushes(), interval.covered),
            time(latency.map(|latency| latency.p50)),
            time(latency.map(|latency| latency.p99)),
        )
    })
}

/// The files with the most requests. In lines of at most `width` columns names lose their begin:
/// files of one directory differ at their ends.
fn files(interval: &Interval, width: Option<usize>) -> Vec<String> {
    let mut table =
        Table::new(&[("requests/s", Side::Right), ("MiB/s", Side::Right), ("p99", Side::Right)]);
    for (_, file) in &interval.files {
        let total = file.total.as_ref().and_then(|total| total.latency());
        table.row(vec![
            per_second(file.requests, interval.covered),
            mib_per_second(file.bytes, interval.covered),
            total.map_or("-".to_owned(), |total| time_text(total.p99)),
        ]);
    }
    for name in ["MiB/s", "p99"] {
        if width.is_some_and(|width| table.columns() + GAP_COLUMNS + NAME_MIN > width) {
            table = table.without(|head| head == name);
        }
    }
    let figures = table.columns();
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(figures + GAP_COLUMNS));
    let names = interval.files.iter().map(|(path, _)| ending(&untrusted::name(path), room));
    let Lines { head, rows } = table.lines(None);
    let lines = head.into_iter().chain(rows).zip(["file".to_owned()].into_iter().chain(names));
    let gap = figures + GAP_COLUMNS;
    lines.map(|(line, name)| format!("{line:gap$}{name}")).collect()
}

/// Returns a path that has no room without its first directories, or the end of its last name.
fn ending(path: &str, room: usize) -> String {
    let columns = path.chars().count();
    if columns <= room {
        return path.to_owned();
    }
    let end: String = path.chars().skip(columns - room.saturating_sub(1)).collect();
    // Whole names, if one fits.
    let whole = end.find('/').map_or(end.as_str(), |at| &end[at..]);
    format!("\u{2026}{whole}").chars().take(room).collect()
}

/// Where completions ran, the place of most first.
fn contexts(counts: &Completions, requests: u64) -> String {
    let shares = places(counts).into_iter();
    let shares = shares.map(|(name, count)| format!("{name} {}", percent(count, requests)));
    shares.collect::<Vec<_>>().join(", ")
}

/// A rate; none where no time passed for the events.
fn per_second(count: u64, elapsed: Duration) -> String {
    if elapsed.is_zero() {
        return "-".to_owned();
    }
    let each = u128::from(count) * 1_000_000_000 / elapsed.as_nanos().max(1);
    each.to_string()
}

fn mib_per_second(bytes: u64, elapsed: Duration) -> String {
    if elapsed.is_zero() {
        return "-".to_owned();
    }
    let tenths = (u128::from(bytes) * 10_000_000_000 / elapsed.as_nanos().max(1)) >> 20;
    format!("{}.{}", tenths / 10, tenths % 10)
}

/// A share; none of nothing.
fn percent(part: u64, whole: u64) -> String {
    match (u128::from(part) * 1000).checked_div(whole.into()) {
        Some(per_mille) => format!("{}.{}%", per_mille / 10, per_mille % 10),
        None => "-".to_owned(),
    }
}

#[cfg(test)]
mod tests;
