//! Loop devices over a file that is named by its descriptor. The kernel clears such a device when
//! its last user is gone: no later process has to find and detach it.

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// Attempts to attach: other processes may take a free number between two calls.
const TRIES_MAX: usize = 32;

const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;
/// Linux 5.8 and later.
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// `struct loop_info64` of linux/loop.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device_inode_rdevice_offset_limit: [u64; 5],
    number_and_encryption: [u32; 3],
    flags: u32,
    names_and_key: [u8; 64 + 64 + 32],
    init: [u64; 2],
}

/// `struct loop_config` of linux/loop.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232);
const _: () = assert!(size_of::<Config>() == 304);

/// An attached loop device. The kernel detaches it when this is dropped and its last mount is gone.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _open: File,
}

impl LoopDevice {
    /// Attaches a free device to a file that is open for writing, with direct I/O below it where
    /// the file system has that.
    ///
    /// # Errors
    /// Fails with `EACCES` or `EPERM` without privilege, and `EINVAL` before Linux 5.8.
    pub fn attach(file: BorrowedFd<'_>) -> io::Result<LoopDevice> {
        let control = File::options().read(true).write(true).open("/dev/loop-control")?;
        let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
        for _ in 0..TRIES_MAX {
            // SAFETY: this request takes no argument and touches no memory of this process.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let open = File::options().read(true).write(true).open(&path)?;
            let flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
            let attached =
                configure(&open, file, flags).or_else(|error| match error.raw_os_error() {
                    Some(libc::EINVAL) => configure(&open, file, LO_FLAGS_AUTOCLEAR),
                    _ => Err(error),
                });
            match attached {
                Ok(()) => return Ok(LoopDevice { path, _open: open }),
                Err(error) if error.raw_os_error() == Some(libc::EBUSY) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Returns its node: `/dev/loop0`.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn configure(device: &File, file: BorrowedFd<'_>, flags: u32) -> io::Result<()> {
    let fd = u32::try_from(file.as_raw_fd()).map_err(io::Error::other)?;
    let info = Info {
        device_inode_rdevice_offset_limit: [0; 5],
        number_and_encryption: [0; 3],
        flags,
        names_and_key: [0; 160],
        init: [0; 2],
    };
    let config = Config { fd, block_size: 0, info, reserved: [0; 8] };
    // SAFETY: the kernel reads a `struct loop_config` from the pointer during the call, and that
    // is what `config` is: its size and layout are asserted above, and it lives through the call.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
