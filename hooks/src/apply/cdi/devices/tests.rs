use super::*;

fn device(name: &str) -> Device {
    Device {
        source: format!("/host/dev/{name}"),
        path: format!("/dev/{name}"),
        kind: 'c',
        major: 195,
        minor: 255,
        mode: 0o600,
        uid: Some(3),
        gid: Some(4),
        access: crate::model::edits::Access::ALL,
    }
}

#[test]
fn names_begin_and_end_with_a_letter_or_digit() {
    for (path, expected) in [
        ("/dev/nvidia0", "nvidia0"),
        ("/dev/dri/card0", "dri-card0"),
        ("/dev/a:b.c_d-e", "a:b.c_d-e"),
        ("/dev/_x_", "x"),
        ("/dev/a b", "a-b"),
        ("/dev/é", "node"),
        ("/dev/-.:", "node"),
    ] {
        let device = Device {
            path: path.to_owned(),
            ..device("")
        };
        assert_eq!(name(&device), expected, "{path}");
    }
}
