//! `Outside`: the code of users that diopter runs or drops. It is collected while a lock is held or
//! an engine is in use, and runs after that. A panic of it goes no further.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::task::Waker;

use diopter_os::AnyBuf;

use crate::completion::Completion;
use crate::request::FinishedRequest;

/// The payload of a panic.
pub type Panic = Box<dyn std::any::Any + Send>;

/// One piece of code of a user.
enum Foreign {
    /// A waker that is woken.
    Wake(Waker),
    /// Values whose drop may be code of a user.
    Waker(Waker),
    Memory(AnyBuf),
    Completion(Completion),
    Panic(Panic),
}

impl Foreign {
    fn run(self) {
        match self {
            Foreign::Wake(waker) => waker.wake(),
            Foreign::Waker(waker) => drop(waker),
            Foreign::Memory(memory) => drop(memory),
            Foreign::Completion(completion) => drop(completion),
            Foreign::Panic(panic) => drop(panic),
        }
    }
}

/// Code of users that is to run. It runs with [`Outside::run`], or with the drop, and nowhere else:
/// a function that has a lock, or that uses an engine, takes a `&mut Outside` of its caller.
#[derive(Default)]
#[must_use = "its drop runs code of users: where it is dropped, no lock may be held"]
pub struct Outside {
    parts: Vec<Foreign>,
}

impl Outside {
    /// Returns one that has nothing to run.
    pub const fn new() -> Outside {
        Outside { parts: Vec::new() }
    }

    /// Returns true if there is nothing to run.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Adds a waker that is to be woken.
    #[inline]
    pub fn wake(&mut self, waker: Waker) {
        self.parts.push(Foreign::Wake(waker));
    }

    /// Adds wakers that are to be woken.
    pub fn wake_all(&mut self, wakers: impl IntoIterator<Item = Waker>) {
        self.parts.extend(wakers.into_iter().map(Foreign::Wake));
    }

    /// Adds a waker that is to be dropped.
    pub fn drop_waker(&mut self, waker: Waker) {
        self.parts.push(Foreign::Waker(waker));
    }

    /// Adds memory that is to be dropped.
    pub fn drop_memory(&mut self, memory: Option<AnyBuf>) {
        self.parts.extend(memory.map(Foreign::Memory));
    }

    /// Adds the memory of a result that no caller takes.
    pub fn drop_memory_of(&mut self, mut finished: FinishedRequest) {
        self.drop_memory(finished.memory.take());
    }

    /// Adds a callback that is to be dropped without being run.
    pub fn drop_completion(&mut self, completion: Option<Completion>) {
        self.parts.extend(completion.map(Foreign::Completion));
    }

    /// Adds the payload of a panic that no call passes on.
    pub fn drop_panic(&mut self, panic: Panic) {
        self.parts.push(Foreign::Panic(panic));
    }

    /// Takes over what another one has.
    #[inline]
    pub fn append(&mut self, other: &mut Outside) {
        if !other.is_empty() {
            self.parts.append(&mut other.parts);
        }
    }

    /// Runs all of it, in order. The caller holds no lock, and uses no engine.
    #[inline]
    pub fn run(&mut self) {
        if !self.is_empty() {
            run_all(&mut self.parts);
        }
    }
}

impl Drop for Outside {
    #[inline]
    fn drop(&mut self) {
        self.run();
    }
}

impl std::fmt::Debug for Outside {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Outside").field("count", &self.parts.len()).finish()
    }
}

/// Calls of code of users inside of each other from which on what they drop is dropped later.
const NESTED_MAX: u32 = 8;

thread_local! {
    /// How many calls of code of users this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Values that deeply nested code of a user has caused to be dropped: the outermost call drops
    /// them.
    static LATER: RefCell<Vec<Foreign>> = const { RefCell::new(Vec::new()) };
}

/// A call of code of users.
struct Entered;

impl Entered {
    fn new() -> Entered {
        DEPTH.try_with(|depth| depth.set(depth.get() + 1)).unwrap_or(());
        Entered
    }
}

impl Drop for Entered {
    fn drop(&mut self) {
        DEPTH.try_with(|depth| depth.set(depth.get() - 1)).unwrap_or(());
    }
}

/// Returns true if this thread runs code of a user that diopter has called: what the code waits for
/// is not served by this thread's own event loop.
#[inline]
pub fn is_inside_foreign_code() -> bool {
    depth() > 0
}

#[inline]
fn depth() -> u32 {
    DEPTH.try_with(Cell::get).unwrap_or(0)
}

