//! `dio stripe`: makes, looks at and removes striped files. The library does it; here it is asked
//! and told.

mod document;
pub mod survey;
mod text;

use std::path::{Path, PathBuf};

use diopter::layouts::LayoutError;
use diopter_layouts::layout;
use diopter_layouts::layout::{Layout, ObjectPlace};

use crate::output::{DONE, Look, TROUBLE};
use crate::{cmd, log};

/// What the command line says.
pub enum StripeWork {
    /// `dio stripe create`.
    Create(CreateOptions),
    /// `dio stripe info`.
    Info {
        /// The striped file.
        name: PathBuf,
        /// One JSON document on standard output.
        is_json: bool,
    },
    /// `dio stripe rm`.
    Rm {
        /// The striped file.
        name: PathBuf,
    },
    /// `dio stripe seal`.
    Seal {
        /// The striped file.
        name: PathBuf,
    },
    /// `dio stripe unseal`.
    Unseal {
        /// The striped file.
        name: PathBuf,
    },
    /// `dio stripe adopt`.
    Adopt {
        /// The manifest.
        name: PathBuf,
    },
}

/// How a striped file is made.
pub struct CreateOptions {
    /// What it is to be called.
    pub name: PathBuf,
    /// A directory or a device for each object.
    pub objects: Vec<PathBuf>,
    /// Bytes of a stripe.
    pub stripe_size: u64,
    /// The fixed size of a file on devices, in bytes.
    pub size: Option<u64>,
}

/// Does it, and gives the exit status.
pub fn run(work: &StripeWork, look: &Look) -> u8 {
    let (command, done) = match work {
        StripeWork::Create(options) => ("stripe create", create(options)),
        StripeWork::Info { name, is_json } => ("stripe info", info(name, *is_json, look)),
        StripeWork::Rm { name } => ("stripe rm", remove(name)),
        StripeWork::Seal { name } => ("stripe seal", change(name, Layout::seal)),
        StripeWork::Unseal { name } => ("stripe unseal", change(name, Layout::unseal)),
        StripeWork::Adopt { name } => ("stripe adopt", adopt(name)),
    };
    done.unwrap_or_else(|error| {
        log::fail(command, &error.to_string());
        TROUBLE
    })
}

/// The JSON Schema of the document of `dio stripe info`.
pub fn json_schema() -> schemars::Schema {
    schemars::schema_for!(document::Stripe)
}

fn create(options: &CreateOptions) -> Result<u8, LayoutError> {
    let places: Result<Vec<ObjectPlace>, LayoutError> =
        options.objects.iter().map(ObjectPlace::of).collect();
    let CreateOptions { stripe_size, size, .. } = *options;
    let how = layout::CreateOptions {
        objects: places?,
        stripe_size,
        size,
        ..layout::CreateOptions::default()
    };
    Layout::create(&options.name, &how)?;
    Ok(DONE)
}

fn info(name: &Path, is_json: bool, look: &Look) -> Result<u8, LayoutError> {
    let layout = Layout::open_marked(name)?;
    let document = document::of(name, &layout, &survey::of(&layout));
    let status = if document.is_well { DONE } else { TROUBLE };
    Ok(if is_json {
        cmd::print_json(&document, status)
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

/// Lists what the mark makes usable, then sets it.
fn adopt(name: &Path) -> Result<u8, LayoutError> {
    let mut layout = Layout::open(name)?;
    layout.check_adoption()?;
    if crate::output::print(&text::of_adoption(name, &layout), DONE) == DONE {
        layout.adopt()?;
        return Ok(DONE);
    }
    // What nobody could read is not marked.
    Ok(TROUBLE)
}

fn change(
    name: &Path,
    change: fn(&mut Layout) -> Result<(), LayoutError>,
) -> Result<u8, LayoutError> {
    change(&mut Layout::open_marked(name)?)?;
    Ok(DONE)
}
