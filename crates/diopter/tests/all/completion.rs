//! Where completions run, what a callback may do and what becomes of it, and what a durable write
//! flushes. The tests `t2_01` to `t2_12` are the specification's list of what an engine must show.

mod bench;
mod callbacks;
mod durable;
mod ends;
mod event;
mod listed;
mod space;

use diopter_testkit::altered;