/// Calls code of a user, and returns its panic. The outermost call then drops the values that its
/// code has caused to be dropped too deep inside of other calls.
pub fn call<R>(code: impl FnOnce() -> R) -> Result<R, Panic> {
    let result = call_here(code);
    if !is_inside_foreign_code() {
        while let Ok(Some(part)) = LATER.try_with(|later| later.borrow_mut().pop()) {
            call_alone(|| part.run());
        }
    }
    result
}

fn call_here<R>(code: impl FnOnce() -> R) -> Result<R, Panic> {
    let _entered = Entered::new();
    catch_unwind(AssertUnwindSafe(code))
}

/// Calls code of a user whose panic no call passes on: the panic hook has printed it.
fn call_alone(code: impl FnOnce()) {
    let Err(panic) = call_here(code) else { return };
    // The payload is a value of a user, too.
    if let Err(another) = call_here(move || drop(panic)) {
        std::mem::forget(another);
    }
}

fn run_all(parts: &mut Vec<Foreign>) {
    let is_deep = depth() >= NESTED_MAX;
    let postpone = |part| {
        let mut part = Some(part);
        LATER.try_with(|later| later.borrow_mut().extend(part.take())).unwrap_or(());
        part
    };
    for part in parts.drain(..) {
        // A drop that causes another drop, and so on, would need a stack without end. The code that
        // runs may wait for a waker, and it may run for long: what it drops is not collected for
        // its end.
        let now = match part {
            Foreign::Wake(_) => Some(part),
            _ if is_deep => postpone(part),
            _ => Some(part),
        };
        if let Some(part) = now {
            call(|| call_alone(|| part.run())).unwrap_or(());
        }
    }
}

#[cfg(all(test, not(any(diopter_loom, shuttle))))]
mod tests {
    use std::task::Wake;

    use super::*;
    use crate::sync::{Arc, AtomicU32, Ordering, StaticMutex, lock_static};

    /// Notes its number when it is woken, and panics if it is odd.
    struct Noting(u32, Arc<StaticMutex<Vec<u32>>>);

    impl Wake for Noting {
        fn wake(self: Arc<Noting>) {
            assert!(is_inside_foreign_code());
            lock_static(&self.1).push(self.0);
            assert!(self.0.is_multiple_of(2), "a waker that panics on purpose");
        }
    }

    #[test]
    fn each_piece_runs_once_in_order_whatever_panics() {
        let woken = Arc::new(StaticMutex::new(Vec::new()));
        let waker = |n| Waker::from(Arc::new(Noting(n, Arc::clone(&woken))));
        let mut outside = Outside::new();
        outside.wake_all((0..3).map(waker));
        let mut other = Outside::new();
        other.wake(waker(3));
        other.drop_panic(Box::new(Cascade(0, Arc::new(AtomicU32::new(0)))));
        outside.append(&mut other);
        outside.wake(waker(4));
        assert!(lock_static(&woken).is_empty() && other.is_empty());
        drop(outside);
        assert_eq!(*lock_static(&woken), [0, 1, 2, 3, 4]);
        assert!(!is_inside_foreign_code());
    }

    /// A value whose drop discards another one, in the way in which an engine does, and panics.
    struct Cascade(u32, Arc<AtomicU32>);

    impl Drop for Cascade {
        fn drop(&mut self) {
            self.1.fetch_add(1, Ordering::Relaxed);
            if self.0 > 0 {
                let mut outside = Outside::new();
                outside.drop_panic(Box::new(Cascade(self.0 - 1, Arc::clone(&self.1))));
            }
            panic!("a drop that panics on purpose");
        }
    }

    #[test]
    fn a_drop_that_causes_a_drop_and_so_on_needs_no_stack() {
        const LENGTH: u32 = 10_000;
        std::panic::set_hook(Box::new(|_| {}));
        let drops = Arc::new(AtomicU32::new(0));
        let mut outside = Outside::new();
        outside.drop_panic(Box::new(Cascade(LENGTH, Arc::clone(&drops))));
        outside.run();
        assert_eq!(drops.load(Ordering::Relaxed), LENGTH + 1);
        // What code drops that runs for long is dropped meanwhile.
        let called = call(|| {
            let mut outside = Outside::new();
            outside.drop_panic(Box::new(Cascade(1, Arc::clone(&drops))));
            outside.run();
            drops.load(Ordering::Relaxed)
        });
        assert_eq!(called.expect("no panic"), LENGTH + 3);
        drop(std::panic::take_hook());
    }
}
