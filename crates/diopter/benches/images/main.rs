//! Files in unmounted images: what the boundary policies cost on the report's workload, and a large
//! file out of ext4 against the mount and debugfs. Needs root; what can't be set up is not
//! measured. `--smoke` runs a short share, to see that it still works.

mod boundary;
mod meter;
mod reading;

use diopter_testkit::{machine, zram};

fn main() {
    let is_smoke = std::env::args().any(|argument| argument == "--smoke");
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with("--")).collect();
    let runs = |row: &str| wanted.is_empty() || wanted.iter().any(|name| row.contains(name));
    let _alone = machine::alone();
    if runs("boundary")
        && let Err(why) = boundary::run(boundary::Scale::of(is_smoke))
    {
        println!("boundary: not measured ({why})");
    }
    if runs("reading")
        && let Err(why) = reading::run(reading::Scale::of(is_smoke))
    {
        println!("reading: not measured ({why})");
    }
}
