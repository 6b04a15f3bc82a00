//! How the program is linked, in addition to the settings in `.cargo/config.toml`.

use std::env::var;

fn main() {
    let mut arguments = vec!["-Wl,-z,noseparate-code".to_owned()];
    // Only this profile ends the program at a panic.
    if var("PROFILE").as_deref() == Ok("release") {
        let folder = var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".to_owned());
        println!("cargo::rerun-if-changed=unwind.ld");
        arguments.push(format!("-Wl,-T,{folder}/unwind.ld"));
    }
    for argument in arguments {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
