//! Real kernels under emulation: packages, an initramfs, a virtual machine whose clock counts
//! instructions, and what comes back from it.
//!
//! From the host's side: [`kernel`] is one kernel with its modules, [`initramfs`] what the guest
//! finds in its memory, [`machine`] the emulator that runs it, [`fleet`] two of them at once.
//!
//! What is measured: [`matrix`] is the jobs, [`guest`] how a guest does them and what it reports,
//! [`measure`] and [`contexts`] the figures, [`run`] all boots, and [`results`] the document. From
//! the document alone [`relative`] makes what a table shows; its page is that of any report.

#![forbid(unsafe_code)]
#![allow(missing_docs, reason = "not promised to users: a name that says it all has no comment")]

pub mod error;
pub mod watch;
pub mod version;
pub mod choice;
pub mod catalog;
pub mod kernel;
mod limited;
mod deb;
mod elf;
mod build_tree;
mod unpack;
mod cpio;
pub mod programs;
mod trust;
mod apt;
pub mod store;
pub mod initramfs;
pub mod machine;
pub mod fleet;
pub mod matrix;
pub mod guest;
pub mod contexts;
pub mod measure;
pub mod run;
pub mod results;
pub mod relative;
pub mod table;
pub mod listing;
pub mod bisect;
pub mod between;
pub mod check;

pub use choice::{Choice, Selection};
pub use error::{BootError, LabError};
pub use fleet::Fleet;
pub use initramfs::Initramfs;
pub use kernel::{Kernel, Module, ModuleSet, Presence};
pub use machine::{BootOptions, Console, Machine};
pub use store::{Programs, Store, StoreOptions};
pub use watch::{Progress, Watch};
