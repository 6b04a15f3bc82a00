//! One program with several names: see `oci-decorator --help`.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use oci_decorator::cli::{self, nvidia_cdi_hook, nvidia_container_cli, nvidia_ctk, nvidia_hook};
use oci_decorator::frontends::nvidia::runtime_and_hook as nvidia;
use oci_decorator::frontends::runtime;

fn main() -> ExitCode {
    let mut words = std::env::args_os();
    let called = words.next().unwrap_or_default();
    let words: Vec<OsString> = words.collect();
    let name = Path::new(&called).file_name().and_then(|name| name.to_str());
    ExitCode::from(match name.unwrap_or_default() {
        runtime::NAME => runtime::run(&words, None),
        name if nvidia::is_name(name) => nvidia::run_runtime(&words, name),
        "nvidia-ctk" => nvidia_ctk::run(&words),
        nvidia_container_cli::NAME => nvidia_container_cli::run(&words),
        nvidia_cdi_hook::NAME => nvidia_cdi_hook::run(&words),
        name if nvidia_hook::is_name(name) => nvidia_hook::run(&words),
        _ => cli::run(&words),
    })
}
