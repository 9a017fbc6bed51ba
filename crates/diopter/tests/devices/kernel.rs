//! diopter on the real kernel: file systems and raw devices on loop devices, under both backends.
//! Needs root. What is missing is skipped by name; `DIOPTER_REQUIRE` names what must not be.
//!
//! One test per ground sets it up once and runs every check on it by name, under io_uring and under
//! threads; the others have separate grounds. `DIOPTER_CHECK=word` runs the checks of a ground
//! whose name holds the word, `DIOPTER_ORACLE_COUNT=n` sets the number of random requests.

mod access;
mod busy;
mod cancel;
mod child;
mod coherence;
mod direct;
mod durability;
mod edges;
mod ends;
mod faults;
mod growth;
mod oracle;
mod row;
mod sealed;
mod space;
mod streams;
mod striped;
mod striped_space;
mod subject;
mod writers;
mod zram_pages;

use diopter_testkit::{env, machine, memory, zram};

use row::{Check, Ground};

/// On every ground.
const EVERYWHERE: &[&[Check]] = &[
    &[("no difference from plain calls", oracle::no_difference_from_plain_calls)],
    writers::EVERYWHERE,
];

/// On file systems.
const ON_FILES: &[&[Check]] = &[
    ends::ON_FILES,
    access::ON_FILES,
    space::ON_FILES,
    writers::ON_FILES,
    cancel::ON_FILES,
    growth::ON_FILES,
    coherence::ON_FILES,
    striped::ON_FILES,
    sealed::ON_FILES,
];

/// On file systems with direct I/O.
const ON_DIRECT_FILES: &[&[Check]] = &[
    access::ON_DIRECT_FILES,
    edges::ON_DIRECT_FILES,
    coherence::ON_DIRECT_FILES,
    durability::ON_DEVICES_BELOW,
];

const ON_DEVICES: &[&[Check]] = &[
    &[("a device ends where pread says", ends::a_device_ends_where_pread_says)],
    durability::ON_DEVICES_BELOW,
];

const ON_EXT4_IN_4K_BLOCKS: &[&[Check]] =
    &[&[("a request of more than 2 GiB is whole", ends::a_request_of_more_than_2_gib_is_whole)]];

const ON_TMPFS: &[&[Check]] = &[&[(
    "a strict open of a file without direct I/O is refused",
    access::a_strict_open_of_a_file_without_direct_io_is_refused,
)]];

fn run(ground: Ground, lists: &[&[&[Check]]]) {
    row::run(ground, &lists.concat().concat());
}

#[test]
fn ext4_in_1k_blocks() {
    run(Ground::Ext4In1kBlocks, &[ON_FILES, ON_DIRECT_FILES, EVERYWHERE]);
}

#[test]
fn ext4_in_4k_blocks() {
    let lists = [ON_FILES, ON_DIRECT_FILES, ON_EXT4_IN_4K_BLOCKS, EVERYWHERE];
    run(Ground::Ext4In4kBlocks, &lists);
}

#[test]
fn xfs() {
    run(Ground::Xfs, &[ON_FILES, ON_DIRECT_FILES, EVERYWHERE]);
}

#[test]
fn xfs_in_16k_blocks() {
    run(Ground::XfsIn16kBlocks, &[ON_FILES, ON_DIRECT_FILES, EVERYWHERE]);
}

#[test]
fn a_raw_device_in_512_byte_sectors() {
    run(Ground::RawIn512, &[ON_DEVICES, EVERYWHERE]);
}

#[test]
fn a_raw_device_in_4096_byte_sectors() {
    run(Ground::RawIn4096, &[ON_DEVICES, EVERYWHERE]);
}

#[test]
fn tmpfs() {
    run(Ground::Tmpfs, &[ON_FILES, ON_TMPFS, EVERYWHERE]);
}

/// Entry of the children of other tests; without a role there is nothing to do.
#[test]
fn child() {
    let Some((role, path)) = child::role() else { return };
    match role.as_str() {
        growth::ROLE => growth::extend(&path),
        coherence::WRITE_ROLE => coherence::write_odd_stripes(&path),
        coherence::APPEND_ROLE => coherence::append_as_the_other(&path),
        _ => panic!("no child does {role}"),
    }
}

/// Each sentence of docs/semantics.md names the checks that show it, and each check exists.
#[test]
fn every_promise_names_checks_and_every_check_is_a_promise() {
    let text = include_str!("../../../../docs/semantics.md");
    let (promises, _) = text.split_once("## Not promised").expect("the last section");
    let words = promises.split_whitespace().collect::<Vec<_>>().join(" ");
    let named: Vec<&str> = words.split('"').skip(1).step_by(2).collect();
    let lists = [EVERYWHERE, ON_FILES, ON_DIRECT_FILES, ON_DEVICES, ON_EXT4_IN_4K_BLOCKS, ON_TMPFS];
    let checks: Vec<&str> = lists.concat().concat().iter().map(|(name, _)| *name).collect();
    for name in &named {
        assert!(checks.contains(name), "no check is called \"{name}\"");
    }
    for check in &checks {
        assert!(named.contains(check), "\"{check}\" shows no sentence");
    }
    let files = [
        ("busy::", include_str!("kernel/busy.rs")),
        ("direct::", include_str!("kernel/direct.rs")),
        ("faults::", include_str!("kernel/faults.rs")),
        ("durability::", include_str!("kernel/durability.rs")),
        ("streams::", include_str!("kernel/streams.rs")),
        ("striped::", include_str!("kernel/striped.rs")),
        ("striped_space::", include_str!("kernel/striped_space.rs")),
    ];
    for (module, source) in files {
        let code = words.split('`').skip(1).step_by(2);
        let tests: Vec<&str> = code.filter_map(|code| code.strip_prefix(module)).collect();
        for test in &tests {
            assert!(source.contains(&format!("fn {test}()")), "no test is called {module}{test}");
        }
        assert_eq!(source.matches("#[test]").count(), tests.len(), "{module} tests of no sentence");
    }
}
