//! What can be typed behind `dio lab`, with its help.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use diopter_lab::kernels::Choice;

use super::low::ABOUT_SIZES;
use super::values::ProgressWhen;
use crate::size;

const ABOUT_KERNELS: &str = "\
Kernels:
  6.1                       the newest of a series that a Debian suite or the cache has
  6.18.15                   an upstream version
  5.10.0-46-amd64           a release, as uname -r tells it
  ./bzImage:./modules       an image of your own, and a folder with its modules
  ./linux-image-6.9.deb     a package of your own; more of them with colons between";

const ABOUT_LAB: &str = "\
Kernels come as packages from Debian's suites, by an apt with a state of its own: nothing of the
system's is touched, and no root is needed. They run in QEMU without hardware support, on a virtual
processor whose clock counts instructions: the same run gives the same figures, to the digit, on any
machine. docs/lab.md says what such a figure means, and what it does not.";

const EXAMPLES_KERNELS: &str = "\
Examples:
  dio lab kernels
  dio lab kernels --update --json";

/// Run jobs on real kernels, without hardware, to the digit
#[derive(Debug, Args)]
#[command(after_long_help = format!("{ABOUT_LAB}\n\n{ABOUT_KERNELS}"), arg_required_else_help = true)]
#[command(disable_help_subcommand = true)]
pub struct LabArgs {
    /// What to do.
    #[command(subcommand)]
    pub command: LabCommand,
}

/// What is done with kernels.
#[derive(Debug, Subcommand)]
pub enum LabCommand {
    Kernels(KernelsArgs),
}

/// List the kernels that can be had, and those in the cache
///
/// By series: the kernel that --kernel takes for it, the suites that have it, and how many upstream
/// versions there are between which dio lab bisect can search.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES_KERNELS}\n\n{ABOUT_KERNELS}\n\n{ABOUT_SIZES}"))]
pub struct KernelsArgs {
    /// Where kernels come from and are kept.
    #[command(flatten)]
    pub store: StoreArgs,
    /// Print one JSON document (docs/schema/lab-kernels.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Where kernels come from and are kept.
#[derive(Debug, Args)]
#[command(next_help_heading = "Packages and cache")]
pub struct StoreArgs {
    /// Folder for what was fetched [default: $XDG_CACHE_HOME/diopter]
    #[arg(long, value_name = "DIR")]
    pub cache: Option<PathBuf>,
    /// Bytes that it may take; kernels that were used least recently go
    #[arg(long, value_name = "SIZE", default_value = "2G", value_parser = size::parse)]
    pub cache_limit: u64,
    /// Lines of a sources.list, in place of Debian's suites
    #[arg(long, value_name = "FILE")]
    pub sources: Option<PathBuf>,
    /// Fetch the lists of packages even if they are younger than a day
    #[arg(long)]
    pub update: bool,
    /// Show progress on standard error: on a terminal, or never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub progress: ProgressWhen,
}

/// One kernel of `--kernel`.
pub fn kernel(text: &str) -> Result<Choice, String> {
    text.parse().map_err(|error: diopter_lab::kernels::LabError| error.to_string())
}
