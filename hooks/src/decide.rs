//! Which features a container gets: a pure function of vendor files and environment.

use rustc_hash::FxHashMap;

use crate::environment::Environment;
use crate::error::{Error, Result};
use crate::level::Level;
use crate::log::Note;
use crate::vendor::{Mistake, Vendor};

/// A vendor file as found, whether it can be used or not.
#[derive(Debug)]
pub struct VendorFile {
    /// The file's name without `.json`.
    pub name: String,
    pub path: String,
    pub content: std::result::Result<Vendor, Broken>,
}

/// What is known of a file that can't be used.
#[derive(Debug, Default)]
pub struct Broken {
    pub mistakes: Vec<Mistake>,
    /// Activation flags that its text seems to name.
    pub flags: Vec<String>,
}

impl VendorFile {
    fn flags(&self) -> &[String] {
        match &self.content {
            Ok(vendor) => std::slice::from_ref(&vendor.activation_flag),
            Err(broken) => &broken.flags,
        }
    }
}

/// What the value of a flag asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked<'a> {
    Nothing,
    Defaults,
    All,
    Features(Vec<&'a str>),
}

/// The table of values; `docs/reference/oci-decorator.md` has it for readers.
pub fn asked(value: Option<&str>) -> Asked<'_> {
    match value.map(str::trim) {
        None | Some("none" | "void") => Asked::Nothing,
        Some("") => Asked::Defaults,
        Some("all") => Asked::All,
        Some(list) => Asked::Features(list.split(',').map(str::trim).collect()),
    }
}

/// A vendor that applies, and with what.
#[derive(Debug)]
pub struct Choice<'a> {
    pub file: &'a VendorFile,
    pub vendor: &'a Vendor,
    /// In the order asked for; every one is in the inventory.
    pub features: Vec<&'a str>,
}

/// Decides for every vendor file. Errors: the one line that refuses the start.
/// Notes: broken files that nobody asked for.
pub fn decide<'a>(
    files: &'a [VendorFile],
    environment: &Environment,
) -> Result<(Vec<Choice<'a>>, Vec<Note>)> {
    let mut choices = Vec::new();
    let mut notes = Vec::new();
    let mut claimed: FxHashMap<&str, &VendorFile> = FxHashMap::default();
    for file in files {
        let asked_by = file
            .flags()
            .iter()
            .find(|flag| asked(environment.get(flag)) != Asked::Nothing);
        match (&file.content, asked_by) {
            (Ok(vendor), Some(flag)) => {
                let features = features(file, vendor, asked(environment.get(flag)))?;
                choices.push(Choice {
                    file,
                    vendor,
                    features,
                });
            }
            (Err(broken), Some(flag)) => return Err(refuse_broken(file, broken, flag)),
            (Err(broken), None) => notes.push(ignored(file, broken)),
            (Ok(_), None) => {}
        }
        if let Some(flag) = asked_by {
            if let Some(other) = claimed.insert(flag, file) {
                return Err(claimed_twice(flag, &other.path, &file.path));
            }
        }
    }
    Ok((choices, notes))
}

fn features<'a>(file: &VendorFile, vendor: &'a Vendor, asked: Asked) -> Result<Vec<&'a str>> {
    let wanted: Vec<&str> = match asked {
        Asked::Nothing => Vec::new(),
        Asked::Defaults => vendor.driver_feature.iter().map(String::as_str).collect(),
        Asked::All => vendor.feature_names().collect(),
        Asked::Features(list) => list,
    };
    let mut features: Vec<&str> = Vec::new();
    for wanted in wanted {
        let Some(known) = vendor.feature_names().find(|name| *name == wanted) else {
            return Err(unknown_feature(file, vendor, wanted));
        };
        if !features.contains(&known) {
            features.push(known);
        }
    }
    Ok(features)
}

fn unknown_feature(file: &VendorFile, vendor: &Vendor, wanted: &str) -> Error {
    let known: Vec<_> = vendor.feature_names().collect();
    Error::usage(format!(
        "{} asks for the unknown feature {wanted:?}",
        vendor.activation_flag
    ))
    .resolve(format!(
        "{} knows {}; \"all\" is every one of them",
        file.path,
        known.join(", ")
    ))
}

fn refuse_broken(file: &VendorFile, broken: &Broken, flag: &str) -> Error {
    Error::usage(format!(
        "{flag} is set, but {} can't be used: {}",
        file.path,
        summary(&broken.mistakes)
    ))
    .resolve("mend the file; `oci-decorator check` lists every mistake")
}

