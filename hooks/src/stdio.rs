//! Standard input, output and error, which a caller may have closed.

use std::fs::File;

use rustix::io::{fcntl_getfd, Errno};

/// Opens `/dev/null` in place of what is closed. Otherwise the first file that the
/// program opens would get that number, and an error message would be written into it.
/// Errors: there is no `/dev/null`.
pub fn ensure_open() -> std::io::Result<()> {
    let closed = [
        fcntl_getfd(rustix::stdio::stdin()),
        fcntl_getfd(rustix::stdio::stdout()),
        fcntl_getfd(rustix::stdio::stderr()),
    ];
    for _ in closed.iter().filter(|result| **result == Err(Errno::BADF)) {
        // A new file gets the lowest number that is free.
        let null = File::options().read(true).write(true).open("/dev/null")?;
        std::mem::forget(null);
    }
    Ok(())
}
