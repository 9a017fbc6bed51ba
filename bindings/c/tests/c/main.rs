//! The library as C and C++ programs use it: installed in a temporary directory, found by
//! pkg-config, each program compiled with warnings as errors.

mod install;
mod header;

mod programs;
mod examples;
mod man;
mod symbols;
