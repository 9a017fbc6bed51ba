//! The modes and options of `open()`.

use std::os::fd::{FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use diopter::engine::{RoutePolicy, default_route};
use diopter::images::{Image, InsideName, split_name};
use diopter::{File, OpenOptions};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::error::Failure;

/// The flags of a mode, which are those of Python's `open()`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mode {
    pub read: bool,
    pub write: bool,
    pub append: bool,
    create: bool,
    create_new: bool,
    truncate: bool,
}

/// Arguments of `open()` that are not its mode.
pub struct Settings {
    pub permissions: u32,
    pub strict: bool,
    pub shared_writers: bool,
    pub striped: bool,
    pub image: bool,
    pub sync: Option<String>,
    pub route: Option<String>,
}

/// Returns a keyword that is one of several names. Any other object becomes a name that
/// [`Settings::options`] refuses, with those that it knows.
pub fn name_of(value: Option<&Bound<'_, PyAny>>) -> PyResult<Option<String>> {
    value.map(|value| Ok(value.str()?.to_string())).transpose()
}

impl Mode {
    /// Parses a mode: one of `r`, `w`, `x` and `a`, with `+` and `b` as one likes.
    pub fn of(text: &str) -> PyResult<Mode> {
        let invalid = || {
            let why = "use r, r+, w, w+, x, x+, a or a+; files are binary, so b adds nothing";
            PyValueError::new_err(format!("invalid mode `{text}`: {why}"))
        };
        let has = |flag: char| text.contains(flag);
        let mut letters: Vec<char> = text.chars().collect();
        letters.sort_unstable();
        letters.dedup();
        let is_plain = letters.len() == text.len() && text.chars().all(|c| "rwxa+b".contains(c));
        if !is_plain || text.chars().filter(|c| "rwxa".contains(*c)).count() != 1 {
            return Err(invalid());
        }
        Ok(Mode {
            read: has('r') || has('+'),
            write: !has('r') || has('+'),
            append: has('a'),
            create: has('w') || has('a'),
            create_new: has('x'),
            truncate: has('w'),
        })
    }

    /// Returns the mode for a file that exists, and that keeps its bytes.
    pub fn of_existing(self) -> Mode {
        Mode { create: false, create_new: false, truncate: false, ..self }
    }
}

impl Settings {
    /// Returns the keywords of `open()`.
    pub fn keywords<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let keywords = PyDict::new(py);
        keywords.set_item("permissions", self.permissions)?;
        keywords.set_item("strict", self.strict)?;
        keywords.set_item("shared_writers", self.shared_writers)?;
        keywords.set_item("striped", self.striped)?;
        keywords.set_item("image", self.image)?;
        keywords.set_item("sync", &self.sync)?;
        keywords.set_item("route", &self.route)?;
        Ok(keywords)
    }

    /// Returns the options of an open with this mode.
    pub fn options(&self, mode: Mode) -> PyResult<OpenOptions> {
        let mut options = OpenOptions::new();
        options.read(mode.read).write(mode.write).append(mode.append);
        options.create(mode.create).create_new(mode.create_new).truncate(mode.truncate);
        options.mode(self.permissions & 0o7777).strict(self.strict).striped(self.striped);
        options.shared_writers(self.shared_writers);
        match self.sync.as_deref() {
            None => {}
            Some("data") => drop(options.dsync(true)),
            Some("all") => drop(options.sync(true)),
            Some(other) => {
                let why = format!("invalid sync `{other}`: use data, all or None");
                return Err(PyValueError::new_err(why));
            }
        }
        match self.route.as_deref() {
            None => {
                let route = default_route();
                let route = route.map_err(|error| PyValueError::new_err(error.to_string()))?;
                options.route(route);
            }
            Some("direct") => drop(options.route(RoutePolicy::Direct)),
            Some("buffered") => drop(options.route(RoutePolicy::Buffered)),
            Some("hybrid") => drop(options.route(RoutePolicy::HYBRID)),
            Some("adaptive") => drop(options.route(RoutePolicy::Adaptive)),
            Some(other) => {
                let use_one = "use direct, adaptive, buffered or hybrid";
                let why = format!("invalid route `{other}`: {use_one}");
                return Err(PyValueError::new_err(why));
            }
        }
        Ok(options)
    }
}

/// Opens a path; with `is_image`, one inside an unmounted file system.
pub fn open(path: &Path, options: &OpenOptions, is_image: bool) -> Result<File, Failure> {
    let inside = if is_image { split_name(path) } else { None };
    Ok(match inside {
        Some(InsideName { image, path }) => Image::open_with(image, options)?.file(&path)?,
        None => options.open(path)?,
    })
}

/// Makes a file of a duplicate of a descriptor, whose access counts.
pub fn of_descriptor(fd: i32, options: &OpenOptions) -> Result<File, Failure> {
    // SAFETY: no memory is passed. The call fails for a number without a descriptor.
    let copy = unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        let error = std::io::Error::last_os_error();
        let errno = error.raw_os_error().unwrap_or(libc::EBADF);
        return Err(Failure::new(errno, format!("descriptor {fd}: {error}")));
    }
    // SAFETY: a new descriptor, which nothing else has.
    let copy = unsafe { OwnedFd::from_raw_fd(copy) };
    Ok(options.open_descriptor(copy)?)
}

/// Returns the path of a `str`, `bytes` or `os.PathLike`.
pub fn path_of(object: &Bound<'_, PyAny>) -> PyResult<PathBuf> {
    let path = object.py().import("os")?.call_method1("fsdecode", (object,))?;
    let path: PathBuf = path.extract()?;
    if path.as_os_str().as_encoded_bytes().contains(&0) {
        return Err(PyValueError::new_err("embedded null byte in the path"));
    }
    Ok(path)
}
