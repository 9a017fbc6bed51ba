//! Definitions of `dio cp`, and which names and options go together.

use std::path::{Path, PathBuf};

use clap::Args;
use clap::error::ErrorKind;
use diopter_copy::Pattern;
use diopter_text::untrusted;

use super::patterns::{self, Patterns};
use super::values::{
    self, ABOUT_SIZES, AttributeName, BytesProgress, FlushWhat, IoDepth, ReflinkWhen, SparseWhen,
};
use crate::size;

const ABOUT_STRIPED_TARGETS: &str = "\
Striped files as targets:
  A copy that fails keeps the old content and removes its new objects. One that is killed \
  (SIGKILL, power loss) leaves them: dio stripe info lists them, and they can be removed. \
  --resume is refused, --reflink shares no blocks, --sparse works as for any file.";

const EXAMPLES_CP: &str = "\
Examples:
  dio cp --verify big.img /mnt/backup/
  dio cp -a --progress=always /srv/data /mnt/backup/
  dio cp --resume big.img /mnt/backup/
  dio cp disk.img::/etc/fstab .
  dio cp -r --verify /dev/sdb1::/home/me saved
  dio cp --overwrite --verify new.bin disk.img::/data.bin
  dio cp --verify disk.img rados:backup/disk.img
  zcat disk.img.gz | dio cp --overwrite --expect-size=8G - /dev/sdb
  dio cp /dev/sdb - | gzip > disk.img.gz";

