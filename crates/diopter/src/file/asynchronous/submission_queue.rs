//! `Mailbox`: requests of one tokio runtime's futures on their way to the task that serves them.
//! Any thread of the runtime posts; a runtime that no thread drives loses its mail to a reaper.

use std::collections::VecDeque;
use std::task::Waker;

use tokio::runtime::{Handle, Id};

use diopter_core::clock;
use diopter_core::clock::Nanos;
use diopter_core::limits::{UNDRIVEN_WAIT_MAX, WORKER_IDLE};
use diopter_core::sync::{Arc, StaticMutex, Weak, lock_static};

use crate::file::asynchronous::io_thread::{first_reaper, watch_mailboxes};
use crate::file::asynchronous::operation::{Departure, Mail, Slot};
use crate::file::asynchronous::per_process::PerProcess;

/// Mailboxes by runtime.
type Mailboxes = Vec<(Id, Weak<Mailbox>)>;

/// Every mailbox of this process.
static MAILBOXES: PerProcess<StaticMutex<Mailboxes>> = PerProcess::new();

/// The requests of one runtime.
pub(super) struct Mailbox {
    state: StaticMutex<State>,
}

struct State {
    mail: Mail,
    /// The task that serves them, once it was polled.
    driver: Option<Waker>,
    /// The task was woken at `since` and has not run yet; also true before its first poll.
    is_scheduled: bool,
    since: Nanos,
    /// A reaper polls it.
    is_watched: bool,
    /// The task does not serve any more.
    is_closed: bool,
}

impl Mailbox {
    /// Returns the runtime's mailbox, and whether this call created it.
    pub fn of(handle: &Handle) -> (Arc<Mailbox>, bool) {
        let id = handle.id();
        let mut all = lock_static(MAILBOXES.get());
        all.retain(|(_, mailbox)| mailbox.strong_count() > 0);
        let found = all.iter().find(|(its, _)| *its == id).and_then(|(_, found)| found.upgrade());
        if let Some(mailbox) = found {
            return (mailbox, false);
        }
        let state = State {
            mail: Mail::default(),
            driver: None,
            is_scheduled: true,
            since: clock::now(),
            is_watched: false,
            is_closed: false,
        };
        let mailbox = Arc::new(Mailbox { state: StaticMutex::new(state) });
        all.push((id, Arc::downgrade(&mailbox)));
        (mailbox, true)
    }

    /// Posts a request; returns false if no thread serves it here.
    pub fn submit(&self, slot: &Arc<Slot>) -> bool {
        let mut state = lock_static(&self.state);
        if state.is_closed {
            return false;
        }
        state.mail.arrived.push_back(Arc::clone(slot));
        self.rouse(state);
        true
    }

    /// The future of a slot that was posted here is gone.
    pub fn give_up(&self, slot: Arc<Slot>, departure: Departure) {
        let mut state = lock_static(&self.state);
        if !state.is_closed {
            state.mail.give_up(slot, departure);
            self.rouse(state);
        }
    }

    /// Wakes the task unless a wake-up is already pending.
    fn rouse(&self, mut state: diopter_core::sync::StaticGuard<'_, State>) {
        let is_new = !std::mem::replace(&mut state.is_watched, true);
        let wakes = !std::mem::replace(&mut state.is_scheduled, true);
        if wakes || is_new {
            state.since = clock::now();
        }
        let driver = if wakes { state.driver.clone() } else { None };
        drop(state);
        if let Some(driver) = driver {
            driver.wake();
        }
        if is_new {
            watch_mailboxes(rescue);
        }
    }

    /// All that was posted, for the task that `waker` wakes.
    pub fn take(&self, waker: &Waker, mail: &mut Mail) {
        let mut state = lock_static(&self.state);
        state.is_scheduled = false;
        std::mem::swap(&mut state.mail, mail);
        if !state.driver.as_ref().is_some_and(|kept| kept.will_wake(waker)) {
            let old = state.driver.replace(waker.clone());
            drop(state);
            drop(old);
        }
    }

    /// The task serves no more: what is here, and what `mail` holds, goes to a reaper.
    pub fn close(&self, mail: &mut Mail) {
        let mut state = lock_static(&self.state);
        state.is_closed = true;
        state.mail.forget_departed();
        let arrived = std::mem::take(&mut state.mail.arrived);
        let driver = state.driver.take();
        drop(state);
        drop(driver);
        let all = mail.arrived.drain(..).chain(arrived);
        all.for_each(|slot| first_reaper().submit(slot));
    }

    /// Moves what no thread fetches to `arrived`; returns true if the mailbox is in use.
    fn rescue(&self, now: Nanos, arrived: &mut VecDeque<Arc<Slot>>) -> bool {
        let mut state = lock_static(&self.state);
        let age = u128::from(now.since(state.since));
        if state.is_scheduled && age >= UNDRIVEN_WAIT_MAX.as_nanos() {
            arrived.append(&mut state.mail.arrived);
            state.mail.forget_departed();
        }
        state.is_watched &= age < WORKER_IDLE.as_nanos() || !state.mail.arrived.is_empty();
        state.is_watched
    }
}

/// Moves what waits for runtimes that no thread drives to `arrived`; returns true if one is in
/// use.
fn rescue(now: Nanos, arrived: &mut VecDeque<Arc<Slot>>) -> bool {
    let all: Vec<Arc<Mailbox>> =
        lock_static(MAILBOXES.get()).iter().filter_map(|(_, mailbox)| mailbox.upgrade()).collect();
    // Each is looked at, whatever the others say.
    all.iter().filter(|mailbox| mailbox.rescue(now, arrived)).count() > 0
}
