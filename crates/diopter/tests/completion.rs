//! Where completions run, what a callback may do and what becomes of it, and what a durable write
//! flushes. The tests `t2_01` to `t2_12` are the specification's list of what an engine must show.

#[path = "completion/bench.rs"]
mod bench;
#[path = "completion/callbacks.rs"]
mod callbacks;
#[path = "completion/durable.rs"]
mod durable;
#[path = "completion/ends.rs"]
mod ends;
#[path = "completion/listed.rs"]
mod listed;
#[path = "completion/space.rs"]
mod space;

use diopter_testkit::altered;
