//! The command line of `dio stripe`, with its help.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::values::ABOUT_SIZES;
use crate::size;

const ABOUT_STRIPES: &str = "\
A striped file is one file whose bytes are distributed over several files or block devices, its \
objects, in turn: RAID-0, without redundancy. NAME is a small text file, the manifest. \
docs/striped-files.md has the format, and how to recover the bytes by hand.";

const EXAMPLES_CREATE: &str = "\
Examples:
  dio stripe create big.dio --objects /mnt/a /mnt/b /mnt/c /mnt/d
  dio stripe create big.dio --objects /dev/sdb /dev/sdc --stripe-size 512k
  dio cp --verify big.img big.dio";

/// Create, inspect and remove striped files
///
/// Every other command takes the name of a striped file like that of any file.
#[derive(Debug, Args)]
#[command(after_long_help = ABOUT_STRIPES, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub struct StripeArgs {
    #[command(subcommand)]
    pub command: StripeCommand,
}

#[derive(Debug, Subcommand)]
pub enum StripeCommand {
    Create(CreateArgs),
    Info(InfoArgs),
    Rm(RmArgs),
    Seal(SealArgs),
    Unseal(UnsealArgs),
    Adopt(AdoptArgs),
}

/// Create an empty striped file
///
/// The objects are created first and the manifest last: there is a complete striped file or none.
/// Existing files are not replaced, and nothing is written to devices.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES_CREATE}\n\n{ABOUT_SIZES}"))]
pub struct CreateArgs {
    /// Name of the striped file
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
    /// A directory for each object file, repeated for more objects in it, or a block device
    ///
    /// In a directory, the object is a new file, named NAME with the object's number appended. A
    /// block device is used whole; its content is overwritten when the striped file is written.
    #[arg(long, required = true, num_args = 1.., value_name = "DIR|DEVICE")]
    pub objects: Vec<PathBuf>,
    /// Bytes written to one object before the next one
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = size::parse)]
    pub stripe_size: u64,
    /// Fixed size of a file on devices [default: all that fits on them]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
}

/// Show the layout of a striped file, and the state of its objects
///
/// Opens every object, and writes nothing. The exit status is 2 if one is missing, its size differs
/// from the sealed layout, or it belongs to another layout. Of a striped object of a Ceph cluster
/// (`rados:[CONF!]POOL[@NAMESPACE]/NAME`) it shows layout, size and objects; missing ones are
/// holes.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// The striped file, or rados: name
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
    /// Print one JSON document (docs/schema/stripe.json; of a rados: name stripe-rados.json) on
    /// standard output
    #[arg(long)]
    pub json: bool,
}

/// Remove a striped file and its objects
///
/// Removes the manifest first, then the object files that have its mark. Others are kept and
/// listed, with exit status 2. Devices are not touched.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// The striped file
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
}

/// Record the sizes of the objects in the manifest
///
/// Flushes all objects first. From then on, opening the striped file fails if the size of an object
/// has changed. dio clears the sizes again when it writes to the file and has to.
#[derive(Debug, Args)]
pub struct SealArgs {
    /// The striped file
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
}

/// Mark a manifest that was restored, moved or made by an older dio
///
/// A manifest is followed only if it has a mark, an extended attribute that copies do not keep: a
/// downloaded or unpacked file can have the content of a manifest. Lists the objects, then sets the
/// mark. You must own the manifest, and devices need a stable id.
#[derive(Debug, Args)]
pub struct AdoptArgs {
    /// The manifest
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
}

/// Clear the sizes of the objects in the manifest
///
/// Objects whose size has changed are then used as they are; `dio stripe info` shows what is
/// missing.
#[derive(Debug, Args)]
pub struct UnsealArgs {
    /// The striped file
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
}
