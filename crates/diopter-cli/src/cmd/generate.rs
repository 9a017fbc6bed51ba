//! Man pages, completions and JSON Schemas, generated from the definitions.

use std::io;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use diopter_bench::whole::Directory;
use diopter_text::untrusted;

use crate::args::{Cli, Document};
use crate::output::{self, DONE, TROUBLE};
use crate::{cmd, log};

/// Prints one man page, or writes all of them into a directory.
pub fn man(command: Option<&str>, out: Option<&Path>) -> u8 {
    let mut all = Cli::command();
    all.build();
    if let Some(dir) = out {
        return match write_pages(&all, dir) {
            Ok(()) => DONE,
            Err(error) => {
                let dir = untrusted::name(dir);
                log::fail("man", &format!("write man pages to {dir}: {error}; name a directory"));
                TROUBLE
            }
        };
    }
    let page = match command {
        None => &all,
        Some(name) => match pages(&all).into_iter().find(|page| name_of(page) == name) {
            Some(found) => found,
            None => {
                log::fail(
                    "man",
                    &format!("unknown command `{name}`; dio --help lists the commands"),
                );
                return TROUBLE;
            }
        },
    };
    output::print(&text_of(&page_of(page)), DONE)
}

fn write_pages(all: &Command, dir: &Path) -> io::Result<()> {
    let dir = Directory::named(dir)?;
    for command in pages(all).into_iter().filter(|command| !command.is_hide_set()) {
        let page = page_of(command);
        dir.write(&page.get_filename(), text_of(&page).as_bytes())?;
    }
    Ok(())
}

/// Returns dio itself, its commands, and their subcommands; there is no deeper level.
fn pages(all: &Command) -> Vec<&Command> {
    // `dio help` prints the help of the others.
    let commands = all.get_subcommands().filter(|command| command.get_name() != "help");
    let commands = commands.flat_map(|one| std::iter::once(one).chain(one.get_subcommands()));
    std::iter::once(all).chain(commands).collect()
}

/// Returns `stripe-create` for `dio stripe create`.
fn name_of(page: &Command) -> &str {
    let name = page.get_display_name().unwrap_or(page.get_name());
    name.strip_prefix("dio-").unwrap_or(name)
}

fn page_of(command: &Command) -> Man {
    // The synopsis is made of the names and not of the usage: the list of `dio cp` has two.
    let is_cp = command.get_name() == "cp";
    let with_target = |arg: Arg| match arg.get_value_names() {
        Some([name]) if is_cp && name == "SRC" => arg.value_name("SRC>... <DST"),
        _ => arg,
    };
    Man::new(command.clone().mut_args(with_target))
        .source(concat!("dio ", env!("CARGO_PKG_VERSION")))
        .manual("diopter: direct I/O on Linux")
}

fn text_of(page: &Man) -> String {
    let mut text = Vec::new();
    page.render(&mut text).expect("memory takes every byte");
    // clap_mangen appends a space to an option without a long name.
    String::from_utf8_lossy(&text).replace(" \\fR]", "\\fR]")
}

/// Prints a completion script.
pub fn completions(shell: Shell) -> u8 {
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "dio", &mut text);
    output::print(&String::from_utf8_lossy(&text), DONE)
}

/// Prints the schema of a command's document.
pub fn schema(document: Document) -> u8 {
    let schema = match document {
        Document::Bench => cmd::bench::json_schema(),
        Document::Cp => cmd::cp::json_schema(),
        Document::Compare => cmd::compare::json_schema(),
        Document::Explain => cmd::explain::json_schema(),
        Document::ExplainRados => cmd::explain::rados_schema(),
        Document::Probe => cmd::probe::json_schema(),
        Document::Stripe => cmd::stripe::json_schema(),
        Document::StripeRados => cmd::stripe::rados_schema(),
        Document::Sum => cmd::sum::json_schema(),
        Document::Verify => cmd::verify::json_schema(),
        Document::LabBisect => cmd::lab::bisect_schema(),
        Document::LabCheck => cmd::lab::check::json_schema(),
        Document::LabKernels => cmd::lab::kernels_schema(),
        Document::Trace => cmd::trace::json_schema(),
        Document::TraceDiff => cmd::trace::diff_schema(),
        Document::Run => cmd::run::json_schema(),
    };
    output::print_document(&schema, DONE)
}
