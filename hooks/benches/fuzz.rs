//! Every fuzz target, a million times each: `cargo bench --bench fuzz -- [RUNS] [TARGET] [SEED]`.
//! A panic, or more than half a GiB of memory, ends the run with the seed on the screen.

#[path = "../tests/support/fuzz.rs"]
mod fuzz;

use std::time::{Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{setrlimit, Resource, Rlimit};

const MEMORY: u64 = 512 << 20;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).filter(|w| w != "--bench").collect();
    let number = |at: usize| words.get(at).and_then(|w| w.parse().ok());
    let rounds: u64 = number(0).unwrap_or(1_000_000);
    let only = words.get(1);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let seed = number(2).unwrap_or_else(|| now.map_or(1, |d| d.as_secs()));
    let limit = Rlimit { current: Some(MEMORY), maximum: Some(MEMORY) };
    setrlimit(Resource::As, limit).expect("a limit of memory");
    for target in fuzz::targets() {
        if only.is_none_or(|name| name == target.name) {
            println!("{}: {rounds} runs, seed {seed}", target.name);
            let started = Instant::now();
            target.run(rounds, seed);
            println!("{}: done in {:.1} s", target.name, started.elapsed().as_secs_f64());
        }
    }
}
