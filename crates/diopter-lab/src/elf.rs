//! Reads and changes programs and modules: the dependencies of a module, its signature, and
//! libraries of a program that no job of the lab uses.

use object::build::elf::{Builder, Dynamic, Version, VersionData, VersionId};
use object::elf::{DT_NEEDED, SHF_EXECINSTR, SHN_UNDEF, STB_GLOBAL, STB_WEAK};
use object::{Object, ObjectSection};

/// The end of a signed module.
const SIGNATURE_MARK: &[u8] = b"~Module signature appended~\n";
/// Before the mark: five bytes, of which the fourth and fifth are lengths, three of padding, and
/// the length of the signature (big-endian).
const SIGNATURE_TAIL: usize = 12;

/// A file that is not what its place promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Damaged(pub &'static str);

/// A module without its signature: the lab's kernels need none, and checking it costs instructions.
#[must_use]
pub fn without_signature(module: &[u8]) -> &[u8] {
    let unsigned = || {
        let rest = module.strip_suffix(SIGNATURE_MARK)?;
        let (rest, tail) = rest.split_at_checked(rest.len().checked_sub(SIGNATURE_TAIL)?)?;
        let signature = u32::from_be_bytes(tail[8..12].try_into().ok()?);
        let size = usize::try_from(signature).ok()? + usize::from(tail[3]) + usize::from(tail[4]);
        rest.get(..rest.len().checked_sub(size)?)
    };
    unsigned().unwrap_or(module)
}

/// Returns the names in a module's `depends=`; `None` if the file is not a module.
#[must_use]
pub fn module_needs(module: &[u8]) -> Option<Vec<String>> {
    let file = object::File::parse(module).ok()?;
    let info = file.section_by_name(".modinfo")?.data().ok()?;
    let depends = info.split(|byte| *byte == 0).find_map(|fact| fact.strip_prefix(b"depends="))?;
    let names = String::from_utf8_lossy(depends).into_owned();
    Some(names.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect())
}

/// The libraries that a program or library is linked with; none for a static program.
///
/// # Errors
/// [`Damaged`] for a file that is not ELF of 64 bits or has no code.
pub fn libraries(bytes: &[u8]) -> Result<Vec<String>, Damaged> {
    Ok(program(bytes)?.dynamic_data().unwrap_or_default().iter().filter_map(needed).collect())
}

/// Takes libraries out of a program: it then starts without them, and what it would call in them is
/// a null pointer. Returns `None` if the program needs none of them.
///
/// # Errors
/// [`Damaged`] for a file that is not ELF of 64 bits or has no code.
pub fn without_libraries(
    bytes: &[u8],
    is_dropped: impl Fn(&str) -> bool,
) -> Result<Option<Vec<u8>>, Damaged> {
    let mut program = program(bytes)?;
    let Some(entries) = program.dynamic_data_mut() else { return Ok(None) };
    let count = entries.len();
    entries.retain(|entry| !needed(entry).is_some_and(|name| is_dropped(&name)));
    if entries.len() == count {
        return Ok(None);
    }
    let is_gone = |version: &Version| match &version.data {
        VersionData::Need(need) => {
            is_dropped(&String::from_utf8_lossy(&program.version_files.get(need.file).name))
        }
        VersionData::Def(_) => false,
    };
    let gone: Vec<VersionId> =
        program.versions.iter().filter(|version| is_gone(version)).map(Version::id).collect();
    // The linker may find nothing for symbols of dropped versions, or of none.
    for symbol in &mut program.dynamic_symbols {
        let is_undefined = symbol.section.is_none() && symbol.st_shndx == SHN_UNDEF;
        let is_of_dropped = symbol.version.is_special() || gone.contains(&symbol.version);
        if is_undefined && symbol.st_bind() == STB_GLOBAL && is_of_dropped {
            symbol.set_st_info(STB_WEAK, symbol.st_type());
            symbol.version = VersionId::global();
        }
    }
    program.delete_unused_versions();
    program.set_section_sizes();
    let mut written = Vec::with_capacity(bytes.len());
    program.write(&mut written).map_err(|_| Damaged("it has no room for its own tables"))?;
    Ok(Some(written))
}

fn program(bytes: &[u8]) -> Result<Builder<'_>, Damaged> {
    let program =
        Builder::read64(bytes).map_err(|_| Damaged("it is not an ELF file of 64 bits"))?;
    if program.sections.iter().any(|section| section.sh_flags.contains(SHF_EXECINSTR)) {
        return Ok(program);
    }
    Err(Damaged("it has no code"))
}

/// The library that an entry of the dynamic section names.
fn needed(entry: &Dynamic) -> Option<String> {
    match entry {
        Dynamic::String { tag: DT_NEEDED, val } => Some(String::from_utf8_lossy(val).into_owned()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn signed(content: &[u8], signature: &[u8]) -> Vec<u8> {
        let mut module = content.to_vec();
        module.extend(signature);
        module.extend([0, 0, 2, 0, 0, 0, 0, 0]);
        module.extend(u32::try_from(signature.len()).unwrap().to_be_bytes());
        module.extend(SIGNATURE_MARK);
        module
    }

    #[test]
    fn a_signature_is_cut_off_and_what_has_none_stays() {
        assert_eq!(without_signature(&signed(b"module", b"secret")), b"module");
        assert_eq!(without_signature(b"module"), b"module");
        let lying = [&[0, 0, 2, 0, 0, 0, 0, 0, 255, 255, 255, 255], SIGNATURE_MARK].concat();
        assert_eq!(without_signature(&lying), lying);
        assert_eq!(without_signature(SIGNATURE_MARK), SIGNATURE_MARK);
    }

    #[test]
    fn what_is_no_elf_file_is_refused() {
        assert_eq!(libraries(b"#!/bin/sh\n"), Err(Damaged("it is not an ELF file of 64 bits")));
        assert_eq!(module_needs(b"nothing"), None);
    }

    #[test]
    fn a_program_starts_without_a_library_that_was_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let bytes = std::fs::read(program).unwrap();
        let before = libraries(&bytes).unwrap();
        assert!(before.iter().any(|name| name == "libgcc_s.so.1"), "{before:?}");
        let bytes = without_libraries(&bytes, |name| name == "libgcc_s.so.1").unwrap().unwrap();
        let after = libraries(&bytes).unwrap();
        assert_eq!(after.len() + 1, before.len());
        assert!(!after.iter().any(|name| name == "libgcc_s.so.1"), "{after:?}");
        let path = dir.path().join("program");
        std::fs::write(&path, bytes).unwrap();
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&path, mode).unwrap();
        let output = std::process::Command::new(&path).arg("--list").output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }

    #[test]
    fn cut_files_are_refused_and_never_read_past_their_end() {
        let whole = std::fs::read("/bin/sh").unwrap();
        for cut in (0..whole.len()).step_by(whole.len() / 200) {
            assert!(libraries(&whole[..cut]).is_err());
            assert!(without_libraries(&whole[..cut], |_| true).is_err());
        }
    }
}