/// Copy files by direct I/O
///
/// Writes to a temporary name in the target's directory, flushes, renames, and flushes the
/// directory: the target's name always has the complete old or the complete new content. Holes are
/// kept; mode, times, ownership and extended attributes with -a or --preserve, as cp does.
///
/// Bytes of a source that are in the page cache are copied from there, but not with --verify, and
/// not if the variable DIOPTER_ROUTE is `direct`.
///
/// Below a directory on the command line, symbolic links are not followed, in SRC without -L and in
/// DST: a link is copied as a link, and a link that has a file's name is replaced.
///
/// Striped files are read and written as any file. To replace one, new objects are written next to
/// the old ones, then the manifest is replaced and sealed, with its owner and mode.
///
/// IMAGE::/PATH is a file inside an unmounted ext2, ext3, ext4 or XFS image or device. A file
/// copied out of an image keeps its content, holes and permissions; owner, times and attributes are
/// not kept. With --overwrite, a file in an image is written in place, with content of the same
/// size, if all of it is allocated, written and not shared.
///
/// `rados:[CONF!]POOL[@NAMESPACE]/NAME` is a striped object of a Ceph cluster, as `rados --striper`
/// has them, by librados (docs/rados.md). A new one is made; an existing one is written in place
/// with --overwrite.
#[derive(Debug, Args)]
#[command(
    after_long_help = format!("{EXAMPLES_CP}\n\n{ABOUT_STRIPED_TARGETS}\n\n{ABOUT_SIZES}"),
    override_usage = "dio cp [OPTIONS] <SRC>... <DST>\n       dio cp [OPTIONS] -t <DIR> <SRC>...",
    // A shell's alias may have an option already.
    args_override_self = true
)]
pub struct CpArgs {
    /// SRC: files, striped files, block devices, IMAGE::/PATH or, with -r, directories to copy; `-`
    /// alone is standard input. DST, the last name: a file, striped file, rados: name or directory,
    /// `-` for standard output, or with --overwrite a device or IMAGE::/PATH
    // One list: of two, clap takes a name with a dash after `--` for an option, and ends the list
    // at an option.
    #[arg(required = true, value_name = "SRC")]
    pub names: Vec<PathBuf>,
    /// Copy directories recursively
    #[arg(short, long, visible_short_alias = 'R')]
    pub recursive: bool,
    /// Same as -r --preserve=all; makes device nodes and sockets like those in a source, too
    #[arg(short, long)]
    pub archive: bool,
    /// Follow every symbolic link in the sources
    ///
    /// Without -r, this is the default. With it, a link to a directory that it is in is an error.
    #[arg(short = 'L', long, conflicts_with = "striped",
          overrides_with_all = ["no_dereference", "dereference_named"])]
    pub dereference: bool,
    /// Copy symbolic links as links; the default with -r
    #[arg(short = 'P', long, overrides_with_all = ["dereference", "dereference_named"])]
    pub no_dereference: bool,
    /// Follow the symbolic links that are named as SRC, and no others
    #[arg(short = 'H', overrides_with_all = ["dereference", "no_dereference"])]
    pub dereference_named: bool,
    /// Leave out names below SRC that match this pattern; repeatable
    ///
    /// A pattern without a slash is compared with the last part of a name, at any depth; one with a
    /// slash with the path below SRC. `*` and `?` match no slash, `**` does; `[a-z]`, `{a,b}` and
    /// `\` are as in a shell. With a slash at its end it matches directories only. SRC itself is
    /// never left out.
    #[arg(long, value_name = "PATTERN", value_parser = patterns::parse)]
    pub exclude: Vec<Pattern>,
    /// Leave out names that match a pattern of this file; repeatable
    ///
    /// One pattern a line, as of --exclude. Empty lines, and lines that begin with `#`, are left
    /// out. `-` is standard input.
    #[arg(long, value_name = "FILE", value_parser = patterns::in_file())]
    pub exclude_from: Vec<Patterns>,
    /// Preserve these attributes; without LIST, mode, ownership and timestamps
    ///
    /// Without it, a copy belongs to the user who makes it, has the permissions of the source minus
    /// the umask and the set-id bits, and the current time.
    #[arg(
        long, value_enum, value_name = "LIST", value_delimiter = ',', num_args = 0..=1,
        require_equals = true, default_missing_value = "mode,ownership,timestamps"
    )]
    pub preserve: Vec<AttributeName>,
    /// Same as --preserve
    #[arg(short = 'p')]
    pub preserve_usual: bool,
    /// Do not preserve these attributes, even with -a or --preserve
    #[arg(long, value_enum, value_name = "LIST", value_delimiter = ',')]
    pub no_preserve: Vec<AttributeName>,
    /// Stay on the file system of each source: create mount points as empty directories, and skip
    /// their contents
    #[arg(short = 'x', long)]
    pub one_file_system: bool,
    /// Copy all SRC into this directory, which exists
    #[arg(short = 't', long, value_name = "DIR", conflicts_with = "no_target_directory")]
    pub target_directory: Option<PathBuf>,
    /// Treat DST as the name of the copy, even if it is a directory
    #[arg(short = 'T', long)]
    pub no_target_directory: bool,
    /// Read the copy back past the page cache and compare BLAKE3 hashes
    ///
    /// On a difference the exit status is 1, and the target is unchanged. Holes cost nothing; with
    /// --json, which has the sums of the whole content, they are hashed as zeros.
    #[arg(long)]
    pub verify: bool,
    /// Continue an interrupted copy from its temporary file; not onto striped files
    #[arg(long)]
    pub resume: bool,
    /// Holes in the copy: those of the source, wherever there are zeros, or none
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub sparse: SparseWhen,
    /// Share the blocks of the source if the file system can
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub reflink: ReflinkWhen,
    /// Make the small files of a tree durable: each, or the file system for up to 128 of them
    ///
    /// The file system is flushed on ext4, XFS and btrfs only. A file gets its name after the
    /// flush.
    #[arg(long, value_enum, value_name = "WHAT", default_value = "auto")]
    pub flush: FlushWhat,
    /// Allow a device, a striped file on devices, IMAGE::/PATH or an existing rados: name as the
    /// target, written in place
    #[arg(long)]
    pub overwrite: bool,
    /// Begin with this byte of SRC
    ///
    /// The copy is a new file with the bytes from there on, unless --target-offset is given.
    #[arg(long, value_name = "SIZE", value_parser = size::parse,
          conflicts_with_all = PARTS_WITHOUT)]
    pub offset: Option<u64>,
    /// Copy this many bytes of SRC, which must have them [default: all that follow]
    #[arg(long, value_name = "SIZE", value_parser = size::parse,
          conflicts_with_all = PARTS_WITHOUT)]
    pub length: Option<u64>,
    /// Write into DST from this byte on, in place; only with --overwrite
    ///
    /// The other bytes of DST stay. A copy that is interrupted leaves DST partly written.
    #[arg(long, value_name = "SIZE", value_parser = size::parse,
          conflicts_with_all = PARTS_WITHOUT.iter().chain(&IN_PLACE_WITHOUT))]
    pub target_offset: Option<u64>,
    /// Fail unless standard input (SRC is `-`) has exactly this many bytes
    ///
    /// A program before a pipe that fails looks as if its output were complete.
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub expect_size: Option<u64>,
    /// List what would be copied, and change nothing
    ///
    /// Prints files, links and nodes, and with a slash at the end directories that would be made.
    #[arg(long)]
    pub dry_run: bool,
    /// Allow a device as SRC that is mounted read-write: what is written to it during the copy may
    /// be in the copy in part
    #[arg(long)]
    pub mounted: bool,
    /// Read a rados: name whose copy was interrupted
    #[arg(long)]
    pub incomplete: bool,
    /// Copy striped files to striped files, in directories too
    ///
    /// A striped file becomes a new one, with as many objects and the same stripe size, all of them
    /// in the directory of its manifest. Its objects are not copied as plain files too. Without
    /// this option, -r copies manifests and objects as plain files, and a striped file on the
    /// command line becomes a plain file, unless the target is a striped file already.
    #[arg(long)]
    pub striped: bool,
    /// Bytes per request [default: up to 2M, as measured, or a multiple of the stripes of the file
    /// or device]
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub bs: Option<u64>,
    /// Requests in flight, or auto: tuned for throughput during the copy
    #[arg(long, value_name = "N|auto", default_value = "auto", value_parser = values::iodepth)]
    pub iodepth: IoDepth,
    /// Skip files whose targets exist
    ///
    /// A target that another process makes during the copy stays too, and the copy fails. Not for
    /// images, and devices as targets.
    #[arg(short, long, conflicts_with = "update")]
    pub no_clobber: bool,
    /// Skip files whose targets are as new as they are, or newer
    ///
    /// By the times of change of the content. Not for images, devices and striped files, which
    /// have no such time. A symbolic link in place of a file is replaced.
    #[arg(short, long)]
    pub update: bool,
    /// Read at most this many bytes each second; 10M is 10 MiB/s
    ///
    /// A request (--bs) is read at once, and the next one when this one is paid for. Reads of
    /// --verify count, too.
    #[arg(long, value_name = "SIZE", value_parser = values::positive_size)]
    pub bwlimit: Option<u64>,
    /// Print the name of each file that is copied, and a summary
    #[arg(short, long, conflicts_with = "json")]
    pub verbose: bool,
    /// Show no progress; errors are printed
    #[arg(short, long, conflicts_with_all = ["verbose", "progress"])]
    pub quiet: bool,
    /// Show progress on standard error: on a terminal, always (elsewhere lines, at most one each
    /// second), or never
    #[arg(long, value_enum, value_name = "WHEN", default_value = "auto")]
    pub progress: BytesProgress,
    /// Print one JSON document (docs/schema/cp.json) on standard output
    #[arg(long)]
    pub json: bool,
}

