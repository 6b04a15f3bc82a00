//! A short run of every fuzz target; `cargo bench --bench fuzz` is the long one.

use crate::support::{fuzz, is_quick};

#[test]
fn damaged_input_breaks_no_promise() {
    for target in fuzz::targets() {
        println!("{}", target.name);
        target.run(if is_quick() { 100 } else { 3_000 }, 1);
    }
}
