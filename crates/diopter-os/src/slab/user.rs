//! `User`: the thread that uses a slab.

use std::sync::atomic::{AtomicUsize, Ordering};

/// No thread has this number.
const NO_THREAD: usize = 0;

/// The one thread that may use a value, if any.
pub(super) struct User(AtomicUsize);

impl User {
    /// Returns a user that is the calling thread.
    pub fn this_thread() -> User {
        User(AtomicUsize::new(number_of_this_thread()))
    }

    /// Returns true on the thread that is the user.
    #[inline(always)]
    pub fn is_this_thread(&self) -> bool {
        // Only this thread stores its own number, and its own stores are seen in their order: no
        // stronger order is needed to know whether the last one was this thread's.
        self.0.load(Ordering::Relaxed) == number_of_this_thread()
    }

    /// Ends the use by the calling thread. What it has done happens before the next `enter`.
    ///
    /// # Panics
    /// Panics on a thread that is not the user.
    pub fn leave(&self) {
        assert!(self.is_this_thread(), "only the thread that uses a slab leaves it");
        self.0.store(NO_THREAD, Ordering::Release);
    }

    /// Begins the use by the calling thread.
    ///
    /// # Panics
    /// Panics while some thread is the user.
    pub fn enter(&self) {
        let this = number_of_this_thread();
        let entered =
            self.0.compare_exchange(NO_THREAD, this, Ordering::Acquire, Ordering::Relaxed);
        assert!(entered.is_ok(), "one thread at a time uses a slab");
    }
}

/// Returns a number that no other thread has while this one exists, and that is not 0.
///
/// A later thread may have it again. What the earlier one did happens before: threads get their
/// storage from one allocator.
#[inline(always)]
fn number_of_this_thread() -> usize {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    {
        let pointer: usize;
        // SAFETY: the ABI of x86-64 for thread-local storage has the thread pointer in the word
        // that it points to, which is not Rust's; the instruction reads it and does nothing else.
        // A shared library would call a function for the address of a thread-local variable.
        unsafe {
            std::arch::asm!(
                "mov {}, fs:0",
                out(reg) pointer,
                options(pure, nomem, nostack, preserves_flags)
            );
        }
        pointer
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    {
        thread_local! {
            static PLACE: u8 = const { 0 };
        }
        PLACE.with(|place| std::ptr::from_ref(place).addr())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_one_thread_at_a_time() {
        let user = User::this_thread();
        assert!(user.is_this_thread());
        let is_elsewhere = || std::thread::scope(|s| s.spawn(|| user.is_this_thread()).join());
        assert_eq!(is_elsewhere().ok(), Some(false));
        let enter_elsewhere = || {
            std::thread::scope(|s| {
                let entered = s.spawn(|| {
                    user.enter();
                    let has_entered = user.is_this_thread();
                    user.leave();
                    has_entered
                });
                entered.join()
            })
        };
        assert!(enter_elsewhere().is_err(), "it is in use here");
        user.leave();
        assert!(!user.is_this_thread());
        assert_eq!(enter_elsewhere().ok(), Some(true));
        user.enter();
        assert!(user.is_this_thread());
    }
}
