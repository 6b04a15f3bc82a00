//! A short run of every fuzz target; `cargo bench --bench fuzz` is the long one.

#[path = "support/fuzz.rs"]
mod fuzz;

#[test]
fn damaged_input_breaks_no_promise() {
    for target in fuzz::targets() {
        println!("{}", target.name);
        target.run(3_000, 1);
    }
}
