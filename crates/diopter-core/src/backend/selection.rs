//! Selects the backend: the first of uring, aio and threads that works. The choice and its reason
//! are kept.

use diopter_os::{AioWanted, BioId, BioResult, Errno, Slab, rw};

use crate::backend::aio::Aio;
use crate::backend::probe::Choice;
use crate::backend::servers::WithServers;
use crate::backend::threads::Threads;
use crate::backend::uring::{Uring, UringOptions};
use crate::backend::{Backend, Capabilities, Completions, LentBio, Register, Wait, probe};
use crate::error::{BackendError, SetupError};
use crate::limits::DEPTH_MAX;

/// A choice of backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum BackendKind {
    /// The first candidate that works.
    #[default]
    Auto,
    /// io_uring.
    Uring,
    /// Linux AIO.
    Aio,
    /// preadv2 and pwritev2 in worker threads.
    Threads,
}

impl BackendKind {
    /// Returns its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            BackendKind::Auto => "auto",
            BackendKind::Uring => "uring",
            BackendKind::Aio => "aio",
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
        [BackendKind::Auto, BackendKind::Uring, BackendKind::Aio, BackendKind::Threads]
            .into_iter()
            .find(|kind| kind.name() == name)
            .ok_or_else(|| format!("no backend is called {name}: use auto, uring, aio or threads"))
    }
}

/// The threads that use a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Affinity {
    /// The one that sets it up.
    Thread,
    /// Any, one after another.
    Any,
}

/// A candidate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Candidate {
    Uring(UringOptions),
    Aio,
    Threads,
}

/// The reason that a candidate is not used.
struct Refusal {
    /// The step that failed, for a [`SetupError`].
    what: &'static str,
    errno: Errno,
    why: String,
}

impl Candidate {
    /// Returns the candidates, from the requested one down to the one that always works.
    fn from(kind: BackendKind, uring: UringOptions) -> Vec<Candidate> {
        let mut candidates = match kind {
            BackendKind::Auto | BackendKind::Uring => {
                vec![
                    Candidate::Uring(uring),
                    Candidate::Uring(UringOptions::DEFAULT),
                    Candidate::Aio,
                ]
            }
            BackendKind::Aio => vec![Candidate::Aio],
            BackendKind::Threads => Vec::new(),
        };
        candidates.dedup();
        candidates.push(Candidate::Threads);
        candidates
    }

    fn set_up(
        self,
        slab: &Slab,
        depth_max: u32,
        affinity: Affinity,
    ) -> Result<(Box<dyn Backend>, Option<String>), Refusal> {
        let tried = |name, what| {
            move |Choice { step, errno }| {
                let why = format!("{name} does not work here: {step} failed: {errno}");
                Refusal { what, errno, why }
            }
        };
        let made = |lack, what| {
            move |errno| Refusal { what, errno, why: format!("{lack} for this thread: {errno}") }
        };
        match self {
            Candidate::Uring(options) => {
                probe::probe_uring().map_err(tried("io_uring", "io_uring probe"))?;
                let (lack, what) = options.refusal();
                let wanted = match affinity {
                    Affinity::Thread => options.wanted(),
                    Affinity::Any => options.wanted_anywhere(),
                };
                let uring = at_most(depth_max, |depth| Uring::new(slab, depth, wanted));
                let (uring, note) = uring.map_err(made(lack, what))?;
                Ok((Box::new(WithServers::new(uring, slab)), note))
            }
            Candidate::Aio => {
                probe::probe_aio().map_err(tried("aio", "aio probe"))?;
                let aio = at_most(depth_max, |depth| Aio::new(slab, depth, AioWanted::ALL));
                let (aio, note) = aio.map_err(made("no aio context", "aio set-up"))?;
                Ok((Box::new(WithServers::new(aio, slab)), note))
            }
            Candidate::Threads => Ok((Box::new(Threads::new(slab, depth_max)), None)),
        }
    }

    fn reason(self) -> Option<&'static str> {
        match self {
            Candidate::Uring(_) => {
                Some("io_uring works here: a ring, a NOP and a direct read were tried")
            }
            Candidate::Aio => Some("aio works here: a context and a direct read were tried"),
            Candidate::Threads => None,
        }
    }

    fn remedy(self, errno: Errno) -> &'static str {
        match self {
            Candidate::Uring(_) if errno == Errno::EOPNOTSUPP => {
                "use --backend auto, aio or threads, or Linux 5.11 (5.10 with the backport of \
                 IORING_FEAT_EXT_ARG)"
            }
            Candidate::Uring(options) if options != UringOptions::DEFAULT => {
                "go without sqpoll and iopoll, or let the container and \
                 kernel.io_uring_disabled allow io_uring"
            }
            Candidate::Uring(_) => {
                "use --backend auto, aio or threads, or let the container and \
                 kernel.io_uring_disabled allow io_uring"
            }
            Candidate::Aio if errno == Errno::EAGAIN => {
                "use --backend auto or threads, or raise fs.aio-max-nr (sysctl), which all \
                 processes share"
            }
            Candidate::Aio => {
                "use --backend auto or threads, or let the container allow io_setup, io_submit \
                 and io_getevents"
            }
            Candidate::Threads => "",
        }
    }
}

