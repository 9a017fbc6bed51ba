//! The user, group and number of this process. POSIX has no error for these calls, and a filter of
//! system calls refuses them all the same: the kernel's report to the program at its start is what
//! counts then.

/// The result of a call that the kernel or a filter refused, in place of a user or a group.
const REFUSED: u32 = u32::MAX;

/// Returns `found`, or the entry of the auxiliary vector, which takes no system call.
fn or_at_start(found: u32, entry: libc::c_ulong) -> u32 {
    if found != REFUSED {
        return found;
    }
    // SAFETY: getauxval has no requirements.
    let value = unsafe { libc::getauxval(entry) };
    u32::try_from(value).unwrap_or(REFUSED)
}

/// Returns the effective user id of this process.
#[must_use]
pub fn effective_user() -> u32 {
    // SAFETY: the call has no requirements.
    let found = unsafe { libc::geteuid() };
    or_at_start(found, libc::AT_EUID)
}

/// Returns true for the effective user 0.
#[must_use]
pub fn is_root() -> bool {
    effective_user() == 0
}

/// Returns the real user id of this process.
#[must_use]
pub fn user() -> u32 {
    // SAFETY: the call has no requirements.
    let found = unsafe { libc::getuid() };
    or_at_start(found, libc::AT_UID)
}

/// Returns the real group id of this process.
#[must_use]
pub fn group() -> u32 {
    // SAFETY: the call has no requirements.
    let found = unsafe { libc::getgid() };
    or_at_start(found, libc::AT_GID)
}

/// Returns the number of this process; -1 where that is refused.
#[must_use]
pub fn process() -> i32 {
    // SAFETY: the call has no requirements.
    unsafe { libc::getpid() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::errno::Errno;
    use crate::testing::{check_in_own_process, refuse_ids};

    #[test]
    fn a_process_whose_ids_are_refused_has_those_of_its_start() {
        let name = "a_process_whose_ids_are_refused_has_those_of_its_start";
        check_in_own_process(module_path!(), name, || {
            let before = (effective_user(), user(), group());
            assert!(process() > 0);
            refuse_ids(Errno::EPERM).expect("seccomp");
            assert_eq!((effective_user(), user(), group()), before);
            assert_eq!(process(), -1);
        });
    }
}
