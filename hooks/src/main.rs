//! One program with several names: see `oci-decorator --help`.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use oci_decorator::cli::nvidia_hook::{run_cdi, CDI_HOOK};
use oci_decorator::cli::{self, nvidia_container_cli, nvidia_ctk, nvidia_hook};
use oci_decorator::frontends::{nvidia, runtime};

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
        CDI_HOOK => run_cdi(&words),
        name if nvidia_hook::is_name(name) => nvidia_hook::run(&words),
        _ => cli::run(&words),
    })
}
