//! Reads `[policy]` of `config.toml`.

use toml::Value;

use crate::model::policy::{Allowed, OnRefusal, Policy, Who, Writer};

/// Every key of the table.
pub const KEYS: [&str; 7] = [
    "environment",
    "annotations",
    "annotations-from",
    "mounts",
    "cdi",
    "on-refusal",
    "allow",
];

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
        Value::String(word) => Err(format!(
            "{word:?} is not a list of features; write [{word:?}], or \"all\""
        )),
        Value::Array(items) => {
            let names = items.iter().map(|item| item.as_str().map(str::to_owned));
            let names = names.collect::<Option<Vec<_>>>().ok_or_else(wrong)?;
            Ok(Allowed::Features(names))
        }
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Policy, Vec<String>) {
        let table: toml::Table = text.parse().unwrap();
        let mut mistakes = Vec::new();
        let policy = read(&Value::Table(table), &mut mistakes);
        (policy, mistakes)
    }

    #[test]
    fn every_key_and_word() {
        let (policy, mistakes) = parse(
            "environment = \"privileged\"\nannotations = \"none\"\nannotations-from = \"user\"\nmounts = \"none\"\ncdi = \"privileged\"\non-refusal = \"fail\"\n\
             [allow]\nnvidia = \"all\"\nonload = [\"a\", \"b\"]\nnone = []",
        );
        assert!(mistakes.is_empty(), "{mistakes:?}");
        let features =
            |names: &[&str]| Allowed::Features(names.iter().map(|&name| name.to_owned()).collect());
        let expected = Policy {
            environment: Who::Privileged,
            annotations: Who::None,
            annotations_from: Writer::User,
            mounts: Who::None,
            cdi: Who::Privileged,
            on_refusal: OnRefusal::Fail,
            allow: Some(vec![
                ("none".to_owned(), features(&[])),
                ("nvidia".to_owned(), Allowed::All),
                ("onload".to_owned(), features(&["a", "b"])),
            ]),
        };
        assert_eq!(policy, expected);
        assert_eq!(parse("").0, Policy::default());
        let words =
            parse("environment = \"all\"\nannotations-from = \"image\"\non-refusal = \"ignore\"\n");
        assert_eq!(words, (Policy::default(), Vec::new()));
    }

    #[test]
    fn every_mistake_is_named() {
        for (text, mistake) in [
            ("colour = 1", "policy.colour: unknown key; known are environment, annotations, annotations-from, mounts, cdi, on-refusal, allow"),
            ("environment = true", "policy.environment: expected one of \"all\", \"privileged\", \"none\", found boolean"),
            ("annotations = \"some\"", "policy.annotations: unknown word \"some\"; known are \"all\", \"privileged\", \"none\""),
            ("annotations-from = \"pod\"", "policy.annotations-from: unknown word \"pod\"; known are \"image\", \"user\""),
            ("on-refusal = \"warn\"", "policy.on-refusal: unknown word \"warn\"; known are \"ignore\", \"fail\""),
            ("allow = [\"x\"]", "policy.allow: expected a table of vendors, found array"),
            ("allow = {x = \"run\"}", "policy.allow: x: \"run\" is not a list of features; write [\"run\"], or \"all\""),
            ("allow = {x = [1]}", "policy.allow: x: expected \"all\" or a list of features, found array"),
            ("allow = {x = 1}", "policy.allow: x: expected \"all\" or a list of features, found integer"),
        ] {
            let (policy, mistakes) = parse(text);
            assert_eq!(mistakes, [mistake], "{text}");
            assert_eq!(policy, Policy::default(), "{text}");
        }
        let mut mistakes = Vec::new();
        read(&Value::Integer(1), &mut mistakes);
        assert_eq!(mistakes, ["policy: expected a table, found integer"]);
    }
}
