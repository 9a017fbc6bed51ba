//! Calls of librados and of libradosstriper as a program in C makes them, with nothing around them.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

type Handle = *mut c_void;
type Callback = unsafe extern "C" fn(Handle, Handle);

macro_rules! functions {
    ($($name:ident($($argument:ty),*);)*) => {
        /// The functions, by name.
        struct Functions {
            $($name: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Functions {
            fn load() -> Functions {
                // The striper's library brings librados, whose names are found through it.
                let library = open(c"libradosstriper.so.1");
                Functions {
                    $($name: {
                        let name = CString::new(stringify!($name)).expect("no zero byte");
                        // SAFETY: the library stays loaded, and the name ends with a zero byte.
                        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
                        assert!(!found.is_null(), "{name:?} is missing");
                        // SAFETY: the declaration is that of the header, but for results that
                        // nothing reads.
                        unsafe {
                            std::mem::transmute::<
                                Handle,
                                unsafe extern "C" fn($($argument),*) -> c_int,
                            >(found)
                        }
                    },)*
                }
            }
        }
    };
}

functions! {
    rados_create(*mut Handle, *const c_char);
    rados_conf_read_file(Handle, *const c_char);
    rados_connect(Handle);
    rados_ioctx_create(Handle, *const c_char, *mut Handle);
    rados_aio_create_completion2(Handle, Option<Callback>, *mut Handle);
    rados_aio_read(Handle, *const c_char, Handle, *mut c_char, usize, u64);
    rados_aio_write(Handle, *const c_char, Handle, *const c_char, usize, u64);
    rados_aio_wait_for_complete(Handle);
    rados_aio_wait_for_complete_and_cb(Handle);
    rados_aio_get_return_value(Handle);
    rados_aio_release(Handle);
    rados_striper_create(Handle, *mut Handle);
    rados_striper_read(Handle, *const c_char, *mut c_char, usize, u64);
    rados_striper_aio_read(Handle, *const c_char, Handle, *mut c_char, usize, u64);
}

fn open(name: &CStr) -> Handle {
    // SAFETY: the name ends with a zero byte; Ceph's libraries may be loaded at any time.
    let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
    assert!(!library.is_null(), "{name:?}: install libradosstriper1");
    library
}

/// A connection, a pool and a striper of it, for as long as the program runs.
pub struct Bare {
    functions: Functions,
    pool: Handle,
    striper: Handle,
}

/// How reads are made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum By {
    /// `rados_aio_read`, of the object itself.
    Objects,
    /// `rados_striper_aio_read`.
    Striper,
    /// `rados_striper_read`, one at a time.
    StriperCall,
}

/// The place of an operation in flight: its memory, and where its end is reported.
struct Slot {
    index: usize,
    memory: Vec<u8>,
    done: Sender<usize>,
    completion: Handle,
}

/// Called by a thread of librados.
unsafe extern "C" fn report(_: Handle, slot: Handle) {
    // SAFETY: the slot outlives its operation, and nothing changes it meanwhile.
    let slot = unsafe { &*slot.cast::<Slot>() };
    slot.done.send(slot.index).expect("the other end waits");
}

impl Bare {
    pub fn connect(conf: &Path) -> Bare {
        let functions = Functions::load();
        let conf = CString::new(conf.to_str().expect("text")).expect("no zero byte");
        let (mut cluster, mut pool, mut striper) = (null_mut(), null_mut(), null_mut());
        // SAFETY: each handle was made by the call before; strings end with a zero byte.
        unsafe {
            assert_eq!((functions.rados_create)(&raw mut cluster, c"admin".as_ptr()), 0);
            assert_eq!((functions.rados_conf_read_file)(cluster, conf.as_ptr()), 0);
            assert_eq!((functions.rados_connect)(cluster), 0);
            assert_eq!((functions.rados_ioctx_create)(cluster, c"data".as_ptr(), &raw mut pool), 0);
            assert_eq!((functions.rados_striper_create)(pool, &raw mut striper), 0);
        }
        Bare { functions, pool, striper }
    }

    fn completion(&self, slot: Handle, callback: Option<Callback>) -> Handle {
        let mut completion = null_mut();
        // SAFETY: the slot, if there is one, outlives the operation.
        let made = unsafe {
            (self.functions.rados_aio_create_completion2)(slot, callback, &raw mut completion)
        };
        assert_eq!(made, 0);
        completion
    }

    /// Reads `bytes` at random places for a time, so many at once, and returns how many were read.
    /// `next` returns the object and the offset of the next one.
    pub fn reads(
        &self,
        by: By,
        (depth, bytes): (usize, usize),
        time: Duration,
        mut next: impl FnMut() -> (CString, u64),
    ) -> u64 {
        if by == By::StriperCall {
            return self.calls(bytes, time, next);
        }
        let (done, ended) = channel();
        let slot = |index| {
            let memory = vec![0; bytes];
            Box::into_raw(Box::new(Slot {
                index,
                memory,
                done: done.clone(),
                completion: null_mut(),
            }))
        };
        let slots: Vec<*mut Slot> = (0..depth).map(slot).collect();
        let mut start = |slot: *mut Slot| {
            let (object, offset) = next();
            let completion = self.completion(slot.cast(), Some(report));
            // SAFETY: nothing is in flight in this slot, and its memory is not touched until its
            // end is reported. librados copies the name.
            let started = unsafe {
                (*slot).completion = completion;
                let (to, object) = ((*slot).memory.as_mut_ptr().cast(), object.as_ptr());
                match by {
                    By::Objects => (self.functions.rados_aio_read)(
                        self.pool, object, completion, to, bytes, offset,
                    ),
                    _ => (self.functions.rados_striper_aio_read)(
                        self.striper,
                        object,
                        completion,
                        to,
                        bytes,
                        offset,
                    ),
                }
            };
            assert_eq!(started, 0);
        };
        let begin = Instant::now();
        slots.iter().for_each(|slot| start(*slot));
        let (mut count, mut in_flight) = (0, depth);
        while in_flight > 0 {
            let slot = slots[ended.recv().expect("this end holds the other")];
            // SAFETY: the slot's operation is complete.
            let completion = unsafe { (*slot).completion };
            let goes_on = begin.elapsed() < time;
            if !goes_on {
                // SAFETY: the completion is not released yet. Its callback uses the slot.
                unsafe { (self.functions.rados_aio_wait_for_complete_and_cb)(completion) };
            }
            // SAFETY: the operation is complete.
            let result = unsafe { self.result_of(completion) };
            assert_eq!(usize::try_from(result), Ok(bytes));
            count += 1;
            if goes_on {
                start(slot);
            } else {
                in_flight -= 1;
            }
        }
        // SAFETY: nothing is in flight, and each was made by `into_raw`.
        slots.into_iter().for_each(|slot| drop(unsafe { Box::from_raw(slot) }));
        count
    }

    fn calls(&self, bytes: usize, time: Duration, mut next: impl FnMut() -> (CString, u64)) -> u64 {
        let (mut memory, mut count) = (vec![0_u8; bytes], 0);
        let begin = Instant::now();
        while begin.elapsed() < time {
            let (object, offset) = next();
            let to = memory.as_mut_ptr().cast();
            // SAFETY: the call returns when the memory is not used any more.
            let read = unsafe {
                let read = self.functions.rados_striper_read;
                read(self.striper, object.as_ptr(), to, bytes, offset)
            };
            assert_eq!(usize::try_from(read), Ok(bytes));
            count += 1;
        }
        count
    }

    /// Reads or writes the begin of each object, all at once, and waits for all.
    pub fn all(&self, is_write: bool, objects: &[CString], memory: &mut [u8]) {
        let bytes = memory.len() / objects.len();
        let start = |(object, part): (&CString, &mut [u8])| {
            let completion = self.completion(null_mut(), None);
            let (object, part) = (object.as_ptr(), part.as_mut_ptr().cast::<c_char>());
            // SAFETY: the memory outlives the operation, which is waited for below.
            let started = unsafe {
                if is_write {
                    (self.functions.rados_aio_write)(self.pool, object, completion, part, bytes, 0)
                } else {
                    (self.functions.rados_aio_read)(self.pool, object, completion, part, bytes, 0)
                }
            };
            assert_eq!(started, 0);
            completion
        };
        let started: Vec<Handle> =
            objects.iter().zip(memory.chunks_exact_mut(bytes)).map(start).collect();
        for completion in started {
            let expected = if is_write { 0 } else { bytes };
            // SAFETY: the completion was made above and not released.
            let result = unsafe {
                (self.functions.rados_aio_wait_for_complete)(completion);
                self.result_of(completion)
            };
            assert_eq!(usize::try_from(result), Ok(expected));
        }
    }

    /// The result of a complete operation, whose completion it releases.
    unsafe fn result_of(&self, completion: Handle) -> c_int {
        // SAFETY: the caller's; it is not used again.
        unsafe {
            let result = (self.functions.rados_aio_get_return_value)(completion);
            (self.functions.rados_aio_release)(completion);
            result
        }
    }
}
