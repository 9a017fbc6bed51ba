//! The command line of `dio run`, with its help.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Args;

use super::values::ABOUT_SIZES;
use crate::size;

const EXAMPLES: &str = "\
Examples:
  dio run -- dd if=big.img of=copy.img bs=4000 iflag=direct
  dio run --report -- python3 read_direct.py
  dio run --all -- tar -cf backup.tar directory

  Without --all, only requests change that the kernel refuses with EINVAL: those of descriptors \
  with O_DIRECT whose offset, length or address is not aligned.";

const EXIT_STATUS: &str = "\
Exit status:
  the program's own; with --report or --json-out 128+n if it was ended by signal n
  125  dio run itself failed: the message says what to do
  126  the program exists, but can't be run, or can't be changed
  127  the program was not found";

const ENVIRONMENT: &str = "\
Environment:
  DIOPTER_PRELOAD  the library; --preload overrides it";

/// Run a program with its direct I/O at any alignment
///
/// Loads a library into the program and the programs that it starts. By default it serves the
/// requests on descriptors with O_DIRECT that the kernel refuses because they are not aligned. With
/// --all, large regular files are also read, written and copied without filling the page cache.
/// The program keeps its descriptors; what the library does not know is passed on.
///
/// Not changed: statically linked and setuid programs, programs in Go, the I/O of stdio (fread,
/// fprintf), and programs that use io_uring or Linux AIO by themselves. docs/run.md lists what is
/// guaranteed.
#[derive(Debug, Args)]
#[command(
    after_long_help = format!("{EXAMPLES}\n\n{EXIT_STATUS}\n\n{ENVIRONMENT}\n\n{ABOUT_SIZES}")
)]
pub struct ProgramArgs {
    /// Also keep large regular files from filling the page cache
    #[arg(long)]
    pub all: bool,
    /// Size from which on a file is large; for --all
    #[arg(long, value_name = "SIZE", value_parser = size::parse, default_value = "1M")]
    pub min_size: u64,
    /// Print on standard error what was done: bytes per route, and the EINVALs avoided
    #[arg(long)]
    pub report: bool,
    /// Write what was done to this file: one JSON document (docs/schema/run.json)
    #[arg(long, value_name = "FILE")]
    pub json_out: Option<PathBuf>,
    /// The library, libdiopter_preload.so or libdiopter-preload.so [env: DIOPTER_PRELOAD]
    ///
    /// By default ../lib/diopter/libdiopter-preload.so from the directory of dio, then
    /// libdiopter_preload.so in that directory, then libdiopter-preload.so in the directory that
    /// was compiled in. Refused where dio has more privileges than its caller.
    #[arg(long, value_name = "FILE")]
    pub preload: Option<PathBuf>,
    /// The program and its arguments; what follows the program is not an option of dio
    #[arg(required = true, trailing_var_arg = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}