/// Options that mean nothing for a part of a file.
const PARTS_WITHOUT: [&str; 4] = ["recursive", "archive", "resume", "striped"];

/// Options that mean nothing for a file that is there and stays: nothing is preserved, and nothing
/// is left out.
const IN_PLACE_WITHOUT: [&str; 4] = ["preserve", "preserve_usual", "no_clobber", "update"];

/// Returns true if a name of the command line is that of standard input or output.
pub fn is_pipe(name: &Path) -> bool {
    name.as_os_str() == "-"
}

/// Returns why names and options of the command line do not go together, if they do not.
pub fn refusal(args: &CpArgs) -> Option<(ErrorKind, String)> {
    let (sources, target) = match (&args.target_directory, args.names.split_last()) {
        (None, Some((source, []))) => {
            let message = format!("missing destination after '{}'", untrusted::name(source));
            return Some((ErrorKind::MissingRequiredArgument, message));
        }
        (None, Some((target, sources))) => (sources, target),
        (Some(target), _) => (&args.names[..], target),
        (None, None) => return None,
    };
    let conflict = |message: String| Some((ErrorKind::ArgumentConflict, message));
    let is_input = sources.iter().any(|name| is_pipe(name));
    let is_output = args.target_directory.is_none() && is_pipe(target);
    let has_part = args.offset.is_some() || args.length.is_some() || args.target_offset.is_some();
    if sources.len() > 1 && (is_input || is_output || has_part) {
        let message = match (is_input, is_output) {
            (true, _) => "'-', standard input, is the only source; './-' is a file",
            (_, true) => "'-', standard output, takes one source; './-' is a file",
            _ => "--offset, --length and --target-offset take one source",
        };
        return conflict(message.to_owned());
    }
    match (is_input, is_output) {
        (true, true) => conflict("standard input is not copied to standard output".to_owned()),
        (true, false) => conflict_of(without_input(args), "standard input ('-')"),
        (false, true) => conflict_of(without_output(args), "standard output ('-')"),
        (false, false) if args.expect_size.is_some() => {
            conflict("'--expect-size' is for standard input ('-') as SRC".to_owned())
        }
        (false, false) => None,
    }
}

