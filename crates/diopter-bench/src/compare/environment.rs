//! The differences between the environments of two runs.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::document::{Column, Environment};

/// A field that is known and different in both: its path, and both values.
pub type Difference = (String, String, String);

/// Returns the fields that differ. A field that one side does not know is not a difference.
#[must_use]
pub fn differences(base: &Environment, new: &Environment) -> Vec<Difference> {
    let flat = |environment: &Environment| {
        let value = serde_json::to_value(environment).expect("strings and numbers are JSON");
        let mut fields = BTreeMap::new();
        flatten(&value, &mut fields);
        fields
    };
    of_fields(&flat(base), &flat(new))
}

/// Returns the differences in how the job was run: program, version, engine and flags.
#[must_use]
pub fn column_differences(base: &Column, new: &Column) -> Vec<Difference> {
    let flat = |column: &Column| {
        let fields = [
            ("program", column.program.clone()),
            ("program_version", column.program_version.clone()),
            ("preset", column.preset.clone().unwrap_or_default()),
            ("engine", column.engine.clone()),
            ("flags", column.flags.join(" ")),
            ("kernel", column.kernel.clone().unwrap_or_default()),
        ];
        fields.into_iter().map(|(name, value)| (format!("column.{name}"), value)).collect()
    };
    of_fields(&flat(base), &flat(new))
}

fn of_fields(base: &BTreeMap<String, String>, new: &BTreeMap<String, String>) -> Vec<Difference> {
    let both = base.iter().filter_map(|(field, value)| Some((field, value, new.get(field)?)));
    both.filter(|(_, base, new)| base != new && !base.is_empty() && !new.is_empty())
        .map(|(field, base, new)| (field.clone(), base.clone(), new.clone()))
        .collect()
}

/// Collects leaves by their paths, iteratively: the depth of the input does not grow the stack.
fn flatten(value: &Value, fields: &mut BTreeMap<String, String>) {
    let mut left = vec![(String::new(), value)];
    while let Some((path, value)) = left.pop() {
        match value {
            Value::Object(object) => {
                for (name, value) in object {
                    let dot = if path.is_empty() { "" } else { "." };
                    left.push((format!("{path}{dot}{name}"), value));
                }
            }
            Value::Null => {}
            Value::String(text) => _ = fields.insert(path, text.clone()),
            Value::Number(number) if number.as_u64() == Some(0) => {}
            other => _ = fields.insert(path, other.to_string()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_differs_is_reported_by_its_path() {
        let mut base = Environment { kernel_release: "5.4".to_owned(), ..Environment::default() };
        let mut new = Environment { kernel_release: "5.5".to_owned(), ..Environment::default() };
        for (environment, value) in [(&mut base, "none"), (&mut new, "mq-deadline")] {
            let queue = &mut environment.device.queue.0;
            queue.insert("scheduler".to_owned(), value.to_owned());
        }
        let expected =
            [("device.queue.scheduler", "none", "mq-deadline"), ("kernel_release", "5.4", "5.5")];
        let found = differences(&base, &new);
        let found: Vec<(&str, &str, &str)> =
            found.iter().map(|(a, b, c)| (a.as_str(), b.as_str(), c.as_str())).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn what_one_side_does_not_know_is_no_difference() {
        let new = Environment {
            host: "a".to_owned(),
            memory_bytes: 1 << 30,
            container: "docker".to_owned(),
            ..Environment::default()
        };
        assert_eq!(differences(&Environment::default(), &new), []);
    }
}
