//! Jobs of `mpirun`. The program is linked to one MPI library, that of the compiler `MPICC`, and
//! needs the launcher of the same library: `mpicc.mpich` has `mpirun.mpich` next to it.

mod bench;
mod copy;
mod idle;
mod job;
mod queue;
mod verify;
