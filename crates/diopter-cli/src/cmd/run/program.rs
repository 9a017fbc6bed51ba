//! Finds the program, and refuses one that the library cannot change.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use diopter::Errno;
use diopter_os::ids;
use diopter_os::trust::open_document;
use rustix::fs::{Access, AtFlags, CWD, StatVfsMountFlags, accessat};

use super::elf::Elf;
use super::library::Library;
use diopter_text::untrusted;

/// Scripts whose interpreter is a script; the kernel follows five.
const SCRIPTS_MAX: usize = 5;
/// The bit of a file that runs as the user who owns it, and those of one that runs as its group.
const SET_USER: u32 = 0o4000;
const SET_GROUP: u32 = 0o2010;
/// Bytes of the first line of a script that the kernel reads.
const LINE_MAX: u64 = 256;

/// Returns the file of a program, as execvp(3) looks it up.
///
/// # Errors
/// `ENOENT` if there is none; another errno for one that cannot be run.
pub fn find(name: &OsStr) -> Result<PathBuf, Errno> {
    let errno_of = |error: io::Error| error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
    if name.is_empty() {
        return Err(Errno::ENOENT);
    }
    if name.as_bytes().contains(&b'/') {
        return fs::metadata(name).map(|_| PathBuf::from(name)).map_err(errno_of);
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let mut denied = Errno::ENOENT;
    for place in std::env::split_paths(&path).map(|directory| directory.join(name)) {
        let is_there = match fs::metadata(&place) {
            Ok(metadata) if metadata.is_file() => {
                if accessat(CWD, &place, Access::EXEC_OK, AtFlags::EACCESS).is_ok() {
                    return Ok(place);
                }
                true
            }
            Ok(_) => true,
            Err(error) => error.kind() == io::ErrorKind::PermissionDenied,
        };
        if is_there {
            denied = Errno::EACCES;
        }
    }
    Err(denied)
}

/// Checks that the library can be loaded into a program and changes it.
///
/// # Errors
/// Why not, and what to do.
pub fn check(program: &Path, library: &Library) -> Result<(), String> {
    let mut path = program.to_owned();
    for _ in 0..SCRIPTS_MAX {
        let name = untrusted::name(&path);
        let script = interpreter_of_script(&path);
        // The kernel ignores such bits of a script.
        if !matches!(script, Ok(Some(_))) && is_privileged(&path) {
            return Err(format!(
                "run {name}: it runs with the privileges of its file, so ld.so loads no library \
                 into it; run it as the user who owns it"
            ));
        }
        match script {
            Ok(Some(interpreter)) => path = interpreter,
            Ok(None) => {
                let elf = Elf::read(&path).map_err(|error| format!("read {name}: {error}"))?;
                return elf.map_or(Ok(()), |elf| check_elf(&name, &elf, library));
            }
            // One that may be run and not read is the kernel's to judge.
            Err(_) => return Ok(()),
        }
    }
    Ok(())
}

fn check_elf(name: &str, elf: &Elf, library: &Library) -> Result<(), String> {
    let (own, its) = (library.elf.machine(), elf.machine());
    let library = untrusted::name(&library.path);
    let why = if elf.is_go {
        "it is written in Go, which makes system calls without libc: dio run cannot change it; use \
         a build that does its I/O through libc"
            .to_owned()
    } else if own != its {
        format!("it is for {its}, and {library} for {own}; name another with DIOPTER_PRELOAD")
    } else if elf.interpreter.is_none() {
        "it is statically linked: dio run cannot change it; use a dynamically linked build"
            .to_owned()
    } else if elf.is_musl() {
        format!("it uses musl, and {library} glibc; use a build for glibc")
    } else {
        return Ok(());
    };
    Err(format!("run {name}: {why}"))
}

/// Returns true if the kernel gives the program another user, another group or capabilities, so
/// that ld.so ignores LD_PRELOAD.
fn is_privileged(path: &Path) -> bool {
    let Ok(metadata) = fs::metadata(path) else { return false };
    let (user, group) = (ids::user(), ids::group());
    if rustix::fs::statvfs(path).is_ok_and(|it| it.f_flag.contains(StatVfsMountFlags::NOSUID)) {
        return false;
    }
    let has = |bits| metadata.mode() & bits == bits;
    let changes_user = has(SET_USER) && metadata.uid() != user;
    let changes_group = has(SET_GROUP) && metadata.gid() != group;
    let mut none: [u8; 0] = [];
    let has_capabilities = user != 0
        && rustix::fs::getxattr(path, "security.capability", &mut none)
            .is_ok_and(|length| length > 0);
    changes_user || changes_group || has_capabilities
}

/// Returns the interpreter that the first line of a script names.
fn interpreter_of_script(path: &Path) -> io::Result<Option<PathBuf>> {
    let mut start = Vec::new();
    open_document(path)?.take(LINE_MAX).read_to_end(&mut start)?;
    let Some(line) = start.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let mut words = line.split(|byte| [b' ', b'\t'].contains(byte)).filter(|word| !word.is_empty());
    let word = words.next().map(|word| std::ffi::OsString::from_vec(word.to_owned()));
    Ok(word.map(PathBuf::from))
}
