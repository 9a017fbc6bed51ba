//! A backend whose bios of files of servers are plain calls of threads. io_uring repairs a short
//! read, and Linux AIO ends a read and cuts a file at the size that the server said: both are wrong
//! where that size is.

use diopter_os::{BioId, BioResult, Errno, EventFd, Slab};

use crate::backend::mixed::{queue_each, turn_both};
use crate::backend::threads::Threads;
use crate::backend::{Backend, Capabilities, Completions, LentBio, Register, Wait};
use crate::clock::Nanos;
use crate::error::BackendError;

/// A backend, and threads from the first bio of a file of a server on.
pub(super) struct WithServers<B> {
    base: B,
    slab: Slab,
    depth_max: u32,
    threads: Option<Threads>,
    /// Where completions are signalled, for `threads`.
    notified: Option<EventFd>,
}

impl<B: Backend> WithServers<B> {
    pub(super) fn new(base: B, slab: &Slab) -> WithServers<B> {
        let depth_max = base.capabilities().depth_max;
        WithServers { base, slab: slab.clone(), depth_max, threads: None, notified: None }
    }

    #[cold]
    fn queue_mixed(&mut self, ids: &[BioId]) -> u32 {
        queue_each(ids, self.depth_max - self.held(), |id| {
            let is_of_server = self.slab.spec(id[0]).is_of_server();
            if is_of_server { self.threads().queue(id) } else { self.base.queue(id) }
        })
    }

    fn threads(&mut self) -> &mut Threads {
        let WithServers { threads, notified, slab, depth_max, .. } = self;
        threads.get_or_insert_with(|| {
            // A server has as many requests at once as the backend would give it.
            let threads = Threads::of_at_most(slab, *depth_max, *depth_max);
            if let Some(event) = notified.take() {
                let is_first = threads.signal(event);
                debug_assert!(is_first, "made just now");
            }
            threads
        })
    }
}

impl<B: Backend> Backend for WithServers<B> {
    fn capabilities(&self) -> Capabilities {
        self.base.capabilities()
    }

    fn queue(&mut self, ids: &[BioId]) -> u32 {
        if self.slab.has_servers() { self.queue_mixed(ids) } else { self.base.queue(ids) }
    }

    fn turn(&mut self, wait: Wait, done: &mut Completions) -> Result<(), BackendError> {
        match self.threads.as_mut().filter(|threads| threads.held() > 0) {
            Some(threads) => turn_both((&mut self.base, threads), wait, done),
            None => self.base.turn(wait, done),
        }
    }

    fn run_now(&mut self, id: BioId) -> BioResult {
        self.base.run_now(id)
    }

    fn run_lent(&mut self, bio: LentBio<'_>) -> BioResult {
        self.base.run_lent(bio)
    }

    fn held(&self) -> u32 {
        self.base.held() + self.threads.as_ref().map_or(0, Threads::held)
    }

    fn cancel(&mut self, id: BioId) {
        self.base.cancel(id);
    }

    fn now(&self) -> Nanos {
        self.base.now()
    }

    fn register(&mut self, what: Register<'_, '_>) -> Result<(), Errno> {
        let Register::Notify(event) = what else { return self.base.register(what) };
        let notified = EventFd::of(event)?;
        self.base.register(Register::Notify(event))?;
        let Some(threads) = &self.threads else {
            self.notified = Some(notified);
            return Ok(());
        };
        if threads.signal(notified) { Ok(()) } else { Err(Errno::EBUSY) }
    }

    fn suspend_signals(&mut self, is_suspended: bool) {
        self.base.suspend_signals(is_suspended);
    }

    fn is_polled(&self) -> bool {
        self.base.is_polled()
    }

    fn features(&self) -> Vec<(&'static str, bool)> {
        self.base.features()
    }
}
