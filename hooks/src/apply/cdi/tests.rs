use super::*;
use crate::config::vendor::parse;
use crate::error::exit;
use crate::model::vendor::Broken;

fn file(name: &str, kind: Option<&str>) -> VendorFile {
    let mut text = parse(r#"{"activation_flag":"A","driver_feature":[],"inventory":{}}"#);
    if let Ok(vendor) = &mut text {
        vendor.cdi_kind = kind.map(str::to_owned);
    }
    VendorFile {
        name: name.to_owned(),
        path: format!("/conf/{name}.json"),
        content: text.map_err(|mistakes| Broken {
            mistakes,
            flags: Vec::new(),
            interfaces: Vec::new(),
        }),
    }
}

#[test]
fn kinds_are_the_vendors_or_made_of_the_files_name() {
    let kind_of = |files: &[VendorFile]| {
        let chosen: Vec<_> =
            files.iter().map(|file| (file, file.content.as_ref().unwrap())).collect();
        kind(&chosen).map_err(|error| (error.code, error.to_string()))
    };
    for (name, own, expected) in [
        ("xpu", None, "oci-decorator/xpu"),
        ("my.xpu v2", None, "oci-decorator/my-xpu-v2"),
        ("x_pu-1", None, "oci-decorator/x_pu-1"),
        ("xpu", Some("x.com/pu"), "x.com/pu"),
        ("1", Some("x.com/pu"), "x.com/pu"),
    ] {
        assert_eq!(kind_of(&[file(name, own)]).as_deref(), Ok(expected));
    }
    for name in ["x", "1pu", "xpu-", "xpu.", "é"] {
        let (code, message) = kind_of(&[file(name, None)]).unwrap_err();
        assert_eq!(code, exit::USAGE);
        assert!(message.contains(&format!("/conf/{name}.json: ")), "{message}");
        assert!(message.contains("give the file a \"cdi_kind\""), "{message}");
    }
    let several = [file("x", None), file("xpu", Some("x.com/pu"))];
    assert_eq!(kind_of(&several).as_deref(), Ok("oci-decorator/driver"));
}
