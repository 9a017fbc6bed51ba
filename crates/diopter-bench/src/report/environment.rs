//! Lists environments as names with values, differences first.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::numbers::bytes;
use crate::document::Environment;
use crate::number::float;

/// One fact about the machines, with a value for each of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fact {
    /// The name: `kernel`, `queue: scheduler`.
    pub(super) name: String,
    /// The values, in the order of the environments; empty where not known.
    pub(super) values: Vec<String>,
    /// True if the values are not all equal.
    pub(super) differs: bool,
}

/// Returns all known facts, those that differ first.
pub(super) fn facts_of(environments: &[Environment]) -> Vec<Fact> {
    let listed: Vec<Vec<(String, String)>> = environments.iter().map(listing).collect();
    let mut names: Vec<&String> = Vec::new();
    let mut seen = BTreeSet::new();
    for (name, _) in listed.iter().flatten() {
        if seen.insert(name) {
            names.push(name);
        }
    }
    let by_name: Vec<BTreeMap<&String, &String>> = listed
        .iter()
        .map(|facts| facts.iter().map(|(name, value)| (name, value)).collect())
        .collect();
    let fact = |name: &String| {
        let value = |facts: &BTreeMap<&String, &String>| {
            facts.get(name).map(|value| (*value).clone()).unwrap_or_default()
        };
        let values: Vec<String> = by_name.iter().map(value).collect();
        let differs = values.windows(2).any(|pair| pair[0] != pair[1]);
        Fact { name: name.clone(), values, differs }
    };
    let mut facts: Vec<Fact> = names.into_iter().map(fact).collect();
    facts.retain(|fact| fact.values.iter().any(|value| !value.is_empty()));
    facts.sort_by_key(|fact| !fact.differs);
    facts
}

fn listing(one: &Environment) -> Vec<(String, String)> {
    let mut facts: Vec<(String, String)> = Vec::new();
    let mut add = |name: &str, value: String| facts.push((name.to_owned(), value));
    add("host", one.host.clone());
    add("kernel", one.kernel_release.clone());
    add("kernel build", one.kernel_version.clone());
    add("command line", one.kernel_command_line.clone());
    add("processor", one.cpu.model.clone());
    add("processors online", known(one.cpu.online.into(), |count| count.to_string()));
    add("governor", one.cpu.governor.clone());
    add("hyper-threads", one.cpu.smt.clone());
    add("memory", known(one.memory_bytes, |count| bytes(float(count))));
    add("device", one.device.name.clone());
    add("device model", one.device.model.clone());
    add("device firmware", one.device.firmware.clone());
    add("device size", known(one.device.size, |count| bytes(float(count))));
    let rotational = one.device.is_rotational.map(|spins| if spins { "yes" } else { "no" });
    add("device spins", rotational.unwrap_or_default().to_owned());
    if let Some(system) = &one.file_system {
        add("file system", system.kind.clone());
        add("mount options", system.mount_options.clone());
        let alignment = |count: u64| known(count, |count| format!("{count} B"));
        add("alignment of memory", alignment(system.alignment_memory));
        add("alignment of offsets", alignment(system.alignment_offset));
    }
    add("cgroup cpu.max", one.cgroup.cpu.clone().unwrap_or_default());
    add(
        "cgroup memory.max",
        one.cgroup.memory.map(|count| bytes(float(count))).unwrap_or_default(),
    );
    add("cgroup io.max", one.cgroup.io.clone().unwrap_or_default());
    add("container", one.container.clone());
    for (name, value) in &one.device.queue.0 {
        add(&format!("queue: {name}"), value.clone());
    }
    for (name, value) in &one.cpu.mitigations {
        add(&format!("mitigation: {name}"), value.clone());
    }
    for (name, value) in &one.more {
        add(name, value.clone());
    }
    facts
}

fn known(value: u64, format: impl Fn(u64) -> String) -> String {
    if value == 0 { String::new() } else { format(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_comes_first_and_what_is_unknown_is_left_out() {
        let mut one = Environment { host: "a".to_owned(), ..Environment::default() };
        one.kernel_release = "6.1".to_owned();
        one.device.queue.0.insert("scheduler".to_owned(), "none".to_owned());
        let mut other = one.clone();
        other.device.queue.0.insert("scheduler".to_owned(), "mq-deadline".to_owned());
        let facts = facts_of(&[one, other]);
        let names: Vec<&str> = facts.iter().map(|fact| fact.name.as_str()).collect();
        assert_eq!(names, ["queue: scheduler", "host", "kernel"]);
        assert_eq!(facts[0].values, ["none", "mq-deadline"]);
        assert!(facts[0].differs && !facts[1].differs);
    }
}
