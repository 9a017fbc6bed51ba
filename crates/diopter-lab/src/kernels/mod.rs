//! Real kernels under emulation: packages, an initramfs, a virtual machine whose clock counts
//! instructions, and what comes back from it.
