//! The lock of a striped object, shared while it is open, held under a lease: it ends by itself
//! some time after its last renewal, so that a process that was killed blocks no other for long.
//! libradosstriper takes the same lock, without a lease, around each of its operations, and an
//! exclusive one around a removal and a truncation; here the shared one becomes exclusive.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use diopter_os::{fork, random};
use rustix::time::{ClockId, clock_gettime};
use uuid::Builder;

use crate::error::{Error, ErrorKind};
use crate::loader::{Pool, WriteOp};

/// The class of the store, and its method.
const CLASS: &str = "lock";
const METHOD: &str = "lock";

/// The lock of libradosstriper, and the tag of its shared holders. Its exclusive ones have none; a
/// holder keeps the tag when it changes the mode. An exclusive lock excludes others with any tag.
const LOCK: &str = "striper.lock";
const TAG: &str = "Tag";

/// `LOCK_FLAG_MUST_RENEW`: fails with `ENOENT` if the lock is not held. A lease that ran out is
/// never taken again, as another client may have truncated the object since.
const MUST_RENEW: u8 = 2;

/// Renewals in the time of a lease. With [`PER_OPERATION`] this leaves a sixth of the lease for a
/// renewal, before a write waits for it.
const RENEWALS: u32 = 6;

/// The length of a lease to write under, as a part of the time that an operation may live: three
/// halves of it.
const PER_OPERATION: (u32, u32) = (3, 2);

/// The shortest lease. A renewal must fit into a third of it.
const LENGTH_MIN: Duration = Duration::from_secs(3);

/// The longest one that is needed for the bound of an operation: a process that was killed blocks
/// the others for as long.
const LENGTH_MAX: Duration = Duration::from_secs(600);

/// Attempts in the time between two renewals, if one fails.
const RETRIES: u32 = 5;

/// How the lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// With others, to read and write.
    Shared,
    /// Alone, to truncate and remove.
    Exclusive,
}

impl Mode {
    /// The number of `ClsLockType`.
    fn number(self) -> u8 {
        match self {
            Mode::Exclusive => 1,
            Mode::Shared => 2,
        }
    }
}

/// A lock that is held, and renewed by a thread until the drop.
pub struct Lease {
    held: Arc<Held>,
    stop: Option<Sender<()>>,
    keeper: Option<JoinHandle<()>>,
    /// The process that took it, by generation of fork.
    generation: u64,
}

struct Held {
    pool: Pool,
    object: Vec<u8>,
    cookie: String,
    length: Duration,
    state: Mutex<State>,
    /// Notified when the state changes.
    changed: Condvar,
    /// Locked while a request about the lock is sent, so that a renewal keeps the mode.
    mode: Mutex<Mode>,
}

struct State {
    /// Time since boot up to which the store holds the lock: counted from before the request was
    /// sent, and the store counts from later.
    until: Duration,
    /// Why it can't be renewed any more.
    lost: Option<Error>,
}

impl State {
    /// Returns true if the lock is held at `now`, and for some time after it.
    fn is_held(&self, now: Duration, then: Duration) -> bool {
        self.lost.is_none() && now.saturating_add(then) < self.until
    }
}

/// Returns the length of a lease to read under.
///
/// # Errors
/// Fails if it is less than the shortest.
pub fn length_to_read(asked: Duration) -> Result<Duration, Error> {
    match asked < LENGTH_MIN {
        true => Err(Error::invalid(format!("a lease of less than {LENGTH_MIN:?}"))),
        false => Ok(asked),
    }
}

