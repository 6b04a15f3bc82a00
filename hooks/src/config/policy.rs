//! Reads `[policy]` of `config.toml`.

use crate::config::toml_value::Value;
use crate::model::policy::{Allowed, OnRefusal, Policy, Who, Writer};

/// Every key of the table.
pub const KEYS: [&str; 7] =
    ["environment", "annotations", "annotations-from", "mounts", "cdi", "on-refusal", "allow"];

/// Reads the table. A wrong value leaves the default, and adds `policy.KEY: PROBLEM` to the
/// mistakes.
pub fn read(value: &Value, mistakes: &mut Vec<String>) -> Policy {
    let mut policy = Policy::default();
    let Some(table) = value.as_table() else {
        let found = value.type_str();
        mistakes.push(format!("policy: expected a table, found {found}"));
        return policy;
    };
    for (key, value) in table {
        if let Err(problem) = set(&mut policy, key, value) {
            mistakes.push(format!("policy.{key}: {problem}"));
        }
    }
    policy
}

fn set(policy: &mut Policy, key: &str, value: &Value) -> Result<(), String> {
    match key {
        "environment" => policy.environment = word(value, &Who::WORDS)?,
        "annotations" => policy.annotations = word(value, &Who::WORDS)?,
        "annotations-from" => policy.annotations_from = word(value, &Writer::WORDS)?,
        "mounts" => policy.mounts = word(value, &Who::WORDS)?,
        "cdi" => policy.cdi = word(value, &Who::WORDS)?,
        "on-refusal" => policy.on_refusal = word(value, &OnRefusal::WORDS)?,
        "allow" => policy.allow = Some(allow(value)?),
        _ => return Err(format!("unknown key; known are {}", KEYS.join(", "))),
    }
    Ok(())
}

fn word<T: Copy>(value: &Value, words: &[(&str, T)]) -> Result<T, String> {
    let known = || {
        let known: Vec<_> = words.iter().map(|(word, _)| format!("{word:?}")).collect();
        known.join(", ")
    };
    let found = value.as_str().ok_or_else(|| {
        let found = value.type_str();
        format!("expected one of {}, found {found}", known())
    })?;
    let of = words.iter().find(|(word, _)| *word == found);
    of.map(|(_, what)| *what)
        .ok_or_else(|| format!("unknown word {found:?}; known are {}", known()))
}

fn allow(value: &Value) -> Result<Vec<(String, Allowed)>, String> {
    let table = value.as_table().ok_or_else(|| {
        let found = value.type_str();
        format!("expected a table of vendors, found {found}")
    })?;
    let vendors = table.iter().map(|(vendor, value)| {
        let allowed = allowed(value).map_err(|problem| format!("{vendor}: {problem}"))?;
        Ok((vendor.clone(), allowed))
    });
    vendors.collect()
}

fn allowed(value: &Value) -> Result<Allowed, String> {
    let wrong = || {
        let found = value.type_str();
        format!("expected \"all\" or a list of features, found {found}")
    };
    match value {
        Value::String(word) if word == "all" => Ok(Allowed::All),
        Value::String(word) => {
            Err(format!("{word:?} is not a list of features; write [{word:?}], or \"all\""))
        }
        Value::Array(items) => {
            let names = items.iter().map(|item| item.as_str().map(str::to_owned));
            let names = names.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
            Ok(Allowed::Features(names))
        }
        _ => Err(wrong()),
    }
}
