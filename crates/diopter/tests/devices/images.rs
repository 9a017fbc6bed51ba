//! Files inside unmounted ext and XFS volumes through the engine, on images and devices that the
//! real tools made and this kernel filled. Needs root, loop devices, ext4 and XFS; what is missing
//! is skipped by name. `DIOPTER_CHECK=word` takes the formats whose name holds the word,
//! `DIOPTER_ORACLE_COUNT=n` sets the number of random files of each format.

mod agreement;
mod damaged;
mod ground;
mod least;
mod limits;
mod refused;
mod story;
mod writers;

use diopter_testkit::{env, files, machine, memory};

/// Every test that docs/semantics.md names for images exists in these files.
#[test]
fn every_promise_about_images_names_a_test() {
    let text = include_str!("../../../../docs/semantics.md");
    let (_, promises) = text.split_once("## Files inside images").expect("a section");
    let (promises, _) = promises.split_once("\n## ").expect("it is not the last section");
    let sources = [
        ("agreement::", include_str!("images/agreement.rs")),
        ("damaged::", include_str!("images/damaged.rs")),
        ("least::", include_str!("images/least.rs")),
        ("limits::", include_str!("images/limits.rs")),
        ("refused::", include_str!("images/refused.rs")),
        ("writers::", include_str!("images/writers.rs")),
    ];
    let names: Vec<&str> = promises.split('`').filter(|code| code.contains("::")).collect();
    assert!(names.len() >= 8, "{names:?}");
    for name in names {
        let is_there = |(module, source): &(&str, &str)| {
            name.strip_prefix(module).is_some_and(|test| source.contains(&format!("fn {test}()")))
        };
        assert!(sources.iter().any(is_there), "no test is called {name}");
    }
}
