//! A checker for the part of JSON Schema that our schemas use: `$ref`, `type`, `properties`,
//! `required`, `items`, `prefixItems`, `additionalProperties`, `anyOf`, `oneOf`, `const`. A field
//! that the schema does not know is a mismatch here, though JSON Schema would let it pass: a
//! document and its schema change together. It has no test.

use serde_json::Value;

/// Where the document is not what the schema says, if anywhere.
pub fn mismatch(schema: &Value, document: &Value) -> Option<String> {
    check(schema, schema, document, "document")
}

fn check(root: &Value, schema: &Value, value: &Value, at: &str) -> Option<String> {
    if let Some(path) = schema["$ref"].as_str() {
        let path = path.strip_prefix('#').expect("references stay within the schema");
        let target = root.pointer(path).expect("what is referred to is there");
        return check(root, target, value, at);
    }
    let choices = schema["anyOf"].as_array().or(schema["oneOf"].as_array());
    if let Some(choices) = choices {
        let fits = choices.iter().any(|choice| check(root, choice, value, at).is_none());
        return (!fits).then(|| format!("{at}: no choice fits {value}"));
    }
    let is_other = schema.get("const").is_some_and(|only| only != value);
    if is_other || !has_type(&schema["type"], value) {
        return Some(format!("{at}: {value} is not {}", schema["type"]));
    }
    if let Some(elements) = value.as_array() {
        let first = schema["prefixItems"].as_array();
        let schemas = first.into_iter().flatten().chain(std::iter::repeat(&schema["items"]));
        let mut elements = elements.iter().zip(schemas);
        return elements.find_map(|(element, schema)| check(root, schema, element, at));
    }
    let fields = value.as_object()?;
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    if let Some(missing) = required.into_iter().find(|name| !fields.contains_key(*name)) {
        return Some(format!("{at}: {missing} is missing"));
    }
    fields.iter().find_map(|(name, field)| match schema["properties"].get(name) {
        Some(known) => check(root, known, field, &format!("{at}.{name}")),
        None => match schema.get("additionalProperties") {
            Some(known) if known.is_object() => check(root, known, field, &format!("{at}.{name}")),
            _ => Some(format!("{at}: the schema does not know {name}")),
        },
    })
}

fn has_type(wanted: &Value, value: &Value) -> bool {
    let is_one = |name: &Value| match name.as_str() {
        Some("string") => value.is_string(),
        Some("integer") => value.is_u64() || value.is_i64(),
        Some("number") => value.is_number(),
        Some("boolean") => value.is_boolean(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        Some("null") => value.is_null(),
        _ => false,
    };
    wanted.as_array().map_or_else(|| is_one(wanted), |names| names.iter().any(is_one))
}
