//! Checks libdiopter-preload.so before ld.so is to load it.

use std::path::{Path, PathBuf};

use super::elf::Elf;
use crate::env;
use crate::preload::Places;
use diopter_text::untrusted;

/// The library, and what it is for.
#[derive(Debug)]
pub struct Library {
    pub path: PathBuf,
    pub elf: Elf,
}

/// Returns the library: the named one, that of the environment, or the first that is installed or
/// built with this program.
///
/// # Errors
/// There is none, or it is not a library that ld.so can load.
pub fn find(named: Option<&Path>) -> Result<Library, String> {
    let path = Places::of_this_process(named).find()?;
    let name = untrusted::name(&path);
    let fail = |why: String| format!("load {name}: {why}");
    // ld.so looks a name without a slash up in its own directories.
    let path = path.canonicalize().map_err(|error| {
        fail(format!("{error}; name a library that is there with {}", env::PRELOAD))
    })?;
    if path.to_string_lossy().contains([' ', ':']) {
        let why = "ld.so takes no path with a space or a colon in LD_PRELOAD; move the library";
        return Err(fail(why.to_owned()));
    }
    let elf = Elf::read(&path).map_err(|error| fail(format!("{error}; check the file")))?;
    let elf = elf.ok_or_else(|| fail("not an ELF library; check the path".to_owned()))?;
    Ok(Library { path, elf })
}
