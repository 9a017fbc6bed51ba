//! The features of this kernel's io_uring that a ring needs.

use io_uring::IoUring;

use crate::errno::Errno;
use crate::uring::RingWanted;

/// Feature bits of `io_uring_setup`.
#[derive(Clone, Copy)]
pub(super) struct Offered {
    /// `IORING_FEAT_EXT_ARG` (Linux 5.11, and 5.10 with the backport): `io_uring_enter` takes a
    /// time limit.
    ext_arg: bool,
    /// `IORING_FEAT_SQPOLL_NONFIXED` (Linux 5.11): the thread of `sqpoll` knows files that are not
    /// registered.
    sqpoll_nonfixed: bool,
}

impl Offered {
    pub fn by(ring: &IoUring) -> Offered {
        let its = ring.params();
        Offered {
            ext_arg: its.is_feature_ext_arg() && !is_masked(),
            sqpoll_nonfixed: its.is_feature_sqpoll_nonfixed(),
        }
    }

    /// Fails with `EOPNOTSUPP` if a feature that is needed is missing.
    pub fn check(self, granted: RingWanted) -> Result<(), Errno> {
        let is_enough = self.ext_arg && (self.sqpoll_nonfixed || granted.sqpoll.is_none());
        if is_enough { Ok(()) } else { Err(Errno::EOPNOTSUPP) }
    }
}

#[cfg(any(test, feature = "testing"))]
fn is_masked() -> bool {
    crate::testing::is_ext_arg_masked()
}

#[cfg(not(any(test, feature = "testing")))]
const fn is_masked() -> bool {
    false
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_ring_needs_a_time_limit_and_its_thread_plain_files() {
        let sqpoll = RingWanted { sqpoll: Some(Duration::from_secs(1)), ..RingWanted::PLAIN };
        for (ext_arg, sqpoll_nonfixed, granted, is_enough) in [
            (true, true, RingWanted::ALL, true),
            (true, false, RingWanted::ALL, true),
            (false, true, RingWanted::ALL, false),
            (false, false, RingWanted::PLAIN, false),
            (true, true, sqpoll, true),
            (true, false, sqpoll, false),
            (false, true, sqpoll, false),
        ] {
            let checked = Offered { ext_arg, sqpoll_nonfixed }.check(granted);
            let expected = if is_enough { Ok(()) } else { Err(Errno::EOPNOTSUPP) };
            assert_eq!(checked, expected, "{ext_arg} {sqpoll_nonfixed} {granted:?}");
        }
    }
}