/// Makes a backend of this depth, or of half of it and so on down to the usual depth where the
/// kernel lacks room: all processes share `fs.aio-max-nr`, and Linux before 5.12 charges a ring to
/// `RLIMIT_MEMLOCK`. Returns the backend with a note if it is smaller.
fn at_most<T>(
    depth_max: u32,
    make: impl Fn(u32) -> Result<T, Errno>,
) -> Result<(T, Option<String>), Errno> {
    let mut depth = depth_max;
    loop {
        match make(depth) {
            Err(Errno::EAGAIN | Errno::ENOMEM) if depth > DEPTH_MAX => {
                depth = (depth / 2).max(DEPTH_MAX);
            }
            Err(errno) => return Err(errno),
            Ok(made) => {
                let is_less = depth < depth_max;
                let note = is_less.then(|| {
                    format!("{depth} bios at once and not {depth_max}: the kernel has no room")
                });
                return Ok((made, note));
            }
        }
    }
}

/// The selection of a backend, which is set up when the first bio is queued: a thread that only
/// makes single blocking calls needs neither a ring nor its descriptor. An engine then puts the
/// backend in the place of the selection.
pub struct SelectedBackend {
    slab: Slab,
    depth_max: u32,
    kind: BackendKind,
    uring: UringOptions,
    affinity: Affinity,
    inner: Option<Box<dyn Backend>>,
    why: String,
}

impl SelectedBackend {
    /// Sets the backend up on first use; if that fails, the next candidate is used, and
    /// [`SelectedBackend::why`] reports it.
    #[must_use]
    pub(crate) fn lazy(
        slab: &Slab,
        depth_max: u32,
        kind: BackendKind,
        uring: UringOptions,
    ) -> SelectedBackend {
        let (why, affinity) = ("not needed yet".to_owned(), Affinity::Thread);
        SelectedBackend { slab: slab.clone(), depth_max, kind, uring, affinity, inner: None, why }
    }

    /// As [`SelectedBackend::lazy`], for a backend that moves from thread to thread.
    #[must_use]
    pub(crate) fn movable(
        slab: &Slab,
        depth_max: u32,
        kind: BackendKind,
        uring: UringOptions,
    ) -> SelectedBackend {
        SelectedBackend {
            affinity: Affinity::Any,
            ..SelectedBackend::lazy(slab, depth_max, kind, uring)
        }
    }

    /// Sets the backend up now.
    ///
    /// # Errors
    /// Fails with [`SetupError`] if the backend or an option of io_uring was named and is not
    /// available.
    pub fn set_up(
        slab: &Slab,
        depth_max: u32,
        kind: BackendKind,
        uring: UringOptions,
    ) -> Result<SelectedBackend, SetupError> {
        let mut selected = SelectedBackend::lazy(slab, depth_max, kind, uring);
        let has_options = uring != UringOptions::DEFAULT;
        let candidate = match kind {
            BackendKind::Aio | BackendKind::Threads if has_options => {
                return Err(SetupError {
                    what: "sqpoll and iopoll without io_uring",
                    path: None,
                    errno: Errno::EINVAL,
                    remedy: "they are options of uring: use --backend uring or auto",
                });
            }
            BackendKind::Auto if !has_options => {
                selected.select();
                return Ok(selected);
            }
            BackendKind::Auto | BackendKind::Uring => Candidate::Uring(uring),
            BackendKind::Aio => Candidate::Aio,
            BackendKind::Threads => Candidate::Threads,
        };
        let made = candidate.set_up(slab, depth_max, Affinity::Thread).map_err(|refusal| {
            let Refusal { what, errno, why: _ } = refusal;
            SetupError { what, path: None, errno, remedy: candidate.remedy(errno) }
        })?;
        let (inner, note) = made;
        selected.inner = Some(inner);
        let reasons: Vec<String> = ["asked for".to_owned()].into_iter().chain(note).collect();
        selected.why = reasons.join("; ");
        Ok(selected)
    }

    /// Returns the reason for the backend in use.
    #[must_use]
    pub(crate) fn why(&self) -> String {
        self.why.clone()
    }

    fn select(&mut self) -> &mut dyn Backend {
        if self.inner.is_none() {
            let (inner, why) = self.choose();
            self.inner = Some(inner);
            self.why = why;
        }
        &mut **self.inner.as_mut().expect("chosen above")
    }

    fn choose(&self) -> (Box<dyn Backend>, String) {
        let mut reasons = Vec::new();
        for candidate in Candidate::from(self.kind, self.uring) {
            match candidate.set_up(&self.slab, self.depth_max, self.affinity) {
                Ok((backend, note)) => {
                    reasons.extend(candidate.reason().map(str::to_owned));
                    reasons.extend(note);
                    if self.kind == BackendKind::Threads {
                        reasons.push("asked for".to_owned());
                    }
                    return (backend, reasons.join("; "));
                }
                Err(refusal) => reasons.push(refusal.why),
            }
        }
        unreachable!("threads always work")
    }
}

impl Backend for SelectedBackend {
    fn capabilities(&self) -> Capabilities {
        let lazy = Capabilities { name: self.kind.name(), depth_max: self.depth_max };
        self.inner.as_ref().map_or(lazy, |inner| inner.capabilities())
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        if ids.is_empty() { 0 } else { self.select().queue(ids) }
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
        self.select().register(what)
    }

    fn suspend_signals(&mut self, is_suspended: bool) {
        if let Some(inner) = &mut self.inner {
            inner.suspend_signals(is_suspended);
        }
    }

    fn is_polled(&self) -> bool {
        self.inner.as_ref().map_or(self.uring.iopoll, |inner| inner.is_polled())
    }

    fn take_selected(&mut self) -> Option<Box<dyn Backend>> {
        self.inner.take()
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        self.inner.as_ref().map_or_else(Vec::new, |inner| inner.features())
    }
}
