//! The command lines of `dio sum` and `dio verify`, with their help.

use std::path::{Path, PathBuf};

use clap::Args;

use super::values::{self, ABOUT_SIZES, BytesProgress, IoDepth};
use crate::size;

const EXAMPLES_SUM: &str = "\
Examples:
  dio sum backup.img /dev/sdb1
  (cd /srv && dio sum data > ~/data.b3)
  (cd /srv && dio sum --check --quiet ~/data.b3)
  dio sum disk.img::/etc/fstab
  dio sum rados:backup/disk.img
  tar c data | dio sum -";

const ABOUT_LISTS: &str = "\
Lists of sums:
  Each line has the sum in hexadecimal, two spaces and the name, as b3sum writes and reads them. A \
  name with a backslash or a line feed has \\\\ or \\n in its place, and a backslash before the \
  sum. A name that is not UTF-8 is written as it is; b3sum refuses it.";

const EXAMPLES_VERIFY: &str = "\
Examples:
  dio verify data.bin /mnt/backup/data.bin
  dio verify /srv/data /mnt/backup/data
  dio verify --metadata /srv/data /mnt/backup/data
  dio verify --bytes 4G disk.img /dev/sdb
  dio verify new.bin disk.img::/data.bin
  dio verify disk.img rados:backup/disk.img";

const ABOUT_STATUS: &str = "\
Exit status:
  0  no difference
  1  a difference
  2  something could not be read, or a line of the list has another form
  128+n  ended by signal n";

/// Print BLAKE3 sums of files and trees, or check them against a list
///
/// Reads what is below the page cache: what was written is flushed first, then read by direct
/// I/O. The sum is that of the whole content, as b3sum prints it; holes count as zeros. Of a
/// directory, each regular file below it is summed up, in the order of the names; symbolic links
/// below it are not followed.
#[derive(Debug, Args)]
#[command(
    after_long_help = format!("{EXAMPLES_SUM}\n\n{ABOUT_LISTS}\n\n{ABOUT_SIZES}\n\n{ABOUT_STATUS}")
)]
pub struct SumArgs {
    /// Files, directories, striped files, block devices, IMAGE::/PATH in unmounted file systems, or
    /// `rados:[CONF!]POOL[@NAMESPACE]/NAME`, a striped object of a Ceph cluster; - is standard
    /// input, which is read as it is, without direct I/O; with --check, more lists
    #[arg(value_name = "NAME", required_unless_present = "check")]
    pub names: Vec<PathBuf>,
    /// Check the files that this list names; - is standard input
    ///
    /// The list may be a NAME instead, as in `dio sum --check --quiet LIST`.
    #[arg(short, long, value_name = "LIST", num_args = 0..=1)]
    pub check: Option<Option<PathBuf>>,
    /// With --check, allow names outside the working directory
    ///
    /// Without it, absolute names, names with `..`, block devices, rados: names, and links, images
    /// and striped files that lead outside are refused.
    #[arg(long, requires = "check")]
    pub allow_outside: bool,
    /// With --check, print only files that do not have their sum
    #[arg(short, long, requires = "check")]
    pub quiet: bool,
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Print one JSON document (docs/schema/sum.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Compare the content of two files or trees
///
/// Reads what is below the page cache: what was written is flushed first, then read by direct
/// I/O; the line in the end says where the bytes came from. Ends with the first bytes that differ.
/// Of two directories, all that is below them is compared: names, types, content, and where
/// symbolic links lead; with --metadata also permissions, owners, times, extended attributes and
/// hard links. A file and a directory are the file and the one of its name in the directory.
#[derive(Debug, Args)]
#[command(after_long_help = format!("{EXAMPLES_VERIFY}\n\n{ABOUT_SIZES}\n\n{ABOUT_STATUS}"))]
pub struct VerifyArgs {
    /// A file, directory, striped file, block device, IMAGE::/PATH, or rados: name
    #[arg(value_name = "A")]
    pub first: PathBuf,
    /// A name of the same kinds
    #[arg(value_name = "B")]
    pub second: PathBuf,
    /// Compare the first bytes of each file only
    #[arg(short = 'n', long, value_name = "SIZE", value_parser = size::parse)]
    pub bytes: Option<u64>,
    /// Compare also what `dio cp -a` keeps: permissions, owners, times of modification, extended
    /// attributes and hard links
    ///
    /// Access lists are among the extended attributes. The names on the command line are compared
    /// too, and links there are followed. Striped files, block devices, files inside images and
    /// rados: names are refused.
    #[arg(long)]
    pub metadata: bool,
    /// Print nothing; the exit status is the result
    #[arg(short, long)]
    pub quiet: bool,
    #[command(flatten)]
    pub reading: ReadingArgs,
    /// Print one JSON document (docs/schema/verify.json) on standard output
    #[arg(long)]
    pub json: bool,
}

impl SumArgs {
    /// Returns the lists to check; `None` if sums are made.
    pub fn lists(&self) -> Option<Vec<&Path>> {
        let value = self.check.as_ref()?.as_deref();
        Some(value.into_iter().chain(self.names.iter().map(AsRef::as_ref)).collect())
    }
}

/// How both read.
#[derive(Debug, Args)]
pub struct ReadingArgs {
    /// Bytes per request [default: up to 2M, or a multiple of the stripes of the file or device]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub bs: Option<u64>,
    /// Requests in flight, or auto: tuned for throughput while reading
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = values::iodepth)]
    pub iodepth: IoDepth,
    /// Read a rados: name whose copy was interrupted
    #[arg(long)]
    pub incomplete: bool,
    /// Show progress on standard error: on a terminal, always (elsewhere lines, at most one each
    /// second), or never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub progress: BytesProgress,
}