/// Returns the length of a lease to write under: what was asked for, or longer, so that an
/// operation that is sent between two renewals fails before the lease ends. `bound` is the time
/// after which an operation fails.
///
/// # Errors
/// Fails if no lease is long enough.
pub fn length_to_write(asked: Duration, bound: Option<Duration>) -> Result<Duration, Error> {
    let asked = length_to_read(asked)?;
    let needed = bound.map(|bound| bound.saturating_mul(PER_OPERATION.0) / PER_OPERATION.1);
    match needed {
        Some(needed) if needed <= LENGTH_MAX => Ok(asked.max(needed)),
        _ => {
            let most = LENGTH_MAX * PER_OPERATION.1 / PER_OPERATION.0;
            let bound = bound.map_or("unbounded".to_owned(), |bound| format!("{bound:?}"));
            let why = format!("{bound}, and a lock can be held for operations of {most:?} at most");
            Err(Error::invalid(format!("open for writing: `rados_osd_op_timeout` is {why}"))
                .advise("set `rados_osd_op_timeout` of the configuration to 20"))
        }
    }
}

impl Lease {
    /// Takes the lock, shared and with this cookie, in one operation with the steps before it, and
    /// keeps it.
    pub fn take(
        pool: &Pool,
        (object, cookie): (Vec<u8>, String),
        length: Duration,
        steps: WriteOp,
    ) -> Result<Lease, Error> {
        let state = Mutex::new(State { until: Duration::ZERO, lost: None });
        let mode = Mutex::new(Mode::Shared);
        let (pool, changed) = (pool.clone(), Condvar::new());
        let held = Arc::new(Held { pool, object, cookie, length, state, changed, mode });
        let (stop, stopped) = channel();
        let kept = Arc::clone(&held);
        // Before the steps: they may create the object, which nothing would remove.
        let keeper = std::thread::Builder::new()
            .name("diopter-lease".to_owned())
            .spawn(move || {
                if stopped.recv().is_ok() {
                    kept.keep(&stopped);
                }
            })
            .map_err(|error| Error::system("start the thread of a lease", &error))?;
        let generation = fork::generation();
        let lease = Lease { held, stop: Some(stop), keeper: Some(keeper), generation };
        // If this fails, the drop waits for the thread, which has a handle of the connection.
        lease.held.lock("lock", steps, (Mode::Shared, 0))?;
        if let Some(stop) = &lease.stop {
            stop.send(()).expect("the thread waits for it");
        }
        Ok(lease)
    }

    /// Returns true in a child of fork, which has no connection to the cluster.
    pub fn is_inherited(&self) -> bool {
        fork::generation() != self.generation
    }

    /// Returns the cookie of the lock, which no other holder has.
    pub fn cookie(&self) -> &str {
        &self.held.cookie
    }

    /// Holds the lock in another mode from now on, in one operation with the steps before it. The
    /// lock is not released in between.
    pub fn change(&self, mode: Mode, steps: WriteOp) -> Result<(), Error> {
        let mut current = self.held.mode.lock().unwrap_or_else(PoisonError::into_inner);
        // If the outcome is unknown, the next renewal takes the mode back.
        let changed = self.held.lock("change the lock of", steps, (mode, MUST_RENEW));
        changed.map_err(Error::settled)?;
        *current = mode;
        Ok(())
    }

    /// Performs an operation on the object that also renews the lock: the store performs it only if
    /// the lock was held all the time. `add` gets an operation that renews, and adds the steps.
    pub fn operate(
        &self,
        what: &str,
        add: impl FnOnce(WriteOp) -> Result<WriteOp, Error>,
    ) -> Result<(), Error> {
        let mode = self.held.mode.lock().unwrap_or_else(PoisonError::into_inner);
        let steps = self.held.pool.write_op().assert_exists();
        let steps = add(self.held.locking(steps, (*mode, MUST_RENEW))?)?;
        match self.held.send(what, &steps) {
            Err(error) if is_final(&error) => {
                self.held.lose(error);
                self.prove()
            }
            sent => sent,
        }
    }

    /// Renews the lock no more. Its lease ends by itself.
    pub fn give_up(&self) {
        let why = Error::new(ErrorKind::Lease, "its owner gave it up");
        self.held.state().lost.get_or_insert(why);
        self.held.changed.notify_all();
    }

