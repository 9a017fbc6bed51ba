//! Which backend serves: found by trying (a real set-up, a NOP, one direct read), never by version
//! or sysctl. The ladder is uring, then threads. What was chosen and why is kept.

use std::fs::OpenOptions;
use std::os::fd::AsFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use diopter_sys::{
    BioId, BioResult, BioSpec, Errno, IoBuf, ObjectHandle, Op, Ring, RingWanted, RwFlags, Slab,
    SlabShape, Span, rw,
};

use crate::backend::threads::Threads;
use crate::backend::uring::Uring;
use crate::backend::{Backend, Capabilities, Completions, LentBio, Register, Wait};
use crate::clock;
use crate::error::{BackendError, SetupError};
use crate::sync::{OnceLock, StaticMutex};

/// A choice of backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum BackendKind {
    /// The best that works here.
    #[default]
    Auto,
    /// io_uring.
    Uring,
    /// preadv2 and pwritev2 in worker threads.
    Threads,
}

impl BackendKind {
    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Auto => "auto",
            BackendKind::Uring => "uring",
            BackendKind::Threads => "threads",
        }
    }
}

impl std::fmt::Display for BackendKind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for BackendKind {
    type Err = String;

    fn from_str(name: &str) -> Result<BackendKind, String> {
        [BackendKind::Auto, BackendKind::Uring, BackendKind::Threads]
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("no backend is called {name}: use auto, uring or threads"))
    }
}

/// Why io_uring does not serve here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The step that failed.
    pub step: &'static str,
    /// Its errno.
    pub errno: Errno,
}

/// How long the probe waits for its NOP and its read.
const PROBE_WAIT: Duration = Duration::from_secs(5);

/// Whether io_uring works in this process, by doing what it will be used for. Cached: a seccomp
/// filter or a sysctl does not come and go. Want of descriptors or memory does, and is not.
///
/// # Errors
/// The step that failed, and its errno.
pub fn probe_uring() -> Result<(), Choice> {
    static PROBED: OnceLock<Result<(), Choice>> = OnceLock::new();
    static PROBING: StaticMutex<()> = StaticMutex::new(());
    if let Some(known) = PROBED.get() {
        return *known;
    }
    // One thread at a time: a thousand rings of a thousand probes would take every descriptor.
    let _alone = PROBING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if let Some(known) = PROBED.get() {
        return *known;
    }
    let tried = try_uring();
    if tried.is_err_and(|choice| is_of_this_moment(choice.errno)) {
        return tried;
    }
    *PROBED.get_or_init(|| tried)
}

/// Want of descriptors or memory: it says nothing of the next attempt.
fn is_of_this_moment(errno: Errno) -> bool {
    [Errno::EMFILE, Errno::ENFILE, Errno::ENOMEM, Errno::EAGAIN].contains(&errno)
}

fn try_uring() -> Result<(), Choice> {
    let at = |step| move |errno| Choice { step, errno };
    let slab = Slab::new(SlabShape { bios: 1, segments_per_bio: 1, memories: 1 });
    let mut ring = Ring::new(&slab, 4, RingWanted::ALL).map_err(at("set-up"))?;
    ring.nop(PROBE_WAIT).map_err(at("NOP"))?;
    // Any regular file does; the program's own is there and readable.
    let open = |flags| OpenOptions::new().read(true).custom_flags(flags).open("/proc/self/exe");
    let Ok(file) = open(diopter_sys::file::O_DIRECT).or_else(|_| open(0)) else {
        // Without /proc there is nothing to read; the NOP has gone through the ring.
        return Ok(());
    };
    let memory = IoBuf::new(4096).map_err(at("buffer"))?;
    let memory = slab.adopt(memory).map_err(|_| Errno::ENOMEM).map_err(at("buffer"))?;
    let spec = BioSpec {
        op: Op::Read,
        object: ObjectHandle::of_fd(file.as_fd()),
        offset: 0,
        span: Some(Span::new(memory, 0, 4096)),
        flags: RwFlags::NONE,
    };
    let id = slab.build(spec).ok_or(Errno::ENOMEM).map_err(at("direct read"))?;
    let mut done = Vec::new();
    if ring.queue(&[id]) == 0 {
        return Err(Choice { step: "direct read", errno: Errno::EBUSY });
    }
    let (started, most) = (clock::now(), PROBE_WAIT.as_nanos());
    // A signal ends a turn early.
    while done.is_empty() && u128::from(clock::now().since(started)) < most {
        ring.turn(1, Some(PROBE_WAIT), &mut done).map_err(at("direct read"))?;
    }
    match done.first() {
        Some((_, Ok(_))) => Ok(()),
        Some((_, Err(errno))) => Err(Choice { step: "direct read", errno: *errno }),
        None => Err(Choice { step: "direct read", errno: Errno::ETIMEDOUT }),
    }
}

