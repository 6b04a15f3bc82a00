use super::*;
use crate::model::policy::Who;

/// A file without mistakes.
fn sound(text: &str) -> Settings {
    let (settings, mistakes) = parse(text);
    assert_eq!(mistakes, Vec::<String>::new());
    settings
}

#[test]
fn the_commented_example_is_the_default() {
    let text = include_str!("../../../config/config.toml");
    assert_eq!(sound(text), Settings::default());
    let live: String = text
        .lines()
        .map(|line| match line.strip_prefix('#') {
            Some(setting) if !setting.starts_with(' ') => format!("{setting}\n"),
            _ => format!("{line}\n"),
        })
        .collect();
    let settings = sound(&live);
    assert_eq!(settings.log_file, Some("/var/log/oci-decorator.log".into()));
    let expected = Settings {
        log_file: settings.log_file.clone(),
        policy: Policy { allow: settings.policy.allow.clone(), ..Policy::default() },
        ..Settings::default()
    };
    assert_eq!(settings, expected);
    assert_eq!(settings.policy.allow.map(|vendors| vendors.len()), Some(2));
    for key in KEYS.iter().chain(&POLICY_KEYS) {
        let table = ["policy", "allow"].contains(key);
        let as_value = live.contains(&format!("\n{key} = "));
        assert!(table || as_value, "{key}");
    }
}

#[test]
fn the_examples_of_the_reference_have_no_mistake() {
    let page = include_str!("../../../../docs/reference/oci-decorator.md");
    let examples: Vec<_> = page
        .split("```toml\n")
        .skip(1)
        .map(|rest| sound(rest.split("```").next().unwrap()).policy)
        .collect();
    let whom: Vec<_> = examples.iter().map(|p| (p.environment, p.annotations)).collect();
    assert_eq!(whom, [(Who::All, Who::All), (Who::None, Who::All), (Who::All, Who::None)]);
}
