//! Reads and changes programs and modules: the dependencies of a module, its signature, and
//! libraries of a program that no job of the lab uses.

use std::collections::BTreeSet;
use std::ops::Range;

use object::{Object, ObjectSection, SectionKind};

/// The end of a signed module.
const SIGNATURE_MARK: &[u8] = b"~Module signature appended~\n";
/// Before the mark: five bytes, of which the fourth and fifth are lengths, three of padding, and
/// the length of the signature (big-endian).
const SIGNATURE_TAIL: usize = 12;
/// The bits of a symbol's version; the other bit is a flag.
const VERSION_MASK: u16 = 0x7fff;

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
/// [`Damaged`] for a file that is not ELF or has no section headers.
pub fn libraries(bytes: &[u8]) -> Result<Vec<String>, Damaged> {
    let Some(places) = Places::of(bytes)? else { return Ok(Vec::new()) };
    let entries = dynamic(bytes, &places)?;
    let names = entries.iter().filter(|(tag, _)| *tag == DT_NEEDED);
    names.map(|(_, name)| places.name(bytes, *name)).collect()
}

/// Takes libraries out of a program: it then starts without them, and what it would call in them is
/// a null pointer.
///
/// # Errors
/// [`Damaged`] for a file that is not ELF of 64 bits or has no section headers.
pub fn drop_libraries(bytes: &mut [u8], is_dropped: impl Fn(&str) -> bool) -> Result<(), Damaged> {
    let Some(places) = Places::of(bytes)? else { return Ok(()) };
    let (versions, skipped) = unlink_versions(bytes, &places, &is_dropped)?;
    let entries = dynamic(bytes, &places)?;
    let mut kept = Vec::with_capacity(entries.len());
    for (tag, value) in &entries {
        match *tag {
            DT_NEEDED if is_dropped(&places.name(bytes, *value)?) => {}
            DT_VERNEED => kept.push((*tag, value + skipped)),
            _ => kept.push((*tag, *value)),
        }
    }
    kept.resize(entries.len(), (DT_NULL, 0));
    for (index, (tag, value)) in kept.into_iter().enumerate() {
        let at = places.dynamic.start + index * DYNAMIC_SIZE;
        put(bytes, at, &tag.to_le_bytes())?;
        put(bytes, at + 8, &value.to_le_bytes())?;
    }
    weaken(bytes, &places, &versions)
}

const DT_NULL: u64 = 0;
const DT_NEEDED: u64 = 1;
const DT_VERNEED: u64 = 0x6fff_fffe;
/// Bytes of an entry of the dynamic section, and of a symbol.
const DYNAMIC_SIZE: usize = 16;
const SYMBOL_SIZE: usize = 24;
/// A symbol's binding, in the upper half of its second field.
const GLOBAL: u8 = 1 << 4;
const WEAK: u8 = 2 << 4;
/// "Any version will do."
const VERSION_ANY: u16 = 1;

/// Where the tables for the dynamic linker are in a file.
struct Places {
    dynamic: Range<usize>,
    names: Range<usize>,
    symbols: Range<usize>,
    versions: Range<usize>,
    needs: Range<usize>,
}

impl Places {
    /// `None` for a static program.
    fn of(bytes: &[u8]) -> Result<Option<Places>, Damaged> {
        let file = object::File::parse(bytes).map_err(|_| Damaged("it is not an ELF file"))?;
        if !file.is_64() || !file.is_little_endian() {
            return Err(Damaged("it is not for x86-64"));
        }
        let place = |name: &str| {
            let range = file.section_by_name(name).and_then(|section| section.file_range());
            let (start, size) = range.unwrap_or((0, 0));
            let start = usize::try_from(start).unwrap_or(usize::MAX);
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            start..start.saturating_add(size)
        };
        let is_dynamic = file.sections().any(|section| section.name() == Ok(".dynamic"));
        let has_code = file.sections().any(|section| section.kind() == SectionKind::Text);
        if !has_code {
            return Err(Damaged("it has no code"));
        }
        Ok(is_dynamic.then(|| Places {
            dynamic: place(".dynamic"),
            names: place(".dynstr"),
            symbols: place(".dynsym"),
            versions: place(".gnu.version"),
            needs: place(".gnu.version_r"),
        }))
    }

    fn name(&self, bytes: &[u8], offset: u64) -> Result<String, Damaged> {
        let offset = usize::try_from(offset).map_err(|_| CUT)?;
        let names = bytes.get(self.names.clone()).and_then(|names| names.get(offset..));
        let name = names.and_then(|names| names.split(|byte| *byte == 0).next()).ok_or(CUT)?;
        Ok(String::from_utf8_lossy(name).into_owned())
    }
}

