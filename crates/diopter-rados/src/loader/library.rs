//! The shared library, and the table of the functions that are used.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, ErrorKind};

/// The library that is loaded if the caller names none.
const SONAME: &str = "librados.so.2";

pub type Handle = *mut c_void;
pub type Callback = unsafe extern "C" fn(Handle, *mut c_void);
pub type Object = *const c_char;

/// Declares the table, and the function that fills it from a library.
macro_rules! functions {
    ($($name:ident($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub struct Functions {
            $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            fn find(opened: &Opened) -> Result<Functions, Error> {
                Ok(Functions {$(
                    $name: {
                        let address = opened.symbol(concat!(stringify!($name), "\0"))?;
                        // SAFETY: the address is not null, and librados.h declares the function
                        // of this name with these types; librados.so.2 keeps them.
                        unsafe {
                            std::mem::transmute::<
                                *mut c_void,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(address)
                        }
                    },
                )*})
            }
        }
    };
}

functions! {
    rados_version(*mut c_int, *mut c_int, *mut c_int);
    rados_create2(*mut Handle, *const c_char, *const c_char, u64) -> c_int;
    rados_shutdown(Handle);
    rados_conf_read_file(Handle, *const c_char) -> c_int;
    rados_conf_get(Handle, *const c_char, *mut c_char, usize) -> c_int;
    rados_conf_set(Handle, *const c_char, *const c_char) -> c_int;
    rados_connect(Handle) -> c_int;
    rados_ioctx_create(Handle, *const c_char, *mut Handle) -> c_int;
    rados_ioctx_destroy(Handle);
    rados_ioctx_set_namespace(Handle, *const c_char);
    rados_stat(Handle, Object, *mut u64, *mut libc::time_t) -> c_int;
    rados_getxattr(Handle, Object, *const c_char, *mut c_char, usize) -> c_int;
    rados_setxattr(Handle, Object, *const c_char, *const c_char, usize) -> c_int;
    rados_getxattrs(Handle, Object, *mut Handle) -> c_int;
    rados_getxattrs_next(Handle, *mut *const c_char, *mut *const c_char, *mut usize) -> c_int;
    rados_getxattrs_end(Handle);
    rados_read(Handle, Object, *mut c_char, usize, u64) -> c_int;
    rados_write(Handle, Object, *const c_char, usize, u64) -> c_int;
    rados_remove(Handle, Object) -> c_int;
    rados_trunc(Handle, Object, u64) -> c_int;
    rados_unlock(Handle, Object, *const c_char, *const c_char) -> c_int;
    rados_create_write_op() -> Handle;
    rados_release_write_op(Handle);
    rados_write_op_assert_exists(Handle);
    rados_write_op_create(Handle, c_int, *const c_char);
    rados_write_op_cmpxattr(Handle, *const c_char, u8, *const c_char, usize);
    rados_write_op_setxattr(Handle, *const c_char, *const c_char, usize);
    rados_write_op_rmxattr(Handle, *const c_char);
    rados_write_op_remove(Handle);
    rados_write_op_truncate(Handle, u64);
    rados_write_op_exec(Handle, *const c_char, *const c_char, *const c_char, usize, *mut c_int);
    rados_write_op_operate(Handle, Handle, Object, *mut libc::time_t, c_int) -> c_int;
    rados_write_op_write(Handle, *const c_char, usize, u64);
    rados_create_read_op() -> Handle;
    rados_release_read_op(Handle);
    rados_read_op_read(Handle, u64, usize, *mut c_char, *mut usize, *mut c_int);
    rados_aio_read_op_operate(Handle, Handle, Handle, Object, c_int) -> c_int;
    rados_aio_create_completion2(*mut c_void, Callback, *mut Handle) -> c_int;
    rados_aio_release(Handle);
    rados_aio_get_return_value(Handle) -> c_int;
    rados_aio_read(Handle, Object, Handle, *mut c_char, usize, u64) -> c_int;
    rados_aio_write(Handle, Object, Handle, *const c_char, usize, u64) -> c_int;
    rados_aio_write_op_operate(Handle, Handle, Handle, Object, *mut libc::time_t, c_int) -> c_int;
}

/// librados. It stays loaded until the process ends: its threads do not end before.
#[derive(Clone)]
pub struct Library {
    pub(super) functions: Arc<Functions>,
}

impl Library {
    /// Loads librados: the file at a path, or `librados.so.2` from where the system keeps it.
    ///
    /// # Errors
    /// Fails with [`ErrorKind::Library`] if there is no such library, and with the function's name
    /// if the library lacks one.
    pub fn load(path: Option<&Path>) -> Result<Library, Error> {
        let opened = Opened::open(path)?;
        Ok(Library { functions: Arc::new(Functions::find(&opened)?) })
    }

    /// Returns the version of the library's interface.
    #[must_use]
    pub fn version(&self) -> (i32, i32, i32) {
        let (mut major, mut minor, mut extra) = (0, 0, 0);
        // SAFETY: the function writes three numbers, all of which live here.
        unsafe {
            (self.functions.rados_version)(&raw mut major, &raw mut minor, &raw mut extra);
        }
        (major, minor, extra)
    }
}

struct Opened {
    handle: Handle,
    shown: String,
}

impl Opened {
    fn open(path: Option<&Path>) -> Result<Opened, Error> {
        let file = path.unwrap_or(Path::new(SONAME));
        let shown = file.display().to_string();
        let name = CString::new(file.as_os_str().as_bytes())
            .map_err(|_| Error::invalid(format!("load {shown:?}: a path has no zero byte")))?;
        // SAFETY: the name is a string of C. The library's initialisers run: loading the library
        // that the caller names is what was asked for.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            let why = last_error();
            let advice = match path {
                _ if cfg!(target_feature = "crt-static") => {
                    "a static program loads no library: run one that is linked dynamically"
                }
                None => "install librados (Debian's package `librados2`)",
                Some(_) => "name another file, or none and install the package `librados2`",
            };
            let message = format!("load librados: {why}");
            return Err(Error::new(ErrorKind::Library, message).advise(advice));
        }
        Ok(Opened { handle, shown })
    }

    /// Returns the address of a function; its name ends with a zero byte.
    fn symbol(&self, name: &'static str) -> Result<*mut c_void, Error> {
        let name = CStr::from_bytes_with_nul(name.as_bytes())
            .map_err(|_| Error::invalid("the name of a function has one zero byte, its last"))?;
        // SAFETY: the handle is of a library that is never unloaded, the name is a string of C.
        let address = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if address.is_null() {
            let message = format!(
                "load librados: {} has no function `{}`",
                self.shown,
                name.to_string_lossy()
            );
            let error = Error::new(ErrorKind::Library, message);
            return Err(error.advise("install a newer librados"));
        }
        Ok(address)
    }
}

/// Returns the text of the last error of dlopen on this thread.
fn last_error() -> String {
    // SAFETY: the function has no arguments.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "unknown error".to_owned();
    }
    // SAFETY: not null, so a string of C, which stays until this thread's next call of the family.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

/// A number that librados returned: a count, or an error.
pub fn checked(code: c_int, what: impl FnOnce() -> String) -> Result<usize, Error> {
    usize::try_from(code).map_err(|_| Error::returned(what(), code))
}

/// The result of an operation that changes something.
pub fn changed(code: c_int, what: impl FnOnce() -> String) -> Result<(), Error> {
    if code < 0 { Err(Error::of_change(what(), code)) } else { Ok(()) }
}

/// A name for librados, which takes strings of C.
pub fn c_string(what: &str, name: &[u8]) -> Result<CString, Error> {
    CString::new(name).map_err(|_| {
        Error::invalid(format!(
            "{what} {}: a name in RADOS has no zero byte here",
            crate::error::shown(name)
        ))
    })
}
