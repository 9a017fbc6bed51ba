//! The privileges of this process.

/// Returns true if the kernel gave this process more privileges than its caller has, when it was
/// executed: by a set-user-id or set-group-id bit, file capabilities, or a security module. Then
/// what the caller names is not to be trusted (`secure execution` in ld.so(8)).
#[must_use]
pub fn is_raised() -> bool {
    // SAFETY: getauxval takes every number, and only reads what the kernel wrote before main.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_test_has_the_privileges_of_its_caller() {
        assert!(!super::is_raised());
    }
}
