//! How the program is linked, in addition to the settings in `.cargo/config.toml`.

fn main() {
    let folder = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| ".".to_owned());
    println!("cargo::rerun-if-changed=start.ld");
    for argument in ["-Wl,-z,noseparate-code", &format!("-Wl,-T,{folder}/start.ld")] {
        println!("cargo::rustc-link-arg-bins={argument}");
    }
}
