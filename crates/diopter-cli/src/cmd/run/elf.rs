//! The headers of programs and libraries: the machine, how they are linked, and the C library.

use std::fs::File;
use std::io;
use std::path::Path;

use diopter_os::trust::open_document;
use object::elf::{self, PT_INTERP};
use object::read::elf::ProgramHeader;
use object::{Architecture, Object, ObjectSection, ReadCache, ReadRef};

/// The facts of an ELF file that decide if the library can be loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elf {
    /// The machine, and the width of its addresses.
    pub architecture: Architecture,
    pub is_64: bool,
    /// The loader that the kernel starts; `None` for a library, and for a static program.
    pub interpreter: Option<String>,
    /// Built by Go's own linker, or from Go: it makes system calls without libc.
    pub is_go: bool,
}

impl Elf {
    /// Reads a file; `None` if it is not an ELF file.
    ///
    /// # Errors
    /// Those of reading.
    pub fn read(path: &Path) -> io::Result<Option<Elf>> {
        let cache = ReadCache::new(open_document(path)?);
        let Ok(file) = object::File::parse(&cache) else { return Ok(None) };
        let interpreter = match &file {
            object::File::Elf64(elf) => {
                interpreter_of(elf.elf_program_headers(), elf.endian(), &cache)
            }
            object::File::Elf32(elf) => {
                interpreter_of(elf.elf_program_headers(), elf.endian(), &cache)
            }
            _ => return Ok(None),
        };
        let is_go = file.sections().any(|section| {
            section.name().is_ok_and(|name| [".go.buildinfo", ".note.go.buildid"].contains(&name))
        });
        let (architecture, is_64) = (file.architecture(), file.is_64());
        Ok(Some(Elf { architecture, is_64, interpreter, is_go }))
    }

    /// Returns true if the programs' loader is musl's, or a library needs musl.
    pub fn is_musl(&self) -> bool {
        self.interpreter.as_ref().is_some_and(|loader| loader.contains("/ld-musl-"))
    }

    /// Returns the machine by its usual name.
    pub fn machine(&self) -> String {
        let name = format!("{:?}", self.architecture).to_lowercase();
        if self.is_64 { name } else { format!("{name} (32 bit)") }
    }
}

fn interpreter_of<H: ProgramHeader>(
    headers: &[H],
    endian: H::Endian,
    data: &ReadCache<File>,
) -> Option<String> {
    let header = headers.iter().find(|header| header.p_type(endian) == PT_INTERP)?;
    let offset: u64 = header.p_offset(endian).into();
    let length: u64 = header.p_filesz(endian).into();
    let bytes = data.read_bytes_at(offset, length.min(u64::from(elf::PN_XNUM))).ok()?;
    let text = bytes.split(|byte| *byte == 0).next()?;
    Some(String::from_utf8_lossy(text).into_owned())
}
