//! Addresses of kernel functions that events hold as addresses.

use std::fs;
use std::sync::OnceLock;

/// The functions that a completion is deferred to.
pub const WORK_FUNCTIONS: [&str; 2] = ["iomap_dio_complete_work", "dio_aio_complete_work"];

/// The functions that end a raw device's bios.
const END_FUNCTIONS: [&str; 5] = [
    "blkdev_bio_end_io_async",
    "blkdev_bio_end_io",
    "blkdev_bio_end_io_simple",
    "submit_bio_wait_endio",
    "bio_wait_end_io",
];

/// Returns the address of one of these functions, if the kernel has it and shows it.
#[must_use]
pub fn address(name: &str) -> Option<u64> {
    table().iter().find(|(_, found)| found == name).map(|(address, _)| *address)
}

/// The name of the function at an address, of [`WORK_FUNCTIONS`].
#[must_use]
pub fn name(address: u64) -> Option<&'static str> {
    let (_, found) = table().iter().find(|(at, _)| *at == address)?;
    WORK_FUNCTIONS.iter().find(|name| *name == found).copied()
}

/// `/proc/kallsyms` is long, so it is read once.
fn table() -> &'static [(u64, String)] {
    static TABLE: OnceLock<Vec<(u64, String)>> = OnceLock::new();
    TABLE.get_or_init(|| parse(&fs::read_to_string("/proc/kallsyms").unwrap_or_default()))
}

/// Lines of `ffffffff81234560 t name [module]`; an address of zeros is a hidden one.
fn parse(text: &str) -> Vec<(u64, String)> {
    let parsed = |line: &str| {
        let mut words = line.split_whitespace();
        let address = u64::from_str_radix(words.next()?, 16).ok()?;
        let name = words.nth(1)?;
        let is_known = WORK_FUNCTIONS.contains(&name) || END_FUNCTIONS.contains(&name);
        let is_wanted = is_known && address != 0;
        is_wanted.then(|| (address, name.to_owned()))
    };
    text.lines().filter_map(parsed).collect()
}
