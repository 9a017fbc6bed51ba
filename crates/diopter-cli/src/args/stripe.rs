//! What can be typed behind `dio stripe`, with its help.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::values::ABOUT_SIZES;
use crate::size;

const ABOUT_STRIPES: &str = "\
A striped file is one file whose bytes lie in several files or block devices, its objects, in \
turn: RAID-0, without redundancy. NAME is a small text file, the manifest. docs/striped-files.md \
has the format, and how to get the bytes back by hand.";

const EXAMPLES_CREATE: &str = "\
Examples:
  dio stripe create big.dio --objects /mnt/a /mnt/b /mnt/c /mnt/d
  dio stripe create big.dio --objects /dev/sdb /dev/sdc --stripe-size 512k
  dio cp --verify big.img big.dio";

/// Make, look at and remove striped files
///
/// Every other command takes the name of a striped file as that of any file.
#[derive(Debug, Args)]
#[command(after_long_help = ABOUT_STRIPES, arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub struct StripeArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: StripeCommand,
}

/// What is done with a striped file.
#[derive(Debug, Subcommand)]
pub enum StripeCommand {
    Create(CreateArgs),
    Info(InfoArgs),
    Rm(RmArgs),
    Seal(SealArgs),
    Unseal(UnsealArgs),
    Adopt(AdoptArgs),
}

/// Make an empty striped file
///
/// Its objects are made first and its name is given last: there is a whole striped file or nothing.
/// Nothing that is there is replaced, and nothing is written to devices.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES_CREATE}\n\n{ABOUT_SIZES}"))]
pub struct CreateArgs {
    /// Name of the striped file
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
    /// A directory for each object file, named again for each further one, or a block device
    ///
    /// In a directory the object is a new file, named as NAME with the object's number behind. A
    /// block device is used whole; what is on it is overwritten when the striped file is written.
    #[arg(long, required = true, num_args = 1.., value_name = "DIR|DEVICE")]
    pub objects: Vec<PathBuf>,
    /// Bytes that go to one object before it is the next one's turn
    #[arg(long, value_name = "SIZE", default_value = "1M", value_parser = size::parse)]
    pub stripe_size: u64,
    /// Fixed size of a file on devices [default: what fits on them]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,
}

/// Tell the layout of a striped file, and whether all its objects are there
///
/// Looks at every object, and writes nothing. The exit status is 2 if one is lost, has another size
/// than the sealed layout says, or belongs to another layout.
#[derive(Debug, Args)]
pub struct InfoArgs {
    /// The striped file
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
    /// Print one JSON document (docs/schema/stripe.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Remove a striped file and its objects
///
/// The manifest goes first, then the object files that carry its mark. Others are left and named,
/// with exit status 2. Devices are not touched.
#[derive(Debug, Args)]
pub struct RmArgs {
    /// The striped file
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
}

/// Write the sizes of the objects down
///
/// Flushes all objects first. From then on a striped file with an object that has lost or won bytes
/// is not opened. Writing to the file by dio takes the sizes out again where it has to.
#[derive(Debug, Args)]
pub struct SealArgs {
    /// The striped file
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
}

/// Mark a manifest that was restored, moved or made by an older dio
///
/// A manifest is followed only if it has a mark, an extended attribute that no copy carries along:
/// what is downloaded or unpacked can have the content of one. Lists the objects, then sets the
/// mark. The manifest has to be yours, and devices need a stable id.
#[derive(Debug, Args)]
pub struct AdoptArgs {
    /// The manifest
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
}

/// Take the sizes of the objects out of the manifest
///
/// So that objects that have another size by now are taken as they are; `dio stripe info` tells
/// what they lack.
#[derive(Debug, Args)]
pub struct UnsealArgs {
    /// The striped file
    #[arg(value_name = "NAME")]
    pub name: PathBuf,
}