/// An option, and whether it was given.
type Given = (bool, &'static str);

fn conflict_of(options: Vec<Given>, end: &str) -> Option<(ErrorKind, String)> {
    let (_, option) = options.into_iter().find(|(is_given, _)| *is_given)?;
    Some((ErrorKind::ArgumentConflict, format!("'{option}' cannot be used with {end}")))
}

/// Options that mean nothing for standard input, which has no name, size, time or attributes.
fn without_input(args: &CpArgs) -> Vec<Given> {
    let mut options = without_pipes(args);
    options.extend([
        (args.target_directory.is_some(), "--target-directory"),
        (args.offset.is_some(), "--offset"),
        (args.length.is_some(), "--length"),
        (args.mounted, "--mounted"),
    ]);
    options
}

/// Options that mean nothing for standard output, which has no name and is not read back.
fn without_output(args: &CpArgs) -> Vec<Given> {
    let mut options = without_pipes(args);
    options.extend([
        (args.verify, "--verify"),
        (args.overwrite, "--overwrite"),
        (args.target_offset.is_some(), "--target-offset"),
        (args.expect_size.is_some(), "--expect-size"),
        (args.no_clobber, "--no-clobber"),
        (args.no_target_directory, "--no-target-directory"),
        (args.json, "--json"),
        (args.verbose, "--verbose"),
    ]);
    options
}

fn without_pipes(args: &CpArgs) -> Vec<Given> {
    vec![
        (args.recursive, "--recursive"),
        (args.archive, "--archive"),
        (args.striped, "--striped"),
        (args.resume, "--resume"),
        (args.update, "--update"),
        (args.dry_run, "--dry-run"),
        (args.incomplete, "--incomplete"),
        (args.one_file_system, "--one-file-system"),
        (args.preserve_usual || !args.preserve.is_empty(), "--preserve"),
        (!args.exclude.is_empty(), "--exclude"),
        (!args.exclude_from.is_empty(), "--exclude-from"),
    ]
}
