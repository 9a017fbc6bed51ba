//! [`Transport`] over MPI. One thread calls it, and waits by looking and sleeping: MPI's calls that
//! block spin.

use diopter_mpi::{MESSAGE_BYTES_MAX, Patience, Transport};
use mpi::environment::{Universe, initialize_with_threading};
use mpi::topology::SimpleCommunicator;
use mpi::traits::{Communicator, CommunicatorCollectives, Destination, MatchedReceiveVec, Source};
use mpi::{Rank, Threading, request};

/// The ranks of an MPI job. Dropping it ends MPI.
pub struct World {
    world: SimpleCommunicator,
    _universe: Universe,
}

impl World {
    /// Joins the job; `None` if the library did not start.
    pub fn join() -> Option<World> {
        let (universe, _provided) = initialize_with_threading(Threading::Funneled)?;
        Some(World { world: universe.world(), _universe: universe })
    }
}

fn number(rank: Rank) -> usize {
    usize::try_from(rank).expect("ranks are not negative")
}

impl Transport for World {
    fn rank(&self) -> usize {
        number(self.world.rank())
    }

    fn size(&self) -> usize {
        number(self.world.size())
    }

    fn send(&mut self, to: usize, message: &[u8]) {
        assert!(message.len() <= MESSAGE_BYTES_MAX, "a message of {} bytes", message.len());
        let to = Rank::try_from(to).expect("a rank of this job");
        // A message that the library does not buffer is sent when the other rank receives it.
        request::scope(|scope| {
            let patience = Patience::default();
            let mut sending = self.world.process_at_rank(to).immediate_send(scope, message);
            while let Err(waiting) = sending.test() {
                sending = waiting;
                patience.wait();
            }
        });
    }

    fn try_receive(&mut self) -> Option<(usize, Vec<u8>)> {
        let arrived = self.world.any_process().immediate_matched_probe()?;
        let (bytes, status) = arrived.matched_receive_vec();
        Some((number(status.source_rank()), bytes))
    }

    fn align(&mut self) {
        // First all ranks arrive, and those that wait sleep. Then a barrier that spins releases
        // them together; it takes no longer than one sleep.
        let patience = Patience::default();
        let mut arrival = self.world.immediate_barrier();
        while let Err(waiting) = arrival.test() {
            arrival = waiting;
            patience.wait();
        }
        self.world.barrier();
    }
}
