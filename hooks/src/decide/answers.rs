//! Which vendor file answers what is asked for through an interface of others, and with
//! which of its features. Pure.

use super::{none_allowed, otherwise, refuse_broken, Choice, Refusals, VendorFile};
use crate::config::vendor::Vendor;
use crate::error::{Error, Result};
use crate::log::level::Level;
use crate::log::{brief, Note};
use crate::policy::Policy;
use crate::request::{Ask, Details, Request, Way};

/// A vendor's file with what it is to give for an ask.
#[derive(Debug)]
pub struct Answer<'a> {
    pub choice: Choice<'a>,
    pub ask: &'a Ask,
    pub details: &'a Details,
}

/// What counts of the asks.
#[derive(Debug, Default)]
pub struct Answers<'a> {
    pub by_files: Vec<Answer<'a>>,
    /// What is given in other ways.
    pub otherwise: Vec<Ask>,
    pub notes: Vec<Note>,
}

/// Finds the answers. Errors: the one line that refuses the start.
/// Notes: what the policy leaves out; features that the vendor file has not.
pub fn answers<'a>(
    files: &'a [VendorFile],
    request: &'a Request,
    policy: &Policy,
    folder: &str,
) -> Result<Answers<'a>> {
    let mut refusals = Refusals::new(policy);
    let mut notes = Vec::new();
    for reason in &request.refused {
        refusals.add_for(None, reason.clone())?;
    }
    let mut found = Vec::new();
    let mut otherwise = Vec::new();
    for ask in &request.asks {
        if ask.way != Way::VendorFile {
            let counting = otherwise::counting(files, request, ask, &mut refusals)?;
            if let Some(ask) = counting {
                ask.details.as_ref().map_err(Clone::clone)?;
                otherwise.push(ask);
            }
            continue;
        }
        let (file, vendor) = match usable(files, ask, folder) {
            Err(error) if ask.is_implied() => {
                notes.push(Note::new(Level::Warning, error.to_string()));
                continue;
            }
            other => other?,
        };
        if let Err(reason) = policy.judge_vendor(&file.name, &ask.by) {
            if ask.is_implied() {
                notes.push(Note::new(Level::Notice, reason).vendor(&file.name));
            } else {
                refusals.add(file, reason)?;
            }
            continue;
        }
        let details = ask.details.as_ref().map_err(Clone::clone)?;
        let mut choice = Choice {
            file,
            vendor,
            features: Vec::new(),
        };
        add_features(&mut choice, ask, details, &mut refusals, &mut notes)?;
        found.push(Answer {
            choice,
            ask,
            details,
        });
    }
    notes.extend(refusals.notes);
    Ok(Answers {
        by_files: found,
        otherwise,
        notes,
    })
}

/// The one file that answers, without mistakes.
fn usable<'a>(
    files: &'a [VendorFile],
    ask: &Ask,
    folder: &str,
) -> Result<(&'a VendorFile, &'a Vendor)> {
    let file = responsible(files, ask, folder)?;
    match &file.content {
        Ok(vendor) => Ok((file, vendor)),
        Err(broken) => Err(refuse_broken(file, broken, &ask.by)),
    }
}

/// The one file that answers. Errors: there is none, or there are several.
fn responsible<'a>(files: &'a [VendorFile], ask: &Ask, folder: &str) -> Result<&'a VendorFile> {
    let word = ask.interface.word();
    let answers = |file: &&VendorFile| match &file.content {
        Ok(vendor) => vendor.interfaces.contains(&ask.interface),
        Err(broken) => broken.interfaces.contains(&ask.interface),
    };
    let mut found = files.iter().filter(answers);
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (Some(one), Some(other)) => Err(Error::usage(format!(
            "{} asks for a device, and both {} and {} answer {word:?}",
            ask.by, one.path, other.path
        ))
        .resolve("remove one of the files, or take the word out of its \"interfaces\"")),
        (None, _) => Err(Error::not_found(format!(
            "{} asks for a device, and no vendor file in {folder} answers {word:?}",
            ask.by
        ))
        .resolve(format!(
            "install the driver (`provision apply`), or add \"interfaces\": [\"{word}\"] to its vendor file"
        ))),
    }
}

