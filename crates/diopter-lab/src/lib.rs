//! Real kernels under emulation: packages, an initramfs, a virtual machine whose clock counts
//! instructions, and what comes back from it.
//!
//! From the host's side: [`kernel`] is one kernel with its modules, [`initramfs`] what the guest
//! finds in its memory, [`machine`] the emulator that runs it, [`fleet`] two of them at once.
//!
//! What is measured: [`matrix`] is the jobs, [`guest`] how a guest does them and what it reports,
//! [`measure`] and [`contexts`] the figures, [`run`] all boots, and [`results`] the document. From
//! the document alone [`relative`] makes what a table or [`picture`] shows.

#![forbid(unsafe_code)]

mod apt;
pub mod between;
pub mod bisect;
pub mod catalog;
pub mod choice;
pub mod contexts;
mod cpio;
mod deb;
mod elf;
pub mod error;
pub mod fleet;
pub mod guest;
pub mod initramfs;
pub mod kernel;
mod limited;
pub mod listing;
pub mod machine;
pub mod matrix;
pub mod measure;
pub mod picture;
pub mod programs;
pub mod relative;
pub mod results;
pub mod run;
pub mod store;
pub mod table;
mod trust;
mod unpack;
pub mod version;
pub mod watch;

pub use choice::Choice;
pub use error::LabError;
pub use fleet::Fleet;
pub use initramfs::Initramfs;
pub use kernel::{Kernel, Module, ModuleSet, Presence};
pub use machine::{BootError, BootOptions, Console, Machine};
pub use store::{Programs, Store, StoreOptions};
pub use watch::{Progress, Watch};
