//! Sets a ring up with as many of the requested features as the kernel grants.

use io_uring::IoUring;

use crate::errno::Errno;
use crate::uring::{RingWanted, errno_of};

use super::offered::Offered;
use super::polling;

pub(super) fn set_up(entries: u32, wanted: RingWanted) -> Result<(IoUring, RingWanted), Errno> {
    let mut granted = wanted;
    loop {
        let mut builder = IoUring::builder();
        builder.dontfork().setup_clamp();
        polling::ask(&mut builder, &mut granted);
        if granted.single_issuer {
            builder.setup_single_issuer();
        }
        if granted.defer_taskrun && granted.single_issuer {
            builder.setup_defer_taskrun();
        } else {
            granted.defer_taskrun = false;
        }
        if granted.coop_taskrun {
            builder.setup_coop_taskrun();
            if !granted.defer_taskrun {
                // Without it nothing says that a completion waits for a system call.
                builder.setup_taskrun_flag();
            }
        }
        let error = match builder.build(entries) {
            Ok(ring) => return Offered::by(&ring).check(granted).map(|()| (ring, granted)),
            Err(error) => errno_of(&error),
        };
        // Newest first; each is dropped by itself. An errno other than EINVAL is not about flags.
        let dropped =
            [&mut granted.defer_taskrun, &mut granted.single_issuer, &mut granted.coop_taskrun]
                .into_iter()
                .find(|flag| **flag);
        match dropped {
            Some(flag) if error == Errno::EINVAL => *flag = false,
            _ => return Err(error),
        }
    }
}
