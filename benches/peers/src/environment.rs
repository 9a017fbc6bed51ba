//! The machine and the versions of the peers, for the head of the output.

use std::path::Path;

use serde_json::{Map, Value, json};

/// The peers of this workspace, as its lock file has them.
const PEERS: [&str; 5] = ["compio", "glommio", "monoio", "tokio", "tokio-uring"];

pub fn to_json(at: &Path) -> Value {
    let facts = diopter_bench::bench::environment::of(at);
    let facts = serde_json::to_value(&facts).unwrap_or(Value::Null);
    let versions: Map<String, Value> =
        versions().into_iter().map(|(name, version)| (name.to_owned(), version.into())).collect();
    json!({ "machine": facts, "load": load(), "versions": versions })
}

/// The load averages, as the kernel prints them.
pub fn load() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_whitespace().take(3).collect::<Vec<_>>().join(" ")
}

pub fn versions() -> Vec<(&'static str, &'static str)> {
    let lock = include_str!("../Cargo.lock");
    PEERS.into_iter().filter_map(|name| Some((name, version_in(lock, name)?))).collect()
}

fn version_in<'a>(lock: &'a str, name: &str) -> Option<&'a str> {
    let (_, after) = lock.split_once(&format!("name = \"{name}\"\nversion = \""))?;
    Some(after.split_once('"')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_those_of_the_lock_file() {
        let lock =
            "[[package]]\nname = \"a-b\"\nversion = \"1.2\"\n\nname = \"b\"\nversion = \"3\"";
        assert_eq!(version_in(lock, "b"), Some("3"));
        assert_eq!(version_in(lock, "c"), None);
        let found = versions();
        assert_eq!(found.len(), PEERS.len(), "{found:?}");
    }
}
