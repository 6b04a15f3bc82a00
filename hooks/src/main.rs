//! One binary, two names: see `oci-decorator --help`.
//!
//! The entry is the C library's, without the set-up that Rust's runtime does before
//! its `main`: that took a tenth of a start (it reads `/proc/self/maps` and installs
//! handlers for a stack overflow). `docs/decisions/0017` has the figures.
#![no_main]
// A symbol that the linker looks for by name counts as unsafe: two of one name would clash.
#![allow(unsafe_code)]

use std::ffi::{c_char, c_int, CStr, OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use oci_decorator::{cli, shim, stdio};

/// Called by the C library. Only glibc gives the words to `std` as well.
///
/// # Safety
/// As `owned`.
#[no_mangle]
pub unsafe extern "C" fn main(count: c_int, words: *const *const c_char) -> c_int {
    if stdio::ensure_open().is_err() {
        return c_int::from(oci_decorator::error::exit::FAILED);
    }
    let mut words = owned(count, words).into_iter();
    let name = words.next().unwrap_or_default();
    let words: Vec<OsString> = words.collect();
    let is_runtime = Path::new(&name)
        .file_name()
        .is_some_and(|n| n == shim::NAME);
    c_int::from(if is_runtime {
        shim::run(&words)
    } else {
        cli::run(words)
    })
}

/// # Safety
/// `words` points to `count` pointers to strings that end with NUL.
unsafe fn owned(count: c_int, words: *const *const c_char) -> Vec<OsString> {
    (0..usize::try_from(count).unwrap_or_default())
        .map(|at| CStr::from_ptr(*words.add(at)))
        .map(|word| OsStr::from_bytes(word.to_bytes()).to_owned())
        .collect()
}
