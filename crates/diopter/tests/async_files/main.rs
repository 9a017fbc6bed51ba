//! Files for any executor: what a future gives, and what becomes of it when it is dropped, moved,
//! starved or left alone. `docs/async.md` promises it; with the feature `tokio` the same is checked
//! on a current-thread runtime's own engine.

mod bytes;
mod dropped;
mod executors;
mod foreign;
mod kinds;
mod process;
#[cfg(feature = "tokio")]
mod runtimes;
#[cfg(feature = "tokio")]
mod streams;
mod wicked;
#[cfg(feature = "tokio")]
mod workers;

use diopter_testkit::env;

/// Each sentence of docs/semantics.md about futures names tests that are here.
#[test]
fn every_promise_about_futures_names_a_test() {
    let text = include_str!("../../../../docs/semantics.md");
    let (_, promises) = text.split_once("## Async files").expect("a section");
    let (promises, _) = promises.split_once("\n## ").expect("not the last section");
    let sources = [
        ("dropped::", include_str!("dropped.rs")),
        ("executors::", include_str!("executors.rs")),
        ("foreign::", include_str!("foreign.rs")),
        ("kinds::", include_str!("kinds.rs")),
        ("process::", include_str!("process.rs")),
        ("runtimes::", include_str!("runtimes.rs")),
        ("wicked::", include_str!("wicked.rs")),
        ("workers::", include_str!("workers.rs")),
    ];
    let names: Vec<&str> = promises.split('`').filter(|code| code.contains("::")).collect();
    let mut found = 0;
    for name in names.iter().filter(|name| !name.starts_with("File::")) {
        let is_there = |(module, source): &(&str, &str)| {
            name.strip_prefix(module).is_some_and(|test| source.contains(&format!("fn {test}()")))
        };
        assert!(sources.iter().any(is_there), "no test is called {name}");
        found += 1;
    }
    assert!(found >= 10, "{names:?}");
}