    /// Returns true if the lease has not run out.
    pub fn is_held(&self) -> bool {
        self.held.state().is_held(now(), Duration::ZERO)
    }

    /// Fails if a write that is sent now may take effect after the lease.
    pub fn prove_for_write(&self) -> Result<(), Error> {
        let bound = self.held.pool.operation_timeout();
        if bound.is_some_and(|bound| self.held.state().is_held(now(), bound)) {
            return Ok(());
        }
        self.prove()?;
        let object = crate::error::shown(&self.held.object);
        let message = format!("the lock of {object} may be lost before a write ends");
        Err(Error::new(ErrorKind::Lease, message).advise("check the stores with `ceph -s`"))
    }

    /// Waits until a write may be sent, which takes as long as a renewal that is late. Fails when
    /// the lease has run out.
    pub fn wait_to_write(&self) -> Result<(), Error> {
        let Some(bound) = self.held.pool.operation_timeout() else {
            return self.prove_for_write();
        };
        let mut state = self.held.state();
        loop {
            let now = now();
            if state.is_held(now, bound) {
                return Ok(());
            }
            if !state.is_held(now, Duration::ZERO) {
                drop(state);
                // A renewal may have come meanwhile.
                self.prove()?;
                state = self.held.state();
                continue;
            }
            let left = state.until.saturating_sub(now);
            let waited = self.held.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Fails if the lease may have run out.
    pub fn prove(&self) -> Result<(), Error> {
        if self.is_held() {
            return Ok(());
        }
        let why = match &self.held.state().lost {
            None => "it was not renewed in time".to_owned(),
            Some(error) => error.to_string(),
        };
        let object = crate::error::shown(&self.held.object);
        let message = format!("the lock of {object} may be lost: {why}");
        Err(Error::new(ErrorKind::Lease, message).advise("open the object again"))
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if self.is_inherited() {
            // The thread and the connection are the parent's, and so is the lock.
            std::mem::forget((Arc::clone(&self.held), self.keeper.take()));
            return;
        }
        self.stop = None;
        if let Some(keeper) = self.keeper.take() {
            keeper.join().ok();
        }
        if self.is_held() {
            // If this fails, the lease ends by itself.
            self.held.pool.unlock(&self.held.object, LOCK, &self.held.cookie).ok();
        }
    }
}

impl Held {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes or renews the lock after the steps, in one operation.
    fn lock(&self, what: &str, steps: WriteOp, how: (Mode, u8)) -> Result<(), Error> {
        self.send(what, &self.locking(steps, how)?)
    }

    /// Adds the step that takes or renews the lock.
    fn locking(&self, steps: WriteOp, how: (Mode, u8)) -> Result<WriteOp, Error> {
        steps.execute(CLASS, METHOD, &lock_arguments(&self.cookie, self.length, how))
    }

    /// Sends an operation that takes or renews the lock.
    fn send(&self, what: &str, steps: &WriteOp) -> Result<(), Error> {
        let sent = now();
        self.pool.operate(what, &self.object, steps)?;
        self.state().until = sent.saturating_add(self.length);
        self.changed.notify_all();
        Ok(())
    }

    /// Notes that the lock is another's, or none's.
    fn lose(&self, error: Error) {
        self.state().lost = Some(error);
        self.changed.notify_all();
    }

    /// Renews the lock until the other end of the channel is dropped, or the lock is lost.
    fn keep(&self, stopped: &Receiver<()>) {
        let renewal = self.length / RENEWALS;
        let mut wait = renewal;
        while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(wait) {
            if self.state().lost.is_some() {
                return;
            }
            let steps = self.pool.write_op().assert_exists();
            let mode = self.mode.lock().unwrap_or_else(PoisonError::into_inner);
            let renewed = self.lock("renew the lock of", steps, (*mode, MUST_RENEW));
            drop(mode);
            match renewed {
                Ok(()) => wait = renewal,
                Err(error) if is_final(&error) => {
                    self.lose(error);
                    return;
                }
                Err(_) => wait = renewal / RETRIES,
            }
        }
    }
}

/// Returns a cookie that no holder of a lock has.
///
/// # Errors
/// The errno of getrandom(2), where a sandbox refuses it and its device.
pub fn cookie() -> Result<String, Error> {
    let bytes =
        random::bytes().map_err(|errno| Error::new(ErrorKind::Os(errno.raw()), "getrandom"))?;
    Ok(Builder::from_random_bytes(bytes).into_uuid().to_string())
}

/// True if the store replied that the lock is not this client's any more.
fn is_final(error: &Error) -> bool {
    matches!(error.errno(), Some(libc::ENOENT | libc::EBUSY | libc::EEXIST))
}

/// The time since boot: unlike a monotonic clock, it goes on while the machine is suspended.
fn now() -> Duration {
    let now = clock_gettime(ClockId::Boottime);
    Duration::try_from(now).unwrap_or(Duration::MAX)
}

/// Encodes the arguments of the method: a version, the oldest version that can read it, the length
/// of the rest; then name, type, cookie, tag, description, duration and flags. Numbers are
/// little-endian, texts have their length before them.
fn lock_arguments(cookie: &str, length: Duration, (mode, flags): (Mode, u8)) -> Vec<u8> {
    let number = |number: u32| number.to_le_bytes().to_vec();
    let count = |count: usize| number(u32::try_from(count).expect("arguments are short"));
    let text = |text: &str| [count(text.len()), text.as_bytes().to_vec()].concat();
    let rest = [
        text(LOCK),
        vec![mode.number()],
        text(cookie),
        text(TAG),
        text(""),
        number(u32::try_from(length.as_secs()).unwrap_or(u32::MAX)),
        number(length.subsec_nanos()),
        vec![flags],
    ]
    .concat();
    [vec![1, 1], count(rest.len()), rest].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_to_write_under_is_longer_than_an_operation_between_two_renewals() {
        let seconds = Duration::from_secs;
        for (asked, bound, length) in
            [(30, 20, 30), (3, 2, 3), (3, 20, 30), (30, 60, 90), (30, 400, 600), (900, 1, 900)]
        {
            let found = length_to_write(seconds(asked), Some(seconds(bound)));
            assert_eq!(found, Ok(seconds(length)), "{asked} {bound}");
            // A renewal that takes as long as the time between two delays no write.
            assert!(seconds(length) - 2 * (seconds(length) / RENEWALS) >= seconds(bound));
        }
        for bound in [None, Some(seconds(401)), Some(Duration::MAX)] {
            let error = length_to_write(seconds(30), bound).unwrap_err();
            assert!(error.to_string().contains("rados_osd_op_timeout"), "{error}");
        }
        assert!(length_to_write(seconds(2), Some(seconds(1))).is_err());
    }

    #[test]
    fn a_write_needs_more_of_the_lease_than_a_read() {
        let seconds = Duration::from_secs;
        let state = State { until: seconds(130), lost: None };
        assert!(state.is_held(seconds(109), seconds(20)));
        assert!(!state.is_held(seconds(110), seconds(20)));
        assert!(state.is_held(seconds(129), Duration::ZERO));
        assert!(!state.is_held(seconds(130), Duration::ZERO));
        let lost = State { lost: Some(Error::invalid("gone")), ..state };
        assert!(!lost.is_held(seconds(0), Duration::ZERO));
    }

    #[test]
    fn the_arguments_of_a_lock_are_encoded_as_the_class_reads_them() {
        let expected = [
            &b"\x01\x01\x2f\0\0\0"[..],
            b"\x0c\0\0\0striper.lock",
            b"\x02",
            b"\x06\0\0\0cookie",
            b"\x03\0\0\0Tag",
            b"\0\0\0\0",
            b"\x1e\0\0\0\x05\0\0\0",
            b"\x02",
        ]
        .concat();
        assert_eq!(lock_arguments("cookie", Duration::new(30, 5), (Mode::Shared, 2)), expected);
    }
}