/// The best backend that works here, set up when the first bio is queued: a thread that only ever
/// makes single blocking calls needs neither a ring nor its descriptor.
pub struct Ladder {
    slab: Slab,
    depth_max: u32,
    kind: BackendKind,
    inner: Option<Box<dyn Backend>>,
    why: String,
}

impl Ladder {
    /// Set up on first use.
    #[must_use]
    pub fn lazy(slab: &Slab, depth_max: u32, kind: BackendKind) -> Ladder {
        let why = "not needed yet".to_owned();
        Ladder { slab: slab.clone(), depth_max, kind, inner: None, why }
    }

    /// Set up now.
    ///
    /// # Errors
    /// [`SetupError`] when the backend was asked for by name and does not work here.
    pub fn set_up(slab: &Slab, depth_max: u32, kind: BackendKind) -> Result<Ladder, SetupError> {
        let mut ladder = Ladder::lazy(slab, depth_max, kind);
        let refused = |step: &'static str, errno| SetupError {
            what: step,
            path: None,
            errno,
            remedy: "use --backend auto or threads, or let the container and \
                     kernel.io_uring_disabled allow io_uring",
        };
        if kind == BackendKind::Uring {
            probe_uring().map_err(|choice| refused("io_uring probe", choice.errno))?;
            let uring = Uring::new(slab, depth_max, RingWanted::ALL);
            let uring = uring.map_err(|errno| refused("io_uring set-up", errno))?;
            ladder.inner = Some(Box::new(uring));
            ladder.why = "asked for".to_owned();
        } else {
            ladder.climb();
        }
        Ok(ladder)
    }

    /// Why the backend in use was chosen.
    #[must_use]
    pub fn why(&self) -> String {
        self.why.clone()
    }

    fn climb(&mut self) -> &mut dyn Backend {
        if self.inner.is_none() {
            let (inner, why) = self.choose();
            self.inner = Some(inner);
            self.why = why;
        }
        &mut **self.inner.as_mut().expect("chosen above")
    }

    fn choose(&self) -> (Box<dyn Backend>, String) {
        let threads = || Box::new(Threads::new(&self.slab, self.depth_max));
        if self.kind == BackendKind::Threads {
            return (threads(), "asked for".to_owned());
        }
        if let Err(Choice { step, errno }) = probe_uring() {
            let why = format!("io_uring does not work here: {step} answered {errno}");
            return (threads(), why);
        }
        match Uring::new(&self.slab, self.depth_max, RingWanted::ALL) {
            Ok(uring) => {
                let why = "io_uring works here: a ring, a NOP and a direct read were tried";
                (Box::new(uring), why.to_owned())
            }
            Err(errno) => (threads(), format!("no ring for this thread: {errno}")),
        }
    }
}

impl Backend for Ladder {
    fn capabilities(&self) -> Capabilities {
        let lazy = Capabilities { name: self.kind.name(), depth_max: self.depth_max };
        self.inner.as_ref().map_or(lazy, |inner| inner.capabilities())
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        if ids.is_empty() { 0 } else { self.climb().queue(ids) }
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        self.inner.as_mut().map_or(Ok(()), |inner| inner.turn(wait, done))
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        match &mut self.inner {
            Some(inner) => inner.run_now(id),
            None => rw::run_now(&self.slab, id),
        }
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        rw::run_lent(bio.object, bio.offset, bio.flags, bio.memory)
    }

    fn held(&self) -> u32 {
        self.inner.as_ref().map_or(0, |inner| inner.held())
    }

    fn cancel(&mut self, id: BioId) {
        if let Some(inner) = &mut self.inner {
            inner.cancel(id);
        }
    }

    fn register(&mut self, what: Register<'_, '_>) -> Result<(), Errno> {
        self.climb().register(what)
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        self.inner.as_ref().map_or_else(Vec::new, |inner| inner.features())
    }
}