fn ignored(file: &VendorFile, broken: &Broken) -> Note {
    Note::new(
        Level::Warning,
        format!(
            "{} can't be used and is ignored: {}",
            file.path,
            summary(&broken.mistakes)
        ),
    )
    .vendor(&file.name)
}

fn claimed_twice(flag: &str, one: &str, other: &str) -> Error {
    Error::usage(format!(
        "{flag} is the activation_flag of {one} and of {other}"
    ))
    .resolve("remove one of the files, or rename its flag")
}

/// The first mistake, and how many more there are.
fn summary(mistakes: &[Mistake]) -> String {
    match mistakes {
        [] => "it has mistakes".to_owned(),
        [only] => only.to_string(),
        [first, more @ ..] => format!("{first} (and {} more)", more.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, flag: &str) -> VendorFile {
        let text = format!(
            r#"{{"activation_flag":"{flag}","driver_feature":["b"],"inventory":{{"a":{{}},"b":{{}},"c":{{}}}}}}"#
        );
        VendorFile {
            name: name.to_owned(),
            path: format!("/conf/{name}.json"),
            content: Ok(crate::vendor::parse(&text).unwrap()),
        }
    }

    fn broken(flags: &[&str]) -> VendorFile {
        VendorFile {
            name: "bad".to_owned(),
            path: "/conf/bad.json".to_owned(),
            content: Err(Broken {
                mistakes: vec![Mistake::new("x", "wrong"), Mistake::new("y", "wrong")],
                flags: flags.iter().map(|&f| f.to_owned()).collect(),
            }),
        }
    }

    fn chosen(files: &[VendorFile], env: &[&str]) -> std::result::Result<Vec<String>, String> {
        let env = env.iter().copied().collect();
        decide(files, &env)
            .map(|(choices, _)| {
                choices
                    .iter()
                    .map(|c| format!("{}:{}", c.file.name, c.features.join("+")))
                    .collect()
            })
            .map_err(|e| e.to_string())
    }

    #[test]
    fn value_table() {
        let cases: [(&[&str], &[&str]); 9] = [
            (&[], &[]),
            (&["X=none"], &[]),
            (&["X=void"], &[]),
            (&["X"], &["v:b"]),
            (&["X="], &["v:b"]),
            (&["X=all"], &["v:a+b+c"]),
            (&["X=c,a"], &["v:c+a"]),
            (&["X=a, a"], &["v:a"]),
            (&["X=all", "X=none"], &[]),
        ];
        for (env, expected) in cases {
            assert_eq!(chosen(&[file("v", "X")], env).unwrap(), expected, "{env:?}");
        }
    }

    #[test]
    fn an_unknown_feature_names_feature_flag_and_file() {
        let error = chosen(&[file("v", "X")], &["X=a,gr\nx"]).unwrap_err();
        assert_eq!(
            error,
            "X asks for the unknown feature \"gr\\nx\": /conf/v.json knows a, b, c; \"all\" is every one of them"
        );
        assert!(chosen(&[file("v", "X")], &["X=a,"]).is_err());
        assert!(chosen(&[file("v", "X")], &["X=none,a"]).is_err());
        assert!(chosen(&[file("v", "X")], &["X=ALL"]).is_err());
    }

    #[test]
    fn only_vendors_whose_flag_matches_apply() {
        let files = [file("n", "OCI_N"), file("s", "OCI_S")];
        assert_eq!(chosen(&files, &["OCI_S=a", "FOO=OCI_N"]).unwrap(), ["s:a"]);
        assert_eq!(chosen(&files, &["OCI_S", "OCI_N"]).unwrap(), ["n:b", "s:b"]);
    }

    #[test]
    fn a_broken_file_stops_only_those_who_ask_for_it() {
        let files = [broken(&["BAD"]), file("v", "X")];
        assert_eq!(chosen(&files, &["X", "BAD=none"]).unwrap(), ["v:b"]);
        let (_, notes) = decide(&files, &["X"].into_iter().collect()).unwrap();
        assert_eq!(
            notes[0].message,
            "/conf/bad.json can't be used and is ignored: x: wrong (and 1 more)"
        );
        let error = chosen(&files, &["X", "BAD"]).unwrap_err();
        assert!(error
            .starts_with("BAD is set, but /conf/bad.json can't be used: x: wrong (and 1 more)"));
    }

    #[test]
    fn a_flag_that_two_files_claim_is_refused_when_asked_for() {
        let files = [file("a", "X"), file("b", "X")];
        assert_eq!(chosen(&files, &[]).unwrap(), Vec::<String>::new());
        assert!(chosen(&files, &["X"])
            .unwrap_err()
            .contains("/conf/a.json and of /conf/b.json"));
    }
}
