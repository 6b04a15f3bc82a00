//! One binary, two names: see `oci-decorator --help`.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use oci_decorator::{cli, shim};

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let name = words.next().unwrap_or_default();
    let words: Vec<OsString> = words.collect();
    if Path::new(&name)
        .file_name()
        .is_some_and(|n| n == shim::NAME)
    {
        shim::run(&words)
    } else {
        cli::run(words)
    }
}
