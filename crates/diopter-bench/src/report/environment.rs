//! Environments as names with values, so that what differs between them stands out.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use super::numbers::bytes;
use crate::document::Environment;
use crate::number::float;

/// One fact about the machines, with a value for each of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Fact {
    /// What it is: `kernel`, `queue: scheduler`.
    pub(super) name: String,
    /// Its values, in the order of the environments; empty where not known.
    pub(super) values: Vec<String>,
    /// Whether the values are not all the same.
    pub(super) differs: bool,
}

/// All facts that are known of any of them, those that differ first.
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
    let mut tell = |name: &str, value: String| facts.push((name.to_owned(), value));
    tell("host", one.host.clone());
    tell("kernel", one.kernel_release.clone());
    tell("kernel build", one.kernel_version.clone());
    tell("command line", one.kernel_command_line.clone());
    tell("processor", one.cpu.model.clone());
    tell("processors online", known(one.cpu.online.into(), |count| count.to_string()));
    tell("governor", one.cpu.governor.clone());
    tell("hyper-threads", one.cpu.smt.clone());
    tell("memory", known(one.memory_bytes, |count| bytes(float(count))));
    tell("device", one.device.name.clone());
    tell("device model", one.device.model.clone());
    tell("device firmware", one.device.firmware.clone());
    tell("device size", known(one.device.size, |count| bytes(float(count))));
    let rotational = one.device.is_rotational.map(|spins| if spins { "yes" } else { "no" });
    tell("device spins", rotational.unwrap_or_default().to_owned());
    if let Some(system) = &one.file_system {
        tell("file system", system.kind.clone());
        tell("mount options", system.mount_options.clone());
        let told = |count: u64| known(count, |count| format!("{count} B"));
        tell("alignment of memory", told(system.alignment_memory));
        tell("alignment of offsets", told(system.alignment_offset));
    }
    tell("cgroup cpu.max", one.cgroup.cpu.clone().unwrap_or_default());
    tell(
        "cgroup memory.max",
        one.cgroup.memory.map(|count| bytes(float(count))).unwrap_or_default(),
    );
    tell("cgroup io.max", one.cgroup.io.clone().unwrap_or_default());
    tell("container", one.container.clone());
    for (name, value) in &one.device.queue.0 {
        tell(&format!("queue: {name}"), value.clone());
    }
    for (name, value) in &one.cpu.mitigations {
        tell(&format!("mitigation: {name}"), value.clone());
    }
    for (name, value) in &one.more {
        tell(name, value.clone());
    }
    facts
}

fn known(value: u64, told: impl Fn(u64) -> String) -> String {
    if value == 0 { String::new() } else { told(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_stands_first_and_what_nobody_knows_is_left_out() {
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
