//! The contract of `backend`, clause by clause, over every backend; and that the decorator which
//! asserts it catches a backend that breaks it. No engine here.

#[path = "contract/bench.rs"]
mod bench;
#[path = "contract/clauses.rs"]
mod clauses;
#[path = "contract/wicked.rs"]
mod wicked;

use diopter_testkit::env;
