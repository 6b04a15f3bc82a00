//! All tests that run the program, and those of its parts with the real world: one binary,
//! because linking it takes longer than most of what it tests.

mod cdi;
mod cdi_hook;
mod cdi_in;
mod cli;
mod command_line;
mod container;
mod container_cli;
mod container_root;
mod corpus;
mod errors;
mod fuzz;
mod hook;
mod hostile;
mod image;
mod layers;
mod ldconfig;
mod left_out;
mod library_names;
mod log;
mod nodes;
mod nvidia_ctk;
mod nvidia_runc;
mod requests;
mod schema;
mod shim;
mod support;
mod together;
mod without_openat2;

/// Cargo doesn't look for test files here (`autotests`), so that one which is missing above
/// would never run.
#[test]
fn every_test_file_is_a_module() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests");
    for entry in std::fs::read_dir(folder).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        let module = name.trim_end_matches(".rs");
        let listed = include_str!("main.rs").contains(&format!("\nmod {module};"));
        assert!(listed || module == "main", "tests/{name} is no module of tests/main.rs");
    }
}