/// The features by which a vendor's file answers. What a driver lacks is left out.
fn add_features<'a>(
    choice: &mut Choice<'a>,
    ask: &Ask,
    details: &Details,
    refusals: &mut Refusals,
    notes: &mut Vec<Note>,
) -> Result<()> {
    let (file, vendor) = (choice.file, choice.vendor);
    let mut wanted: Vec<&'a str> = Vec::new();
    if details.capabilities.is_empty() {
        wanted.extend(vendor.driver_feature.iter().map(String::as_str));
    }
    for capability in &details.capabilities {
        let features = vendor.features_for(capability);
        if features.is_empty() {
            let message = format!(
                "{} asks for {:?}, which {} does not have: left out",
                ask.by,
                brief(capability),
                file.path
            );
            let level = if details.by_name {
                Level::Notice
            } else {
                Level::Debug
            };
            notes.push(Note::new(level, message).vendor(&file.name));
        }
        wanted.extend(features);
    }
    let has_features = !wanted.is_empty();
    for feature in wanted {
        if !refusals.policy.allows(&file.name, feature) {
            if details.by_name {
                let (by, vendor) = (&ask.by, &file.name);
                let reason = format!("{by} asks for the feature {feature:?}, and \"policy.allow\" has none of that name for {vendor}");
                refusals.add(file, reason)?;
            }
        } else if !choice.features.contains(&feature) {
            choice.features.push(feature);
        }
    }
    if has_features && !details.by_name && choice.features.is_empty() {
        let reason = none_allowed(file, vendor, &ask.by);
        if ask.is_implied() {
            notes.push(Note::new(Level::Notice, reason).vendor(&file.name));
        } else {
            refusals.add(file, reason)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decide::Broken;
    use crate::policy::{Allowed, OnRefusal};
    use crate::request::{Interface, Source, Units};

    fn file(name: &str, interfaces: &str) -> VendorFile {
        let text = format!(
            r#"{{"activation_flag":"X","driver_feature":["compute"],"interfaces":[{interfaces}],
                "aliases":{{"graphics":["gl","egl"]}},
                "inventory":{{"compute":{{}},"utility":{{}},"gl":{{}},"egl":{{}}}}}}"#
        );
        VendorFile {
            name: name.to_owned(),
            path: format!("/conf/{name}.json"),
            content: Ok(crate::config::vendor::parse(&text).unwrap()),
        }
    }

    fn broken(interfaces: &[Interface]) -> VendorFile {
        VendorFile {
            name: "bad".to_owned(),
            path: "/conf/bad.json".to_owned(),
            content: Err(Broken {
                interfaces: interfaces.to_vec(),
                ..Broken::default()
            }),
        }
    }

    fn request(capabilities: &[&str], by_name: bool) -> Request<'static> {
        let details = Details {
            capabilities: capabilities.iter().map(|&c| c.to_owned()).collect(),
            by_name,
            ..Details::default()
        };
        let ask = Ask {
            interface: Interface::Nvidia,
            source: Source::Environment,
            by: "NVIDIA_VISIBLE_DEVICES".to_owned(),
            units: Units::All,
            way: Way::VendorFile,
            details: Ok(details),
        };
        Request {
            asks: vec![ask],
            ..Request::default()
        }
    }

    type Answered = (Vec<String>, Vec<(Level, String)>);

    fn answered(
        files: &[VendorFile],
        request: &Request,
        policy: &Policy,
    ) -> std::result::Result<Answered, String> {
        let Answers {
            by_files: found,
            notes,
            ..
        } = answers(files, request, policy, "/conf").map_err(|e| e.to_string())?;
        let shown = |answer: &Answer| {
            let Choice { file, features, .. } = &answer.choice;
            format!("{}:{}", file.name, features.join("+"))
        };
        let notes = notes.into_iter().map(|note| (note.level, note.message));
        Ok((found.iter().map(shown).collect(), notes.collect()))
    }

    #[test]
    fn capabilities_are_features_and_aliases() {
        let files = [file("a", ""), file("v", "\"nvidia\""), broken(&[])];
        for (capabilities, expected) in [
            (&[][..], "v:compute"),
            (&["compute", "utility"], "v:compute+utility"),
            (&["graphics", "compute", "gl"], "v:gl+egl+compute"),
            (&["utility", "utility"], "v:utility"),
        ] {
            let asking = request(capabilities, true);
            let found = answered(&files, &asking, &Policy::default()).unwrap();
            assert_eq!(found, (vec![expected.to_owned()], Vec::new()));
        }
        for (by_name, level) in [(true, Level::Notice), (false, Level::Debug)] {
            let asking = request(&["video", "compute"], by_name);
            let (found, notes) = answered(&files, &asking, &Policy::default()).unwrap();
            assert_eq!(found, ["v:compute"]);
            let message = "NVIDIA_VISIBLE_DEVICES asks for \"video\", which /conf/v.json does not have: left out";
            assert_eq!(notes, [(level, message.to_owned())]);
        }
    }

    #[test]
    fn one_file_answers() {
        let asking = request(&[], false);
        for (files, error) in [
            (
                vec![file("a", "\"amd\"")],
                "no vendor file in /conf answers \"nvidia\": install the driver",
            ),
            (
                vec![file("v", "\"nvidia\""), file("w", "\"amd\",\"nvidia\"")],
                "both /conf/v.json and /conf/w.json answer \"nvidia\"",
            ),
            (
                vec![file("v", "\"nvidia\""), broken(&[Interface::Nvidia])],
                "both /conf/v.json and /conf/bad.json answer",
            ),
            (
                vec![broken(&[Interface::Nvidia])],
                "NVIDIA_VISIBLE_DEVICES is set, but /conf/bad.json can't be used",
            ),
        ] {
            let found = answered(&files, &asking, &Policy::default()).unwrap_err();
            assert!(found.contains(error), "{found}");
        }
        let quiet = Request::default();
        let found = answered(&[], &quiet, &Policy::default()).unwrap();
        assert_eq!(found, (Vec::new(), Vec::new()));
    }

    #[test]
    fn the_policy_says_which_vendors_and_features() {
        let files = [file("v", "\"nvidia\"")];
        let allow = |vendor: &str, on_refusal| Policy {
            allow: Some(vec![(
                vendor.to_owned(),
                Allowed::Features(vec!["utility".to_owned()]),
            )]),
            on_refusal,
            ..Policy::default()
        };
        let asking = request(&["compute", "utility"], true);
        let (found, notes) = answered(&files, &asking, &allow("v", OnRefusal::Ignore)).unwrap();
        assert_eq!((found, notes.len()), (vec!["v:utility".to_owned()], 1));
        assert!(notes[0]
            .1
            .contains("the feature \"compute\", and \"policy.allow\""));
        let everything = request(&["compute", "utility"], false);
        let (found, notes) = answered(&files, &everything, &allow("v", OnRefusal::Fail)).unwrap();
        assert_eq!((found, notes), (vec!["v:utility".to_owned()], Vec::new()));
        // All that is allowed is nothing, where the list has no feature of this vendor.
        let graphics = request(&["graphics"], false);
        let (_, notes) = answered(&files, &graphics, &allow("v", OnRefusal::Ignore)).unwrap();
        assert!(notes[0].1.contains("has no feature of v"), "{notes:?}");
        let error = answered(&files, &graphics, &allow("v", OnRefusal::Fail)).unwrap_err();
        assert!(error.contains("has no feature of v"), "{error}");
        let mut implied = request(&["graphics"], false);
        if let Ok(details) = &mut implied.asks[0].details {
            details.is_implied = true;
        }
        let (_, notes) = answered(&files, &implied, &allow("v", OnRefusal::Fail)).unwrap();
        assert_eq!(notes.len(), 1);
        let (found, notes) = answered(&files, &asking, &allow("w", OnRefusal::Ignore)).unwrap();
        assert_eq!((found.len(), notes.len()), (0, 1));
        assert!(answered(&files, &asking, &allow("w", OnRefusal::Fail)).is_err());
        // What counts for nothing is not read closely.
        let mut odd = request(&[], true);
        odd.asks[0].details = Err(Error::usage("an odd capability"));
        assert!(answered(&files, &odd, &allow("w", OnRefusal::Ignore)).is_ok());
        let error = answered(&files, &odd, &Policy::default()).unwrap_err();
        assert_eq!(error, "an odd capability");
    }

    #[test]
    fn what_does_not_count_is_said_or_refused() {
        let asking = Request {
            refused: vec!["no".to_owned()],
            ..Request::default()
        };
        let (_, notes) = answered(&[], &asking, &Policy::default()).unwrap();
        let message = "no; the container starts without".to_owned();
        assert_eq!(notes, [(Level::Notice, message)]);
        let strict = Policy {
            on_refusal: OnRefusal::Fail,
            ..Policy::default()
        };
        assert!(answered(&[], &asking, &strict)
            .unwrap_err()
            .starts_with("no: ask in a way"));
    }

    #[test]
    fn what_no_container_asked_for_is_left_out() {
        let mut request = request(&[], false);
        if let Ok(details) = &mut request.asks[0].details {
            details.is_implied = true;
        }
        let strict = Policy {
            on_refusal: OnRefusal::Fail,
            ..Policy::default()
        };
        let found = |files: &[VendorFile]| answered(files, &request, &strict).unwrap();
        assert_eq!(found(&[file("x", "\"nvidia\"")]).0.len(), 1);
        let broken = broken(&[Interface::Nvidia]);
        for files in [vec![], vec![broken], vec![file("x", "\"amd\"")]] {
            let (features, notes) = found(&files);
            assert_eq!((features.len(), notes[0].0), (0, Level::Warning));
        }
    }
}
