//! How the program is linked, in addition to the settings in `.cargo/config.toml`.

use std::env::var;

fn main() {
    let folder = var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".to_owned());
    let mut arguments = vec!["-Wl,-z,noseparate-code".to_owned()];
    // Only this profile ends the program at a panic.
    let scripts: &[&str] = match var("PROFILE").as_deref() {
        Ok("release") => &["start.ld", "unwind.ld"],
        _ => &["start.ld"],
    };
    for script in scripts {
        println!("cargo::rerun-if-changed={script}");
        arguments.push(format!("-Wl,-T,{folder}/{script}"));
    }
    for argument in arguments {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
