//! The version of the running kernel, for what it does not say in another way.

/// Returns major and minor number of the running kernel; `None` without /proc.
#[must_use]
pub fn version() -> Option<(u32, u32)> {
    version_of(&std::fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

/// Returns major and minor number of a kernel's release, such as `6.1` or `6.18.44-generic`.
#[must_use]
pub fn version_of(release: &str) -> Option<(u32, u32)> {
    let (major, rest) = release.split_once('.')?;
    let minor = rest.split(|byte: char| !byte.is_ascii_digit()).next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_the_first_two_numbers_of_a_release() {
        assert_eq!(version_of("6.18.44-fc-v595"), Some((6, 18)));
        assert_eq!(version_of("6.1\n"), Some((6, 1)));
        assert_eq!(version_of("7.3~rc7"), Some((7, 3)));
        for wrong in ["", "6", "x.1", "6.x", "-6.1"] {
            assert_eq!(version_of(wrong), None, "{wrong}");
        }
        assert!(version() >= Some((5, 6)), "of this system");
    }
}
