//! System calls: their numbers, which of them a door makes, and the list of them as text.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use crate::built::succeeds;
use crate::doors::{Door, Program};
use crate::ground::Ground;

/// Calls by name, with how often they are made.
pub type Made = BTreeMap<String, u32>;

/// The time of a door under strace.
const LIMIT: Duration = Duration::from_secs(60);

/// The numbers of all calls here, as the C library names them.
pub fn numbers() -> BTreeMap<String, u32> {
    let mut compiler = Command::new("cc");
    compiler.args(["-dM", "-E", "-include", "sys/syscall.h", "-x", "c", "/dev/null"]);
    let output = succeeds(&mut compiler);
    let text = String::from_utf8_lossy(&output.stdout);
    let numbers = text.lines().filter_map(|line| {
        let (name, number) = line.strip_prefix("#define __NR_")?.split_once(' ')?;
        Some((name.to_owned(), number.parse().ok()?))
    });
    numbers.collect()
}

/// The calls that a door makes where nothing is refused. Those of an interpreter that begins are
/// not the door's.
pub fn traced(door: &Door, backend: &str, ground: &Ground<'_>) -> Made {
    let mut made = counted(door, backend, ground, "");
    if door.program == Program::Python {
        for (call, before) in counted(door, backend, ground, "never") {
            let count = made.entry(call).or_default();
            *count = count.saturating_sub(before);
        }
        made.retain(|_, count| *count > 0);
    }
    made
}

fn counted(door: &Door, backend: &str, ground: &Ground<'_>, refused_at: &str) -> Made {
    let counts = ground.dir.parent().expect("of the cell").join("counts");
    let mut strace = Command::new("strace");
    strace.args(["-f", "-qq", "-c", "-U", "name,calls", "-o"]).arg(&counts).arg("--");
    strace.args(door.words(ground)).env("REFUSED_AT", refused_at);
    let ended = door.run(&mut strace, ground, backend, LIMIT);
    assert!(door.has_succeeded(&ended), "{}, {backend}: {}", door.name, ended.shown());
    let text = std::fs::read_to_string(counts).expect("strace wrote it");
    let row = |line: &str| {
        let mut words = line.split_whitespace();
        let (name, count) = (words.next()?, words.next()?.parse().ok()?);
        (name != "total").then(|| (name.to_owned(), count))
    };
    text.lines().filter_map(row).collect()
}

/// Reads lines `door: call=count call=count`.
pub fn parsed(text: &str) -> BTreeMap<String, Made> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let line = |line: &str| {
        let (door, calls) = line.split_once(": ").expect("a door");
        let one = |word: &str| {
            let (call, count) = word.split_once('=').expect("a count");
            (call.to_owned(), count.parse().expect("a number"))
        };
        (door.to_owned(), calls.split_whitespace().map(one).collect())
    };
    lines.map(line).collect()
}

/// The same as text.
pub fn text(list: &BTreeMap<String, Made>) -> String {
    let mut text =
        "# The system calls of each door, on all backends, and how often it makes them. \
                    SNAPSHOTS=overwrite writes it.\n"
            .to_owned();
    for (door, made) in list {
        let calls: Vec<String> =
            made.iter().map(|(call, count)| format!("{call}={count}")).collect();
        text += &format!("{door}: {}\n", calls.join(" "));
    }
    text
}
