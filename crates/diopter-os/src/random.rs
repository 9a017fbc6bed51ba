//! Bytes that no other process can guess.

use std::fs::File;
use std::io::Read;

use crate::errno::Errno;

/// Returns random bytes, from the device where a filter of system calls refuses getrandom(2).
///
/// # Errors
/// Fails as getrandom(2) does, where the device cannot be read either.
pub fn bytes<const N: usize>() -> Result<[u8; N], Errno> {
    const { assert!(N <= 256, "getrandom(2) returns up to 256 bytes whole") }
    let mut bytes = [0; N];
    // SAFETY: the memory is an array of this length.
    let returned = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), N, 0) };
    if usize::try_from(returned) == Ok(N) {
        return Ok(bytes);
    }
    let errno = Errno::last();
    let read = File::open("/dev/urandom").and_then(|mut device| device.read_exact(&mut bytes));
    read.map(|()| bytes).map_err(|_| errno)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check_in_own_process, refuse_random};

    #[test]
    fn a_process_without_getrandom_has_the_device() {
        check_in_own_process(module_path!(), "a_process_without_getrandom_has_the_device", || {
            let before: [u8; 16] = bytes().expect("the call");
            refuse_random(Errno::ENOSYS).expect("seccomp");
            let after: [u8; 16] = bytes().expect("the device");
            assert!(before != after && after != [0; 16]);
        });
    }
}
