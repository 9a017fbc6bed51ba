//! The connection to a cluster.

use std::ffi::CString;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::Duration;

use super::conf::{Conf, KEPT, text};
use super::library::{Handle, Library, c_string, checked};
use super::room::Room;
use crate::error::{Error, shown};

/// Bytes of the text of an option that is a number, with room for others.
const OPTION_BYTES_MAX: usize = 256;

/// Two thirds of the lease of a striped object, whose length follows from the bound in force.
const OPERATION_TIMEOUT: Duration = Duration::from_secs(20);

/// How to connect.
#[derive(Clone, Debug)]
pub struct Connect {
    /// The configuration, which another user must not own or write to; `None` for the first of
    /// `$CEPH_CONF`, `/etc/ceph/ceph.conf` and `~/.ceph/ceph.conf` that exists. Ceph's tools would
    /// also read `ceph.conf` in the current directory, which is another user's file as often as
    /// not.
    pub conf: Option<PathBuf>,
    /// The user without `client.`.
    pub user: String,
    /// Bound of the connection.
    pub connect_timeout: Duration,
    /// Bound of each operation, on monitors and on stores, unless the configuration sets
    /// `rados_mon_op_timeout` or `rados_osd_op_timeout`. An operation that exceeds it fails with
    /// `ETIMEDOUT`, and may still take effect.
    pub operation_timeout: Duration,
}

impl Default for Connect {
    fn default() -> Connect {
        Connect {
            conf: None,
            user: "admin".to_owned(),
            connect_timeout: Duration::from_secs(30),
            operation_timeout: OPERATION_TIMEOUT,
        }
    }
}

/// A connected cluster. Clones share the connection, which ends with the last of them and of its
/// pools.
#[derive(Clone)]
pub struct Cluster {
    pub(super) connection: Arc<Connection>,
}

pub struct Connection {
    pub library: Library,
    pub handle: Handle,
    pub room: Arc<Room>,
    /// Bound of an operation on a store that is in force; `None` if it may wait for ever.
    pub operation_timeout: Option<Duration>,
}

// SAFETY: librados's handle of a cluster may be used from any thread.
unsafe impl Send for Connection {}
// SAFETY: and from several at once: librados locks inside.
unsafe impl Sync for Connection {}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the handle was created by rados_create2, and no pool of it is left: each holds
        // this connection.
        unsafe { (self.library.functions.rados_shutdown)(self.handle) };
    }
}

impl Cluster {
    /// Connects to a cluster.
    ///
    /// # Errors
    /// Fails if the configuration can't be read, or the monitors can't be reached or refuse the
    /// user.
    pub fn connect(library: &Library, how: &Connect) -> Result<Cluster, Error> {
        let conf = Conf::open(how.conf.as_deref())?;
        let mut connection = Connection::create(library, &how.user)?;
        connection.read(&conf)?;
        connection.set_time("client_mount_timeout", how.connect_timeout)?;
        for option in ["rados_mon_op_timeout", "rados_osd_op_timeout"] {
            // Without one, an operation waits for ever: 0, or 0.000000 in older releases.
            let set = connection.get(option)?;
            if set.parse::<f64>().is_ok_and(|seconds| seconds == 0.0) {
                connection.set_time(option, how.operation_timeout)?;
            }
        }
        connection.operation_timeout = bound_of(&connection.get("rados_osd_op_timeout")?);
        // SAFETY: the handle is created and configured, and connected once, here.
        let code = unsafe { (library.functions.rados_connect)(connection.handle) };
        checked(code, || {
            let user = shown(how.user.as_bytes());
            format!("connect to the cluster of {} as {user}", text(&conf.path))
        })?;
        let number = |option| connection.get(option).ok()?.parse().ok();
        let inflight = ["objecter_inflight_ops", "objecter_inflight_op_bytes"].map(number);
        connection.room = Arc::new(Room::new(inflight));
        Ok(Cluster { connection: Arc::new(connection) })
    }

    /// Returns an option of the configuration, of the file and of the monitors.
    ///
    /// # Errors
    /// Fails with `ENOENT` if there is no such option.
    pub fn option(&self, name: &str) -> Result<String, Error> {
        self.connection.get(name)
    }
}

