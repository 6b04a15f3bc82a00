//! The syntax of a specification: JSON or YAML.

use super::yaml;
use crate::spec::json::Json;

/// The syntax of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Syntax {
    Json,
    Yaml,
}

impl Syntax {
    /// The syntax of a file with this name. `None`: engines do not read the file.
    pub fn of(name: &str) -> Option<Self> {
        if name.strip_suffix(".json").is_some_and(|n| !n.is_empty()) {
            Some(Self::Json)
        } else if name.strip_suffix(".yaml").is_some_and(|n| !n.is_empty()) {
            Some(Self::Yaml)
        } else {
            None
        }
    }

    /// Reads a text. Errors: why it does not have this syntax.
    pub fn parse(self, text: &str) -> Result<Json<'_>, String> {
        match self {
            Self::Json => serde_json::from_str(text).map_err(|e| format!("not valid JSON: {e}")),
            Self::Yaml => yaml::parse(text).map_err(|e| format!("not valid YAML: {e}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_known_by_their_names() {
        for (name, syntax) in [
            ("a.json", Some(Syntax::Json)),
            ("a.yaml", Some(Syntax::Yaml)),
            ("a.yml", None),
            (".json", None),
            ("a.json.bak", None),
            ("a.JSON", None),
        ] {
            assert_eq!(Syntax::of(name), syntax, "{name}");
        }
    }
}
