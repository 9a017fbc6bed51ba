//! The XFS reader on volumes that the real mkfs.xfs made and the kernel filled: what it says of an
//! unmounted image is what the mounted one says of itself. Needs root, loop devices and XFS; what
//! is missing is skipped by name. `DIOPTER_XFS_FILES=n` sets the number of random files.

#[path = "images_xfs/files.rs"]
mod files;
#[path = "images_xfs/memory.rs"]
mod memory;
#[path = "images_xfs/mutations.rs"]
mod mutations;
#[path = "images_xfs/names.rs"]
mod names;
#[path = "images_xfs/old.rs"]
mod old;
#[path = "images_xfs/refusals.rs"]
mod refusals;
#[path = "images_xfs/volume.rs"]
mod volume;

use diopter_testkit::{env, machine};
