//! The contract of `backend`, clause by clause, over every backend; and that the decorator which
//! asserts it catches a backend that breaks it. No engine here.

#[path = "contract/bench.rs"]
mod bench;
#[path = "contract/clauses.rs"]
mod clauses;
#[path = "support/env.rs"]
#[allow(dead_code, reason = "shared with the other tests")]
mod env;
#[path = "contract/wicked.rs"]
mod wicked;
