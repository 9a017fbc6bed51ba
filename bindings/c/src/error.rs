//! Errors as C sees them: a negative errno, and a message for each thread. No panic leaves here.

use std::cell::{Cell, RefCell};
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use libc::c_int;

/// A failed call.
#[derive(Debug)]
pub struct Failure {
    errno: c_int,
    detail: String,
}

pub type Result<T> = std::result::Result<T, Failure>;

impl Failure {
    pub fn new(errno: c_int, detail: impl Into<String>) -> Failure {
        Failure { errno, detail: detail.into() }
    }

    /// Returns the errno as a result of a call.
    pub fn code(&self) -> c_int {
        // 0 would be success.
        if self.errno > 0 { -self.errno } else { -libc::EIO }
    }

    pub fn detail(&self) -> CString {
        text(&self.detail)
    }
}

impl From<diopter::Error> for Failure {
    fn from(error: diopter::Error) -> Failure {
        Failure::new(error.errno().raw(), error.to_string())
    }
}

impl From<diopter::SetupError> for Failure {
    fn from(error: diopter::SetupError) -> Failure {
        diopter::Error::from(error).into()
    }
}

impl From<diopter::IoError> for Failure {
    fn from(error: diopter::IoError) -> Failure {
        diopter::Error::from(error).into()
    }
}

thread_local! {
    static DETAIL: RefCell<CString> = RefCell::default();
    /// A call is running: a panic is its error, and is not printed.
    static IS_IN_CALL: Cell<bool> = const { Cell::new(false) };
    static PANIC: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Returns the message of the thread's last failed call.
pub fn detail() -> *const c_char {
    // The pointer stays valid until the next failure of this thread replaces the string.
    DETAIL.try_with(|detail| detail.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

fn set_detail(detail: CString) {
    DETAIL.try_with(|last| *last.borrow_mut() = detail).unwrap_or(());
}

/// Returns the result of a call: what `body` returns, or a negative errno.
pub fn call(body: impl FnOnce() -> Result<i64>) -> i64 {
    run(body).unwrap_or_else(|code| code.into())
}

/// As [`call`], for calls whose results are small.
pub fn call_int(body: impl FnOnce() -> Result<c_int>) -> c_int {
    run(body).unwrap_or_else(|code| code)
}

/// As [`call`], for calls that return a pointer: null is the error.
pub fn call_pointer(body: impl FnOnce() -> Result<*const c_char>) -> *const c_char {
    run(body).unwrap_or(std::ptr::null())
}

fn run<T>(body: impl FnOnce() -> Result<T>) -> std::result::Result<T, c_int> {
    keep_panics_silent();
    let outer = IS_IN_CALL.try_with(|is_in| is_in.replace(true)).unwrap_or(true);
    let ended = catch_unwind(AssertUnwindSafe(body));
    IS_IN_CALL.try_with(|is_in| is_in.set(outer)).unwrap_or(());
    let failure = match ended {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(failure)) => failure,
        Err(payload) => {
            // What a payload's drop does is unknown.
            std::mem::forget(payload);
            let panic = PANIC.try_with(RefCell::take).unwrap_or_default();
            Failure::new(libc::EIO, format!("internal error: {panic}; report it as a bug"))
        }
    };
    set_detail(failure.detail());
    Err(failure.code())
}

/// Panics of calls are kept for their messages; any other one is printed as before.
fn keep_panics_silent() {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !IS_IN_CALL.try_with(Cell::get).unwrap_or(false) {
                return before(panic);
            }
            let payload = panic.payload();
            let text = payload.downcast_ref::<String>().map(String::as_str);
            let message = text.or_else(|| payload.downcast_ref::<&str>().copied());
            let message = message.unwrap_or("a panic without a message");
            let place = panic.location().map(|at| format!(", {}:{}", at.file(), at.line()));
            let message = format!("{message}{}", place.unwrap_or_default());
            PANIC.try_with(|last| last.replace(message)).unwrap_or_default();
        }));
    });
}

/// Returns a text as C has it: a path may have any byte, but not 0.
fn text(text: &str) -> CString {
    CString::new(text.replace('\0', "?")).unwrap_or_default()
}

/// Returns the string of an argument.
///
/// # Safety
/// `string` is null, or a string that ends with a 0 byte and does not change during the call.
pub unsafe fn string<'a>(string: *const c_char, name: &str) -> Result<&'a CStr> {
    if string.is_null() {
        return Err(Failure::new(libc::EINVAL, format!("{name} is null: pass a string")));
    }
    // SAFETY: not null, so the caller's promise is that it is a string that ends with 0.
    Ok(unsafe { CStr::from_ptr(string) })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn last() -> String {
        // SAFETY: the message of this thread; nothing replaces it before it is copied.
        unsafe { CStr::from_ptr(detail()) }.to_str().unwrap().to_owned()
    }

    #[test]
    fn a_panic_is_an_error_with_its_message_and_place() {
        assert_eq!(call(|| panic!("a test of {}", 7)), i64::from(-libc::EIO));
        let detail = last();
        assert!(detail.starts_with("internal error: a test of 7, "), "{detail}");
        assert!(detail.contains("error.rs:"), "{detail}");
    }

    #[test]
    fn the_last_failure_of_the_thread_is_kept_and_success_keeps_it() {
        assert_eq!(call_int(|| Err(Failure::new(libc::EBADF, "one\0two"))), -libc::EBADF);
        assert_eq!(call_int(|| Ok(7)), 7);
        assert_eq!(last(), "one?two");
        std::thread::spawn(|| assert_eq!(last(), "")).join().unwrap();
        assert_eq!(call_int(|| Err(Failure::new(0, ""))), -libc::EIO, "never success");
    }
}
