//! The flags of bios: those of the kernel, and those that say where a bio goes.

/// The priority of requests in the scheduler of a device, as ioprio_set(2) has it. Schedulers that
/// have none (`none`, `kyber`) ignore it; `mq-deadline` knows the classes, `bfq` the levels too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum IoPriority {
    /// Before all others, at a level from 0, the highest, to 7. The kernel wants `CAP_SYS_NICE` or
    /// `CAP_SYS_ADMIN`.
    RealTime(u8),
    /// As every other, at a level from 0, the highest, to 7.
    BestEffort(u8),
    /// When the device has nothing else to do.
    Idle,
}

impl IoPriority {
    /// Returns the class and level of ioprio_set(2); a level past 7 is 7.
    const fn class_and_level(self) -> (i32, i32) {
        match self {
            IoPriority::RealTime(given) => (1, level_of(given)),
            IoPriority::BestEffort(given) => (2, level_of(given)),
            IoPriority::Idle => (3, 0),
        }
    }
}

const fn level_of(level: u8) -> i32 {
    if level > 7 { 7 } else { level as i32 }
}

/// Per-bio flags of `preadv2` and `pwritev2` (`RWF_*`, linux/fs.h).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct RwFlags(i32);

impl RwFlags {
    pub const NONE: RwFlags = RwFlags(0);
    /// `RWF_DSYNC`: this write is durable when it completes.
    pub const DSYNC: RwFlags = RwFlags(libc::RWF_DSYNC);
    /// `RWF_SYNC`: this write and all metadata are durable when it completes.
    pub const SYNC: RwFlags = RwFlags(libc::RWF_SYNC);
    /// `RWF_APPEND`: the kernel places this write at the end of the file, atomically.
    pub const APPEND: RwFlags = RwFlags(libc::RWF_APPEND);
    /// `RWF_ATOMIC` (Linux 6.11): all or nothing, also across a power failure.
    pub const ATOMIC: RwFlags = RwFlags(0x40);
    /// `RWF_DONTCACHE` (Linux 6.14, file systems one by one): buffered, and dropped from the page
    /// cache once it is done.
    pub const DONTCACHE: RwFlags = RwFlags(0x80);
    /// No flag of the kernel: the bio is of an object of a server ([`OpenObject::of_server`]).
    pub(crate) const OF_SERVER: RwFlags = RwFlags(1 << 30);
    /// Five bits that the kernel does not get: class and level of an [`IoPriority`], or 0.
    const PRIORITY_SHIFT: u32 = 24;
    const PRIORITY: RwFlags = RwFlags(0x1f << RwFlags::PRIORITY_SHIFT);

    /// Returns the union of both sets of flags.
    #[must_use]
    pub const fn with(self, other: RwFlags) -> RwFlags {
        RwFlags(self.0 | other.0)
    }

    /// Returns these flags without those of `other`.
    #[must_use]
    pub const fn without(self, other: RwFlags) -> RwFlags {
        RwFlags(self.0 & !other.0)
    }

    /// Returns true if every flag of `other` is set.
    #[must_use]
    pub const fn has(self, other: RwFlags) -> bool {
        self.0 & other.0 == other.0
    }

    /// Returns the flags that the kernel knows.
    pub(crate) const fn raw(self) -> i32 {
        self.0 & !(RwFlags::OF_SERVER.0 | RwFlags::PRIORITY.0)
    }

    /// Returns the flags of bios of this priority.
    pub(crate) const fn of_priority(priority: IoPriority) -> RwFlags {
        let (class, level) = priority.class_and_level();
        RwFlags(((class << 3) | level) << RwFlags::PRIORITY_SHIFT)
    }

    /// Returns the priority as ioprio_set(2) has it; 0 for that of the thread.
    pub(crate) const fn priority(self) -> u16 {
        let bits = (self.0 & RwFlags::PRIORITY.0) >> RwFlags::PRIORITY_SHIFT;
        let [low, high, ..] = bits.to_le_bytes();
        let bits = u16::from_le_bytes([low, high]);
        ((bits >> 3) << 13) | (bits & 7)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_priority_has_the_number_of_the_kernel_and_is_no_flag_of_it() {
        for (priority, number) in [
            (IoPriority::RealTime(0), 0x2000),
            (IoPriority::RealTime(7), 0x2007),
            (IoPriority::BestEffort(4), 0x4004),
            (IoPriority::BestEffort(255), 0x4007),
            (IoPriority::Idle, 0x6000),
        ] {
            let flags = RwFlags::DSYNC.with(RwFlags::of_priority(priority));
            assert_eq!((flags.priority(), flags.raw()), (number, libc::RWF_DSYNC), "{priority:?}");
        }
        assert_eq!(RwFlags::DSYNC.with(RwFlags::OF_SERVER).priority(), 0);
    }
}
