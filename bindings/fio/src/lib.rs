//! The half of fio's engine that needs none of fio's headers: opens files, starts requests, and
//! keeps their results for fio. `engine.c` is the other half, and calls `exports`; an `io_u` is an
//! opaque address here.

mod failure;

mod files;

mod job;

mod exports;
