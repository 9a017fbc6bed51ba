//! Knowing that this process is a fork's child, at the price of one load.

use std::ptr::NonNull;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

/// Generations handed out by this process's ancestry; copied by fork, which is what makes them
/// grow.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// A page that reads as zero in a child (`MADV_WIPEONFORK`, Linux 4.14). Never unmapped.
struct WipedPage(NonNull<AtomicU64>);

// SAFETY: the page is never unmapped and only ever used as an atomic.
unsafe impl Send for WipedPage {}
// SAFETY: as for `Send`.
unsafe impl Sync for WipedPage {}

#[inline]
fn page() -> Option<&'static AtomicU64> {
    static PAGE: OnceLock<Option<WipedPage>> = OnceLock::new();
    let page = PAGE.get_or_init(map_page).as_ref()?;
    // SAFETY: the mapping is page-aligned, at least eight bytes, zero-initialised and never
    // unmapped.
    Some(unsafe { page.0.as_ref() })
}

fn map_page() -> Option<WipedPage> {
    let length = rustix::param::page_size();
    // SAFETY: a new anonymous mapping at an address of the kernel's choice aliases nothing.
    let base = unsafe {
        rustix::mm::mmap_anonymous(
            std::ptr::null_mut(),
            length,
            rustix::mm::ProtFlags::READ | rustix::mm::ProtFlags::WRITE,
            rustix::mm::MapFlags::PRIVATE,
        )
    }
    .ok()?;
    // SAFETY: the range is the mapping just made; WIPEONFORK has no effect on this process's
    // content.
    unsafe { rustix::mm::madvise(base, length, rustix::mm::Advice::LinuxWipeOnFork) }.ok()?;
    NonNull::new(base.cast()).map(WipedPage)
}

/// A number that is the same for the life of a process and differs in each child of `fork`.
///
/// Where the kernel has no `MADV_WIPEONFORK` (before 4.14) the process id serves, at the price of a
/// system call.
#[inline]
#[must_use]
pub fn generation() -> u64 {
    let Some(page) = page() else {
        return u64::from(std::process::id());
    };
    match page.load(Ordering::Relaxed) {
        0 => {
            let mine = NEXT.fetch_add(1, Ordering::Relaxed);
            match page.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => mine,
                Err(other) => other,
            }
        }
        known => known,
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_generation_is_stable_within_a_process() {
        assert_eq!(super::generation(), super::generation());
        assert_ne!(super::generation(), 0);
    }
}
