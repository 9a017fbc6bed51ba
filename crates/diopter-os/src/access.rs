//! A check of memory for code that moves bytes in this process: the kernel returns EFAULT for an
//! address that it cannot use, and a copy in this process would raise SIGSEGV or SIGBUS.

use std::ffi::c_void;

use rustix::io::Errno;
use rustix::mm::{Advice, madvise};

/// Returns false if an access to the memory would raise a signal; `is_filled` for a write. The
/// kernel maps the pages as an access would. True where that cannot be found out: Linux 5.14 can.
/// Memory that another thread unmaps afterwards is not noticed.
#[must_use]
pub fn is_accessible(address: *const c_void, length: usize, is_filled: bool) -> bool {
    if length == 0 || address.is_null() {
        return length == 0;
    }
    match populate(address, length, is_filled) {
        Ok(()) => true,
        Err(Errno::NOMEM | Errno::FAULT | Errno::HWPOISON) => false,
        // Memory without that permission, or of a device; or a kernel without the advice.
        Err(Errno::INVAL) => {
            let known = 0_u8;
            populate((&raw const known).cast(), 1, false).is_err()
        }
        Err(_) => true,
    }
}

fn populate(address: *const c_void, length: usize, is_filled: bool) -> rustix::io::Result<()> {
    let advice = if is_filled { Advice::LinuxPopulateWrite } else { Advice::LinuxPopulateRead };
    let before = address.addr() % rustix::param::page_size();
    let length = length.checked_add(before).ok_or(Errno::FAULT)?;
    // SAFETY: the advice changes no content, and the kernel checks the range.
    unsafe { madvise(address.wrapping_byte_sub(before).cast_mut(), length, advice) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_accessible_as_it_is_mapped() {
        let own = [0_u8; 100];
        assert!(is_accessible(own[1..].as_ptr().cast(), 99, false));
        let null = std::ptr::null();
        assert!(is_accessible(null, 0, true) && !is_accessible(null, 1, false));
        // The text of a program is mapped for reading.
        let text: *const c_void = (memory_is_accessible_as_it_is_mapped as fn()) as *const c_void;
        let is_known = !is_accessible(std::ptr::without_provenance(1 << 12), 1, false);
        assert!(is_accessible(text, 1, false));
        assert!(!is_known || !is_accessible(text, 1, true));
        assert!(!is_known || !is_accessible(text, usize::MAX, false));
    }
}
