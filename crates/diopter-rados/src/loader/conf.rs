//! The configuration of a cluster: where it is, whose it may be, and the options that it does not
//! set.

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use diopter_os::trust::{self, Refusal, Why};

use crate::error::{Error, ErrorKind, shown};

/// Options of librados that no configuration sets here: they keep the values of the library. Each
/// names a file that librados writes, or code that it runs, and none is needed to read and write
/// objects.
pub const KEPT: [&str; 17] = [
    // A log is made or appended to. A message has texts of the configuration, so a log is any text.
    "log_file",
    "log_to_file",
    "mon_cluster_log_file",
    // A socket is made, and one that is there is removed; its mode is set.
    "admin_socket",
    "admin_socket_mode",
    // The default of admin_socket is below it.
    "run_dir",
    // A report of a crash is written below it.
    "crash_dir",
    // Files that daemons write, if a library does so too.
    "pid_file",
    "heartbeat_file",
    // The directory to which a process changes.
    "chdir",
    // Libraries for compression and encryption are loaded from it.
    "plugin_dir",
    // The name of such a library, which may have `..`.
    "plugin_crypto_accelerator",
    "erasure_code_dir",
    "osd_class_dir",
    // Paths of libraries that OpenSSL loads.
    "openssl_engine_opts",
    "openssl_provider_opts",
    // A program that is run.
    "crush_location_hook",
];

/// An open configuration.
pub struct Conf {
    pub path: PathBuf,
    pub file: File,
}

impl Conf {
    /// Opens a configuration, or the first one that exists. Each may decide only if neither its
    /// owner nor another writer is another user.
    pub fn open(path: Option<&Path>) -> Result<Conf, Error> {
        if let Some(path) = path {
            return Conf::at(path).map_err(|refusal| failure(path, &refusal));
        }
        for path in places() {
            match Conf::at(&path) {
                Err(refusal) if refusal.errno().map(|errno| errno.raw()) == Some(libc::ENOENT) => {}
                Err(refusal) => return Err(failure(&path, &refusal)),
                Ok(conf) => return Ok(conf),
            }
        }
        let tried = places().map(|place| text(&place)).collect::<Vec<_>>().join(", ");
        Err(Error::new(
            ErrorKind::Os(libc::ENOENT),
            format!("read the configuration: none of {tried} exists"),
        )
        .advise("name one"))
    }

    fn at(path: &Path) -> Result<Conf, Refusal> {
        Ok(Conf { path: path.to_owned(), file: trust::open(path)? })
    }
}

fn failure(path: &Path, refusal: &Refusal) -> Error {
    let number = match refusal.why {
        Why::System(errno) => errno.raw(),
        Why::NotRegular => libc::EINVAL,
        _ => libc::EACCES,
    };
    let why = refusal.text(path, text);
    Error::new(ErrorKind::Os(number), format!("read the configuration {}: {why}", text(path)))
}

fn places() -> impl Iterator<Item = PathBuf> {
    let variable = std::env::var_os("CEPH_CONF").map(PathBuf::from);
    // A relative one would be below the current directory.
    let home = std::env::var_os("HOME").map(PathBuf::from).filter(|home| home.is_absolute());
    let home = home.map(|home| home.join(".ceph/ceph.conf"));
    [variable, Some(PathBuf::from("/etc/ceph/ceph.conf")), home].into_iter().flatten()
}

/// A path in a message.
pub fn text(path: &Path) -> String {
    shown(path.as_os_str().as_bytes())
}