impl Connection {
    fn create(library: &Library, user: &str) -> Result<Connection, Error> {
        let name = c_string("user", format!("client.{user}").as_bytes())?;
        let mut handle = null_mut();
        // SAFETY: the function writes one handle, and copies both strings.
        let code = unsafe {
            (library.functions.rados_create2)(&raw mut handle, c"ceph".as_ptr(), name.as_ptr(), 0)
        };
        checked(code, || format!("create a client {}", shown(user.as_bytes())))?;
        let room = Arc::new(Room::new([None, None]));
        Ok(Connection { library: library.clone(), handle, room, operation_timeout: None })
    }

    /// Reads the configuration, but not the options of [`KEPT`].
    fn read(&self, conf: &Conf) -> Result<(), Error> {
        let is_known = |error: &Error| error.errno() != Some(libc::ENOENT);
        let mut kept = Vec::new();
        for option in KEPT {
            match self.get(option) {
                Ok(value) => kept.push((option, value)),
                // Of another release.
                Err(error) if !is_known(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let set_back = || kept.iter().try_for_each(|(option, value)| self.set(option, value));
        // What is set so prevails over a file that is read later: reading would already open a log.
        set_back()?;
        self.read_file(conf)?;
        // In releases in which the last one prevails.
        set_back()
    }

    fn read_file(&self, conf: &Conf) -> Result<(), Error> {
        let what = || format!("read the configuration {}", text(&conf.path));
        // By its descriptor: librados takes a list of paths, so that blanks and commas divide one.
        let descriptor = CString::new(format!("/proc/self/fd/{}", conf.file.as_raw_fd()))
            .map_err(|_| Error::invalid(what()))?;
        // SAFETY: the handle is not connected yet, and the path is a string of C.
        let code = unsafe {
            (self.library.functions.rados_conf_read_file)(self.handle, descriptor.as_ptr())
        };
        checked(code, what).map(drop)
    }

    /// Returns the value of an option, as text.
    fn get(&self, option: &str) -> Result<String, Error> {
        let name = c_string("option", option.as_bytes())?;
        let mut text = vec![0u8; OPTION_BYTES_MAX];
        // SAFETY: the buffer has this length, and the function writes a string of C into it.
        let code = unsafe {
            (self.library.functions.rados_conf_get)(
                self.handle,
                name.as_ptr(),
                text.as_mut_ptr().cast(),
                text.len(),
            )
        };
        checked(code, || format!("read the option {option}"))?;
        text.truncate(text.iter().position(|byte| *byte == 0).unwrap_or(text.len()));
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Sets an option that is a time, in whole seconds as every release takes it.
    fn set_time(&self, option: &str, value: Duration) -> Result<(), Error> {
        let seconds = value.as_secs() + u64::from(value.subsec_nanos() > 0);
        self.set(option, &seconds.max(1).to_string())
    }

    /// Sets an option.
    fn set(&self, option: &str, value: &str) -> Result<(), Error> {
        let name = c_string("option", option.as_bytes())?;
        let value = c_string("value", value.as_bytes())?;
        // SAFETY: both strings are copied before the function returns.
        let code = unsafe {
            (self.library.functions.rados_conf_set)(self.handle, name.as_ptr(), value.as_ptr())
        };
        checked(code, || format!("set the option {option}")).map(drop)
    }
}

/// Returns the time of an option's text, in seconds; `None` without a bound, which is 0.
fn bound_of(text: &str) -> Option<Duration> {
    let bound = Duration::try_from_secs_f64(text.parse().ok()?).ok()?;
    (!bound.is_zero()).then_some(bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bound_is_read_from_the_text_of_an_option() {
        assert_eq!(bound_of("20"), Some(Duration::from_secs(20)));
        assert_eq!(bound_of("0.500000"), Some(Duration::from_millis(500)));
        for text in ["0", "0.000000", "-1", "", "soon", "nan", "inf", "1e300"] {
            assert_eq!(bound_of(text), None, "{text}");
        }
    }
}
