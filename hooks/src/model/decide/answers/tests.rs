use super::*;
use crate::model::decide::Broken;
use crate::model::policy::{Allowed, OnRefusal};
use crate::model::request::{Interface, Source, Units};

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
        let message =
            "NVIDIA_VISIBLE_DEVICES asks for \"video\", which /conf/v.json does not have: left out";
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
    // "Everything that is allowed" is nothing if the list has no feature of this vendor.
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
    // The details of a request that does not count are not examined.
    let mut odd = request(&[], true);
    odd.asks[0].details = Err(Error::usage("an odd capability"));
    assert!(answered(&files, &odd, &allow("w", OnRefusal::Ignore)).is_ok());
    let error = answered(&files, &odd, &Policy::default()).unwrap_err();
    assert_eq!(error, "an odd capability");
}

#[test]
fn what_does_not_count_is_reported_or_refused() {
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
