//! Detects that this process is a child of fork, at the price of one load.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};

/// Generations assigned in this process's ancestry; fork copies it, so it grows.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// The page that reads as zero in a child (`MADV_WIPEONFORK`, Linux 4.14), once it is mapped; never
/// unmapped. Null before, and on kernels without such pages.
static PAGE: AtomicPtr<AtomicU64> = AtomicPtr::new(std::ptr::null_mut());

/// True if the kernel refused such a page. Miri has none.
static HAS_NONE: AtomicBool = AtomicBool::new(cfg!(miri));

/// Returns the page, mapped by the first caller; `None` if the kernel has none. There is no lock,
/// so that a fork in the middle of it leaves the child nothing to wait for.
#[cold]
fn map_page() -> Option<&'static AtomicU64> {
    if HAS_NONE.load(Ordering::Relaxed) {
        return None;
    }
    let Some(page) = new_page() else {
        HAS_NONE.store(true, Ordering::Relaxed);
        return None;
    };
    let null = std::ptr::null_mut();
    // A thread that comes second keeps its page mapped and unused: one page, once.
    let _first =
        PAGE.compare_exchange(null, page.as_ptr(), Ordering::AcqRel, Ordering::Acquire).is_ok();
    mapped_page()
}

fn new_page() -> Option<NonNull<AtomicU64>> {
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
    NonNull::new(base.cast())
}

#[inline]
fn mapped_page() -> Option<&'static AtomicU64> {
    // SAFETY: null, or the start of a mapping that is page-aligned, at least eight bytes,
    // zero-initialised, never unmapped, and only ever used as this atomic.
    unsafe { PAGE.load(Ordering::Acquire).as_ref() }
}

/// Returns a number that is the same for the life of a process and differs in each child of `fork`.
///
/// Without `MADV_WIPEONFORK` (before Linux 4.14) it is the process id, at the price of a system
/// call.
#[inline]
#[must_use]
pub fn generation() -> u64 {
    match mapped_page().map_or(0, |page| page.load(Ordering::Relaxed)) {
        0 => new_generation(),
        known => known,
    }
}

/// Assigns a generation to a process without one: a fork's child, or one at its start.
#[cold]
fn new_generation() -> u64 {
    let Some(page) = mapped_page().or_else(map_page) else {
        return u64::from(std::process::id());
    };
    let mine = NEXT.fetch_add(1, Ordering::Relaxed);
    match page.compare_exchange(0, mine, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => mine,
        Err(other) => other,
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
