//! Finds libdiopter-preload.so.

use std::path::{Path, PathBuf};

use super::elf::Elf;
use crate::env;
use diopter_text::untrusted;

/// Its name where it is installed.
const INSTALLED: &str = "../lib/diopter/libdiopter-preload.so";
/// Its name where cargo builds it.
const BUILT: &str = "libdiopter_preload.so";

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
    let chosen =
        named.map(Path::to_owned).or_else(|| std::env::var_os(env::PRELOAD).map(PathBuf::from));
    let path = match chosen.filter(|path| !path.as_os_str().is_empty()) {
        Some(path) => path,
        None => beside_dio().ok_or_else(|| {
            let name = env::PRELOAD;
            format!("find libdiopter-preload.so: it is not installed; name it with {name}")
        })?,
    };
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

fn beside_dio() -> Option<PathBuf> {
    let dio = std::env::current_exe().ok()?;
    let directory = dio.parent()?;
    let mut places = [INSTALLED, BUILT].iter().map(|name| directory.join(name));
    places.find(|path| path.is_file())
}
