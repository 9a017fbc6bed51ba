//! `dio stripe`: creates, inspects and removes striped files with the library.

pub mod survey;

mod document;

mod text;

use std::path::Path;

use diopter::layouts::LayoutError;
use diopter_layouts::layout::{CreateOptions, Layout, ObjectAccess, ObjectPlace};

use crate::args::{CreateArgs, StripeCommand};
use crate::cmd::rados;
use crate::log;
use crate::output::{self, DONE, Look, TROUBLE};

/// Runs the command, and returns the exit status.
pub fn run(command: &StripeCommand, look: &Look) -> u8 {
    if let StripeCommand::Info(args) = command
        && let Some(status) = rados::info(args, look)
    {
        return status;
    }
    let (command, done) = match command {
        StripeCommand::Create(args) => ("stripe create", create(args)),
        StripeCommand::Info(args) => ("stripe info", info(&args.name, args.json, look)),
        StripeCommand::Rm(args) => ("stripe rm", remove(&args.name)),
        StripeCommand::Seal(args) => ("stripe seal", change(&args.name, Layout::seal)),
        StripeCommand::Unseal(args) => ("stripe unseal", change(&args.name, Layout::unseal)),
        StripeCommand::Adopt(args) => ("stripe adopt", adopt(&args.name)),
    };
    done.unwrap_or_else(|error| {
        log::fail(command, &error.to_string());
        TROUBLE
    })
}

pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(document::Stripe)
}

/// The schema of the document about a striped object of a cluster.
pub fn rados_schema() -> schemars::Schema {
    rados::info_schema()
}

fn create(args: &CreateArgs) -> Result<u8, LayoutError> {
    let places: Result<Vec<ObjectPlace>, LayoutError> =
        args.objects.iter().map(ObjectPlace::of).collect();
    let options = CreateOptions {
        objects: places?,
        stripe_size: args.stripe_size,
        size: args.size,
        ..CreateOptions::default()
    };
    Layout::create(&args.name, &options)?;
    Ok(DONE)
}

fn info(name: &Path, is_json: bool, look: &Look) -> Result<u8, LayoutError> {
    let layout = Layout::open_marked(name)?;
    let document = document::of(name, &layout, &survey::of(&layout));
    let status = if document.is_well { DONE } else { TROUBLE };
    Ok(if is_json {
        output::print_document(&document, status)
    } else {
        look.print(&text::of(&document, look), status)
    })
}

fn remove(name: &Path) -> Result<u8, LayoutError> {
    let left = Layout::open_marked(name)?.remove()?;
    for error in &left {
        log::fail("stripe rm", &format!("left behind: {error}"));
    }
    Ok(if left.is_empty() { DONE } else { TROUBLE })
}

/// Lists the objects that the mark allows to use, then sets it.
fn adopt(name: &Path) -> Result<u8, LayoutError> {
    let mut layout = Layout::open(name)?;
    layout.check_adoption()?;
    if crate::output::print(&text::of_adoption(name, &layout), DONE) == DONE {
        layout.adopt()?;
        // A copy that lost the mark may have lost the attributes of the objects too.
        for error in layout.each_object(ObjectAccess::READ).filter_map(Result::err) {
            log::fail("stripe adopt", &format!("marked, but not usable yet: {error}"));
        }
        return Ok(DONE);
    }
    // If the list could not be printed, the mark is not set.
    Ok(TROUBLE)
}

fn change(
    name: &Path,
    change: fn(&mut Layout) -> Result<(), LayoutError>,
) -> Result<u8, LayoutError> {
    change(&mut Layout::open_marked(name)?)?;
    Ok(DONE)
}
