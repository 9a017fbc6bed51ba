//! From a held bio to an entry of the submission queue.

use io_uring::{opcode, squeue, types};

use crate::memory::MemoryId;
use crate::object::ObjectHandle;
use crate::op::{BioId, BioSpec, Op};
use crate::owned::Naming;
use crate::slab::Slab;

enum Target {
    Fd(types::Fd),
    Fixed(types::Fixed),
}

/// io-uring's builders take a plain or a registered descriptor by type; this picks by value.
macro_rules! with_target {
    ($target:expr, $t:ident => $build:expr) => {
        match $target {
            Target::Fd($t) => $build,
            Target::Fixed($t) => $build,
        }
    };
}

/// Builds the kernel's entries for held bios.
pub(super) struct Entries<'r> {
    pub slab: &'r Slab,
    pub files: &'r [Option<ObjectHandle>],
    pub serial: u64,
    /// True if buffers may be registered, now or later.
    pub has_buffers: bool,
    /// Where memory is added that is to be registered.
    pub due: &'r mut Vec<MemoryId>,
}

impl Entries<'_> {
    #[inline]
    pub fn of(&mut self, id: BioId) -> squeue::Entry {
        let spec = self.slab.spec(id);
        match self.files.iter().position(|file| *file == Some(spec.object)) {
            Some(slot) => {
                let slot = u32::try_from(slot).expect("below FIXED_FILES");
                self.entry_for(id, &spec, Target::Fixed(types::Fixed(slot)))
            }
            None => self.entry_for(id, &spec, Target::Fd(types::Fd(spec.object.raw_fd()))),
        }
    }

    /// Returns the index under which memory is registered, and notes memory that is to be.
    #[inline]
    fn index_of(&mut self, memory: MemoryId) -> Option<u16> {
        match self.slab.note_use(memory, self.serial) {
            Naming::Registered(index) => Some(index),
            Naming::Plain => None,
            Naming::Often => {
                self.due.push(memory);
                None
            }
        }
    }

    #[inline]
    fn entry_for(&mut self, id: BioId, spec: &BioSpec, target: Target) -> squeue::Entry {
        let (iovecs, count) = self.slab.iovecs(id);
        let (flags, priority) = (spec.flags.raw(), spec.flags.priority());
        let registered = spec
            .span
            .filter(|_| self.has_buffers && count == 1)
            .and_then(|span| self.index_of(span.memory));
        let only = || {
            // SAFETY: a read or write has at least one segment, and the bio is held.
            unsafe { iovecs.read() }
        };
        match (spec.op, registered) {
            (Op::Read, Some(index)) => {
                let base = only().iov_base.cast();
                with_target!(target, t => opcode::ReadFixed::new(t, base, spec.length(), index)
                    .offset(spec.offset).rw_flags(flags).ioprio(priority).build())
            }
            (Op::Write, Some(index)) => {
                let base = only().iov_base.cast_const().cast();
                with_target!(target, t => opcode::WriteFixed::new(t, base, spec.length(), index)
                    .offset(spec.offset).rw_flags(flags).ioprio(priority).build())
            }
            (Op::Read, None) if count == 1 => {
                let base = only().iov_base.cast();
                with_target!(target, t => opcode::Read::new(t, base, spec.length())
                    .offset(spec.offset).rw_flags(flags).ioprio(priority).build())
            }
            (Op::Write, None) if count == 1 => {
                let base = only().iov_base.cast_const().cast();
                with_target!(target, t => opcode::Write::new(t, base, spec.length())
                    .offset(spec.offset).rw_flags(flags).ioprio(priority).build())
            }
            (Op::Read, None) => with_target!(target, t => opcode::Readv::new(t, iovecs, count)
                .offset(spec.offset).rw_flags(flags).ioprio(priority).build()),
            (Op::Write, None) => with_target!(target, t => opcode::Writev::new(t, iovecs, count)
                .offset(spec.offset).rw_flags(flags).ioprio(priority).build()),
            (Op::SyncData, _) => with_target!(target, t => opcode::Fsync::new(t)
                .flags(types::FsyncFlags::DATASYNC).build()),
            (Op::SyncAll, _) => with_target!(target, t => opcode::Fsync::new(t).build()),
            (Op::Allocate(length), _) => {
                with_target!(target, t => opcode::Fallocate::new(t, length)
                .offset(spec.offset).mode(libc::FALLOC_FL_KEEP_SIZE).build())
            }
        }
    }
}