const CUT: Damaged = Damaged("a table of it is cut");

/// The entries of the dynamic section, up to its end mark.
fn dynamic(bytes: &[u8], places: &Places) -> Result<Vec<(u64, u64)>, Damaged> {
    let mut entries = Vec::new();
    for at in places.dynamic.clone().step_by(DYNAMIC_SIZE) {
        let tag = u64::from_le_bytes(get(bytes, at)?);
        if tag == DT_NULL {
            break;
        }
        entries.push((tag, u64::from_le_bytes(get(bytes, at + 8)?)));
    }
    Ok(entries)
}

/// Takes what is wanted of dropped libraries off the list of wanted versions. Gives the versions
/// that are gone, and how far the list's first entry moved.
fn unlink_versions(
    bytes: &mut [u8],
    places: &Places,
    is_dropped: &impl Fn(&str) -> bool,
) -> Result<(BTreeSet<u16>, u64), Damaged> {
    let mut gone = BTreeSet::new();
    let (mut at, mut before, mut skipped) = (places.needs.start, None, 0);
    // A link leads forward or ends the list, so the section's size bounds the loop.
    while places.needs.contains(&at) {
        let name = places.name(bytes, u64::from(u32::from_le_bytes(get(bytes, at + 4)?)))?;
        let next = link(bytes, at + 12)?;
        if is_dropped(&name) {
            let mut version = at + link(bytes, at + 8)?;
            while places.needs.contains(&version) {
                gone.insert(u16::from_le_bytes(get(bytes, version + 6)?) & VERSION_MASK);
                version = step(version, link(bytes, version + 12)?, places);
            }
            match before {
                None => skipped += u64::try_from(next).map_err(|_| CUT)?,
                Some(before) => {
                    let to = if next == 0 { 0 } else { at + next - before };
                    let to = u32::try_from(to).map_err(|_| CUT)?;
                    put(bytes, before + 12, &to.to_le_bytes())?;
                }
            }
        } else {
            before = Some(at);
        }
        at = step(at, next, places);
    }
    Ok((gone, skipped))
}

/// Where a link leads: out of the list for the last.
fn step(at: usize, link: usize, places: &Places) -> usize {
    if link == 0 { places.needs.end } else { at.saturating_add(link) }
}

fn link(bytes: &[u8], at: usize) -> Result<usize, Damaged> {
    usize::try_from(u32::from_le_bytes(get(bytes, at)?)).map_err(|_| CUT)
}

/// Lets the linker find nothing for symbols of dropped versions, or of none.
fn weaken(bytes: &mut [u8], places: &Places, gone: &BTreeSet<u16>) -> Result<(), Damaged> {
    for (index, at) in places.symbols.clone().step_by(SYMBOL_SIZE).enumerate() {
        let [info] = get(bytes, at + 4)?;
        let section = u16::from_le_bytes(get(bytes, at + 6)?);
        let version_at = places.versions.start + index * 2;
        let version = u16::from_le_bytes(get(bytes, version_at)?) & VERSION_MASK;
        let is_of_dropped = gone.contains(&version) || version <= VERSION_ANY;
        if section == 0 && info & 0xf0 == GLOBAL && is_of_dropped {
            put(bytes, at + 4, &[WEAK | info & 0x0f])?;
            put(bytes, version_at, &VERSION_ANY.to_le_bytes())?;
        }
    }
    Ok(())
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> Result<[u8; N], Damaged> {
    let field = bytes.get(at..).and_then(|rest| rest.first_chunk::<N>());
    field.copied().ok_or(CUT)
}

fn put(bytes: &mut [u8], at: usize, field: &[u8]) -> Result<(), Damaged> {
    let place = bytes.get_mut(at..).and_then(|rest| rest.get_mut(..field.len()));
    place.ok_or(CUT)?.copy_from_slice(field);
    Ok(())
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
        assert_eq!(libraries(b"#!/bin/sh\n"), Err(Damaged("it is not an ELF file")));
        assert_eq!(module_needs(b"nothing"), None);
    }

    #[test]
    fn a_program_starts_without_a_library_that_was_dropped() {
        let dir = tempfile::tempdir().unwrap();
        let program = std::env::current_exe().unwrap();
        let mut bytes = std::fs::read(program).unwrap();
        let before = libraries(&bytes).unwrap();
        assert!(before.iter().any(|name| name == "libgcc_s.so.1"), "{before:?}");
        drop_libraries(&mut bytes, |name| name == "libgcc_s.so.1").unwrap();
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
            let mut bytes = whole[..cut].to_vec();
            assert!(libraries(&bytes).is_err());
            assert!(drop_libraries(&mut bytes, |_| true).is_err());
        }
    }
}
