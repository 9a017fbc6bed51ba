//! The contract of `backend`, clause by clause, over every backend; and that the decorator which
//! asserts it catches a backend that breaks it. No engine here.

mod bench;
mod clauses;
mod remote;
mod wicked;

use diopter_testkit::env;
