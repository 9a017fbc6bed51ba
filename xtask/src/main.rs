//! `cargo xtask`: what CI runs, a laptop runs. This file reads the command line and calls; the work
//! of each command lives in the module of its name. Nothing here is needed to build the product.

#![forbid(unsafe_code)]

mod repo;
mod run;
mod guard;
mod debian;
mod python;
mod tools;
mod deny;
mod install;
mod package;
mod book;
mod interface;
mod capability;
mod fio;
mod fuzz;
mod tidy;
mod lanes;
mod soak;
mod bench;
mod peers;
mod demo;
mod suites;

use repo::Outcome;
use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask COMMAND

  ci [LANE...]                       run the lanes in order; without LANE, all of them; --quick:
                                     those of `make test`
  lanes                              list the lanes and what each one needs
  tidy                               check the rules of docs/style.md that a machine can check
  api                                rewrite the snapshot of the public interface
  bless                              rewrite the golden files from what the code prints now
  soak [--seconds S] [--seed N] [--only CAMPAIGN]
                                     everything seeded or random, for S seconds; adds to what
                                     earlier runs have tried, and prints the table
  soak --table                       the table alone
  fuzz TARGET [INPUT...|FLAG...]     run a fuzz target on inputs, or with flags of libFuzzer
  fio [FIO=DIR] [--profile NAME] [--output NAME]
                                     build fio's external engine against the installed fio, or
                                     against the source tree DIR; prints the path of the library
  python [TEST...]                   build, install and test the Python package, or some tests of it
  install [--prefix /usr/local] [--destdir DIR] [--profile release]
                                     build and install dio, its libraries, manual and completions
  uninstall [--prefix /usr/local] [--destdir DIR]   remove what `install` has installed there
  package deb|tarball [--profile release] [--key FILE]
                                     build the package of Debian, or the archive with a static dio,
                                     which minisign signs with the key; into target/dist
  package check [--profile release]  install, package and try all of it, as root
  suites [--only NAME]... [--quick]  suites of other projects with and without `dio run`, as root
  demo [--size 2G] [--rounds N] [--dir DIR]   copy a file with dio, cp and dd, side by side
  figures [--size 4G] [--rounds 5] [--dir DIR]   the same, written into README.md
  bench [ROW...] [--quick] [--json FILE]   the numbers that the design must reach; --help has more
  peers [OPTION...]                  other runtimes and programs next to diopter; --help has more

Environment
  DIOPTER_REQUIRE=loop,ext4,...   capabilities whose absence is a failure, not a skip; an unknown
                                  name is an error that lists them
  DIOPTER_BUDGET=fail             a lane over its budget fails; without it, it is reported
  DIOPTER_SEED=N                  the seed of every seeded test
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match dispatch(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("xtask: {message}");
            ExitCode::from(2)
        }
    }
}

fn dispatch(arguments: &[String]) -> Outcome {
    let (command, rest) = match arguments.split_first() {
        Some((command, rest)) => (command.as_str(), rest),
        None => ("help", arguments),
    };
    match command {
        "ci" => lanes::run(rest),
        "lanes" => Ok(lanes::list()),
        "tidy" => tidy::run(),
        "api" => interface::record(),
        "bless" => soak::bless(),
        "soak" => soak::run(rest),
        "fuzz" => fuzz::run(rest),
        "bench" => bench::run(rest),
        "peers" => peers::run(rest),
        "fio" => fio::run(rest),
        "python" => python::run(rest),
        "install" => install::run(rest),
        "uninstall" => install::remove(rest),
        "package" => package::run(rest),
        "suites" => suites::run(rest),
        "suites-inner" => suites::run_inner(rest),
        "demo" => demo::run(rest),
        "figures" => demo::write_figures(rest),
        "demo-inner" => demo::run_inner(rest),
        "help" | "--help" | "-h" => {
            print!("{USAGE}");
            Ok(true)
        }
        other => Err(format!("no command `{other}`; `cargo xtask help` lists them")),
    }
}
