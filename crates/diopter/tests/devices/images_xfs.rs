//! The XFS reader on volumes that the real mkfs.xfs made and the kernel filled: what it says of an
//! unmounted image is what the mounted one says of itself. Needs root, loop devices and XFS; what
//! is missing is skipped by name. `DIOPTER_XFS_FILES=n` sets the number of random files.

mod files;
mod memory;
mod mutations;
mod names;
mod old;
mod refusals;
mod volume;

use diopter_testkit::{env, machine};
