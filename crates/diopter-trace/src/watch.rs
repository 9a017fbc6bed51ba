//! While the traced processes run: waits for their end, for a signal, for the end of the time, and
//! looks at their open files meanwhile.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::command::{Running, Signals};
use crate::error::TraceError;
use crate::event;
use crate::joining::{Interval, Joining};
use crate::model::Ended;
use crate::names::look_at_files;
use crate::target::Attached;

/// Open files are looked at this soon after the start, then at twice the distance each time.
const LOOK_FIRST: Duration = Duration::from_millis(1);
/// And no more seldom than this, unless looking takes long.
const LOOK_LAST: Duration = Duration::from_millis(100);
/// Looking takes at most one part in so many of the time.
const LOOK_SHARE: u32 = 20;
/// The last part of an interval is seen from this share of it on, or if something happened in it.
const LAST_SHARE: u32 = 10;
/// A turn comes at least so often.
const TURN: Duration = Duration::from_millis(100);

/// A view of a trace while it runs. By default it sees nothing.
pub trait Watcher {
    /// The command runs, as this process.
    fn started(&mut self, _process: u32) {}

    /// The time between two calls of [`Watcher::see`]; `None` for no call.
    fn interval(&self) -> Option<Duration> {
        None
    }

    /// An interval has passed, or the trace ended within one; returns false if the trace has
    /// to end.
    fn see(&mut self, _interval: &Interval) -> bool {
        true
    }

    /// A descriptor that is readable when the user may have asked for the end of the trace.
    fn input(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    /// The input is readable; returns true if the trace has to end.
    fn is_asked_to_end(&mut self) -> bool {
        false
    }
}

/// The processes that are watched.
#[derive(Debug)]
pub enum Watched {
    Command(Running),
    Attached(Attached, Signals),
}

/// When things are due.
struct Due {
    end: Option<Instant>,
    look: Instant,
    pause: Duration,
    interval: Option<Duration>,
    seen: Instant,
}

impl Watched {
    /// Waits until the trace has to end; `is_recorded` is false once nothing is recorded any more.
    /// Returns why it ended, and the time that the watcher has not seen yet.
    ///
    /// # Errors
    /// [`TraceError::Machine`], [`TraceError::Malformed`].
    pub fn watch(
        &self,
        duration: Option<Duration>,
        joining: &mut Joining,
        watcher: &mut dyn Watcher,
        is_recorded: &dyn Fn() -> bool,
    ) -> Result<(Ended, Option<Duration>), TraceError> {
        let now = Instant::now();
        let end = duration.and_then(|duration| now.checked_add(duration));
        let interval = watcher.interval();
        let mut due = Due { end, look: now, pause: LOOK_FIRST, interval, seen: now };
        loop {
            let is_asked = self.wait(&due, watcher)? && watcher.is_asked_to_end();
            if let Some(ended) = self.ended(&due, is_asked) {
                return Ok((ended, due.interval.map(|_| due.seen.elapsed())));
            }
            if !is_recorded() {
                return Ok((Ended::Exited, None));
            }
            if Instant::now() >= due.look {
                self.look(&mut due, joining);
            }
            joining.keep_up()?;
            let elapsed = due.seen.elapsed();
            if due.interval.is_some_and(|interval| elapsed >= interval) {
                due.seen = Instant::now();
                if !watcher.see(&joining.interval(elapsed)) {
                    return Ok((Ended::Key, None));
                }
            }
        }
    }

    /// Waits until something is due; returns true if the watcher's input is readable.
    fn wait(&self, due: &Due, watcher: &dyn Watcher) -> Result<bool, TraceError> {
        let input = watcher.input();
        let mut descriptors: Vec<BorrowedFd<'_>> = input.into_iter().collect();
        match self {
            Watched::Command(running) => {
                descriptors.push(running.end());
                descriptors.extend(running.signals());
            }
            Watched::Attached(attached, signals) => {
                descriptors.extend(attached.ends());
                descriptors.extend(signals.descriptors());
            }
        }
        let mut watched: Vec<PollFd<'_>> =
            descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
        let pause = Timespec::try_from(due.in_time()).expect("a turn is short");
        match poll(&mut watched, Some(&pause)) {
            Ok(_) => Ok(input.is_some() && !watched[0].revents().is_empty()),
            Err(rustix::io::Errno::INTR) => Ok(false),
            Err(error) => {
                let what = "the traced processes cannot be watched";
                Err(TraceError::Machine { what, source: error.into() })
            }
        }
    }

    fn ended(&self, due: &Due, is_asked: bool) -> Option<Ended> {
        match self {
            Watched::Command(running) => {
                if is_readable(running.end()) {
                    return Some(Ended::Exited);
                }
                running.pass_on_signals();
            }
            Watched::Attached(attached, signals) => {
                if attached.is_gone() {
                    let is_group = matches!(attached, Attached::Cgroup(_));
                    return Some(if is_group { Ended::CgroupRemoved } else { Ended::Exited });
                }
                if !signals.take().is_empty() {
                    return Some(Ended::Signal);
                }
            }
        }
        let is_time = due.end.is_some_and(|end| Instant::now() >= end);
        is_asked.then_some(Ended::Key).or(is_time.then_some(Ended::Duration))
    }

    /// Looks at the open files, and for processes that were moved to the control groups.
    fn look(&self, due: &mut Due, joining: &mut Joining) {
        let began = Instant::now();
        let paths = joining.join.files.paths();
        match self {
            Watched::Command(running) => look_at_files(&[running.process()], true, paths),
            Watched::Attached(attached, _) => {
                let has_children = matches!(attached, Attached::Processes(_));
                look_at_files(&attached.processes(), has_children, paths);
                if matches!(attached, Attached::Cgroup(_)) {
                    joining.join.find_late(attached.scope(), event::now());
                }
            }
        }
        if due.interval.is_some() {
            joining.join.files.refresh();
        }
        due.pause = (due.pause * 2).min(LOOK_LAST);
        due.look = Instant::now() + due.pause.max(began.elapsed() * LOOK_SHARE);
    }
}

/// Shows the last part of an interval, once all of its events are joined: it may have what the user
/// ended the trace for, or all that a short command did.
pub fn see_last(watcher: &mut dyn Watcher, last: &Interval) {
    let shortest = watcher.interval().unwrap_or_default() / LAST_SHARE;
    let is_empty = last.totals.requests == 0 && last.totals.flushes.flushes() == 0;
    if last.elapsed >= shortest || !is_empty {
        watcher.see(last);
    }
}

impl Due {
    /// The time until the next thing is due.
    fn in_time(&self) -> Duration {
        let seen = self.interval.map(|interval| self.seen + interval);
        let due = [Some(self.look), self.end, seen];
        let now = Instant::now();
        let times = due.into_iter().flatten().map(|due| due.saturating_duration_since(now));
        times.min().unwrap_or(TURN).min(TURN)
    }
}

fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut watched = [PollFd::from_borrowed_fd(descriptor.as_fd(), PollFlags::IN)];
    poll(&mut watched, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
