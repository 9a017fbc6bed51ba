//! The matrices that cross the doors of the project with what goes wrong there. `built` makes the
//! programs, `ground` the files, `doors` is the table of doors and judges what they leave.

mod built;
mod ground;
mod doors;

mod full;
mod refused;
